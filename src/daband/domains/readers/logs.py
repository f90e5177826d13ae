"""Logged bandit feedback as a source: what another policy saw, did and got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from daband.arrays import AnyArray, ArrayLike, FloatArray, IntArray, as_numpy
from daband.domains.arguments import whole
from daband.domains.contract import LoggedDomain, Pair
from daband.domains.readers.arrays import ArrayContexts, from_arrays
from daband.errors import InvalidInput

__all__ = ["ArrayLog", "from_log"]


class ArrayLog(LoggedDomain):
    """Contexts (n, *C) with the arms that were pulled, their rewards and with which probability, each (n,)."""

    def __init__(
        self,
        contexts: ArrayLike,
        arms: ArrayLike,
        rewards: ArrayLike,
        propensities: ArrayLike,
        *,
        n_arms: int,
        passes: int = 1,
    ) -> None:
        self.n_arms = whole("n_arms", n_arms, least=1)
        self._contexts = ArrayContexts(contexts, passes=passes, name="source contexts")
        self._arms = _column(arms, len(self._contexts), "source arms")
        if self._arms.dtype.kind not in "biu":
            raise InvalidInput(f"source arms must be integers, got {self._arms.dtype}")
        self._arms = self._arms.astype(np.int64)
        if self._arms.min() < 0 or self._arms.max() >= n_arms:
            raise InvalidInput(f"source arms must lie in 0..{n_arms - 1}, got {self._arms.min()}..{self._arms.max()}")
        self._rewards = _column(rewards, len(self._contexts), "source rewards").astype(np.float64)
        self._propensities = _column(propensities, len(self._contexts), "source propensities").astype(np.float64)
        wrong = np.flatnonzero(~((self._propensities > 0) & (self._propensities <= 1)))
        if len(wrong):
            raise InvalidInput(f"propensities lie in (0, 1], row {wrong[0]} has {self._propensities[wrong[0]]}")
        self.context_shape = self._contexts.context_shape
        self.passes = self._contexts.passes

    def __len__(self) -> int:
        return len(self._contexts)

    def read(self, indices: IntArray) -> AnyArray:
        return self._contexts.read(indices)

    def read_log(self, indices: IntArray) -> tuple[IntArray, FloatArray, FloatArray]:
        return self._arms[indices], self._rewards[indices], self._propensities[indices]


def from_log(
    *,
    source: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike],
    target: ArrayLike,
    target_test: tuple[ArrayLike, ArrayLike],
    target_labelled: tuple[ArrayLike, ArrayLike] | None = None,
    n_arms: int,
    class_names: Sequence[str] | None = None,
    feedback: str = "bandit",
    passes: int = 1,
    name: str = "log",
) -> Pair:
    """A pair whose source is a log of another policy's rounds.

    Args:
        source: contexts (n, *C), arms (n,) of integers, rewards (n,), propensities (n,) in (0, 1].
        target: contexts of the target, (m, *C); training sees these and nothing else of the target.
        target_test: contexts and labels (t,) or rewards (t, K) that only the evaluator sees.
        target_labelled: target contexts with labels or rewards, for continued training.
        n_arms: the number of arms; it cannot be told from a log, in which an arm may never have been pulled.
        class_names: a name per arm; by default "0", "1", ...
        feedback: "one_hot" where a reward of 1 in the log means that every other arm would have paid 0, else "bandit".
        passes: how many times each source and target context may be shown.
        name: what reports call the pair.

    Contexts are not copied: whoever changes such an array afterwards changes the pair, past the checks made here.
    """
    if not (isinstance(source, tuple) and len(source) == 4):
        raise InvalidInput("source must be a tuple (contexts, arms, rewards, propensities)")
    log = ArrayLog(*source, n_arms=n_arms, passes=passes)
    placeholder = np.zeros((len(log), n_arms))  # from_arrays checks everything else; its source is then replaced
    checked = from_arrays(
        source=(source[0], placeholder),
        target=target,
        target_test=target_test,
        target_labelled=target_labelled,
        n_arms=n_arms,
        class_names=class_names,
        passes=passes,
        name=name,
    )
    return replace(checked, source=log, feedback=feedback)


def _column(values: ArrayLike, n: int, name: str) -> AnyArray:
    array = as_numpy(values, name)
    if array.shape != (n,):
        raise InvalidInput(f"{name} must have shape ({n},), got {array.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidInput(
            f"{name} has a missing or infinite value, first in row {np.flatnonzero(~np.isfinite(array))[0]}"
        )
    return array
