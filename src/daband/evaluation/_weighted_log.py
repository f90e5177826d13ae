"""The numbers that estimators need from a log: for every round the reward, its weight, and two predicted rewards.

The first pass over a log computes the sums to which reward models are fitted; the second computes these numbers.
Estimators without a reward model need one pass. Logs in files and in memory use the same code, so that their
estimates are the same. Above a gigabyte the numbers are in a mapped file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray
from daband.domains._contract import LoggedRounds
from daband.domains._registry import allocate
from daband.domains.readers._parquet_log import ParquetLog
from daband.errors import InvalidInput
from daband.linear._doubly_robust import (
    RewardModel,
    RewardSums,
    doubly_robust_scores,
    feature_map,
    flat_features,
    fold_numbers,
    needs_components,
    sampled_rows,
)

Progress = Callable[[dict[str, float]], None]
#: Squares and products are used if there are this many contexts of the smaller sample per coefficient.
_ROWS_PER_COEFFICIENT = 20
_MAX_STEPS = 50
_MAX_LOGIT = 30.0
#: A function from the number of a batch's first row and its contexts to the policy's probability of every arm, (n, K).
Chances = Callable[[int, AnyArray], FloatArray]

#: Models are fitted to all folds but one, and used on that one.
FOLDS = 5
#: Rows from which the means and scales of the features are estimated.
_SAMPLE = 4096
#: The square of this weight, and sums of such squares, are finite.
_MAX_WEIGHT = 1e100


class WeightedRounds(NamedTuple):
    """The numbers that estimators need from a log and a policy."""

    #: The reward of each round, (n,).
    rewards: FloatArray
    #: The policy's probability of the logged arm over its propensity, times ``ratio``, (n,).
    weights: FloatArray
    #: Predicted rewards of the logged arms, (n,).
    predicted: FloatArray
    #: Predicted rewards of the policy: (n,), or (m,) at the target's contexts.
    direct: FloatArray
    #: The policy's probability of every arm, averaged over the contexts of the domain in which it is evaluated, (K,).
    chances: FloatArray
    #: Number of rounds with each arm in the log, (K,).
    plays: IntArray
    #: Target density over source density at the logged contexts, (n,); None without a target.
    ratio: FloatArray | None = None
    #: The mean of that ratio before it was scaled to 1: below 1 if the target has contexts that the log lacks.
    mass: float = 1.0


class RoundBatches(Protocol):
    """A log that can be read batch by batch, several times."""

    n: int
    n_arms: int
    shared: bool

    def batches(self) -> Iterator[tuple[int, LoggedRounds]]: ...

    def sample(self, indices: IntArray) -> AnyArray: ...


class MemoryRounds:
    """The rounds of a log in memory, as one batch."""

    def __init__(self, rounds: LoggedRounds, n_arms: int, *, shared: bool) -> None:
        self.n, self.n_arms, self.shared = len(rounds), n_arms, shared
        self.rounds = rounds

    def batches(self) -> Iterator[tuple[int, LoggedRounds]]:
        yield 0, self.rounds

    def sample(self, indices: IntArray) -> AnyArray:
        return self.rounds.contexts[indices]


class StreamedRounds:
    """The rounds of a log in Parquet files."""

    def __init__(self, log: ParquetLog, *, progress: Progress | None = None) -> None:
        self.log, self.n, self.n_arms, self.shared = log, len(log), log.n_arms, log.shared
        self._progress = progress
        self._rows, self._pass = 0, 1

    def batches(self) -> Iterator[tuple[int, LoggedRounds]]:
        """Yield every batch with the number of its first row."""
        at = 0
        for part in self.log.parts():
            for batch in self.log.batches(part):
                yield at, batch
                at += len(batch.arms)
                self._report(len(batch.arms))
        self._rows, self._pass = 0, self._pass + 1

    def sample(self, indices: IntArray) -> AnyArray:
        """Return the contexts of the rows with these indices."""
        rows = []
        for first, batch in self.batches():
            inside = indices[(indices >= first) & (indices < first + len(batch.arms))] - first
            rows.append(batch.contexts[inside])
        return np.concatenate(rows)

    def _report(self, rows: int) -> None:
        self._rows += rows
        if self._progress is not None:
            self._progress({"pass": self._pass, "rows": self._rows, "rows_total": len(self.log)})


class FoldModels:
    """A reward model for every fold, fitted to the other folds."""

    def __init__(self, log: RoundBatches, seed: int) -> None:
        _check_rows(log.n)
        self._shared, self._seed = log.shared, seed
        first = next(iter(log.batches()))[1]
        self._lead = 2 if log.shared else 1
        self._size = math.prod(first.contexts.shape[self._lead :])
        shown = []
        if needs_components(self._size):
            each = log.n_arms if log.shared else 1
            rows = np.unique(sampled_rows(log.n * each, first.contexts[0].nbytes // each) // each)
            shown = [log.sample(rows).reshape(-1, self._size)]
        self._map = feature_map(self._size, shown)
        sample = self.features(first.contexts[:_SAMPLE])
        sample = sample.reshape(-1, sample.shape[-1])
        sums = RewardSums(FOLDS, 1 if log.shared else log.n_arms, sample, float(first.rewards.mean()))
        for start, batch in log.batches():
            features, arms = self.features(batch.contexts), batch.arms
            if log.shared:
                features, arms = features[np.arange(len(arms)), arms], np.zeros(len(arms), np.int64)
            sums.add(features, fold_numbers(start, len(arms), FOLDS, seed), arms, batch.rewards)
        self._models: list[RewardModel] = [sums.fit([fold]) for fold in range(FOLDS)]

    def features(self, contexts: AnyArray) -> FloatArray:
        """Return features (n, d), or (n, K, d)."""
        return self._map(contexts.reshape(-1, self._size)).reshape(*contexts.shape[: self._lead], -1)

    def predict(self, contexts: AnyArray, folds: IntArray) -> FloatArray:
        """Return the reward of every arm (n, K), by the models that have not seen the contexts' folds."""
        features = self.features(contexts)
        predicted = None
        for fold in range(FOLDS):
            held = np.flatnonzero(folds == fold)
            if len(held):
                values = self._models[fold].predict(features[held])
                predicted = np.empty((len(folds), values.shape[1])) if predicted is None else predicted
                predicted[held] = values
        assert predicted is not None
        return predicted


def score_rounds(rounds: LoggedRounds, n_arms: int, *, shared: bool = False, seed: int = 0) -> FloatArray:
    """Return the doubly robust scores (n, K) of rounds in memory; with few rounds models predict the mean reward."""
    if len(rounds) < 2 * FOLDS:
        predicted = np.full((len(rounds), n_arms), rounds.rewards.mean())
    else:
        models = FoldModels(MemoryRounds(rounds, n_arms, shared=shared), seed)
        predicted = models.predict(rounds.contexts, fold_numbers(0, len(rounds), FOLDS, seed))
    return doubly_robust_scores(predicted, rounds.arms, rounds.rewards, rounds.propensities)


def weigh_log(log: RoundBatches, chances: Chances, models: FoldModels | None, seed: int) -> WeightedRounds:
    """Return the numbers that estimators need; without ``models`` predicted rewards are 0."""
    rewards, weights, predicted, direct = allocate((4, log.n), np.float64)
    average, plays = np.zeros(log.n_arms), np.zeros(log.n_arms, np.int64)
    for first, batch in log.batches():
        rows = slice(first, first + len(batch))
        of_batch = chances(first, batch.contexts)
        rewards[rows] = batch.rewards
        weights[rows] = _importance_weights(of_batch, batch)
        predicted[rows] = direct[rows] = 0.0
        if models is not None:
            values = models.predict(batch.contexts, fold_numbers(first, len(batch), FOLDS, seed))
            predicted[rows] = values[np.arange(len(batch)), batch.arms]
            direct[rows] = (of_batch * values).sum(axis=1)
        average += of_batch.sum(axis=0)
        plays += np.bincount(batch.arms, minlength=log.n_arms)
    return WeightedRounds(rewards, weights, predicted, direct, average / log.n, plays)


def move_to_target(
    here: WeightedRounds,
    contexts: AnyArray,
    target: AnyArray,
    target_chances: FloatArray,
    models: FoldModels | None,
    seed: int,
) -> WeightedRounds:
    """Return the numbers for the target contexts (m, *C), from those for the log's contexts (n, *C)."""
    _check_rows(min(len(contexts), len(target)))
    folds = fold_numbers(0, len(target), FOLDS, seed + 1)
    source_rows, target_rows = flat_features(contexts, target)
    ratio, mass = cross_fitted_ratio(source_rows, fold_numbers(0, len(contexts), FOLDS, seed), target_rows, folds)
    direct = np.zeros(len(target))
    if models is not None:
        direct = (target_chances * models.predict(target, folds)).sum(axis=1)
    return here._replace(
        weights=here.weights * ratio, direct=direct, chances=target_chances.mean(axis=0), ratio=ratio, mass=mass
    )


def _importance_weights(chances: FloatArray, rounds: LoggedRounds) -> FloatArray:
    with np.errstate(over="ignore"):
        weights: FloatArray = chances[np.arange(len(rounds)), rounds.arms] / rounds.propensities
    too_large = ~(weights < _MAX_WEIGHT)
    if too_large.any():
        row = int(np.argmax(too_large))
        raise InvalidInput(
            f"log: the propensity {rounds.propensities[row]:g} makes a weight of {weights[row]:.2g}, with which "
            "nothing can be estimated; check that propensities are probabilities of the logged arm, and drop such "
            "rounds"
        )
    return weights


def _check_rows(n: int) -> None:
    if n < 2 * FOLDS:
        raise InvalidInput(f"log and target must have at least {2 * FOLDS} rows to fit models to")


class DensityRatio:
    """The ratio of the target density to the source density, from samples of both.

    A logistic regression separates the two samples; its odds, times the ratio of the sample sizes, estimate the ratio
    of the densities (Bickel, Bruckner, Scheffer 2009). Features are standardised. Squares and products are added if
    there are enough contexts: the log ratio of two normal densities is quadratic.

    Args:
        source: features of source contexts, (n, d).
        target: features of target contexts, (m, d).
    """

    def __init__(self, source: FloatArray, target: FloatArray) -> None:
        # These take a second to import.
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures, StandardScaler

        dim, most = source.shape[1], min(len(source), len(target)) // _ROWS_PER_COEFFICIENT
        steps: list[Any] = [StandardScaler()]
        if 1 + dim + dim * (dim + 1) // 2 <= most:
            steps.append(PolynomialFeatures(2, include_bias=False))
        elif 1 + 2 * dim <= most:
            steps.append(FunctionTransformer(lambda x: np.concatenate([x, x**2], axis=1)))
        steps.append(LogisticRegression(solver="newton-cholesky", tol=1e-8, max_iter=_MAX_STEPS))
        is_target = np.repeat([0, 1], [len(source), len(target)])
        self._model = make_pipeline(*steps).fit(np.concatenate([source, target]), is_target)
        self._offset = math.log(len(source) / len(target))

    def __call__(self, features: FloatArray) -> FloatArray:
        """Return the ratio at these contexts, (n,)."""
        logits = np.clip(self._model.decision_function(features), -_MAX_LOGIT, _MAX_LOGIT)
        return np.exp(logits + self._offset)


def cross_fitted_ratio(
    source: FloatArray, source_folds: IntArray, target: FloatArray, target_folds: IntArray
) -> tuple[FloatArray, float]:
    """Return the ratio at the source's contexts (n,), scaled to a mean of 1, and its mean before scaling.

    Each ratio is estimated from samples without the context's fold. The mean is below 1 if the target has contexts that
    the source lacks.
    """
    ratio, mass = np.empty(len(source)), 0.0
    for fold in np.unique(source_folds):
        held = source_folds == fold
        density = DensityRatio(source[~held], target[target_folds != fold])(source[held])
        ratio[held] = density / density.mean()
        mass += float(density.sum()) / len(source)
    return ratio, mass
