"""Define the head of linear policies, which predicts rewards by ridge regressions on features.

LinUCB applies it to contexts, Neural-LinUCB and DABand to the features of an encoder. The head uses
``Ridge`` or, for large contexts, the dual form (``DualRidge``), whichever is cheaper.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import numpy as np

from daband.base._arguments import check_one_of
from daband.base._arrays import AnyArray, FloatArray, IntArray, Mask, Weights, check_memory
from daband.errors import InvalidInput
from daband.linear._draws import DrawFunction
from daband.linear._dual_ridge import DualRidge
from daband.linear._exploration import Decision, Exploration, join_decisions
from daband.linear._reward_moments import RewardMoments
from daband.linear._ridge import Ridge, RidgeSums, check_norm

#: "disjoint" if every arm has its own regression, "shared" if all arms share one.
ArmModel = Literal["disjoint", "shared"]

#: Maximum size of the matrices of the primal form, in bytes.
_MAX_PRIMAL_BYTES = 4 << 30
#: Primal matrices with more bytes are avoided as long as the dual form is cheaper.
_SMALL_PRIMAL_BYTES = 1 << 30
#: Minimum dimension of the dual form. At 512 dimensions it was 2 to 7 times as fast, for rounds in
#: episodes of 64.
_MIN_DUAL_DIM = 512
#: The cost of a multiplication in the primal form, relative to the dual form. Primal matrices do
#: not fit in the cache.
_RELATIVE_PRIMAL_COST = 2.0
#: The number of rounds whose predictions ``play`` computes at once. The cost of correcting them
#: grows with the square of this number.
_BLOCK_ROUNDS = 64


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

    def __init__(self, *, n_arms: int, dim: int, arms: str, ridge: float, form: str) -> None:
        if not (np.isfinite(ridge) and ridge > 0):
            raise InvalidInput(f"ridge must be a finite number > 0, got {ridge}")
        check_one_of("form", form, ("auto", "primal", "dual"))
        check_one_of("arms", arms, ("disjoint", "shared"))
        self.dim = dim
        self.ridge = ridge
        self.form = form
        self._is_shared = arms == "shared"
        n_heads = n_arms if arms == "disjoint" else 1
        is_large = dim >= _MIN_DUAL_DIM or not self._primal_fits(n_heads, _SMALL_PRIMAL_BYTES)
        is_dual = form == "dual" or (form == "auto" and is_large)
        if not is_dual:
            check_memory(16.0 * n_heads * dim * dim, f"n_arms={n_arms} with {dim} features")
        self.statistics: Ridge | DualRidge = (DualRidge if is_dual else Ridge)(n_heads, dim, ridge)

    @property
    def counts(self) -> IntArray:
        """The number of learned rounds of each regression, (heads,)."""
        return self.statistics.counts

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
        rows = features.reshape(-1, self.dim)
        mean, variance = self.statistics.score(rows, centre=centre, with_bonuses=with_bonuses)
        shape = (len(features), -1)
        return mean.reshape(shape), scale * np.sqrt(variance).reshape(shape)

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
        if self._is_shared:
            features, arms = self.get_chosen_features(features, arms)
        self.statistics.update(features, arms, rewards, weights)
        if isinstance(self.statistics, DualRidge) and self.form == "auto":
            n_heads = self.statistics.n_heads
            primal_cost = _RELATIVE_PRIMAL_COST * n_heads * float(self.dim) ** 2
            is_cheaper = self.statistics.compute_decision_cost() > primal_cost
            if is_cheaper and self._primal_fits(n_heads, _MAX_PRIMAL_BYTES):
                self.statistics = self.statistics.to_primal()

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

        ``rewards`` (B, K) are those of all arms. ``draw_from(row)`` returns the function that draws
        for the rounds from this row on. ``moments`` is updated with the rewards. Rounds are played
        in blocks (``EpisodeScores``) if arms are disjoint.
        """
        self._check_features(features)
        decisions = []
        for start in range(0, len(rewards), _BLOCK_ROUNDS):
            block = slice(start, start + _BLOCK_ROUNDS)
            block_features = features[block]
            scores = self._start_episode(block_features)
            for row in range(start, start + len(block_features)):
                rows = slice(row, row + 1)
                centre, scale = moments.centre, moments.scale
                if scores is None:
                    mean, bonus = self.score(features[rows], centre=centre, scale=scale)
                else:
                    mean, bonus = scores.score(row - start, centre=centre, scale=scale)
                mask = None if available is None else available[rows]
                decision = exploration.decide(mean, bonus, draw_from(row), mask, (centre, scale))
                reward = rewards[rows, decision.arm[0]]
                weight = None if weights is None else weights[rows]
                if scores is None:
                    self.learn(features[rows], decision.arm, reward, weight)
                else:
                    scores.learn(row - start, decision.arm, reward, weight)
                moments.add(reward, weight)
                decisions.append(decision)
            if scores is not None:
                arms = np.concatenate([decision.arm for decision in decisions[start:]])
                block_weights = None if weights is None else weights[block]
                block_rewards = rewards[block][np.arange(len(arms)), arms]
                self.learn(block_features, arms, block_rewards, block_weights)
        return join_decisions(decisions)

    def _start_episode(self, features: AnyArray) -> EpisodeScores | None:
        """Return the predictions for a block of rounds, or None if rounds are scored one by one."""
        return None if self._is_shared else EpisodeScores([self], [features])

    def _check_features(self, features: AnyArray) -> None:
        """Raise an error if features cannot be learned."""
        check_norm(features.reshape(-1, self.dim), self.ridge)

    def fit_penalties(self, moments: RewardMoments) -> None:
        """Do nothing: the penalty is fixed. ``JointHead`` fits its penalties."""

    def add_arm(self, vector: FloatArray | None = None) -> None:  # noqa: ARG002
        """Add an arm without rounds. ``vector`` (m,) has its features, for ``JointHead``."""
        if not self._is_shared:
            self.statistics.add_heads(1)

    def compute_regressions(
        self, centre: float, with_bonuses: bool
    ) -> tuple[FloatArray, FloatArray | None]:
        """Return the coefficients (K, d) of rewards minus ``centre``, and the matrix (K, d, d) of
        each arm's variance; None without bonuses.
        """
        statistics = self.to_primal("the regressions cannot be read")
        return statistics.compute_coefficients(centre), statistics.A_inv if with_bonuses else None

    def freeze(self, moments: RewardMoments) -> dict[str, Any]:
        """Return copies of ``theta`` (heads, d) and of A^-1, ``inverse`` (heads, d, d), by name.

        Predictions by this theta are in the unit of ``moments``: minus their centre, divided by
        their scale.
        """
        statistics = self.to_primal("the policy cannot be exported")
        theta = statistics.compute_coefficients(moments.centre) / moments.scale
        return {"theta": theta, "inverse": statistics.A_inv.copy()}

    # Sums over the rounds of a log.

    def without_rounds(self) -> Self:
        """Return a head with the same settings that has learned no rounds."""
        empty_head = copy.copy(self)
        empty_head.statistics = type(self.statistics)(self.statistics.n_heads, self.dim, self.ridge)
        return empty_head

    def make_empty_sums(self) -> RidgeSums:
        """Return ``RidgeSums`` for this head, without any rounds."""
        if not self._primal_fits(self.statistics.n_heads, _MAX_PRIMAL_BYTES):
            raise InvalidInput(
                f"sums over rounds do not fit in memory: there are {self.dim} features and"
                f" {self.statistics.n_heads} regressions; reduce the contexts, e.g. by"
                " transform=daband.PCA(64)"
            )
        return RidgeSums(self.statistics.n_heads, self.dim)

    def with_sums(self, sums: RidgeSums) -> Self:
        """Return a copy that has also learned the rounds of these sums."""
        statistics = copy.deepcopy(self.to_primal("the log cannot be learned"))
        statistics.add_sums(sums)
        head = copy.copy(self)
        head.statistics = statistics
        return head

    def to_primal(self, problem: str) -> Ridge:
        """Return the statistics in the primal form.

        They are converted if the head uses the dual form. If the primal form does not fit in
        memory, raise an error that starts with ``problem``.
        """
        statistics = self.statistics
        if isinstance(statistics, Ridge):
            return statistics
        if not self._primal_fits(statistics.n_heads, _MAX_PRIMAL_BYTES):
            raise InvalidInput(
                f"{problem}: with {self.dim} features the statistics have the dual form, which"
                " stores the contexts themselves; reduce the contexts, e.g. by"
                " transform=daband.PCA(64)"
            )
        return statistics.to_primal()

    def _primal_fits(self, n_heads: int, max_bytes: int) -> bool:
        """Return True if the primal matrices of this many heads have at most ``max_bytes``
        bytes.
        """
        return 2 * n_heads * self.dim * self.dim * 8 <= max_bytes

    # Files.

    def state(self, *, with_rounds: bool = True) -> dict[str, AnyArray]:
        """Return all arrays needed to continue bit for bit.

        If not ``with_rounds``, no single context is in them.
        """
        statistics = self.statistics
        if not with_rounds:
            statistics = self.to_primal("replay=False is not possible")
        form = "dual" if isinstance(statistics, DualRidge) else "primal"
        return {f"{form}.{name}": array for name, array in statistics.state().items()}

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore the arrays that ``state`` returned."""
        is_dual = any(name.startswith("dual.") for name in state)
        statistics = (DualRidge if is_dual else Ridge)(
            self.statistics.n_heads, self.dim, self.ridge
        )
        statistics.restore({name.split(".", 1)[1]: array for name, array in state.items()})
        self.statistics = statistics


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
        episodes = [
            head.statistics.start_episode(head_features)
            for head, head_features in zip(heads, features, strict=True)
        ]
        #: The predictions of rewards and of ones, (2, heads, n, K).
        self._means = np.stack([episode.means for episode in episodes], axis=1)
        #: The covariances of the rounds for each arm, (heads, K, n, n).
        self._covariances = np.stack([episode.covariances for episode in episodes])

    def score(
        self, row: int, *, centre: float | FloatArray = 0.0, scale: float | FloatArray = 1.0
    ) -> tuple[FloatArray, FloatArray]:
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
