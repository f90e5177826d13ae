"""Gate the target terms by the policy's skill: its progress from the best constant arm to the attainable value.

At full weight from the start, alignment prevents the learning that it depends on. Without the gate, target accuracy on
``signs`` falls from 0.70 to 0.14. Therefore the weights of such terms are multiplied by ``skill ** exponent``, where

    skill = (value of the policy - value of the best constant) / (attainable value - value of the best constant)

in [0, 1], from recent source rounds. Each round is predicted before it is learned:

* The policy's value is the mean reward of rounds in which the arm with the highest prediction was played. A log of
  another policy is as informative as the policy's own rounds.
* With "one_hot" feedback 1 is attainable, and the best constant's value is the frequency of the most frequent best arm.
* Otherwise predictions replace both: the mean of the highest prediction, and the highest mean prediction of an arm.
  Noisy or small rewards therefore do not close the gate.
"""

from __future__ import annotations

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray

#: The factor by which older rounds decay per round: sums cover about 600 rounds.
_DECAY = 0.9 ** (1 / 64)
#: Minimum number of rounds; before, the skill is 0.
_MIN_ROUNDS = 64.0
#: Minimum difference between the attainable value and the best constant, in standard deviations of rewards.
_MIN_GAIN = 0.01


class SkillGate:
    """The skill of a policy, updated with every source round."""

    def __init__(self, *, n_arms: int, feedback: str) -> None:
        self.feedback = feedback
        #: [[rounds, sum of highest predictions], [rounds in which that arm was played, sum of their rewards]].
        self._sums: FloatArray = np.zeros((2, 2))
        #: For every arm the sum of predictions, and the number of rounds with reward 1.
        self._arms: FloatArray = np.zeros((2, n_arms))

    def add(self, predicted: FloatArray, arms: IntArray, rewards: FloatArray) -> None:
        """Add source rounds: predictions (B, K) from before they were learned, played arms and rewards (B,)."""
        decay = _DECAY ** np.arange(len(rewards) - 1.0, -1.0, -1.0)
        old_factor = _DECAY ** len(rewards)
        matched = decay * (predicted.argmax(axis=1) == arms)
        best_counts = np.bincount(arms, weights=decay * (rewards >= 1.0), minlength=self._arms.shape[1])
        new_sums = [[decay.sum(), decay @ predicted.max(axis=1)], [matched.sum(), matched @ rewards]]
        self._sums = old_factor * self._sums + np.array(new_sums)
        self._arms = old_factor * self._arms + np.stack([decay @ predicted, best_counts])

    def skill(self, unit: float = 1.0) -> float:
        """Return the skill in [0, 1]; 0 before 64 rounds. ``unit`` is the standard deviation of rewards."""
        (rounds, highest), (matched, sum_rewards) = self._sums
        if rounds < _MIN_ROUNDS * _DECAY**_MIN_ROUNDS or matched <= 0:
            return 0.0
        predicted, frequency = self._arms.max(axis=1) / rounds
        constant, attainable = (frequency, 1.0) if self.feedback == "one_hot" else (predicted, highest / rounds)
        gain = attainable - constant
        return float(np.clip((sum_rewards / matched - constant) / gain, 0.0, 1.0)) if gain > _MIN_GAIN * unit else 0.0

    def grow(self) -> None:
        """Add one arm without rounds."""
        self._arms = np.pad(self._arms, ((0, 0), (0, 1)))

    def state(self) -> dict[str, AnyArray]:
        """Return all arrays needed to continue bit for bit."""
        return {"sums": self._sums, "arms": self._arms}

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore the arrays that ``state`` returned."""
        self._sums, self._arms = (np.array(state[name], np.float64) for name in ("sums", "arms"))
