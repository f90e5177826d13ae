"""Tells when arriving contexts or arm choices have left what training saw, by a test that is valid at any time.

Every summary score of ``daband.serving.monitor_reference`` is tested on its own. As long as arriving contexts are
exchangeable with the reference contexts, the smoothed conformal p-values of their bins are independent and uniform
(Vovk, Gammerman, Shafer: "Algorithmic Learning in a Random World", 2005). The test bets against that: the capital of a
gambler who bets on bins of the p-values by their past frequencies is a martingale under uniformity, so it ever exceeds
``1 / level`` with probability at most ``level`` (Ville), whenever and however often somebody looks. So that a late
change is found soon, a part of the capital is kept back for gamblers who start later. The scores of contexts share one
half of the probability of a false alarm, the arms have the other half.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from daband.arrays import AnyArray, BoolArray, FloatArray, IntArray
from daband.errors import InvalidInput
from daband.serving.monitor_reference import bins_of

__all__ = ["Monitor", "MonitorReport", "ScoreReport"]

_BINS = 10
"""Bins of p-values that the gamblers bet on."""
_PRIOR = 0.5
"""Rounds that each bin has to begin with (Krichevsky, Trofimov)."""
_FIRST_RESTART = 64
_ARMS = "arm"
_MOST_SHOWN = 5
"""Scores, arms and kinds of warnings that a report prints."""


@dataclass(frozen=True, repr=False)
class ScoreReport:
    """What the monitor knows of one summary score, or of the arms."""

    name: str
    left: bool
    """Whether it has left what training saw."""
    since: int | None
    """The round in which the test told so, counted from 1; None before."""
    evidence: float
    """The logarithm of the test's capital now, in units of the threshold: 1 or more is an alarm."""
    expected: FloatArray
    """The share of each bin in training."""
    observed: FloatArray
    """The share of each bin in the rounds since."""

    def __repr__(self) -> str:
        told = f"left what training saw, told in round {self.since:,}" if self.left else "as in training"
        return f"<{self.name}: {told}, evidence {self.evidence:.2g}>"


@dataclass(frozen=True, repr=False)
class MonitorReport:
    """What a monitor has counted."""

    rounds: int
    contexts_left: bool
    """Whether arriving contexts have left what training saw."""
    arms_left: bool
    """Whether the shares of preferred arms have."""
    reasons: tuple[str, ...]
    """The names of the scores that have left, those with the strongest evidence first."""
    scores: tuple[ScoreReport, ...]
    arm_counts: dict[str, int]
    """How often each arm was chosen."""
    warnings: dict[str, int]
    """How many rows had a warning of each kind."""

    @property
    def alarm(self) -> bool:
        """Whether anything has left what training saw."""
        return self.contexts_left or self.arms_left

    def __repr__(self) -> str:
        def listed(counts: dict[str, int]) -> str:
            most = sorted(counts.items(), key=lambda one: -one[1])
            shown = ", ".join(f"{name} {count:,}" for name, count in most[:_MOST_SHOWN])
            return f"{shown}, ..." if len(most) > _MOST_SHOWN else shown or "none"

        found = {score.name: score for score in self.scores}
        lines = [f"{self.rounds:,} rounds: contexts {_told(self.contexts_left)}, arms {_told(self.arms_left)}"]
        lines += [f"  {found[name]!r}" for name in self.reasons[:_MOST_SHOWN] if name in found]
        if len(self.reasons) > _MOST_SHOWN:
            lines.append(f"  and {len(self.reasons) - _MOST_SHOWN} more: see .reasons")
        lines += [f"arms chosen: {listed(self.arm_counts)}", f"rows with warnings: {listed(self.warnings)}"]
        return "\n".join(lines)


def _told(left: bool) -> str:
    return "have left what training saw" if left else "as in training"


class Monitor:
    """Decides through a deployed policy and watches what it decides on: ``deployed.monitor()``.

    It may be shared by threads. Each process has its own, and each of these keeps its promise on false alarms alone.
    """

    def __init__(self, deployed: Any, *, false_alarms: float = 0.01, seed: int | None = None) -> None:
        if not 0.0 < false_alarms < 1.0:
            raise InvalidInput(f"false_alarms must lie between 0 and 1, got {false_alarms}")
        if deployed.reference is None:
            raise InvalidInput(
                "the policy was exported without reference contexts, so there is nothing to compare with; export it "
                "with pair=pair, or with reference=contexts of the domain that it acts in (at least 64)"
            )
        self.deployed = deployed
        found = deployed.reference
        self._lock = threading.Lock()
        self._random = np.random.default_rng(seed)
        self._edges = found.edges
        watched = [found.counts]
        names, levels = list(found.names), [false_alarms / 2 / len(found.names)] * len(found.names)
        self._arms = len(found.arms) > 1
        if self._arms:
            width = max(found.counts.shape[1], len(found.arms))
            watched = [_padded(found.counts, width), _padded(found.arms[None], width)]
            names, levels = [*names, _ARMS], [*levels, false_alarms / 2]
        else:
            levels = [2 * level for level in levels]
        self._names = tuple(names)
        self._threshold = -np.log(levels)
        self._reference: IntArray = np.concatenate(watched)
        self._pool = self._reference.copy()
        self._rounds = 0
        self._since: IntArray = np.zeros(len(names), np.int64)
        self._every = np.arange(len(names))
        self._totals: IntArray = self._pool.sum(axis=1)
        self._played: FloatArray = np.zeros((1, 1))  # rounds since each gambler started
        self._bets: IntArray = np.zeros((1, len(names), _BINS), np.int64)
        self._capital: FloatArray = np.zeros((1, len(names)))  # logarithms
        self._largest: FloatArray = np.zeros(len(names))
        self._arm_counts: IntArray = np.zeros(len(deployed.arm_names), np.int64)
        self._warnings: dict[str, int] = {}

    def decide(self, row: Any, available: Any = None, **options: Any) -> Any:
        """``Deployed.decide`` with its options, counted."""
        decision, read, mean, width = self.deployed.decide_with(row, available, **options)
        scores, preferred = self.deployed.summary_of(read.contexts, mean, width)
        with self._lock:
            self._arm_counts += np.bincount(np.atleast_1d(decision.arm), minlength=len(self._arm_counts))
            for odd in read.warnings:
                for kind in {one.kind for one in odd}:
                    self._warnings[kind] = self._warnings.get(kind, 0) + 1
            self._see(scores, preferred)
        return decision

    def see(self, contexts: AnyArray) -> None:
        """Watch contexts (n, ...) on which somebody else has decided."""
        read = self.deployed.reader.read(contexts)
        scores, preferred = self.deployed.summary(read.contexts)
        with self._lock:
            self._see(scores, preferred)

    def report(self) -> MonitorReport:
        """What was counted so far."""
        with self._lock:
            evidence = self._evidence() / self._threshold
            before, now = self._reference, self._pool - self._reference
            left: BoolArray = self._since > 0
            scores = tuple(
                ScoreReport(
                    name=name,
                    left=bool(left[at]),
                    since=int(self._since[at]) or None,
                    evidence=float(evidence[at]),
                    expected=before[at] / max(before[at].sum(), 1),
                    observed=now[at] / max(now[at].sum(), 1),
                )
                for at, name in enumerate(self._names)
            )
            order = sorted(np.flatnonzero(left), key=lambda at: -self._largest[at] / self._threshold[at])
            of_arms = self._arms and bool(left[-1])
            names = self.deployed.arm_names
            return MonitorReport(
                rounds=self._rounds,
                contexts_left=bool(left[: len(left) - self._arms].any()),
                arms_left=of_arms,
                reasons=tuple(self._names[at] for at in order),
                scores=scores,
                arm_counts={name: int(n) for name, n in zip(names, self._arm_counts, strict=True)},
                warnings=dict(self._warnings),
            )

    @property
    def alarm(self) -> bool:
        """Whether anything has left what training saw. Once it is True it stays so."""
        return bool(self._since.any())

    def _see(self, scores: FloatArray, preferred: IntArray) -> None:
        bins = bins_of(scores, self._edges)
        if self._arms:
            bins = np.concatenate([bins, preferred[:, None]], axis=1)
        coins = self._random.random(bins.shape)
        for row, coin in zip(bins, coins, strict=True):
            self._bet(row, coin)

    def _bet(self, bins: IntArray, coins: FloatArray) -> None:
        """One round: the bin of every score, and a uniform number for each."""
        # The smoothed conformal p-value: the share of contexts so far, this one among them, in higher bins, and a
        # uniform part of those in its own.
        own = self._pool[self._every, bins]
        above = self._totals - self._pool.cumsum(axis=1)[self._every, bins]
        self._pool[self._every, bins] = own + 1
        self._totals += 1
        p_values = (above + coins * (own + 1)) / self._totals
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
        """The logarithm of the mixed capital of every score, (J,)."""
        started = np.arange(1.0, len(self._capital) + 1.0)
        weights = 1.0 / (started * (started + 1.0))
        kept_back = 1.0 / (len(started) + 1.0)  # of those who have not started, at a capital of 1
        largest = np.maximum(self._capital.max(axis=0), 0.0)
        mixed = weights @ np.exp(self._capital - largest) + kept_back * np.exp(-largest)
        total: FloatArray = np.log(mixed) + largest
        return total


def _padded(counts: IntArray, width: int) -> IntArray:
    return np.pad(counts, ((0, 0), (0, width - counts.shape[1])))
