"""Choose arms by ridge regression with a confidence bonus: ``LinUCB`` on contexts, ``Constant``
without contexts.

Li, Chu, Langford, Schapire: "A contextual-bandit approach to personalized news article
recommendation" (2010). With ``transform=daband.PCA(64)`` LinUCB is the LinUCB-P of the DABand
paper.

Both can learn from sums over rounds, so that parts of a log are summed on different machines and in
any order. ``empty_sums`` returns sums over no rounds, ``add_to_sums`` adds rounds to them without
changing the policy, and ``learn_sums`` makes the policy learn the summed rounds.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Self

import numpy as np

from daband.base._arguments import check_one_of
from daband.base._arrays import (
    MAX_RAW_NORM,
    AnyArray,
    Arrays,
    FloatArray,
    IntArray,
    Mask,
    Weights,
    check_number,
    to_floats,
)
from daband.features._catalogue import Catalogue
from daband.features._fitted_steps import InterceptStep
from daband.linear._draws import make_seeded_draw
from daband.linear._exploration import Decision
from daband.linear._joint_ridge import JointHead
from daband.linear._predictor import ContextStep, Predictor, RidgePredictor
from daband.linear._reward_moments import RewardMoments
from daband.linear._ridge import MAX_SQUARED_NORM, RidgeSums
from daband.linear._ridge_head import RidgeHead
from daband.policies._incoming_rounds import RoundIds
from daband.policies._policy import Policy, check_rounds, transform_contexts
from daband.policies._registered import policies
from daband.rounds._rounds import Rounds

#: Smallest difference between the predictions for the fixed arm of ``Constant`` and for others, in
#: standard deviations of rewards; it only breaks ties.
_ARM_MARGIN = 1e-3


class RidgePolicy(Policy):
    """A policy that predicts by ridge regressions (``RidgeHead``) on features of its contexts that
    are not learned.
    """

    _head: RidgeHead

    @abstractmethod
    def _featurise(self, contexts: AnyArray) -> AnyArray:
        """Return the features for the head: (B, d), or (B, K, d) with a context per arm."""

    def _get_head_and_features(self, contexts: AnyArray, domain: int) -> tuple[RidgeHead, AnyArray]:
        """Return the regression head and the features of contexts, for ``Mixture``, which plays
        rounds in blocks.
        """
        return self._head, self._featurise(contexts)

    @property
    def counts(self) -> IntArray:
        """The number of rounds that each regression has learned from: (K,), or (1,) with shared
        arms.
        """
        return self._head.counts

    def _predictor(self, domain: int) -> Predictor:
        return self._head.predictor(self.reward_moments.centre, self._compute_units())

    def _learn(self, rounds: Rounds, domain: int) -> None:
        features = self._featurise(rounds.contexts)
        self._head.learn(
            features,
            rounds.arms,
            rounds.rewards,
            self._weigh(rounds),
            target_moments=self.reward_moments if domain >= self._first_target else None,
        )

    def _adapt(self, steps: int | None) -> dict[str, float]:
        with self._locks.state:
            self._head.fit_penalties(self.reward_moments)
        return {}

    def _grow(self) -> None:
        self._head.add_arm(None if self.catalogue is None else self.catalogue.vectors[-1])

    def _state(self, *, replay: bool = True) -> Arrays:
        return self._head.state()

    def _restore(self, state: Arrays) -> None:
        self._head.restore(state)

    # Sums over the rounds of a log.

    def empty_sums(self) -> RidgeSums:
        """Return sums over no rounds."""
        return self._head.make_empty_sums()

    def without_rounds(self) -> Self:
        """Return a copy with the transform but without rounds, which is small enough to send to
        other processes.
        """
        blank_policy = copy.copy(self)  # a deep copy, by ``Policy.__getstate__``
        blank_policy._head = blank_policy._head.without_rounds()
        blank_policy.reward_moments = RewardMoments(standardise=self.standardise_rewards)
        blank_policy._round_ids = RoundIds(self.id_window)
        blank_policy.rounds_decided = blank_policy.rounds_learned = 0
        return blank_policy

    def add_to_sums(self, sums: RidgeSums, **arguments: Any) -> None:
        """Add rounds to ``sums``. The other arguments are those of rounds in ``update``.

        Rounds that ``update`` would reject raise the same error here, and ``sums`` does not change.
        """
        rounds = check_rounds(self, **arguments)
        features = self._featurise(transform_contexts(self, rounds.contexts))
        features, head_indices = self._head.get_chosen_features(features, rounds.arms)
        sums.add(features, head_indices, rounds.rewards, self._weigh(rounds))

    def learn_sums(
        self, sums: RidgeSums, summing_policy: RidgePolicy, log_parts: Iterable[str] = ()
    ) -> None:
        """Learn summed rounds; an error changes nothing.

        Args:
            sums: the sums over rounds.
            summing_policy: the copy of this policy that computed the sums, whose transform this
                policy gets.
            log_parts: the digests of the log's parts that the sums cover.
        """
        with self._locks.write:
            head = self._head.with_sums(sums)
            with self._locks.state:
                self.transform = summing_policy.transform
                self._head = head
                self.reward_moments.merge(sums.reward_moments)
                self.rounds_learned += int(sums.counts.sum())
                self.log_parts |= frozenset(log_parts)
                self._head.fit_penalties(self.reward_moments)


@policies.register("linucb")
class LinUCB(RidgePolicy):
    """A policy with a ridge regression and an exact confidence bonus for each arm (LinUCB).

    Contexts are flattened. Bonuses grow with the scale of contexts. Use
    ``transform=daband.Standardise()``, as ``LinUCB.for_pair`` does, or choose ``alpha`` and
    ``ridge`` for the scale of the contexts.

    Args:
        intercept: if True, a constant 1 is appended to contexts, so that every arm has an
            intercept. Its penalty, ``ridge``, pulls the intercept to the mean of all rewards. By
            default, there is an intercept if there is neither a transform nor a catalogue:
            ``Standardise`` and ``Piecewise`` append a 1, and arms of a catalogue have effects.
        ridge: the weight of the penalty on the regression's coefficients. The regression's matrix
            starts as ``ridge * I``.
        catalogue: the arms with their features (``pair.catalogue``). There is then one regression
            for all arms, on products of context and arm features, with an intercept for each arm
            that has rounds. By default there is a regression per arm, or one for all if
            ``arms="shared"``.
        settings: the settings of every policy (``daband.Policy``).

    >>> policy = daband.LinUCB(context_shape=(2,), n_arms=3, seed=0)
    >>> contexts = [[1.0, 0.0], [0.0, 1.0]]
    >>> decision = policy.select(contexts)
    >>> decision.arm.shape, decision.mean.shape
    ((2,), (2, 3))
    >>> skipped = policy.update(contexts, decision.arm, [1.0, 0.0], ids=["monday-1", "monday-2"])
    >>> policy.rounds_learned
    2
    """

    scale_matters = True

    def __init__(
        self,
        *,
        ridge: float = 1.0,
        intercept: bool | None = None,
        catalogue: Catalogue | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        ridge = check_number("ridge", ridge)
        self.intercept: bool | None = check_one_of("intercept", intercept, (None, True, False))
        if intercept is None:
            intercept = self.transform is None
        self._has_intercept = intercept and catalogue is None
        n_inputs = math.prod(self.feature_shape)
        dim = n_inputs + self._has_intercept
        self._intercept_step = ContextStep(self.feature_shape, InterceptStep(n_inputs))
        self.catalogue = catalogue
        if catalogue is None:
            self._head = RidgeHead(n_arms=self.n_arms, dim=dim, arms=self.arms, ridge=ridge)
        else:
            self._head = JointHead(vectors=catalogue.vectors, dim=dim, ridge=ridge)
        self._set_fixed_worth(self._fixed_worth)
        self.max_norm = math.sqrt(MAX_SQUARED_NORM * ridge)  # above it the arithmetic is inaccurate

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "ridge": self._head.ridge, "intercept": self.intercept}

    def _predictor(self, domain: int) -> Predictor:
        return self._append_one(super()._predictor(domain))

    def _append_one(self, predictor: Predictor) -> Predictor:
        """Return the predictor with the step that appends a constant 1, if there is an intercept."""
        if not self._has_intercept:
            return predictor
        return predictor.after(self._intercept_step)

    def _play(
        self,
        contexts: AnyArray,
        rewards: FloatArray,
        domain: int,
        available: Mask,
        first_round: int,
        weights: Weights,
    ) -> Decision:
        return self._head.play(
            self._featurise(contexts),
            rewards,
            exploration=self.exploration,
            draw_from=lambda row: make_seeded_draw(self._draw_key, first_round + row),
            moments=self.reward_moments,
            available=available,
            weights=weights,
            is_target=domain >= self._first_target,
        )

    def _featurise(self, contexts: AnyArray) -> AnyArray:
        batch_shape = contexts.shape[:2] if self.arms == "shared" else contexts.shape[:1]
        features = contexts.reshape(*batch_shape, -1)
        if not self._has_intercept:
            return features
        rows = np.empty((*batch_shape, self._head.dim))
        rows[..., -1] = 1.0
        rows[..., :-1] = features if features.dtype.kind == "f" else to_floats(features)
        return rows


@policies.register("constant")
class Constant(RidgePolicy):
    """A policy that ignores contexts and chooses the arm with the best mean reward plus a bonus.

    It is the baseline that any use of contexts must beat.

    ``alpha`` is 2 by default. Each arm is then played about ten times or more before one is
    preferred. With much smaller values, the first arm with a reward may be the only one that is ever
    played.

    Args:
        arm: the arm that is always chosen, whatever its rewards; its prediction is then the largest,
            and ``explore`` is "greedy" by default. By default the arm with the best score.
        settings: the settings of every policy (``daband.Policy``).

    >>> policy = daband.Constant(context_shape=(1,), n_arms=2, alpha=0.0)
    >>> skipped = policy.update([[0.0]] * 4, [0, 0, 1, 1], [0, 1, 1, 1])
    >>> policy.select([[5.0]]).arm.tolist()
    [1]
    """

    default_settings: ClassVar = {"alpha": 2.0}
    max_norm = MAX_RAW_NORM  # contexts are not used
    propensity_power = 1.0  # an arm's mean reward ignores contexts, so it needs the full weights

    def __init__(self, *, arm: int | None = None, **settings: Any) -> None:
        super().__init__(**({} if arm is None else {"explore": "greedy"}) | settings)
        self.arm = None if arm is None else check_one_of("arm", arm, range(self.n_arms))
        self._has_arm_units = True  # also if arms are shared
        self._head = RidgeHead(n_arms=self.n_arms, dim=1, arms="disjoint", ridge=1.0)
        self._set_fixed_worth(self._fixed_worth)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "arm": self.arm}

    def _predictor(self, domain: int) -> Predictor:
        moments = self.reward_moments
        ridge = self._head.statistics
        theta = ridge.compute_coefficients(moments.centre)
        inverse: FloatArray | None = ridge.A_inv[:, :, 0]
        if self.arm is not None:
            theta = _limit_other_arms(theta, self.arm, _ARM_MARGIN * moments.scale)
            inverse = None
        return RidgePredictor(
            theta=theta,
            inverse=inverse,
            centre=moments.centre,
            scale=self._compute_units(),
            is_constant=True,
        )

    def _featurise(self, contexts: AnyArray) -> AnyArray:
        return np.ones((len(contexts), 1))


def _limit_other_arms(means: FloatArray, arm: int, margin: float) -> FloatArray:
    """Return means (K, 1) of which those of other arms are below the mean of ``arm`` by a margin."""
    limited = np.minimum(means, means[arm] - margin)
    limited[arm] = means[arm]
    return limited
