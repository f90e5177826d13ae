"""The head of every policy that is linear in some features: ridge statistics, in primal or dual form.

LinUCB applies it to contexts, Neural-LinUCB and DABand to the features of an encoder.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from daband._arguments import one_of
from daband._arrays import AnyArray, BoolArray, FloatArray, IntArray, Mask, Weights, check_memory, unit_scale
from daband.errors import InvalidInput
from daband.linear._dual_ridge import DualRidge
from daband.linear._exploration import Decision, Exploration, UniformDraws, join_decisions
from daband.linear._kernels import kernels, kernels_are_compiled
from daband.linear._primal_ridge import PrimalRidge, RidgeSums, check_norm
from daband.linear._reward_moments import RewardMoments

ArmModel = Literal["disjoint", "shared"]

_PRIMAL_LIMIT_BYTES = 4 << 30
#: Primal matrices of more bytes are avoided as long as the dual form is cheaper.
_SMALL_PRIMAL_BYTES = 1 << 30
#: Minimum dimension of the dual form. It was 2 to 7 times as fast at 512 for rounds in episodes of 64.
_DUAL_FROM_DIM = 512
#: Minimum dimension of the dual form for rounds one at a time. At 512 it took twice as long after 1,000 rounds.
_DUAL_SINGLES_FROM_DIM = 1024
#: The cost of a primal multiplication, in units of a dual one: primal matrices do not fit in a cache.
#: The measured cost is about three on images of 2,352 dimensions, which the dual form multiplies in single precision.
_PRIMAL_COST = 2.0
_PRIMAL_BLOCK = 64
_DUAL_BLOCK = 256  # each block reads all stored contexts once, so blocks are few and long


def check_head_memory(*, n_arms: int, dim: int, arms: str, primal: bool) -> None:
    """Raise an error if a head does not fit in memory: two d x d matrices and 32 pending rows per regression.

    In the dual form an empty regression is small, so the number of regressions and one round's arrays count.
    """
    heads = n_arms if arms == "disjoint" else 1
    each = 8.0 * (2 * dim * dim + 36 * dim) if primal else 1000.0
    one_round = 8.0 * (8 * n_arms + (n_arms if arms == "shared" else 1) * dim)
    check_memory(heads * each + one_round, f"n_arms={n_arms} with {dim} features")


class RidgeHead:
    """Ridge regressions for K arms over features of dimension ``dim``, in the cheaper form.

    With ``arms="disjoint"`` features are (B, d) and every arm has its own regression; with "shared" they are (B, K, d)
    and one regression serves all arms. ``form`` "dual" works in the space of rounds, "primal" in the space of features;
    "auto" starts dual if the dimension is large and changes to primal once that is cheaper and fits in memory.

    Contexts to learn from may have a squared norm of at most ``LARGEST_SQUARE`` times the ridge; larger ones raise
    ``InvalidInput`` and change nothing. ``score`` may run in several threads, but not while ``learn``, ``play`` or
    ``add_arm`` change the statistics; the policy holds a lock.
    """

    def __init__(self, *, n_arms: int, dim: int, arms: ArmModel, ridge: float, form: str) -> None:
        if not (np.isfinite(ridge) and ridge > 0):
            raise InvalidInput(f"ridge must be a finite number > 0, got {ridge}")
        one_of("form", form, ("auto", "primal", "dual"))
        one_of("arms", arms, ("disjoint", "shared"))
        check_head_memory(n_arms=n_arms, dim=dim, arms=arms, primal=form == "primal")
        self.dim = dim
        self.arms = arms
        self.ridge = ridge
        self.form = form
        self._all_arms: BoolArray = np.ones((1, n_arms), np.bool_)
        heads = n_arms if arms == "disjoint" else 1
        self.statistics: PrimalRidge | DualRidge
        large = dim >= _DUAL_FROM_DIM or not self._primal_fits(heads, _SMALL_PRIMAL_BYTES)
        dual = form == "dual" or (form == "auto" and large)
        self.statistics = (DualRidge if dual else PrimalRidge)(heads, dim, ridge)

    def score(
        self, features: AnyArray, *, centre: float = 0.0, scale: float = 1.0, bonuses: bool = True
    ) -> tuple[FloatArray, FloatArray]:
        """Return predicted rewards and confidence bonuses, (B, K) each; bonuses are 0 without ``bonuses``.

        ``centre`` is the prior mean of a reward, ``scale`` the unit of a bonus.
        """
        rows = features.reshape(-1, self.dim) if self.arms == "shared" else features
        mean, variance = self.statistics.score(rows, centre=centre, widths=bonuses)
        bonus = np.sqrt(variance, out=variance)
        if scale != 1.0:
            bonus *= scale
        return mean.reshape(len(features), -1), bonus.reshape(len(features), -1)

    def decide_row(
        self,
        features: AnyArray,
        exploration: Exploration,
        unit: tuple[float, float],
        key: np.uint64,
        first_round: int,
        available: Mask,
    ) -> Decision | None:
        """Score one row and choose its arm in one compiled call, as ``score`` and ``exploration`` do, or return None.

        ``unit`` is (centre, scale); ``key`` is the key of the draws.
        """
        statistics = self.statistics
        fits = self.arms == "disjoint" and isinstance(statistics, PrimalRidge) and exploration.rule != "thompson"
        if not (fits and kernels_are_compiled()):
            return None
        row = features if features.dtype == np.float64 and features.flags.c_contiguous else unit_scale(features)
        n_arms = len(statistics.theta)  # type: ignore[union-attr]
        scored, arm, propensity = np.empty((2, 1, n_arms)), np.empty(1, np.int64), np.empty(1)
        if self._all_arms.shape[1] != n_arms:
            self._all_arms = np.ones((1, n_arms), np.bool_)
        mask = self._all_arms if available is None else available
        rule = exploration.optimism, exploration.epsilon, key
        both = statistics.inverse, statistics.theta  # type: ignore[union-attr]
        kernels.decide_one(both, row, mask, unit, rule, first_round, scored, (arm, propensity))
        return Decision(arm, propensity, scored[0], scored[1])

    def predict(self, features: AnyArray, arms: IntArray, *, centre: float = 0.0) -> FloatArray:
        """Return the predicted reward of one arm in each row, (B,)."""
        features, arms = self.chosen_features(features, arms)
        if isinstance(self.statistics, DualRidge):
            mean: FloatArray = self.statistics.score(features, centre=centre, widths=False)[0]
            return mean[np.arange(len(arms)), arms]
        return centre + np.einsum("bd,bd->b", unit_scale(features), self.statistics.coefficients(centre)[arms])

    def chosen_features(self, features: AnyArray, arms: IntArray) -> tuple[AnyArray, IntArray]:
        """Return the features (B, d) of each round's arm, and the index of its regression, (B,)."""
        if self.arms == "disjoint":
            return features, arms
        return features[np.arange(len(features)), arms], np.zeros(len(arms), np.int64)

    def learn(self, features: AnyArray, arms: IntArray, rewards: FloatArray, weights: Weights = None) -> None:
        """Learn from rounds: features as in ``score``, the chosen arm of each round and its reward.

        A round of weight w (B,) counts w times in A and in Z'r; ``counts`` counts it once.
        """
        features, arms = self.chosen_features(features, arms)
        self.statistics.update(*_weigh(features, arms, rewards, weights))
        if isinstance(self.statistics, DualRidge):
            self._change_form(len(features))

    def play(
        self,
        features: AnyArray,
        rewards: FloatArray,
        *,
        exploration: Exploration,
        draws: Callable[[int], UniformDraws],
        moments: RewardMoments,
        available: Mask = None,
        weights: Weights = None,
    ) -> Decision:
        """Decide and learn round by round, exactly; ``rewards`` (B, K) holds the reward of every arm.

        All features are known beforehand, so the expensive part is a few matrix products for the whole episode. The
        loop over rounds only corrects means and variances of the remaining rounds. Long episodes are split into blocks,
        since these corrections grow with the square of the block length. ``draws`` returns the draws from a row on;
        ``moments`` learn the rewards.
        """
        n, n_arms = rewards.shape
        check_norm(features, self.ridge)
        mask = np.ones((n, n_arms), np.bool_) if available is None else available
        counted = np.ones(n) if weights is None else weights
        parts = []
        start = 0
        while start < n:
            stop = start + (_DUAL_BLOCK if isinstance(self.statistics, DualRidge) else _PRIMAL_BLOCK)
            stop = n if n - stop == 1 else stop  # a block of one round would change the form
            rows = slice(start, stop)
            rule = exploration, draws(start), mask[rows]
            parts.append(self._play_block(features[rows], rewards[rows], counted[rows], rule, moments))
            start = stop
        return join_decisions(parts)

    def _play_block(
        self,
        features: AnyArray,
        rewards: FloatArray,
        weights: FloatArray,
        rule: tuple[Exploration, UniformDraws, BoolArray],
        moments: RewardMoments,
    ) -> Decision:
        (n, n_arms), (exploration, draws, available) = rewards.shape, rule
        flat = features if self.arms == "disjoint" else features.reshape(n * n_arms, self.dim)
        products, contexts, direct, means, variance = self.statistics.episode(flat)
        means, variance = means.reshape(2, n, n_arms), variance.reshape(n, n_arms)
        arms, propensity, units = np.empty(n, np.int64), np.empty(n), np.empty((n, 2))
        running = moments.state()
        kernels.play_episode(
            (products, contexts, direct, self.arms == "shared"),
            (means, variance),
            (exploration.multiplier(n, n_arms, draws), available, exploration.epsilon, draws(n, 2)),
            (rewards, weights),
            (running, moments.standardise),
            (arms, propensity, units),
        )
        received = rewards[np.arange(n), arms]
        self.learn(
            features if self.arms == "shared" else flat, arms, received, None if (weights == 1).all() else weights
        )
        moments.restore(running)
        centre, scale = units[:, :1], units[:, 1:]
        mean, bonus = (means[0] - centre * means[1]) / scale, np.sqrt(variance)
        propensity = exploration.propensities(arms, propensity, mean, bonus, available)
        return Decision(arms, propensity, centre + scale * mean, scale * bonus)

    def without_rounds(self) -> RidgeHead:
        """Return the same head without any rounds."""
        other = copy.copy(self)
        other.statistics = type(self.statistics)(self.statistics.n_heads, self.dim, self.ridge)
        return other

    @property
    def counts(self) -> IntArray:
        """The number of rounds that each regression has learned from."""
        return self.statistics.counts

    def empty_sums(self) -> RidgeSums:
        """Return sums without a round."""
        return RidgeSums(self.statistics.n_heads, self.dim)

    def with_sums(self, sums: RidgeSums) -> PrimalRidge:
        """Return new statistics that have also learned the rounds of these sums."""
        statistics = copy.deepcopy(self.primal("the log cannot be learned"))
        statistics.add_sums(sums)
        return statistics

    def check_primal_fits(self) -> None:
        """Raise an error if the head's statistics are too large for sums over rounds."""
        if not self._primal_fits(self.statistics.n_heads, _PRIMAL_LIMIT_BYTES):
            raise InvalidInput(
                f"sums over rounds cannot be had here: with {self.dim} features and {self.statistics.n_heads} "
                "regressions they take too much memory; put a transform in front, e.g. daband.PCA(64)"
            )

    def add_arm(self) -> None:
        """Add an arm without rounds."""
        if self.arms == "disjoint":
            self.statistics.add_heads(1)

    def state(self, *, rounds: bool = True) -> dict[str, AnyArray]:
        """Return all arrays needed to continue bit for bit; without ``rounds``, they contain no single context."""
        statistics = self.statistics
        if isinstance(statistics, DualRidge) and rounds:
            return {f"dual.{name}": array for name, array in statistics.state().items()}
        if isinstance(statistics, DualRidge):
            statistics = self.primal("replay=False cannot be had here")
        return {f"primal.{name}": array for name, array in statistics.state(rounds=rounds).items()}

    def primal(self, refusal: str) -> PrimalRidge:
        """Return the statistics in the space of features: the head's own, or dual ones converted to a new object.

        If they do not fit in memory, raise an error that starts with ``refusal``.
        """
        statistics = self.statistics
        if isinstance(statistics, PrimalRidge):
            return statistics
        if not self._primal_fits(statistics.n_heads, _PRIMAL_LIMIT_BYTES):
            raise InvalidInput(
                f"{refusal}: with {self.dim} features the statistics are kept in the dual form, which is made of the "
                "contexts themselves; put a transform in front, e.g. daband.PCA(64)"
            )
        return statistics.to_primal()

    def frozen(self, moments: RewardMoments, *, widths: bool = True) -> tuple[FloatArray, FloatArray]:
        """Return copies of theta (heads, d) and the inverse of A (heads, d, d); without ``widths`` it is (heads, 0, 0).

        Predictions by this theta are in the unit of ``moments``: minus their centre, divided by their scale.
        """
        if not widths:
            statistics: PrimalRidge | DualRidge = self.statistics
            inverse = np.zeros((statistics.n_heads, 0, 0))
        else:
            statistics = self.primal("the policy cannot be exported")
            inverse = statistics.inverse.copy()
        return statistics.coefficients(moments.centre) / moments.scale, inverse

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore the state; the number of arms is taken from the statistics."""
        dual = any(name.startswith("dual.") for name in state)
        arrays = {name.split(".", 1)[1]: array for name, array in state.items()}
        statistics = (DualRidge if dual else PrimalRidge)(self.statistics.n_heads, self.dim, self.ridge)
        statistics.restore(arrays)
        self.statistics = statistics

    def _primal_fits(self, heads: int, limit: int) -> bool:
        return 2 * heads * self.dim * self.dim * 8 <= limit

    def _change_form(self, rounds: int) -> None:
        """Change dual statistics, which have just learned this many rounds, to primal ones if these are cheaper."""
        if self.form != "auto" or isinstance(self.statistics, PrimalRidge):
            return
        heads = self.statistics.n_heads
        cheaper = self.statistics.cost_per_round() > _PRIMAL_COST * heads * float(self.dim) ** 2
        singles = rounds == 1 and self.dim < _DUAL_SINGLES_FROM_DIM
        if (cheaper and self._primal_fits(heads, _PRIMAL_LIMIT_BYTES)) or (
            singles and self._primal_fits(heads, _SMALL_PRIMAL_BYTES)
        ):
            self.statistics = self.statistics.to_primal()


def _weigh(
    features: AnyArray, heads: IntArray, rewards: FloatArray, weights: Weights
) -> tuple[AnyArray, IntArray, FloatArray]:
    """Return rounds (B, d), heads and targets (B, 2) whose ridge statistics count the given rounds by weight."""
    targets = np.array([[rewards.item(), 1.0]]) if len(rewards) == 1 else np.stack([rewards, np.ones(len(rewards))], 1)
    if weights is None:
        return features, heads, targets
    root = np.sqrt(weights)[:, None]
    return unit_scale(features) * root, heads, targets * root


# Several ridge heads on different features of the same contexts.


class EpisodeScores:
    """Predicted rewards and bonuses of rounds under several heads, (heads, B, K) each, updated as rounds are learned.

    The features of all rounds are known beforehand. So their covariances under each regression are a few matrix
    products, and each learned round corrects the remaining ones by a rank-one update. The heads themselves learn all
    rounds at the end. Arms must be disjoint.
    """

    def __init__(self, heads: Sequence[RidgeHead], features: Sequence[AnyArray]) -> None:
        n_rounds, n_arms = len(features[0]), heads[0].statistics.n_heads
        self._mean = np.empty((2, len(heads), n_rounds, n_arms))
        self._variance = np.empty((len(heads), n_rounds, n_arms))
        self._covariance = np.empty((len(heads), n_arms, n_rounds, n_rounds))
        for index, (head, part) in enumerate(zip(heads, features, strict=True)):
            products, contexts, direct, self._mean[:, index], self._variance[index] = head.statistics.episode(part)
            self._covariance[index] = products if direct else np.matmul(products, contexts.T)

    def score(
        self, row: int, *, centre: float | FloatArray = 0.0, scale: float | FloatArray = 1.0
    ) -> tuple[FloatArray, FloatArray]:
        """Return the predicted rewards and bonuses of a row, (heads, K) each."""
        mean, ones = self._mean[:, :, row]
        return centre + mean - centre * ones, scale * np.sqrt(self._variance[:, row])

    def learn(self, row: int, arm: int, reward: float, weight: float = 1.0) -> None:
        """Correct the rows after ``row``, in which this arm was played, and which counts ``weight`` times."""
        rest = slice(row + 1, None)
        covariance = self._covariance[:, arm]
        column = covariance[:, row, rest]
        gain = weight * column / (1.0 + weight * covariance[:, row, row, None])
        for mean, target in zip(self._mean, (reward, 1.0), strict=True):
            mean[:, rest, arm] += gain * (target - mean[:, row, arm, None])
        covariance[:, rest, rest] -= gain[:, :, None] * column[:, None, :]
        self._variance[:, rest, arm] = np.maximum(covariance.diagonal(axis1=1, axis2=2)[:, rest], 0.0)
