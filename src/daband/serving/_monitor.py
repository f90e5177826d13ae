"""Detects when arriving contexts or preferred arms differ from training, by a test that is valid at any time.

Every summary score of a ``Reference`` has its own test. As long as arriving contexts are
exchangeable with the reference contexts, the smoothed conformal p-values of their bins are independent and uniform
(Vovk, Gammerman, Shafer: "Algorithmic Learning in a Random World", 2005). The test bets against that: the capital of a
gambler who bets on bins of the p-values by their past frequencies is a martingale under uniformity, so it ever exceeds
``1 / level`` with probability at most ``level`` (Ville), however often it is checked. To find a late change soon, part
of the capital is reserved for gamblers who start later. Half of the false-alarm probability is spent on context
scores, the other half on arms.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from daband._arguments import between_0_and_1
from daband._arrays import AnyArray, BoolArray, FloatArray, IntArray
from daband.errors import InvalidInput

MOST_CONTEXTS = 4096  # reference contexts that are counted, at most
LEAST_CONTEXTS = 64  # fewer reference contexts are not enough to compare with
_REFERENCE_BINS = 10
_BESIDE = 1e-9
_MOST_NUMBERS = 256  # longer vectors are watched only by the policy's predictions


@dataclass(frozen=True)
class Reference:
    """Counts of reference contexts, with which the monitor compares arriving ones.

    Every reference context has a few *summary scores*: the numbers of a vector, brightness and contrast of an image,
    and the policy's predictions. Each score is cut into bins. The edges of the bins come from one half of the
    reference contexts and the counts from the other half, so that, with the edges given, the counted contexts and
    those that arrive later are exchangeable as long as nothing changes. No context and no score of a single one is
    kept.

    Edges are (scores, bins - 1), counts (scores, bins); how often each arm was preferred is (K,). Edges that a score
    does not use are infinite. With one context per arm, or a catalogue, there are no arms to count: (0,).
    """

    names: tuple[str, ...]
    edges: FloatArray
    counts: IntArray
    arms: IntArray

    def __post_init__(self) -> None:
        if self.counts.shape != (len(self.names), self.edges.shape[1] + 1) or len(self.edges) != len(self.names):
            raise ValueError(f"edges {self.edges.shape} and counts {self.counts.shape} of {len(self.names)} scores")
        if any(count.dtype != np.int64 or (count < 0).any() for count in (self.counts, self.arms)):
            raise ValueError("the counts of the reference are no counts")
        if np.isnan(self.edges).any():
            raise ValueError("the reference has an edge that is NaN")


def summary_scores(
    deployed: Any, contexts: AnyArray, mean: FloatArray, width: FloatArray
) -> tuple[FloatArray, IntArray]:
    """Return scores (n, J) of contexts (n, ...) with means and bonuses (n, K), and the preferred arms (n,).

    The preferred arm has the largest mean plus ``optimism`` times the bonus among all arms, available or not.
    """
    n, dimensions = len(contexts), math.prod(deployed.context_shape)
    largest = 255.0 if contexts.dtype == np.uint8 else 1.0
    parts: list[FloatArray] = []
    if deployed.reader.images is not None:
        flat = contexts.reshape(n, -1).astype(np.float64) / largest
        parts = [flat.mean(axis=1, keepdims=True), flat.std(axis=1, keepdims=True)]
    elif dimensions <= _MOST_NUMBERS:
        parts = [contexts.reshape(n, -1, dimensions).astype(np.float64).mean(axis=1) / largest]
    scores = mean + deployed.frozen.exploration.optimism * width
    preferred: IntArray = scores.argmax(axis=1)
    rows = np.arange(n)
    parts += [mean[rows, preferred, None], width[rows, preferred, None]]
    if scores.shape[1] > 1:
        two = np.partition(scores, scores.shape[1] - 2, axis=1)[:, -2:]
        parts.append(two[:, 1:] - two[:, :1])
    return np.concatenate(parts, axis=1), preferred


def bins_of(scores: FloatArray, edges: FloatArray) -> IntArray:
    """Return the bin of each score, the number of edges below it: scores (J,) or (n, J), edges (J, B - 1)."""
    return (edges < scores[..., None]).sum(axis=-1)


def build_reference(deployed: Any, contexts: AnyArray) -> Reference | None:
    """Return the reference for contexts (n, ...) of the policy's domain; None if there are too few."""
    n = len(contexts)
    if n < LEAST_CONTEXTS:
        return None
    scores, preferred = summary_scores(deployed, contexts, *deployed.frozen.score_in_units(contexts))
    of_policy = ("predicted reward", "width", "margin")[: 3 if deployed.n_arms > 1 else 2]
    n_numbers = scores.shape[1] - len(of_policy)
    of_contexts = ("brightness", "contrast") if deployed.reader.images is not None else deployed.feature_names
    if len(of_contexts) != n_numbers:
        of_contexts = tuple(f"number {at}" for at in range(n_numbers))
    order = np.random.default_rng(n).permutation(n)  # contexts may be sorted
    first, second = order[: n // 2], order[n // 2 :]
    cuts = [_cuts(column) for column in scores[first].T]
    edges = np.full((len(cuts), max(len(inner) for inner in cuts)), np.inf)
    for score, inner in enumerate(cuts):
        edges[score, : len(inner)] = inner
    counts = np.zeros((len(edges), edges.shape[1] + 1), np.int64)
    for row in bins_of(scores[second], edges):
        counts[np.arange(len(row)), row] += 1
    changing = deployed.per_arm or deployed.frozen.catalogue is not None
    arms = np.zeros(0) if changing else np.bincount(preferred[second], minlength=deployed.n_arms)
    return Reference((*of_contexts, *of_policy), edges, counts, arms.astype(np.int64))


def reference_from(header: Mapping[str, Any] | None, arrays: Mapping[str, AnyArray]) -> Reference | None:
    """Return the reference that a file describes."""
    if header is None:
        return None
    return Reference(tuple(header["names"]), arrays["edges"], arrays["counts"], arrays["arms"])


def _cuts(values: FloatArray) -> FloatArray:
    """Return edges of bins of about equal counts, halfway between neighbouring values and never at a value.

    A value that many contexts share has an edge on both sides, so that other values fall into other bins.
    """
    distinct = np.unique(values)
    ordered = np.sort(values)
    below = (np.arange(1, _REFERENCE_BINS) * len(ordered)) // _REFERENCE_BINS
    cuts = []
    for lower, upper in zip(ordered[below - 1], ordered[below], strict=True):
        if lower < upper:
            cuts.append(0.5 * (lower + upper))
            continue
        at = int(np.searchsorted(distinct, lower))
        margin = _BESIDE * (1.0 + abs(float(lower)))
        cuts.append(0.5 * (lower + distinct[at - 1]) if at > 0 else lower - margin)
        cuts.append(0.5 * (lower + distinct[at + 1]) if at + 1 < len(distinct) else lower + margin)
    return np.unique(np.array(cuts))


_BINS = 10  # bins of p-values that the gamblers bet on
_PRIOR = 0.5  # rounds that each bin starts with (Krichevsky, Trofimov)
_FIRST_RESTART = 64
_ARMS = "arm"
_MOST_SHOWN = 5  # scores, arms and kinds of warnings that a report prints


@dataclass(frozen=True)
class ScoreReport:
    """The result of the monitor for one summary score, or for the arms."""

    name: str
    #: True if it differs from training.
    left: bool
    #: The round in which the test found that, counted from 1; None before.
    since: int | None
    #: The logarithm of the test's capital now, in units of the threshold: 1 or more is an alarm.
    evidence: float


@dataclass(frozen=True, repr=False)
class MonitorReport:
    """The counts of a monitor, and its alarms."""

    rounds: int
    #: True if arriving contexts differ from training.
    contexts_left: bool
    #: True if the frequencies of preferred arms differ.
    arms_left: bool
    #: The names of the scores that differ, those with the strongest evidence first.
    reasons: tuple[str, ...]
    scores: tuple[ScoreReport, ...]
    #: The number of times that each arm was chosen.
    arm_counts: dict[str, int]
    #: The number of rows with a warning of each kind.
    warnings: dict[str, int]

    @property
    def alarm(self) -> bool:
        """True if anything differs from training."""
        return self.contexts_left or self.arms_left

    def __repr__(self) -> str:
        def listed(counts: dict[str, int]) -> str:
            most = Counter(counts).most_common(_MOST_SHOWN)
            return ", ".join(f"{name} {count:,}" for name, count in most) or "none"

        state = f"differ from training ({', '.join(self.reasons[:_MOST_SHOWN])})" if self.alarm else "as in training"
        return (
            f"{self.rounds:,} rounds: contexts and arms {state}\narms chosen: {listed(self.arm_counts)}\n"
            f"rows with warnings: {listed(self.warnings)}"
        )


class Monitor:
    """Decides through a deployed policy and compares its contexts with training: ``deployed.monitor()``.

    Threads may share it. Each process has its own, and its bound on false alarms holds for this process.

    Args:
        deployed: the ``DeployedPolicy``, exported with reference contexts.
        false_alarms: the probability of an alarm while contexts are as in training, over all time.
        seed: seed of the monitor's random draws; random by default.
    """

    def __init__(self, deployed: Any, *, false_alarms: float = 0.01, seed: int | None = None) -> None:
        between_0_and_1("false_alarms", false_alarms)
        if deployed.reference is None:
            raise InvalidInput(
                "the policy was exported without reference contexts, so there is nothing to compare with; export it "
                "with pair=pair, or with reference=contexts of the domain that it acts in (at least 64)"
            )
        self.deployed = deployed
        reference = deployed.reference
        self._lock = threading.Lock()
        self._random = np.random.default_rng(seed)
        self._edges = reference.edges
        watched = [reference.counts]
        names, levels = list(reference.names), [false_alarms / 2 / len(reference.names)] * len(reference.names)
        self._arms = len(reference.arms) > 1
        if self._arms:
            width = max(reference.counts.shape[1], len(reference.arms))
            watched = [_pad(reference.counts, width), _pad(reference.arms[None], width)]
            names, levels = [*names, _ARMS], [*levels, false_alarms / 2]
        else:
            levels = [2 * level for level in levels]
        self._names = tuple(names)
        self._threshold = -np.log(levels)
        self._pool: IntArray = np.concatenate(watched)
        self._rounds = 0
        self._since: IntArray = np.zeros(len(names), np.int64)
        self._every = np.arange(len(names))
        self._totals: IntArray = self._pool.sum(axis=1)
        self._played: FloatArray = np.zeros((1, 1))  # rounds since each gambler started
        self._bets: IntArray = np.zeros((1, len(names), _BINS), np.int64)
        self._capital: FloatArray = np.zeros((1, len(names)))  # logarithms
        self._largest: FloatArray = np.zeros(len(names))
        self._arm_counts: Counter[str] = Counter(dict.fromkeys(deployed.arm_names, 0))
        self._warnings: Counter[str] = Counter()

    def decide(self, row: Any, available: Any = None, **options: Any) -> Any:
        """Decide as ``DeployedPolicy.decide`` does, with its options, and count the row."""
        decision, read = self.deployed.decide_with(row, available, **options)
        means, bonuses = np.atleast_2d(decision.mean), np.atleast_2d(decision.bonus)
        scored = summary_scores(self.deployed, read.contexts, means, bonuses)
        with self._lock:
            self._arm_counts.update([decision.arm_name] if read.single else decision.arm_name)
            self._warnings.update(kind for row in read.warnings for kind in {warning.kind for warning in row})
            self._see(*scored)
        return decision

    def see(self, contexts: AnyArray) -> None:
        """Count contexts (n, ...) that were decided on elsewhere."""
        rows = self.deployed.reader.read(contexts).contexts
        scored = summary_scores(self.deployed, rows, *self.deployed.frozen.score_in_units(rows))
        with self._lock:
            self._see(*scored)

    def report(self) -> MonitorReport:
        """Return the counts so far."""
        with self._lock:
            evidence = self._evidence() / self._threshold
            left: BoolArray = self._since > 0
            scores = tuple(
                ScoreReport(
                    name=name,
                    left=bool(left[at]),
                    since=int(self._since[at]) or None,
                    evidence=float(evidence[at]),
                )
                for at, name in enumerate(self._names)
            )
            order = sorted(np.flatnonzero(left), key=lambda at: -self._largest[at] / self._threshold[at])
            of_arms = self._arms and bool(left[-1])
            return MonitorReport(
                rounds=self._rounds,
                contexts_left=bool(left[: len(left) - self._arms].any()),
                arms_left=of_arms,
                reasons=tuple(self._names[at] for at in order),
                scores=scores,
                arm_counts=dict(self._arm_counts),
                warnings=dict(self._warnings),
            )

    @property
    def alarm(self) -> bool:
        """True once anything differs from training."""
        return bool(self._since.any())

    def _see(self, scores: FloatArray, preferred: IntArray) -> None:
        bins = bins_of(scores, self._edges)
        if self._arms:
            bins = np.concatenate([bins, preferred[:, None]], axis=1)
        coins = self._random.random(bins.shape)
        for row, coin in zip(bins, coins, strict=True):
            self._bet(row, coin)

    def _bet(self, bins: IntArray, coins: FloatArray) -> None:
        """Play one round, with the bin of every score and a uniform number for each."""
        # The smoothed conformal p-value: the fraction of contexts so far, including this one, in higher bins, plus a
        # uniform part of the fraction in the same bin.
        counts = self._pool[self._every, bins]
        above = self._totals - self._pool.cumsum(axis=1)[self._every, bins]
        self._pool[self._every, bins] = counts + 1
        self._totals += 1
        p_values = (above + coins * (counts + 1)) / self._totals
        cells = np.minimum((p_values * _BINS).astype(np.int64), _BINS - 1)
        bets = self._bets[:, self._every, cells]
        self._capital += np.log((bets + _PRIOR) * _BINS / (self._played + _BINS * _PRIOR))
        self._bets[:, self._every, cells] = bets + 1
        self._played += 1
        self._rounds += 1
        evidence = self._evidence()
        np.maximum(self._largest, evidence, out=self._largest)
        over = evidence >= self._threshold
        if over.any():
            self._since[over & (self._since == 0)] = self._rounds
        if self._rounds >= _FIRST_RESTART and self._rounds & (self._rounds - 1) == 0:  # a power of two
            self._played = np.concatenate([self._played, [[0.0]]])
            self._bets = np.concatenate([self._bets, np.zeros((1, *self._bets.shape[1:]), np.int64)])
            self._capital = np.concatenate([self._capital, np.zeros((1, len(bins)))])

    def _evidence(self) -> FloatArray:
        """Return the logarithm of the mixed capital of every score, (J,)."""
        started = np.arange(1.0, len(self._capital) + 1.0)
        weights = 1.0 / (started * (started + 1.0))
        kept_back = 1.0 / (len(started) + 1.0)  # the weight of the gamblers who have not started, with a capital of 1
        largest = np.maximum(self._capital.max(axis=0), 0.0)
        mixed = weights @ np.exp(self._capital - largest) + kept_back * np.exp(-largest)
        return np.log(mixed) + largest


def _pad(counts: IntArray, width: int) -> IntArray:
    return np.pad(counts, ((0, 0), (0, width - counts.shape[1])))
