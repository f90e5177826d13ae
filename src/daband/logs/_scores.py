"""Compute ``Scores``: what a log says about the reward of every arm, in every round.

The score of arm a in round i is ``m(x_i, a) + 1{a = A_i} (r_i - m(x_i, a)) / p_i``. It is the
prediction m of a model, corrected by the reward r_i of the logged arm A_i with propensity p_i. If
the propensities are right, the mean score of an arm is an unbiased estimate of its value for any
model. A good model makes the variance small (Dudik, Langford, Li 2011). Models are cross-fitted: no
round is predicted by a model that has seen its reward. Scores depend on the split of rounds into
folds, so they are averaged over several splits. Folds do not depend on the order of rounds, so that
the same question has one answer: the value of an arm is the same number in ``evaluate_log`` and in
the report of a ``LogPolicy``.

All estimates from logs use these scores: ``evaluate_log``, the rewards of a log on which policies
are assessed, and the values, rules and tables of ``LogPolicy``.

A reward model is a name, or any regressor of scikit-learn, of which each arm gets a copy:

- "ridge": a ridge regression per arm.
- "piecewise", the default: a ridge regression per arm on piecewise linear functions of each column.
- "trees": gradient boosted trees per arm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from daband.base._arrays import AnyArray, FloatArray, IntArray, to_rows
from daband.base._folds import N_FOLDS, assign_folds
from daband.errors import InvalidInput
from daband.features._pca import PCA
from daband.features._piecewise import fit_ramps
from daband.logs._reward_sums import RewardSums
from daband.rounds._rounds import Rounds

#: A name of ``REWARD_MODELS``, or a regressor of scikit-learn.
RewardModel: TypeAlias = Any
#: The reward models that have a name.
REWARD_MODELS = ("ridge", "piecewise", "trees")
#: The number of random splits into folds, over which scores are averaged.
_N_SPLITS = 3
#: With more rounds there is one split: the noise of a split falls with the number of rounds.
_MAX_REPEATED_ROUNDS = 50_000
#: Maximum number of pieces per column of "piecewise".
_MAX_PIECES = 8
#: Minimum number of rounds of an arm for a regression that is not a sum; an arm with fewer rounds
#: is predicted by the mean reward.
_MIN_ROUNDS = 10
#: Maximum number of dimensions of a context; larger contexts are reduced to principal components.
_MAX_DIMENSIONS = 256
#: The number of principal components of larger contexts.
_N_COMPONENTS = 64
#: Maximum number of rows to which principal components are fitted.
_MAX_SAMPLE_ROWS = 4096
#: Maximum size of the sample of these rows, in bytes.
_MAX_SAMPLE_BYTES = 1 << 28


class Scores:
    """The scores of all arms in each of n rounds.

    Args:
        rounds: the rounds, with propensities.
        n_arms: the number of arms, K.
        model: the reward model.
        seed: determines the splits.
    """

    def __init__(
        self,
        rounds: Rounds,
        n_arms: int,
        *,
        model: RewardModel = "piecewise",
        seed: int = 0,
    ) -> None:
        self.rounds = rounds
        self._to_features = build_feature_map(rounds.contexts)
        features = self._to_features(rounds.contexts)
        if isinstance(model, str) and model == "piecewise" and len(rounds):
            self._ramps = fit_ramps(features, _MAX_PIECES)
            to_rows_map = self._to_features
            self._to_features = lambda contexts: self._ramps(to_rows_map(contexts))[:, 1:]
            features = self._ramps(features)[:, 1:]
        positions = np.argsort(sort_rounds(rounds))
        #: The scores of each split.
        self.splits = []
        for split_seed in list_split_seeds(len(rounds), seed):
            folds = assign_folds(len(rounds), seed=split_seed, clusters=rounds.clusters)
            folds = folds[positions] if rounds.clusters is None else folds
            self.splits.append(SplitScores(features, rounds, folds, n_arms, model))

    @cached_property
    def values(self) -> FloatArray:
        """The scores, averaged over the splits, (n, K).

        The score of an arm that was not offered is the logged reward, as if a policy that prefers
        this arm had to choose the logged arm.
        """
        rounds = self.rounds
        values: FloatArray = np.mean([split.compute() for split in self.splits], axis=0)
        if rounds.offered is None:
            return values
        return np.where(rounds.offered, values, rounds.rewards[:, None])

    @cached_property
    def predictions(self) -> FloatArray:
        """The rewards (n, K) that models predict which have not seen the round."""
        predictions: FloatArray = np.mean([split.predict() for split in self.splits], axis=0)
        return predictions

    def predict(self, contexts: AnyArray) -> FloatArray:
        """Return predicted rewards (m, K) for contexts (m, *C) of another domain."""
        features = self._to_features(contexts)
        return np.mean(
            [split.fit([fold])(features) for split in self.splits for fold in range(N_FOLDS)],
            axis=0,
        )


def list_split_seeds(n_rounds: int, seed: int) -> range:
    """Return the seeds of the splits into folds for n rounds."""
    n_splits = _N_SPLITS if n_rounds <= _MAX_REPEATED_ROUNDS else 1
    return range(_N_SPLITS * seed, _N_SPLITS * seed + n_splits)


class SplitScores:
    """The scores of one split of n rounds into folds.

    The model that predicts the rounds of a fold has not seen this fold. On request, it has not seen
    a second fold either, on which choices by the scores can then be evaluated.

    Args:
        features: the features of the contexts, (n, d).
        rounds: the rounds.
        folds: the fold of each round, (n,).
        n_arms: the number of arms, K.
        model: the reward model.
    """

    def __init__(
        self,
        features: FloatArray,
        rounds: Rounds,
        folds: IntArray,
        n_arms: int,
        model: RewardModel = "piecewise",
    ) -> None:
        self.folds = folds
        self._features = features
        self._rounds = rounds
        self._n_arms = n_arms
        self._mean_reward = float(rounds.rewards.mean()) if len(rounds) else 0.0
        self._regressor = _make_regressor(model)
        self._sums: RewardSums | None = None
        if len(rounds) >= 2 * N_FOLDS and self._regressor is None:
            self._sums = RewardSums(N_FOLDS, n_arms, features, self._mean_reward)
            self._sums.add(features, folds, rounds.arms, rounds.rewards, rounds.weights)

    def fit(self, excluded: Collection[int]) -> Callable[[FloatArray], FloatArray]:
        """Return a function from features (m, d) to predicted rewards (m, K), which is fitted to all
        folds except ``excluded``.

        With fewer than 10 rounds, the mean reward is predicted for every arm.
        """
        if self._sums is not None:
            return self._sums.fit(excluded).predict
        models = [] if self._regressor is None else self._fit_regressors(excluded)

        def predict(features: FloatArray) -> FloatArray:
            predictions = np.full((len(features), self._n_arms), self._mean_reward)
            for arm, model in enumerate(models):
                if model is not None and len(features):
                    predictions[:, arm] = model.predict(features)
            return predictions

        return predict

    def _fit_regressors(self, excluded: Collection[int]) -> Sequence[Any]:
        """Return a fitted copy of the regressor for each arm; None for arms with few rounds."""
        from sklearn.base import clone

        rounds = self._rounds
        is_included = ~np.isin(self.folds, list(excluded))
        models = []
        for arm in range(self._n_arms):
            rows = np.flatnonzero(is_included & (rounds.arms == arm))
            weights = {} if rounds.weights is None else {"sample_weight": rounds.weights[rows]}
            models.append(
                clone(self._regressor).fit(self._features[rows], rounds.rewards[rows], **weights)
                if len(rows) >= _MIN_ROUNDS
                else None
            )
        return models

    def fit_reward_theta(self, excluded: Collection[int]) -> FloatArray:
        """Return coefficients (K, 1 + d) of a ridge regression per arm, fitted to all folds except
        ``excluded``.
        """
        assert self._sums is not None
        return self._sums.fit(excluded).compute_theta()

    def predict(self, excluded: int | None = None) -> FloatArray:
        """Return predicted rewards (n, K) by models that have not seen the round's fold, nor the
        fold ``excluded``, whose own predictions are 0.
        """
        if self._sums is not None:
            return self._sums.predict_held_out(self._features, self.folds, excluded)
        predictions = np.zeros((len(self._features), self._n_arms))
        for fold in range(N_FOLDS):
            if fold != excluded:
                is_held_out = self.folds == fold
                model = self.fit({fold} if excluded is None else {fold, excluded})
                predictions[is_held_out] = model(self._features[is_held_out])
        return predictions

    def compute(self, excluded: int | None = None) -> FloatArray:
        """Return the scores (n, K).

        No model has seen the fold ``excluded``; the scores of its rounds are not valid.
        """
        rounds = self._rounds
        return compute_doubly_robust_scores(
            self.predict(excluded), rounds.arms, rounds.rewards, rounds.known_propensities
        )


def sort_rounds(rounds: Rounds) -> IntArray:
    """Return the indices of rounds in an order that depends on their columns only, (n,).

    Contexts are compared last, so that the order does not change if they are transformed. Target
    rounds come first.
    """
    n = len(rounds)
    signs = np.ones(n) if rounds.domains is None else np.where(rounds.domains, -1.0, 1.0)
    columns = [
        np.zeros(n) if column is None else column
        for column in (rounds.clusters, rounds.propensities)
    ]
    keys = [*columns, rounds.arms, rounds.rewards, signs * rounds.known_weights]
    return np.lexsort((*to_rows(rounds.contexts).T, *keys))


def compute_doubly_robust_scores(
    predictions: FloatArray, arms: IntArray, rewards: FloatArray, propensities: FloatArray
) -> FloatArray:
    """Return the scores (n, K) from predicted rewards (n, K) and logged arms, rewards and
    propensities (n,).
    """
    scores = predictions.copy()
    rows = np.arange(len(arms))
    scores[rows, arms] += (rewards - predictions[rows, arms]) / propensities
    return scores


def build_feature_map(contexts: AnyArray) -> Callable[[AnyArray], FloatArray]:
    """Return a function from contexts (n, *C) to features (n, d).

    Contexts with more than 256 dimensions become their first 64 principal components. These are
    fitted to at most 4,096 of ``contexts``, and about 256 MiB.
    """
    if math.prod(contexts.shape[1:]) <= _MAX_DIMENSIONS:
        return to_rows
    n_rows = min(_MAX_SAMPLE_ROWS, max(_N_COMPONENTS, _MAX_SAMPLE_BYTES // contexts[0].nbytes))
    sample = contexts[np.linspace(0, len(contexts) - 1, min(n_rows, len(contexts))).astype(int)]
    return PCA(min(_N_COMPONENTS, len(sample))).fit(sample)


def _make_regressor(model: RewardModel) -> Any:
    """Return the regressor of scikit-learn of a reward model; None if it is fitted from sums."""
    if isinstance(model, str):
        if model not in REWARD_MODELS:
            raise InvalidInput(
                f"the reward model must be one of {', '.join(REWARD_MODELS)}, or a regressor of"
                f" scikit-learn, got {model!r}"
            )
        if model != "trees":
            return None
        from sklearn.ensemble import HistGradientBoostingRegressor

        return HistGradientBoostingRegressor(max_iter=50, learning_rate=0.1, random_state=0)
    if not (hasattr(model, "fit") and hasattr(model, "predict")):
        raise InvalidInput(
            f"the reward model must have fit and predict, got {type(model).__name__}"
        )
    return model
