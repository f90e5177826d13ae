"""Rounds that wait until the range of their rewards is known: what ``reward_range="auto"`` keeps back at first."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray, unit_scale

__all__ = ["PendingRounds"]

Batch = tuple[AnyArray, IntArray, FloatArray, int, FloatArray | None]


class PendingRounds:
    """Batches of rounds in the order they came: contexts, arms, rewards in the user's units, domain, weights."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []

    def __len__(self) -> int:
        return sum(len(batch[1]) for batch in self._batches)

    def add(
        self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: int, weights: FloatArray | None
    ) -> None:
        """Keep a batch, as copies: the caller's arrays may change."""
        weights = None if weights is None else weights.copy()
        self._batches.append((contexts.copy(), arms.copy(), rewards.copy(), domain, weights))

    def joined_with(
        self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: int, weights: FloatArray | None
    ) -> list[Batch]:
        """The batches that are kept, and this one."""
        return [*self._batches, (contexts, arms, rewards, domain, weights)]

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
        weights = {}
        if any(batch[4] is not None for batch in self._batches):
            parts = [np.ones(len(batch[1])) if batch[4] is None else batch[4] for batch in self._batches]
            weights = {"weights": np.concatenate(parts)}
        return {
            **weights,
            "contexts": np.concatenate(contexts),
            "arms": np.concatenate([batch[1] for batch in self._batches]),
            "rewards": np.concatenate([batch[2] for batch in self._batches]),
            "domain": np.concatenate([np.full(len(batch[1]), batch[3], np.int64) for batch in self._batches]),
        }

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore what ``state`` returned, a batch for each run of rounds in one domain."""
        self._batches = []
        if not state:
            return
        # Files of older versions have one source and one target, and say whether a round is the target's.
        domains = state["domain"] if "domain" in state else state["in_target"].astype(np.int64)
        edges = [0, *(np.flatnonzero(np.diff(domains)) + 1).tolist(), len(domains)]
        for start, stop in pairwise(edges):
            part = slice(start, stop)
            weights = state["weights"][part] if "weights" in state else None
            domain = int(domains[start])
            self.add(state["contexts"][part], state["arms"][part], state["rewards"][part], domain, weights)
