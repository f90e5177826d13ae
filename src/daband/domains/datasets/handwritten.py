"""Handwritten digits: learned on one of MNIST, USPS and Semeion, applied to another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from daband.arrays import AnyArray, IntArray
from daband.domains.contract import About, Pair
from daband.domains.data_paths import need
from daband.domains.mnist import read_mnist
from daband.domains.readers.arrays import from_arrays
from daband.domains.registry import describe, register_ordered_pairs, register_pair
from daband.domains.splits import require_classes, split_half
from daband.domains.tiny_twins import tiny_images
from daband.errors import DataError, InvalidInput

__all__ = ["handwritten"]

_SIDE = 28
_CLASSES = tuple(str(number) for number in range(10))
_MNIST_FILES = tuple(
    f"mnist/{split}-{name}.gz" for split in ("train", "t10k") for name in ("images-idx3-ubyte", "labels-idx1-ubyte")
)
_FILES = {
    "mnist": _MNIST_FILES,
    "usps": ("usps_semeion/usps_28.npz",),
    "semeion": ("usps_semeion/semeion_16.npz",),
}
_DOMAINS = tuple(_FILES)
_ABOUT = About(
    summary="handwritten digits; 6 ordered pairs of mnist, usps, semeion",
    licence="MNIST: CC BY-SA 3.0; USPS: for research; Semeion: CC BY 4.0",
    citation=(
        "LeCun et al., Gradient-based learning applied to document recognition, 1998; "
        "Hull, A database for handwritten text recognition research, 1994; "
        "Buscema, Terzi and Tastle, Semeion handwritten digit, UCI Machine Learning Repository, 1998"
    ),
    needs=tuple(path for paths in _FILES.values() for path in paths),
)

_Arrays = tuple[AnyArray, IntArray]


@register_pair("handwritten", about=_ABOUT)
def handwritten(
    *,
    tiny: bool = False,
    source: str = "mnist",
    target: str = "usps",
    passes: int = 1,
    target_passes: int | None = None,
    source_test: float | None = 0.1,
) -> Pair:
    """Digits of one collection as source, of another as target: contexts (1, 28, 28) of uint8, 10 arms.

    Semeion's digits of 16x16 are interpolated. MNIST and USPS keep their own split: training sees the training part,
    the evaluator holds the test part of the target. Semeion has none: as a target, half of every class is held.

    Args:
        tiny: 200 + 200 made-up digits, 100 for the test.
        source: mnist, usps or semeion; the digits of its training part pay.
        target: another of them.
        passes: how many times each source context may be shown; semeion has 1,593, usps 7,291, mnist 60,000.
        target_passes: how many times each target context may be shown; by default as ``passes``.
        source_test: the share of the source's training part that training does not use.
    """
    for domain in (source, target):
        if domain not in _DOMAINS:
            raise InvalidInput(f"handwritten's domains are {', '.join(_DOMAINS)}, got {domain!r}")
    if source == target:
        raise InvalidInput(f"source and target are both {source!r}")
    name = f"handwritten/{source}-{target}"
    if tiny:
        here, seen, held = ((images[:, :1], labels) for images, labels in _tiny())
        held = (held[0][:100], held[1][:100])
    else:
        here = _read(source)[0]
        seen, test = _read(target)
        if test is None:
            train, rest = split_half(seen[1], name=name)
            seen, held = (seen[0][train], seen[1][train]), (seen[0][rest], seen[1][rest])
        else:
            held = test
        for domain, (_, labels) in ((source, here), (target, seen), (f"{target}'s test part", held)):
            require_classes(labels, _CLASSES, where=domain)
    pair = from_arrays(
        source=here,
        target=seen[0],
        target_test=held,
        target_labelled=seen,
        n_arms=10,
        class_names=_CLASSES,
        source_test=source_test,
        passes=passes,
        target_passes=target_passes,
        name=name,
    )
    return describe(pair, _ABOUT, f"handwritten digits, {source} to {target}")


def _tiny() -> tuple[_Arrays, ...]:
    return tiny_images(n_arms=10, per_class=20, side=_SIDE, seed=3)


def _read(domain: str) -> tuple[_Arrays, _Arrays | None]:
    """Images (n, 1, 28, 28) and labels (n,) of the training part, and of the test part where there is one."""
    if domain == "mnist":
        train, test = (read_mnist(split, pair="handwritten") for split in ("train", "t10k"))
        return (train[0][:, None], train[1]), (test[0][:, None], test[1])
    path = need(_FILES[domain], pair="handwritten")
    if domain == "semeion":
        images, labels = _packed(path, ("x", "y"), side=16)
        return (_interpolated(images)[:, None], labels), None
    train, test = (_packed(path, (f"x_{split}", f"y_{split}"), side=_SIDE) for split in ("train", "test"))
    return (train[0][:, None], train[1]), (test[0][:, None], test[1])


def _packed(path: Path, keys: tuple[str, str], *, side: int) -> _Arrays:
    remedy = "put an undamaged copy there"
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as packed:
            images, labels = (packed[key] for key in keys)
    except Exception as error:  # zipfile.BadZipFile and zlib.error have no common root below Exception
        raise DataError(f"{path} is damaged, or has no arrays {' and '.join(keys)} ({error}); {remedy}") from None
    if images.ndim != 3 or images.shape[1:] != (side, side) or images.dtype != np.uint8:
        raise DataError(f"{path} should hold images (n, {side}, {side}) of uint8, got {images.shape} of {images.dtype}")
    if labels.shape != (len(images),) or labels.dtype.kind not in "ui" or not np.isin(labels, np.arange(10)).all():
        raise DataError(f"{path} should hold {len(images)} labels 0..9 in {keys[1]!r}, got {labels.shape}; {remedy}")
    return images, labels.astype(np.int64)


def _interpolated(images: AnyArray) -> AnyArray:
    """Images (n, s, s) of uint8 at 28x28, bilinear between the centres of pixels.

    In whole numbers, so that every processor gets the same digits.
    """
    side = images.shape[1]
    # The centre of pixel i of 28 lies at (i + 1/2) side / 28 - 1/2, here in units of 1/56 of a pixel.
    place = np.clip((2 * np.arange(_SIDE) + 1) * side - _SIDE, 0, 2 * _SIDE * (side - 1))
    lower = np.minimum(place // (2 * _SIDE), side - 2)
    share = place - 2 * _SIDE * lower
    weights = np.zeros((_SIDE, side), dtype=np.int64)
    weights[np.arange(_SIDE), lower] = 2 * _SIDE - share
    weights[np.arange(_SIDE), lower + 1] = share
    total = np.einsum("ri,nij,cj->nrc", weights, images.astype(np.int64), weights, optimize=True)
    unit = (2 * _SIDE) ** 2
    grown: AnyArray = ((total + unit // 2) // unit).astype(np.uint8)
    return grown


def _about(source: str, target: str) -> About:
    needs = tuple(path for domain in (source, target) for path in _FILES[domain])
    return replace(_ABOUT, summary=f"handwritten digits, {source} to {target}", needs=needs)


register_ordered_pairs("handwritten", handwritten, domains=_DOMAINS, about=_about)
