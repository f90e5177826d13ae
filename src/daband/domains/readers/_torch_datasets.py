"""``from_datasets``: a pair of torch ``Dataset`` objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from daband._arrays import AnyArray, IntArray, as_numpy
from daband._shift import ShiftLike
from daband.domains._contract import About, Pair
from daband.domains._registry import allocate
from daband.domains.readers._arrays import from_arrays
from daband.errors import InvalidInput


def from_datasets(
    *,
    source: Any = None,
    target: Any = None,
    sources: Mapping[str, Any] | None = None,
    targets: Mapping[str, Any] | None = None,
    target_test: Any = None,
    source_test: Any = 0.1,
    n_arms: int | None = None,
    class_names: Sequence[str] | None = None,
    passes: int = 1,
    target_passes: int | None = None,
    shift: ShiftLike = None,
    units: Sequence[int] | None = None,
    name: str = "datasets",
) -> Pair:
    """A pair made of datasets with ``len`` and ``dataset[i]``, as torch's map-style ones are.

    Args:
        source: items ``(context, label)`` with an integer label, the arm that pays 1.
        target: items ``context``, or ``(context, label)``; then the labels are kept for continued training.
        sources: several sources by name, in the place of ``source``.
        targets: several targets by name, in the place of ``target``; ``target_test`` is then a mapping as well.
        target_test: items ``(context, label)`` for the evaluator, or None.
        source_test: items ``(context, label)`` of the source that training does not use, or the share of ``source`` to
            hold out (a fixed split by class), or None.
        n_arms: the number of arms; by default one more than the largest source label.
        class_names: a name per arm.
        passes: how many times each source context may be shown.
        target_passes: how many times each target context may be shown; by default as ``passes``.
        shift: what may differ between the domains: "covariate", "units", "style", "labels", or several (see
            ``daband._shift``); by default "style" for images and "covariate" for vectors.
        units: the numbers of a context in other units in the target, by position; implies ``shift="units"``.
        name: what reports call the pair; it also fixes which source rounds are held out.

    A context is a tensor, an array or a Pillow image. Each dataset is read once, in order, into memory (or a mapped
    file, over 1 GB): a dataset holds its labels beside its contexts, so the target's may not be handed to training as
    it is.

    >>> import torch
    >>> old = torch.utils.data.TensorDataset(torch.rand(40, 3), torch.arange(40) % 2)
    >>> new = torch.utils.data.TensorDataset(torch.rand(40, 3))
    >>> daband.domains.from_datasets(source=old, target=new).n_arms
    2
    """

    def read(given: Any, what: str, *, labels_needed: bool = True) -> Any:
        if given is None or isinstance(given, Real):
            return given
        if isinstance(given, Mapping):
            return {name: read(own, f"{what} {name}", labels_needed=labels_needed) for name, own in given.items()}
        return _collect(given, what, labels_needed=labels_needed)

    def each(given: Any, part: Callable[[Any], Any]) -> Any:
        if isinstance(given, Mapping):
            return {name: part(own) for name, own in given.items()}
        return None if given is None else part(given)

    there = read(target if targets is None else targets, "target", labels_needed=False)
    contexts = each(there, lambda own: own[0])
    pair = from_arrays(
        source=read(source, "source"),
        sources=read(sources, "source"),
        source_test=read(source_test, "source_test"),
        target=contexts if targets is None else target,
        targets=None if targets is None else contexts,
        target_test=read(target_test, "target_test"),
        target_labelled=each(there, lambda own: None if own[1] is None else own),
        n_arms=n_arms,
        class_names=class_names,
        passes=passes,
        target_passes=target_passes,
        shift=shift,
        units=units,
        name=name,
    )
    return replace(pair, about=About(summary="datasets given by the user", licence="the user's own"))


def _collect(dataset: Any, what: str, *, labels_needed: bool = True) -> tuple[AnyArray, IntArray | None]:
    try:
        n = len(dataset)
    except TypeError:
        raise InvalidInput(f"{what} must be a map-style dataset with a length, got {type(dataset).__name__}") from None
    if n == 0:
        raise InvalidInput(f"{what} is empty")
    packed = isinstance(dataset[0], (tuple, list))
    labelled = packed and len(dataset[0]) > 1  # a TensorDataset of contexts alone has items (context,)
    if labels_needed and not labelled:
        raise InvalidInput(f"{what} must have items (context, label), got {type(dataset[0]).__name__}")
    first = _context(dataset[0][0] if packed else dataset[0], f"{what}[0]")
    contexts = allocate((n, *first.shape), first.dtype)
    labels = np.empty(n, dtype=np.int64)
    for row in range(n):
        item = dataset[row]
        context = _context(item[0] if packed else item, f"{what}[{row}]")
        if context.shape != first.shape:
            raise InvalidInput(f"{what}[{row}] has shape {context.shape}, {what}[0] has {first.shape}")
        contexts[row] = context
        if labelled:
            labels[row] = _label(item[1], f"{what}[{row}]")
    return contexts, labels if labelled else None


def _context(value: Any, name: str) -> AnyArray:
    if type(value).__module__.startswith("PIL."):
        image = np.asarray(value)
        value = image[None] if image.ndim == 2 else image.transpose(2, 0, 1)
    return as_numpy(value, name)


def _label(value: Any, name: str) -> int:
    label = as_numpy(value, f"{name}'s label")
    if label.size != 1 or label.dtype.kind not in "biu":
        raise InvalidInput(f"{name}'s label must be one integer, got {value!r}")
    return int(label.reshape(()))
