"""``assess``: how good a policy is in the target, and whether it may be handed over, without a reward from there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from daband._arguments import finite, one_of, whole
from daband._arrays import AnyArray, ArrayLike
from daband._shift import Shift, ShiftLike, as_shift, default_shift
from daband.domains._contract import Contexts, EvaluationDomain, LoggedDomain, RewardDomain
from daband.domains.readers._arrays import ArrayContexts
from daband.errors import InvalidInput, NotFitted
from daband.evaluation._policy_scores import Scores, in_domains, scores_of
from daband.policies._policy import Policy, transformed_contexts
from daband.trust._assessment import (
    ASSUMPTIONS,
    ONE_ADAPTED_METHOD,
    ArmAssessment,
    Assessment,
    requirement,
    verdict_of,
)
from daband.trust._diagnostics import (
    DomainShift,
    classifier_two_sample,
    collapse_signs,
    doubts_of,
    outside_support,
    projected,
)
from daband.trust._estimate import Estimate, estimate_target
from daband.trust._explanations import Explanation, explanations_of

FEWEST_ROUNDS = 100
"""With fewer held-out source rounds than this, the assessment says that its interval is wider for it."""
_FEWEST_FOR_AN_ARM = 5
_LATENTS = 400
_SUPPORT = 300
"""Contexts of each domain that the share outside the source's support is found from."""


def assess(
    policies: Policy | Sequence[Policy],
    *,
    source: EvaluationDomain | RewardDomain | LoggedDomain,
    target: Contexts | ArrayLike,
    required: float | None = None,
    rule: str = "ucb",
    contexts: int = 2000,
    shift: ShiftLike = None,
    arm_names: Sequence[str] | None = None,
    seed: int = 0,
    policy_names: Sequence[str] | None = None,
) -> Assessment:
    """Assess a policy in the target, without a reward from there. No policy is changed.

    Args:
        policies: the policy, and others for the same problem: of other kinds, and with other seeds. The assessment is
            about the first. The more their assumptions differ, the more their agreement says.
        source: source rounds that no training used, ``pair.source_test``. Of a domain that knows what every arm pays
            only the reward of the arm that a policy chose is used; of a log its propensities too.
        target: contexts of the target, ``pair.target`` or an array (N, *C). A domain with rewards is refused.
        required: what the value has to reach, in the user's units; by default the estimated value of the best constant
            arm in the target.
        rule: "ucb" keeps the exploration bonus, as ``evaluate`` does; "greedy" drops it.
        contexts: how many contexts of each domain are used at most.
        shift: what may differ between the domains, as in ``daband.domains.from_arrays``; by default what the first
            policy was told. Where nobody stated it, anything may, and the bound covers that.
        arm_names: a name per arm for the page, e.g. ``pair.class_names``.
        seed: fixes which contexts of the target are used where there are more.
        policy_names: a name per policy for the page; by default "policy 0" and so on.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policies = [daband.LinUCB.for_pair(pair, seed=seed) for seed in (0, 1)]
    >>> for policy in policies:
    ...     run = daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=32)

    >>> assessment = daband.assess(policies, source=pair.source_test, target=pair.target)
    >>> assessment.verdict in ("hand over", "ask", "do not") and assessment.low <= assessment.value
    True
    """
    (assessment,) = assess_each(
        policies,
        source=source,
        target=target,
        required=required,
        rule=rule,
        contexts=contexts,
        shift=shift,
        arm_names=arm_names,
        seed=seed,
        wanted=[0],
        policy_names=policy_names,
    )
    return assessment


def assess_each(
    policies: Policy | Sequence[Policy],
    *,
    source: EvaluationDomain | RewardDomain | LoggedDomain,
    target: Contexts | ArrayLike,
    required: float | None = None,
    rule: str = "ucb",
    contexts: int = 2000,
    shift: ShiftLike = None,
    arm_names: Sequence[str] | None = None,
    seed: int = 0,
    wanted: Sequence[int] | None = None,
    policy_names: Sequence[str] | None = None,
) -> list[Assessment]:
    """``assess`` for every policy, or for those at some positions; contexts are scored once."""
    members = _checked_policies(policies)
    unlabelled = _checked_target(target, members[0])
    _check_source(source, members[0])
    one_of("rule", rule, ("ucb", "greedy"))
    whole("contexts", contexts, least=20)
    names = _checked_names("arm_names", arm_names, members[0].n_arms, "arms")
    policy_names = _checked_names("policy_names", policy_names, len(members), "policies")
    if required is not None:
        finite("required", required)
    scores, source_contexts, target_contexts = scores_of(
        members, source=source, target=unlabelled, contexts=contexts, rule=rule, seed=whole("seed", seed, least=0)
    )
    _check_different(scores)
    stated = _stated_shift(shift, members[0])
    explanations = explanations_of(
        members,
        source_contexts,
        target_contexts,
        shift=stated,
        rule=rule,
        reward_range=members[0].reward_moments.observed,
        origin=scores.origin,
        names=policy_names,
    )
    assessments = []
    for index in range(len(members)) if wanted is None else wanted:
        _check_rewarded(scores.of([index]))
        gap, outside = _shift_and_support(members[index], source_contexts, target_contexts, scores.origin)
        estimate = estimate_target(scores, explanations, member=index, outside=outside, stated=stated.stated)
        assessments.append(
            _write(
                members[0].reward_moments.observed,
                scores.of([index]),
                estimate,
                explanations,
                gap,
                outside,
                stated,
                required,
                names,
            )
        )
    return assessments


def _stated_shift(shift: ShiftLike, policy: Policy) -> Shift:
    """What the user states here, or told the policy."""
    if shift is not None:
        return as_shift(shift, context_shape=policy.context_shape)
    told = getattr(policy, "shift", None)
    return told if isinstance(told, Shift) else default_shift(policy.context_shape)


def _write(
    reward_range: tuple[float, float],
    scores: Scores,
    estimate: Estimate,
    explanations: Sequence[Explanation],
    gap: DomainShift,
    outside: float,
    stated: Shift,
    required: float | None,
    names: list[str],
) -> Assessment:
    lowest, highest = reward_range  # what all scores are scaled by: members that estimate it have one each
    span = highest - lowest if highest > lowest else 1.0
    needed = estimate.constant if required is None else (required - lowest) / span
    signs = collapse_signs(scores)
    verdict = verdict_of(
        value=estimate.value,
        low=estimate.low,
        required=needed,
        disagreement=estimate.disagreement,
        contexts=scores.target_arm.shape[1],
        doubts=doubts_of(signs, outside, gap),
    )
    per_arm = _per_arm(scores, estimate, lowest, span)
    reasons = [
        verdict.sentence, *_reasons_of_estimate(scores, estimate, lowest, span, stated),
        requirement(needed * span + lowest, stated=required is not None), *_reasons_of_shift(gap, outside),
        *_reasons_of_arms(per_arm, names), *(f"Sign of collapse: {sign}." for sign in signs),
    ]  # fmt: skip
    alone = len(explanations) == 1
    one_adapted_method = explanations[0].adapted and len({one.method for one in explanations}) == 1
    return Assessment(
        accuracy=estimate.accuracy,
        value=estimate.value * span + lowest,
        low=estimate.low * span + lowest,
        accuracy_low=estimate.accuracy_low,
        required=needed * span + lowest,
        verdict=verdict.text,
        why=verdict.why,
        audit_rewards=verdict.rewards,
        reasons=reasons,
        per_arm=per_arm,
        shift=gap,
        outside_support=outside,
        collapse=signs,
        explanations={name: value * span + lowest for name, value in estimate.by_explanation.items()},
        disagreement=estimate.disagreement,
        assumed=str(stated) if stated.stated else "anything (nobody stated it; shift= rules some of it out)",
        agreement=None if alone else estimate.agreement,
        source_agreement=None if alone else estimate.source_agreement,
        source_value=float(scores.source_value()[0]) * span + lowest,
        source_error=estimate.source_error * span,
        source_rounds=scores.source_arm.shape[1],
        target_contexts=scores.target_arm.shape[1],
        reward_range=(float(lowest), float(highest)),
        arm_names=names,
        assumptions=[*ASSUMPTIONS, ONE_ADAPTED_METHOD] if one_adapted_method else list(ASSUMPTIONS),
    )


def _per_arm(scores: Scores, estimate: Estimate, lowest: float, span: float) -> list[ArmAssessment]:
    """Every arm; values by arm are shifted so that they average to the estimate over the target's choices."""
    n_arms = scores.n_arms
    source_share, target_share = (
        np.bincount(arms[0], minlength=n_arms) / len(arms[0]) for arms in (scores.source_arm, scores.target_arm)
    )
    paid = np.bincount(scores.source_arm[0], weights=scores.weight[0] > 0, minlength=n_arms)
    sums = np.bincount(scores.target_arm[0], weights=estimate.by_context, minlength=n_arms)
    counts = np.bincount(scores.target_arm[0], minlength=n_arms)
    return [
        ArmAssessment(
            arm=arm,
            source_share=float(source_share[arm]),
            target_share=float(target_share[arm]),
            expected_source=float(estimate.expected_source[arm]),
            expected_target=float(estimate.expected_target[arm]),
            value=None if counts[arm] == 0 else float(sums[arm] / counts[arm]) * span + lowest,
            source_rounds=int(paid[arm]),
            supported=bool(paid[arm] >= _FEWEST_FOR_AN_ARM),
        )
        for arm in range(n_arms)
    ]


def _shift_and_support(
    policy: Policy, source: AnyArray, target: AnyArray, origin: AnyArray | None
) -> tuple[DomainShift, float]:
    raw = projected(source), projected(target)
    before, before_p = classifier_two_sample(*raw)
    latent = getattr(policy, "latent", None)
    if latent is None:
        seen = raw
        if policy.transform is not None and any(policy.shift.own_statistics(math.prod(policy.context_shape))):
            # The user said that these numbers are in other units: what counts is where the policy sees them.
            (transformed,) = in_domains(lambda rows, name: [transformed_contexts(policy, rows, name)], source, origin)
            seen = projected(transformed), projected(transformed_contexts(policy, target, "target"))
        return DomainShift(before, before_p, None, None), outside_support(*(rows[:_SUPPORT] for rows in seen))

    def flat(rows: AnyArray, domain: str) -> list[AnyArray]:
        return [np.asarray(latent(rows, domain), np.float64).reshape(len(rows), -1)]

    first = None if origin is None else origin[:_LATENTS]
    latents = [in_domains(flat, source[:_LATENTS], first)[0], flat(target[:_LATENTS], "target")[0]]
    after, after_p = classifier_two_sample(*(projected(rows) for rows in latents))
    return DomainShift(before, before_p, after, after_p), outside_support(*(rows[:_SUPPORT] for rows in latents))


def _reasons_of_estimate(scores: Scores, estimate: Estimate, lowest: float, span: float, stated: Shift) -> list[str]:
    value = float(scores.source_value()[0]) * span + lowest
    values = [one * span + lowest for one in estimate.by_explanation.values()]
    reasons = [
        f"{len(values)} explanations of the target put its value between {min(values):.3g} and {max(values):.3g}. The "
        f"policy agrees with the others on {estimate.agreement:.1%} of target contexts, and on "
        f"{estimate.source_agreement:.1%} of held-out source contexts, where its mean reward is {value:.3g} "
        f"({scores.source_arm.shape[1]:,} rounds)."
    ]
    if len(values) == 1 and not stated.stated:
        reasons.append(
            "A single explanation has nothing to disagree with, so nothing bounds the value from below: give a policy "
            "of another kind beside this one, or state what may differ between the domains (shift=...)."
        )
    if estimate.disagreement > 0:
        one, other = estimate.apart
        reasons.append(
            f"The two most different explanations ({one}; {other}) disagree on {estimate.disagreement:.0%} of target "
            "contexts."
        )
    worth = float(scores.effective_rounds()[0])
    if worth < FEWEST_ROUNDS:
        logged = round(worth) < scores.source_arm.shape[1]
        by_weight = " (of a log those of the policy's own arms count, by their weights)" if logged else ""
        reasons.append(
            f"Only {worth:.0f} held-out source rewards{by_weight} say how good the policy is in the source: fewer than "
            f"{FEWEST_ROUNDS}, so the interval is wider."
        )
    return reasons


def _reasons_of_shift(shift: DomainShift, outside: float) -> list[str]:
    text = f"A fresh classifier tells the domains apart with an accuracy of {shift.before:.2f} by their contexts"
    if shift.after is not None:
        text += f", and of {shift.after:.2f} by the policy's latents"
    text += " (guessing: .5). That they look alike is necessary for a good transfer, and not sufficient."
    return [text, *([f"{outside:.0%} of target contexts lie outside the source's support."] if outside > 0.02 else [])]


def _reasons_of_arms(per_arm: Sequence[ArmAssessment], names: list[str]) -> list[str]:
    label = names or [str(arm.arm) for arm in per_arm]
    missing = [label[arm.arm] for arm in per_arm if not arm.supported and arm.target_share > 0.01]
    if not missing:
        return []
    return [f"Chosen in the target, hardly or never in the held-out source rounds: {', '.join(missing)}."]


def _checked_policies(policies: Policy | Sequence[Policy]) -> list[Policy]:
    members = [policies] if isinstance(policies, Policy) else list(policies)
    if not members:
        raise InvalidInput("policies is empty; give a policy, or several for the same problem")
    for index, policy in enumerate(members):
        if not isinstance(policy, Policy):
            raise InvalidInput(f"policies[{index}] must be a daband policy, got {type(policy).__name__}")
        if any(policy is other for other in members[:index]):
            raise InvalidInput(
                f"policies[{index}] is there twice: a policy agrees with itself whether it is right or not; train "
                "others with other seeds, or give it alone"
            )
        for what in ("n_arms", "context_shape", "arms"):
            value, first = getattr(policy, what), getattr(members[0], what)
            if value != first:
                raise InvalidInput(
                    f"policies[{index}] has {what}={value!r}, policies[0] has {first!r}; give policies for one problem"
                )
        if policy.rounds_learned == 0 and policy.learns_by_gradients:
            raise NotFitted(f"policies[{index}] has learned from no round yet: train it first")
    return members


def _checked_target(target: Contexts | ArrayLike, policy: Policy) -> Contexts:
    if isinstance(target, RewardDomain | LoggedDomain | EvaluationDomain):
        raise InvalidInput(
            f"target must be contexts without rewards, e.g. pair.target, got {type(target).__name__}, which pays: an "
            "assessment that could see target rewards would be none"
        )
    if target is None:
        raise InvalidInput("target is None: give contexts of the target, pair.target or an array (N, *C)")
    if not isinstance(target, Contexts):
        target = ArrayContexts(target, per_arm=policy.arms == "shared", name="target")
    if tuple(target.context_shape) != tuple(policy.context_shape):
        raise InvalidInput(f"target has contexts of shape {target.context_shape}, policies of {policy.context_shape}")
    if len(target) < 2:
        raise InvalidInput(f"target has {len(target)} context(s); an estimate needs more")
    return target


def _check_source(source: object, policy: Policy) -> None:
    if not isinstance(source, EvaluationDomain | RewardDomain | LoggedDomain):
        missing = ": this pair has no held-out source rounds; build it with source_test=.1" if source is None else ""
        raise InvalidInput(
            f"source must be source rounds that training did not use, e.g. pair.source_test, got "
            f"{type(source).__name__}{missing}"
        )
    if source.n_arms != policy.n_arms:
        raise InvalidInput(f"source has {source.n_arms} arms, the policies {policy.n_arms}")
    if tuple(source.context_shape) != tuple(policy.context_shape):
        raise InvalidInput(f"source has contexts of shape {source.context_shape}, policies of {policy.context_shape}")
    if len(source) < 2:
        raise InvalidInput(f"source has {len(source)} held-out round(s); hold out at least {FEWEST_ROUNDS}")


def _check_different(scores: Scores) -> None:
    for one in range(scores.members):
        for other in range(one):
            if np.array_equal(scores.target_mean[one], scores.target_mean[other]) and np.array_equal(
                scores.source_mean[one], scores.source_mean[other]
            ):
                raise InvalidInput(
                    f"policies[{other}] and policies[{one}] predict the same to the last digit: they are one policy, "
                    "which agrees with itself whether it is right or not; train others with other seeds, or give it "
                    "alone"
                )


class UnknownRewards(InvalidInput):
    """No round of a log has an arm that the policy would choose."""


def _check_rewarded(scores: Scores) -> None:
    if not (scores.weight[0] > 0).any():
        raise UnknownRewards(
            "source: no logged round has an arm that the policy would choose, so nothing is known of its rewards; give "
            "a log that holds more rounds or explores more"
        )


def _checked_names(argument: str, given: Sequence[str] | None, n: int, of: str) -> list[str]:
    if given is None:
        return []
    names = [str(name) for name in given]
    if len(names) != n:
        raise InvalidInput(f"{argument} has {len(names)} names for {n} {of}")
    return names
