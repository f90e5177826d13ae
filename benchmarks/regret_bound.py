"""Compute the observable terms of the bound on the target regret while a policy is trained.

    R_T <= R_S + 2 eps_S + N d + P_T + P_S + C + psi

R_S and R_T are the regrets in source and target, eps_S is the error of predicted source rewards, N
the number of rounds, d the divergence of the domains, C the exploration term and psi the error of
the best common predictor. P_T is the sum of the chosen arms' predicted rewards in the target, and
P_S the sum over wrong arms in the source. The bound is from the DABand paper (Wang, Huo, Wang:
"Towards Domain Adaptive Neural Contextual Bandits", 2025).

The divergence d is estimated from the discriminator's accuracy. C contains the bonus of the best
arm, which is unknown, so twice the largest bonus of any arm is used instead. psi is omitted,
because it needs target rewards, which only the evaluator has. A term may be unknown, for example
without a discriminator or without expected source rewards. It is then missing, and so is the total.
No unknown term counts as 0.

All rewards, means, bonuses and regrets must be in one unit, with rewards in [0, 1]. The regret of N
rounds is at most N, so a bound above N is uninformative. A good policy may have such a bound: if
its predicted rewards are near 1, their sum is near N.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

import numpy as np

from daband.base._arrays import BoolArray, FloatArray
from daband.domains._contract import Pair
from daband.linear._exploration import Decision, join_decisions
from daband.policies._policy import Policy, RewardedDecision
from daband.training._phase import build_source_phase
from daband.training._trainer import Run, Trainer


@dataclass(frozen=True)
class BoundTerms:
    """The terms of the bound on the target regret of N rounds.

    A term is at least 0, or None if it is not known.
    """

    #: Number of rounds, N.
    rounds: int
    #: Regret in the source, R_S.
    source_regret: float | None
    #: Error of predicted rewards in the source, 2 eps_S.
    regression_error: float | None
    #: Divergence of the domains, N d.
    divergence: float | None
    #: The sum of predicted rewards of the arms chosen in the target, P_T.
    predicted_reward_target: float | None
    #: The sum of predicted rewards of the wrong arms chosen in the source, P_S.
    predicted_reward_source: float | None
    #: Exploration term C, computed from twice the largest bonus of any arm.
    exploration: float | None

    @property
    def total(self) -> float | None:
        """The sum of the terms, without psi; None if a term is not known."""
        terms = [getattr(self, name) for name in _TERM_NAMES]
        return None if None in terms else math.fsum(terms)

    def as_dict(self) -> dict[str, float | None]:
        """Return all fields, and the total."""
        return {**asdict(self), "total": self.total}


#: The names of the terms.
_TERM_NAMES = tuple(field.name for field in fields(BoundTerms) if field.name != "rounds")


def compute_bound_terms(
    *,
    source_decisions: Decision,
    rewards: FloatArray,
    choice_errors: BoolArray | FloatArray,
    target_decisions: Decision,
    alpha: float,
    divergence: float | None = None,
    source_regret: float | None = None,
) -> BoundTerms:
    """Return the terms of the bound for N source rounds with rewards in [0, 1].

    Args:
        source_decisions: the decisions in the source.
        rewards: the reward of each chosen arm, (N,).
        choice_errors: 1 for a wrong arm and 0 for a right one, or ``1 - reward`` for graded
            rewards, (N,).
        target_decisions: decisions on any number M of target contexts; their sums are scaled to N
            rounds.
        alpha: the exploration weight.
        divergence: d, e.g. from ``estimate_divergence``; None if it is not known.
        source_regret: the sum of expected regrets; None if it is not known.
    """
    n_rounds = len(source_decisions.arm)
    choice_errors = np.asarray(choice_errors, np.float64)
    source_means = _get_chosen_means(source_decisions)
    # scales a sum over M target contexts to a sum over N rounds
    target_scale = n_rounds / len(target_decisions.arm)
    exploration = target_scale * float(2 * target_decisions.bonus.max(axis=1).sum())
    exploration += float(choice_errors @ (2 * source_decisions.bonus.max(axis=1)))
    return BoundTerms(
        rounds=n_rounds,
        source_regret=None if source_regret is None or math.isnan(source_regret) else source_regret,
        regression_error=2 * float(np.abs(rewards - source_means).sum()),
        divergence=None if divergence is None else n_rounds * divergence,
        predicted_reward_target=target_scale
        * float(np.abs(_get_chosen_means(target_decisions)).sum()),
        predicted_reward_source=float(choice_errors @ np.abs(source_means)),
        exploration=alpha * exploration,
    )


def accumulate_bound_terms(
    last_record: Mapping[str, float] | None,
    *,
    alpha: float,
    source_decisions: Decision,
    rewards: FloatArray,
    regrets: FloatArray,
    target_decisions: Decision,
    discriminator_accuracy: float | None,
) -> dict[str, float]:
    """Return the fields ``bound_*`` of an episode's record: the terms, summed over all episodes so
    far.

    A term that is not known in some episode is missing from that record and from all later ones.
    ``bound_total``, the sum, exists only if every observable term does.

    Args:
        last_record: the last record with these fields; None in the first episode.
        alpha: the exploration weight.
        source_decisions: the decisions in the source.
        rewards: the reward in [0, 1] of each chosen arm, (N,).
        regrets: the regret of each chosen arm, (N,); NaN if it is not known.
        target_decisions: decisions on target contexts.
        discriminator_accuracy: the discriminator's accuracy; None if there is no discriminator.
    """
    terms = compute_bound_terms(
        source_decisions=source_decisions,
        rewards=rewards,
        choice_errors=np.clip(1.0 - rewards, 0.0, 1.0),  # rewards may exceed an estimated range
        target_decisions=target_decisions,
        alpha=alpha,
        divergence=(
            None if discriminator_accuracy is None else estimate_divergence(discriminator_accuracy)
        ),
        source_regret=float(regrets.sum()),
    )
    if last_record is not None:
        sums = {}
        for name in _TERM_NAMES:
            old_sum = last_record.get(f"bound_{name}")
            term = getattr(terms, name)
            sums[name] = None if old_sum is None or term is None else old_sum + term
        terms = BoundTerms(rounds=int(last_record["bound_rounds"]) + terms.rounds, **sums)
    return {
        f"bound_{name}": float(value)
        for name, value in terms.as_dict().items()
        if value is not None
    }


def estimate_divergence(accuracy: float) -> float:
    """Return the divergence d for a discriminator's balanced accuracy: 0 for an accuracy of 1/2 or
    less, 2 for 1.
    """
    return max(0.0, 2.0 * (2.0 * accuracy - 1.0))


def _get_chosen_means(decision: Decision) -> FloatArray:
    """Return the predicted reward of each chosen arm, (B,)."""
    return decision.mean[np.arange(len(decision.arm)), decision.arm]


def train_with_bound(policy: Policy, pair: Pair, *, episodes: int, episode_length: int = 64) -> Run:
    """Train a policy as ``daband.train`` does, and add the bound's terms to the episodes' records.

    The source must have expected rewards, not logged ones.
    """
    phase = build_source_phase(
        policy, pair.source, pair.target, episodes=episodes, episode_length=episode_length
    )
    Trainer(phase)  # fits the policy's transform and plans its steps
    decisions: list[RewardedDecision] = []
    regrets: list[FloatArray] = []
    records: list[dict[str, float]] = []
    for episode in range(phase.n_episodes):
        rounds_by_domain, target_batches = phase.read_episode(episode)
        played = []
        for name, rounds in rounds_by_domain:
            played.append(policy.play(rounds.contexts, rounds.rewards, name or phase.domain_name))
            regrets.append(rounds.regret(played[-1].arm))
        decisions.append(join_decisions(played))
        for name, contexts in target_batches:
            policy.observe_target(contexts, name)
        metrics = policy.adapt()
        target_decisions = [
            policy.decide(batch, name or "target", rule="ucb") for name, batch in target_batches
        ]
        # The bound is stated for rewards in [0, 1].
        moments = policy.reward_moments
        has_range = moments.standardise and moments.low < moments.high
        low, high = (moments.low, moments.high) if has_range else (0.0, 1.0)
        terms = accumulate_bound_terms(
            records[-1] if records else None,
            alpha=policy.alpha,
            source_decisions=_scale_to_unit(decisions[-1], low, high),
            rewards=(decisions[-1].reward - low) / (high - low),
            regrets=np.concatenate(regrets[-len(played) :]) / (high - low),
            target_decisions=_scale_to_unit(join_decisions(target_decisions), low, high),
            discriminator_accuracy=metrics.get("discriminator_accuracy"),
        )
        records.append({"episode": episode + 1, **metrics, **terms})
    decision = join_decisions(decisions)
    return Run(
        decision.arm,
        decision.reward,
        np.concatenate(regrets),
        decision.propensity,
        records,
        seconds=math.nan,
    )


def _scale_to_unit(decision: Decision, low: float, high: float) -> Decision:
    """Return decisions with predictions and bonuses scaled from rewards in [low, high] to rewards
    in [0, 1].
    """
    return replace(
        decision, mean=(decision.mean - low) / (high - low), bonus=decision.bonus / (high - low)
    )
