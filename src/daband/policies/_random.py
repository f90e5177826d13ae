"""Choose arms uniformly at random, the baseline of every comparison."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from daband.base._arrays import MAX_RAW_NORM
from daband.linear._predictor import Predictor, RidgePredictor
from daband.policies._policy import Policy
from daband.policies._registered import policies
from daband.rounds._rounds import Rounds


@policies.register("random")
class Random(Policy):
    """A policy that chooses every available arm with equal probability, and predicts the mean
    reward for all arms.

    The settings are those of every policy (``daband.Policy``).

    >>> policy = daband.Random(context_shape=(1,), n_arms=4, seed=0)
    >>> policy.select([[0.0]]).propensity.tolist()
    [0.25]
    """

    default_settings: ClassVar = {"explore": "greedy", "alpha": 0.0, "epsilon": 1.0}
    max_norm = MAX_RAW_NORM  # contexts are not used

    def _predictor(self, domain: int) -> Predictor:
        moments = self.reward_moments
        mean, bonus = (np.full(self.n_arms, value) for value in (moments.centre, moments.scale))
        return RidgePredictor.constant(mean, bonus)

    def _learn(self, rounds: Rounds, domain: int) -> None:
        """Do nothing: ``Policy`` updates the reward moments."""
