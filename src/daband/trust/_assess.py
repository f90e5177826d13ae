"""``assess``: estimate the advantage of a policy over the incumbent in the target, without target
rewards.

``assess`` checks its arguments and reads the data into ``SourceRounds`` and ``TargetContexts``.
``Choices`` are the policy's decisions on both. ``build_assessment`` computes the result, also for
``choose``: the advantage over the incumbent, the guardrail, and the doubts. The diagnostics at the
end compare the contexts of the domains, and detect a policy that collapsed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from daband.base._arguments import check_int, check_one_of
from daband.base._arrays import AnyArray, ArrayLike, FloatArray, IntArray, take_chosen
from daband.base._folds import N_FOLDS, assign_folds
from daband.domains._contract import Contexts, EvaluationDomain, LoggedDomain, Pair, RewardDomain
from daband.domains._source_rounds import (
    apply_by_source,
)
from daband.domains.readers._arrays import ArrayContexts
from daband.errors import InvalidInput, NotFitted
from daband.features._catalogue import Catalogue
from daband.linear._joint_ridge import JointHead
from daband.logs._advantages import (
    MIN_CLUSTERS,
    MIN_CROSS_FITTED_ROUNDS,
    LogEvidence,
    PolicyValues,
    assess_choices,
)
from daband.logs._check_log import find_mismatches
from daband.logs._learned_logs import has_learned_all
from daband.logs._mean_estimates import MeanEstimate, estimate_mean
from daband.logs._scores import Scores
from daband.policies._incoming_rounds import compute_importance_weights
from daband.policies._log_policy import LogPolicy
from daband.policies._mixture import Mixture
from daband.policies._policy import Policy, transform_contexts
from daband.policies._supervised import Supervised
from daband.rounds._rounds import Rounds
from daband.trust._assessment import Assessment, count_rewards_needed
from daband.trust._incumbent import Incumbent, as_incumbent, decide, make_constant_incumbent
from daband.trust._reference import (
    EXPERIMENTS,
    FULL,
    Forecast,
    forecast_effect,
    infer_kind,
    load_reference_class,
)

#: Smallest allowed value of the argument ``contexts`` of ``assess``.
_MIN_CONTEXTS = 20
#: Maximum number of held-out rounds of a log, unless ``contexts`` is larger. Logged rewards are
#: noisy.
_MAX_LOGGED_ROUNDS = 20_000
#: Maximum number of contexts of each domain from which the fraction outside the source's support is
#: estimated.
_MAX_SUPPORT_CONTEXTS = 300
#: Largest fraction of target contexts outside the source's support at which a policy is deployed
#: without rewards.
_MAX_OUTSIDE_FRACTION = 0.5
#: The distance of a context to the source is its distance to the k-th nearest source context, with
#: this k.
_NEIGHBOUR_RANK = 5
#: A target context is outside the support if it is farther from the source than this fraction of
#: source contexts.
_SUPPORT_QUANTILE = 0.99
#: A policy collapsed if it chooses one arm for this fraction of target contexts, and for less in
#: the source.
_COLLAPSED_TOP_ARM_FRACTION = 0.95
#: A policy collapsed if it no longer uses this fraction of the arms that it uses in the source.
_COLLAPSED_UNUSED_FRACTION = 0.5
#: Largest fraction of target contexts for which arms without rewards may be chosen, unless such
#: choices are proven to gain.
_MAX_NEW_ARM_FRACTION = 0.05
#: Contexts with more dimensions are projected to this number of dimensions by a random matrix.
_MAX_DIMENSIONS = 48
#: Maximum number of contexts of each domain in diagnostics.
MAX_DIAGNOSTIC_CONTEXTS = 500


def assess(
    policy: Policy,
    *,
    source: EvaluationDomain | RewardDomain | LoggedDomain,
    target: Contexts | ArrayLike,
    incumbent: Any = None,
    rule: str = "greedy",
    contexts: int = 2000,
    arm_names: Sequence[str] | None = None,
    unit: str = "",
    seed: int = 0,
) -> Assessment:
    """Estimate the advantage of a policy over the incumbent in the target, without target rewards.

    The advantage over the incumbent is measured on held-out source rounds. Other pairs of real
    domains show which fraction of such an advantage is usually left in the target. The policy does
    not change.

    A ``LogPolicy`` is assessed on the log that it has learned, ``pair.source``, by cross-fitting.
    The estimate is for the target's contexts, and the reference class are real experiments.

    Args:
        policy: the policy.
        source: source rounds that training did not use, ``pair.source_test``, or for a
            ``LogPolicy`` the log that it has learned. The reward of every arm of a log is estimated
            by doubly robust scores, as in ``evaluate_log``.
        target: target contexts, ``pair.target`` or an array (N, *C). A domain with rewards is
            rejected.
        incumbent: today's decisions: an arm's name or index, a column of the target's table, an
            array with today's arm for each target context (N,), or another policy. Default: the
            source's best arm, which a ``LogPolicy`` takes from the log that it learned. If the
            source's table has the column too, the policy is compared there with the arms in it.
            Without choices in the source, the policy is compared there with the better of two
            substitutes: the logged arms, and arms as a tree predicts today's choices from the
            contexts. If the source is not a log, it is compared with the best arm.
        rule: "greedy", or "ucb" to keep the exploration bonus.
        contexts: maximum number of contexts of each domain. For a source that is a log, the maximum
            is 20,000 rounds if that is more.
        arm_names: a name per arm, e.g. ``pair.class_names``; by default the policy's.
        unit: unit of the rewards for the sentences, e.g. "euros".
        seed: determines which contexts are used if a domain has more.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policy = daband.LinUCB.for_pair(pair, seed=0)
    >>> run = daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=32)
    >>> assessment = daband.assess(policy, source=pair.source_test, target=pair.target, incumbent=0)
    >>> assessment.low <= assessment.advantage
    True
    """
    if not isinstance(policy, Policy):
        raise InvalidInput(f"policy must be a daband policy, got {type(policy).__name__}")
    if policy.rounds_learned == 0 and policy.learns_by_gradients:
        raise NotFitted("the policy has learned from no round yet: train it first")
    check_one_of("rule", rule, ("ucb", "greedy"))
    check_int("contexts", contexts, minimum=_MIN_CONTEXTS)
    names = check_arm_names(arm_names, policy)
    target_contexts = check_target(target, policy)
    check_source(source, policy)
    rounds = read_source_rounds(policy, source, contexts, seed=check_int("seed", seed, minimum=0))
    target_sample = TargetContexts.read(target_contexts, contexts, seed=seed)
    incumbent = as_incumbent(
        incumbent, n_arms=policy.n_arms, arm_names=names, target=target_contexts
    )
    if incumbent is None:
        incumbent = make_constant_incumbent(rounds.find_best_arm(policy.catalogue), names)
    choices = Choices(
        *rounds.decide(policy, rule), *decide(policy, target_sample.contexts, "target", rule)
    )
    return build_assessment(
        policy, rounds, target_sample, choices, incumbent, arm_names=names, unit=unit
    )


def estimate_new_arm_gain(policy: Policy, rounds: SourceRounds) -> LogEvidence | None:
    """Return the estimated gain over the best arm of choosing arms by their features, as for arms
    without rewards.

    The gain is estimated by cross-fitting. Each regression is fitted without a fifth of the rounds
    and a fifth of the arms. It is evaluated on the rounds left out, for which it may choose any arm
    with rewards. Return None if the policy does not use arm features, or if there are fewer than 5
    arms or rounds.
    """
    joint_policy = policy.joint_member if isinstance(policy, Mixture) else policy
    head = getattr(joint_policy, "_head", None)
    catalogue = policy.catalogue
    rng = np.random.default_rng(0)
    n_rounds = len(rounds.contexts)
    if joint_policy is None or catalogue is None or not isinstance(head, JointHead):
        return None
    if min(catalogue.offered[0].sum(), n_rounds) < N_FOLDS:
        return None

    def compute_features(contexts: AnyArray, domain: str) -> list[AnyArray]:
        """Return the features of contexts for the regression, in a list of one array."""
        contexts = transform_contexts(policy, contexts, domain)
        if joint_policy is not policy:
            contexts = transform_contexts(joint_policy, contexts, domain)
        return [joint_policy._get_head_and_features(contexts, policy.domains.index(domain))[1]]  # type: ignore[attr-defined]

    (features,) = apply_by_source(compute_features, rounds.contexts, rounds.origins)
    if rounds.logged is None:  # simulate a log of uniformly drawn source arms
        arms = rng.choice(np.flatnonzero(catalogue.offered[0]), n_rounds)
        rewards = rounds.get_rewards(arms)
        weights = np.ones(n_rounds)
    else:
        arms = rounds.logged.arms
        rewards = rounds.logged.rewards
        weights = compute_importance_weights(
            rounds.logged.known_propensities,
            policy.n_arms,
            rounds.logged.offered,
            policy.propensity_power,
        )
    folds = assign_folds(n_rounds), assign_folds(policy.n_arms, seed=1)
    predicted_rewards = head.predict_held_out(
        features.reshape(n_rounds, -1), arms, rewards, weights, folds
    )
    has_rewards = np.bincount(arms, minlength=policy.n_arms) > 0
    chosen_arms = np.where(has_rewards, predicted_rewards, -np.inf).argmax(axis=1)
    best_arm = int(np.where(has_rewards, rounds.rewards.mean(axis=0), -np.inf).argmax())
    return assess_choices(rounds.rewards, chosen_arms, best_arm)


def get_assessed_source(
    pair: Pair, policy: Policy
) -> EvaluationDomain | RewardDomain | LoggedDomain:
    """Return the source rounds on which a policy is assessed: held-out rounds, or for a
    ``LogPolicy`` all rounds of the log that it has learned.
    """
    if isinstance(policy, LogPolicy) and isinstance(pair.source, LoggedDomain):
        return pair.source
    if pair.source_test is None:
        raise InvalidInput(
            f"the pair {pair.name!r} has no held-out source rounds, and {policy.name} is assessed on"
            " these; set source_test=0.1"
        )
    return pair.source_test


def read_source_rounds(
    policy: Policy, source: EvaluationDomain | RewardDomain | LoggedDomain, n: int, *, seed: int
) -> SourceRounds:
    """Return the rounds on which a policy is assessed.

    For a ``LogPolicy`` that has learned ``source``, these are all rounds with its cross-fitted
    values; otherwise ``SourceRounds.read``.
    """
    if isinstance(policy, LogPolicy) and isinstance(source, LoggedDomain):
        rounds = source.read_rounds(np.arange(len(source)))
        (features,) = apply_by_source(
            lambda rows, name: [transform_contexts(policy, rows, name)],
            rounds.contexts,
            rounds.domains,
        )
        order = policy.find_rounds(replace(rounds, contexts=features))
        if order is not None:
            values = policy.values
            if values is None:
                raise InvalidInput(
                    f"the source has {len(source)} round(s); use {MIN_CROSS_FITTED_ROUNDS} source"
                    f" rounds or more, and {MIN_CLUSTERS} clusters or more if there are clusters, to"
                    " assess the policy of a log"
                )
            logged = replace(rounds.select(order), weights=None)
            frame = None if source.frame is None else source.frame[order]
            return SourceRounds(
                logged.contexts, values.scores, logged.domains, logged, values, frame
            )
    if isinstance(policy, LogPolicy) and has_learned_all(policy, source):
        raise InvalidInput(
            "source has rounds that the policy has learned together with others, so its advantage"
            " on them would be too high: give source_test, or all rounds that it has learned"
        )
    return SourceRounds.read(source, n, seed=seed)


@dataclass(frozen=True)
class SourceRounds:
    """Source rounds with an (estimated) reward of every arm.

    The policy has not learned them, unless there are its cross-fitted ``values``.
    """

    #: Contexts, (N, *C).
    contexts: AnyArray
    #: Reward of every arm, (N, K); for a log, doubly robust scores.
    rewards: FloatArray
    #: Name of the source domain of each context, (N,); None if there is only one.
    origins: AnyArray | None
    #: Logged arms and rewards; None if the source is not a log.
    logged: Rounds | None
    #: The cross-fitted values of the policy that has learned these rounds; None if it has not.
    values: PolicyValues | None = None
    #: The user's rows (a polars frame) of the rounds; None if they do not come from one table.
    frame: Any = None

    @classmethod
    def read(
        cls, source: EvaluationDomain | RewardDomain | LoggedDomain, n: int, *, seed: int
    ) -> SourceRounds:
        """Read at most ``n`` rounds, or for a log at most the larger of ``n`` and 20,000 rounds."""
        n = min(max(n, _MAX_LOGGED_ROUNDS) if isinstance(source, LoggedDomain) else n, len(source))
        domain = source.domain if isinstance(source, EvaluationDomain) else source
        indices = domain.order(0, n, seed=seed)
        frame = None if domain.frame is None else domain.frame[indices]
        rounds = domain.read_rounds(indices)
        if isinstance(rounds, Rounds):
            scores = Scores(rounds, source.n_arms, seed=seed).values
            return cls(rounds.contexts, scores, rounds.domains, rounds, frame=frame)
        rewards = rounds.rewards
        if isinstance(source, EvaluationDomain) and rounds.expected is not None:
            rewards = rounds.expected
        return cls(rounds.contexts, rewards, rounds.domains, None, frame=frame)

    def decide(self, policy: Policy, rule: str = "greedy") -> tuple[IntArray, FloatArray]:
        """Return a policy's arms (N,) and predicted rewards (N, K) for these rounds."""
        arms, means = apply_by_source(
            lambda rows, name: decide(policy, rows, name, rule), self.contexts, self.origins
        )
        offered = None if self.logged is None else self.logged.offered
        if offered is not None:  # an arm that the log did not offer could not be chosen
            is_unavailable = ~take_chosen(offered, arms)
            arms = np.where(is_unavailable, np.where(offered, means, -np.inf).argmax(axis=1), arms)
        return arms, means

    def get_rewards(self, arms: IntArray) -> FloatArray:
        """Return the reward of the given arm (N,) of each round, (N,); it is estimated if the
        source is a log.
        """
        return take_chosen(self.rewards, arms)

    def get_policy_rewards(self, arms: IntArray) -> FloatArray:
        """Return the reward of the policy in each round, (N,), given its arms (N,).

        If it has learned the rounds, the rewards are those of policies that have not learned the
        round.
        """
        return self.get_rewards(arms) if self.values is None else self.values.values

    def with_choices(self, arms: IntArray, rewards: FloatArray) -> SourceRounds:
        """Return the rounds with other cross-fitted choices, (N,), and their rewards, (N,)."""
        if self.values is None:
            return self
        predictions = np.eye(self.rewards.shape[1])[arms]  # they only show which arm is chosen
        return replace(self, values=replace(self.values, values=rewards, predictions=predictions))

    def get_guarded(self) -> SourceRounds | None:
        """Return the rounds with the guardrail's outcome as rewards; None without a guardrail.

        A larger reward is better.
        """
        logged = self.logged
        if logged is None or logged.guardrail is None:
            return None
        sign = -1.0 if logged.guardrail.name.startswith("-") else 1.0
        logged = replace(logged, rewards=sign * logged.guardrail.values)
        n_arms = self.rewards.shape[1]
        scores = Scores(logged, n_arms).values
        values = self.values
        if values is not None:
            chosen = take_chosen(scores, values.find_arms())
            values = replace(values, scores=scores, values=chosen)
        return replace(self, rewards=scores, logged=logged, values=values)

    def find_best_arm(
        self, catalogue: Catalogue | None = None, mean_rewards: FloatArray | None = None
    ) -> int:
        """Return the arm with the largest mean reward, among the catalogue's arms that both domains
        have.

        ``mean_rewards`` (K,) are by default the means of these rounds.
        """
        if self.values is not None:
            return self.values.source_arm
        mean_rewards = self.rewards.mean(axis=0) if mean_rewards is None else mean_rewards
        is_common = (
            np.ones(len(mean_rewards), np.bool_)
            if catalogue is None
            else catalogue.offered.all(axis=0)
        )
        if not is_common.any():
            raise InvalidInput("the domains have no arm in common, so incumbent= must be given")
        return int(np.where(is_common, mean_rewards, -np.inf).argmax())

    def read_incumbent_arms(self, incumbent: Incumbent) -> IntArray | None:
        """Return the incumbent's arms in its column of the user's rows, (N,), or None."""
        return None if self.frame is None else incumbent.read_source_arms(self.frame)

    def get_incumbent_rewards(self, incumbent: Incumbent) -> FloatArray:
        """Return the estimated reward of the incumbent in each round, (N,)."""
        if incumbent.choices is not None:
            today = self.read_incumbent_arms(incumbent)
            if today is not None:
                return self.get_rewards(today)
            if self.logged is None:
                return self.rewards[:, self.find_best_arm()]
            # An experiment draws other arms than today's choices, which a tree predicts.
            predicted = incumbent.predict_choices(self.contexts, self.rewards.shape[1])
            substitutes = [self.logged.rewards, (self.rewards * predicted).sum(axis=1)]
            weights = np.ones(len(predicted))
            weights = weights if self.values is None else self.values.mix.target_weights
            return max(substitutes, key=lambda rewards: float(weights @ rewards))
        (arms,) = apply_by_source(
            lambda rows, name: [incumbent.choose_arms(rows, name)], self.contexts, self.origins
        )
        return self.get_rewards(arms)


@dataclass(frozen=True)
class TargetContexts:
    """A sample of target contexts."""

    #: Contexts, (L, *C).
    contexts: AnyArray
    #: Index of each context in the domain, (L,).
    indices: IntArray
    #: Number of contexts of the domain.
    n_rows: int

    @classmethod
    def read(cls, target: Contexts, n_contexts: int, *, seed: int) -> TargetContexts:
        """Read at most ``n_contexts`` contexts."""
        indices = target.order(0, min(n_contexts, len(target)), seed=seed)
        return cls(target.read(indices), indices, len(target))


@dataclass(frozen=True)
class Choices:
    """A policy's arms and predicted rewards on source rounds and on target contexts."""

    #: Arms on source rounds, (N,).
    source_arms: IntArray
    #: Predicted rewards on source rounds, (N, K).
    source_predictions: FloatArray
    #: Arms on target contexts, (L,).
    target_arms: IntArray
    #: Predicted rewards on target contexts, (L, K).
    target_predictions: FloatArray


def build_assessment(
    policy: Policy,
    rounds: SourceRounds,
    target_sample: TargetContexts,
    choices: Choices,
    incumbent: Incumbent,
    *,
    arm_names: Sequence[str],
    unit: str,
    is_gain_proven: bool | None = None,
    comparison: tuple[float, float] | None = None,
) -> Assessment:
    """Return the assessment of a policy, given its choices in both domains.

    ``is_gain_proven`` is True if choosing arms without rewards by their features is proven to gain.
    With None, ``estimate_new_arm_gain`` tests it. ``comparison`` is the classifier's accuracy and
    the fraction outside the source's support; with None, ``_compare_domains`` computes them.
    """
    incumbent_arms = incumbent.choose_target_arms(target_sample.contexts, target_sample.indices)
    classifier_accuracy, outside_fraction = comparison or _compare_domains(
        policy, rounds, target_sample
    )
    new_arms = _find_new_arms(policy)
    costs = [] if policy.costs is None else list(policy.costs.means)
    estimate = estimate_advantage(policy, rounds, choices, incumbent, incumbent_arms)
    assessment = Assessment(
        **estimate,
        guardrail=_forecast_guardrail(policy, rounds, choices, incumbent, incumbent_arms),
        doubts=_collect_doubts(policy, rounds, choices, outside_fraction, new_arms, is_gain_proven),
        high=None,
        verdict="",
        incumbent=incumbent.name,
        incumbent_arm=incumbent.arm,
        incumbent_column=incumbent.column,
        rewards=0,
        target_contexts=len(target_sample.contexts),
        target_rows=target_sample.n_rows,
        substitutes_incumbent=rounds.logged is not None
        and incumbent.choices is not None
        and rounds.read_incumbent_arms(incumbent) is None,
        classifier_accuracy=classifier_accuracy,
        outside_support=outside_fraction,
        source_arms=compute_arm_fractions(choices.source_arms, policy.n_arms),
        target_arms=compute_arm_fractions(choices.target_arms, policy.n_arms),
        unit=unit,
        arm_names=list(arm_names),
        new_arms=new_arms,
        costs=costs,
        incumbent_cost=float(np.array(costs)[incumbent_arms].mean()) if costs else 0.0,
    )
    return assessment.with_verdict()


def reassess(
    assessment: Assessment,
    policy: Policy,
    pair: Pair,
    rounds: SourceRounds,
    target_sample: TargetContexts,
    choices: Choices,
) -> Assessment:
    """Return the assessment of other choices against the incumbent of an assessment, whose
    comparison of the domains is kept.

    Raise an error if the assessment does not contain the incumbent's arms: those of an array or of
    a policy.
    """
    name = assessment.incumbent_column or assessment.incumbent_arm
    names = pair.class_names
    incumbent = as_incumbent(name, n_arms=pair.n_arms, arm_names=names, target=pair.target)
    if incumbent is None:
        raise InvalidInput(
            f"other choices cannot be compared with {assessment.incumbent}, which the assessment"
            " does not contain; write today's arms to a column of the target, and use"
            " daband.choose(incumbent=COLUMN)"
        )
    return build_assessment(
        policy,
        rounds,
        target_sample,
        choices,
        incumbent,
        arm_names=names,
        unit=assessment.unit,
        comparison=(assessment.classifier_accuracy, assessment.outside_support),
    )


def estimate_advantage(
    policy: Policy,
    rounds: SourceRounds,
    choices: Choices,
    incumbent: Incumbent,
    incumbent_arms: IntArray,
) -> dict[str, Any]:
    """Return the fields of ``Assessment`` on the advantage over the incumbent, by name.

    The advantage is measured in the source, and forecast for the target. If the policy has learned
    the rounds of a log, both use its cross-fitted values (``rounds.values``). ``incumbent_arms``
    (L,) are the incumbent's arms for the target contexts.
    """
    disagreement = float((choices.target_arms != incumbent_arms).mean())
    prediction = _predict_advantage(policy, choices, incumbent_arms)
    rewards = rounds.get_policy_rewards(choices.source_arms)
    gains = rewards - rounds.get_incumbent_rewards(incumbent)
    reward_deviation = estimate_reward_deviation(rounds, choices)
    forecast = forecast_gains(policy, rounds, gains, reward_deviation, disagreement, prediction)
    kind = infer_kind(policy.context_shape) if prediction is None else FULL
    source_advantage = float(gains.mean())
    source_value = float(rewards.mean())
    effective_rounds = None
    if rounds.values is not None:
        kind = EXPERIMENTS
        source_advantage = rounds.values.estimate_source_mean(gains)
        source_value = rounds.values.estimate_source_mean(rewards)
        mix = rounds.values.mix
        effective_rounds = mix.effective_rounds if mix.factor else None
    return {
        "disagreement": disagreement,
        "advantage": forecast.advantage if disagreement else 0.0,
        "low": forecast.low if disagreement else 0.0,
        "source_advantage": source_advantage,
        "source_error": estimate_gain_error(gains, reward_deviation, rounds),
        "source_value": source_value,
        "source_rounds": len(gains),
        "kind": kind,
        "shifts": forecast.n_data_sets,
        "median_kept": forecast.median_kept,
        "tenth_percentile_kept": forecast.tenth_percentile_kept,
        "lost_fraction": forecast.lost_fraction,
        "between_deviation": forecast.between_deviation,
        "effective_rounds": effective_rounds,
        "rewards_needed": count_rewards_needed(forecast.advantage, reward_deviation, disagreement),
    }


def _forecast_guardrail(
    policy: Policy,
    rounds: SourceRounds,
    choices: Choices,
    incumbent: Incumbent,
    incumbent_arms: IntArray,
) -> dict[str, Any] | None:
    """Return the forecast change of the guardrail in the target, with its name and margin; None
    without a guardrail.

    The arguments are as in ``estimate_advantage``.
    """
    guarded = rounds.get_guarded()
    if guarded is None or rounds.logged is None or rounds.logged.guardrail is None:
        return None
    change = estimate_advantage(policy, guarded, choices, incumbent, incumbent_arms)
    guardrail = rounds.logged.guardrail
    return {
        "name": guardrail.name,
        "margin": guardrail.margin,
        **{name: change[name] for name in ("advantage", "low")},
    }


def _describe_mismatch(policy: Policy, logged: Rounds) -> list[str]:
    """Return a phrase if a log contradicts its propensities, with the arm that does so the most."""
    clusters = logged.clusters
    if clusters is not None:
        clusters = np.unique(clusters, return_inverse=True)[1]
    all_arms = np.ones((len(logged.arms), policy.n_arms), np.bool_)
    offered = all_arms if logged.offered is None else logged.offered
    ratios = find_mismatches(logged.arms, logged.known_propensities, offered, clusters)
    if not ratios:
        return []
    arm = max(ratios, key=lambda index: abs(ratios[index] - 1.0))
    name = arm if policy.arm_names is None else policy.arm_names[arm]
    return [f"the log has arm {name!r} {ratios[arm]:.2f} times as often as its propensities say"]


def _collect_doubts(
    policy: Policy,
    rounds: SourceRounds,
    choices: Choices,
    outside_fraction: float,
    new_arms: dict[str, float],
    is_gain_proven: bool | None,
) -> list[str]:
    """Return a phrase for each reason not to deploy the policy without target rewards.

    Args:
        policy: the policy.
        rounds: the source rounds.
        choices: the policy's choices in both domains.
        outside_fraction: the fraction of target contexts outside the source's support.
        new_arms: the result of ``_find_new_arms``.
        is_gain_proven: as in ``build_assessment``.
    """
    doubts = []
    if rounds.values is None:
        doubts = find_collapse_signs(choices.source_arms, choices.target_arms, policy.n_arms)
    if rounds.logged is not None:
        doubts += _describe_mismatch(policy, rounds.logged)
    # one arm of a log needs no context, and its movement is in the reference class
    is_arm_of_log = rounds.values is not None and len(np.unique(choices.target_arms)) == 1
    if outside_fraction > _MAX_OUTSIDE_FRACTION and not is_arm_of_log:
        doubts.append(
            f"{outside_fraction:.0%} of target contexts are far from every source context"
        )
    target_fractions = compute_arm_fractions(choices.target_arms, policy.n_arms)
    new_arm_fraction = sum(
        target_fractions[policy.catalogue.index_by_name[name]] for name in new_arms
    )
    if new_arm_fraction > _MAX_NEW_ARM_FRACTION:
        if is_gain_proven is None:
            evidence = estimate_new_arm_gain(policy, rounds)
            is_gain_proven = evidence is not None and evidence.personalises
        if not is_gain_proven:
            doubts.append(
                f"arms without any reward are chosen for {new_arm_fraction:.0%} of target contexts,"
                " without proof of a gain"
            )
    unlike_arms = [name for name, distance in new_arms.items() if math.isinf(distance)]
    unlike_fraction = sum(
        target_fractions[policy.catalogue.index_by_name[name]] for name in unlike_arms
    )
    if unlike_fraction > _MAX_NEW_ARM_FRACTION:
        doubts.append(
            f"arms with a feature value that no arm with rewards has ({', '.join(unlike_arms[:3])})"
            f" are chosen for {unlike_fraction:.0%} of target contexts"
        )
    return doubts


def forecast_gains(
    policy: Policy,
    rounds: SourceRounds,
    gains: FloatArray,
    deviation: float,
    disagreement: float,
    prediction: MeanEstimate | None = None,
) -> Forecast:
    """Return the expected gain in the target, and its limit, from the gains in ``rounds``, (N,).

    Args:
        policy: the policy.
        rounds: the rounds.
        gains: the outcome of the policy minus that of the incumbent, (N,).
        deviation: the standard deviation of the outcome.
        disagreement: the fraction of target contexts with different arms.
        prediction: the mean gain that the policy predicts for the target, which replaces the gains
            in ``rounds``; None if it predicts none.
    """
    if rounds.values is None:
        kind = infer_kind(policy.context_shape) if prediction is None else FULL
        if prediction is None:
            error = estimate_gain_error(gains, deviation, rounds)
            prediction = MeanEstimate(float(gains.mean()), error)
        reference_class = load_reference_class().select_kind(kind)
        return reference_class.forecast(*prediction[:2], deviation)
    return forecast_effect(
        rounds.values.mix.estimate(gains).mean,
        fraction=disagreement if policy.shift.rewards_may_differ else None,
        reward_deviation=deviation,
        n_contenders=rounds.values.n_contenders,
    )


def _predict_advantage(
    policy: Policy, choices: Choices, incumbent_arms: IntArray
) -> MeanEstimate | None:
    """Return the advantage that a policy predicts for the target; None if it has not learned the
    rewards of all arms.

    The predictions contain the frequencies of arms in the target, so that an incumbent that becomes
    right more often is visible. If the policy overestimates rewards in cross-validation in the
    source, its error there is added.
    """
    error = policy.held_out_error if isinstance(policy, Supervised) else None
    if error is None:
        return None
    predictions = choices.target_predictions
    gains = take_chosen(predictions, choices.target_arms) - take_chosen(predictions, incumbent_arms)
    return estimate_mean(gains).plus(error._replace(value=min(error.value, 0.0)))


def _find_new_arms(policy: Policy) -> dict[str, float]:
    """Return target arms without rewards, by name, with the distance of their features to arms with
    rewards.
    """
    catalogue = policy.catalogue
    counts = getattr(policy, "counts", np.zeros(0))
    if catalogue is None or len(counts) != policy.n_arms or not counts.any():
        return {}
    new_indices = np.flatnonzero(catalogue.offered[1] & (counts == 0))
    distances = catalogue.compute_distances(counts > 0)
    return {catalogue.names[index]: float(distances[index]) for index in new_indices}


def compute_arm_fractions(arms: IntArray, n_arms: int) -> list[float]:
    """Return the fraction of contexts for which each arm is chosen, (K,)."""
    return [float(fraction) for fraction in np.bincount(arms, minlength=n_arms) / len(arms)]


def estimate_reward_deviation(rounds: SourceRounds, choices: Choices) -> float:
    """Return the standard deviation of all logged rewards.

    Without a log, use the rewards of the policy's choices.
    """
    rewards = (
        rounds.get_rewards(choices.source_arms) if rounds.logged is None else rounds.logged.rewards
    )
    return float(rewards.std())


def estimate_gain_error(gains: FloatArray, reward_deviation: float, rounds: SourceRounds) -> float:
    """Return the standard error of the mean of gains (n,) of ``rounds``.

    The standard error is 0 if all gains are 0, as for a policy that makes the same choices as the
    incumbent. ``reward_deviation`` is the standard deviation of rewards.
    """
    if rounds.values is not None:
        return rounds.values.mix.without_target().estimate(gains).mean.standard_error
    n = len(gains)
    # The variance of a few similar rounds may be near 0, so one more round with the usual variance
    # is added.
    return (
        math.sqrt((float(gains.var()) * n + reward_deviation**2) / (n + 1) / max(n - 1, 1))
        if gains.any()
        else 0.0
    )


def _compare_domains(
    policy: Policy, rounds: SourceRounds, target_sample: TargetContexts
) -> tuple[float, float]:
    """Return the accuracy of a domain classifier, and the fraction of target contexts outside the
    source's support.

    Contexts are compared after the policy's preprocessing. They are features of its network, or are
    standardised per domain if the user states that units differ.
    """
    encode = getattr(policy, "encode", None)
    n_features = math.prod(policy.context_shape)
    has_own_units = policy.transform is not None and any(
        policy.shift.mask_separate_columns(n_features)
    )

    def encode_flat(contexts: AnyArray, domain: str) -> list[AnyArray]:
        """Return the preprocessed contexts as vectors, in a list of one array."""
        if encode is not None:
            contexts = encode(contexts, domain)
        elif has_own_units:
            contexts = transform_contexts(policy, contexts, domain)
        return [np.asarray(contexts).reshape(len(contexts), -1)]

    rows = np.arange(len(rounds.contexts))
    if rounds.values is not None:  # the rounds of a log are sorted
        rows = np.random.default_rng(0).permutation(rows)
    rows = rows[:MAX_DIAGNOSTIC_CONTEXTS]
    origins = None if rounds.origins is None else rounds.origins[rows]
    (source,) = apply_by_source(encode_flat, rounds.contexts[rows], origins)
    (target,) = encode_flat(target_sample.contexts[:MAX_DIAGNOSTIC_CONTEXTS], "target")
    source = project_contexts(source)
    target = project_contexts(target)
    outside_fraction = measure_outside_support(
        source[:_MAX_SUPPORT_CONTEXTS], target[:_MAX_SUPPORT_CONTEXTS]
    )
    return measure_classifier_accuracy(source, target), outside_fraction


def check_arm_names(arm_names: Sequence[str] | None, policy: Policy) -> list[str]:
    """Return the given arm names, else the policy's, else an empty list."""
    names = [str(name) for name in arm_names or policy.arm_names or ()]
    if names and len(names) != policy.n_arms:
        raise InvalidInput(
            f"arm_names must have a name for each of {policy.n_arms} arms, got {len(names)}"
        )
    return names


def check_target(target: Contexts | ArrayLike, policy: Policy) -> Contexts:
    """Return the target as unlabelled contexts. Raise an error for a domain with rewards."""
    if isinstance(target, RewardDomain | LoggedDomain | EvaluationDomain):
        raise InvalidInput(
            "target must be contexts without rewards, e.g. pair.target, got"
            f" {type(target).__name__}: its rewards must not be seen"
        )
    if target is None:
        raise InvalidInput(
            "target is None; it must be target contexts: pair.target or an array (N, *C)"
        )
    if not isinstance(target, Contexts):
        target = ArrayContexts(target, has_arm_axis=policy.arms == "shared", name="target")
    if tuple(target.context_shape) != tuple(policy.context_shape):
        raise InvalidInput(
            f"target must have contexts of shape {policy.context_shape}, got {target.context_shape}"
        )
    if len(target) < 2:
        raise InvalidInput(f"target has {len(target)} context(s); at least 2 are needed")
    return target


def check_source(source: object, policy: Policy) -> None:
    """Raise an error unless the source has rounds with the policy's arms and context shape."""
    if not isinstance(source, EvaluationDomain | RewardDomain | LoggedDomain):
        remedy = (
            ": this pair has no held-out source rounds; build it with source_test=0.1"
            if source is None
            else ""
        )
        raise InvalidInput(
            "source must be source rounds that training did not use, e.g. pair.source_test, got "
            f"{type(source).__name__}{remedy}"
        )
    if source.n_arms != policy.n_arms:
        raise InvalidInput(
            f"source must have {policy.n_arms} arms, as the policy has, got {source.n_arms}"
        )
    if tuple(source.context_shape) != tuple(policy.context_shape):
        raise InvalidInput(
            f"source must have contexts of shape {policy.context_shape}, got {source.context_shape}"
        )
    if len(source) < 2:
        raise InvalidInput(f"source has {len(source)} held-out round(s); hold out at least 100")


# The diagnostics below need no target rewards.


def measure_classifier_accuracy(source: FloatArray, target: FloatArray) -> float:
    """Return the accuracy of a classifier that separates source features (N, d) from target
    features (L, d).

    A ridge classifier on the features and their squares is fitted on one half of the rows and
    tested on the other, in both directions (Lopez-Paz, Oquab: "Revisiting classifier two-sample
    tests", ICLR 2017). An accuracy of 0.5 is guessing.
    """
    # importing takes half a second, too long for `daband --help`
    from sklearn.linear_model import RidgeClassifier
    from sklearn.model_selection import cross_val_score
    from sklearn.preprocessing import StandardScaler

    n = min(len(source), len(target), MAX_DIAGNOSTIC_CONTEXTS)
    if n < 4:
        return 0.5
    scaled_features = StandardScaler().fit_transform(np.concatenate([source[:n], target[:n]]))
    features = np.concatenate([scaled_features, np.square(scaled_features)], axis=1)
    labels = np.repeat([0, 1], n)
    folds = [np.flatnonzero(np.tile(np.arange(n), 2) % 2 == half) for half in (0, 1)]
    return float(
        cross_val_score(RidgeClassifier(0.1 * n), features, labels, cv=[folds, folds[::-1]]).mean()
    )


def project_contexts(contexts: AnyArray) -> FloatArray:
    """Return the first 500 contexts as vectors of at most 48 dimensions, (n, d), by a random
    projection if needed.
    """
    n_contexts = min(MAX_DIAGNOSTIC_CONTEXTS, len(contexts))
    vectors = np.asarray(contexts[:n_contexts]).reshape(n_contexts, -1).astype(np.float64)
    n_dimensions = vectors.shape[1]
    if n_dimensions <= _MAX_DIMENSIONS:
        return vectors
    random_matrix = np.random.default_rng(0).standard_normal((n_dimensions, _MAX_DIMENSIONS))
    return vectors @ (random_matrix / math.sqrt(n_dimensions))


def measure_outside_support(source: FloatArray, target: FloatArray) -> float:
    """Return the fraction of target features (L, d) that are outside the support of source features
    (N, d).

    The source rows are split into two halves. A target row is outside if it is farther from the
    first half than 99% of the rows in the second half. The distance is to the fifth nearest row.
    The 1% that is outside by construction is subtracted.
    """
    n_reference = len(source) // 2
    if n_reference <= _NEIGHBOUR_RANK or not len(target):
        return 0.0
    deviations = source.std(axis=0)
    scales = np.where(deviations > 1e-9, deviations, max(float(deviations.max()), 1e-9))
    reference_rows = source[:n_reference] / scales
    held_out_rows = source[n_reference:] / scales
    distance_limit = np.quantile(
        _measure_distances(held_out_rows, reference_rows), _SUPPORT_QUANTILE
    ) * (1.0 + 1e-9)
    fraction_beyond = float(
        (_measure_distances(target / scales, reference_rows) > distance_limit).mean()
    )
    return max(0.0, (fraction_beyond - (1.0 - _SUPPORT_QUANTILE)) / _SUPPORT_QUANTILE)


def _measure_distances(rows: FloatArray, reference_rows: FloatArray) -> FloatArray:
    """Return the distance of each row (N, d) to its fifth nearest reference row, (N,)."""
    from sklearn.neighbors import NearestNeighbors

    distances: FloatArray = (
        NearestNeighbors(n_neighbors=_NEIGHBOUR_RANK).fit(reference_rows).kneighbors(rows)[0]
    )
    return distances[:, -1]


def find_collapse_signs(source_arms: IntArray, target_arms: IntArray, n_arms: int) -> list[str]:
    """Return a phrase for each sign that a policy collapsed in the target.

    Args:
        source_arms: choices on source contexts, (N,).
        target_arms: choices on target contexts, (L,).
        n_arms: the number of arms, K.
    """
    signs = []
    source_fractions = np.bincount(source_arms, minlength=n_arms) / len(source_arms)
    target_fractions = np.bincount(target_arms, minlength=n_arms) / len(target_arms)
    arm = int(target_fractions.argmax())
    if (
        target_fractions[arm] >= _COLLAPSED_TOP_ARM_FRACTION
        and source_fractions.max() < _COLLAPSED_TOP_ARM_FRACTION
    ):
        in_source = f"in the source {source_fractions[arm]:.0%}"
        signs.append(f"{target_fractions[arm]:.0%} of target contexts go to arm {arm}, {in_source}")
    is_used = source_fractions > 0.5 / n_arms
    is_lost = is_used & (target_fractions < 0.02 * source_fractions)
    n_used = int(is_used.sum())
    n_lost = int(is_lost.sum())
    if n_used > 2 and n_lost >= _COLLAPSED_UNUSED_FRACTION * n_used:
        signs.append(f"{n_lost} of the {n_used} arms used in the source are not used in the target")
    return signs
