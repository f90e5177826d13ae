"""Detect when arriving contexts or preferred arms differ from training, by tests that are valid at
any time.

Every summary score of a ``Reference`` has its own test. As long as arriving contexts are
exchangeable with the reference contexts, the smoothed conformal p-values of their bins are
independent and uniform (Vovk, Gammerman, Shafer: "Algorithmic Learning in a Random World", 2005).
The test is a bet against uniformity. A gambler bets on bins of the p-values by their past
frequencies. Under uniformity, the capital of the gambler is a martingale. The probability that it
ever exceeds ``1 / level`` is therefore at most ``level`` (Ville's inequality), however often it is
checked. To detect a late change soon, part of the capital is reserved for gamblers who start later.
Half of the false-alarm probability is used for the scores of contexts, the other half for arms.
Without a test of arms, all of it is used for the scores.

``export`` builds the ``Reference`` and writes it to the file. ``Monitor`` runs the tests, and
returns a ``MonitorReport``.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from daband.base._arguments import check_probability
from daband.base._arrays import AnyArray, BoolArray, FloatArray, IntArray
from daband.errors import InvalidInput

#: Maximum number of reference contexts.
MAX_CONTEXTS = 4096
#: Minimum number of reference contexts.
MIN_CONTEXTS = 64
#: The number of bins of a score, if few contexts have equal scores.
_REFERENCE_BINS = 10
#: An edge below the smallest or above the largest value v is this far from it, times 1 + abs(v).
_EDGE_MARGIN = 1e-9
#: Contexts with more features are monitored by the policy's predictions only.
_MAX_FEATURES = 256


@dataclass(frozen=True)
class Reference:
    """Counts of reference contexts in the bins of their scores.

    The monitor compares arriving contexts with them.

    Every context has a few *summary scores*: its features, or the brightness and contrast of an
    image, and the policy's predictions. One half of the reference contexts determines the edges of
    bins, the other half is counted. So counted contexts and later contexts are exchangeable, given
    the edges, as long as nothing changes. Contexts and scores themselves are not stored.
    """

    #: The names of the J scores.
    names: tuple[str, ...]
    #: The edges between bins, (J, bins - 1); infinite if a score has fewer bins.
    edges: FloatArray
    #: The number of contexts in each bin, (J, bins).
    counts: IntArray
    #: The number of contexts for which each arm is preferred, (K,); (0,) if arms differ from round
    #: to round.
    arm_counts: IntArray


def compute_summary_scores(
    deployed: Any, contexts: AnyArray, mean: FloatArray, bonus: FloatArray
) -> tuple[FloatArray, IntArray]:
    """Return scores (n, J) of contexts (n, ...) with means and bonuses (n, K), and the preferred
    arms (n,).

    The preferred arm has the largest mean plus the exploration rule's ``bonus_factor`` times the
    bonus, among all arms, available or not.
    """
    n = len(contexts)
    n_features = math.prod(deployed.context_shape)
    max_value = 255.0 if contexts.dtype == np.uint8 else 1.0
    score_columns: list[FloatArray] = []
    if deployed.reader.image_rule is not None:
        pixels = contexts.reshape(n, -1).astype(np.float64) / max_value
        score_columns = [pixels.mean(axis=1, keepdims=True), pixels.std(axis=1, keepdims=True)]
    elif n_features <= _MAX_FEATURES:
        score_columns = [
            contexts.reshape(n, -1, n_features).astype(np.float64).mean(axis=1) / max_value
        ]
    arm_scores = mean + deployed.frozen.exploration.bonus_factor * bonus
    preferred_arms: IntArray = arm_scores.argmax(axis=1)
    rows = np.arange(n)
    score_columns += [mean[rows, preferred_arms, None], bonus[rows, preferred_arms, None]]
    if arm_scores.shape[1] > 1:
        largest_two = np.partition(arm_scores, arm_scores.shape[1] - 2, axis=1)[:, -2:]
        score_columns.append(largest_two[:, 1:] - largest_two[:, :1])
    return np.concatenate(score_columns, axis=1), preferred_arms


def find_bins(scores: FloatArray, edges: FloatArray) -> IntArray:
    """Return the bins of scores (J,) or (n, J).

    A bin is the number of edges (J, bins - 1) below the score.
    """
    return (edges < scores[..., None]).sum(axis=-1)


def build_reference(deployed: Any, contexts: AnyArray) -> Reference | None:
    """Return the reference from contexts (n, ...) of the policy's domain, or None if there are
    fewer than 64.
    """
    n = len(contexts)
    if n < MIN_CONTEXTS:
        return None
    scores, preferred_arms = compute_summary_scores(
        deployed, contexts, *deployed.frozen.score(contexts)
    )
    policy_score_names = ("predicted reward", "bonus", "margin")[: 3 if deployed.n_arms > 1 else 2]
    n_context_scores = scores.shape[1] - len(policy_score_names)
    has_images = deployed.reader.image_rule is not None
    context_score_names = ("brightness", "contrast") if has_images else deployed.feature_names
    if len(context_score_names) != n_context_scores:
        context_score_names = tuple(f"number {index}" for index in range(n_context_scores))
    order = np.random.default_rng(n).permutation(n)  # contexts may be sorted
    edge_rows = order[: n // 2]
    counted_rows = order[n // 2 :]
    edge_lists = [_compute_bin_edges(column) for column in scores[edge_rows].T]
    edges = np.full((len(edge_lists), max(map(len, edge_lists))), np.inf)
    for index, score_edges in enumerate(edge_lists):
        edges[index, : len(score_edges)] = score_edges
    counts = np.zeros((len(edges), edges.shape[1] + 1), np.int64)
    for bins in find_bins(scores[counted_rows], edges):
        counts[np.arange(len(bins)), bins] += 1
    arms_vary = deployed.per_arm or deployed.frozen.catalogue is not None
    arm_counts = (
        np.zeros(0)
        if arms_vary
        else np.bincount(preferred_arms[counted_rows], minlength=deployed.n_arms)
    )
    return Reference(
        (*context_score_names, *policy_score_names), edges, counts, arm_counts.astype(np.int64)
    )


def _compute_bin_edges(values: FloatArray) -> FloatArray:
    """Return the edges between bins of ``values`` (n,) with about equal counts, halfway between
    neighbouring values.

    If many contexts have the same value, there is an edge on both sides of it, so that it has its
    own bin.
    """
    distinct_values = np.unique(values)
    sorted_values = np.sort(values)
    split_indices = (np.arange(1, _REFERENCE_BINS) * len(sorted_values)) // _REFERENCE_BINS
    edges = []
    for lower, upper in zip(
        sorted_values[split_indices - 1], sorted_values[split_indices], strict=True
    ):
        if lower < upper:
            edges.append(0.5 * (lower + upper))
            continue
        index = int(np.searchsorted(distinct_values, lower))
        margin = _EDGE_MARGIN * (1.0 + abs(float(lower)))
        edges.append(0.5 * (lower + distinct_values[index - 1]) if index > 0 else lower - margin)
        edges.append(
            0.5 * (lower + distinct_values[index + 1])
            if index + 1 < len(distinct_values)
            else lower + margin
        )
    return np.unique(np.array(edges))


#: The number of bins of p-values that gamblers bet on.
_P_VALUE_BINS = 10
#: The count that each bin of p-values starts with (the estimator of Krichevsky and Trofimov).
_PRIOR_COUNT = 0.5
#: The round in which the second gambler starts. Further gamblers start in rounds that are larger
#: powers of two.
_FIRST_RESTART_ROUND = 64
#: The name of the test of arms in reports.
_ARM_TEST = "arm"
#: Maximum number of scores, arms and kinds of warnings that a report prints.
_MAX_LISTED = 5


@dataclass(frozen=True)
class ScoreReport:
    """The result of the monitor for one summary score, or for the arms."""

    #: The name of the score.
    name: str
    #: True if there was an alarm, i.e. the score differs from training.
    changed: bool
    #: The round of the alarm, counted from 1; None without an alarm.
    since: int | None
    #: The logarithm of the test's present capital, divided by the logarithm at which an alarm is
    #: raised.
    evidence: float


@dataclass(frozen=True, repr=False)
class MonitorReport:
    """The counts of a monitor, and its alarms."""

    #: The number of rounds.
    rounds: int
    #: True if arriving contexts differ from training.
    contexts_changed: bool
    #: True if the frequencies of preferred arms differ from training.
    arms_changed: bool
    #: The names of the scores that differ from training. The score with the strongest evidence is
    #: first.
    reasons: tuple[str, ...]
    #: The result for each score.
    scores: tuple[ScoreReport, ...]
    #: The number of times that each arm was chosen.
    arm_counts: dict[str, int]
    #: The number of rows with a warning of each kind.
    warnings: dict[str, int]

    @property
    def alarm(self) -> bool:
        """True if anything differs from training."""
        return self.contexts_changed or self.arms_changed

    def __repr__(self) -> str:
        def format_counts(counts: dict[str, int]) -> str:
            largest = Counter(counts).most_common(_MAX_LISTED)
            return ", ".join(f"{name} {count:,}" for name, count in largest) or "none"

        changes = {"contexts": self.contexts_changed, "arms": self.arms_changed}
        names = (
            " and ".join(name for name, has_changed in changes.items() if has_changed)
            or "contexts and arms"
        )
        state = (
            f"differ from training ({', '.join(self.reasons[:_MAX_LISTED])})"
            if self.alarm
            else "as in training"
        )
        return (
            f"{self.rounds:,} rounds: {names} {state}\narms chosen:"
            f" {format_counts(self.arm_counts)}\nrows with warnings: {format_counts(self.warnings)}"
        )


class Monitor:
    """A deployed policy that also compares its contexts and arms with training, as
    ``deployed.monitor()`` returns it.

    Threads may share a monitor. Each process has its own monitor, and the bound on false alarms
    holds for each.

    Args:
        deployed: the ``DeployedPolicy``, exported with reference contexts.
        false_alarms: an upper bound on the probability of ever raising an alarm while contexts are
            as in training.
        seed: the seed of the monitor's random draws; random by default.
    """

    def __init__(
        self, deployed: Any, *, false_alarms: float = 0.01, seed: int | None = None
    ) -> None:
        check_probability("false_alarms", false_alarms)
        if deployed.reference is None:
            raise InvalidInput(
                "the policy was exported without reference contexts; export it with pair=pair, or"
                " with reference=contexts of the domain that it acts in (at least 64)"
            )
        self.deployed = deployed
        reference = deployed.reference
        self._lock = threading.Lock()
        self._rng = np.random.default_rng(seed)
        self._edges = reference.edges
        names, counts, n_scores = reference.names, reference.counts, len(reference.names)
        levels = [false_alarms / n_scores] * n_scores
        self._has_arm_test = len(reference.arm_counts) > 1
        if self._has_arm_test:  # it gets half of the false-alarm probability
            n_bins = max(counts.shape[1], len(reference.arm_counts))
            counts = np.concatenate(
                [_pad_bins(counts, n_bins), _pad_bins(reference.arm_counts[None], n_bins)]
            )
            names = (*names, _ARM_TEST)
            levels = [*(level / 2 for level in levels), false_alarms / 2]
        self._names: tuple[str, ...] = names
        #: The logarithm of the capital at which each test raises an alarm, (tests,). There is a
        #: test for each of the J scores, and one for the arms if ``_has_arm_test``.
        self._log_threshold = -np.log(levels)
        #: The number of contexts in each bin so far, with the reference contexts, (tests, bins).
        self._counts: IntArray = counts.copy()
        self._n_rounds = 0
        #: The round of each test's alarm, (tests,); 0 without an alarm.
        self._alarm_rounds: IntArray = np.zeros(len(names), np.int64)
        #: The index of each test, (tests,).
        self._tests = np.arange(len(names))
        #: The number of contexts so far, with the reference contexts, (tests,).
        self._context_totals: IntArray = self._counts.sum(axis=1)
        #: The number of rounds since each gambler started, (gamblers, 1).
        self._rounds_played: FloatArray = np.zeros((1, 1))
        #: The number of p-values in each bin since each gambler started, (gamblers, tests, bins).
        self._p_value_counts: IntArray = np.zeros((1, len(names), _P_VALUE_BINS), np.int64)
        #: The logarithm of each gambler's capital, (gamblers, tests).
        self._log_capital: FloatArray = np.zeros((1, len(names)))
        #: The maximum so far of the logarithm of each test's capital, (tests,).
        self._max_log_capital: FloatArray = np.zeros(len(names))
        self._arm_counts: Counter[str] = Counter(dict.fromkeys(deployed.arm_names, 0))
        self._warning_counts: Counter[str] = Counter()

    def decide(self, row: Any, **options: Any) -> Any:
        """Return the decision of ``DeployedPolicy.decide`` for a row or a batch, and update the
        tests.
        """
        decision = self.deployed.decide(row, **options)
        batch = decision
        if isinstance(decision.arm, int):
            batch = type(decision)(*([value] for value in decision))
        contexts, mean, bonus = map(np.asarray, (batch.context, batch.mean, batch.bonus))
        if options.get("arms") is not None:  # the reference has the scores of all arms
            mean, bonus = self.deployed.frozen.score(contexts)
        scores, preferred_arms = compute_summary_scores(self.deployed, contexts, mean, bonus)
        with self._lock:
            self._arm_counts.update(batch.arm_name)
            for row_warnings in batch.warnings:
                self._warning_counts.update({warning.kind for warning in row_warnings})
            self._add_contexts(scores, preferred_arms)
        return decision

    def observe(self, contexts: AnyArray) -> None:
        """Update the tests with contexts (n, ...) that were decided on elsewhere."""
        rows = self.deployed.reader.read(contexts).contexts
        mean, bonus = self.deployed.frozen.score(rows)
        scores, preferred_arms = compute_summary_scores(self.deployed, rows, mean, bonus)
        with self._lock:
            self._add_contexts(scores, preferred_arms)

    def report(self) -> MonitorReport:
        """Return the state of the tests and the counts so far."""
        with self._lock:
            evidence = self._compute_log_capital() / self._log_threshold
            has_changed: BoolArray = self._alarm_rounds > 0
            scores = tuple(
                ScoreReport(
                    name=name,
                    changed=bool(has_changed[index]),
                    since=int(self._alarm_rounds[index]) or None,
                    evidence=float(evidence[index]),
                )
                for index, name in enumerate(self._names)
            )
            max_evidence = self._max_log_capital / self._log_threshold
            changed_tests = sorted(
                np.flatnonzero(has_changed), key=lambda index: -max_evidence[index]
            )
            return MonitorReport(
                rounds=self._n_rounds,
                contexts_changed=bool(has_changed[: len(has_changed) - self._has_arm_test].any()),
                arms_changed=self._has_arm_test and bool(has_changed[-1]),
                reasons=tuple(self._names[index] for index in changed_tests),
                scores=scores,
                arm_counts=dict(self._arm_counts),
                warnings=dict(self._warning_counts),
            )

    @property
    def alarm(self) -> bool:
        """True if any test has raised an alarm."""
        return bool(self._alarm_rounds.any())

    def _add_contexts(self, scores: FloatArray, preferred_arms: IntArray) -> None:
        """Update the tests with the scores (n, J) and preferred arms (n,) of contexts."""
        bins = find_bins(scores, self._edges)
        if self._has_arm_test:
            bins = np.concatenate([bins, preferred_arms[:, None]], axis=1)
        uniforms = self._rng.random(bins.shape)
        for round_bins, round_uniforms in zip(bins, uniforms, strict=True):
            self._update_tests(round_bins, round_uniforms)

    def _update_tests(self, bins: IntArray, uniforms: FloatArray) -> None:
        """Update the tests with one round: the bin of each test, (tests,), and uniform random
        numbers, (tests,).
        """
        # The smoothed conformal p-value is the fraction of contexts so far, including this one, in
        # higher bins, plus a uniform random part of the fraction in the same bin.
        n_same = self._counts[self._tests, bins]
        n_higher = self._context_totals - self._counts.cumsum(axis=1)[self._tests, bins]
        self._counts[self._tests, bins] = n_same + 1
        self._context_totals += 1
        p_values = (n_higher + uniforms * (n_same + 1)) / self._context_totals
        p_value_bins = np.minimum((p_values * _P_VALUE_BINS).astype(np.int64), _P_VALUE_BINS - 1)
        p_value_counts = self._p_value_counts[:, self._tests, p_value_bins]
        total_counts = self._rounds_played + _P_VALUE_BINS * _PRIOR_COUNT
        self._log_capital += np.log((p_value_counts + _PRIOR_COUNT) * _P_VALUE_BINS / total_counts)
        self._p_value_counts[:, self._tests, p_value_bins] = p_value_counts + 1
        self._rounds_played += 1
        self._n_rounds += 1
        log_capital = self._compute_log_capital()
        np.maximum(self._max_log_capital, log_capital, out=self._max_log_capital)
        is_alarm = log_capital >= self._log_threshold
        if is_alarm.any():
            self._alarm_rounds[is_alarm & (self._alarm_rounds == 0)] = self._n_rounds
        # a power of two
        if self._n_rounds >= _FIRST_RESTART_ROUND and self._n_rounds & (self._n_rounds - 1) == 0:
            self._rounds_played = np.concatenate([self._rounds_played, [[0.0]]])
            self._p_value_counts = np.concatenate(
                [self._p_value_counts, np.zeros_like(self._p_value_counts[:1])]
            )
            self._log_capital = np.concatenate([self._log_capital, np.zeros((1, len(bins)))])

    def _compute_log_capital(self) -> FloatArray:
        """Return the logarithm of each test's capital, (tests,): the weighted mean of all gamblers'
        capital.
        """
        gambler_numbers = np.arange(1.0, len(self._log_capital) + 1.0)
        weights = 1.0 / (gambler_numbers * (gambler_numbers + 1.0))
        # of gamblers who have not started, whose capital is 1
        reserved_weight = 1.0 / (len(gambler_numbers) + 1.0)
        # subtracted, so that nothing overflows
        largest_log = np.maximum(self._log_capital.max(axis=0), 0.0)
        scaled_capital = weights @ np.exp(
            self._log_capital - largest_log
        ) + reserved_weight * np.exp(-largest_log)
        return np.log(scaled_capital) + largest_log


def _pad_bins(counts: IntArray, n_bins: int) -> IntArray:
    """Return counts (J, bins) as (J, n_bins), with zeros in the additional bins."""
    return np.pad(counts, ((0, 0), (0, n_bins - counts.shape[1])))
