"""Choose arms by a small decision tree over the columns of a table.

The tree is fixed; the arm of each leaf is the arm with the largest mean reward there. ``rules``
in ``daband.trust`` finds the tree in the data of a choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np

from daband.base._arrays import (
    MAX_RAW_NORM,
    AnyArray,
    FloatArray,
    IntArray,
    to_rows,
)
from daband.errors import InvalidInput
from daband.linear._predictor import ContextStep, Predictor, RidgePredictor
from daband.policies._checkpoints import check_notes, save_rules
from daband.policies._policy import Policy
from daband.policies._registered import policies
from daband.rounds._rounds import Rounds
from daband.serving._deployed_policy import DeployedPolicy, load_deployed
from daband.serving._export import export
from daband.serving._rule import Rule, build_leaf_network, count_leaves, from_state, to_state


@policies.register("rules")
class RulePolicy(Policy):
    """A policy that chooses arms by a small decision tree over the columns of a table.

    ``daband.rules(choice)`` makes one. The score of an arm is its mean reward in the leaf of the
    context, including the rounds from which the tree was learned. Rewards that are learned later
    may change the arms of leaves, but not the tree. A file with the suffix ``.json`` contains the
    policy and its rule as a JSON tree.

    Args:
        tree: the tree, as ``daband.rules`` makes it; None for a tree with one leaf.
        settings: the settings of every policy (``daband.Policy``). ``explore`` is "greedy" by
            default, and ``arms`` is "disjoint".

    >>> policy = daband.RulePolicy(context_shape=(1,), n_arms=2, seed=0)
    >>> skipped = policy.update([[0.0]] * 4, [0, 0, 1, 1], [0.0, 0.0, 1.0, 1.0])
    >>> policy.rule.leaf_arms
    ('1',)
    """

    default_settings: ClassVar = {"explore": "greedy"}
    allows_shared_arms = False
    arm_arrays = ("_prior_means", "_prior_counts", "_sums", "_round_counts")
    max_norm = MAX_RAW_NORM  # contexts are only compared with thresholds

    def __init__(self, *, tree: Any = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._n_inputs = math.prod(self.feature_shape)
        try:
            #: The tree.
            self.node = from_state(0 if tree is None else tree)
            self._network = build_leaf_network(self.node, self._n_inputs)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InvalidInput(f"tree must be a tree of daband.rules, got {tree!r}") from error
        shape = count_leaves(self.node), self.n_arms
        #: The prior mean of the rewards of each arm in each leaf, minus the mean of all rewards if
        #: the tree was not learned from data, (L, K).
        self._prior_means: FloatArray = np.zeros(shape)
        #: The number of rounds for which the prior means count, (L, K); 0 without data.
        self._prior_counts: FloatArray = np.zeros(shape)
        #: The sums of weights and of weighted rewards of later rounds, (2, L, K).
        self._sums: FloatArray = np.zeros((2, *shape))
        #: The number of later rounds of each arm, (K,).
        self._round_counts: IntArray = np.zeros(self.n_arms, np.int64)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "tree": to_state(self.node)}

    @property
    def counts(self) -> IntArray:
        """The number of rounds of each arm, (K,)."""
        return self._round_counts + self._prior_counts.sum(axis=0).astype(np.int64)

    @property
    def rule(self) -> Rule:
        """The tree with the present arm of each leaf, which can be written as SQL or JSON."""
        names = self.arm_names or tuple(map(str, range(self.n_arms)))
        with self._locks.state:
            means = self._compute_leaf_scores()[0]
        catalogue = self.catalogue
        offered = np.ones(self.n_arms, np.bool_)
        if catalogue is not None:
            offered = catalogue.offered[int(self.domains.is_target(self._domain_index))]
        arms = np.where(offered, means, -np.inf).argmax(axis=1)
        return Rule(self.node, tuple(names[arm] for arm in arms))

    def set_prior(self, means: FloatArray, counts: FloatArray) -> None:
        """Set the mean rewards of the rounds from which the tree was learned, and their numbers,
        (L, K) each.
        """
        with self._locks.write, self._locks.state:
            self._prior_means = np.array(means, np.float64)
            self._prior_counts = np.maximum(counts, 1.0)

    def as_deployed(self) -> DeployedPolicy:
        """Return the policy as ``daband.export`` writes it."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "rules.daband"
            export(self, path)
            return load_deployed(path)

    def save(
        self, path: str | Path, *, notes: Mapping[str, str] | None = None, replay: bool = True
    ) -> None:
        if Path(path).suffix != ".json":
            super().save(path, notes=notes, replay=replay)
            return
        with self._locks.write:
            save_rules(self, path, check_notes(notes), replay=replay)

    def _predictor(self, domain: int) -> Predictor:
        means, variances = self._compute_leaf_scores()
        no_constant = np.zeros((self.n_arms, 1))  # the network's last feature
        return RidgePredictor(
            steps=(ContextStep(self.feature_shape, self._network),),
            theta=np.hstack([means.T, no_constant]),
            inverse=np.hstack([variances.T, no_constant]),
            scale=self.reward_moments.scale,
        )

    def find_leaves(self, contexts: AnyArray) -> IntArray:
        """Return the index of the leaf of each context, (n,)."""
        rows = to_rows(contexts)
        leaves: IntArray = self._network(rows)[:, :-1].argmax(axis=1)
        return leaves

    def _compute_leaf_scores(self) -> tuple[FloatArray, FloatArray]:
        """Return the mean reward, and the variance of the bonus, of each arm in each leaf, (L, K).

        An arm that has no rounds counts as one round with the mean of all rewards.
        """
        has_prior = self._prior_counts > 0
        prior_counts = np.where(has_prior, self._prior_counts, 1.0)
        prior_means = np.where(has_prior, self._prior_means, self.reward_moments.centre)
        counts = prior_counts + self._sums[0]
        means = (prior_counts * prior_means + self._sums[1]) / counts
        return means, 1.0 / (1.0 + self._prior_counts + self._sums[0])

    def _learn(self, rounds: Rounds, domain: int) -> None:
        weights = self._weigh(rounds)
        round_weights = np.ones(len(rounds.arms)) if weights is None else weights
        cells = self.find_leaves(rounds.contexts), rounds.arms
        np.add.at(self._sums[0], cells, round_weights)
        np.add.at(self._sums[1], cells, round_weights * rounds.rewards)
        np.add.at(self._round_counts, rounds.arms, 1)
