"""Fit hybrid LinUCB: one ridge regression on products of context and arm features, with an
intercept for each arm.

Li, Chu, Langford, Schapire: "A contextual-bandit approach to personalized news article
recommendation" (2010). A context x with d features becomes [x / sqrt(d), 1]; an arm's vector ends
with a 1. The features of a context with an arm are all products of the two, followed by one column
per arm: 0.3 for this arm and 0 for the others. The coefficient of an arm's column is its *effect*,
an intercept. So the mean reward of an arm with many rounds is learned from these rounds, and the
mean reward of a new arm is predicted from its features. Standardised contexts x / sqrt(d) and the
arms' vectors have norms of about 1, so contexts, arm features and their products contribute equally
to the prior variance of a prediction. Full products with this scale were better than low-rank and
hashed products on the development half of the data sets (benchmarks/records/split.json).

Penalties are first equal for all coefficients. ``fit_penalties`` then estimates a penalty for the
coefficients of contexts, of arm features and products, and of effects, and the variance of the
noise, by maximising the marginal likelihood of the rewards (MacKay: "Bayesian interpolation",
1992). If arm features do not predict rewards, their coefficients shrink to 0, and the arms' effects
do not.

For a given arm the regression is linear in the context. It is therefore equivalent to one
regression per arm (``compute_arm_heads``), which decides quickly. A log can be learned from sums
over the rounds of each arm (``compute_joint_sums``).
"""

from __future__ import annotations

import copy
import functools
import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from daband.base._arrays import (
    AnyArray,
    Arrays,
    FloatArray,
    IntArray,
    Scores,
    Weights,
    check_memory,
    read_array,
    to_floats,
    to_rows,
)
from daband.linear._predictor import Predictor, compute_ridge_scores, is_large, select_arms
from daband.linear._reward_moments import RewardMoments
from daband.linear._ridge import Ridge, RidgeSums
from daband.linear._ridge_head import RidgeHead

#: The prior standard deviation of an arm's effect, in standard deviations of rewards, before
#: penalties are fitted.
_EFFECT_SCALE = 0.3
#: The number of iterations of ``fit_penalties``.
_N_FIT_ITERATIONS = 10
#: The smallest and the largest fitted penalty, as multiples of the ridge.
_PENALTY_RANGE = (1e-3, 1e6)
#: Maximum number of effects. With more arms, several arms share an effect, so that the regression
#: stays small.
_MAX_EFFECTS = 1024
#: Maximum number of contexts that are scored one by one, without a regression per arm.
MAX_SINGLE_ROWS = 4
#: Maximum number of weights in the regressions of all arms that a predictor stores (128 MiB).
_MAX_CACHED_WEIGHTS = 1 << 24


def append_one(contexts: FloatArray, scale: float = 1.0) -> FloatArray:
    """Return contexts (n, d) as [scale * x / sqrt(d), 1], (n, d + 1)."""
    rows = np.ones((len(contexts), contexts.shape[1] + 1))
    np.multiply(contexts, scale / np.sqrt(contexts.shape[1]), out=rows[:, :-1])
    return rows


def count_effects(n_arms: int) -> int:
    """Return the number of effects for this many arms."""
    return min(n_arms, _MAX_EFFECTS)


def _get_effect_indices(indices: IntArray, n_products: int) -> IntArray:
    """Return the feature indices of the effects of arms with these ``indices``; ``n_products``
    products come first.
    """
    return n_products + indices % _MAX_EFFECTS


def compute_arm_heads(
    theta: FloatArray,
    inverse: FloatArray | None,
    vectors: FloatArray,
    indices: IntArray,
    dim: int,
    new_effect_variance: float,
) -> tuple[FloatArray, FloatArray | None]:
    """Return a regression on ``append_one(x)`` for each arm: theta (K, d + 1), inverse (K, d + 1, d
    + 1) or None.

    Args:
        theta: the coefficients of the joint regression, (F,).
        inverse: the inverse of its Gram matrix, (F, F); None to compute theta only.
        vectors: the vectors of the arms, (K, m).
        indices: the index of each arm in the joint regression, (K,); -1 for a new arm, which has no
            effect.
        dim: the number of context features, d.
        new_effect_variance: the prior variance of the effect of an arm without rounds.
    """
    n_columns = dim + 1
    n_arm_features = vectors.shape[1]
    is_known = indices >= 0
    shape = (n_columns, n_arm_features)
    n_products = n_columns * n_arm_features
    arm_theta = vectors @ theta[:n_products].reshape(shape).T
    effects = _get_effect_indices(indices[is_known], n_products)
    arm_theta[is_known, -1] += _EFFECT_SCALE * theta[effects]
    if inverse is None:
        return arm_theta, None
    inverse_blocks = inverse[:n_products, :n_products].reshape(*shape, *shape).transpose(0, 2, 1, 3)
    vector_products = (vectors[:, :, None] * vectors[:, None, :]).reshape(len(vectors), -1)
    arm_inverses = (vector_products @ inverse_blocks.reshape(n_columns**2, -1).T).reshape(
        -1, n_columns, n_columns
    )
    effect_columns = inverse[:n_products, effects].reshape(*shape, -1)
    covariances = _EFFECT_SCALE * np.einsum("ijk,kj->ki", effect_columns, vectors[is_known])
    arm_inverses[is_known, :, -1] += covariances
    arm_inverses[is_known, -1, :] += covariances
    arm_inverses[is_known, -1, -1] += _EFFECT_SCALE**2 * inverse[effects, effects]
    arm_inverses[~is_known, -1, -1] += _EFFECT_SCALE**2 * new_effect_variance
    return arm_theta, arm_inverses


def score_context(
    theta: FloatArray,
    inverse: FloatArray | None,
    context: FloatArray,
    vectors: FloatArray,
    indices: IntArray,
    new_effect_variance: float,
) -> Scores:
    """Return means and variances (K,) for one row of ``append_one``, (d + 1,).

    The other arguments are as in ``compute_arm_heads``.
    """
    n_columns = len(context)
    n_arm_features = vectors.shape[1]
    is_known = indices >= 0
    n_products = n_columns * n_arm_features
    effects = _get_effect_indices(indices[is_known], n_products)
    mean = vectors @ (context @ theta[:n_products].reshape(n_columns, n_arm_features))
    mean[is_known] += _EFFECT_SCALE * theta[effects]
    if inverse is None:
        return mean, np.zeros_like(mean)
    context_inverse = (context @ inverse[:n_products].reshape(n_columns, -1)).reshape(
        n_arm_features, -1
    )
    arm_inverse = context @ context_inverse[:, :n_products].reshape(
        n_arm_features, n_columns, n_arm_features
    )
    variance = np.einsum("kj,kj->k", vectors @ arm_inverse, vectors)
    variance[is_known] += (
        2.0 * _EFFECT_SCALE * np.einsum("kj,jk->k", vectors[is_known], context_inverse[:, effects])
    )
    variance[is_known] += _EFFECT_SCALE**2 * inverse[effects, effects]
    variance[~is_known] += _EFFECT_SCALE**2 * new_effect_variance
    return mean, np.maximum(variance, 0.0, out=variance)


def compute_joint_sums(sums: RidgeSums, vectors: FloatArray) -> RidgeSums:
    """Return the sums of the joint regression, computed from ``sums`` over each arm's rounds on
    ``append_one(x)``.

    ``vectors`` (K, m) are the vectors of the arms.
    """
    (n_arms, n_arm_features), n_columns = vectors.shape, sums.dim
    n_products = n_columns * n_arm_features
    joint = RidgeSums(1, n_products + count_effects(n_arms))
    vector_products = (vectors[:, :, None] * vectors[:, None, :]).reshape(n_arms, -1)
    products = (sums.gram.reshape(n_arms, -1).T @ vector_products).reshape(
        n_columns, n_columns, n_arm_features, -1
    )
    joint.gram[0, :n_products, :n_products] = products.transpose(0, 2, 1, 3).reshape(
        n_products, n_products
    )
    effects = _get_effect_indices(np.arange(n_arms), n_products)
    effect_rows = _EFFECT_SCALE * (sums.gram[:, :, -1:] * vectors[:, None, :]).reshape(
        n_arms, n_products
    )
    np.add.at(joint.gram[0, :, :n_products], effects, effect_rows)
    joint.gram[0, :n_products, n_products:] = joint.gram[0, n_products:, :n_products].T
    np.add.at(joint.gram[0], (effects, effects), _EFFECT_SCALE**2 * sums.gram[:, -1, -1])
    joint.b[0, :, :n_products] = np.einsum("krd,km->rdm", sums.b, vectors).reshape(2, n_products)
    np.add.at(joint.b[0].T, effects, _EFFECT_SCALE * sums.b[:, :, -1])
    joint.counts[0] = sums.counts.sum()
    joint.reward_moments = sums.reward_moments
    return joint


@dataclass(frozen=True, eq=False, kw_only=True)
class JointPredictor(Predictor):
    """A regression on products of contexts (n, d) and arm vectors (K, m), with an effect per arm."""

    kind: ClassVar[str] = "joint"
    #: The coefficients of rewards minus ``centre``, (F,).
    theta: FloatArray
    #: The number of context features, d.
    n_inputs: int
    #: A^-1, (F, F); None for bonuses of 0.
    inverse: FloatArray | None
    #: The vectors of the arms, (K, m).
    vectors: FloatArray
    #: The index of each arm in the regression, (K,); -1 for an arm without rounds.
    arms: IntArray
    #: The prior mean of rewards.
    centre: float
    #: The largest unit of bonuses, which is that of an arm without rounds.
    scale: float
    #: The unit of each arm of the regression, divided by ``scale``, (N,).
    unit_ratios: FloatArray
    #: The factor of contexts.
    context_scale: float
    #: The prior variance of the effect of an arm without rounds, as in ``inverse``.
    new_effect_variance: float

    def score(self, features: AnyArray, with_bonuses: bool = True) -> Scores:
        rows = append_one(to_rows(features), self.context_scale)
        if len(rows) > MAX_SINGLE_ROWS or "_all_heads" in vars(self):
            mean, variance = compute_ridge_scores(*self.get_arm_heads(with_bonuses), rows)
        else:
            inverse = self.inverse if with_bonuses else None
            arms = self.vectors, self.arms
            scores = [
                score_context(self.theta, inverse, row, *arms, self.new_effect_variance)
                for row in rows
            ]
            mean, variance = (np.stack(column) for column in zip(*scores, strict=True))
        ratios = np.where(self.arms < 0, 1.0, self.unit_ratios[self.arms])
        return self.centre + mean, self.scale * ratios * np.sqrt(variance)

    def get_arm_heads(self, with_bonuses: bool) -> tuple[FloatArray, FloatArray | None]:
        """Return the regression of each arm on ``append_one(x)``, as ``compute_arm_heads`` does."""
        n_weights = len(self.vectors) * (self.n_inputs + 1) ** 2
        if with_bonuses and n_weights <= _MAX_CACHED_WEIGHTS:
            return self._all_heads
        if not with_bonuses and "_all_heads" in vars(self):
            return self._all_heads[0], None
        return self._compute_heads(with_bonuses)

    @functools.cached_property
    def _all_heads(self) -> tuple[FloatArray, FloatArray | None]:
        """The regression of each arm. Once it is computed, single contexts are scored by it too."""
        return self._compute_heads(with_bonuses=True)

    def _compute_heads(self, with_bonuses: bool) -> tuple[FloatArray, FloatArray | None]:
        """Return the regression of each arm."""
        inverse = self.inverse if with_bonuses else None
        regression = self.theta, inverse, self.vectors, self.arms, self.n_inputs
        return compute_arm_heads(*regression, self.new_effect_variance)

    def for_arms(self, indices: IntArray, vectors: FloatArray) -> Self:
        return replace(self, arms=select_arms(self.arms, indices), vectors=vectors)

    @property
    def uses_arm_features(self) -> bool:
        return True

    @property
    def has_bonuses(self) -> bool:
        return self.inverse is not None

    def without_large_inverses(self) -> Self:
        return replace(self, inverse=None) if is_large(self.inverse) else self


class JointHead(RidgeHead):
    """One ridge regression on contexts (B, d) and arm vectors (K, m).

    Args:
        vectors: the vectors of the arms, (K, m). The last number of each is 1.
        dim: the number of context features, d.
        ridge: the penalty of all coefficients, before ``fit_penalties``.
        has_unit_norm: True if contexts have norm 1, like the features of a network. They are then
            multiplied by sqrt(d), so that their values have about the size of standardised values.
    """

    def __init__(
        self, *, vectors: FloatArray, dim: int, ridge: float, has_unit_norm: bool = False
    ) -> None:
        n_features = (dim + 1) * vectors.shape[1] + count_effects(len(vectors))
        check_memory(
            24.0 * n_features * n_features, f"{n_features:,} products of contexts and arm features"
        )
        super().__init__(n_arms=1, dim=n_features, arms="disjoint", ridge=ridge)
        self._plays_blocks = False
        self.dim = dim
        self.vectors = vectors
        #: The factor of contexts.
        self._context_scale = math.sqrt(dim) if has_unit_norm else 1.0
        #: Penalties of coefficients of contexts, of arm features and products, and of effects.
        self.penalties: FloatArray = np.full(3, ridge)
        #: The variance of rewards around predictions, in units of the rewards' variance.
        self.noise_variance = 1.0
        #: The number of rounds at the last ``fit_penalties``.
        self._n_fitted_rounds = 0.0
        #: The sum of the weights of each arm's rounds, (K,).
        self._arm_weights: FloatArray = np.zeros(len(vectors))

    @property
    def counts(self) -> IntArray:
        """The sum of the weights of each arm's rounds, rounded, (K,)."""
        return np.rint(self._arm_weights).astype(np.int64)

    @property
    def n_units(self) -> int:
        return len(self.vectors)

    @property
    def _n_products(self) -> int:
        """The number of products of a context with an arm."""
        return (self.dim + 1) * self.vectors.shape[1]

    def _get_penalty_groups(self) -> IntArray:
        """Return the index (F,) in ``penalties`` of each coefficient's penalty."""
        n_arm_features = self.vectors.shape[1]
        groups = np.full(self.statistics.dim, 2)
        groups[: self._n_products] = (
            np.arange(self._n_products) % n_arm_features < n_arm_features - 1
        )
        return groups

    def fit_penalties(self, moments: RewardMoments) -> None:
        """Fit the penalties and the noise to the learned rounds, with these ``moments`` of their
        rewards.

        Nothing changes with fewer rounds than coefficients, or until the rounds have doubled since
        the last fit. Each iteration sets the penalty of a group of coefficients to the noise times
        its degrees of freedom, divided by the sum of its squared coefficients.
        """
        n_rounds = moments.total_weight
        if n_rounds < max(self.statistics.dim, 2.0 * self._n_fitted_rounds):
            return
        groups = self._get_penalty_groups()
        group_sizes = np.bincount(groups, minlength=3)
        gram = self.statistics.gram[0]
        b = (self.statistics.b[0, 0] - moments.centre * self.statistics.b[0, 1]) / moments.scale
        squared_differences = (
            moments.squared_differences + n_rounds * (moments.mean - moments.centre) ** 2
        )
        reward_squares = squared_differences / moments.scale**2
        for _ in range(_N_FIT_ITERATIONS):
            A_inv = np.linalg.inv(gram + np.diag(self.penalties[groups]))
            theta = A_inv @ b
            degrees_of_freedom = group_sizes - self.penalties * np.bincount(
                groups, A_inv.diagonal(), minlength=3
            )
            theta_squares = np.maximum(np.bincount(groups, theta * theta, minlength=3), 1e-12)
            residual_squares = reward_squares - 2.0 * theta @ b + theta @ gram @ theta
            residual_squares = max(residual_squares, 1e-6 * reward_squares, 1e-12)
            self.noise_variance = float(
                residual_squares / max(n_rounds - degrees_of_freedom.sum(), 1.0)
            )
            optimal_penalties = (
                self.noise_variance * np.maximum(degrees_of_freedom, 1e-9) / theta_squares
            )
            old_penalties = self.penalties
            self.penalties = self.ridge * np.clip(optimal_penalties / self.ridge, *_PENALTY_RANGE)
            if np.abs(np.log(self.penalties / old_penalties)).max() < 0.05:
                break
        self.statistics.set_penalties(self.penalties[groups])
        self._n_fitted_rounds = n_rounds

    def predictor(self, centre: float, scale: float | FloatArray) -> JointPredictor:
        units = np.broadcast_to(scale, len(self.vectors))
        largest_unit = float(units.max())
        return JointPredictor(
            theta=self.statistics.compute_coefficients(centre)[0],
            n_inputs=self.dim,
            inverse=self.statistics.A_inv[0],
            vectors=self.vectors,
            arms=np.arange(len(self.vectors)),
            centre=centre,
            scale=largest_unit * math.sqrt(self.noise_variance),
            unit_ratios=units / largest_unit,
            context_scale=self._context_scale,
            new_effect_variance=1.0 / float(self.penalties[2]),
        )

    def _to_context_rows(self, features: AnyArray) -> FloatArray:
        """Return contexts (B, d) as ``append_one`` does, (B, d + 1), multiplied by
        ``_context_scale``.
        """
        return append_one(to_floats(features), self._context_scale)

    def learn(
        self,
        features: AnyArray,
        arms: IntArray,
        rewards: FloatArray,
        weights: Weights = None,
        *,
        target_moments: RewardMoments | None = None,
    ) -> None:
        contexts = self._to_context_rows(features)
        n_products = self._n_products
        rows = np.zeros((len(contexts), self.statistics.dim))
        products = contexts[:, :, None] * self.vectors[arms][:, None, :]
        rows[:, :n_products] = products.reshape(len(contexts), -1)
        rows[np.arange(len(contexts)), _get_effect_indices(arms, n_products)] = _EFFECT_SCALE
        heads = np.zeros(len(rows), np.int64)
        self._learn_rows(rows, heads, rewards, weights, target_moments)
        np.add.at(self._arm_weights, arms, 1.0 if weights is None else weights)

    def add_arm(self, vector: FloatArray | None = None) -> None:
        assert vector is not None
        n_old_effects = count_effects(len(self.vectors))
        self.vectors = np.vstack([self.vectors, vector])
        self._arm_weights = np.append(self._arm_weights, 0.0)
        n_new_effects = count_effects(len(self.vectors)) - n_old_effects
        self.statistics.add_features(np.full(n_new_effects, self.penalties[2]))
        if self.worth is not None:
            self.worth.pad(n_heads=0, n_features=n_new_effects)

    # Sums over the rounds of a log.

    def without_rounds(self) -> JointHead:
        empty_head = copy.copy(self)
        empty_head.statistics = Ridge(1, self.statistics.dim, self.ridge)
        empty_head.statistics.set_penalties(self.penalties[self._get_penalty_groups()])
        empty_head.worth = None
        empty_head._arm_weights = np.zeros(len(self.vectors))
        return empty_head

    def make_empty_sums(self) -> RidgeSums:
        """Return ``RidgeSums`` with a sum for each arm, without any rounds."""
        return RidgeSums(len(self.vectors), self.dim + 1)

    def get_chosen_features(self, features: AnyArray, arms: IntArray) -> tuple[AnyArray, IntArray]:
        """Return the features (B, d + 1) for ``make_empty_sums``, and the index of the sum for each
        round, (B,).
        """
        return self._to_context_rows(features), arms

    def with_sums(self, sums: RidgeSums) -> JointHead:
        head = super().with_sums(compute_joint_sums(sums, self.vectors))
        head._arm_weights = self._arm_weights + sums.gram[:, -1, -1]  # the last feature is 1
        return head

    def predict_held_out(
        self,
        features: AnyArray,
        arms: IntArray,
        rewards: FloatArray,
        weights: FloatArray,
        folds: tuple[IntArray, IntArray],
    ) -> FloatArray:
        """Return predicted rewards (n, K) of logged rounds, by regressions that have not seen them.

        ``folds`` are the folds of the rounds (n,) and of the arms (K,). The regression for fold f
        has seen neither its rounds nor a round of its arms, which are thus new arms for it.
        """
        predictions = np.zeros((len(arms), len(self.vectors)))
        round_folds, arm_folds = folds
        for fold in np.unique(round_folds):
            is_held_out = round_folds == fold
            is_seen = (round_folds != fold) & (arm_folds[arms] != fold)
            sums = self.make_empty_sums()
            sums.add(
                *self.get_chosen_features(features[is_seen], arms[is_seen]),
                rewards[is_seen],
                weights[is_seen],
            )
            head = self.without_rounds().with_sums(sums)
            centre = sums.reward_moments.centre
            predictions[is_held_out], _ = head.score(
                features[is_held_out], centre=centre, with_bonuses=False
            )
        return predictions

    # Files.

    def state(self) -> Arrays:
        fitted_values = np.array([*self.penalties, self.noise_variance, self._n_fitted_rounds])
        return {
            **super().state(),
            "fitted": fitted_values,
            "arm_weights": self._arm_weights,
        }

    def restore(self, state: Arrays) -> None:
        fitted_values = read_array(state, "fitted", np.empty(5))
        arm_weights = read_array(state, "arm_weights", self._arm_weights)
        if not (fitted_values[:4] > 0).all():
            raise ValueError(f"penalties and noise must be positive, got {fitted_values[:4]}")
        super().restore(state)
        self.penalties = fitted_values[:3]
        self.statistics.penalties = self.penalties[self._get_penalty_groups()]
        self.noise_variance = float(fitted_values[3])
        self._n_fitted_rounds = float(fitted_values[4])
        self._arm_weights = arm_weights
