"""A log that is read in batches: of every round four numbers are kept, and no context.

The first pass sums what the reward models of all folds are fitted to, the second one keeps what estimators need: the
reward, the weight, and what the models expect. The direct method takes a third pass for its error. Estimators that take
no reward model need one pass alone. Above a gigabyte the numbers are in a mapped file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray, check_memory
from daband.domains._contract import LoggedRounds
from daband.domains._registry import allocate
from daband.domains.readers._parquet_files import LogPart
from daband.domains.readers._parquet_log import ParquetLog
from daband.errors import DataError
from daband.evaluation._cross_fitting import FOLDS, CrossFitted, WeightedRounds, check_rows
from daband.evaluation._off_policy_estimators import importance_weights
from daband.evaluation._off_policy_inputs import Probabilities, probabilities
from daband.linear._primal_ridge import RidgeSums
from daband.linear._reward_model import RewardModel, feature_map, fold_numbers, needs_components, sampled_places

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


def weigh_log(
    policy: Probabilities, stream: LogStream, estimators: Sequence[str], *, domain: str, rule: str | None, seed: int
) -> WeightedRounds:
    """What estimators need of every round, from as many passes over the log as these estimators take."""
    n, n_arms = stream.n, stream.log.n_arms
    models = _fit_models(stream, seed) if any(name in ("dm", "dr", "switch-dr") for name in estimators) else None
    rewards, weights, predicted, direct = allocate((4, n), np.float64)
    shares, plays, model_error = np.zeros(n_arms), np.zeros(n_arms, np.int64), 0.0
    for first, batch in stream.batches():
        rows = slice(first, first + len(batch))
        of_batch = probabilities(policy, batch.contexts, domain, rule, "log", first=first)
        rewards[rows] = batch.rewards
        weights[rows] = importance_weights(of_batch, batch.arms, batch.propensities)
        predicted[rows], direct[rows] = (0.0, 0.0) if models is None else models.predict(first, batch, of_batch)
        shares += of_batch.sum(axis=0)
        plays += np.bincount(batch.arms, minlength=n_arms)
    if models is not None and "dm" in estimators:
        square = sum(models.squared_influence(first, batch) for first, batch in stream.batches())
        model_error = math.sqrt(square) / n
    fitted = CrossFitted(predicted, direct, None, 1.0, model_error)
    return WeightedRounds(rewards, weights, fitted, shares / n, plays)


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
