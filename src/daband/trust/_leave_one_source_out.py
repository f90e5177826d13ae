"""Leave-one-source-out: with several sources, each in turn is a target whose rewards are known.

Policies are trained on all sources but one and assessed in that one as in a target: without its rewards. Its rewards
then say how far the estimate was off. The errors of the sources bound the error in the target, on the user's own
problem: where domains are draws of one kind, the next error exceeds

    mean - t * deviation * sqrt(1 + 1 / sources)

in 95 of 100 problems, with Student's t for so many sources. From three sources on this is the bound, in the place of
the one with a fitted constant; two say too little, and the lower of both bounds counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray
from daband._domain_names import DomainNames
from daband.domains._contract import Contexts, LoggedDomain, Pair, RewardDomain
from daband.domains._mixtures import restrict_pair
from daband.errors import InvalidInput
from daband.policies._policy import Policy
from daband.trust._assess import assess
from daband.trust._assessment import Assessment

_T_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)
"""One-sided 95% quantiles of Student's t, for 1, 2, ... degrees of freedom."""
_NORMAL_95 = 1.645
_ENOUGH = 3
"""Sources from which on their errors alone decide the bound."""


class _Unrewarded(Contexts):
    """The contexts of a source, as a target has them."""

    def __init__(self, whole: Contexts) -> None:
        self._read = whole.read
        self._length = len(whole)
        self.context_shape, self.passes, self.prefetches = whole.context_shape, whole.passes, whole.prefetches

    def __len__(self) -> int:
        return self._length

    def read(self, indices: IntArray) -> AnyArray:
        return self._read(indices)


@dataclass(frozen=True)
class SourceCalibration:
    """What estimates of the left-out sources were, and what the policies were worth there, in the user's units."""

    sources: tuple[str, ...]
    estimates: tuple[float, ...]
    lows: tuple[float, ...]
    """The bounds as ``assess`` gives them without calibration."""
    values: tuple[float, ...]

    @property
    def errors(self) -> FloatArray:
        """By how much each source was better than estimated, (S,)."""
        return np.subtract(self.values, self.estimates)

    @property
    def covered(self) -> float:
        """The share of sources that were worth at least their bound."""
        return float(np.greater_equal(self.values, self.lows).mean())

    def low(self, value: float) -> float:
        """A one-sided 95% bound for a policy whose value in the target is estimated to be ``value``."""
        n, errors = len(self.sources), self.errors
        quantile = _T_95[n - 2] if n - 2 < len(_T_95) else _NORMAL_95
        return value + float(errors.mean()) - quantile * float(errors.std(ddof=1)) * math.sqrt(1.0 + 1.0 / n)

    def calibrated(self, assessment: Assessment) -> Assessment:
        """The assessment with the bound of the sources, and the verdict that follows."""
        lowest, highest = assessment.reward_range
        span = highest - lowest if highest > lowest else 1.0
        by_sources = float(np.clip(self.low(assessment.value), lowest, assessment.value))
        binary = assessment.accuracy_low == (assessment.low - lowest) / span
        low = by_sources if len(self.sources) >= _ENOUGH else min(assessment.low, by_sources)
        judged = assessment.judge(low=low)
        return replace(
            judged,
            accuracy_low=(low - lowest) / span if binary else min(assessment.accuracy_low, (low - lowest) / span),
            reasons=[*judged.reasons, f"{self}; by these the value is at least {by_sources:.3g}."],
        )

    def __str__(self) -> str:
        each = ", ".join(
            f"{name} {estimate:.3g} (was {value:.3g})"
            for name, estimate, value in zip(self.sources, self.estimates, self.values, strict=True)
        )
        return f"Left out in turn, sources were estimated at {each}"


def leave_one_source_out(
    pair: Pair,
    train: Callable[[Pair], Policy | Sequence[Policy]],
    *,
    rule: str = "ucb",
    contexts: int = 2000,
    seed: int = 0,
) -> SourceCalibration:
    """Train without each source in turn, assess there, and compare with its rewards.

    Args:
        pair: a pair with several sources.
        train: makes and trains policies for a pair as those to be assessed were; it is called once for each source.
        rule: as in ``assess``.
        contexts: as in ``assess``.
        seed: as in ``assess``.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> def market(shift):
    ...     x = rng.normal(shift, 1.0, (200, 2))
    ...     return x, (x[:, 0] > 0).astype(int)
    >>> sources = {"de": market(0.0), "fr": market(0.3), "it": market(-0.3)}
    >>> pair = daband.domains.from_arrays(sources=sources, targets={"pl": market(0.1)[0]})
    >>> def train(pair):
    ...     policy = daband.LinUCB.for_pair(pair, seed=0)
    ...     daband.train(policy, source=pair.source, target=pair.target, episodes=4)
    ...     return policy
    >>> calibration = daband.trust._leave_one_source_out(pair, train)
    >>> found = daband.assess(train(pair), source=pair.source_test, target=pair.target, calibration=calibration)
    >>> calibration.sources, found.low <= found.value
    (('de', 'fr', 'it'), True)
    """
    names = pair.domains.sources
    if len(names) < 2:
        raise InvalidInput("leave_one_source_out needs a pair with several sources, e.g. from_arrays(sources={...})")
    estimates, lows, values = [], [], []
    for name in names:
        part = pair.source.by_name[name]
        others = [other for other in names if other != name]
        rest = replace(
            restrict_pair(pair, sources=others),
            name=f"{pair.name}, without {name}",
            target=_Unrewarded(part),
            target_test=None,
            target_labelled=None,
            domains=DomainNames(tuple(others), (name,)),
        )
        made = train(rest)
        policies = [made] if isinstance(made, Policy) else list(made)
        if rest.source_test is None:
            raise InvalidInput("the pair has no held-out source rounds; build it with source_test=.1")
        found = assess(policies, source=rest.source_test, target=rest.target, rule=rule, contexts=contexts, seed=seed)
        estimates.append(found.value)
        lows.append(found.low)
        values.append(_value(policies[0], part, name, rule, contexts, seed))
    return SourceCalibration(names, tuple(estimates), tuple(lows), tuple(values))


def _value(policy: Policy, part: Contexts, name: str, rule: str, most: int, seed: int) -> float:
    """What a policy's choices are paid in a source that it did not learn from."""
    n = min(most, len(part))
    if isinstance(part, LoggedDomain):
        log = part.rounds(0, n, seed=seed)
        weights = (policy.decide(log.contexts, name, rule=rule).arm == log.arms) / log.propensities
        return float(weights @ log.rewards / max(float(weights.sum()), 1e-12))
    assert isinstance(part, RewardDomain)
    rounds = part.rounds(0, n, seed=seed)
    expected = rounds.rewards if rounds.expected is None else rounds.expected
    return float(expected[np.arange(n), policy.decide(rounds.contexts, name, rule=rule).arm].mean())
