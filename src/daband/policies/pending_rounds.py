"""Rounds that wait until the range of their rewards is known: what ``reward_range="auto"`` keeps back at first."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray, unit_scale

__all__ = ["PendingRounds"]

Batch = tuple[AnyArray, IntArray, FloatArray, str]


class PendingRounds:
    """Batches of rounds in the order they came: contexts, arms, rewards in the user's units, and their domain."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []

    def __len__(self) -> int:
        return sum(len(arms) for _, arms, _, _ in self._batches)

    def add(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: str) -> None:
        """Keep a batch, as copies: the caller's arrays may change."""
        self._batches.append((contexts.copy(), arms.copy(), rewards.copy(), domain))

    def joined_with(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: str) -> list[Batch]:
        """The batches that are kept, and this one."""
        return [*self._batches, (contexts, arms, rewards, domain)]

    def clear(self) -> None:
        """Forget them: they are learned."""
        self._batches = []

    def state(self) -> dict[str, AnyArray]:
        """All rounds as arrays; nothing where there are none."""
        if not self._batches:
            return {}
        contexts = [batch[0] for batch in self._batches]
        if len({part.dtype for part in contexts}) > 1:
            contexts = [unit_scale(part) for part in contexts]
        return {
            "contexts": np.concatenate(contexts),
            "arms": np.concatenate([batch[1] for batch in self._batches]),
            "rewards": np.concatenate([batch[2] for batch in self._batches]),
            "in_target": np.concatenate([np.full(len(batch[1]), batch[3] == "target") for batch in self._batches]),
        }

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore what ``state`` returned, a batch for each run of rounds in one domain."""
        self._batches = []
        if not state:
            return
        in_target = state["in_target"]
        edges = [0, *(np.flatnonzero(np.diff(in_target.astype(np.int8))) + 1).tolist(), len(in_target)]
        for start, stop in pairwise(edges):
            part = slice(start, stop)
            domain = "target" if in_target[start] else "source"
            self.add(state["contexts"][part], state["arms"][part], state["rewards"][part], domain)
