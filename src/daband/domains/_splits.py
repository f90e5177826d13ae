"""Split domains into fixed parts, which are the same on every machine, in every run and for every
seed.

A part reads from the full domain by index, so nothing is copied.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from daband.base._arguments import check_fraction
from daband.base._arrays import AnyArray, FloatArray, IntArray
from daband.domains._contract import Contexts, EvaluationDomain, LoggedDomain, RewardDomain
from daband.errors import DataError

#: The number of rows that are read at a time.
_BLOCK_ROWS = 4096


def split_half(labels: IntArray, *, name: str) -> tuple[IntArray, IntArray]:
    """Split every class into two halves.

    Return indices (m,) for training and indices (n - m,) for evaluation.

    Args:
        labels: the class of every context, (n,).
        name: name of the split, from which the seed of the draw is computed.
    """
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    training_blocks: list[IntArray] = []
    held_out_blocks: list[IntArray] = []
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        training_blocks.append(rows[::2])
        held_out_blocks.append(rows[1::2])
    # Files are listed class by class. Both parts are shuffled, so that an index does not reveal the
    # class.
    return _shuffle(generator, training_blocks), _shuffle(generator, held_out_blocks)


def split_fraction(
    labels: IntArray, *, fraction: float | None, name: str
) -> tuple[IntArray, IntArray]:
    """Hold out about ``fraction`` of every class.

    Return indices (n - m,) for training and held-out indices (m,).

    The only example of a class is never held out. Both arrays are sorted.

    Args:
        labels: the class of every context, (n,). With rewards instead of labels, it is the best
            arm.
        fraction: the fraction to hold out, at least 0 and below 1; None for nothing.
        name: name of the split, from which the seed of the draw is computed.
    """
    if fraction is None:
        return np.arange(len(labels)), np.zeros(0, np.int64)
    held_out_fraction = check_fraction("source_test", fraction)
    generator = np.random.default_rng(zlib.crc32(f"{name}, held-out source".encode()))
    classes, class_indices, class_sizes = np.unique(labels, return_inverse=True, return_counts=True)
    shuffled_rows = generator.permutation(len(labels))
    splittable_rows = shuffled_rows[class_sizes[class_indices[shuffled_rows]] > 1]
    rows_by_class = splittable_rows[np.argsort(labels[splittable_rows], kind="stable")]
    # Every (1 / fraction)-th row is held out. Rows are sorted by class, so each class loses this
    # fraction, up to a row.
    cumulative_counts = np.floor(np.arange(len(rows_by_class) + 1) * held_out_fraction + 0.5)
    is_held_out = np.zeros(len(labels), np.bool_)
    is_held_out[rows_by_class[np.diff(cumulative_counts) > 0]] = True
    for label in classes[
        np.bincount(class_indices[is_held_out], minlength=len(classes)) == class_sizes
    ]:
        # a fraction near 1 would hold out all of a small class
        is_held_out[np.flatnonzero(labels == label)[0]] = False
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def _shuffle(generator: np.random.Generator, blocks: list[IntArray]) -> IntArray:
    """Return the indices of all blocks in random order."""
    return generator.permutation(np.concatenate(blocks)) if blocks else np.empty(0, dtype=np.int64)


def require_classes(labels: IntArray, class_names: Sequence[str], *, data_name: str) -> None:
    """Raise an error if a class has no example.

    ``data_name`` is the name of the data in the error message.
    """
    counts = np.bincount(labels, minlength=len(class_names))
    missing_names = [name for name, count in zip(class_names, counts, strict=True) if count == 0]
    if missing_names:
        raise DataError(
            f"{data_name} has no example of class {missing_names[0]!r} ({len(missing_names)} of"
            f" {len(class_names)} classes missing); source and target need the same classes"
        )


class _Subset(Contexts):
    """A subset of the contexts of a domain, by their indices."""

    def __init__(self, domain: Any, indices: IntArray) -> None:
        self._domain = domain
        self._indices = indices
        self.n_arms = domain.n_arms
        self.context_shape = domain.context_shape

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, indices: IntArray) -> AnyArray:
        return self._domain.read(self._indices[indices])

    def read_rounds(self, indices: IntArray) -> Any:
        return self._domain.read_rounds(self._indices[indices])


class RewardSubset(_Subset, RewardDomain):
    """A subset of the rounds of a reward domain."""

    def __init__(self, domain: RewardDomain, indices: IntArray) -> None:
        super().__init__(domain, indices)
        self.full_feedback = domain.full_feedback

    def read_rewards(self, indices: IntArray) -> tuple[FloatArray, FloatArray | None]:
        return self._domain.read_rewards(self._indices[indices])


class LogSubset(_Subset, LoggedDomain):
    """A subset of the rounds of a log."""


def hold_out(
    domain: RewardDomain | LoggedDomain, *, fraction: float | None, name: str
) -> tuple[Any, Any]:
    """Split a domain into a part for training and a held-out part.

    The second is None if it would be empty.

    The held-out part of a reward domain is an evaluation domain.

    Args:
        domain: the domain.
        fraction: the fraction of each class, or of each arm of a log, to hold out; None for
            nothing.
        name: name of the split, from which the seed of the draw is computed.
    """
    if fraction is None:
        return domain, None
    blocks = [
        np.arange(start, min(start + _BLOCK_ROWS, len(domain)))
        for start in range(0, len(domain), _BLOCK_ROWS)
    ]
    if isinstance(domain, LoggedDomain):
        class_blocks = [domain.read_log(rows)[0] for rows in blocks]
    else:
        class_blocks = [domain.read_rewards(rows)[0].argmax(axis=1) for rows in blocks]
    training_rows, held_out_rows = split_fraction(
        np.concatenate(class_blocks), fraction=fraction, name=name
    )
    if not len(held_out_rows):
        return domain, None
    if isinstance(domain, LoggedDomain):
        return LogSubset(domain, training_rows), LogSubset(domain, held_out_rows)
    return RewardSubset(domain, training_rows), EvaluationDomain(
        RewardSubset(domain, held_out_rows)
    )
