"""Gradient-boosted regression trees for each arm, explored by epsilon and by how often an arm was tried.

What a practitioner tries first on a table: scikit-learn's ``HistGradientBoostingRegressor`` on the rounds of an arm.
The fitted trees are taken out as arrays, so that decisions, files and exports need numpy alone.

Between two calls of ``adapt`` the trees stay as they are. ``adapt`` fits them anew to all rounds that are kept, in an
order of their own: what was learned depends on the set of rounds, not on the order in which their rewards came. An arm
with too few rounds for a tree has its mean reward, which is right at every moment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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

#: Rounds of an arm from which on it has trees: two leaves of 20.
_FEWEST = 40
#: ``adapt`` fits anew once there are so many times the rounds of the last fit.
_GROWTH = 1.25
_MOST_ARMS = 128
KEPT_ROUNDS = 131_072
_TREES, _LEAVES, _RATE, _BINS = 40, 15, 0.15, 64
_ODD = np.uint64(0x9E3779B97F4A7C15)


@policies.register("trees")
class Trees(Policy):
    """Gradient-boosted trees for each arm, behind the same interface as the other policies.

    The score of an arm is its predicted reward and, with ``explore="ucb"``, ``alpha / sqrt(1 + n)`` standard deviations
    of rewards after n rounds of it; with probability ``epsilon`` the arm is drawn uniformly. Of more than 131,072
    rounds a sample is kept that does not depend on their order. There are at most 128 arms.

    >>> policy = daband.Trees(context_shape=(1,), n_arms=2, epsilon=0.0, seed=0)
    >>> x, arm = [[i / 400] for i in range(400)], [0, 1] * 200
    >>> skipped = policy.update(x, arm, [float((i > 200) == (i % 2 == 1)) for i in range(400)])
    >>> fitted = policy.adapt()
    >>> policy.select([[0.2], [0.8]]).arm.tolist()
    [0, 1]
    """

    scale_matters = True  # not to a tree; but each domain may have units of its own
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
        if self.n_arms > _MOST_ARMS:
            raise InvalidInput(f"n_arms must be at most {_MOST_ARMS} for trees, got {self.n_arms}")
        models = self.n_arms if arms == "disjoint" else 1
        self._inputs = math.prod(self.feature_shape)
        self._rounds: IntArray = np.zeros(models, np.int64)
        #: The weights of each model's rounds, and the sums of their weighted rewards.
        self._sums: FloatArray = np.zeros((2, models))
        #: Rounds: the context, the model, the reward, the weight.
        self._kept: FloatArray = np.empty((0, self._inputs + 3))
        self._planted: dict[str, AnyArray] = empty_trees(models)
        self._fitted_rounds = 0

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "explore": self.explore, "alpha": self.alpha, "epsilon": self.epsilon}

    # Decisions.

    def _network(self) -> TreeNetwork:
        """Return what predicts now: trees, and the mean reward of arms without trees, shrunk towards that of all."""
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
        """Fit the trees anew where rounds have come since: a quarter more of them, or with ``steps`` any."""
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
        if self.n_arms >= _MOST_ARMS:
            raise InvalidInput(f"trees take at most {_MOST_ARMS} arms")
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
        TreeNetwork({"kind": "trees", "inputs": self._inputs}, planted)  # refuses what does not fit
        self._kept, self._rounds, self._sums = np.array(kept), np.array(rounds), np.array(sums)
        self._planted = {name: np.array(array) for name, array in planted.items()}
        self._fitted_rounds = int(state["fitted"][0])


def sample_rounds(rounds: FloatArray) -> FloatArray:
    """At most ``KEPT_ROUNDS`` of the rounds: those with the smallest hashes, whatever the order they came in."""
    if len(rounds) <= KEPT_ROUNDS:
        return rounds
    bits = np.ascontiguousarray(rounds).view(np.uint64)
    mixed = np.zeros(len(rounds), np.uint64)
    for column in bits.T:
        mixed = (mixed ^ column) * _ODD
        mixed ^= mixed >> np.uint64(29)
    return rounds[np.argsort(mixed, kind="stable")[:KEPT_ROUNDS]]


def _coarse(numbers: FloatArray) -> FloatArray:
    """Numbers to 16 binary digits: a threshold may be a number of training, which no file should hold."""
    fraction, exponent = np.frexp(numbers)
    return np.ldexp(np.round(fraction * 65536.0) / 65536.0, exponent)


def _plant(rounds: FloatArray, models: int, seed: int) -> dict[str, AnyArray]:
    """Trees for every model with enough rounds, as the arrays of a ``TreeNetwork``; node 0 is a leaf of nothing."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    rounds = rounds[np.lexsort(rounds.T)]  # sums of floating-point numbers depend on their order
    planted = empty_trees(models, _TREES)
    parts: dict[str, list[AnyArray]] = {name: [planted[name]] for name in ("feature", "threshold", "children", "value")}
    size, depth = 1, 1
    for model in range(models):
        rows = rounds[rounds[:, -3] == model]
        if len(rows) < _FEWEST:
            continue
        boosted = HistGradientBoostingRegressor(
            max_iter=_TREES,
            max_leaf_nodes=_LEAVES,
            learning_rate=_RATE,
            max_bins=_BINS,
            early_stopping=False,
            random_state=seed,
        )
        with threadpool_limits(1, user_api="openmp"):  # a table is small, and others may wait for the cores
            # Even weights are left out: weighted quantiles take five times as long as all the rest.
            even = bool((rows[:, -1] == rows[0, -1]).all())
            boosted.fit(rows[:, :-3], rows[:, -2], sample_weight=None if even else rows[:, -1])
        planted["base"][model] = float(np.ravel(boosted._baseline_prediction)[0])
        for number, (tree,) in enumerate(boosted._predictors):
            nodes = tree.nodes
            leaf, numbers = nodes["is_leaf"].astype(np.bool_), np.arange(len(nodes))
            planted["roots"][model, number] = size
            children = np.stack([np.where(leaf, numbers, nodes[side].astype(np.int64)) for side in ("left", "right")])
            parts["feature"].append(np.where(leaf, 0, nodes["feature_idx"]).astype(np.int64))
            parts["threshold"].append(_coarse(np.where(leaf, 0.0, nodes["num_threshold"])))
            parts["children"].append(children + size)
            parts["value"].append(np.where(leaf, nodes["value"], 0.0))
            size, depth = size + len(nodes), max(depth, int(nodes["depth"].max()))
    joined = {name: np.concatenate(arrays, axis=-1) for name, arrays in parts.items()}
    return {**planted, **joined, "depth": np.array([depth], np.int64)}
