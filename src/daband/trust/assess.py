"""``assess``: how good a policy is in the target, and whether it may be handed over, without a reward from there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daband.arguments import finite, whole
from daband.arrays import AnyArray, ArrayLike, FloatArray
from daband.domains import Contexts, EvaluationDomain, LoggedDomain, RewardDomain
from daband.domains.readers.arrays import ArrayContexts
from daband.errors import InvalidInput, NotFitted
from daband.evaluation.scores import Scores, scores_of
from daband.policies import Policy
from daband.trust.agreement import agreement
from daband.trust.arm_frequencies import expected_arm_frequencies
from daband.trust.assessment import ArmAssessment, Assessment
from daband.trust.collapse import collapse_signs
from daband.trust.committee_confidence import CommitteeProbabilities, committee_probabilities
from daband.trust.estimate import Estimate, constant_value, estimate_target
from daband.trust.shift import Shift, classifier_two_sample, projected
from daband.trust.support import outside_support
from daband.trust.verdict import verdict_of

__all__ = ["assess", "assess_each"]

FEWEST_ROUNDS = 100
"""With fewer held-out source rounds than this, the assessment says that its interval is wider for it."""
_FEWEST_FOR_AN_ARM = 5
_LATENTS = 400
_FAR_OUTSIDE = 0.5


def assess(
    policies: Policy | Sequence[Policy],
    *,
    source: EvaluationDomain | RewardDomain | LoggedDomain,
    target: Contexts | ArrayLike,
    required: float | None = None,
    rule: str = "ucb",
    contexts: int = 2000,
    arm_names: Sequence[str] | None = None,
    seed: int = 0,
) -> Assessment:
    """Assess a policy in the target, without a reward from there. No policy is changed.

    Args:
        policies: the policy, and others that were trained alike, with another seed say: a committee, which is judged by
            how often its members agree. The assessment is about the first. One policy alone is judged by its own
            predictions, with a wider interval.
        source: source rounds that no training used, ``pair.source_test``. Of a domain that knows what every arm pays
            only the reward of the arm that a policy chose is used; of a log its propensities too.
        target: contexts of the target, ``pair.target`` or an array (N, *C). A domain that pays is refused.
        required: what the value has to reach, in the user's units; by default the estimated value of the best constant
            arm in the target.
        rule: "ucb" keeps the exploration bonus, as ``evaluate`` does; "greedy" drops it.
        contexts: how many contexts of each domain are used at most.
        arm_names: a name per arm for the page, e.g. ``pair.class_names``.
        seed: fixes which contexts of the target are used where there are more.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policies = [daband.LinUCB.for_pair(pair, seed=seed) for seed in (0, 1)]
    >>> for policy in policies:
    ...     run = daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=32)

    >>> found = daband.assess(policies, source=pair.source_test, target=pair.target)
    >>> found.verdict in ("hand over", "hand over and audit", "do not") and found.low <= found.value
    True
    """
    (assessment,) = assess_each(
        policies,
        source=source,
        target=target,
        required=required,
        rule=rule,
        contexts=contexts,
        arm_names=arm_names,
        seed=seed,
        wanted=[0],
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
    arm_names: Sequence[str] | None = None,
    seed: int = 0,
    wanted: Sequence[int] | None = None,
) -> list[Assessment]:
    """``assess`` for every member of a committee, or for those at some positions; contexts are scored once."""
    members = _checked_policies(policies)
    unlabelled = _checked_target(target, members[0])
    _check_source(source, members[0])
    if rule not in ("ucb", "greedy"):
        raise InvalidInput(f"rule must be 'ucb' or 'greedy', got {rule!r}")
    whole("contexts", contexts, least=20)
    names = _checked_names(arm_names, members[0].n_arms)
    if required is not None:
        finite("required", required)
    scores, here, there = scores_of(
        members, source=source, target=unlabelled, contexts=contexts, rule=rule, seed=whole("seed", seed, least=0)
    )
    _check_different(scores)
    calibrated = committee_probabilities(scores)
    found = []
    for index in range(len(members)) if wanted is None else wanted:
        order = [index, *(other for other in range(len(members)) if other != index)]
        first, own = members[index], scores.of(order)
        _check_paid(own)
        estimate = estimate_target(own, calibrated)
        shift, outside = _shift_and_support(first, here, there)
        found.append(_written(first, own, calibrated, estimate, shift, outside, required, names))
    return found


def _written(
    first: Policy,
    scores: Scores,
    calibrated: CommitteeProbabilities,
    estimate: Estimate,
    shift: Shift,
    outside: float,
    required: float | None,
    names: list[str],
) -> Assessment:
    lowest, highest = first.reward_range
    span = highest - lowest if highest > lowest else 1.0
    before, after = expected_arm_frequencies(calibrated)
    constant = constant_value(scores, after)
    needed = constant if required is None else (required - lowest) / span
    signs = collapse_signs(scores)
    doubts = len(signs) + (outside > _FAR_OUTSIDE)
    verdict = verdict_of(
        value=estimate.value, low=estimate.value_low, required=needed, estimated=required is None, doubts=doubts
    )
    per_arm = _per_arm(scores, estimate, before, after, lowest, span)
    reasons = [
        *_reasons_of_estimate(scores, first),
        *_reasons_of_required(required, needed * span + lowest),
        *_reasons_of_shift(shift, outside),
        *_reasons_of_arms(per_arm, names),
        *(f"Sign of collapse: {sign}." for sign in signs),
    ]
    return Assessment(
        accuracy=estimate.accuracy,
        value=estimate.value * span + lowest,
        low=estimate.value_low * span + lowest,
        accuracy_low=estimate.accuracy_low,
        required=needed * span + lowest,
        verdict=verdict.text,
        audit_rewards=verdict.rewards,
        reasons=reasons,
        per_arm=per_arm,
        shift=shift,
        outside_support=outside,
        collapse=signs,
        estimator=estimate.name,
        members=[float(one) for one in estimate.members],
        agreement=None if scores.members < 2 else float(agreement(scores.target_arm).mean()),
        source_agreement=None if scores.members < 2 else float(agreement(scores.source_arm).mean()),
        source_value=float(scores.source_value()[0]) * span + lowest,
        source_rounds=scores.source_arm.shape[1],
        target_contexts=scores.target_arm.shape[1],
        reward_range=(float(lowest), float(highest)),
        arm_names=names,
    )


def _per_arm(
    scores: Scores, estimate: Estimate, before: FloatArray, after: FloatArray, lowest: float, span: float
) -> list[ArmAssessment]:
    """Every arm; values by arm are shifted so that they average to the estimate over the target's choices."""
    n_arms = scores.n_arms
    here, there = (
        np.bincount(arms[0], minlength=n_arms) / len(arms[0]) for arms in (scores.source_arm, scores.target_arm)
    )
    paid = np.bincount(scores.source_arm[0], weights=scores.weight[0] > 0, minlength=n_arms)
    raw = estimate.by_context
    sums = np.bincount(scores.target_arm[0], weights=raw, minlength=n_arms)
    counts = np.bincount(scores.target_arm[0], minlength=n_arms)
    found = []
    for arm in range(n_arms):
        value = None if counts[arm] == 0 else float(sums[arm] / counts[arm]) * span + lowest
        found.append(
            ArmAssessment(
                arm=arm,
                source_share=float(here[arm]),
                target_share=float(there[arm]),
                expected_source=float(before[arm]),
                expected_target=float(after[arm]),
                value=value,
                source_rounds=int(paid[arm]),
                supported=bool(paid[arm] >= _FEWEST_FOR_AN_ARM),
            )
        )
    return found


def _shift_and_support(policy: Policy, here: AnyArray, there: AnyArray) -> tuple[Shift, float]:
    raw = projected(here), projected(there)
    before, before_p = classifier_two_sample(*raw)
    latent = getattr(policy, "latent", None)
    if latent is None:
        return Shift(before, before_p, None, None), outside_support(*raw)
    latents = [
        np.asarray(latent(rows[:_LATENTS], domain), np.float64).reshape(min(_LATENTS, len(rows)), -1)
        for rows, domain in ((here, "source"), (there, "target"))
    ]
    after, after_p = classifier_two_sample(*(projected(rows) for rows in latents))
    return Shift(before, before_p, after, after_p), outside_support(latents[0], latents[1])


def _reasons_of_estimate(scores: Scores, first: Policy) -> list[str]:
    lowest, highest = first.reward_range
    value = float(scores.source_value()[0]) * (highest - lowest) + lowest
    rounds = f"{scores.source_arm.shape[1]:,}"
    if scores.members > 1:
        reasons = [
            f"{scores.members} policies agree on {float(agreement(scores.target_arm).mean()):.1%} of target contexts, "
            f"and on {float(agreement(scores.source_arm).mean()):.1%} of held-out source contexts, where the first has "
            f"a mean reward of {value:.3g} ({rounds} rounds)."
        ]
    else:
        reasons = [
            "One policy alone is judged by its own predictions, which is less reliable than agreement: the interval "
            f"is wider. Train two more alike, and assess the three together. It has a mean reward of {value:.3g} on "
            f"{rounds} held-out source rounds."
        ]
    worth = float(scores.effective_rounds()[0])
    if worth < FEWEST_ROUNDS:
        reasons.append(
            f"Only {worth:.0f} held-out source rewards say how good the policy is in the source: fewer than "
            f"{FEWEST_ROUNDS}, so the interval is wider."
        )
    return reasons


def _reasons_of_required(required: float | None, needed: float) -> list[str]:
    if required is not None:
        return [f"A value of {needed:.3g} is required."]
    return [f"Required is what the best constant arm is estimated to be worth in the target, {needed:.3g}."]


def _reasons_of_shift(shift: Shift, outside: float) -> list[str]:
    text = f"A fresh classifier tells the domains apart with an accuracy of {shift.before:.2f} by their contexts"
    if shift.after is not None:
        text += f", and of {shift.after:.2f} by the policy's latents"
    text += " (chance: .5). That they look alike is necessary for a good transfer, and not sufficient."
    reasons = [text]
    if outside > 0.02:
        reasons.append(f"{outside:.0%} of target contexts lie outside the source's support.")
    return reasons


def _reasons_of_arms(per_arm: Sequence[ArmAssessment], names: list[str]) -> list[str]:
    label = names or [str(arm.arm) for arm in per_arm]
    missing = [label[arm.arm] for arm in per_arm if not arm.supported and arm.target_share > 0.01]
    if not missing:
        return []
    return [f"Chosen in the target, hardly or never in the held-out source rounds: {', '.join(missing)}."]


def _checked_policies(policies: Policy | Sequence[Policy]) -> list[Policy]:
    members = [policies] if isinstance(policies, Policy) else list(policies)
    if not members:
        raise InvalidInput("policies is empty; give a policy, or several that were trained alike")
    for index, policy in enumerate(members):
        if not isinstance(policy, Policy):
            raise InvalidInput(f"policies[{index}] must be a daband policy, got {type(policy).__name__}")
        if any(policy is other for other in members[:index]):
            raise InvalidInput(
                f"policies[{index}] is there twice: a policy agrees with itself whether it is right or not; train "
                "others with other seeds, or give it alone"
            )
        for what in ("n_arms", "context_shape", "arms"):
            own, wanted = getattr(policy, what), getattr(members[0], what)
            if own != wanted:
                raise InvalidInput(
                    f"policies[{index}] has {what}={own!r}, policies[0] has {wanted!r}; a committee is trained alike"
                )
        if not policy.knows_reward_range:
            raise NotFitted(
                f"policies[{index}] does not know the range of rewards yet (reward_range='auto'): train it first"
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


def _check_paid(scores: Scores) -> None:
    if not (scores.weight[0] > 0).any():
        raise InvalidInput(
            "source: no logged round has an arm that the policy would choose, so nothing is known of its rewards; give "
            "a log that holds more rounds or explores more"
        )


def _checked_names(arm_names: Sequence[str] | None, n_arms: int) -> list[str]:
    if arm_names is None:
        return []
    names = [str(name) for name in arm_names]
    if len(names) != n_arms:
        raise InvalidInput(f"arm_names has {len(names)} names for {n_arms} arms")
    return names
