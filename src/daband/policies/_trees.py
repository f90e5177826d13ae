"""Choose arms by gradient-boosted regression trees, one ensemble per arm.

Each tree is a ``DecisionTreeRegressor`` of scikit-learn with random split points, fitted to
residuals. Columns are binned at quantiles. Split points are found on at most 1,024 rounds per tree,
and leaf values are means of all rounds. The fitted trees become arrays, so that decisions, files
and exports need only numpy.

Between two calls of ``adapt`` the trees stay the same. ``adapt`` sorts all stored rounds and fits
the trees again. The result therefore does not depend on the order in which rewards came. The
prediction for an arm with too few rounds for a tree is its mean reward, which is always up to date.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from daband.base._arrays import (
    AnyArray,
    Arrays,
    BoolArray,
    FloatArray,
    IntArray,
    add_prefix,
    drop_prefix,
    read_array,
    take_chosen,
    to_rows,
)
from daband.errors import InvalidInput
from daband.linear._predictor import ContextStep, Predictor, RidgePredictor
from daband.policies._policy import Policy
from daband.policies._registered import policies
from daband.rounds._rounds import Rounds
from daband.serving._numpy_networks import TreeNetwork, make_empty_trees

#: Minimum number of rounds of an arm to fit trees: two leaves of 20 rounds.
_MIN_ROUNDS = 40
#: ``adapt`` fits again once the number of rounds has grown by this factor since the last fit.
_REFIT_GROWTH = 1.25
#: Maximum number of arms.
MAX_ARMS = 128
#: Maximum number of stored rounds.
MAX_STORED_ROUNDS = 131_072
#: Number of trees per arm.
_TREES_PER_ARM = 40
#: Maximum number of leaves per tree.
_MAX_LEAVES = 15
#: Minimum number of rounds per leaf.
_MIN_LEAF_ROUNDS = 20
#: Learning rate: the factor of every tree's predictions.
_LEARNING_RATE = 0.15
#: Maximum number of bins per column.
_MAX_BINS = 64
#: Maximum number of rounds on which the split points of a tree are found.
_MAX_SPLIT_ROUNDS = 1024
#: An odd number whose multiples are spread uniformly over 64 bits (2**64 divided by the golden
#: ratio).
_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@policies.register("trees")
class Trees(Policy):
    """A policy that predicts rewards by gradient-boosted trees, fitted for each arm.

    The bonus of an arm does not depend on the context: it is ``1 / sqrt(1 + n)`` times the standard
    deviation of the arm's rewards after n rounds. At most 131,072 rounds are stored. If there are
    more, a sample is stored, which does not depend on their order.

    The settings are those of every policy (``daband.Policy``), with at most 128 arms. ``gamma`` is
    10 by default. ``seed`` also affects the trees of an arm with more than 1,024 rounds, because
    their split points are found on samples. Other trees depend only on the rounds.

    >>> policy = daband.Trees(context_shape=(1,), n_arms=2, explore="greedy", seed=0)
    >>> x, arm = [[i / 400] for i in range(400)], [0, 1] * 200
    >>> skipped = policy.update(x, arm, [float((i > 200) == (i % 2 == 1)) for i in range(400)])
    >>> fitted = policy.adapt()
    >>> policy.select([[0.2], [0.8]]).arm.tolist()
    [0, 1]
    """

    # the bonus does not depend on the context, so gaps count less than for linear policies
    default_settings: ClassVar = {"gamma": 10.0}
    scale_matters = True  # trees ignore the scale of features, but domains may have different units

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.n_arms > MAX_ARMS:
            raise InvalidInput(f"n_arms must be at most {MAX_ARMS} for trees, got {self.n_arms}")
        n_models = self.n_arms if self.arms == "disjoint" else 1
        self._n_inputs = math.prod(self.feature_shape)
        #: The number of rounds of each model, (models,).
        self._round_counts: IntArray = np.zeros(n_models, np.int64)
        #: The stored rounds in blocks. A row is a round: the context, the index of the model, the
        #: reward, the weight.
        self._round_blocks: list[FloatArray] = [np.empty((0, self._n_inputs + 3))]
        #: The arrays of a ``TreeNetwork``, by name.
        self._trees: Arrays = make_empty_trees(n_models)
        #: The number of rounds that had been learned at the last fit.
        self._rounds_at_fit = 0

    @property
    def counts(self) -> IntArray:
        """The number of rounds of each arm, (K,), or of all, (1,), with shared arms."""
        return self._round_counts

    # Decisions.

    @property
    def _has_trees(self) -> BoolArray:
        """True for the models with trees, (models,)."""
        return self._trees["roots"].max(axis=1, initial=0) > 0

    def predict_fixed(self, contexts: AnyArray) -> tuple[FloatArray, BoolArray]:
        """Return the predicted rewards (n, K) of transformed contexts, and a mask (K,) of the arms
        whose predictions stay the same until ``adapt``. The others are
        ``reward_moments.compute_shrunk_means``.
        """
        network = self._build_network()
        return network(contexts.reshape(-1, self._n_inputs))[:, :-1], self._has_trees

    def _build_network(self) -> TreeNetwork:
        """Return a network that predicts by trees, or by the shrunk mean reward for an arm without
        trees.
        """
        shrunk_means = self.reward_moments.compute_shrunk_means(len(self._round_counts))
        base_rewards = np.where(self._has_trees, self._trees["base"], shrunk_means)
        return TreeNetwork(
            {"kind": "trees", "inputs": self._n_inputs}, {**self._trees, "base": base_rewards}
        )

    def _predictor(self, domain: int) -> Predictor:
        n_models = len(self._round_counts)
        inverse = np.zeros((n_models, n_models + 1))
        inverse[:, -1] = 1.0 / (1.0 + self._round_counts)
        return RidgePredictor(
            steps=(ContextStep(self.feature_shape, self._build_network()),),
            theta=np.eye(n_models, n_models + 1),
            inverse=inverse,
            scale=self._compute_units(),
        )

    # Learning.

    def _learn(self, rounds: Rounds, domain: int) -> None:
        contexts, arms, rewards = rounds.contexts, rounds.arms, rounds.rewards
        weights = self._weigh(rounds)
        round_weights = np.ones(len(arms)) if weights is None else weights
        if self.arms == "shared":
            contexts = take_chosen(contexts, arms)
            model_indices = np.zeros(len(arms), np.int64)
        else:
            model_indices = arms
        inputs = to_rows(contexts)
        rows = np.column_stack([inputs, model_indices, rewards, round_weights])
        np.add.at(self._round_counts, model_indices, 1)
        self._round_blocks.append(rows)
        if sum(map(len, self._round_blocks)) > 2 * MAX_STORED_ROUNDS:
            stored_rounds = self._get_stored_rounds()
            self._round_blocks = [stored_rounds[sample_rounds(stored_rounds)]]

    def _get_stored_rounds(self) -> FloatArray:
        """Return all stored rounds, after joining their blocks."""
        if len(self._round_blocks) > 1:
            self._round_blocks = [np.concatenate(self._round_blocks)]
        return self._round_blocks[0]

    def _adapt(self, steps: int | None) -> dict[str, float]:
        """Fit the trees again if there are a quarter more rounds.

        With ``steps``, one new round is enough.
        """
        n_learned = int(self._round_counts.sum())
        if n_learned == self._rounds_at_fit or (
            steps is None and n_learned < _REFIT_GROWTH * self._rounds_at_fit
        ):
            return {}
        stored_rounds = self._get_stored_rounds()
        rounds = stored_rounds[sample_rounds(stored_rounds)]
        trees = fit_trees(rounds, len(self._round_counts), self.seed)
        with self._locks.state:
            self._trees = trees
            self._rounds_at_fit = n_learned
        return {"trees": float((trees["roots"] > 0).sum())}

    def _grow(self) -> None:
        if self.arms == "shared":
            return
        if self.n_arms >= MAX_ARMS:
            raise InvalidInput(
                f"n_arms must be at most {MAX_ARMS} for trees, and there are {self.n_arms} already"
            )
        self._round_counts = np.append(self._round_counts, 0)
        roots = self._trees["roots"]
        base_rewards = self._trees["base"]
        new_arrays = {
            "roots": np.pad(roots, ((0, 1), (0, 0))),
            "base": np.append(base_rewards, 0.5),
        }
        self._trees = {**self._trees, **new_arrays}

    def _state(self, *, replay: bool = True) -> Arrays:
        stored_rounds = self._get_stored_rounds()[: None if replay else 0]
        state = add_prefix("trees/", self._trees)
        state |= {"rounds": self._round_counts, "kept": stored_rounds}
        return {**state, "fitted": np.array([self._rounds_at_fit], np.int64)}

    def _restore(self, state: Arrays) -> None:
        n_models = self.n_arms if self.arms == "disjoint" else 1
        stored_rounds, round_counts = read_stored_rounds(self, state, self._n_inputs + 3, n_models)
        trees = drop_prefix("trees/", state)
        # rejects arrays that do not fit
        TreeNetwork({"kind": "trees", "inputs": self._n_inputs}, trees)
        if {len(trees["roots"]), len(trees["base"])} != {n_models}:
            raise ValueError(f"the trees must be those of {n_models} models")
        self._round_blocks = [stored_rounds]
        self._round_counts = round_counts
        self._trees = {name: np.array(array) for name, array in trees.items()}
        self._rounds_at_fit = int(state["fitted"][0])


def read_stored_rounds(
    policy: Policy, state: Arrays, n_columns: int, n_models: int
) -> tuple[FloatArray, IntArray]:
    """Return the stored rounds "kept" (n, n_columns) and the number of rounds of each model
    (n_models,), which were read from a policy's file.

    Raise ``ValueError`` unless they agree. The last columns of a round are the index of its model,
    its reward and its weight.
    """
    rounds: FloatArray = np.array(state["kept"], np.float64)
    counts: IntArray = read_array(state, "rounds", np.zeros(n_models, np.int64))
    n_fitted = int(state["fitted"][0])
    stored_counts = (rounds[:, -3, None] == np.arange(n_models)).sum(axis=0)
    if (
        rounds.shape[1:] != (n_columns,)
        or stored_counts.sum() < len(rounds)
        or (stored_counts > counts).any()
        or not 0 <= n_fitted <= counts.sum() <= policy.rounds_learned
    ):
        raise ValueError(f"kept has other rounds than the {policy.rounds_learned} learned ones")
    return rounds, counts


def sample_rounds(rows: FloatArray, n_rows: int | None = None) -> IntArray:
    """Return the indices of a sample of at most ``n_rows`` rows, by default 131,072.

    They are the rows with the smallest hashes, so the sample does not depend on the order of rows.
    """
    n_rows = MAX_STORED_ROUNDS if n_rows is None else n_rows
    if len(rows) <= n_rows:
        return np.arange(len(rows))
    bits = np.ascontiguousarray(rows).view(np.uint64)
    hashes = np.zeros(len(rows), np.uint64)
    for column in bits.T:
        hashes = (hashes ^ column) * _HASH_MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    return np.argsort(hashes, kind="stable")[:n_rows]


def round_to_16_bits(numbers: FloatArray) -> FloatArray:
    """Return numbers rounded to 16 binary digits, because files must not contain exact values of
    training data.
    """
    fraction, exponent = np.frexp(numbers)
    return np.ldexp(np.round(fraction * 65536.0) / 65536.0, exponent)


def _compute_bin_edges(contexts: FloatArray) -> list[FloatArray]:
    """Return the edges of each column's bins: quantiles, or midpoints between values if there are
    few values.
    """
    bin_edges = []
    for column in contexts.T:
        distinct_values = np.unique(column)
        column_edges = 0.5 * (distinct_values[:-1] + distinct_values[1:])
        if len(distinct_values) > _MAX_BINS:
            column_edges = np.quantile(column, np.linspace(0.0, 1.0, _MAX_BINS + 1)[1:-1])
        bin_edges.append(np.unique(round_to_16_bits(column_edges)))
    return bin_edges


def fit_trees(rounds: FloatArray, n_models: int, seed: int) -> Arrays:
    """Fit trees for each model with enough rounds.

    Return the arrays of a ``TreeNetwork``, whose node 0 is not used.
    """
    rounds = rounds[np.lexsort(rounds.T)]  # sums of floating-point numbers depend on their order
    contexts = rounds[:, :-3]
    model_indices = rounds[:, -3]
    bin_edges = _compute_bin_edges(contexts)
    bins_by_column = map(np.searchsorted, bin_edges, contexts.T)
    bins = np.stack(list(bins_by_column), axis=1, dtype=np.float32)
    base_rewards = np.full(n_models, 0.5)
    trees: dict[tuple[int, int], TreeNodes] = {}
    for model_index in range(n_models):
        rows = np.flatnonzero(model_indices == model_index)
        if len(rows) < _MIN_ROUNDS:
            continue
        rewards = rounds[rows, -2]
        weights = rounds[rows, -1]
        mean_reward = float(np.average(rewards, weights=weights))
        reward_std = float(rewards.std()) or 1.0
        # Rounding makes the trees independent of the unit of rewards, ties included.
        residuals = np.round((rewards - mean_reward) / reward_std, 9)
        base_rewards[model_index] = mean_reward
        for tree_index, (tree, node_values) in enumerate(
            _boost(bins[rows], residuals, weights, seed)
        ):
            thresholds = np.zeros(tree.node_count)
            for node in np.flatnonzero(tree.children_left >= 0):
                thresholds[node] = bin_edges[tree.feature[node]][int(tree.threshold[node])]
            trees[model_index, tree_index] = TreeNodes.read(
                tree, thresholds, reward_std * node_values
            )
    return {**join_trees(trees, n_models, _TREES_PER_ARM), "base": base_rewards}


class TreeNodes(NamedTuple):
    """The nodes of a fitted tree. Only leaves use ``value``, and only other nodes the fields
    before.
    """

    is_leaf: BoolArray
    feature: AnyArray
    threshold: FloatArray
    left: AnyArray
    right: AnyArray
    value: FloatArray
    depth: int

    @classmethod
    def read(cls, tree: Any, thresholds: FloatArray, values: FloatArray) -> TreeNodes:
        """Return the nodes of a tree of scikit-learn, with these thresholds and values."""
        left, right = tree.children_left, tree.children_right
        return cls(left < 0, tree.feature, thresholds, left, right, values, tree.max_depth)


def join_trees(trees: Mapping[tuple[int, int], TreeNodes], n_models: int, n_trees: int) -> Arrays:
    """Return the arrays of a ``TreeNetwork`` without ``base``, from trees by model and number.

    Node 0, a leaf with value 0, is the root of missing trees.
    """
    arrays = make_empty_trees(n_models, n_trees)
    if not trees:
        return arrays
    first_tree, *_ = trees.values()
    zeros: list[Any] = [np.zeros_like(array[:1]) for array in first_tree[:-1]]
    *columns, depths = zip(TreeNodes._make([*zeros, 1]), *trees.values(), strict=True)
    is_leaf, features, thresholds, left, right, values = map(np.concatenate, columns)
    sizes = list(map(len, columns[0]))
    starts = np.cumsum(sizes) - sizes
    for position, start in zip(trees, starts[1:], strict=True):
        arrays["roots"][position] = start
    children = np.stack([left, right]) + np.repeat(starts, sizes)
    return arrays | {
        "feature": np.where(is_leaf, 0, features).astype(np.int64),
        "threshold": np.where(is_leaf, 0.0, thresholds),
        # a leaf is its own child
        "children": np.where(is_leaf, np.arange(len(is_leaf)), children).astype(np.int64),
        "value": values,
        "depth": np.array([max(depths)], np.int64),
    }


def fit_tree_network(
    contexts: FloatArray,
    arms: IntArray,
    rewards: FloatArray,
    weights: FloatArray,
    n_arms: int,
    seed: int,
) -> TreeNetwork:
    """Return trees that predict the reward of each arm, fitted to rounds.

    An arm without trees is predicted by its mean reward, shrunk towards the mean of all rewards.
    """
    trees = fit_trees(np.column_stack([contexts, arms, rewards, weights]), n_arms, seed)
    sums = np.bincount(arms, weights * rewards, minlength=n_arms)
    means = (sums + weights @ rewards / weights.sum()) / (
        1.0 + np.bincount(arms, weights, minlength=n_arms)
    )
    trees["base"] = np.where(trees["roots"].any(axis=1), trees["base"], means)
    return TreeNetwork({"kind": "trees", "inputs": contexts.shape[1]}, trees)


def _boost(
    bins: AnyArray, residuals: FloatArray, weights: FloatArray, seed: int
) -> Iterator[tuple[Any, FloatArray]]:
    """Yield each tree with the values of its nodes, (nodes,).

    A tree is fitted to the residuals of the trees before.
    """
    from sklearn import config_context
    from sklearn.tree import DecisionTreeRegressor

    n_rounds = len(residuals)
    rng = np.random.default_rng(seed)
    min_leaf_rounds = max(2, _MIN_LEAF_ROUNDS * min(n_rounds, _MAX_SPLIT_ROUNDS) // n_rounds)
    has_equal_weights = bool((weights == weights[0]).all())
    for tree_index in range(_TREES_PER_ARM):
        rows = np.arange(n_rounds)
        if n_rounds > _MAX_SPLIT_ROUNDS:
            rows = rng.choice(n_rounds, _MAX_SPLIT_ROUNDS, replace=False)
        regressor = DecisionTreeRegressor(
            splitter="random",
            max_leaf_nodes=_MAX_LEAVES,
            min_samples_leaf=min_leaf_rounds,
            random_state=tree_index,
        )
        # Checks of inputs and parameters would take as long as the trees.
        sample_weight = None if has_equal_weights else weights[rows]
        with config_context(skip_parameter_validation=True):
            regressor.fit(
                bins[rows], residuals[rows], sample_weight=sample_weight, check_input=False
            )
        leaves = regressor.tree_.apply(bins)
        n_nodes = regressor.tree_.node_count
        leaf_weights = np.bincount(leaves, weights, minlength=n_nodes)
        leaf_sums = np.bincount(leaves, weights * residuals, minlength=n_nodes)
        node_values = _LEARNING_RATE * leaf_sums / np.where(leaf_weights > 0, leaf_weights, 1.0)
        residuals = residuals - node_values[leaves]
        yield regressor.tree_, node_values
