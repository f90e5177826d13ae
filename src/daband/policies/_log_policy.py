"""Learn a policy from a log: the best arm, or a choice by context if the log proves that this is
better.

``daband/logs/_advantages.py`` implements the method and states its guarantee. The policy stores
the rounds that it learns, and contexts of the target that it observes. It fits the candidates
before the next decision, and the fit does not depend on the order of rounds. Of earlier fits, it
only keeps whether a gain was proven (``LogEvidence.personalises``). A fit takes seconds for 20,000
rounds, so the policy is meant for logs, not for learning after every round.

In a target, three ridge regressions also learn every round, and the worth of source rounds
(``daband/linear/_source_worth.py``). The first has effects of contexts for each arm. The second has
the same effects for all arms, as if arms did not differ. The third has the same effects for all
arms, and adds the differences of arms that the fitted policy predicts. They predict target rewards
before they learn them. The logarithm of the likelihood ratio of the first one and another one
changes with their losses l1 and l2 (L in that module), for noise of variance v:

    r <- r + (l2 - l1) / (2 v), clipped to [-log 5000, log 5000]

It is clipped so that a change of the target is found after few rounds (Page, 1954). The first
regression decides while r is above log 20 against both others: arms differ, and it predicts better
than the fitted policy. This is a rule, not a test: a likelihood ratio above 20 has a probability of
at most 5% (Ville, 1939) only if the third regression is the true model, and if r is not clipped.
The first r starts at log 5000 if the log proves the gain of choosing by context. Otherwise r starts
at 0.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any, ClassVar

import numpy as np

from daband.base._arrays import (
    AnyArray,
    Arrays,
    FloatArray,
    IntArray,
    Mask,
    add_prefix,
    drop_prefix,
    read_array,
    take_chosen,
    to_rows,
    use_one_blas_thread,
)
from daband.errors import InvalidInput, NotFitted
from daband.features._piecewise import PIECEWISE_ARRAY_NAMES, PiecewiseStep, fit_ramps
from daband.linear._joint_ridge import JointHead
from daband.linear._predictor import ContextStep, Predictor, RidgePredictor
from daband.linear._propensities import estimate_propensities
from daband.linear._ridge_head import RidgeHead
from daband.linear._source_worth import WorthEstimate
from daband.logs._advantages import (
    CANDIDATES,
    AdvantageModel,
    FeatureStep,
    LogEvidence,
    PolicyValues,
    ScoredLog,
    compute_lower_theta,
    learn_advantages,
    score_log,
    weigh_target_rounds,
)
from daband.policies._policy import Policy
from daband.policies._registered import policies
from daband.policies._stored_rounds import StoredRounds, fill_columns
from daband.policies._trees import (
    MAX_ARMS,
    fit_tree_network,
    sample_rounds,
)
from daband.rounds._rounds import Rounds
from daband.serving._numpy_networks import TreeNetwork

#: Maximum number of dimensions of a context; larger contexts need a transform.
MAX_DIMENSIONS = 1024
#: Maximum number of target contexts that are stored.
_MAX_TARGET_CONTEXTS = 8192
#: The first regression decides if its likelihood ratios are above this value.
_MIN_RATIO = 20.0
#: The logarithm of the largest likelihood ratio.
_MAX_LOG_RATIO = math.log(5000.0)


@policies.register("log")
class LogPolicy(Policy):
    """A policy that always chooses the best arm of a log, or chooses by context if the log proves
    that this is better.

    Learn a log of randomised rounds, such as an A/B test, by ``daband.train`` or
    ``daband.fit_log``, or by ``update`` with ``propensities``; propensities that are not given are
    estimated. ``policy.evidence`` reports the best arm and the gain of choosing by context, in the
    unit of rewards. Unequal weights of rounds, e.g. by age, lower the effective number of rounds,
    and so raise the standard errors. If the policy has observed target contexts, as in
    ``daband.train``, the best arm and the gain are those for the target's contexts.

    Args:
        by_context: if False, always choose the best arm.
        settings: the settings of every policy (``daband.Policy``). Contexts have at most 1,024
            numbers. ``explore`` is "greedy" by default. Bonuses fall with the number of an arm's
            rounds, in which source rounds count by their learned worth. ``arms`` is "disjoint".
            ``seed`` also determines the folds of cross-fitting.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> age, mail = rng.uniform(20, 80, (4000, 1)), rng.integers(0, 2, 4000)
    >>> spent = rng.normal(5 + mail * np.where(age[:, 0] < 50, 1.0, -1.0))
    >>> policy = daband.LogPolicy(context_shape=(1,), n_arms=2)
    >>> skipped = policy.update(age, mail, spent)
    >>> policy.evidence.personalises, policy.select([[30.0], [70.0]]).arm.tolist()
    (True, [1, 0])
    """

    # the regressions do not depend on the scale, but domains may have different units
    scale_matters = True
    default_settings: ClassVar = {"explore": "greedy"}
    allows_shared_arms = False
    propensity_power = 0.0  # propensities are used in scores, not as weights
    weights_are_relative = True

    def __init__(self, *, by_context: bool = True, **settings: Any) -> None:
        super().__init__(**settings)
        self.by_context = bool(by_context)
        self._n_inputs = math.prod(self.feature_shape)
        if self._n_inputs > MAX_DIMENSIONS:
            raise InvalidInput(
                f"context_shape must have at most {MAX_DIMENSIONS:,} dimensions for LogPolicy, got"
                f" {self._n_inputs:,}; reduce them by transform=daband.PCA(64)"
            )
        self._stored = StoredRounds(self._n_inputs)
        #: A sample of the observed target contexts, (m, d).
        self._target_contexts: FloatArray = np.empty((0, self._n_inputs))
        #: The number of rounds of each arm, (K,).
        self._round_counts: IntArray = np.zeros(self.n_arms, np.int64)
        #: The fitted regressions; None before the first fit.
        self._advantages: AdvantageModel | None = None
        #: The number of rounds that had been learned at the last fit.
        self._rounds_at_fit = 0
        #: The step that computes the features of ``_heads``.
        self._ramps: PiecewiseStep | None = None
        #: The regressions that learn the worth of source rounds, in the order of the module's
        #: docstring; none before the first target round.
        self._heads: list[RidgeHead] = []
        #: The logarithms of the likelihood ratios of the first one and each other one, r.
        self._log_ratios: FloatArray = np.zeros(2)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "by_context": self.by_context}

    @property
    def counts(self) -> IntArray:
        """The number of rounds of each arm, (K,)."""
        return self._round_counts

    @property
    def evidence(self) -> LogEvidence:
        """The best arm, and the cross-fitted gain of choosing by context instead."""
        with self._locks.write, self._locks.state:
            advantages = self._fit()
            if advantages is None:
                raise NotFitted(
                    "LogPolicy has no evidence: it has not learned a round; call update, train or"
                    " fit_log"
                )
            return advantages.evidence

    @property
    def personalises(self) -> bool:
        """True if arms are chosen by context."""
        return self.evidence.personalises or self._get_deciding_head() is not None

    @property
    def values(self) -> PolicyValues | None:
        """The cross-fitted values of the stored rounds, in the order of ``find_rounds``.

        None if there are too few rounds, or if a file without training data was loaded.
        """
        with self._locks.write, self._locks.state:
            advantages = self._fit()
            if advantages is not None and advantages.values is None and len(self._stored):
                cross_fitted = advantages.cross_fitted
                scored = self.score_rounds()
                if scored is None:
                    return None
                if cross_fitted is not None:
                    values = scored.make_values(cross_fitted)
                    self._advantages = replace(advantages, values=values)
                else:  # an arm was added
                    self._rounds_at_fit = 0
                    self._fit()
            return None if self._advantages is None else self._advantages.values

    def score_rounds(self) -> ScoredLog | None:
        """Return the stored rounds with their scores, in the order of ``find_rounds``; None if there
        are too few.
        """
        with self._locks.write, self._locks.state, use_one_blas_thread():
            log, target, is_offered = self._collect_log()
            return score_log(log, self.n_arms, target=target, offered=is_offered, seed=self.seed)

    def find_rounds(self, rounds: Rounds) -> IntArray | None:
        """Return the index in ``rounds`` of each round that ``values`` has, (n,); None if the
        policy has learned another round.

        Contexts must be transformed.
        """
        return self._stored.find(rounds)

    # Decisions.

    def _predictor(self, domain: int) -> Predictor:
        moments = self.reward_moments
        if head := self._get_deciding_head():
            assert self._ramps is not None
            step = ContextStep(self.feature_shape, self._ramps)
            return head.predictor(moments.centre, moments.scale).after(step)
        feature_step, theta = self._get_step_and_theta()
        inverse = np.zeros(theta.shape)
        inverse[:, feature_step.constant_index] = 1.0 / (1.0 + self._count_target_rounds())
        return RidgePredictor(
            steps=(ContextStep(self.feature_shape, feature_step),),
            theta=theta,
            inverse=inverse,
            scale=moments.scale,
            new_theta=self._compute_new_theta(feature_step, theta),
        )

    def _get_source_worth(self) -> WorthEstimate | None:
        return self._heads[0].estimate_worth() if self._heads else None

    def _count_target_rounds(self) -> FloatArray:
        """Return the number of rounds of each arm, (K,), in which source rounds count by their
        learned worth.
        """
        worth = self._heads[0].worth if self._heads else None
        if worth is None:
            return self._round_counts.astype(np.float64)
        return self._round_counts - (1.0 - worth.estimate.worth) * worth.source_counts

    def _get_deciding_head(self) -> RidgeHead | None:
        """Return the regression with effects for each arm if it decides, otherwise None."""
        is_better = (self._log_ratios > math.log(_MIN_RATIO)).all()
        return self._heads[0] if self.by_context and is_better else None

    def _get_step_and_theta(self) -> tuple[FeatureStep, FloatArray]:
        """Return the step that computes features, and their coefficients (K, d).

        Without rounds, all arms are equal.
        """
        advantages = self._fit()
        if advantages is not None:
            return advantages.step, advantages.theta
        no_values = np.zeros(0)
        feature_step = PiecewiseStep(
            np.zeros(0, np.int64), no_values, no_values, no_values, no_values, self._n_inputs
        )
        return feature_step, np.full((self.n_arms, 1), self.reward_moments.centre)

    # Learning.

    def _learn(self, rounds: Rounds, domain: int) -> None:
        is_target = domain >= self._first_target
        rounds = fill_columns(rounds, is_target=is_target)
        if not len(rounds):
            return
        if is_target and len(self._stored) and not self._heads:
            stored = self._stored.sample()
            self._log_ratios = np.array([_MAX_LOG_RATIO * self.personalises, 0.0])
            self._make_heads(fit_ramps(stored.contexts, 1))
            assert stored.domains is not None
            for is_stored_target in (False, True):
                rows = stored.domains == is_stored_target
                self._update_heads(stored.select(rows), is_target=is_stored_target)
        self._update_heads(rounds, is_target=is_target)
        self._stored.add(rounds)
        np.add.at(self._round_counts, rounds.arms, 1)

    def _make_heads(self, ramps: PiecewiseStep) -> None:
        """Make regressions without rounds."""
        dim = ramps.n_features
        self._ramps = ramps
        self._heads = [
            RidgeHead(n_arms=self.n_arms, dim=dim, arms="disjoint", ridge=1.0),
            *(JointHead(vectors=np.ones((self.n_arms, 1)), dim=dim, ridge=1.0) for _ in range(2)),
        ]
        for head in self._heads:
            head.fixed_worth = self._fixed_worth

    def _update_heads(self, rounds: Rounds, *, is_target: bool) -> None:
        """Learn rounds of one domain by the regressions."""
        if not self._heads or not len(rounds):
            return
        assert self._ramps is not None
        features = self._ramps(rounds.contexts)
        arms = rounds.arms
        differences = self._predict_differences(rounds.contexts, arms)
        all_offsets = np.stack([np.zeros_like(differences)] * 2 + [differences])
        moments = self.reward_moments if is_target else None
        start = 0
        while start < len(rounds):
            n_rounds = min(head.get_block_length(is_target=True) for head in self._heads)
            block = slice(start, None if moments is None else start + n_rounds)
            weights = rounds.known_weights[block]
            rewards = rounds.rewards[block]
            for head, offsets in zip(self._heads, all_offsets[:, block], strict=True):
                head.learn(
                    features[block], arms[block], rewards - offsets, weights, target_moments=moments
                )
            start += len(rewards)
            worths = [head.worth for head in self._heads if head.worth is not None]
            # losses must be those of the same rounds
            if len(worths) == 3 and len({worth.n_fitted_rounds for worth in worths}) == 1:
                losses = np.array([worth.loss for worth in worths])
                changes = (losses[1:] - losses[0]) / (2 * worths[0].noise_variance or 1.0)
                limits = -_MAX_LOG_RATIO, _MAX_LOG_RATIO
                self._log_ratios = np.clip(self._log_ratios + changes, *limits)
                for worth in worths:
                    worth.loss = 0.0

    def _predict_differences(self, contexts: FloatArray, arms: IntArray) -> FloatArray:
        """Return the differences (n,) of the fitted predictions for arms from the mean over all
        arms.
        """
        assert self._advantages is not None
        predictions = self._advantages.step(contexts) @ self._advantages.theta.T
        return take_chosen(predictions, arms) - predictions.mean(axis=1)

    def _observe(self, contexts: AnyArray, domain: int) -> None:
        rows = to_rows(contexts)
        with self._locks.state:
            rows = np.concatenate([self._target_contexts, rows])
            self._target_contexts = rows[sample_rounds(rows, _MAX_TARGET_CONTEXTS)]
            self._rounds_at_fit = 0

    def _fit(self) -> AdvantageModel | None:
        """Return the fitted candidate, or None without rounds.

        Fit again if rounds were learned or target contexts were observed since the last fit.
        """
        n_rounds = int(self._round_counts.sum())
        if n_rounds > self._rounds_at_fit:
            log, target, is_offered = self._collect_log()
            was_proven = self._advantages is not None and self._advantages.evidence.personalises
            with use_one_blas_thread():  # small matrices: threads would wait for each other
                self._advantages = learn_advantages(
                    log,
                    self.n_arms,
                    target=target,
                    rewards_may_differ=self.shift.rewards_may_differ,
                    by_context=self.by_context,
                    offered=is_offered,
                    fit_trees=self._fit_trees if self.n_arms <= MAX_ARMS else None,
                    seed=self.seed,
                    # a proof for the log's contexts is none for target contexts without rewards
                    was_proven=was_proven and (target is None or bool(self._heads)),
                )
            self._rounds_at_fit = n_rounds
        return self._advantages

    def _collect_log(self) -> tuple[Rounds, FloatArray | None, Mask]:
        """Return the stored rounds, the target contexts, and the arms that may be chosen."""
        log = self._read_log()
        target = self._target_contexts[np.lexsort(self._target_contexts.T)]
        is_offered = None if self._catalogue is None else np.logical_and(*self._catalogue.offered)
        return log, target if len(target) else None, is_offered

    def _read_log(self) -> Rounds:
        """Return the stored rounds as a log, with estimates of unknown propensities."""
        rounds = self._stored.read()
        propensities, clusters = rounds.known_propensities, rounds.clusters
        assert clusters is not None and rounds.domains is not None  # noqa: PT018
        is_unknown = propensities == 0.0
        if is_unknown.any():
            estimates, _ = estimate_propensities(rounds.contexts, rounds.arms, self.n_arms)
            propensities = np.where(is_unknown, estimates, propensities)
        indices = None
        if clusters.any():  # a round without a cluster is a cluster
            labels = np.where(clusters == 0, -1.0 - np.arange(len(rounds)), clusters)
            indices = np.unique(labels, return_inverse=True)[1]
        log = replace(rounds, propensities=propensities, clusters=indices, domains=None)
        return weigh_target_rounds(log, rounds.domains, self.n_arms)

    def _fit_trees(self, log: Rounds, n_arms: int) -> TreeNetwork:
        """Return boosted trees that predict the reward of each arm."""
        return fit_tree_network(
            log.contexts, log.arms, log.rewards, log.known_weights, n_arms, self.seed
        )

    def _grow(self) -> None:
        if self._advantages is not None:
            step = self._advantages.step
            theta = self._advantages.theta
            new_theta = self._compute_new_theta(step, theta)
            self._advantages = AdvantageModel(
                step, np.vstack([theta, new_theta]), self._advantages.evidence
            )
        for head in self._heads:
            head.add_arm(np.ones(1))
        self._round_counts = np.append(self._round_counts, 0)

    def _compute_new_theta(self, step: FeatureStep, theta: FloatArray) -> FloatArray:
        """Return the coefficients (d,) of an arm without rounds.

        Its prediction is below those of arms with rounds.
        """
        has_rounds = self._round_counts > 0
        return compute_lower_theta(
            step, theta[has_rounds] if has_rounds.any() else theta, self.reward_moments.scale
        )

    def _state(self, *, replay: bool = True) -> Arrays:
        advantages = self._fit()
        n_stored = None if replay else 0
        state = {
            **add_prefix("kept/", self._stored.arrays(with_rounds=replay)),
            "target": self._target_contexts[:n_stored],
            "rounds": self._round_counts,
            "fitted": np.array([self._rounds_at_fit], np.int64),
            "log_ratios": self._log_ratios,
        }
        if self._ramps is not None:
            state |= add_prefix("ramps/", self._ramps.arrays())
        for index, head in enumerate(self._heads):
            state |= add_prefix(f"head.{index}/", head.state())
        if advantages is None:
            return state
        if advantages.cross_fitted is not None:
            state["cross_fitted"] = advantages.cross_fitted[:n_stored]
        fields = asdict(advantages.evidence)
        state["candidate"] = np.frombuffer(fields.pop("candidate").encode(), np.uint8)
        evidence = np.array([*fields.values()])  # the limits of a short log are infinite
        step = advantages.step
        is_tree = isinstance(step, TreeNetwork)
        arrays = step.arrays if isinstance(step, TreeNetwork) else step.arrays()  # type: ignore[attr-defined]
        kind = "trees" if is_tree else "step"
        return {
            **state,
            "theta": advantages.theta,
            "evidence": evidence[np.isfinite(evidence)],
            **add_prefix(f"{kind}/", arrays),
        }

    def _read_step(self, state: Arrays) -> PiecewiseStep:
        """Return a saved step."""
        arrays = {name: np.array(state[name]) for name in PIECEWISE_ARRAY_NAMES}
        return PiecewiseStep(**arrays, n_inputs=self._n_inputs)

    def _restore(self, state: Arrays) -> None:
        stored = StoredRounds.restore(drop_prefix("kept/", state), self._n_inputs, self.n_arms)
        round_counts: IntArray = read_array(state, "rounds", np.zeros(self.n_arms, np.int64))
        n_rounds = int(round_counts.sum())
        if (np.bincount(stored.sample().arms, minlength=self.n_arms) > round_counts).any() or not (
            0 <= int(state["fitted"][0]) <= n_rounds <= self.rounds_learned
        ):
            raise ValueError(f"kept has other rounds than the {self.rounds_learned} learned ones")
        target_contexts = read_array(
            state, "target", np.empty((len(state["target"]), self._n_inputs))
        )
        advantages = None
        if round_counts.any():
            trees = drop_prefix("trees/", state)
            step: PiecewiseStep | TreeNetwork
            if trees:
                arrays = {name: np.array(array) for name, array in trees.items()}
                step = TreeNetwork({"kind": "trees", "inputs": self._n_inputs}, arrays)
                n_features = step.dimension
            else:
                step = self._read_step(drop_prefix("step/", state))
                n_features = step.n_features
            theta = np.array(state["theta"])
            if theta.shape != (self.n_arms, n_features):
                raise InvalidInput(f"the file has coefficients of shape {theta.shape}")
            arm, value, gain, n_fitted, fraction, *rest = state["evidence"].tolist()
            n_contexts, personalises, *limits = rest
            candidate = state["candidate"].tobytes().decode()
            if arm not in range(self.n_arms) or candidate not in CANDIDATES:
                raise ValueError(
                    f"evidence must have one of {self.n_arms} arms and a candidate, got {arm} and"
                    f" {candidate}"
                )
            counts = int(n_fitted), fraction, candidate, int(n_contexts)
            evidence = LogEvidence(int(arm), value, gain, *counts, bool(personalises), *limits)
            cross_fitted = None
            if "cross_fitted" in state:
                n_rows = len(stored) * evidence.personalises
                like = np.empty((n_rows, 1 + self.n_arms))
                cross_fitted = read_array(state, "cross_fitted", like)
            advantages = AdvantageModel(step, theta, evidence, cross_fitted=cross_fitted)
        self._heads, self._ramps = [], None
        self._log_ratios = read_array(state, "log_ratios", np.zeros(2))
        if ramps := drop_prefix("ramps/", state):
            self._make_heads(self._read_step(ramps))
            for index, head in enumerate(self._heads):
                head.restore(drop_prefix(f"head.{index}/", state))
        self._stored = stored
        self._target_contexts = target_contexts
        self._round_counts = round_counts
        self._advantages = advantages
        self._rounds_at_fit = 0 if advantages is None else int(state["fitted"][0])
