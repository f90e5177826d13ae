"""Domains over arrays in memory, and ``from_arrays``, which makes a pair of what a user has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daband.arrays import AnyArray, ArrayLike, FloatArray, IntArray, as_numpy
from daband.domains.arguments import checked_class_names, whole
from daband.domains.contract import About, Contexts, EvaluationDomain, Pair, RewardDomain
from daband.errors import InvalidInput

__all__ = ["ArrayContexts", "ArrayEvaluation", "ArraySource", "from_arrays"]


class ArrayContexts(Contexts):
    """Contexts (n, *C), or (n, K, *C) with ``per_arm=True``."""

    def __init__(self, contexts: ArrayLike, *, passes: int = 1, per_arm: bool = False, name: str = "contexts") -> None:
        array = _checked_contexts(contexts, name, per_arm)
        self._contexts = array
        self.context_shape = array.shape[2:] if per_arm else array.shape[1:]
        self.passes = whole("passes", passes, least=1)

    def __len__(self) -> int:
        return len(self._contexts)

    def read(self, indices: IntArray) -> AnyArray:
        picked: AnyArray = self._contexts[indices]
        return picked


class ArraySource(RewardDomain):
    """Contexts with what every arm pays: labels (n,), or a table of rewards (n, K).

    ``expected`` (n, K) are the expected rewards, where the realised ones are noisy; without it the rewards themselves
    are taken as expected, which is exact for noise-free ones.
    """

    def __init__(
        self,
        contexts: ArrayLike,
        rewards: ArrayLike,
        *,
        n_arms: int | None = None,
        expected: ArrayLike | None = None,
        passes: int = 1,
        per_arm: bool = False,
        name: str = "source",
    ) -> None:
        self._stream = ArrayContexts(contexts, passes=passes, per_arm=per_arm, name=f"{name} contexts")
        self._rewards, self._labels = _checked_rewards(rewards, len(self._stream), n_arms, name)
        self.n_arms = n_arms if self._rewards is None else self._rewards.shape[1]  # type: ignore[assignment]
        self._expected = None if expected is None else _checked_table(expected, len(self._stream), f"{name} expected")
        if self._expected is not None and self._expected.shape[1] != self.n_arms:
            raise InvalidInput(f"{name} expected has {self._expected.shape[1]} arms, the rewards have {self.n_arms}")
        self.context_shape = self._stream.context_shape
        self.passes = self._stream.passes

    def __len__(self) -> int:
        return len(self._stream)

    def read(self, indices: IntArray) -> AnyArray:
        return self._stream.read(indices)

    def read_rewards(self, indices: IntArray) -> tuple[FloatArray, FloatArray | None]:
        rewards = _table(self._rewards, self._labels, self.n_arms, indices)
        return rewards, rewards if self._expected is None else self._expected[indices]


class ArrayEvaluation(EvaluationDomain):
    """Contexts with the expected reward of every arm: labels (n,), or a table (n, K)."""

    def __init__(
        self,
        contexts: ArrayLike,
        expected: ArrayLike,
        *,
        n_arms: int | None = None,
        per_arm: bool = False,
        name: str = "target_test",
    ) -> None:
        self._contexts = _checked_contexts(contexts, f"{name} contexts", per_arm)
        self._expected, self._labels = _checked_rewards(expected, len(self._contexts), n_arms, name)
        self.n_arms = n_arms if self._expected is None else self._expected.shape[1]  # type: ignore[assignment]
        self.context_shape = self._contexts.shape[2:] if per_arm else self._contexts.shape[1:]

    def __len__(self) -> int:
        return len(self._contexts)

    def read(self, start: int, stop: int) -> AnyArray:
        part: AnyArray = self._contexts[start:stop]
        return part

    def read_expected(self, start: int, stop: int) -> FloatArray:
        return _table(self._expected, self._labels, self.n_arms, np.arange(start, min(stop, len(self))))


def from_arrays(
    *,
    source: tuple[ArrayLike, ArrayLike],
    target: ArrayLike,
    target_test: tuple[ArrayLike, ArrayLike],
    target_labelled: tuple[ArrayLike, ArrayLike] | None = None,
    n_arms: int | None = None,
    class_names: Sequence[str] | None = None,
    arms: str = "disjoint",
    passes: int = 1,
    name: str = "arrays",
) -> Pair:
    """A pair made of arrays.

    Args:
        source: contexts (n, *C), and either labels (n,) of integers, where the arm equal to the label pays 1 and every
            other pays 0, or a table of rewards (n, K).
        target: contexts of the target, (m, *C). Training sees these and nothing else of the target.
        target_test: contexts and labels or reward table that only the evaluator sees.
        target_labelled: target contexts with rewards for continued training after the hand-over.
        n_arms: the number of arms; by default one more than the largest source label, or the table's width.
        class_names: a name per arm; by default "0", "1", ...
        arms: "disjoint" (one context a round) or "shared" (one context per arm: contexts are (n, K, *C)).
        passes: how many times each source and target context may be shown.
        name: what reports call the pair.

    Contexts are not copied, for they may be large: whoever changes such an array afterwards changes the pair, past the
    checks made here. Labels and rewards are copied.
    """
    if arms not in ("disjoint", "shared"):
        raise InvalidInput(f"arms must be 'disjoint' or 'shared', got {arms!r}")
    for argument, value in (("source", source), ("target_test", target_test), ("target_labelled", target_labelled)):
        wanted = value is not None or argument != "target_labelled"
        if wanted and not (isinstance(value, tuple) and len(value) == 2):
            raise InvalidInput(f"{argument} must be a tuple (contexts, labels or rewards), got {type(value).__name__}")
    per_arm = arms == "shared"
    pays = as_numpy(source[1], "source rewards")
    if n_arms is not None:
        n_arms = whole("n_arms", n_arms, least=1)
    elif pays.ndim == 2:
        n_arms = pays.shape[1]
    else:  # what cannot be labels is refused by ArraySource
        n_arms = int(pays.max()) + 1 if pays.size and pays.dtype.kind in "biu" else 0
    paying = ArraySource(*source, n_arms=n_arms, passes=passes, per_arm=per_arm)
    stream = ArrayContexts(target, passes=passes, per_arm=per_arm, name="target")
    test = ArrayEvaluation(*target_test, n_arms=n_arms, per_arm=per_arm)
    later = None
    if target_labelled is not None:
        later = ArraySource(*target_labelled, n_arms=n_arms, passes=passes, per_arm=per_arm, name="target_labelled")
    for what, domain in (("target", stream), ("target_test", test), ("target_labelled", later)):
        if domain is not None and domain.context_shape != paying.context_shape:
            raise InvalidInput(f"{what} contexts have shape {domain.context_shape}, source's {paying.context_shape}")
    for what, holder in (("source", paying), ("target_test", test), ("target_labelled", later)):
        if holder is not None and holder.n_arms != n_arms:
            raise InvalidInput(f"{what} has rewards for {holder.n_arms} arms, expected {n_arms}")
    if per_arm:
        held = {"source": paying._stream._contexts, "target": stream._contexts, "target_test": test._contexts}
        if later is not None:
            held["target_labelled"] = later._stream._contexts
        for what, contexts in held.items():
            if contexts.shape[1] != n_arms:
                raise InvalidInput(f"shared arms need {what} contexts (n, {n_arms}, *C), got {contexts.shape}")
    names = checked_class_names(class_names, n_arms)
    return Pair(
        name=name,
        context_shape=paying.context_shape,
        n_arms=n_arms,
        class_names=names,
        source=paying,
        target=stream,
        target_test=test,
        target_labelled=later,
        arms=arms,
        feedback="one_hot" if pays.ndim == 1 else "bandit",
        about=About(summary="arrays given by the user", licence="the user's own"),
    )


def _checked_contexts(contexts: ArrayLike, name: str, per_arm: bool) -> AnyArray:
    array = as_numpy(contexts, name)
    least = 3 if per_arm else 2
    if array.ndim < least:
        wanted = "(n, K, *C)" if per_arm else "(n, *C)"
        raise InvalidInput(f"{name} must have shape {wanted}, got {array.shape}")
    if len(array) == 0:
        raise InvalidInput(f"{name} is empty: shape {array.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise InvalidInput(f"{name} has a NaN or infinite value, first in row {row}")
    return array


def _checked_table(table: ArrayLike, n: int, name: str) -> FloatArray:
    array = as_numpy(table, name).astype(np.float64)
    if array.ndim != 2 or len(array) != n or array.shape[1] < 1:
        raise InvalidInput(f"{name} must have shape ({n}, K), got {array.shape}")
    if not np.isfinite(array).all():
        raise InvalidInput(f"{name} has a NaN or infinite value")
    return array


def _checked_rewards(
    rewards: ArrayLike, n: int, n_arms: int | None, name: str
) -> tuple[FloatArray | None, IntArray | None]:
    """Either a table (n, K) or labels (n,), whichever was given."""
    array = as_numpy(rewards, f"{name} rewards")
    if array.ndim == 2:
        return _checked_table(array, n, f"{name} rewards"), None
    if array.shape != (n,):
        raise InvalidInput(f"{name} needs labels ({n},) or rewards ({n}, K) for its {n} contexts, got {array.shape}")
    if array.dtype.kind not in "biu":
        raise InvalidInput(f"{name} labels must be integers, got {array.dtype}; a table of rewards has shape ({n}, K)")
    if n_arms is None:
        raise InvalidInput(f"{name} has labels, so n_arms must be given")
    labels = array.astype(np.int64)
    if labels.min() < 0 or labels.max() >= n_arms:
        wrong = int(labels.min()) if labels.min() < 0 else int(labels.max())
        raise InvalidInput(f"{name} has label {wrong}, outside 0..{n_arms - 1}")
    return None, labels


def _table(table: FloatArray | None, labels: IntArray | None, n_arms: int, indices: IntArray) -> FloatArray:
    if table is not None:
        return table[indices]
    assert labels is not None
    rewards = np.zeros((len(indices), n_arms))
    rewards[np.arange(len(indices)), labels[indices]] = 1.0
    return rewards
