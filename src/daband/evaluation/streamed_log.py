"""Estimates from a log that is read in batches and never as a whole: everything needed of it is sums over its rounds.

The first pass sums what the reward models of all folds are fitted to, the second one what estimators need. The direct
method takes a third for its error. Estimators that take no reward model need one pass alone. The numbers are those that
the same rounds give in memory, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray, check_memory
from daband.domains import LoggedRounds, LogPart, ParquetLog
from daband.errors import DataError
from daband.evaluation.cross_fitting import FOLDS, check_rows
from daband.evaluation.intervals import MeanEstimate, RunningMean, WeightSums
from daband.evaluation.off_policy_estimators import THRESHOLDS, importance_weights
from daband.evaluation.off_policy_inputs import Probabilities, probabilities
from daband.linear import RewardModel, RidgeSums, feature_map, fold_numbers, needs_components, sampled_places

__all__ = ["LogStream", "LogSums", "sum_log"]

Progress = Callable[[dict[str, float]], None]

_SAMPLE_ROWS = 4096
"""Rows whose means and deviations the features are shifted and scaled by, before sums are taken."""


class LogStream:
    """The rounds of a log in Parquet files, batch by batch and as often as they are asked for.

    With ``skip_damaged``, parts that cannot be read are found by a pass of its own, and left out: they stand in
    ``left_out`` with the reason.
    """

    def __init__(self, log: ParquetLog, *, skip_damaged: bool, progress: Progress | None = None) -> None:
        self.log = log
        self.left_out = [f"{reason}; the file was left out" for reason in log.damaged.values()]
        self._progress = progress
        self._rows, self._pass = 0, 1
        self._skip = skip_damaged
        self.parts = log.parts()
        if skip_damaged:
            self.parts = [part for part in self.parts if self._can_be_read(part)]
            if not self.parts:
                raise DataError(f"log: none of its parts can be read ({self.left_out[0]})")
            self._rows, self._pass = 0, 2
        self.n = sum(map(len, self.parts))

    def batches(self) -> Iterator[tuple[int, LoggedRounds]]:
        """Every batch with the number of its first row."""
        at = 0
        for part in self.parts:
            try:
                for batch in self.log.batches(part):
                    yield at, batch
                    at += len(batch.arms)
                    self._tell(len(batch.arms))
            except DataError as error:
                hint = "" if self._skip else "; on_damaged='skip' leaves it out"
                raise DataError(f"{error}{hint}") from None
        self._rows, self._pass = 0, self._pass + 1

    def sample(self, places: IntArray) -> AnyArray:
        """The contexts of the rows at these places, in order."""
        rows = []
        for first, batch in self.batches():
            inside = places[(places >= first) & (places < first + len(batch.arms))] - first
            rows.append(batch.contexts[inside])
        return np.concatenate(rows)

    def _can_be_read(self, part: LogPart) -> bool:
        try:
            for batch in self.log.batches(part):
                self._tell(len(batch.arms))
        except DataError as error:
            self.left_out.append(f"{error}; rows {part.start:,} to {part.stop - 1:,} of it were left out")
            return False
        return True

    def _tell(self, rows: int) -> None:
        self._rows += rows
        if self._progress is not None:
            self._progress({"pass": self._pass, "rows": self._rows, "rows_total": len(self.log)})


@dataclass
class LogSums:
    """What estimators need of a log. Rewards are counted from ``origin``, which keeps sums of squares small."""

    n_arms: int
    origin: float = 0.0
    n: int = 0
    weight: RunningMean = field(default_factory=RunningMean)
    weighted: RunningMean = field(default_factory=RunningMean)
    """Of weight times reward."""
    direct: RunningMean = field(default_factory=RunningMean)
    robust: RunningMean = field(default_factory=RunningMean)
    """Of the terms of the doubly robust estimate."""
    model_error: float = 0.0
    largest_residual: float = 0.0
    lowest: float = math.inf
    """The smallest reward."""
    highest: float = -math.inf

    def __post_init__(self) -> None:
        bins = len(THRESHOLDS) + 1
        self.shares, self.plays = np.zeros(self.n_arms), np.zeros(self.n_arms, np.int64)
        self.reward_sums = np.zeros(3)
        """Of squared weights times 1, the reward and its square."""
        self.bins = {name: np.zeros(bins) for name in ("n", "w", "ww", "c", "cc", "dc", "size")}
        """By size of weights w: sums over rounds; c is the correction of the direct method's d."""
        self.largest, self.largest_row = np.full(bins, -np.inf), np.zeros(bins, np.int64)

    def add(
        self, first: int, batch: LoggedRounds, shares: FloatArray, predicted: FloatArray, direct: FloatArray
    ) -> None:
        """Add rounds: the policy's probabilities (n, K), and what the models expect, all zeros without a model."""
        arms, rewards = batch.arms, batch.rewards
        weights = importance_weights(shares, arms, batch.propensities)
        self.n += len(arms)
        self.lowest, self.highest = min(self.lowest, float(rewards.min())), max(self.highest, float(rewards.max()))
        self.shares += shares.sum(axis=0)
        self.plays += np.bincount(arms, minlength=self.n_arms)
        self.weight.add(weights)
        self.weighted.add(weights * rewards)
        from_origin = rewards - self.origin
        self.reward_sums += [float(weights**2 @ power) for power in (np.ones(len(arms)), from_origin, from_origin**2)]
        residuals = rewards - predicted
        corrections = weights * residuals
        self.direct.add(direct)
        self.robust.add(direct + corrections)
        self.largest_residual = max(self.largest_residual, float(np.abs(residuals).max()))
        places = np.searchsorted(THRESHOLDS, weights)
        sizes = np.abs(corrections)
        for name, values in (
            ("n", None),
            ("w", weights),
            ("ww", weights**2),
            ("c", corrections),
            ("cc", corrections**2),
            ("dc", (direct - self.origin) * corrections),
            ("size", sizes),
        ):
            self.bins[name] += np.bincount(places, values, len(THRESHOLDS) + 1)
        for place in np.unique(places):
            rows = np.flatnonzero(places == place)
            row = rows[weights[rows].argmax()]
            if weights[row] > self.largest[place]:
                self.largest[place], self.largest_row[place] = weights[row], first + row

    def estimate(self, estimator: str) -> tuple[MeanEstimate, WeightSums]:
        """The estimate, and the weights that it uses."""
        if estimator == "dm":
            direct = self.direct.estimate
            return MeanEstimate(direct.value, math.hypot(direct.error, self.model_error)), self._even()
        if estimator == "ips":
            return self.weighted.estimate, self.kept()
        if estimator == "snips":
            return self._self_normalised(), self.kept()
        if estimator == "dr":
            return self.robust.estimate, self.kept()
        return self._switch()

    def kept(self, bins: int = len(THRESHOLDS) + 1) -> WeightSums:
        """Of the weights in the first so many bins."""
        place = int(self.largest[:bins].argmax())
        largest = float(self.largest[place])
        if largest <= 0.0:  # none is kept
            return WeightSums(0.0, 0.0, 0.0, 0)
        total, squares = (float(self.bins[name][:bins].sum()) for name in ("w", "ww"))
        return WeightSums(total, squares, largest, int(self.largest_row[place]))

    def _even(self) -> WeightSums:
        return WeightSums(float(self.n), float(self.n), 1.0, 0)

    def _self_normalised(self) -> MeanEstimate:
        if self.weight.mean == 0.0:
            return MeanEstimate(math.nan, math.inf)
        value = self.weighted.mean / self.weight.mean
        apart = value - self.origin
        squares, first, second = self.reward_sums
        variation = max(0.0, float(second - 2.0 * apart * first + apart**2 * squares))
        error = math.sqrt(variation / (self.n - 1) / self.n) / self.weight.mean if self.n > 1 else math.inf
        return MeanEstimate(value, error)

    def _switch(self) -> tuple[MeanEstimate, WeightSums]:
        """``switch_doubly_robust`` with the threshold of ``choose_threshold``."""
        below = {name: np.cumsum(values) for name, values in self.bins.items()}
        n = self.n
        of_direct = self.direct.squares + n * (self.direct.mean - self.origin) ** 2
        best, lowest = None, math.inf
        for place in range(len(THRESHOLDS), -1, -1):  # the last is infinity
            if place < len(THRESHOLDS) and 2 * below["n"][place] < n:
                continue
            mean = self.direct.mean + float(below["c"][place]) / n
            squares = of_direct + float(2.0 * below["dc"][place] + below["cc"][place]) - n * (mean - self.origin) ** 2
            error = math.sqrt(max(0.0, squares) / (n - 1) / n) if n > 1 else math.inf
            left = float(self.bins["size"][place + 1 :].sum())
            bound = error**2 + min(left / n, self.largest_residual) ** 2
            if bound < lowest:
                best, lowest = (MeanEstimate(mean, error), self.kept(place + 1)), bound
        if best is None:  # a single round, whose error is infinite
            return self.robust.estimate, self.kept()
        return best


def sum_log(
    policy: Probabilities,
    stream: LogStream,
    estimators: Sequence[str],
    *,
    domain: str,
    rule: str | None,
    seed: int,
) -> LogSums:
    """Pass over a log as often as these estimators need it."""
    log = stream.log
    models = _fit_models(stream, seed) if any(name in ("dm", "dr", "switch-dr") for name in estimators) else None
    sums = LogSums(log.n_arms)
    for first, batch in stream.batches():
        if not sums.n:
            sums.origin = float(batch.rewards.mean())
        shares = probabilities(policy, batch.contexts, domain, rule, "log", first=first)
        predicted, direct = np.zeros(len(batch.arms)), np.zeros(len(batch.arms))
        if models is not None:
            predicted, direct = models.predict(first, batch, shares)
        sums.add(first, batch, shares, predicted, direct)
    if models is not None and "dm" in estimators:
        square = sum(models.squared_influence(first, batch) for first, batch in stream.batches())
        sums.model_error = math.sqrt(square) / sums.n
    return sums


class _FoldModels:
    """A reward model for every fold, fitted to the others."""

    def __init__(
        self, models: Sequence[RewardModel], features: Callable[[AnyArray], FloatArray], *, shared: bool, seed: int
    ) -> None:
        self._models, self._features, self._shared, self._seed = models, features, shared, seed
        self._gradients = [np.zeros_like(model.coefficients) for model in models]

    def predict(self, first: int, batch: LoggedRounds, shares: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What is expected of the logged arms, and of the policy, (n,); and what ``squared_influence`` rests on."""
        features, folds = self._features(batch.contexts), fold_numbers(first, len(batch.arms), FOLDS, self._seed)
        predicted, direct = np.empty(len(folds)), np.empty(len(folds))
        for fold, model in enumerate(self._models):
            held = np.flatnonzero(folds == fold)
            every = model.predict(features[held])
            predicted[held] = every[np.arange(len(held)), batch.arms[held]]
            direct[held] = (shares[held] * every).sum(axis=1)
            self._gradients[fold] += model.gradients(features[held], shares[held])
        return predicted, direct

    def squared_influence(self, first: int, batch: LoggedRounds) -> float:
        """The sum of squared influences of rounds on the sum of ``direct``, once ``predict`` has seen the whole log."""
        features, folds = self._features(batch.contexts), fold_numbers(first, len(batch.arms), FOLDS, self._seed)
        played = features[np.arange(len(folds)), batch.arms] if self._shared else features
        heads = np.zeros(len(folds), np.int64) if self._shared else batch.arms
        influence = np.zeros(len(folds))
        for fold, (model, gradients) in enumerate(zip(self._models, self._gradients, strict=True)):
            fit = np.flatnonzero(folds != fold)
            influence[fit] += model.influence_of(played[fit], heads[fit], batch.rewards[fit], gradients)
        return float(influence @ influence)


def _fit_models(stream: LogStream, seed: int) -> _FoldModels:
    """The models, from one pass over the log; of long contexts, with another for their principal components."""
    log = stream.log
    check_rows(stream.n)
    size = math.prod(log.context_shape)
    heads = 1 if log.shared else log.n_arms
    rows, shown = _sample(stream, size)
    of_rows = feature_map(size, shown)

    def features(contexts: AnyArray) -> FloatArray:
        lead = contexts.shape[: 2 if log.shared else 1]
        return of_rows(contexts.reshape(-1, size)).reshape(*lead, -1)

    sample = of_rows(rows)
    centre, deviation = sample.mean(axis=0), sample.std(axis=0)
    scale = np.where(deviation > 1e-12 * (1.0 + np.abs(centre)), deviation, 1.0)
    wide = 1 + len(centre)
    check_memory(8.0 * FOLDS * heads * wide * (wide + 1), f"a reward model of {heads} arms and {wide} coefficients")
    sums = RidgeSums(FOLDS * heads, wide)
    low, high = math.inf, -math.inf
    for first, batch in stream.batches():
        low, high = min(low, float(batch.rewards.min())), max(high, float(batch.rewards.max()))
        played = features(batch.contexts)
        arms = batch.arms
        if log.shared:
            played, arms = played[np.arange(len(arms)), arms], np.zeros(len(arms), np.int64)
        design = np.empty((len(played), wide), order="F")  # columns one after the other are summed fastest
        design[:, 0] = 1.0
        np.subtract(played, centre, out=design[:, 1:])
        design[:, 1:] /= scale
        sums.add(design, fold_numbers(first, len(arms), FOLDS, seed) * heads + arms, batch.rewards)
    models = []
    for fold in range(FOLDS):
        others = RidgeSums(heads, wide)
        for other in range(FOLDS):
            if other != fold:
                part = slice(other * heads, (other + 1) * heads)
                others.gram += sums.gram[part]
                others.moment += sums.moment[part]
                others.counts += sums.counts[part]
        models.append(RewardModel.from_sums(others, centre, scale, bounds=(low, high)))
    return _FoldModels(models, features, shared=log.shared, seed=seed)


def _sample(stream: LogStream, size: int) -> tuple[AnyArray, list[AnyArray]]:
    """Rows (m, size) that tell the scale of contexts, and those that long contexts are reduced by."""
    log = stream.log
    first = next(iter(log.batches(stream.parts[0])))
    rows = first.contexts.reshape(-1, size)
    if not needs_components(size):
        return rows[:_SAMPLE_ROWS], []
    each = log.n_arms if log.shared else 1
    places = sampled_places(stream.n * each, rows[0].nbytes)
    found = stream.sample(np.unique(places // each)).reshape(-1, each, size)
    shown = found[np.searchsorted(np.unique(places // each), places // each), places % each]
    return shown, [shown]
