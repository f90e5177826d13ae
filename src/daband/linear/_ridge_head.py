"""The head of every policy that is linear in some features: ridge statistics, and how they are explored.

LinUCB puts it on contexts, Neural-LinUCB and DABand on the latent of an encoder.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from daband._arguments import one_of
from daband._arrays import AnyArray, BoolArray, FloatArray, IntArray, Mask, Weights, check_memory, unit_scale
from daband.errors import InvalidInput
from daband.linear._dual_ridge import DualRidge
from daband.linear._exploration import Decision, Exploration, UniformDraws, join_decisions
from daband.linear._kernels import draw_key, kernels, kernels_are_compiled, uniforms
from daband.linear._primal_ridge import DISCOUNTS, PrimalRidge, PriorTrust, check_norm, mixed_scores

ArmModel = Literal["disjoint", "shared"]

_PRIMAL_LIMIT_BYTES = 4 << 30
_DISCOUNTED_LIMIT_BYTES = 1 << 30
_DUAL_FROM_DIM = 1024
_PRIMAL_COST = 2.0
"""What a multiplication of the primal form costs, in units of one of the dual form: its matrices do not fit in a cache.
Measured on images of 2,352 numbers, which the dual form multiplies in single precision: about three."""
_PRIMAL_BLOCK = 64
_DUAL_BLOCK = 256  # each block passes over all stored contexts once, so fewer and longer ones


def check_head_memory(*, n_arms: int, dim: int, arms: str, primal: bool) -> None:
    """Refuse a head whose statistics cannot fit in memory: two d x d matrices and 32 pending rows per regression.

    In the dual form an empty regression is small: there the list of them counts, and one round's arrays.
    """
    heads = n_arms if arms == "disjoint" else 1
    each = 8.0 * (2 * dim * dim + 36 * dim) if primal else 1000.0
    one_round = 8.0 * (8 * n_arms + (n_arms if arms == "shared" else 1) * dim)
    check_memory(heads * each + one_round, f"n_arms={n_arms} with {dim} features")


class RidgeHead:
    """K arms over features of dimension ``dim``.

    With ``arms="disjoint"`` features are (B, d) and every arm has its own regression; with "shared" they are (B, K, d)
    and one regression serves all arms. ``form`` "dual" works in the space of rounds, "primal" in that of features;
    "auto" starts dual where the dimension is large and moves to primal once that is cheaper and fits in memory. A head
    that ``fades`` is primal.

    Contexts to learn from may have a squared norm of at most ``primal.LARGEST_SQUARE`` times the ridge; larger ones
    raise ``InvalidInput`` and change nothing. ``decide`` may run in several threads, but not while ``learn``, ``play``
    or ``add_arm`` change the statistics: the policy holds a lock.

    Random numbers depend on ``seed`` and the number of the round alone: a batch equals its single rounds, and there is
    no generator state to save.
    """

    def __init__(
        self,
        *,
        n_arms: int,
        dim: int,
        arms: ArmModel,
        ridge: float,
        exploration: Exploration,
        seed: int,
        form: str,
        fades: bool = False,
    ) -> None:
        if not (np.isfinite(ridge) and ridge > 0):
            raise InvalidInput(f"ridge must be a finite number > 0, got {ridge}")
        one_of("form", form, ("auto", "primal", "dual"))
        one_of("arms", arms, ("disjoint", "shared"))
        if exploration.rule == "thompson" and arms == "shared":
            raise InvalidInput(
                "explore='thompson' is not offered with arms='shared': the arms' draws are then correlated, and the "
                "propensity of a choice has no closed form; use explore='ucb', or 'greedy' with an epsilon"
            )
        if fades and form == "dual":
            raise InvalidInput("form='dual' keeps rounds as they are, and a half_life fades them; use form='primal'")
        check_head_memory(n_arms=n_arms, dim=dim, arms=arms, primal=fades or form == "primal")
        self.n_arms = n_arms
        self.dim = dim
        self.arms = arms
        self.ridge = ridge
        self.exploration = exploration
        self.form = form
        self._key = draw_key(seed)
        self._all_available = np.ones((1, n_arms), np.bool_)
        self.trust: PriorTrust | None = None
        """Where prior trust is chosen as rewards arrive, it owns the statistics; ``statistics`` are those that act."""
        heads = n_arms if arms == "disjoint" else 1
        self.statistics: PrimalRidge | DualRidge
        dual = form == "dual" or (form == "auto" and (dim >= _DUAL_FROM_DIM or not self._primal_fits(heads, 1 << 30)))
        if dual and not fades:
            self.statistics = DualRidge(heads, dim, ridge)
        else:
            self.statistics = PrimalRidge(heads, dim, ridge)

    def decide(
        self, features: AnyArray, *, first_round: int, available: Mask = None, rule: str | None = None
    ) -> Decision:
        """Choose an arm for each row, with the statistics as they are.

        ``rule`` overrides that of ``exploration``; "greedy" needs no widths, and they are 0.
        """
        exploration, statistics = self.exploration, self.statistics
        if rule is not None:
            exploration = exploration.by_rule(rule)
        compiled = len(features) == 1 and exploration.rule != "thompson" and rule != "greedy" and kernels_are_compiled()
        if not (compiled and self.arms == "disjoint" and isinstance(statistics, PrimalRidge)):
            scores = self.score(features, widths=rule != "greedy")
            return self.choose(*scores, first_round=first_round, available=available, rule=rule)
        mean, width = np.empty((1, self.n_arms)), np.empty((1, self.n_arms))
        arm, propensity = np.empty(1, np.int64), np.empty(1)
        kernels.decide_one(
            statistics.inverse,
            statistics.theta,
            features if features.dtype == np.float64 and features.flags.c_contiguous else unit_scale(features),
            self._all_available if available is None else available,
            exploration.optimism,
            exploration.epsilon,
            self._key,
            first_round,
            mean,
            width,
            arm,
            propensity,
        )
        return Decision(arm, propensity, mean, width)

    def choose(
        self,
        mean: FloatArray,
        variance: FloatArray,
        *,
        first_round: int,
        available: Mask = None,
        rule: str | None = None,
    ) -> Decision:
        """Choose an arm for each row of predicted rewards and squared widths, (B, K) each."""
        return self.exploration.by_rule(rule).decide(mean, np.sqrt(variance), self._draws(first_round), available)

    def score(self, features: AnyArray, *, widths: bool = True) -> tuple[FloatArray, FloatArray]:
        """Predicted rewards and squared widths, (B, K) each, or zeros; features as in ``decide``."""
        if self.arms == "disjoint":
            return self.statistics.score(features, widths=widths)
        mean, variance = self.statistics.score(features.reshape(-1, self.dim), widths=widths)
        return mean.reshape(-1, self.n_arms), variance.reshape(-1, self.n_arms)

    def predict(self, features: AnyArray, arms: IntArray) -> FloatArray:
        """The predicted reward of one arm in each row, (B,)."""
        features, arms = self.of_chosen(features, arms)
        if isinstance(self.statistics, DualRidge):
            mean: FloatArray = self.statistics.score(features, widths=False)[0][np.arange(len(arms)), arms]
        else:
            wide = features if features.dtype == np.float64 else unit_scale(features)
            mean = np.einsum("bd,bd->b", wide, self.statistics.theta[arms])
        return mean

    def of_chosen(self, features: AnyArray, arms: IntArray) -> tuple[AnyArray, IntArray]:
        """The features (B, d) of each round's arm, and the regression that it belongs to, (B,)."""
        if self.arms == "disjoint":
            return features, arms
        return features[np.arange(len(features)), arms], np.zeros(len(arms), np.int64)

    def learn(self, features: AnyArray, arms: IntArray, rewards: FloatArray, weights: Weights = None) -> None:
        """Learn from rounds: features as in ``decide``, the arm chosen in each and its reward.

        A round of weight w (B,) counts w times in A and in Z'r; ``counts`` counts it once.
        """
        features, arms = self.of_chosen(features, arms)
        features, rewards = _weigh(features, rewards, weights)
        if self.trust is not None:
            check_norm(features, self.ridge)
            self.trust.update(unit_scale(features), arms, rewards)
            self.statistics = self.trust.statistics
            return
        self.statistics.update(features, arms, rewards)
        if isinstance(self.statistics, DualRidge):
            self._change_form()

    def play(self, features: AnyArray, rewards: FloatArray, *, first_round: int, available: Mask = None) -> Decision:
        """Decide and learn round by round, exactly; ``rewards`` (B, K) holds the reward of every arm.

        The features are all known beforehand, so the expensive part is a few matrix products for the whole episode; the
        loop over rounds only corrects means and variances of the rounds to come. Long episodes are cut into blocks:
        those corrections grow with the square of a block's length.
        """
        n = len(features)
        check_norm(features, self.ridge)
        if available is None:
            available = np.ones((n, self.n_arms), np.bool_)
        parts = []
        start = 0
        while start < n and self.trust is not None:  # any round may change which statistics act
            one = slice(start, start + 1)
            decision = self.decide(features[one], first_round=first_round + start, available=available[one])
            self.learn(features[one], decision.arm, rewards[one, decision.arm[0]])
            parts.append(decision)
            start += 1
        while start < n:
            stop = start + (_DUAL_BLOCK if isinstance(self.statistics, DualRidge) else _PRIMAL_BLOCK)
            part = slice(start, stop)
            parts.append(self._play_block(features[part], rewards[part], first_round + start, available[part]))
            start = stop
        return join_decisions(parts)

    def _play_block(self, features: AnyArray, rewards: FloatArray, first_round: int, available: BoolArray) -> Decision:
        n = len(features)
        flat = features if self.arms == "disjoint" else features.reshape(n * self.n_arms, self.dim)
        products, contexts, direct = self.statistics.products(flat)
        mean, variance = self.statistics.score_products(products, contexts, direct)
        exploration, drawn = self.exploration, self._draws(first_round)
        multiplier, draws = exploration.multiplier(n, self.n_arms, drawn), drawn(n, 2)
        arms, propensity = np.empty(n, np.int64), np.empty(n)
        mean, variance = mean.reshape(n, -1), variance.reshape(n, -1)
        kernels.play_episode(
            (products, contexts, direct, self.arms == "shared"),
            (mean, variance),
            (multiplier, available, exploration.epsilon, draws),
            rewards,
            (arms, propensity),
        )
        received = rewards[np.arange(n), arms]
        if self.arms == "disjoint":
            self.statistics.update(flat, arms, received)
            self._change_form()
        else:
            self.learn(features, arms, received)
        width = np.sqrt(variance)
        return Decision(arms, exploration.propensities(arms, propensity, mean, width, available), mean, width)

    def refitted(
        self, features: AnyArray, arms: IntArray, rewards: FloatArray, weights: Weights = None
    ) -> PrimalRidge | DualRidge:
        """New statistics of these rounds alone, each counted once or by its weight; the present ones stay as they are.

        ``head.statistics = head.refitted(...)`` replaces them in one step, while another thread may be deciding.
        """
        features, arms = self.of_chosen(features, arms)
        fresh = type(self.statistics)(self.statistics.n_heads, self.dim, self.ridge)
        features, rewards = _weigh(features, rewards, weights)
        fresh.fit(features, arms, rewards)
        return fresh

    def fade(self, factor: float) -> None:
        """Count every round learned so far by ``factor``, and ``counts`` as before; the ridge stays as it is."""
        assert isinstance(self.statistics, PrimalRidge)
        faded = self.statistics.discounted(factor)
        faded.counts = self.statistics.counts
        self.statistics = faded

    @property
    def can_discount(self) -> bool:
        """Whether the statistics are small enough to be kept once for every discount."""
        heads = self.statistics.n_heads
        return self._primal_fits(len(DISCOUNTS) * heads, _DISCOUNTED_LIMIT_BYTES)

    def trust_prior(self, discounts: tuple[float, ...]) -> None:
        """From now on, choose by predictions among these discounts of what was learned so far: see ``PriorTrust``."""
        self.trust = PriorTrust(self.primal("prior trust cannot be chosen"), discounts)
        self.statistics = self.trust.statistics

    def without_rounds(self) -> RidgeHead:
        """The same head before its first round."""
        other = copy.copy(self)
        other.trust = None
        other.statistics = type(self.statistics)(self.statistics.n_heads, self.dim, self.ridge)
        return other

    def check_primal_fits(self) -> None:
        """Refuse a head whose statistics are too large for sums over rounds."""
        if not self._primal_fits(self.statistics.n_heads, _PRIMAL_LIMIT_BYTES):
            raise InvalidInput(
                f"sums over rounds cannot be had here: with {self.dim} features and {self.statistics.n_heads} "
                "regressions they take too much memory; put a transform in front, e.g. daband.PCA(64)"
            )

    def with_arms(self, n_arms: int) -> RidgeHead:
        """The same head for another number of shared arms: they have one regression, which both heads use."""
        assert self.arms == "shared"
        other = copy.copy(self)
        other.n_arms = n_arms
        other._all_available = np.ones((1, n_arms), np.bool_)
        return other

    def add_arm(self) -> None:
        """Add an arm without rounds."""
        self.n_arms += 1
        self._all_available = np.ones((1, self.n_arms), np.bool_)
        if self.arms == "disjoint":
            (self.trust or self.statistics).add_heads(1)

    def state(self, *, rounds: bool = True) -> dict[str, AnyArray]:
        """Everything needed to go on to the last bit; without ``rounds``, no context of a single round is in it."""
        statistics = self.statistics
        if self.trust is not None:
            return {f"trust.{name}": array for name, array in self.trust.state(rounds=rounds).items()}
        if isinstance(statistics, DualRidge) and rounds:
            return {f"dual.{name}": array for name, array in statistics.state().items()}
        if isinstance(statistics, DualRidge):
            statistics = self.primal("replay=False cannot be had here")
        return {f"primal.{name}": array for name, array in statistics.state(rounds=rounds).items()}

    def primal(self, refusal: str) -> PrimalRidge:
        """The statistics in the space of features: those of the head itself, or dual ones turned into a new object.

        Where they do not fit in memory, an error begins with ``refusal``.
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

    def frozen(self, *, widths: bool = True) -> tuple[FloatArray, FloatArray]:
        """Copies of theta (heads, d) and of the inverse of A (heads, d, d): (heads, 0, 0) without ``widths``."""
        if not widths:
            return self.statistics.theta.copy(), np.zeros((self.statistics.n_heads, 0, 0))
        statistics = self.primal("the policy cannot be exported")
        return statistics.theta.copy(), statistics.inverse.copy()

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore what ``state`` returned."""
        dual = any(name.startswith("dual.") for name in state)
        heads = self.n_arms if self.arms == "disjoint" else 1
        arrays = {name.split(".", 1)[1]: array for name, array in state.items()}
        self.trust = None
        if any(name.startswith("trust.") for name in state):
            self.trust = PriorTrust.restored(arrays, PrimalRidge(heads, self.dim, self.ridge))
            self.statistics = self.trust.statistics
            return
        self.statistics = (DualRidge if dual else PrimalRidge)(heads, self.dim, self.ridge)
        self.statistics.restore(arrays)

    def _draws(self, first_round: int) -> UniformDraws:
        return functools.partial(uniforms, self._key, first_round)

    def probabilities(self, features: AnyArray, *, available: Mask = None, rule: str | None = None) -> FloatArray:
        """The probability with which ``decide`` chooses each arm, (B, K)."""
        mean, variance = self.score(features, widths=rule != "greedy")
        return self.exploration.by_rule(rule).probabilities(mean, np.sqrt(variance), available=available)

    def _primal_fits(self, heads: int, limit: int) -> bool:
        return 2 * heads * self.dim * self.dim * 8 <= limit

    def _change_form(self) -> None:
        if self.form != "auto" or isinstance(self.statistics, PrimalRidge):
            return
        heads = self.statistics.n_heads
        primal_cost = _PRIMAL_COST * heads * float(self.dim) ** 2
        if self.statistics.cost_per_round() > primal_cost and self._primal_fits(heads, _PRIMAL_LIMIT_BYTES):
            self.statistics = self.statistics.to_primal()


def _weigh(features: AnyArray, rewards: FloatArray, weights: Weights) -> tuple[AnyArray, FloatArray]:
    """Rounds (B, d) and rewards (B,) whose ridge statistics are those of the given ones, counted by their weights."""
    if weights is None:
        return features, rewards
    root = np.sqrt(weights)
    return unit_scale(features) * root[:, None], rewards * root


# Several ridge heads on different features of the same contexts, whose predicted rewards and widths are averaged.


class EpisodeScores:
    """Predicted rewards and squared widths of rounds under several heads, (heads, B, K) each, while rounds are learned.

    The features of all rounds are known beforehand. So their covariances under each regression are a few matrix
    products, and every round that is learned corrects those to come by a rank-one update; the heads themselves learn
    all of them at the end. For heads of disjoint arms without prior trust.
    """

    def __init__(self, heads: Sequence[RidgeHead], features: Sequence[AnyArray]) -> None:
        n_rounds, n_arms = len(features[0]), heads[0].n_arms
        self.mean, self.variance = np.empty((2, len(heads), n_rounds, n_arms))
        self._covariance = np.empty((len(heads), n_arms, n_rounds, n_rounds))
        for place, (head, part) in enumerate(zip(heads, features, strict=True)):
            products, contexts, direct = head.statistics.products(part)
            self.mean[place], self.variance[place] = head.statistics.score_products(products, contexts, direct)
            self._covariance[place] = products if direct else np.matmul(products, contexts.T)

    def learn(self, row: int, arm: int, reward: float, weight: float = 1.0) -> None:
        """Correct the rows behind ``row``, in which this arm was played, and which counts ``weight`` times."""
        rest = slice(row + 1, None)
        covariance = self._covariance[:, arm]
        column = covariance[:, row, rest]
        gain = weight * column / (1.0 + weight * covariance[:, row, row, None])
        self.mean[:, rest, arm] += gain * (reward - self.mean[:, row, arm, None])
        covariance[:, rest, rest] -= gain[:, :, None] * column[:, None, :]
        self.variance[:, rest, arm] = np.maximum(covariance.diagonal(axis1=1, axis2=2)[:, rest], 0.0)


@dataclass(frozen=True)
class HeadMixture:
    """Decides by the weighted mean of what several heads predict.

    The error of a mean is at most the mean of the errors: so the same mean of the widths is a width of it. Each head's
    width counts by its own ``alpha``. Rule, epsilon and draws are those of the first head. Features are a list with the
    array of each head. Threads: as ``RidgeHead``.
    """

    heads: tuple[RidgeHead, ...]
    shares: tuple[float, ...]
    exploring: tuple[float, ...] = ()
    """What each head counts in the width; as in the mean, unless given."""
    offset: FloatArray | None = None
    """Added to every arm's predicted reward, (K,)."""

    @property
    def n_arms(self) -> int:
        """How many arms there are."""
        return self.heads[0].n_arms

    def decide(
        self, features: Sequence[AnyArray], *, first_round: int, available: Mask = None, rule: str | None = None
    ) -> Decision:
        """Choose an arm for each row, with the statistics as they are."""
        if len(self.heads) == 1 and self.offset is None:
            return self.heads[0].decide(features[0], first_round=first_round, available=available, rule=rule)
        mean, variance = self.score(features, widths=rule != "greedy")
        return self.heads[0].choose(mean, variance, first_round=first_round, available=available, rule=rule)

    def probabilities(
        self, features: Sequence[AnyArray], *, available: Mask = None, rule: str | None = None
    ) -> FloatArray:
        """The probability with which ``decide`` chooses each arm, (B, K)."""
        mean, variance = self.score(features, widths=rule != "greedy")
        exploration = self.heads[0].exploration.by_rule(rule)
        return exploration.probabilities(mean, np.sqrt(variance), available=available)

    def score(self, features: Sequence[AnyArray], *, widths: bool = True) -> tuple[FloatArray, FloatArray]:
        """Predicted rewards and squared widths, (B, K) each, or zeros."""
        return self.mix([head.score(part, widths=widths) for head, part in zip(self.heads, features, strict=True)])

    def mix(self, scores: Sequence[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
        """Predicted rewards and squared widths from those of each head."""
        if len(scores) == 1:
            mean, variance = scores[0]
        else:
            both = [(mean, np.sqrt(variance)) for mean, variance in scores]
            mean, width = mixed_scores(both, self.shares, self.width_shares)
            variance = width * width
        return mean if self.offset is None else mean + self.offset, variance

    @functools.cached_property
    def width_shares(self) -> tuple[float, ...]:
        """What each head's width counts, in units of the first one's alpha."""
        alpha = self.heads[0].exploration.alpha
        ratios = [head.exploration.alpha / alpha if alpha > 0 else 1.0 for head in self.heads]
        return tuple(share * ratio for share, ratio in zip(self.exploring or self.shares, ratios, strict=True))

    def with_arms(self, n_arms: int) -> HeadMixture:
        """The same heads for another number of shared arms."""
        heads = tuple(head.with_arms(n_arms) if head.arms == "shared" else head for head in self.heads)
        return replace(self, heads=heads, offset=self.offset if n_arms == self.n_arms else None)
