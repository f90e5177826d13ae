"""Define the head of linear policies, which predicts rewards by ridge regressions on features.

LinUCB applies it to contexts, Neural-LinUCB and DABand to the features of an encoder.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from daband.base._arguments import check_one_of
from daband.base._arrays import (
    AnyArray,
    Arrays,
    FloatArray,
    IntArray,
    Mask,
    Scores,
    Weights,
    add_prefix,
    check_memory,
    drop_prefix,
    take_chosen,
    to_floats,
)
from daband.errors import InvalidInput
from daband.linear._draws import DrawFunction
from daband.linear._exploration import Decision, Exploration, join_decisions
from daband.linear._predictor import Predictor, RidgePredictor
from daband.linear._reward_moments import RewardMoments
from daband.linear._ridge import Ridge, RidgeSums, check_norm, weight_rounds
from daband.linear._source_worth import SourceWorth, WorthEstimate

#: The number of rounds whose predictions ``play`` computes at once. The cost of correcting them
#: grows with the square of this number.
BLOCK_ROUNDS = 64


class RidgeHead:
    """Ridge regressions of the rewards of K arms on features of dimension d.

    Args:
        n_arms: the number of arms, K.
        dim: the number of features, d.
        arms: "disjoint" if features are (B, d) and every arm has its own regression; "shared" if
            features are (B, K, d) and all arms share one regression.
        ridge: the penalty.

    The squared norm of features to learn from may be at most ``MAX_SQUARED_NORM`` times the ridge.
    Larger ones raise ``InvalidInput`` and change nothing. ``score`` may run in several threads, but
    not while ``learn``, ``play`` or ``add_arm`` change the statistics. The policy holds a lock for
    this.
    """

    def __init__(self, *, n_arms: int, dim: int, arms: str, ridge: float) -> None:
        if not (np.isfinite(ridge) and ridge > 0):
            raise InvalidInput(f"ridge must be a finite number > 0, got {ridge}")
        check_one_of("arms", arms, ("disjoint", "shared"))
        self.dim = dim
        self.ridge = ridge
        #: The fixed worth of a source round in the target; None to learn it.
        self.fixed_worth: float | None = None
        #: The worth of source rounds; None before the first target round.
        self.worth: SourceWorth | None = None
        self._is_shared = arms == "shared"
        #: True if ``play`` updates the scores of a block of rounds; False if it plays one by one.
        self._plays_blocks = not self._is_shared
        n_heads = n_arms if arms == "disjoint" else 1
        check_memory(
            16.0 * n_heads * dim * dim,
            f"n_arms={n_arms} with {dim} features (transform=daband.PCA(64) reduces them)",
        )
        self.statistics = Ridge(n_heads, dim, ridge)

    @property
    def counts(self) -> IntArray:
        """The number of learned rounds of each regression, (heads,)."""
        return self.statistics.counts

    def score(
        self,
        features: AnyArray,
        *,
        centre: float = 0.0,
        scale: float | FloatArray = 1.0,
        with_bonuses: bool = True,
    ) -> Scores:
        """Return predicted rewards and confidence bonuses of features (B, d) or (B, K, d), each (B,
        K).

        ``centre`` is the prior mean of a reward, ``scale`` the unit of a bonus, or the unit of each
        arm (``n_units``,). If not ``with_bonuses``, bonuses are 0.
        """
        return self.predictor(centre, scale).score(features, with_bonuses)

    @property
    def n_units(self) -> int:
        """The number of arms whose bonuses have separate units."""
        return self.statistics.n_heads

    def predictor(self, centre: float, scale: float | FloatArray) -> Predictor:
        """Return the predictor of features (B, d) or (B, K, d), with views of the learned arrays.

        ``centre`` and ``scale`` are as in ``score``.
        """
        ridge = self.statistics
        theta = ridge.compute_coefficients(centre)
        return RidgePredictor(theta=theta, inverse=ridge.A_inv, centre=centre, scale=scale)

    def get_chosen_features(self, features: AnyArray, arms: IntArray) -> tuple[AnyArray, IntArray]:
        """Return the features (B, d) of each round's arm, and the index of its regression, (B,)."""
        if not self._is_shared:
            return features, arms
        return take_chosen(features, arms), np.zeros(len(arms), np.int64)

    def learn(
        self,
        features: AnyArray,
        arms: IntArray,
        rewards: FloatArray,
        weights: Weights = None,
        *,
        target_moments: RewardMoments | None = None,
    ) -> None:
        """Learn rounds: features as in ``score``, and the arm, reward and weight of each round,
        (B,).

        A round of weight w counts w times in the regression, and once in ``counts``. For target
        rounds, ``target_moments`` are the moments of all earlier rewards. Target rounds determine
        the worth of source rounds (``SourceWorth``).
        """
        rows, heads = self.get_chosen_features(features, arms)
        self._learn_rows(rows, heads, rewards, weights, target_moments)

    def _learn_rows(
        self,
        z: AnyArray,
        heads: IntArray,
        rewards: FloatArray,
        weights: Weights,
        target_moments: RewardMoments | None,
    ) -> None:
        """Learn rounds: the features (B, d) of the chosen arms, and the head of each round, (B,)."""
        if target_moments is None and self.worth is None:  # no target round was learned yet
            self.statistics.update(z, heads, rewards, weights)
            return
        z = to_floats(z)
        check_norm(weight_rounds(z, rewards, weights)[0], self.ridge)
        if target_moments is None:
            sums = RidgeSums(self.statistics.n_heads, self.statistics.dim)
            sums.add(z, heads, rewards, weights)
            self._add_source(sums)
            return
        if self.worth is None:
            self.worth = SourceWorth(self.statistics, target_moments, self.fixed_worth)
            self.worth.start(self.statistics)
        self._learn_target(self.worth, z, heads, rewards, weights)

    def _add_source(self, sums: RidgeSums) -> None:
        """Learn source rounds from their sums, with the present worth of a source round."""
        self.statistics.add_sums(sums, 1.0 if self.worth is None else self.worth.base_worth)
        if self.worth is not None:
            self.worth.add_source(sums)

    def _learn_target(
        self,
        worth: SourceWorth,
        z: FloatArray,
        heads: IntArray,
        rewards: FloatArray,
        weights: Weights,
    ) -> None:
        """Learn target rounds, and fit the worth of source rounds whenever it is due."""
        start = 0
        while start < len(rewards):
            rows = slice(start, start + worth.rounds_to_fit)
            rounds = z[rows], heads[rows], rewards[rows], None if weights is None else weights[rows]
            worth.add_target(*rounds[2:])
            self.statistics.update(*rounds)
            if worth.rounds_to_fit == 0:
                worth.fit(self.statistics)
            start = rows.stop

    def estimate_worth(self) -> WorthEstimate:
        """Return how much source rounds count."""
        if self.worth is None:
            return WorthEstimate(1.0, float(self.counts.sum()))
        return self.worth.estimate

    def get_block_length(self, *, is_target: bool) -> int:
        """Return the maximum number of rounds that may be played with ``BlockScores``.

        A block ends when the worth of source rounds may change.
        """
        if not is_target:
            return BLOCK_ROUNDS
        return min(BLOCK_ROUNDS, 1 if self.worth is None else self.worth.rounds_to_fit)

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
        is_target: bool = False,
    ) -> Decision:
        """Choose arms and learn round by round, and return the decisions.

        ``rewards`` (B, K) are those of all arms. ``draw_from(row)`` returns the function that draws
        for the rounds from this row on. ``moments`` is updated with the rewards. Rounds are played
        in blocks (``BlockScores``) if every arm has its own regression, otherwise one by one. A
        block has at most 64 rounds, and ends when the worth of source rounds may change.
        """
        check_norm(features.reshape(-1, self.dim), self.ridge)
        decisions: list[Decision] = []
        while len(decisions) < len(rewards):
            start = len(decisions)
            n_rounds = self.get_block_length(is_target=is_target) if self._plays_blocks else 1
            block = slice(start, start + n_rounds)
            scores = BlockScores([self], [features[block]]) if self._plays_blocks else None
            target_moments = copy.copy(moments) if is_target else None
            for row in range(*block.indices(len(rewards))):
                rows = slice(row, row + 1)
                centre, units = moments.centre, moments.compute_units(self.n_units)
                if scores is None:
                    mean, bonus = self.score(features[rows], centre=centre, scale=units)
                else:
                    mean, bonus = scores.score(row - start, centre=centre, scale=units)
                mask = None if available is None else available[rows]
                scaling = moments.make_scaling(units)
                decision = exploration.decide(mean, bonus, draw_from(row), mask, scaling)
                reward = rewards[rows, decision.arm[0]]
                weight = None if weights is None else weights[rows]
                if scores is not None:
                    scores.learn(row - start, decision.arm, reward, weight)
                moments.add(reward, 0 * decision.arm if self._is_shared else decision.arm, weight)
                decisions.append(decision)
            arms = np.concatenate([decision.arm for decision in decisions[start:]])
            self.learn(
                features[block],
                arms,
                take_chosen(rewards[block], arms),
                None if weights is None else weights[block],
                target_moments=target_moments,
            )
        return join_decisions(decisions)

    def fit_penalties(self, moments: RewardMoments) -> None:
        """Do nothing: the penalty is fixed. ``JointHead`` fits its penalties."""

    def add_arm(self, vector: FloatArray | None = None) -> None:  # noqa: ARG002
        """Add an arm without rounds. ``vector`` (m,) has its features, for ``JointHead``."""
        if not self._is_shared:
            self.statistics.add_heads(1)
            if self.worth is not None:
                self.worth.pad(n_heads=1, n_features=0)

    # Sums over the rounds of a log.

    def without_rounds(self) -> Self:
        """Return a head with the same settings that has learned no rounds."""
        empty_head = copy.copy(self)
        empty_head.statistics = Ridge(self.statistics.n_heads, self.dim, self.ridge)
        empty_head.worth = None
        return empty_head

    def make_empty_sums(self) -> RidgeSums:
        """Return ``RidgeSums`` for this head, without any rounds."""
        return RidgeSums(self.statistics.n_heads, self.dim)

    def with_sums(self, sums: RidgeSums) -> Self:
        """Return a copy that has also learned the source rounds of these sums."""
        head = copy.copy(self)
        head.statistics = copy.deepcopy(self.statistics)
        head.worth = copy.deepcopy(self.worth)
        head._add_source(sums)
        return head

    # Files.

    def state(self) -> Arrays:
        """Return all arrays needed to continue bit for bit. No single context is in them."""
        arrays = add_prefix("primal.", self.statistics.state())
        if self.worth is not None:
            arrays |= add_prefix("worth.", self.worth.state())
        return arrays

    def restore(self, state: Arrays) -> None:
        """Restore the arrays that ``state`` returned."""
        statistics = Ridge(self.statistics.n_heads, self.statistics.dim, self.ridge)
        statistics.restore(drop_prefix("primal.", state))
        worth = None
        if arrays := drop_prefix("worth.", state):
            worth = SourceWorth(statistics, RewardMoments(standardise=True), self.fixed_worth)
            worth.restore(arrays)
        self.statistics = statistics
        self.worth = worth


class BlockScores:
    """The predicted rewards and bonuses of a block of rounds by several heads, updated after each
    round.

    The features of all rounds are known beforehand. So their covariances under each regression are
    a few matrix products, and each learned round corrects the remaining ones by a rank-one update.
    The heads themselves do not change; they learn all rounds after the block. Arms must be
    disjoint.

    Args:
        heads: the heads, all with the same arms.
        features: the features (n, d) of all rounds, for each head.
    """

    def __init__(self, heads: Sequence[RidgeHead], features: Sequence[AnyArray]) -> None:
        means, covariances = [], []
        for head, rows in zip(heads, map(to_floats, features), strict=True):
            ridge = head.statistics
            means.append(np.matmul(rows, ridge.theta.transpose(1, 2, 0)))
            covariances.append(np.matmul(np.matmul(rows, ridge.A_inv), rows.T))
        #: The predictions of rewards and of ones, (2, heads, n, K).
        self._means = np.stack(means, axis=1)
        #: The covariances z'A^-1 z of the rounds for each arm, (heads, K, n, n).
        self._covariances = np.stack(covariances)

    def score(
        self, row: int, *, centre: float | FloatArray = 0.0, scale: float | FloatArray = 1.0
    ) -> Scores:
        """Return the predicted rewards and bonuses of a row, (heads, K) each.

        ``centre`` and ``scale`` are as in ``RidgeHead.score``, or arrays that broadcast to (heads,
        K).
        """
        mean, predicted_ones = self._means[:, :, row]
        variance = np.maximum(self._covariances[:, :, row, row], 0.0)
        return centre + mean - centre * predicted_ones, scale * np.sqrt(variance)

    def learn(self, row: int, arm: IntArray, reward: FloatArray, weight: Weights = None) -> None:
        """Update the predictions of all later rows, after ``arm`` (1,) was chosen in ``row`` with
        this reward (1,) and weight (1,).
        """
        later = slice(row + 1, None)
        covariance = self._covariances[:, arm[0]]
        row_covariance = covariance[:, row, later]
        round_weight = 1.0 if weight is None else weight
        gain = row_covariance * (
            round_weight / (1.0 + round_weight * covariance[:, row, row, None])
        )
        targets = np.array([reward[0], 1.0])[:, None]
        errors = targets - self._means[:, :, row, arm[0]]
        self._means[:, :, later, arm[0]] += gain * errors[:, :, None]
        covariance[:, later, later] -= gain[:, :, None] * row_covariance[:, None, :]
