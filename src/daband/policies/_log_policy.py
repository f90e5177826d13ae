"""A policy from a log: the best arm, or choices by context if the log proves that they gain.

``daband/linear/_advantages.py`` has the method and its guarantee. The policy stores the rounds that it learns. It fits
the regressions when they are needed, if rounds were learned since the last fit. The fit does not depend on the order of
rounds. It takes seconds for 20,000 rounds, so the policy is meant for logs, not for learning after every round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray, Weights, checked_number, one_blas_thread, unit_scale
from daband._domain_names import DomainNames
from daband._shift import ShiftLike
from daband.errors import InvalidInput, NotFitted
from daband.linear._advantages import Advantages, LogEvidence, learn_advantages
from daband.linear._exploration import Exploration
from daband.linear._piecewise import PIECEWISE_ARRAYS, PiecewiseStep
from daband.linear._propensities import estimate_propensities
from daband.policies._policy import Policy, exploration_setting
from daband.policies._registered import policies
from daband.policies._trees import KEPT_ROUNDS, sample_rounds
from daband.serving._frozen_policy import FrozenParts, Member

#: Maximum number of dimensions of a context; longer contexts need a transform.
MAX_NUMBERS = 1024
_EVIDENCE = ("arm", "value", "gain", "error", "low", "rounds", "fraction")


@policies.register("log")
class LogPolicy(Policy):
    """Chooses the best arm of a log, or by context if the log proves that this gains.

    Learn a log of randomised rounds, such as an A/B test, by ``daband.train`` or ``daband.fit_log``. The weights of
    ``update`` are importance weights (``daband.weights.importance``), from which the logging propensities follow;
    rounds without weights have estimated propensities. ``policy.evidence`` reports the best arm and the gain of
    choosing by context, in the unit of rewards.

    Args:
        context_shape: the shape of one context, with at most 1,024 numbers.
        n_arms: the number of arms.
        explore: "greedy" by default; "ucb" and "thompson" add a bonus that falls with an arm's rounds.
        alpha: the factor of that bonus.
        epsilon: the probability with which an arm is drawn uniformly instead.
        by_context: if False, always choose the best arm.
        standardise_rewards: as in ``LinUCB``.
        transform: a transform of contexts, e.g. ``daband.Standardise()``.
        shift: what may differ between the domains.
        seed: fixes the folds of cross-fitting, and decides ties.
        domains: the names of the sources and targets, one of each by default.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> age, mail = rng.uniform(20, 80, (4000, 1)), rng.integers(0, 2, 4000)
    >>> spent = rng.normal(5 + mail * np.where(age[:, 0] < 50, 1.0, -1.0))
    >>> policy = daband.LogPolicy(context_shape=(1,), n_arms=2)
    >>> skipped = policy.update(age, mail, spent)
    >>> policy.evidence.personalises, policy.select([[30.0], [70.0]]).arm.tolist()
    (True, [1, 0])
    """

    scale_matters = True  # not for the regressions, but domains may have their own units
    propensity_power = 1.0
    largest_weight = 1e9  # weights are not clipped, as propensities are computed from them
    weights_are_importance = True
    explore = exploration_setting("rule")
    alpha = exploration_setting("alpha")
    epsilon = exploration_setting("epsilon")

    def __init__(
        self,
        *,
        context_shape: Sequence[int],
        n_arms: int,
        explore: str = "greedy",
        alpha: float = Exploration.alpha,
        epsilon: float = 0.0,
        by_context: bool = True,
        standardise_rewards: bool = True,
        transform: Any = None,
        shift: ShiftLike = None,
        seed: int = 0,
        domains: DomainNames | None = None,
    ) -> None:
        super().__init__(
            context_shape=context_shape,
            n_arms=n_arms,
            exploration=Exploration(explore, checked_number("alpha", alpha), checked_number("epsilon", epsilon)),
            standardise_rewards=standardise_rewards,
            transform=transform,
            shift=shift,
            seed=seed,
            domains=domains,
        )
        self.by_context = bool(by_context)
        self._inputs = math.prod(self.feature_shape)
        if self._inputs > MAX_NUMBERS:
            raise InvalidInput(
                f"LogPolicy takes contexts of at most {MAX_NUMBERS:,} numbers, these have {self._inputs:,}: reduce "
                "them by transform=daband.PCA(64)"
            )
        #: Rounds: the context, the arm, the reward, the propensity (NaN if unknown).
        self._blocks: list[FloatArray] = []
        self._plays: IntArray = np.zeros(self.n_arms, np.int64)
        self._advantages: Advantages | None = None
        self._fitted_rounds = 0

    def settings(self) -> dict[str, Any]:
        exploration = {"explore": self.explore, "alpha": self.alpha, "epsilon": self.epsilon}
        return {**super().settings(), **exploration, "by_context": self.by_context}

    @property
    def counts(self) -> IntArray:
        """The number of rounds of each arm, (K,)."""
        return self._plays

    @property
    def evidence(self) -> LogEvidence:
        """The best arm, and the cross-fitted gain over it of choosing by context."""
        with self._locks.write, self._locks.state:
            fitted = self._fit()
            if fitted is None:
                raise NotFitted("LogPolicy has not learned a round: there is no evidence yet")
            return fitted.evidence

    # Decisions.

    def _score(self, contexts: AnyArray, domain: int, bonuses: bool) -> tuple[FloatArray, FloatArray]:
        step, theta = self._parts()
        mean = step(unit_scale(contexts.reshape(len(contexts), -1))) @ theta.T
        bonus = self.reward_moments.scale * np.sqrt(1.0 / (1.0 + self._plays))
        return mean, np.broadcast_to(bonus, mean.shape).copy()

    def _freeze(self, domain: int) -> FrozenParts:
        step, theta = self._parts()
        moments, size = self.reward_moments, theta.shape[1]
        unit = theta.copy()
        unit[:, 0] -= moments.centre
        inverse = np.zeros((self.n_arms, size, size))
        inverse[:, 0, 0] = 1.0 / (1.0 + self._plays)
        return FrozenParts((Member(unit / moments.scale, inverse, transform=step),), self._plays.copy())

    def _parts(self) -> tuple[PiecewiseStep, FloatArray]:
        """Return the current step and coefficients (K, features); without rounds all arms are equal."""
        fitted = self._fit()
        if fitted is not None:
            return fitted.step, fitted.theta
        nothing = np.zeros(0)
        step = PiecewiseStep(np.zeros(0, np.int64), nothing, nothing, nothing, nothing, self._inputs)
        return step, np.full((self.n_arms, 1), self.reward_moments.centre)

    # Learning.

    def _learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: int, weights: Weights) -> None:
        propensities = np.full(len(arms), np.nan)
        counted = np.ones(len(arms), np.bool_)
        if weights is not None:
            counted = weights > 0
            propensities[counted] = np.minimum(1.0, 1.0 / (self.n_arms * weights[counted]))
        rows = np.column_stack([unit_scale(contexts.reshape(len(contexts), -1)), arms, rewards, propensities])
        self._blocks.append(rows[counted])
        if sum(map(len, self._blocks)) > 2 * KEPT_ROUNDS:
            self._blocks = [self._kept()]
        np.add.at(self._plays, arms[counted], 1)

    def _kept(self) -> FloatArray:
        """Return the stored rounds, at most 131,072, independent of the order in which they came."""
        return sample_rounds(np.concatenate([np.empty((0, self._inputs + 3)), *self._blocks]))

    def _fit(self) -> Advantages | None:
        """Return regressions fitted to all rounds so far."""
        rounds = int(self._plays.sum())
        if rounds > self._fitted_rounds:
            rows = self._kept()
            rows = rows[np.lexsort(rows.T)]  # sums of floating-point numbers depend on their order
            contexts, arms = np.ascontiguousarray(rows[:, :-3]), rows[:, -3].astype(np.int64)
            propensities = rows[:, -1]
            unknown = np.isnan(propensities)
            if unknown.any():
                estimated, _ = estimate_propensities(contexts, arms, self.n_arms)
                propensities = np.where(unknown, estimated, propensities)
            offered = None if self._catalogue is None else np.logical_and(*self._catalogue.offered)
            with one_blas_thread():  # small matrices: threads would wait for each other
                self._advantages = learn_advantages(
                    contexts,
                    arms,
                    rows[:, -2],
                    propensities,
                    self.n_arms,
                    by_context=self.by_context,
                    offered=offered,
                    seed=self.seed,
                )
            self._fitted_rounds = rounds
        return self._advantages

    def _grow(self) -> None:
        self._plays = np.append(self._plays, 0)
        if self._advantages is not None:  # an arm without rounds gets the worst prediction
            theta = self._advantages.theta
            worst = theta[[int(theta[:, 0].argmin())]]
            self._advantages = Advantages(
                self._advantages.step, np.concatenate([theta, worst]), self._advantages.evidence
            )

    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        fitted = self._fit()
        state = {
            "kept": self._kept()[: None if replay else 0],
            "plays": self._plays,
            "fitted": np.array([self._fitted_rounds], np.int64),
        }
        if fitted is None:
            return state
        numbers = np.array([float(getattr(fitted.evidence, name)) for name in _EVIDENCE])
        step = {f"step/{name}": array for name, array in fitted.step.arrays().items()}
        return {**state, "theta": fitted.theta, "evidence": numbers, **step}

    def _restore(self, state: dict[str, AnyArray]) -> None:
        kept, plays = np.array(state["kept"]), np.array(state["plays"])
        if kept.shape[1:] != (self._inputs + 3,) or plays.shape != (self.n_arms,):
            raise InvalidInput(f"the file has rounds of shape {kept.shape} and {len(plays)} arms")
        advantages = None
        if state.keys() - {"kept", "plays", "fitted"}:
            arrays = {name: np.array(state[f"step/{name}"]) for name in PIECEWISE_ARRAYS}
            step = PiecewiseStep(**arrays, n_inputs=self._inputs)
            theta = np.array(state["theta"])
            if theta.shape != (self.n_arms, step.n_features):
                raise InvalidInput(f"the file has coefficients of shape {theta.shape}")
            numbers = dict(zip(_EVIDENCE, state["evidence"].tolist(), strict=True))
            whole = {"arm": int(numbers["arm"]), "rounds": int(numbers["rounds"])}
            advantages = Advantages(step, theta, LogEvidence(**{**numbers, **whole}))
        self._blocks, self._plays, self._advantages = [kept], plays, advantages
        self._fitted_rounds = int(state["fitted"][0])
