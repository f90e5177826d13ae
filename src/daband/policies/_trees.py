"""Gradient-boosted regression trees for each arm, with exploration by epsilon and by the rounds of an arm.

Each tree is a ``DecisionTreeRegressor`` of scikit-learn with random split points, fitted to residuals. Columns are
binned at quantiles. Split points are found on at most 1,024 rounds per tree, and leaf values are means of all rounds.
The fitted trees become arrays, so that decisions, files and exports need only numpy.

Between two calls of ``adapt`` the trees stay the same. ``adapt`` fits them again to all stored rounds, sorted:
the result depends on the set of rounds, and not on the order in which their rewards came. An arm with too few rounds
for a tree is predicted by its mean reward, which is always up to date.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray, Weights, below, checked_number, unit_scale
from daband._domain_names import DomainNames
from daband._shift import ShiftLike
from daband.errors import InvalidInput
from daband.linear._exploration import Exploration
from daband.policies._policy import Policy, exploration_setting
from daband.policies._registered import policies
from daband.serving._frozen_policy import FrozenParts, Member
from daband.serving._numpy_networks import TreeNetwork, empty_trees

#: Rounds that an arm needs to have trees: two leaves of 20.
_MIN_ROUNDS = 40
#: ``adapt`` fits again once the rounds have grown by this factor since the last fit.
_GROWTH = 1.25
_MAX_ARMS = 128
#: Maximum number of stored rounds.
KEPT_ROUNDS = 131_072
#: Trees per arm.
_TREES = 40
#: Maximum number of leaves per tree.
_LEAVES = 15
#: Minimum number of rounds per leaf.
_LEAF_ROUNDS = 20
#: Learning rate: the factor of every tree's predictions.
_RATE = 0.15
#: Maximum number of bins per column.
_BINS = 64
#: Maximum number of rounds on which the split points of a tree are found.
_SPLIT_ROUNDS = 1024
_ODD = np.uint64(0x9E3779B97F4A7C15)


@policies.register("trees")
class Trees(Policy):
    """Gradient-boosted trees for each arm.

    The score of an arm is its predicted reward. With ``explore="ucb"`` it also has a bonus: ``alpha / sqrt(1 + n)``
    standard deviations of the rewards after n rounds of the arm. With probability ``epsilon`` the arm is drawn
    uniformly. Of more than 131,072 rounds a sample is stored, which does not depend on their order. There are at most
    128 arms.

    Args:
        context_shape: the shape of one context.
        n_arms: the number of arms, at most 128.
        arms: "disjoint" (one context per round) or "shared" (one context per arm).
        explore: "greedy", "ucb", or "thompson" (disjoint arms only).
        alpha: the factor of the bonus.
        epsilon: the probability with which an arm is drawn uniformly instead.
        standardise_rewards: as in ``LinUCB``.
        transform: applied to contexts first, e.g. ``daband.Standardise()``.
        shift: what may differ between the domains (``daband.Shift``).
        seed: fixes the trees and the sample of rounds, and decides ties.
        domains: the names of the sources and targets, one of each by default.

    >>> policy = daband.Trees(context_shape=(1,), n_arms=2, epsilon=0.0, seed=0)
    >>> x, arm = [[i / 400] for i in range(400)], [0, 1] * 200
    >>> skipped = policy.update(x, arm, [float((i > 200) == (i % 2 == 1)) for i in range(400)])
    >>> fitted = policy.adapt()
    >>> policy.select([[0.2], [0.8]]).arm.tolist()
    [0, 1]
    """

    scale_matters = True  # not for a tree, but domains may have their own units
    explore = exploration_setting("rule")
    alpha = exploration_setting("alpha")
    epsilon = exploration_setting("epsilon")

    def __init__(
        self,
        *,
        context_shape: Sequence[int],
        n_arms: int,
        arms: str = "disjoint",
        explore: str = "ucb",
        alpha: float = Exploration.alpha,
        epsilon: float = 0.1,
        standardise_rewards: bool = True,
        transform: Any = None,
        shift: ShiftLike = None,
        seed: int = 0,
        domains: DomainNames | None = None,
    ) -> None:
        super().__init__(
            context_shape=context_shape,
            n_arms=n_arms,
            arms=arms,
            exploration=Exploration(explore, checked_number("alpha", alpha), checked_number("epsilon", epsilon)),
            standardise_rewards=standardise_rewards,
            transform=transform,
            shift=shift,
            seed=seed,
            domains=domains,
        )
        if self.n_arms > _MAX_ARMS:
            raise InvalidInput(f"n_arms must be at most {_MAX_ARMS} for trees, got {self.n_arms}")
        models = self.n_arms if arms == "disjoint" else 1
        self._inputs = math.prod(self.feature_shape)
        self._rounds: IntArray = np.zeros(models, np.int64)
        #: The sums of weights, and of weighted rewards, of each model's rounds.
        self._sums: FloatArray = np.zeros((2, models))
        #: Rounds: the context, the model, the reward, the weight.
        self._kept: FloatArray = np.empty((0, self._inputs + 3))
        self._planted: dict[str, AnyArray] = empty_trees(models)
        self._fitted_rounds = 0

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "explore": self.explore, "alpha": self.alpha, "epsilon": self.epsilon}

    # Decisions.

    def _network(self) -> TreeNetwork:
        """Return the trees, and for arms without trees their mean reward, shrunk towards the mean of all arms."""
        means = (self.reward_moments.centre + self._sums[1]) / (1.0 + self._sums[0])
        base = np.where(self._planted["roots"].any(axis=1), self._planted["base"], means)
        return TreeNetwork({"kind": "trees", "inputs": self._inputs}, {**self._planted, "base": base})

    def _score(self, contexts: AnyArray, domain: int, bonuses: bool) -> tuple[FloatArray, FloatArray]:
        predicted = self._network()(contexts.reshape(-1, self._inputs))[:, :-1].reshape(len(contexts), -1)
        bonus = self.reward_moments.scale * np.sqrt(1.0 / (1.0 + self._rounds))
        return predicted, np.broadcast_to(bonus, predicted.shape).copy()

    def _freeze(self, domain: int) -> FrozenParts:
        models, moments = len(self._rounds), self.reward_moments
        theta, inverse = np.eye(models, models + 1), np.zeros((models, models + 1, models + 1))
        theta[:, -1] = -moments.centre
        inverse[:, -1, -1] = 1.0 / (1.0 + self._rounds)
        return FrozenParts((Member(theta / moments.scale, inverse, network=self._network()),), self._rounds.copy())

    # Learning.

    def _learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: int, weights: Weights) -> None:
        counted = np.ones(len(arms)) if weights is None else weights
        if self.arms == "shared":
            contexts, models = contexts[np.arange(len(arms)), arms], np.zeros(len(arms), np.int64)
        else:
            models = arms
        flat = unit_scale(contexts.reshape(len(contexts), -1))
        rounds = np.column_stack([flat, models, rewards, counted])
        np.add.at(self._rounds, models, 1)
        np.add.at(self._sums[0], models, counted)
        np.add.at(self._sums[1], models, counted * rewards)
        self._kept = np.concatenate([self._kept, rounds])
        if len(self._kept) > 2 * KEPT_ROUNDS:
            self._kept = sample_rounds(self._kept)

    def _adapt(self, steps: int | None) -> dict[str, float]:
        """Fit the trees again if there are a quarter more rounds, or, with ``steps``, any new rounds."""
        learned = int(self._rounds.sum())
        if learned == self._fitted_rounds or (steps is None and learned < _GROWTH * self._fitted_rounds):
            return {}
        rounds = sample_rounds(self._kept)
        planted = _plant(rounds, len(self._rounds), self.seed)
        with self._locks.state:
            self._planted, self._fitted_rounds = planted, learned
        return {"trees": float((planted["roots"] > 0).sum())}

    def _grow(self) -> None:
        if self.arms == "shared":
            return
        if self.n_arms >= _MAX_ARMS:
            raise InvalidInput(f"trees take at most {_MAX_ARMS} arms")
        self._rounds = np.append(self._rounds, 0)
        self._sums = np.column_stack([self._sums, np.zeros(2)])
        roots, base = self._planted["roots"], self._planted["base"]
        more = {"roots": np.pad(roots, ((0, 1), (0, 0))), "base": np.append(base, 0.5)}
        self._planted = {**self._planted, **more}

    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        kept = self._kept if replay else self._kept[:0]
        planted = {f"planted/{name}": array for name, array in self._planted.items()}
        fitted = np.array([self._fitted_rounds], np.int64)
        return {"rounds": self._rounds, "sums": self._sums, "kept": kept, "fitted": fitted, **planted}

    def _restore(self, state: dict[str, AnyArray]) -> None:
        models = self.n_arms if self.arms == "disjoint" else 1
        kept, rounds, sums = state["kept"], state["rounds"], state["sums"]
        if kept.shape[1:] != (self._inputs + 3,) or rounds.shape != (models,) or sums.shape != (2, models):
            raise InvalidInput(f"the file has rounds of shape {kept.shape} for {models} models")
        planted = below("planted/", state)
        TreeNetwork({"kind": "trees", "inputs": self._inputs}, planted)  # rejects arrays that do not fit
        self._kept, self._rounds, self._sums = np.array(kept), np.array(rounds), np.array(sums)
        self._planted = {name: np.array(array) for name, array in planted.items()}
        self._fitted_rounds = int(state["fitted"][0])


def sample_rounds(rounds: FloatArray) -> FloatArray:
    """Return at most ``KEPT_ROUNDS`` rounds: those with the smallest hashes, independent of their order."""
    if len(rounds) <= KEPT_ROUNDS:
        return rounds
    bits = np.ascontiguousarray(rounds).view(np.uint64)
    mixed = np.zeros(len(rounds), np.uint64)
    for column in bits.T:
        mixed = (mixed ^ column) * _ODD
        mixed ^= mixed >> np.uint64(29)
    return rounds[np.argsort(mixed, kind="stable")[:KEPT_ROUNDS]]


def _coarse(numbers: FloatArray) -> FloatArray:
    """Return numbers with 16 binary digits: thresholds may be training values, which files must not contain."""
    fraction, exponent = np.frexp(numbers)
    return np.ldexp(np.round(fraction * 65536.0) / 65536.0, exponent)


def _bin_edges(contexts: FloatArray) -> list[FloatArray]:
    """Return the edges of each column's bins: quantiles, or midpoints between values if there are few values."""
    edges = []
    for column in contexts.T:
        numbers = np.unique(column)
        middles = 0.5 * (numbers[:-1] + numbers[1:])
        if len(numbers) > _BINS:
            middles = np.quantile(column, np.linspace(0.0, 1.0, _BINS + 1)[1:-1])
        edges.append(np.unique(_coarse(middles)))
    return edges


def _plant(rounds: FloatArray, models: int, seed: int) -> dict[str, AnyArray]:
    """Return trees for every model with enough rounds, as the arrays of a ``TreeNetwork``; node 0 is an empty leaf."""
    rounds = rounds[np.lexsort(rounds.T)]  # sums of floating-point numbers depend on their order
    contexts, numbers = rounds[:, :-3], rounds[:, -3]
    planted = empty_trees(models, _TREES)
    edges = _bin_edges(contexts)
    bins = np.stack(
        [np.searchsorted(of, column) for of, column in zip(edges, contexts.T, strict=True)], axis=1, dtype=np.float32
    )
    parts: dict[str, list[AnyArray]] = {name: [planted[name]] for name in ("feature", "threshold", "children", "value")}
    size, depth = 1, 1
    for model in range(models):
        rows = np.flatnonzero(numbers == model)
        if len(rows) < _MIN_ROUNDS:
            continue
        rewards, weights = rounds[rows, -2], rounds[rows, -1]
        base = float(np.average(rewards, weights=weights))
        scale = float(rewards.std()) or 1.0
        # Rounding makes the trees independent of the unit of rewards, ties included.
        residuals = np.round((rewards - base) / scale, 9)
        planted["base"][model] = base
        for number, (tree, values) in enumerate(_boost(bins[rows], residuals, weights, seed)):
            leaf = tree.children_left < 0
            nodes = np.arange(tree.node_count)
            children = np.where(leaf, nodes, [tree.children_left, tree.children_right])
            split = zip(tree.feature[~leaf], tree.threshold[~leaf], strict=True)
            thresholds = np.zeros(tree.node_count)
            thresholds[~leaf] = [edges[column][int(at)] for column, at in split]
            planted["roots"][model, number] = size
            parts["feature"].append(np.where(leaf, 0, tree.feature).astype(np.int64))
            parts["threshold"].append(thresholds)
            parts["children"].append(children.astype(np.int64) + size)
            parts["value"].append(scale * values)
            size, depth = size + tree.node_count, max(depth, int(tree.max_depth))
    joined = {name: np.concatenate(arrays, axis=-1) for name, arrays in parts.items()}
    return {**planted, **joined, "depth": np.array([depth], np.int64)}


def _boost(bins: AnyArray, residuals: FloatArray, weights: FloatArray, seed: int) -> Iterator[tuple[Any, FloatArray]]:
    """Yield trees and the values of their nodes, (nodes,): each is fitted to the residuals of those before it."""
    from sklearn.tree import DecisionTreeRegressor

    n = len(residuals)
    rng = np.random.default_rng(seed)
    least = max(2, _LEAF_ROUNDS * min(n, _SPLIT_ROUNDS) // n)
    even = bool((weights == weights[0]).all())
    for number in range(_TREES):
        shown = rng.choice(n, _SPLIT_ROUNDS, replace=False) if n > _SPLIT_ROUNDS else np.arange(n)
        fitted = DecisionTreeRegressor(
            splitter="random", max_leaf_nodes=_LEAVES, min_samples_leaf=least, random_state=number
        )
        # Input checks would take as long as the trees.
        fitted.fit(bins[shown], residuals[shown], sample_weight=None if even else weights[shown], check_input=False)
        leaves, nodes = fitted.apply(bins, check_input=False), fitted.tree_.node_count
        counts = np.bincount(leaves, weights, minlength=nodes)
        values = _RATE * np.bincount(leaves, weights * residuals, minlength=nodes) / np.where(counts > 0, counts, 1.0)
        residuals = residuals - values[leaves]
        yield fitted.tree_, values
