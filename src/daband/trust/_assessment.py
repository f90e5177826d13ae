"""What an assessment says, as a record that JSON can hold and a page that a decision maker can read."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from daband._files import read_json, write_json
from daband.errors import DataError, InvalidInput
from daband.trust._diagnostics import DomainShift, doubts_of
from daband.trust._estimate import ADAPTED, MISSED

ASSUMPTIONS = (
    "Contexts that are alike have the same best arm in both domains, by at least one of the explanations that were "
    "considered. A target in which the same contexts pay for other arms cannot be seen without rewards from there; a "
    "few of them, by daband.audit or daband.choose(ask=...), can show it.",
    "The held-out source rounds were used by no training.",
    f"The bound lets the policy miss {1 + MISSED:.2g} times as much as estimated, and everything outside the source's "
    "support. How often that held, on data sets that nobody looked at before, is in docs/results/trust.md; it is no "
    "theorem.",
)
ONE_ADAPTED_METHOD = (
    f"All explanations are of one method, which adapted to the target: the bound is {ADAPTED:.2g} of the range below "
    "the estimate at least."
)
_WIDTH = 100


@dataclass(frozen=True)
class ArmAssessment:
    """One arm: how often it is chosen and expected, and what its choices are worth."""

    arm: int
    source_share: float
    """The share of held-out source contexts for which the policy chooses it."""
    target_share: float
    """The same for target contexts."""
    expected_source: float
    """How often it is the best arm in the source, by all explanations."""
    expected_target: float
    """The same in the target."""
    value: float | None
    """The estimated value, in the user's units, where the policy chooses it; None where it does not."""
    source_rounds: int
    """Held-out source rounds in which a policy chose it and was paid."""
    supported: bool
    """Whether there were enough of them to say anything about it."""


@dataclass(frozen=True)
class Assessment:
    """What can be known of a policy in the target without a reward from there. It is about the first policy.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policies = [daband.LinUCB.for_pair(pair, seed=seed) for seed in (0, 1)]
    >>> for policy in policies:
    ...     run = daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=32)

    >>> assessment = daband.assess(policies, source=pair.source_test, target=pair.target, required=0.9)
    >>> assessment.required, len(assessment.per_arm) == pair.n_arms, assessment.sentence.endswith("required 0.900.")
    (0.9, True, True)
    """

    accuracy: float
    """The estimated share of target contexts for which the policy chooses a best arm."""
    value: float
    """The estimated mean reward in the target, in the user's units."""
    low: float
    """A one-sided 95% bound for ``value``: as large or larger in 95 of 100 problems."""
    accuracy_low: float
    """The same for ``accuracy``; equal to ``low`` where rewards are 0 and 1."""
    required: float
    """What the value has to reach for a hand-over; by default what the best constant arm is estimated to be worth."""
    verdict: str
    """"hand over", "ask" or "do not"."""
    why: str
    """The reason for the verdict, in one sentence."""
    audit_rewards: int
    """How many target rewards to ask for where the verdict says so, one for each context at most; else 0."""
    reasons: list[str]
    per_arm: list[ArmAssessment]
    shift: DomainShift
    outside_support: float
    """The share of target contexts outside the source's support, by the first policy's latents."""
    collapse: list[str]
    """Signs of collapse; none where there are none."""
    explanations: dict[str, float]
    """The policy's value in the target by each explanation of it that was considered, in the user's units."""
    disagreement: float
    """The share of target contexts on which the two most different explanations choose different arms."""
    assumed: str
    """What was taken to differ between the domains: what the user stated, or "anything"."""
    agreement: float | None
    """How often the policy agrees with other explanations in the target; None where there is no other."""
    source_agreement: float | None
    source_value: float
    """The first policy's mean reward on the held-out source rounds, in the user's units."""
    source_rounds: int
    target_contexts: int
    reward_range: tuple[float, float]
    source_error: float = 0.0
    """The standard error of ``source_value``; files of before have none."""
    arm_names: list[str] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=lambda: list(ASSUMPTIONS))

    @property
    def arm_frequencies(self) -> list[float]:
        """How often each arm is expected to be the best one in the target, (K,)."""
        return [arm.expected_target for arm in self.per_arm]

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        value, low, required = (_number(number) for number in (self.value, self.low, self.required))
        facts = f"estimated value {value}, at least {low}; required {required}"
        if self.verdict == "hand over":
            return f"Hand over: {facts}."
        if self.verdict == "do not":
            return f"Do not hand over: {facts}."
        return f"Ask for {self.audit_rewards} rewards before a hand-over ({self.why}): {facts}."

    def judge(self, *, low: float | None = None, required: float | None = None) -> Assessment:
        """The same estimate with another bound or requirement, and the verdict that follows."""
        lowest, highest = self.reward_range
        span = highest - lowest if highest > lowest else 1.0
        bound, needed = self.low if low is None else low, self.required if required is None else required
        verdict = verdict_of(
            value=(self.value - lowest) / span,
            low=(bound - lowest) / span,
            required=(needed - lowest) / span,
            disagreement=self.disagreement,
            contexts=self.target_contexts,
            doubts=doubts_of(self.collapse, self.outside_support, self.shift),
        )
        reasons = [verdict.sentence, *self.reasons[1:]]
        if required is not None:
            stated = requirement(needed, stated=True)
            reasons = [stated if reason.startswith(("Required is ", "A value of ")) else reason for reason in reasons]
        return replace(
            self,
            low=bound,
            required=needed,
            verdict=verdict.text,
            why=verdict.why,
            audit_rewards=verdict.rewards,
            reasons=reasons,
        )

    def as_dict(self) -> dict[str, Any]:
        """All fields, as JSON can hold them."""
        return asdict(self)

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        write_json(path, self.as_dict())

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Assessment:
        """The assessment that ``as_dict`` was called on."""
        try:
            values = dict(fields)
            values["per_arm"] = [ArmAssessment(**arm) for arm in values["per_arm"]]
            values["shift"] = DomainShift(**values["shift"])
            low, high = values["reward_range"]
            values["reward_range"] = (float(low), float(high))
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"these are not the fields of an assessment: {error}") from None

    def __str__(self) -> str:
        return page(self)


def read_assessment(path: str | Path) -> Assessment:
    """What ``Assessment.save`` wrote."""
    fields = read_json(path)
    try:
        return Assessment.from_dict(fields)
    except InvalidInput as error:
        raise DataError(f"{path}: {error}") from None


def page(assessment: Assessment) -> str:
    """A page of plain text."""
    lines = [assessment.sentence, ""]
    lines += _listed("Why", assessment.reasons)
    lines += [
        f"From {len(assessment.explanations)} explanations of the target, {assessment.source_rounds:,} held-out source "
        f"rounds and {assessment.target_contexts:,} target contexts, without a reward from the target. "
        f"What may differ: {assessment.assumed}.",
        "",
    ]
    lines += _arms(assessment)
    lines += _listed("This assumes", assessment.assumptions)
    return "\n".join(lines).rstrip() + "\n"


def _listed(title: str, sentences: Sequence[str]) -> list[str]:
    lines = [f"{title}:"]
    for sentence in sentences:
        lines += textwrap.wrap(sentence, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
    return [*lines, ""]


def _arms(assessment: Assessment) -> list[str]:
    names = assessment.arm_names or [str(arm.arm) for arm in assessment.per_arm]
    width = max(len("arm"), *(len(name) for name in names))
    head = f"{'arm':{width}}  chosen in source  in target  expected in source  in target  estimated value"
    lines = [head]
    for name, arm in zip(names, assessment.per_arm, strict=True):
        value = "-" if arm.value is None else _number(arm.value)
        note = "" if arm.supported else "  no support in the held-out source rounds"
        lines.append(
            f"{name:{width}}  {arm.source_share:16.1%}  {arm.target_share:9.1%}  {arm.expected_source:18.1%}  "
            f"{arm.expected_target:9.1%}  {value:>15}{note}"
        )
    return [*lines, ""]


def _number(value: float) -> str:
    """Three decimals for what is near 1, fewer for large units."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if abs(value) >= 1 else 3
    return f"{value:.{digits}f}"


# From an estimate, its bound and what is required to a verdict.


FEWEST_ASKED, MOST_ASKED = 50, 1000
_NORMAL_95 = 1.645
CLEARLY = 0.05
"""How far a value has to be above that of a constant arm, which in the target is estimated too."""


@dataclass(frozen=True)
class Verdict:
    """What to do, how many rewards to ask for where that is what to do, and why in one sentence."""

    text: str
    """"hand over", "ask" or "do not"."""
    rewards: int
    why: str

    @property
    def sentence(self) -> str:
        """The reason as a sentence."""
        return f"{self.why[0].upper()}{self.why[1:]}."


def requirement(value: float, *, stated: bool) -> str:
    """What is required, and why if nobody stated it."""
    if stated:
        return f"A value of {value:.3g} is required."
    return (
        "Required is what the best constant arm is worth in the target by the mean of all explanations, at least what "
        f"it is worth in the source: {value:.3g}."
    )


def rewards_to_ask(value: float, required: float, contexts: int = MOST_ASKED) -> int:
    """How many evenly drawn rewards show that ``value``, if that is the value, is above ``required``; both in [0, 1].

    So many that the one-sided 95% bound of their mean is expected at ``required``; between 50 and 1,000, and at most
    one for each of the target's ``contexts``.
    """
    gap = max(abs(value - required), 1e-3)
    needed = math.ceil(_NORMAL_95**2 * max(value * (1.0 - value), 0.05) / gap**2)
    return min(max(FEWEST_ASKED, 10 * math.ceil(needed / 10)), MOST_ASKED, contexts)


def verdict_of(
    *, value: float, low: float, required: float, disagreement: float, contexts: int, doubts: list[str]
) -> Verdict:
    """The verdict for values scaled to [0, 1].

    "hand over" needs a bound clearly above what is required and no doubt. Where the estimate itself is not above it,
    "do not". In between only rewards of the target can tell: "ask".

    Args:
        value: the estimate.
        low: its bound.
        required: what the value has to reach.
        disagreement: the share of contexts on which the two most different explanations of the target disagree.
        contexts: how many contexts of the target there are: no more rewards can be asked for.
        doubts: signs of collapse and the like, a phrase each.
    """
    if value <= required:
        return Verdict("do not", 0, "the estimate is no better than what is required")
    if low >= required + CLEARLY and not doubts:
        return Verdict("hand over", 0, "every explanation of the target leaves it above what is required")
    if doubts:
        why = doubts[0]
    elif disagreement > 1.0 - value:
        why = f"two explanations of the target disagree on {disagreement:.0%} of contexts"
    else:
        why = "too much of the reward depends on what contexts do not show"
    return Verdict("ask", rewards_to_ask(value, required, contexts), why)
