"""Compute what estimators need from a log: the reward, weight and predicted reward of each round.

The first pass over a log computes sums, from which reward models are fitted (``FoldModels``). The
second pass computes the result (``weigh_log``). Estimators without a reward model need only the
second pass. ``move_to_target`` changes the weights for another domain, by ``DensityRatio``. Logs in
files and in memory are processed by the same code, so that their estimates are equal. Arrays of
more than a gigabyte are mapped to a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from daband.base._arguments import Progress
from daband.base._arrays import AnyArray, FloatArray, IntArray, take_chosen
from daband.domains._contract import LoggedRounds, gather_rows
from daband.domains.readers._parquet_log import ParquetLog
from daband.errors import InvalidInput
from daband.logs._doubly_robust import (
    RewardModel,
    RewardSums,
    assign_folds,
    build_feature_map,
    compute_doubly_robust_scores,
    extract_features,
    needs_components,
    sample_rows,
)

#: A density ratio uses squares and products of features if the smaller sample has this many rows
#: per coefficient.
_ROWS_PER_COEFFICIENT = 20
#: Maximum number of iterations of the logistic regression.
_MAX_ITERATIONS = 50
#: Largest absolute value of a logit; the odds of larger ones could overflow.
_MAX_LOGIT = 30.0
#: A function from the index of the first row of a batch and its rounds to probabilities of arms,
#: (n, K).
ProbabilityFunction = Callable[[int, LoggedRounds], FloatArray]

#: Number of folds of cross-fitting. A model is fitted to all folds but one, and predicts for that
#: one.
N_FOLDS = 5
#: Maximum number of rows from which means and scales of features are estimated.
_SAMPLE_ROWS = 4096
#: Largest allowed weight; sums of squares of such weights are finite.
_MAX_WEIGHT = 1e100


class WeightedRounds(NamedTuple):
    """The rewards, weights and predicted rewards that estimators need from a log and a policy."""

    #: The reward of each round, (n,).
    rewards: FloatArray
    #: The policy's probability of the logged arm, divided by its propensity and multiplied by
    #: ``density_ratios``, (n,).
    weights: FloatArray
    #: The predicted reward of each logged arm, (n,).
    arm_predictions: FloatArray
    #: The predicted reward of the policy (the direct method) at each logged context, (n,), or
    #: target context, (m,).
    policy_predictions: FloatArray
    #: The policy's probability of every arm, averaged over the contexts of the domain in which it
    #: is evaluated, (K,).
    mean_probabilities: FloatArray
    #: Number of rounds with each arm in the log, (K,).
    arm_counts: IntArray
    #: The density of target contexts divided by the density of source contexts, at each context of
    #: the log, (n,); None without a target. It is scaled to a mean of 1.
    density_ratios: FloatArray | None = None
    #: The mean of ``density_ratios`` before scaling. It is below 1 if the target has contexts that
    #: the log lacks.
    mean_ratio: float = 1.0
    #: Index of each round's cluster, (n,); None if rounds are independent.
    clusters: IntArray | None = None


class RoundBatches(Protocol):
    """A log that can be read several times, batch by batch."""

    #: Number of rounds.
    n_rounds: int
    #: Number of arms, K.
    n_arms: int
    #: True if a round has one context per arm.
    has_arm_axis: bool

    def batches(self) -> Iterator[tuple[int, LoggedRounds]]:
        """Yield every batch with the index of its first row."""

    def read_contexts(self, indices: IntArray) -> AnyArray:
        """Return the contexts of the rows with these indices."""


class MemoryRounds:
    """The rounds of a log in memory, as one batch."""

    def __init__(self, rounds: LoggedRounds, n_arms: int, *, has_arm_axis: bool) -> None:
        self.n_rounds = len(rounds)
        self.n_arms = n_arms
        self.has_arm_axis = has_arm_axis
        self.rounds = rounds

    def batches(self) -> Iterator[tuple[int, LoggedRounds]]:
        yield 0, self.rounds

    def read_contexts(self, indices: IntArray) -> AnyArray:
        return self.rounds.contexts[indices]


class StreamedRounds:
    """The rounds of a log in Parquet files, read batch by batch in every pass."""

    def __init__(self, log: ParquetLog, *, progress: Progress | None = None) -> None:
        self.log = log
        self.n_rounds = len(log)
        self.n_arms = log.n_arms
        self.has_arm_axis = log.shared
        self._progress = progress
        self._rows_read = 0
        self._pass_number = 1

    def batches(self) -> Iterator[tuple[int, LoggedRounds]]:
        """Yield every batch with the index of its first row."""
        first_row = 0
        for part in self.log.parts():
            for batch in self.log.batches(part):
                yield first_row, batch
                first_row += len(batch.arms)
                self._report_progress(len(batch.arms))
        self._rows_read = 0
        self._pass_number = self._pass_number + 1

    def read_contexts(self, indices: IntArray) -> AnyArray:
        """Return the contexts of the rows with these indices."""
        batch_contexts = []
        for first_row, batch in self.batches():
            batch_indices = (
                indices[(indices >= first_row) & (indices < first_row + len(batch.arms))]
                - first_row
            )
            batch_contexts.append(batch.contexts[batch_indices])
        return np.concatenate(batch_contexts)

    def _report_progress(self, n_rows: int) -> None:
        """Report the progress after ``n_rows`` further rows."""
        self._rows_read += n_rows
        if self._progress is not None:
            self._progress(
                {"pass": self._pass_number, "rows": self._rows_read, "rows_total": len(self.log)}
            )


class FoldModels:
    """Reward models for cross-fitting: one for every fold, fitted to the other folds.

    Args:
        log: the log's rounds.
        seed: seed of the assignment of rounds to folds.
    """

    def __init__(self, log: RoundBatches, seed: int) -> None:
        _check_rows(log.n_rounds)
        first_batch = next(iter(log.batches()))[1]
        self._n_leading_axes = 2 if log.has_arm_axis else 1
        self._context_size = math.prod(first_batch.contexts.shape[self._n_leading_axes :])
        context_samples = []
        if needs_components(self._context_size):
            contexts_per_row = log.n_arms if log.has_arm_axis else 1
            context_bytes = first_batch.contexts[0].nbytes // contexts_per_row
            sampled_rows = np.unique(
                sample_rows(log.n_rounds * contexts_per_row, context_bytes) // contexts_per_row
            )
            context_samples = [log.read_contexts(sampled_rows).reshape(-1, self._context_size)]
        self._feature_map = build_feature_map(self._context_size, context_samples)
        features = self.compute_features(first_batch.contexts[:_SAMPLE_ROWS])
        n_models = 1 if log.has_arm_axis else log.n_arms
        mean_reward = float(first_batch.rewards.mean())
        sums = RewardSums(N_FOLDS, n_models, features.reshape(-1, features.shape[-1]), mean_reward)
        for first_row, batch in log.batches():
            features = self.compute_features(batch.contexts)
            arms = batch.arms
            if log.has_arm_axis:
                features = take_chosen(features, arms)
                arms = np.zeros(len(arms), np.int64)
            sums.add(features, _assign_folds(first_row, batch, seed), arms, batch.rewards)
        self._models: list[RewardModel] = [sums.fit([fold]) for fold in range(N_FOLDS)]

    def compute_features(self, contexts: AnyArray) -> FloatArray:
        """Return the features of contexts: (n, d), or (n, K, d) if there is one context per arm."""
        features = self._feature_map(contexts.reshape(-1, self._context_size))
        return features.reshape(*contexts.shape[: self._n_leading_axes], -1)

    def predict(self, contexts: AnyArray, folds: IntArray) -> FloatArray:
        """Return predicted rewards of every arm, (n, K), by the models that were fitted without the
        contexts' folds.
        """
        features = self.compute_features(contexts)
        (predictions,) = gather_rows(
            folds, lambda fold, rows: [self._models[fold].predict(features[rows])]
        )
        return predictions


def score_rounds(
    rounds: LoggedRounds, n_arms: int, *, has_arm_axis: bool = False, seed: int = 0
) -> FloatArray:
    """Return the doubly robust scores (n, K) of rounds in memory.

    With fewer than 10 rounds no models are fitted, and the mean reward is predicted for every arm.
    The score of an arm that was not offered is the logged reward, as if a policy that prefers this
    arm had to choose the logged arm.
    """
    if len(rounds) < 2 * N_FOLDS:
        predictions = np.full((len(rounds), n_arms), rounds.rewards.mean())
    else:
        models = FoldModels(MemoryRounds(rounds, n_arms, has_arm_axis=has_arm_axis), seed)
        predictions = models.predict(rounds.contexts, _assign_folds(0, rounds, seed))
    scores = compute_doubly_robust_scores(
        predictions, rounds.arms, rounds.rewards, rounds.propensities
    )
    return (
        scores
        if rounds.offered is None
        else np.where(rounds.offered, scores, rounds.rewards[:, None])
    )


def weigh_log(
    log: RoundBatches,
    compute_probabilities: ProbabilityFunction,
    models: FoldModels,
    seed: int,
) -> WeightedRounds:
    """Return the rewards, weights and predicted rewards of a log.

    ``compute_probabilities`` computes the policy's probabilities for a batch, and ``seed`` is the
    seed of ``models``.
    """
    rewards, weights, arm_predictions, policy_predictions = np.zeros((4, log.n_rounds))
    probability_sums = np.zeros(log.n_arms)
    arm_counts = np.zeros(log.n_arms, np.int64)
    clusters: list[IntArray] = []
    for first_row, batch in log.batches():
        rows = slice(first_row, first_row + len(batch))
        batch_probabilities = compute_probabilities(first_row, batch)
        rewards[rows] = batch.rewards
        weights[rows] = _compute_importance_weights(batch_probabilities, batch)
        predictions = models.predict(batch.contexts, _assign_folds(first_row, batch, seed))
        arm_predictions[rows] = take_chosen(predictions, batch.arms)
        policy_predictions[rows] = (batch_probabilities * predictions).sum(axis=1)
        if batch.clusters is not None:
            clusters.append(batch.clusters)
        probability_sums += batch_probabilities.sum(axis=0)
        arm_counts += np.bincount(batch.arms, minlength=log.n_arms)
    mean_probabilities = probability_sums / log.n_rounds
    return WeightedRounds(
        rewards,
        weights,
        arm_predictions,
        policy_predictions,
        mean_probabilities,
        arm_counts,
        clusters=np.unique(np.concatenate(clusters), return_inverse=True)[1] if clusters else None,
    )


def _assign_folds(first_row: int, batch: LoggedRounds, seed: int) -> IntArray:
    """Return the folds (n,) of a batch that starts at ``first_row``: by cluster if there are
    clusters.
    """
    if batch.clusters is None:
        return assign_folds(first_row, len(batch), N_FOLDS, seed)
    return (batch.clusters + seed) % N_FOLDS


def move_to_target(
    weighted_log: WeightedRounds,
    source_contexts: AnyArray,
    target_contexts: AnyArray,
    target_probabilities: FloatArray,
    models: FoldModels,
    seed: int,
) -> WeightedRounds:
    """Return the rounds of a log, weighted for the target.

    Weights are multiplied by the density ratios at the log's ``source_contexts`` (n, *C). The
    fields ``policy_predictions`` and ``mean_probabilities`` are computed for ``target_contexts``
    (m, *C), where the policy's probabilities are ``target_probabilities`` (m, K).
    """
    _check_rows(min(len(source_contexts), len(target_contexts)))
    source_folds = assign_folds(0, len(source_contexts), N_FOLDS, seed)
    target_folds = assign_folds(0, len(target_contexts), N_FOLDS, seed + 1)
    source_features, target_features = extract_features(source_contexts, target_contexts)
    density_ratios, mean_ratio = estimate_density_ratios(
        source_features, source_folds, target_features, target_folds
    )
    predictions = models.predict(target_contexts, target_folds)
    return weighted_log._replace(
        weights=weighted_log.weights * density_ratios,
        policy_predictions=(target_probabilities * predictions).sum(axis=1),
        mean_probabilities=target_probabilities.mean(axis=0),
        density_ratios=density_ratios,
        mean_ratio=mean_ratio,
    )


def _compute_importance_weights(probabilities: FloatArray, rounds: LoggedRounds) -> FloatArray:
    """Return the policy's probability of the logged arm, divided by its propensity, (n,)."""
    with np.errstate(over="ignore"):
        weights: FloatArray = take_chosen(probabilities, rounds.arms) / rounds.propensities
    is_too_large = ~(weights < _MAX_WEIGHT)
    if is_too_large.any():
        row = int(np.argmax(is_too_large))
        raise InvalidInput(
            f"log: the propensity {rounds.propensities[row]:g} gives a weight of"
            f" {weights[row]:.2g}, which is too large for an estimate; check that propensities are"
            " probabilities of the logged arm, and drop such rounds"
        )
    return weights


def _check_rows(n_rows: int) -> None:
    """Raise an error if ``n_rows`` rows are too few for cross-fitting."""
    if n_rows < 2 * N_FOLDS:
        raise InvalidInput(
            f"log and target must have at least {2 * N_FOLDS} rows each to fit models, got {n_rows}"
        )


class DensityRatio:
    """The ratio of the target density to the source density, estimated from samples of both.

    A logistic regression separates the two samples. Its odds, times the ratio of the sample sizes,
    estimate the ratio of the densities (Bickel, Bruckner, Scheffer 2009). Features are
    standardised. If there are enough contexts, squares and products are added, because the log
    ratio of two normal densities is quadratic.

    Args:
        source_features: features of source contexts, (n, d).
        target_features: features of target contexts, (m, d).
    """

    def __init__(self, source_features: FloatArray, target_features: FloatArray) -> None:
        # Imported here, because the import takes a second.
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures, StandardScaler

        n_features = source_features.shape[1]
        max_coefficients = min(len(source_features), len(target_features)) // _ROWS_PER_COEFFICIENT
        pipeline_steps: list[Any] = [StandardScaler()]
        if 1 + n_features + n_features * (n_features + 1) // 2 <= max_coefficients:
            pipeline_steps.append(PolynomialFeatures(2, include_bias=False))
        elif 1 + 2 * n_features <= max_coefficients:
            pipeline_steps.append(FunctionTransformer(lambda x: np.concatenate([x, x**2], axis=1)))
        pipeline_steps.append(
            LogisticRegression(solver="newton-cholesky", tol=1e-8, max_iter=_MAX_ITERATIONS)
        )
        is_target = np.repeat([0, 1], [len(source_features), len(target_features)])
        self._model = make_pipeline(*pipeline_steps).fit(
            np.concatenate([source_features, target_features]), is_target
        )
        self._log_size_ratio = math.log(len(source_features) / len(target_features))

    def __call__(self, features: FloatArray) -> FloatArray:
        """Return the ratio at contexts with these features, (n,)."""
        logits = np.clip(self._model.decision_function(features), -_MAX_LOGIT, _MAX_LOGIT)
        return np.exp(logits + self._log_size_ratio)


def estimate_density_ratios(
    source_features: FloatArray,
    source_folds: IntArray,
    target_features: FloatArray,
    target_folds: IntArray,
) -> tuple[FloatArray, float]:
    """Return the density ratio at source contexts (n,), scaled to a mean of 1, and its mean before
    scaling.

    The ratio at a context is estimated from the other folds of both samples. The mean is below 1 if
    the target has contexts that the source lacks.
    """
    density_ratios = np.empty(len(source_features))
    mean_ratio = 0.0
    for fold in np.unique(source_folds):
        is_held_out = source_folds == fold
        density_ratio = DensityRatio(
            source_features[~is_held_out], target_features[target_folds != fold]
        )
        fold_ratios = density_ratio(source_features[is_held_out])
        density_ratios[is_held_out] = fold_ratios / fold_ratios.mean()
        mean_ratio += float(fold_ratios.sum()) / len(source_features)
    return density_ratios, mean_ratio
