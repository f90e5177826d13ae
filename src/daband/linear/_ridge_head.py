"""Define the head of linear policies, which predicts rewards by ridge regressions on features.

LinUCB applies it to contexts, Neural-LinUCB and DABand to the features of an encoder. The head uses
the primal form (``_primal_ridge.py``) or the dual form (``_dual_ridge.py``), whichever is cheaper.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from daband.base._arguments import check_one_of
from daband.base._arrays import (
    AnyArray,
    BoolArray,
    FloatArray,
    IntArray,
    Mask,
    Weights,
    check_memory,
    to_floats,
)
from daband.errors import InvalidInput
from daband.linear._dual_ridge import DualRidge
from daband.linear._exploration import Decision, DrawFunction, Exploration, Scaling, join_decisions
from daband.linear._kernels import kernels, kernels_are_compiled
from daband.linear._primal_ridge import PrimalRidge, RidgeSums, check_norm
from daband.linear._reward_moments import RewardMoments

#: "disjoint" if every arm has its own regression, "shared" if all arms share one.
ArmModel = Literal["disjoint", "shared"]

#: Maximum size of the matrices of the primal form, in bytes.
_MAX_PRIMAL_BYTES = 4 << 30
#: Primal matrices with more bytes are avoided as long as the dual form is cheaper.
_SMALL_PRIMAL_BYTES = 1 << 30
#: Minimum dimension of the dual form. At 512 dimensions it was 2 to 7 times as fast, for rounds in
#: episodes of 64.
_MIN_DUAL_DIM = 512
#: Minimum dimension of the dual form if rounds are learned one at a time. At 512 dimensions it took
#: twice as long as the primal form after 1,000 rounds.
_MIN_DUAL_DIM_SINGLES = 1024
#: The cost of a multiplication in the primal form, relative to the dual form. Primal matrices do
#: not fit in the cache. The measured ratio is about 3 on images of 2,352 dimensions, which the dual
#: form multiplies in single precision.
_RELATIVE_PRIMAL_COST = 2.0
#: The number of rounds per block of an episode in the primal form.
_PRIMAL_BLOCK_ROUNDS = 64
#: The number of rounds per block in the dual form. Each block reads all stored contexts once, so
#: blocks are long.
_DUAL_BLOCK_ROUNDS = 256


def check_head_memory(*, n_arms: int, dim: int, arms: str, is_primal: bool) -> None:
    """Raise an error if a head without rounds does not fit in memory.

    In the primal form a regression has two d x d matrices and 32 pending rows. In the dual form it
    is small.
    """
    n_heads = n_arms if arms == "disjoint" else 1
    head_bytes = 8.0 * (2 * dim * dim + 36 * dim) if is_primal else 1000.0
    round_bytes = 8.0 * (8 * n_arms + (n_arms if arms == "shared" else 1) * dim)
    check_memory(n_heads * head_bytes + round_bytes, f"n_arms={n_arms} with {dim} features")


class RidgeHead:
    """Ridge regressions of the rewards of K arms on features of dimension d.

    Args:
        n_arms: the number of arms, K.
        dim: the number of features, d.
        arms: "disjoint" if features are (B, d) and every arm has its own regression; "shared" if
            features are (B, K, d) and all arms share one regression.
        ridge: the penalty.
        form: "primal" stores d x d matrices, "dual" stores the learned rounds. "auto" starts with
            the dual form if d is large, and changes to the primal form once that is cheaper and
            fits in memory.

    The squared norm of features to learn from may be at most ``MAX_SQUARED_NORM`` times the ridge.
    Larger ones raise ``InvalidInput`` and change nothing. ``score`` may run in several threads, but
    not while ``learn``, ``play`` or ``add_arm`` change the statistics. The policy holds a lock for
    this.
    """

    def __init__(self, *, n_arms: int, dim: int, arms: ArmModel, ridge: float, form: str) -> None:
        if not (np.isfinite(ridge) and ridge > 0):
            raise InvalidInput(f"ridge must be a finite number > 0, got {ridge}")
        check_one_of("form", form, ("auto", "primal", "dual"))
        check_one_of("arms", arms, ("disjoint", "shared"))
        check_head_memory(n_arms=n_arms, dim=dim, arms=arms, is_primal=form == "primal")
        self.dim = dim
        self._is_shared = arms == "shared"
        self.ridge = ridge
        self.form = form
        self._all_arms: BoolArray = np.ones((1, n_arms), np.bool_)
        n_heads = n_arms if arms == "disjoint" else 1
        is_large = dim >= _MIN_DUAL_DIM or not self._primal_fits(n_heads, _SMALL_PRIMAL_BYTES)
        is_dual = form == "dual" or (form == "auto" and is_large)
        self.statistics: PrimalRidge | DualRidge = (DualRidge if is_dual else PrimalRidge)(
            n_heads, dim, ridge
        )

    def score(
        self,
        features: AnyArray,
        *,
        centre: float = 0.0,
        scale: float = 1.0,
        with_bonuses: bool = True,
    ) -> tuple[FloatArray, FloatArray]:
        """Return predicted rewards and confidence bonuses of features (B, d) or (B, K, d), each (B,
        K).

        ``centre`` is the prior mean of a reward, ``scale`` the unit of a bonus. If not
        ``with_bonuses``, bonuses are 0.
        """
        rows = features.reshape(-1, self.dim) if self._is_shared else features
        mean, variance = self.statistics.score(rows, centre=centre, with_bonuses=with_bonuses)
        bonus = np.sqrt(variance, out=variance)
        if scale != 1.0:
            bonus *= scale
        return mean.reshape(len(features), -1), bonus.reshape(len(features), -1)

    def decide_row(
        self,
        features: AnyArray,
        exploration: Exploration,
        scaling: Scaling,
        key: np.uint64,
        round_number: int,
        available: Mask,
    ) -> Decision | None:
        """Score one row and choose its arm in one compiled call.

        Return None if that is not supported.

        ``scaling`` is (centre, scale) as in ``score``. ``key`` and ``round_number`` determine the
        random draws.
        """
        statistics = self.statistics
        has_kernel = (
            not self._is_shared and exploration.rule != "thompson" and kernels_are_compiled()
        )
        if not (has_kernel and isinstance(statistics, PrimalRidge)):
            return None
        row = (
            features
            if features.dtype == np.float64 and features.flags.c_contiguous
            else to_floats(features)
        )
        inverse, theta, n_arms = statistics.inverse, statistics.theta, len(statistics.theta)
        predictions = np.empty((2, 1, n_arms))
        arms = np.empty(1, np.int64)
        propensities = np.empty(1)
        if self._all_arms.shape[1] != n_arms:
            self._all_arms = np.ones((1, n_arms), np.bool_)
        mask = self._all_arms if available is None else available
        settings = (exploration.bonus_factor, exploration.epsilon, key)
        results = (predictions, arms, propensities)
        kernels.decide_one(inverse, theta, row, mask, scaling, settings, round_number, results)
        return Decision(arms, propensities, predictions[0], predictions[1])

    def get_chosen_features(self, features: AnyArray, arms: IntArray) -> tuple[AnyArray, IntArray]:
        """Return the features (B, d) of each round's arm, and the index of its regression, (B,)."""
        if not self._is_shared:
            return features, arms
        return features[np.arange(len(features)), arms], np.zeros(len(arms), np.int64)

    def learn(
        self, features: AnyArray, arms: IntArray, rewards: FloatArray, weights: Weights = None
    ) -> None:
        """Learn rounds: features as in ``score``, and the arm, reward and weight of each round,
        (B,).

        A round of weight w counts w times in the regression, and once in ``counts``.
        """
        features, arms = self.get_chosen_features(features, arms)
        self.statistics.update(*_weight_rounds(features, arms, rewards, weights))
        if isinstance(self.statistics, DualRidge):
            self._convert_if_cheaper(len(features))

    def play(
        self,
        features: AnyArray,
        rewards: FloatArray,
        *,
        exploration: Exploration,
        draw_from: Callable[[int], DrawFunction],
        moments: RewardMoments,
        available: Mask = None,
        weights: Weights = None,
    ) -> Decision:
        """Choose arms and learn round by round, and return the decisions.

        ``rewards`` (B, K) are those of all arms.

        All features are known beforehand, so the expensive part is a few matrix products for the
        whole episode. The loop over rounds only corrects means and bonuses of the remaining rounds.
        The cost of these corrections grows with the square of the number of rounds, so long
        episodes are split into blocks. ``draw_from(row)`` returns the function that draws for the
        rounds from this row on. ``moments`` is updated with the rewards.
        """
        n, n_arms = rewards.shape
        check_norm(features, self.ridge)
        mask = np.ones((n, n_arms), np.bool_) if available is None else available
        round_weights = np.ones(n) if weights is None else weights
        decisions = []
        start = 0
        while start < n:
            stop = start + (
                _DUAL_BLOCK_ROUNDS
                if isinstance(self.statistics, DualRidge)
                else _PRIMAL_BLOCK_ROUNDS
            )
            stop = n if n - stop == 1 else stop  # a block of one round may change the form
            rows = slice(start, stop)
            arrays = features[rows], rewards[rows], round_weights[rows], mask[rows]
            decisions.append(self._play_block(*arrays, exploration, draw_from(start), moments))
            start = stop
        return join_decisions(decisions)

    def _play_block(
        self,
        features: AnyArray,
        rewards: FloatArray,
        weights: FloatArray,
        available: BoolArray,
        exploration: Exploration,
        draw: DrawFunction,
        moments: RewardMoments,
    ) -> Decision:
        """Play the n rounds of one block: ``features``, ``rewards`` (n, K), ``weights`` (n,),
        ``available`` (n, K).
        """
        n, n_arms = rewards.shape
        rows = features.reshape(n * n_arms, self.dim) if self._is_shared else features
        products, contexts, has_covariances, means, variances = self.statistics.start_episode(rows)
        means = means.reshape(2, n, n_arms)
        variances = variances.reshape(n, n_arms)
        episode = products, contexts, has_covariances, means, variances
        settings = (
            exploration.draw_bonus_factors(n, n_arms, draw),
            available,
            exploration.epsilon,
            draw(n, 2),
        )
        results = arms, propensities, scalings = (
            np.empty(n, np.int64),
            np.empty(n),
            np.empty((n, 2)),
        )
        reward_moments = moments.state()
        standardise = moments.standardise
        kernels.play_episode(
            episode,
            self._is_shared,
            settings,
            rewards,
            weights,
            reward_moments,
            standardise,
            results,
        )
        chosen_rewards = rewards[np.arange(n), arms]
        self.learn(features, arms, chosen_rewards, None if (weights == 1).all() else weights)
        moments.restore(reward_moments)
        centre = scalings[:, :1]
        scale = scalings[:, 1:]
        mean = (means[0] - centre * means[1]) / scale
        bonus = np.sqrt(variances)
        propensities = exploration.correct_propensities(arms, propensities, mean, bonus, available)
        return Decision(arms, propensities, centre + scale * mean, scale * bonus)

    def without_rounds(self) -> RidgeHead:
        """Return a head with the same settings that has learned no rounds."""
        empty_head = copy.copy(self)
        empty_head.statistics = type(self.statistics)(self.statistics.n_heads, self.dim, self.ridge)
        return empty_head

    @property
    def counts(self) -> IntArray:
        """The number of learned rounds of each regression, (heads,)."""
        return self.statistics.counts

    def make_empty_sums(self) -> RidgeSums:
        """Return ``RidgeSums`` for this head, without any rounds."""
        return RidgeSums(self.statistics.n_heads, self.dim)

    def with_sums(self, sums: RidgeSums) -> RidgeHead:
        """Return a copy that has also learned the rounds of these sums."""
        statistics = copy.deepcopy(self.to_primal("the log cannot be learned"))
        statistics.add_sums(sums)
        head = copy.copy(self)
        head.statistics = statistics
        return head

    def check_primal_fits(self) -> None:
        """Raise an error if ``make_empty_sums`` would not fit in memory."""
        if not self._primal_fits(self.statistics.n_heads, _MAX_PRIMAL_BYTES):
            raise InvalidInput(
                f"sums over rounds do not fit in memory: there are {self.dim} features and"
                f" {self.statistics.n_heads} regressions; reduce the contexts, e.g. by"
                " transform=daband.PCA(64)"
            )

    def add_arm(self) -> None:
        """Add an arm without rounds."""
        if not self._is_shared:
            self.statistics.add_heads(1)

    def state(self, *, with_rounds: bool = True) -> dict[str, AnyArray]:
        """Return all arrays needed to continue bit for bit.

        If not ``with_rounds``, no single context is in them.
        """
        statistics = self.statistics
        if isinstance(statistics, DualRidge) and with_rounds:
            return {f"dual.{name}": array for name, array in statistics.state().items()}
        if isinstance(statistics, DualRidge):
            statistics = self.to_primal("replay=False is not possible")
        return {
            f"primal.{name}": array
            for name, array in statistics.state(with_rounds=with_rounds).items()
        }

    def to_primal(self, problem: str) -> PrimalRidge:
        """Return the statistics in the primal form.

        They are converted if the head uses the dual form.

        If the primal form does not fit in memory, raise an error that starts with ``problem``.
        """
        statistics = self.statistics
        if isinstance(statistics, PrimalRidge):
            return statistics
        if not self._primal_fits(statistics.n_heads, _MAX_PRIMAL_BYTES):
            raise InvalidInput(
                f"{problem}: with {self.dim} features the statistics have the dual form, which"
                " stores the contexts themselves; reduce the contexts, e.g. by"
                " transform=daband.PCA(64)"
            )
        return statistics.to_primal()

    def freeze(self, moments: RewardMoments) -> tuple[FloatArray, FloatArray]:
        """Return copies of theta (heads, d) and of the inverse of A (heads, d, d).

        Predictions by this theta are in the unit of ``moments``: minus their centre, divided by
        their scale.
        """
        statistics = self.to_primal("the policy cannot be exported")
        return (
            statistics.compute_coefficients(moments.centre) / moments.scale,
            statistics.inverse.copy(),
        )

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore the arrays that ``state`` returned."""
        is_dual = any(name.startswith("dual.") for name in state)
        arrays = {name.split(".", 1)[1]: array for name, array in state.items()}
        statistics = (DualRidge if is_dual else PrimalRidge)(
            self.statistics.n_heads, self.dim, self.ridge
        )
        statistics.restore(arrays)
        self.statistics = statistics

    def _primal_fits(self, n_heads: int, max_bytes: int) -> bool:
        """Return True if the primal matrices of this many heads have at most ``max_bytes``
        bytes.
        """
        return 2 * n_heads * self.dim * self.dim * 8 <= max_bytes

    def _convert_if_cheaper(self, n_rounds: int) -> None:
        """Convert dual statistics to the primal form if that is cheaper.

        The last update had ``n_rounds`` rounds.
        """
        if self.form != "auto" or isinstance(self.statistics, PrimalRidge):
            return
        n_heads = self.statistics.n_heads
        is_cheaper = (
            self.statistics.compute_decision_cost()
            > _RELATIVE_PRIMAL_COST * n_heads * float(self.dim) ** 2
        )
        learns_singles = n_rounds == 1 and self.dim < _MIN_DUAL_DIM_SINGLES
        if (is_cheaper and self._primal_fits(n_heads, _MAX_PRIMAL_BYTES)) or (
            learns_singles and self._primal_fits(n_heads, _SMALL_PRIMAL_BYTES)
        ):
            self.statistics = self.statistics.to_primal()


def _weight_rounds(
    features: AnyArray, head_indices: IntArray, rewards: FloatArray, weights: Weights
) -> tuple[AnyArray, IntArray, FloatArray]:
    """Return features (B, d), the indices of heads (B,) and targets (B, 2).

    Targets are rewards and ones.

    Features and targets are multiplied by the square roots of the weights. So a round counts by its
    weight in every product of the two.
    """
    targets = (
        np.array([[rewards.item(), 1.0]])
        if len(rewards) == 1
        else np.stack([rewards, np.ones(len(rewards))], 1)
    )
    if weights is None:
        return features, head_indices, targets
    weight_roots = np.sqrt(weights)[:, None]
    return to_floats(features) * weight_roots, head_indices, targets * weight_roots


class EpisodeScores:
    """The predicted rewards and bonuses of an episode's rounds by several heads, updated after each
    round.

    The features of all rounds are known beforehand. So their covariances under each regression are
    a few matrix products, and each learned round corrects the remaining ones by a rank-one update.
    The heads themselves do not change; they learn all rounds after the episode. Arms must be
    disjoint.

    Args:
        heads: the heads, all with the same arms.
        features: the features (n, d) of all rounds, for each head.
    """

    def __init__(self, heads: Sequence[RidgeHead], features: Sequence[AnyArray]) -> None:
        n_rounds = len(features[0])
        n_arms = heads[0].statistics.n_heads
        self._means = np.empty((2, len(heads), n_rounds, n_arms))
        self._variances = np.empty((len(heads), n_rounds, n_arms))
        self._covariances = np.empty((len(heads), n_arms, n_rounds, n_rounds))
        for index, (head, head_features) in enumerate(zip(heads, features, strict=True)):
            episode = head.statistics.start_episode(head_features)
            products, contexts, has_covariances, self._means[:, index], self._variances[index] = (
                episode
            )
            self._covariances[index] = (
                products if has_covariances else np.matmul(products, contexts.T)
            )

    def score(
        self, row: int, *, centre: float | FloatArray = 0.0, scale: float | FloatArray = 1.0
    ) -> tuple[FloatArray, FloatArray]:
        """Return the predicted rewards and bonuses of a row, (heads, K) each.

        ``centre`` and ``scale`` are as in ``RidgeHead.score``, or arrays that broadcast to (heads,
        K).
        """
        mean, predicted_ones = self._means[:, :, row]
        return centre + mean - centre * predicted_ones, scale * np.sqrt(self._variances[:, row])

    def learn(self, row: int, arm: int, reward: float, weight: float = 1.0) -> None:
        """Update the predictions of all later rows, after ``arm`` was chosen in ``row`` with this
        reward and weight.
        """
        later = slice(row + 1, None)
        covariance = self._covariances[:, arm]
        row_covariance = covariance[:, row, later]
        gain = weight * row_covariance / (1.0 + weight * covariance[:, row, row, None])
        for mean, target in zip(self._means, (reward, 1.0), strict=True):
            mean[:, later, arm] += gain * (target - mean[:, row, arm, None])
        covariance[:, later, later] -= gain[:, :, None] * row_covariance[:, None, :]
        self._variances[:, later, arm] = np.maximum(
            covariance.diagonal(axis1=1, axis2=2)[:, later], 0.0
        )
