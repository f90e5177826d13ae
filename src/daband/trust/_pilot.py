"""Plan a pilot, which gives the policy a few rounds and has a limited cost, and decide by it.

``plan_pilot`` returns a ``PilotPlan``, and ``summarise_counts`` decides by the rounds, which
``daband.ledger`` has. The statistics are in ``daband.logs._controlled_trial``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from daband.base._arguments import check_finite, check_int, check_probability
from daband.base._arrays import FloatArray
from daband.domains._contract import LoggedDomain
from daband.errors import InvalidInput
from daband.logs._controlled_trial import (
    PROOF_ERRORS,
    TrialCounts,
    TrialRule,
    estimate_cost,
    estimate_effect,
)
from daband.trust._assessment import DEPLOY, KEEP, LOW_QUANTILE, format_number
from daband.trust._choose import Choice
from daband.trust._pilot_simulation import DEPLOY as DEPLOYED
from daband.trust._pilot_simulation import KEEP as KEPT
from daband.trust._pilot_simulation import WeekRewards, simulate_pilots

#: The decision of a pilot that has not ended.
GO_ON = "go on"
#: Number of simulated pilots of a plan.
_N_SIMULATED = 1000
#: The one-sided quantile of ``Assessment.low`` in a Cauchy distribution.
_CAUCHY_QUANTILE = 3.0777
#: The quantile of a Cauchy distribution for the largest loss, which holds with 95% probability.
_LOSS_QUANTILE = 6.3138
#: The default of ``drift``.
_DRIFT = 0.5
#: Without a source, true effects are simulated with a standard deviation of this many standard
#: errors after the planned rounds.
_VAGUE_EFFECT = 4.0


@dataclass(frozen=True)
class PilotPlan:
    """The plan of a pilot: how long it takes, and what it costs.

    Rounds are all rounds of the market. Costs are losses of expected rewards against the incumbent.

    >>> plan = daband.plan_pilot(per_week=2000, incumbent_mean=0.1, reward_deviation=0.3, min_reward=0.0)
    >>> plan.largest_cost, plan.error <= 0.04
    (24.0, True)
    """

    #: Median number of rounds until the pilot ends.
    rounds: int
    #: Number of rounds after which 90% of pilots have ended.
    rounds_90: int
    #: Number of planned rounds, after which the incumbent is kept.
    planned_rounds: int
    #: Number of rounds in a week.
    per_week: float
    #: Expected cost in the unit of the rewards; gains count as 0.
    expected_cost: float
    #: The limit of the cost, which holds at every time with 95% probability.
    largest_cost: float
    #: Mean reward of the incumbent, from which costs in percent are computed.
    incumbent_mean: float
    #: Chance to deploy the policy.
    deploy: float
    #: Chance to keep the incumbent because it is proven to be better.
    keep: float
    #: Chance of a wrong decision, if the expectation is right.
    error: float
    #: Fraction of rounds in which policy and incumbent differ.
    disagreement: float
    #: The settings of the trial.
    rule: TrialRule
    #: Name of the incumbent's arm, or a description of the column; "" without a choice.
    incumbent: str = ""
    #: The column of rows with today's arms; None if the incumbent is one arm.
    incumbent_column: str | None = None
    #: Unit of the rewards.
    unit: str = ""
    #: For each week: the rounds until its end, the fraction of pilots that have then deployed the
    #: policy, the fraction that have ended, and the mean and the 99% quantile of costs; gains are 0.
    course: list[list[float]] = field(default_factory=list)

    @property
    def weeks(self) -> float:
        """Median number of weeks until the pilot ends."""
        return self.rounds / self.per_week

    @property
    def weeks_90(self) -> float:
        """Number of weeks after which 90% of pilots have ended."""
        return self.rounds_90 / self.per_week

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        earnings = self.incumbent_mean * self.planned_rounds
        remedy = ""
        if self.deploy < 0.5 and (self.rule.expected_effect or 0.0) > 0.0:
            remedy = " A larger --max-loss or more weeks make a proof more likely."
        return "\n".join(
            [
                f"A pilot ends after {self.rounds:,} rounds ({self.weeks:.1f} weeks), and after"
                f" {self.rounds_90:,} ({self.weeks_90:.1f} weeks) in 9 of 10 cases.",
                f"Expected cost: {format_number(self.expected_cost)}{unit}"
                f" ({self.expected_cost / earnings:.2%} of what the incumbent earns in"
                f" {self.planned_rounds:,} rounds).",
                f"Largest cost: {format_number(self.largest_cost)}{unit}"
                f" ({self.largest_cost / earnings:.2%}), with 95% probability at every time.",
                f"Expected end: deploy {self.deploy:.0%}, incumbent proven better {self.keep:.0%},"
                f" incumbent kept without proof {1.0 - self.deploy - self.keep:.0%}; a wrong"
                f" decision {self.error:.1%} (at most {self.rule.error:.0%}).{remedy}",
                f"Policy and incumbent differ in {self.disagreement:.0%} of rounds; only these cost"
                " and count.",
            ]
        )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> PilotPlan:
        """Return the plan from its fields in JSON."""
        return cls(**{**fields, "rule": TrialRule(**fields["rule"])})


def plan_pilot(
    choice: Choice | None = None,
    *,
    max_loss: float = 0.01,
    per_week: float,
    weeks: int = 12,
    delay: int = 0,
    incumbent_mean: float | None = None,
    reward_deviation: float | None = None,
    min_reward: float | None = None,
    drift: float | None = None,
    min_advantage: float = 0.0,
    unit: str = "",
    seed: int = 0,
) -> PilotPlan:
    """Plan a pilot by simulating it, with the assessment of the choice as expectation.

    The pilot ends when the policy is proven to be better or worse than the incumbent, when its cost
    reaches the limit, or after the planned weeks. It keeps the incumbent unless the policy is
    proven to be better. Each error has a probability of at most 4%, and the limit of the cost holds
    with 95% probability, also if the assessment is wrong.

    Args:
        choice: the choice whose policy is tried; None to plan a test of two arms without a source.
            Advantages around 0 are then simulated.
        max_loss: limit of the cost, as a fraction of what the incumbent earns in the planned
            rounds.
        per_week: number of rounds in a week.
        weeks: number of planned weeks.
        delay: number of weeks until rewards arrive.
        incumbent_mean: mean reward of the incumbent in the target; by default its mean reward in
            the source.
        reward_deviation: standard deviation of rewards; by default the source's.
        min_reward: smallest possible mean reward of an arm; by default the smallest reward of the
            source.
        drift: largest increase of the policy's mean loss in a round from the pilot so far to the
            next week, as a fraction of ``incumbent_mean`` (above ``min_reward``). The limit of the
            cost holds for such changes. With 0, weeks are assumed to be alike. By default 0.5, but
            no loss is then expected to be larger than the source's evidence allows in either
            direction.
        min_advantage: the smallest advantage per round for which the policy should be deployed.
        unit: unit of the rewards; by default the assessment's.
        seed: seed of the simulation.

    >>> plan = daband.plan_pilot(per_week=2000, incumbent_mean=0.1, reward_deviation=0.3, min_reward=0.0)
    >>> plan.rounds <= plan.rounds_90 <= plan.planned_rounds
    True
    """
    check_probability("max_loss", max_loss)
    if not check_finite("per_week", per_week) >= 1.0:
        raise InvalidInput(f"per_week must be at least 1, got {per_week}")
    check_int("weeks", weeks, minimum=1)
    check_int("delay", delay, minimum=0)
    assessment = None if choice is None else choice.assessment
    fraction = 1.0
    incumbent, column = "", None
    if choice is not None:
        assert assessment is not None
        incumbent_arm = assessment.incumbent_arm
        column = assessment.incumbent_column
        if incumbent_arm is None and column is None:
            raise InvalidInput(
                f"a pilot needs today's arm of each row, but the choice compares with"
                f" {assessment.incumbent}; write today's arms to a column of the target, and use"
                " daband.choose(incumbent=COLUMN)"
            )
        if not assessment.disagreement:
            raise InvalidInput(
                "the policy makes the same choices as the incumbent, so there is nothing to try"
            )
        fraction = assessment.disagreement
        incumbent = assessment.incumbent
        if incumbent_arm is not None:
            names = assessment.arm_names
            incumbent = names[incumbent_arm] if names else str(incumbent_arm)
        unit = unit or assessment.unit
        if incumbent_mean is None:
            incumbent_mean = assessment.source_value - assessment.source_advantage
        if reward_deviation is None:
            reward_deviation = choice.policy.reward_moments.scale
        if min_reward is None:
            min_reward = _find_min_reward(choice)
    values = {
        "incumbent_mean": incumbent_mean,
        "reward_deviation": reward_deviation,
        "min_reward": min_reward,
    }
    for name, value in values.items():
        if value is None:
            raise InvalidInput(f"{name} is needed: it cannot be found in the choice")
        values[name] = check_finite(name, value)
    mean, deviation, lowest = (float(value) for value in values.values() if value is not None)
    if not mean > max(lowest, 0.0) or not deviation > 0.0:
        raise InvalidInput(
            "incumbent_mean must be above 0 and above min_reward, and reward_deviation above 0, got"
            f" {mean:g}, {lowest:g} and {deviation:g}"
        )
    if drift is not None and not check_finite("drift", drift) >= 0.0:
        raise InvalidInput(f"drift must be at least 0, got {drift:g}")
    planned_rounds = round(weeks * per_week)
    standard_error = 2.0 * deviation / math.sqrt(planned_rounds * fraction)
    expected_effect, expected_error = 0.0, _VAGUE_EFFECT * standard_error
    if assessment is not None:
        expected_effect = assessment.advantage / fraction
        expected_error = (assessment.advantage - assessment.low) / LOW_QUANTILE / fraction
    # all of the incumbent's rewards may come from the rounds in which the two differ
    earnings = (mean - lowest) / fraction
    largest_drift = (_DRIFT if drift is None else drift) * earnings
    worst_loss = earnings + largest_drift
    if assessment is not None and drift is None:
        worst_loss = min(worst_loss, compute_largest_loss(expected_effect, expected_error))
    rule = TrialRule(
        max_cost=max_loss * mean * planned_rounds,
        worst_loss=worst_loss,
        drift=min(largest_drift, worst_loss),
        expected_effect=None if assessment is None else expected_effect,
        expected_error=expected_error,
        min_effect=min_advantage / fraction,
        reference_rounds=planned_rounds * fraction,
        reward_deviation=deviation,
    )
    rng = np.random.default_rng(check_int("seed", seed, minimum=0))
    draws = rng.standard_normal(_N_SIMULATED)
    if assessment is not None:
        draws = draw_surprises(rng, _N_SIMULATED)
    effects = np.maximum(expected_effect + expected_error * draws, lowest - mean)
    courses = simulate_pilots(
        rule,
        make_normal_draw(rng, effects, mean, deviation, per_week * fraction),
        n_pilots=_N_SIMULATED,
        rounds_per_week=per_week * fraction,
        n_weeks=weeks,
        delay=delay,
    )
    is_deployed = courses.decisions == DEPLOYED
    is_kept = courses.decisions == KEPT
    is_better = effects > rule.min_effect
    ends = np.sort(courses.weeks)
    has_ended = courses.weeks[:, None] <= np.arange(weeks) + 1
    costs = np.maximum(courses.costs, 0.0)
    course = [
        per_week * (np.arange(weeks) + 1.0),
        (has_ended & is_deployed[:, None]).mean(axis=0),
        has_ended.mean(axis=0),
        costs.mean(axis=0),
        np.quantile(costs, 0.99, axis=0),
    ]
    return PilotPlan(
        rounds=round(float(ends[_N_SIMULATED // 2]) * per_week),
        rounds_90=round(float(ends[_N_SIMULATED * 9 // 10]) * per_week),
        planned_rounds=planned_rounds,
        per_week=per_week,
        expected_cost=float(costs[:, -1].mean()),
        largest_cost=rule.max_cost,
        incumbent_mean=mean,
        deploy=float(is_deployed.mean()),
        keep=float(is_kept.mean()),
        error=float(((is_deployed & ~is_better) | (is_kept & is_better)).mean()),
        disagreement=fraction,
        rule=rule,
        incumbent=incumbent,
        incumbent_column=column,
        unit=unit,
        course=np.stack(course, axis=1).tolist(),
    )


def _find_min_reward(choice: Choice) -> float | None:
    """Return the smallest reward of the source; None if its files are not known."""
    if choice.options is None:
        return None
    source = choice.options.read().source
    indices = np.arange(len(source))
    if isinstance(source, LoggedDomain):
        return float(source.read_log(indices)[1].min())
    return float(source.read_rewards(indices)[0].min())


def compute_largest_loss(expected_effect: float, expected_error: float) -> float:
    """Return the largest loss in a round that the source's evidence allows.

    Only the size of the effect is used, because a target may be the opposite of the source. The
    distribution is that of ``draw_surprises``.
    """
    surprise = _LOSS_QUANTILE * LOW_QUANTILE / _CAUCHY_QUANTILE * expected_error
    return abs(expected_effect) + surprise


def draw_surprises(rng: np.random.Generator, n: int) -> FloatArray:
    """Return differences of true from assessed effects, in units of the expected error.

    Effects in other domains are sometimes far from the assessment, so the distribution is Cauchy's
    with the quantile ``Assessment.low``. ``benchmarks/pilots.py`` compares the costs.
    """
    return LOW_QUANTILE / _CAUCHY_QUANTILE * rng.standard_cauchy(n)


def make_normal_draw(
    rng: np.random.Generator, effects: FloatArray, mean: float, deviation: float, n_rounds: float
) -> Callable[[int, FloatArray], WeekRewards]:
    """Return a function that draws sums of normal rewards for pilots with these effects (R,)."""

    def draw(_: int, fractions: FloatArray) -> WeekRewards:
        totals = rng.poisson(n_rounds, len(effects))
        n_policy = rng.binomial(totals, fractions)
        counts = np.stack([n_policy, totals - n_policy], axis=1).astype(np.float64)
        means = np.stack([mean + effects, np.full(len(effects), mean)], axis=1)
        noise = deviation * np.sqrt(counts) * rng.standard_normal(counts.shape)
        squares = counts * (deviation**2 + means**2) + 2.0 * means * noise
        return WeekRewards(
            n_policy.astype(np.float64), counts, counts * means + noise, squares, -effects
        )

    return draw


@dataclass(frozen=True)
class PilotStatus:
    """The evidence and the decision of a pilot so far."""

    #: "deploy", "keep the incumbent" or "go on".
    decision: str
    #: The reason, in a sentence.
    reason: str
    #: Number of rounds so far, and of rounds in which policy and incumbent differ.
    rounds: int
    differing_rounds: int
    #: Number of rewards of the policy and of the incumbent in these rounds.
    rewards: tuple[int, int]
    #: Number of these rounds without a reward.
    missing: int
    #: Advantage per round of the market, with limits that are valid at any time; None without
    #: enough rewards.
    advantage: float | None
    low: float | None
    high: float | None
    #: Mean rewards of the policy and of the incumbent where they differ, each with its standard
    #: error.
    means: list[list[float]] | None
    #: Estimated cost so far; negative for a gain.
    cost: float
    #: Upper limit of the cost so far.
    cost_limit: float
    #: Probability of the policy in the next rounds in which it differs from the incumbent.
    fraction: float
    #: Number of further rounds until a decision if the estimate does not change.
    rounds_left: int


def summarise_counts(plan: PilotPlan, counts: TrialCounts) -> PilotStatus:
    """Return the status of a pilot from its rounds."""
    moments = counts.moments
    rule = plan.rule
    effect = estimate_effect(moments)
    n_rounds, n_differing = counts.n_rounds, counts.n_differing
    share = n_differing / n_rounds if n_rounds else plan.disagreement
    n_next = plan.per_week * plan.disagreement
    is_known = math.isfinite(effect.error)
    low, high = rule.compute_interval(effect)
    z_squared = (effect.value / effect.error) ** 2 if is_known else 0.0
    n_left = max(plan.planned_rounds - n_rounds, 0)
    needed = n_rounds * (PROOF_ERRORS**2 / z_squared - 1.0) if z_squared else math.inf
    verdict, fraction = rule.decide_next(counts, n_next, n_left * share)
    decision = {"": GO_ON, "better": DEPLOY}.get(verdict, KEEP)
    reason = "The rewards do not decide yet."
    if verdict in ("better", "worse"):
        winner = "policy" if verdict == "better" else "incumbent"
        reason = f"The {winner} is proven to be better."
    elif not fraction:
        event = "The planned rounds are over"
        if n_left:
            has_budget = rule.choose_fraction(moments, n_next) > 0.0
            event = "A proof is unlikely" if has_budget else "The cost may be at its limit"
        reason = f"{event}, and the policy is not proven to be better."
        if not verdict:
            reason = f"{event}. The pilot waits for {counts.n_missing:,} missing rewards."
    means = np.stack([effect.means + (counts.offset or 0.0), effect.mean_errors], axis=1)
    return PilotStatus(
        decision=decision,
        reason=reason,
        rounds=n_rounds,
        differing_rounds=n_differing,
        rewards=(int(effect.counts[0]), int(effect.counts[1])),
        missing=counts.n_missing,
        advantage=share * float(effect.value) if is_known else None,
        low=share * low if is_known and math.isfinite(low) else None,
        high=share * high if is_known and math.isfinite(high) else None,
        means=means.tolist() if is_known else None,
        cost=float(estimate_cost(moments)[0]) + 0.0,  # not -0.0
        cost_limit=float(rule.limit_cost(moments)),
        fraction=fraction,
        rounds_left=0 if decision != GO_ON else int(min(max(needed, 1.0), n_left)),
    )
