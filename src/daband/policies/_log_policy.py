"""Learn a policy from a log: the best arm, or a choice by context if the log proves that this is
better.

``daband/logs/_advantages.py`` implements the method and states its guarantee. The policy stores
the rounds that it learns. It fits the regressions before the next decision, and the fit does not
depend on the order of rounds. A fit takes seconds for 20,000 rounds, so the policy is meant for
logs, not for learning after every round.
"""

from __future__ import annotations

import math
from dataclasses import astuple
from typing import Any, ClassVar

import numpy as np

from daband.base._arrays import (
    AnyArray,
    FloatArray,
    IntArray,
    to_floats,
    use_one_blas_thread,
)
from daband.errors import InvalidInput, NotFitted
from daband.features._piecewise import PIECEWISE_ARRAY_NAMES, PiecewiseStep
from daband.linear._propensities import estimate_propensities
from daband.logs._advantages import (
    AdvantageModel,
    LogEvidence,
    compute_lower_theta,
    learn_advantages,
)
from daband.policies._incoming_rounds import PlayedRounds
from daband.policies._policy import Policy
from daband.policies._registered import policies
from daband.policies._trees import MAX_STORED_ROUNDS, read_stored_rounds, sample_rounds
from daband.serving._frozen_policy import FrozenParts, Member

#: Maximum number of dimensions of a context; larger contexts need a transform.
MAX_DIMENSIONS = 1024


@policies.register("log")
class LogPolicy(Policy):
    """A policy that always chooses the best arm of a log, or chooses by context if the log proves
    that this is better.

    Learn a log of randomised rounds, such as an A/B test, by ``daband.train`` or
    ``daband.fit_log``, or by ``update`` with ``propensities``; propensities that are not given are
    estimated. ``policy.evidence`` reports the best arm and the gain of choosing by context, in the
    unit of rewards. Unequal weights of rounds, e.g. by age, lower the effective number of rounds,
    and so raise the standard errors.

    Args:
        by_context: if False, always choose the best arm.
        settings: the settings of every policy (``daband.Policy``). Contexts have at most 1,024
            numbers. ``explore`` is "greedy" by default; "ucb" and "thompson" add a bonus that falls
            with the number of an arm's rounds. ``arms`` is "disjoint". ``seed`` also determines the
            folds of cross-fitting.

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
        #: Blocks of stored rounds. A row is a round: the context, the propensity (0 if unknown),
        #: the arm, the reward, the weight.
        self._round_blocks: list[FloatArray] = []
        #: The number of rounds of each arm, (K,).
        self._round_counts: IntArray = np.zeros(self.n_arms, np.int64)
        #: The fitted regressions; None before the first fit.
        self._advantages: AdvantageModel | None = None
        #: The number of rounds that had been learned at the last fit.
        self._rounds_at_fit = 0

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

    # Decisions.

    def _score(
        self, contexts: AnyArray, domain: int, with_bonuses: bool
    ) -> tuple[FloatArray, FloatArray]:
        feature_step, theta = self._get_step_and_theta()
        mean = feature_step(to_floats(contexts.reshape(len(contexts), -1))) @ theta.T
        bonus = self.reward_moments.scale * np.sqrt(1.0 / (1.0 + self._round_counts))
        return mean, np.broadcast_to(bonus, mean.shape).copy()

    def _freeze(self, domain: int) -> FrozenParts:
        feature_step, theta = self._get_step_and_theta()
        moments = self.reward_moments
        n_features = theta.shape[1]
        centred_theta = np.vstack([theta, self._compute_new_theta(feature_step, theta)])
        centred_theta[:, 0] -= moments.centre
        centred_theta /= moments.scale
        inverse = np.zeros((self.n_arms, n_features, n_features))
        inverse[:, 0, 0] = 1.0 / (1.0 + self._round_counts)
        member = Member(
            centred_theta[:-1], inverse, transform=feature_step, new_theta=centred_theta[-1]
        )
        return FrozenParts((member,), self._round_counts.copy())

    def _get_step_and_theta(self) -> tuple[PiecewiseStep, FloatArray]:
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

    def _learn(self, rounds: PlayedRounds, domain: int) -> None:
        contexts, arms, rewards, weights, propensities, _ = rounds
        rows = np.empty((len(arms), self._n_inputs + 4))
        rows[:, :-4] = to_floats(contexts.reshape(len(contexts), -1))
        rows[:, -4] = 0.0 if propensities is None else propensities
        rows[:, -3] = arms
        rows[:, -2] = rewards
        rows[:, -1] = 1.0 if weights is None else weights
        is_counted = rows[:, -1] > 0
        self._round_blocks.append(rows[is_counted])
        if sum(map(len, self._round_blocks)) > 2 * MAX_STORED_ROUNDS:
            self._round_blocks = [self._sample_stored()]
        np.add.at(self._round_counts, arms[is_counted], 1)

    def _sample_stored(self) -> FloatArray:
        """Return a sample of at most 131,072 stored rounds.

        The order of rounds does not change the sample.
        """
        return sample_rounds(
            np.concatenate([np.empty((0, self._n_inputs + 4)), *self._round_blocks])
        )

    def _fit(self) -> AdvantageModel | None:
        """Return the regressions, or None without rounds.

        Fit them again if rounds were learned since the last fit.
        """
        n_rounds = int(self._round_counts.sum())
        if n_rounds > self._rounds_at_fit:
            rounds = self._sample_stored()
            # sums of floating-point numbers depend on their order
            rounds = rounds[np.lexsort(rounds.T)]
            contexts = np.ascontiguousarray(rounds[:, :-4])
            propensities, _, rewards, weights = rounds[:, -4:].T
            arms = rounds[:, -3].astype(np.int64)
            is_unknown = propensities == 0.0
            if is_unknown.any():
                estimates, _ = estimate_propensities(contexts, arms, self.n_arms)
                propensities = np.where(is_unknown, estimates, propensities)
            is_offered = (
                None if self._catalogue is None else np.logical_and(*self._catalogue.offered)
            )
            with use_one_blas_thread():  # small matrices: threads would wait for each other
                self._advantages = learn_advantages(
                    contexts,
                    arms,
                    rewards,
                    propensities,
                    self.n_arms,
                    weights=weights,
                    by_context=self.by_context,
                    offered=is_offered,
                    seed=self.seed,
                )
            self._rounds_at_fit = n_rounds
        return self._advantages

    def _grow(self) -> None:
        if self._advantages is not None:
            step = self._advantages.step
            theta = self._advantages.theta
            new_theta = self._compute_new_theta(step, theta)
            self._advantages = AdvantageModel(
                step, np.vstack([theta, new_theta]), self._advantages.evidence
            )
        self._round_counts = np.append(self._round_counts, 0)

    def _compute_new_theta(self, step: PiecewiseStep, theta: FloatArray) -> FloatArray:
        """Return the coefficients (d,) of an arm without rounds.

        Its prediction is below those of arms with rounds.
        """
        has_rounds = self._round_counts > 0
        return compute_lower_theta(
            step, theta[has_rounds] if has_rounds.any() else theta, self.reward_moments.scale
        )

    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        advantages = self._fit()
        state = {
            "kept": self._sample_stored()[: None if replay else 0],
            "rounds": self._round_counts,
            "fitted": np.array([self._rounds_at_fit], np.int64),
        }
        if advantages is None:
            return state
        evidence = np.array(astuple(advantages.evidence))  # the limits of a short log are infinite
        step_arrays = {f"step/{name}": array for name, array in advantages.step.arrays().items()}
        return {
            **state,
            "theta": advantages.theta,
            "evidence": evidence[np.isfinite(evidence)],
            **step_arrays,
        }

    def _restore(self, state: dict[str, AnyArray]) -> None:
        stored_rounds, round_counts = read_stored_rounds(
            self, state, self._n_inputs + 4, self.n_arms
        )
        propensities = stored_rounds[:, -4]
        if not ((propensities >= 0) & (propensities <= 1)).all():
            raise ValueError("kept has a propensity outside [0, 1]")
        advantages = None
        if state.keys() - {"kept", "rounds", "fitted"}:
            step_arrays = {name: np.array(state[f"step/{name}"]) for name in PIECEWISE_ARRAY_NAMES}
            feature_step = PiecewiseStep(**step_arrays, n_inputs=self._n_inputs)
            theta = np.array(state["theta"])
            if theta.shape != (self.n_arms, feature_step.n_features):
                raise InvalidInput(f"the file has coefficients of shape {theta.shape}")
            arm, value, gain, n_rounds, *limits = state["evidence"].tolist()
            if arm not in range(self.n_arms):
                raise ValueError(f"evidence must have one of {self.n_arms} arms, got {arm}")
            evidence = LogEvidence(int(arm), value, gain, int(n_rounds), *limits)
            advantages = AdvantageModel(feature_step, theta, evidence)
        self._round_blocks = [stored_rounds]
        self._round_counts = round_counts
        self._advantages = advantages
        self._rounds_at_fit = 0 if advantages is None else int(state["fitted"][0])
