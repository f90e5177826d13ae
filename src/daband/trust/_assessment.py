"""``Assessment``, the result of ``assess``: the advantage over the incumbent, a verdict, and the
reasons for it.
"""

from __future__ import annotations

import math
import operator
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from daband.base._files import read_json, write_json
from daband.errors import DataError, InvalidInput
from daband.logs._mean_estimates import MeanEstimate
from daband.trust._questions import Interval
from daband.trust._reference import FULL

#: The three verdicts, as they are printed and stored.
DEPLOY = "deploy"
COLLECT = "collect rewards"
KEEP = "keep the incumbent"
#: Level of the two-sided interval of an advantage by which verdicts are made. Each of its limits is
#: a one-sided 90% limit.
VERDICT_CONFIDENCE = 0.8
#: The same level as the number of standard errors of a limit.
LOW_QUANTILE = 1.2816
#: Smallest number of target rewards to collect. Fewer rewards do not overrule the source unless
#: they are clear.
_MIN_REWARDS = 50
#: Half the length of a 95% interval from one reward, in standard deviations of the reward, if the
#: policy and the incumbent differ on all contexts. From n rewards, the length is divided by
#: sqrt(n). ``benchmarks/questions.py`` measures it.
_HALF_WIDTH_PER_REWARD = 4.0
#: Number of characters per printed line.
_PAGE_WIDTH = 100
#: Maximum number of arms that a sentence names.
_MAX_NAMED_ARMS = 5


@dataclass(frozen=True)
class Assessment:
    """The estimated advantage of a policy over the incumbent in the target, and the verdict.

    Without target rewards, the advantage is estimated from the source and from a reference class of
    other pairs of real domains, which shows the fraction of a source advantage that is left in the
    target. With target rewards, it is estimated from the rewards.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policy = daband.LinUCB.for_pair(pair, seed=0)
    >>> run = daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=32)
    >>> assessment = daband.assess(policy, source=pair.source_test, target=pair.target)
    >>> assessment.verdict in ("deploy", "collect rewards", "keep the incumbent")
    True
    """

    #: Estimated advantage over the incumbent in the target, in the unit of the rewards.
    advantage: float
    #: One-sided 90% lower limit of the advantage, which decides the verdict.
    low: float
    #: One-sided 90% upper limit of the advantage; None without target rewards.
    high: float | None
    #: "deploy", "collect rewards" or "keep the incumbent".
    verdict: str
    #: Name of the incumbent, such as "always coupon".
    incumbent: str
    #: The arm that the incumbent always chooses; None if it is a policy or a column.
    incumbent_arm: int | None
    #: Number of target rewards that were used.
    rewards: int
    #: Advantage over the incumbent on held-out source rounds.
    source_advantage: float
    #: Standard error of ``source_advantage``.
    source_error: float
    #: Mean reward of the policy on held-out source rounds.
    source_value: float
    #: Number of held-out source rounds.
    source_rounds: int
    #: Number of target contexts that were used.
    target_contexts: int
    #: Fraction of target contexts on which the policy and the incumbent choose different arms.
    disagreement: float
    #: Kind of data in the reference class: "tables", "features", "images", "full" for a policy that
    #: learned the rewards of all arms, or "experiments" for the policy of a log.
    kind: str
    #: Number of shifts between real domains in the reference class.
    shifts: int
    #: Median over these shifts of the fraction of the source advantage that was left in the target;
    #: None for experiments.
    median_kept: float | None
    #: Tenth percentile of that fraction.
    tenth_percentile_kept: float | None
    #: Fraction of these shifts in which nothing of the advantage was left.
    lost_fraction: float | None
    #: Accuracy of a classifier that separates source contexts from target contexts; 0.5 is
    #: guessing.
    classifier_accuracy: float
    #: Fraction of target contexts that are far from every source context.
    outside_support: float
    #: Phrases that describe why the policy should not be deployed without target rewards.
    doubts: list[str]
    #: Fraction of source contexts for which the policy chooses each arm, (K,).
    source_arms: list[float]
    #: Fraction of target contexts for which the policy chooses each arm, (K,).
    target_arms: list[float]
    #: Number of target rewards to collect, in addition to ``rewards``, if the verdict is "collect
    #: rewards".
    rewards_needed: int = 0
    #: Mean reward of the policy in the target, estimated from target rewards; None without them.
    value: float | None = None
    #: Lower limit of the 95% interval of ``value``.
    value_low: float | None = None
    #: Upper limit of the 95% interval of ``value``.
    value_high: float | None = None
    #: Unit of the rewards, such as "euros".
    unit: str = ""
    #: Names of the arms, (K,) or empty.
    arm_names: list[str] = field(default_factory=list)
    #: Target arms without any reward, with the distance of their features to the nearest arm with
    #: rewards, in units of the usual distance between neighbours; infinite if a feature value
    #: occurs in no arm with rewards. Empty without a catalogue.
    new_arms: dict[str, float] = field(default_factory=dict)
    #: The target's column with the incumbent's choices; None if they are not in a column.
    incumbent_column: str | None = None
    #: For a log, the standard deviation of the difference between the advantage in the two domains,
    #: from experiments in several domains. It is 0 if the user stated that only contexts differ.
    between_deviation: float | None = None
    #: For a log, the effective number of rounds if the estimate is weighted to the target's
    #: contexts; None if it is not weighted.
    effective_rounds: float | None = None
    #: The second outcome: its ``name`` and ``margin``, and the policy's ``advantage`` over the
    #: incumbent with its one-sided 90% lower limit ``low``, for which larger is better. None
    #: without a guardrail.
    guardrail: dict[str, Any] | None = None
    #: Mean cost of each arm, (K,), which is subtracted from all rewards; empty without costs.
    costs: list[float] = field(default_factory=list)
    #: Mean cost of the incumbent in the target.
    incumbent_cost: float = 0.0
    #: Number of contexts of the target; 0 if unknown.
    target_rows: int = 0
    #: True if a log does not contain the incumbent's choices, for which substitutes were used.
    substitutes_incumbent: bool = False
    #: Version of the policy, which counts the target logs that it has learned. Numbers from the
    #: source are those of version 0.
    version: int = 0
    #: Number of target rounds that the policy has learned, by ``daband learn``.
    log_rounds: int = 0
    #: Advantage in these rounds, by policies that had not learned them.
    log_advantage: float = 0.0
    #: Inverse squared standard error of ``log_advantage``.
    log_precision: float = 0.0

    @property
    def cost(self) -> float:
        """Mean cost of the policy in the target; 0 without costs."""
        return sum(map(operator.mul, self.costs, self.target_arms))

    @property
    def is_guarded(self) -> bool:
        """True if the second outcome is proven to be within its margin, or if there is none."""
        return self.guardrail is None or self.guardrail["low"] >= -self.guardrail["margin"]

    @property
    def sentence(self) -> str:
        """The verdict in one sentence, and another one on the guardrail if there is one."""
        if self.guardrail is None or not self.disagreement:
            return self._verdict_sentence
        name = self.guardrail["name"]
        sign, limit = (-1.0, "most") if name.startswith("-") else (1.0, "least")
        values = self.guardrail["advantage"], self.guardrail["low"], -self.guardrail["margin"]
        change, low, margin = (format_number(sign * value, with_sign=True) for value in values)
        return (
            f"{self._verdict_sentence} The guardrail {name.removeprefix('-')}"
            f" {'holds' if self.is_guarded else 'fails'}: {change} is expected, at {limit} {low};"
            f" the margin is {margin}."
        )

    @property
    def is_from_log(self) -> bool:
        """True if the advantage was estimated from learned rounds of a target log."""
        return 0 < self.rewards == self.log_rounds

    @property
    def _verdict_sentence(self) -> str:
        """The verdict by the rewards in one sentence."""
        if not self.disagreement:
            return f"Keep the incumbent: the policy makes the same choices as {self.incumbent}."
        versus = f"{self.unit} over {self.incumbent}".lstrip()
        if self.rewards:
            is_positive = self.advantage > 0.0
            limit = format_number(self.low if is_positive else self.high, with_sign=True)
            is_unproven = self.verdict == DEPLOY and self.low <= 0.0
            remark = "; too few to change the verdict" if is_unproven else ""
            rewards = "1 target reward" if self.rewards == 1 else f"{self.rewards:,} target rewards"
            return (
                f"{rewards}: {format_number(self.advantage, with_sign=True)} {versus}, at"
                f" {'least' if is_positive else 'most'} {limit}{remark}: {self._action}."
            )
        expectation = (
            f"{format_number(self.advantage, with_sign=True)} {versus} is expected in the target"
        )
        limit = format_number(self.low, with_sign=True)
        return f"{self._action[0].upper()}{self._action[1:]}: {expectation}, at least {limit}."

    @property
    def reference(self) -> str:
        """The reference class in one sentence."""
        if self.median_kept is None or self.tenth_percentile_kept is None:
            if not self.between_deviation:
                return "The limit assumes that only contexts differ between the domains, as stated."
            movement = format_number(self.between_deviation)
            return (
                f"Effects of {self.shifts} real experiments differed between their sites or domains;"
                f" for this advantage, by a standard deviation of {movement}."
            )
        advantage = "predicted advantage" if self.kind == FULL else "advantage"
        return (
            f"In {self.shifts} shifts between real domains with data of this kind, half kept"
            f" {self.median_kept:.0%} of their {advantage} or more; one in ten kept less than"
            f" {max(self.tenth_percentile_kept, 0.0):.0%}, and {self.lost_fraction:.0%} lost all"
            " of it."
        )

    @property
    def reasons(self) -> list[str]:
        """The reasons for the verdict, one sentence each."""
        unit = f" {self.unit}" if self.unit else ""
        source_gain = f"{format_number(self.source_advantage, with_sign=True)}{unit}"
        source_value = f"{format_number(self.source_value)}{unit}"
        is_log = self.between_deviation is not None
        rounds = (
            f"{self.source_rounds:,} {'rounds of the log' if is_log else 'held-out source rounds'}"
        )
        adjustment = ""
        if self.effective_rounds is not None and not self.rewards:
            adjusted_gain = f"{format_number(self.advantage, with_sign=True)}{unit}"
            adjustment = (
                f" Weighted to the target's contexts it gains {adjusted_gain}, by"
                f" {self.effective_rounds:,.0f} effective rounds."
            )
        constant = ", and always chooses the same arm there" if 1.0 in self.target_arms else ""
        reasons = [
            (
                f"On {rounds} the policy gains {source_gain} over {self.incumbent} (standard error"
                f" {format_number(self.source_error)}); its mean reward is"
                f" {source_value}.{adjustment}"
            ),
            (
                f"It differs from the incumbent on {self.disagreement:.0%} of"
                f" {self.target_contexts:,} target contexts{constant}."
            ),
        ]
        if self.disagreement:
            reasons.insert(1, self.reference)
        if self.version:
            rounds = f"Version {self.version} has learned {self.log_rounds:,} target rounds."
            if self.log_precision:
                gain = format_number(self.log_advantage, with_sign=True)
                error = format_number(self.log_precision**-0.5)
                reasons.append(
                    f"{rounds} Decided by policies that had not learned them, logs give"
                    f" {gain}{unit} over {self.incumbent} (standard error {error}). The verdict"
                    " uses the estimate with the smallest standard error. Numbers of the source are"
                    " those of version 0."
                )
            elif not self.disagreement:
                reasons.append(rounds)
            else:
                reasons.append(f"{rounds} The verdict is for version 0 and does not use them.")
        if self.substitutes_incumbent:
            reasons.append(
                "The log does not show today's choices. In it, the policy is compared with the"
                " logged arms or with a prediction of these choices, whichever has the larger mean"
                " reward. So the advantage may be larger; a column of the source with the choices"
                " that today's method would make there gives the exact comparison."
            )
        if self.costs:
            source_cost = sum(map(operator.mul, self.costs, self.source_arms))
            costs = [
                f"{format_number(number)}{unit}"
                for number in (self.cost, self.incumbent_cost, self.source_value + source_cost)
            ]
            reasons.append(
                f"Rewards are net of costs. The policy costs {costs[0]} per target context, the"
                f" incumbent {costs[1]}; the policy's gross mean reward in the source is {costs[2]}."
            )
        if self.new_arms:
            farthest_arm = max(self.new_arms, key=self.new_arms.__getitem__)
            named_arms = [*self.new_arms][:_MAX_NAMED_ARMS]
            fraction = sum(self.target_arms[self.arm_names.index(name)] for name in self.new_arms)
            distance = self.new_arms[farthest_arm]
            relation = (
                f"is farthest from arms with rewards: {distance:.1f} times the usual distance of"
                " neighbours"
            )
            relation = (
                "has a feature value that no arm with rewards has"
                if math.isinf(distance)
                else relation
            )
            reasons.append(
                f"{len(self.new_arms)} target arms have no reward anywhere"
                f" ({', '.join(named_arms)}{', ...' if len(self.new_arms) > len(named_arms) else ''});"
                f" they are chosen for {fraction:.0%} of target contexts. {farthest_arm}"
                f" {relation}."
            )
        if self.value is not None:
            limits = f"[{format_number(self.value_low)}, {format_number(self.value_high)}]"
            reasons.append(
                f"Target rewards give a mean reward of {format_number(self.value)}{unit} (95%"
                f" interval {limits})."
            )
        reasons.append(
            f"A classifier tells the domains apart for {self.classifier_accuracy:.0%} of contexts"
            f" (50% is guessing); {self.outside_support:.0%} of target contexts are far from every"
            " source context."
        )
        reasons += [f"Doubt: {doubt}." for doubt in self.doubts]
        if self.verdict == COLLECT:
            reasons.append(
                f"Collect about {self._rewards_to_collect}: daband.audit or daband.choose(ask=...),"
                " or a pilot (daband.plan_pilot) if the target has fewer contexts."
            )
        return reasons

    def with_rewards(self, advantage: Interval, value: Interval, rewards: int) -> Assessment:
        """Return the assessment with estimates from target rewards, and the verdict that follows.

        Without finite limits, the assessment is returned unchanged. Rewards do not revise a verdict
        with which they agree. They agree with "deploy" if their estimate is positive, and their
        upper limit is not below the lower limit so far. They agree with "keep the incumbent" if
        their estimate is not positive. Rewards with this upper limit and another estimate do not
        contradict "deploy" beyond noise, so they change it to "collect rewards".

        Args:
            advantage: two-sided interval of level ``VERDICT_CONFIDENCE`` for the advantage over the
                incumbent.
            value: 95% interval for the mean reward.
            rewards: number of rewards in these estimates; it is added to the number so far.
        """
        if not math.isfinite(advantage.high - advantage.low):
            return self
        updated = replace(
            self,
            advantage=advantage.value,
            low=advantage.low,
            high=advantage.high,
            value=value.value,
            value_low=value.low,
            value_high=value.high,
            rewards=rewards if self.is_from_log else self.rewards + rewards,
            rewards_needed=_count_more_rewards(advantage, rewards),
        )
        if self.verdict == DEPLOY and advantage.high >= max(self.low, 0.0):
            return updated if advantage.value > 0.0 else replace(updated, verdict=COLLECT)
        if self.verdict == KEEP and advantage.value <= 0.0:
            return updated
        return updated.with_verdict()

    def with_learned_rounds(self, gain: MeanEstimate, **fields: Any) -> Assessment:
        """Return the assessment of a policy that has learned rounds of a target log.

        The estimates of all logs are averaged, weighted by their inverse squared standard errors.
        Their mean replaces the advantage as soon as it is the more precise one. Before, the verdict
        stays, because logs with few rounds of the incumbent reveal little about the advantage.

        Args:
            gain: the advantage in these rounds. Its standard error may be infinite.
            fields: other fields that change, such as ``log_rounds``.
        """
        updated = replace(self, **fields)
        if not updated.disagreement:
            return replace(updated, verdict=KEEP)
        # a constant policy had the incumbent's choices, and the verdict to keep it
        unchanged = updated if self.disagreement else updated.with_verdict()
        if math.isinf(gain.standard_error):
            return unchanged
        added = gain.standard_error**-2
        precision = self.log_precision + added
        mean = self.log_advantage + (gain.value - self.log_advantage) * added / precision
        updated = replace(updated, log_advantage=mean, log_precision=precision)
        unchanged = replace(unchanged, log_advantage=mean, log_precision=precision)
        margin = LOW_QUANTILE / math.sqrt(precision)
        # the margin so far is 0 if the policy made the incumbent's choices
        if margin >= (self.advantage - self.low or math.inf):
            return unchanged
        interval = Interval(mean, mean - margin, mean + margin)
        return replace(
            updated,
            advantage=mean,
            low=interval.low,
            high=interval.high,
            value=None,
            value_low=None,
            value_high=None,
            rewards=updated.log_rounds,
            rewards_needed=_count_more_rewards(interval, updated.log_rounds),
        ).with_verdict()

    def with_verdict(self) -> Assessment:
        """Return the assessment with the verdict that follows from its other fields.

        The verdict is "deploy" if the one-sided 90% lower limit of the advantage is above 0.
        Without target rewards, there must also be no ``doubts``. If the guardrail fails, the verdict
        is "keep the incumbent", because target rewards do not have the second outcome. It is also
        "keep the incumbent" if the advantage is not positive, and otherwise "collect rewards". If
        the interval from fewer than 50 target rewards includes 0, a positive estimate does not
        change the verdict, and a negative one changes "deploy" to "collect rewards".
        """
        is_early = 0 < self.rewards < _MIN_REWARDS
        if self.advantage <= 0.0:
            return replace(
                self,
                verdict=COLLECT if is_early and self.high is not None and self.high > 0.0 else KEEP,
            )
        if not self.is_guarded:
            return replace(self, verdict=KEEP)
        if self.low > 0.0 and (self.rewards or not self.doubts):
            return replace(self, verdict=DEPLOY)
        return self if is_early and self.verdict else replace(self, verdict=COLLECT)

    @property
    def _action(self) -> str:
        """The verdict as a phrase, with the incumbent or the number of rewards."""
        if self.verdict == KEEP:
            return f"keep {self.incumbent}" if self.incumbent_arm is None else "keep the incumbent"
        return f"collect {self._rewards_to_collect}" if self.verdict == COLLECT else self.verdict

    @property
    def _rewards_to_collect(self) -> str:
        """The number of target rewards to collect, as a phrase."""
        phrase = f"{self.rewards_needed:,} {'more ' if self.rewards else ''}target rewards"
        if 0 < self.target_rows < self.rewards_needed:
            return f"{phrase}, more than the target's {self.target_rows:,} rows"
        return phrase

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as a dictionary that JSON can hold."""
        return asdict(self)

    def save(self, path: str | Path) -> None:
        """Write the assessment as JSON."""
        write_json(path, self.as_dict())

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Assessment:
        """Return the assessment from the result of ``as_dict``."""
        try:
            return cls(**fields)
        except TypeError as error:
            raise InvalidInput(f"these are not the fields of an assessment: {error}") from None

    def __str__(self) -> str:
        lines = [self.sentence, ""]
        for reason in self.reasons:
            lines += textwrap.wrap(reason, _PAGE_WIDTH, initial_indent="- ", subsequent_indent="  ")
        return "\n".join(lines) + "\n"


def read_assessment(path: str | Path) -> Assessment:
    """Read a file that ``Assessment.save`` wrote."""
    try:
        return Assessment.from_dict(read_json(path))
    except InvalidInput as error:
        raise DataError(f"{path}: {error}") from None


def count_rewards_needed(advantage: float, reward_deviation: float, disagreement: float) -> int:
    """Return the number of target rewards that should suffice for a verdict, at least 50.

    Args:
        advantage: expected advantage.
        reward_deviation: standard deviation of rewards.
        disagreement: fraction of contexts for which the policy and the incumbent choose different
            arms.
    """
    squared_advantage = max(advantage**2, 1e-12 * reward_deviation**2, 1e-300)
    variance = (_HALF_WIDTH_PER_REWARD * reward_deviation) ** 2 * disagreement
    return _round_up(max(_MIN_REWARDS, variance / squared_advantage))


def _count_more_rewards(advantage: Interval, rewards: int) -> int:
    """Return the number of further rewards after which the lower limit should be above 0, if the
    estimate does not change. An estimate that is not above 0 needs as many again.
    """
    if advantage.value <= 0.0:
        return _round_up(max(rewards, _MIN_REWARDS - rewards))
    ratio = (advantage.value - advantage.low) / advantage.value
    return _round_up(max(rewards * (ratio**2 - 1.0), _MIN_REWARDS - rewards, 1.0))


def _round_up(number: float) -> int:
    """Return a number, rounded up to tens, or from 1,000 on to two digits."""
    unit = 10 ** max(1, math.floor(math.log10(number)) - 1)
    return unit * math.ceil(number / unit)


def format_number(value: float | None, *, with_sign: bool = False) -> str:
    """Return a number as text: three digits, or below 1 three decimals and two digits.

    ``with_sign`` adds a plus.
    """
    if value is None or not math.isfinite(value):
        return f"{value}"
    # smaller numbers are rounding errors
    exponent = math.floor(math.log10(abs(value))) if abs(value) > 1e-9 else -1
    decimals = max(0, 2 - exponent) if exponent >= 0 else max(3, 1 - exponent)
    return f"{value:{'+' if with_sign else ''},.{decimals}f}"
