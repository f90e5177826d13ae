"""The result of an assessment: a verdict in one sentence, its reasons, and a record that JSON can hold."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from daband._files import read_json, write_json
from daband.errors import DataError, InvalidInput
from daband.trust._questions import Interval

DEPLOY, COLLECT, KEEP = "deploy", "collect rewards", "keep the incumbent"
#: Standard normal quantile of a one-sided 90% limit.
_NORMAL_90 = 1.2816
#: Standard normal quantile of a two-sided 95% interval.
_NORMAL_95 = 1.96
_MIN_REWARDS = 50
_MAX_REWARDS = 1000
#: Half the length of an interval from n rewards, times the root of n, in standard deviations of the reward, if the
#: policy and the incumbent differ on all contexts; measured by ``benchmarks/questions.py``.
_ERROR_PER_REWARD = 4.0
_PAGE_WIDTH = 100
_NAMED = 5  # arms that a sentence names


@dataclass(frozen=True)
class Assessment:
    """The estimated advantage of a policy over the incumbent in the target, and the verdict.

    Without target rewards the advantage is estimated by the reference class, with target rewards from the answers.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policy = daband.LinUCB.for_pair(pair, seed=0)
    >>> run = daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=32)
    >>> assessment = daband.assess(policy, source=pair.source_test, target=pair.target)
    >>> assessment.verdict in ("deploy", "collect rewards", "keep the incumbent")
    True
    """

    #: Estimated advantage over the incumbent in the target, in the unit of the rewards.
    advantage: float
    #: Lower limit of the advantage: one-sided 90% without target rewards, two-sided 95% with them.
    low: float
    #: Upper limit of the advantage; None without target rewards.
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
    source_rounds: int
    target_contexts: int
    #: Fraction of target contexts on which the policy and the incumbent choose different arms.
    differs: float
    #: Kind of data that the reference class was taken from: "tables", "features" or "images".
    kind: str
    #: Number of shifts between real domains in the reference class.
    shifts: int
    #: Fraction of the source advantage that half of these shifts kept at least.
    half_kept: float
    #: Fraction of the source advantage that all but a tenth of these shifts kept at least.
    tenth_kept: float
    #: Fraction of these shifts in which nothing of the advantage was left.
    lost: float
    #: Accuracy of a classifier that separates source contexts from target contexts; 0.5 is guessing.
    told_apart: float
    #: Fraction of target contexts that are far from every source context.
    outside_support: float
    #: Signs in the target that forbid a deployment without rewards, a phrase each.
    doubts: list[str]
    #: Fraction of source contexts for which the policy chooses each arm, (K,).
    source_arms: list[float]
    #: Fraction of target contexts for which the policy chooses each arm, (K,).
    target_arms: list[float]
    #: Number of target rewards to collect if the verdict is "collect rewards".
    needed: int = 0
    #: Mean reward of the policy in the target by target rewards; None without them.
    value: float | None = None
    value_low: float | None = None
    value_high: float | None = None
    #: Unit of the rewards, such as "euros".
    unit: str = ""
    arm_names: list[str] = field(default_factory=list)
    #: Target arms without any reward, with the distance of their features to the nearest arm with rewards, in units of
    #: the usual distance between neighbours. Empty without a catalogue.
    new_arms: dict[str, float] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        than = f"{self._unit}over {self.incumbent}"
        if self.rewards:
            limits = f"[{short(self.low)}, {short(self.high)}]"
            also = (
                "; too few to change the verdict by the source"
                if self.verdict == DEPLOY and self.cautious <= 0.0
                else ""
            )
            rewards = "1 target reward" if self.rewards == 1 else f"{self.rewards:,} target rewards"
            return f"{rewards}: {short(self.advantage, sign=True)} {limits} {than}{also}: {self._action}."
        expected = f"{short(self.advantage, sign=True)} {than} is expected in the target"
        return f"{self._action[0].upper()}{self._action[1:]}: {expected}, at least {short(self.low, sign=True)}."

    @property
    def reference(self) -> str:
        """The reference class in one sentence."""
        return (
            f"In {self.shifts} shifts between real domains like this, half kept {self.half_kept:.0%} of their "
            f"advantage, one in ten less than {max(self.tenth_kept, 0.0):.0%}; in {self.lost:.0%} nothing was left."
        )

    @property
    def reasons(self) -> list[str]:
        """The reasons for the verdict, one sentence each."""
        unit = self._unit.rstrip()
        source = f"{short(self.source_advantage, sign=True)} {unit}".rstrip()
        reasons = [
            f"On {self.source_rounds:,} held-out source rounds the policy gains {source} over {self.incumbent} "
            f"(standard error {short(self.source_error)}); its mean reward is {short(self.source_value)}.",
            self.reference,
            f"The policy differs from the incumbent on {self.differs:.0%} of {self.target_contexts:,} target contexts.",
        ]
        if self.differs > 0 and self.source_advantage > 0:
            lost = short(self.source_advantage / self.differs)
            reasons[-1] += (
                f" The incumbent is better only if the whole advantage vanishes: {lost} {unit}".rstrip()
                + " for each of these contexts."
            )
        if self.new_arms:
            far = max(self.new_arms, key=self.new_arms.__getitem__)
            chosen = sum(self.target_arms[self.arm_names.index(name)] for name in self.new_arms)
            reasons.append(
                f"{len(self.new_arms)} target arms have no reward anywhere ({', '.join([*self.new_arms][:_NAMED])}"
                f"{', ...' if len(self.new_arms) > _NAMED else ''}), chosen for {chosen:.0%} of target contexts. "
                f"{far} is farthest from arms with rewards: {self.new_arms[far]:.1f} times as far as usual neighbours."
            )
        if self.value is not None:
            limits = f"[{short(self.value_low)}, {short(self.value_high)}]"
            reasons.append(f"By target rewards, its mean reward in the target is {short(self.value)} {limits}.")
        reasons.append(
            f"A classifier tells the domains apart for {self.told_apart:.0%} of contexts (50% is guessing); "
            f"{self.outside_support:.0%} of target contexts are far from every source context."
        )
        reasons += [f"Doubt: {doubt}." for doubt in self.doubts]
        if self.verdict == COLLECT:
            reasons.append(f"About {self.needed} target rewards should decide: daband.audit or daband.choose(ask=...).")
        return reasons

    @property
    def cautious(self) -> float:
        """One-sided 90% lower limit of the advantage."""
        if self.high is None:
            return self.low
        return self.advantage - (self.advantage - self.low) * _NORMAL_90 / _NORMAL_95

    def with_rewards(self, advantage: Interval, value: Interval, rewards: int) -> Assessment:
        """Return the assessment after more target rewards; the verdict uses all rewards collected so far.

        Args:
            advantage: two-sided 95% interval for the advantage over the incumbent.
            value: interval for the mean reward.
            rewards: number of rewards that both are based on.
        """
        changed = replace(
            self,
            advantage=advantage.value,
            low=advantage.low,
            high=advantage.high,
            value=value.value,
            value_low=value.low,
            value_high=value.high,
            rewards=self.rewards + rewards,
        )
        return changed.judged() if math.isfinite(advantage.high - advantage.low) else self

    def judged(self) -> Assessment:
        """Return the assessment with the verdict that follows from its other fields.

        A policy is deployed if the one-sided 90% lower limit of its advantage is above 0. Target rewards replace the
        reference class and its doubts, because they show if the target is unlike the source. Fewer than 50 rewards that
        agree with the source but are not clear do not change the verdict.
        """
        few = 0 < self.rewards < _MIN_REWARDS
        if self.advantage <= 0.0:
            return replace(self, verdict=COLLECT if few and self.high is not None and self.high > 0.0 else KEEP)
        if self.cautious > 0.0 and (self.rewards or not self.doubts):
            return replace(self, verdict=DEPLOY)
        return self if few and self.verdict else replace(self, verdict=COLLECT)

    @property
    def _unit(self) -> str:
        return f"{self.unit} " if self.unit else ""

    @property
    def _action(self) -> str:
        if self.verdict == KEEP:
            return f"keep {self.incumbent}" if self.incumbent_arm is None else "keep the incumbent"
        return f"collect {self.needed} rewards" if self.verdict == COLLECT else self.verdict

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON can hold them."""
        return asdict(self)

    def save(self, path: str | Path) -> None:
        """Write the assessment as JSON."""
        write_json(path, self.as_dict())

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Assessment:
        """Return the assessment that ``as_dict`` was called on."""
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


def rewards_needed(advantage: float, scale: float, differs: float, contexts: int) -> int:
    """Return the number of target rewards that should show an advantage: 50 to 1,000, at most one per context.

    Args:
        advantage: expected advantage.
        scale: standard deviation of rewards.
        differs: fraction of contexts on which policy and incumbent differ.
        contexts: number of target contexts.
    """
    needed = (_ERROR_PER_REWARD * scale) ** 2 * differs / max(advantage**2, 1e-12 * scale**2, 1e-300)
    return min(max(_MIN_REWARDS, 10 * math.ceil(min(needed, _MAX_REWARDS) / 10)), _MAX_REWARDS, contexts)


def short(value: float | None, *, sign: bool = False) -> str:
    """Return a number with three decimals if it is near 1, with fewer if it is large."""
    if value is None or not math.isfinite(value):
        return f"{value}"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if abs(value) >= 1 else 3
    return f"{value:{'+' if sign else ''},.{digits}f}"
