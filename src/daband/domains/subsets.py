"""Parts of a source: the rounds that training uses, and those held out for validation and estimates.

Each part reads through the whole domain by position, so nothing is copied.
"""

from __future__ import annotations

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray
from daband.domains.contract import EvaluationDomain, LoggedDomain, RewardDomain
from daband.domains.splits import split_share

__all__ = ["HeldOutRewards", "PartOfLog", "PartOfRewards", "hold_out_log", "hold_out_rewards"]

_BLOCK = 4096


class PartOfRewards(RewardDomain):
    """The rounds of a reward domain at some positions."""

    def __init__(self, whole: RewardDomain, rows: IntArray) -> None:
        self._whole, self._rows = whole, rows
        self.n_arms, self.context_shape, self.passes = whole.n_arms, whole.context_shape, whole.passes
        self.prefetches = whole.prefetches

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: IntArray) -> AnyArray:
        return self._whole.read(self._rows[indices])

    def read_rewards(self, indices: IntArray) -> tuple[FloatArray, FloatArray | None]:
        return self._whole.read_rewards(self._rows[indices])


class PartOfLog(LoggedDomain):
    """The rounds of a log at some positions."""

    def __init__(self, whole: LoggedDomain, rows: IntArray) -> None:
        self._whole, self._rows = whole, rows
        self.n_arms, self.context_shape, self.passes = whole.n_arms, whole.context_shape, whole.passes
        self.prefetches = whole.prefetches

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: IntArray) -> AnyArray:
        return self._whole.read(self._rows[indices])

    def read_log(self, indices: IntArray) -> tuple[IntArray, FloatArray, FloatArray]:
        return self._whole.read_log(self._rows[indices])


class HeldOutRewards(EvaluationDomain):
    """The rounds of a reward domain at some positions, as contexts with expected rewards.

    Where the domain does not know expected rewards, the realised ones stand in: right on average, and noisy.
    """

    def __init__(self, whole: RewardDomain, rows: IntArray) -> None:
        self._whole, self._rows = whole, rows
        self.n_arms, self.context_shape = whole.n_arms, whole.context_shape

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, start: int, stop: int) -> AnyArray:
        return self._whole.read(self._rows[start:stop])

    def read_expected(self, start: int, stop: int) -> FloatArray:
        rewards, expected = self._whole.read_rewards(self._rows[start:stop])
        return rewards if expected is None else expected


def hold_out_rewards(whole: RewardDomain, *, share: float, name: str) -> tuple[RewardDomain, HeldOutRewards | None]:
    """A reward domain without about ``share`` of each class of it, and that share; the split depends on ``name``."""
    best = [
        whole.read_rewards(np.arange(start, min(start + _BLOCK, len(whole))))[0].argmax(axis=1)
        for start in range(0, len(whole), _BLOCK)
    ]
    kept, held = split_share(np.concatenate(best), share=share, name=name)
    if not len(held):
        return whole, None
    return PartOfRewards(whole, kept), HeldOutRewards(whole, held)


def hold_out_log(whole: LoggedDomain, *, share: float, name: str) -> tuple[LoggedDomain, PartOfLog | None]:
    """A log without about ``share`` of each arm's rounds, and that share; the split depends on ``name``."""
    kept, held = split_share(whole.read_log(np.arange(len(whole)))[0], share=share, name=name)
    if not len(held):
        return whole, None
    return PartOfLog(whole, kept), PartOfLog(whole, held)
