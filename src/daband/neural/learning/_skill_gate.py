"""The gate of the target's terms: how far the policy has come from the best constant arm to what is attainable.

At full weight from the start, alignment prevents the learning that it depends on. So the weights of such terms are
multiplied with ``skill ** exponent``, where

    skill = (value of the policy - value of the best constant) / (attainable value - value of the best constant)

in [0, 1], from recent source rounds alone. Each round is predicted before it is learned, so all of it is progressive:

* the policy's value is the mean reward of rounds in which the arm of the highest prediction was played, by whomever: a
  log that somebody else wrote tells as much as the policy's own rounds;
* with "one_hot" feedback 1 is attainable, and the best constant has the share of the arm that was right most often;
* otherwise predictions say both: the mean of the highest prediction, and the highest of the arms' mean predictions. So
  rewards that are noisy or small close no gate: a policy that reaches what it promises has a skill of 1.
"""

from __future__ import annotations

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray

_DECAY = 0.9 ** (1 / 64)
"""Of what was seen, per round: it spans some six hundred rounds."""
_FEWEST = 64.0
"""Rounds below which nothing is known."""
_SMALLEST_GAIN = 0.01
"""Between the best constant and what is attainable; below it there is nothing to be skilled at."""


class SkillGate:
    """The progressive skill of a policy of ``n_arms`` arms."""

    def __init__(self, *, n_arms: int, feedback: str) -> None:
        self.feedback = feedback
        self._sums: FloatArray = np.zeros((2, 2))
        """Rounds and their highest predictions; rounds in which the arm of that was played, and their rewards."""
        self._arms: FloatArray = np.zeros((2, n_arms))
        """The sum of every arm's predictions, and how often it was played and paid 1."""

    def add(self, predicted: FloatArray, arms: IntArray, rewards: FloatArray) -> None:
        """Note source rounds: what was predicted (B, K) before they were learned, the arms played, and rewards (B,)."""
        fading = _DECAY ** np.arange(len(rewards) - 1.0, -1.0, -1.0)
        kept = _DECAY ** len(rewards)
        matched = fading * (predicted.argmax(axis=1) == arms)
        highest = np.clip(predicted.max(axis=1), 0.0, 1.0)
        right = np.bincount(arms, weights=fading * (rewards >= 1.0), minlength=self._arms.shape[1])
        new = [[fading.sum(), fading @ highest], [matched.sum(), matched @ rewards]]
        self._sums = kept * self._sums + np.array(new)
        self._arms = kept * self._arms + np.stack([fading @ np.clip(predicted, 0.0, 1.0), right])

    @property
    def skill(self) -> float:
        """How much of what can be gained over the best constant is gained, in [0, 1]; 0 before 64 rounds."""
        (rounds, highest), (matched, rewards) = self._sums
        if rounds < _FEWEST * _DECAY**_FEWEST or matched <= 0:
            return 0.0
        predicted, right = self._arms.max(axis=1) / rounds
        constant, attainable = (right, 1.0) if self.feedback == "one_hot" else (predicted, highest / rounds)
        gain = attainable - constant
        return float(np.clip((rewards / matched - constant) / gain, 0.0, 1.0)) if gain > _SMALLEST_GAIN else 0.0

    def grow(self) -> None:
        """One more arm."""
        self._arms = np.pad(self._arms, ((0, 0), (0, 1)))

    def state(self) -> dict[str, AnyArray]:
        """Everything needed to continue to the last bit."""
        return {"sums": self._sums, "arms": self._arms}

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore what ``state`` returned; from a file without it, the recent mean reward that it has, as "rate"."""
        if "sums" in state:
            self._sums, self._arms = (np.array(state[name], np.float64) for name in ("sums", "arms"))
            return
        rate, rounds, n_arms = float(state["rate"][0]), 1 / (1 - _DECAY), self._arms.shape[1]
        self._sums = rounds * np.array([[1.0, max(rate, 0.0)], [1.0, rate]])
        self._arms = np.full((2, n_arms), rounds * max(rate, 0.0) / n_arms)
