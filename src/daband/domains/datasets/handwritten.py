"""Handwritten digits: learned on one of MNIST, USPS and Semeion, applied to another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from daband.arrays import AnyArray
from daband.domains.contract import About
from daband.domains.data_paths import need
from daband.domains.datasets.builder import Parts, by_hand, declare, halved, load_packed, ordered
from daband.domains.datasets.made_up import made_up_images
from daband.domains.datasets.mnist import MNIST_FILES, Arrays, read_mnist
from daband.errors import DataError

__all__: list[str] = []

_SIDE = 28
_DOMAINS = ("mnist", "usps", "semeion")
_USPS, _SEMEION = "usps_semeion/usps_28.npz", "usps_semeion/semeion_16.npz"
_USPS_HOW = (
    "get the USPS zip codes' digits (https://hastie.su.domains/ElemStatLearn/data.html), resize to 28x28, and save "
    "them as an npz of uint8 with x_train y_train x_test y_test, ink bright"
)
_SEMEION_HOW = (
    "get semeion.data from https://archive.ics.uci.edu/dataset/178/semeion+handwritten+digit and save it as an npz of "
    "uint8 with x (n, 16, 16), ink 255, and y"
)


def _read(*, source: str = "mnist", target: str = "usps") -> Parts:
    """Digits of one collection as source, of another as target: contexts (1, 28, 28) of uint8, 10 arms.

    Semeion's digits of 16x16 are interpolated. MNIST and USPS keep their own split: training sees the training part,
    the evaluator holds the test part of the target. Semeion has none: as a target, half of every class is held.

    Args:
        source: mnist (60,000), usps (7,291) or semeion (1,593); the digits of its training part pay.
        target: another of them.
    """
    here = _collection(source)[0]
    seen, held = _collection(target)
    if held is None:
        return Parts({"source": here, **halved(*seen, name=f"handwritten/{source}-{target}")})
    return Parts({"source": here, "target": seen[0], "target_labelled": seen, "target_test": held})


def _collection(domain: str) -> tuple[Arrays, Arrays | None]:
    """Images (n, 1, 28, 28) and labels (n,) of the training part, and of the test part where there is one."""
    if domain == "mnist":
        train, test = (read_mnist(split, pair="handwritten") for split in ("train", "t10k"))
        return (train[0][:, None], train[1]), (test[0][:, None], test[1])
    if domain == "semeion":
        images, labels = _packed(need([_SEMEION], pair="handwritten"), ("x", "y"), side=16)
        return (_interpolated(images)[:, None], labels), None
    path = need([_USPS], pair="handwritten")
    train, test = (_packed(path, (f"x_{split}", f"y_{split}"), side=_SIDE) for split in ("train", "test"))
    return (train[0][:, None], train[1]), (test[0][:, None], test[1])


def _packed(path: Path, keys: tuple[str, str], *, side: int) -> Arrays:
    images, labels = load_packed(path, keys)
    if images.ndim != 3 or images.shape[1:] != (side, side) or images.dtype != np.uint8:
        raise DataError(f"{path} should hold images (n, {side}, {side}) of uint8, got {images.shape} of {images.dtype}")
    if labels.shape != (len(images),) or labels.dtype.kind not in "ui" or not np.isin(labels, np.arange(10)).all():
        raise DataError(f"{path} should hold {len(images)} labels 0..9 in {keys[1]!r}, got {labels.shape}")
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


declare(
    "handwritten",
    about=About(
        summary="handwritten digits; 6 ordered pairs of mnist, usps, semeion",
        licence="MNIST: CC BY-SA 3.0; USPS: for research; Semeion: CC BY 4.0",
        citation=(
            "LeCun et al., Gradient-based learning applied to document recognition, 1998; "
            "Hull, A database for handwritten text recognition research, 1994; "
            "Buscema, Terzi and Tastle, Semeion handwritten digit, UCI Machine Learning Repository, 1998"
        ),
    ),
    read=_read,
    tiny=lambda **_: made_up_images(n_arms=10, per_class=20, side=_SIDE, seed=3, channels=1, n_test=100),
    class_names=tuple(str(number) for number in range(10)),
    name="handwritten/{source}-{target}",
    summary="handwritten digits, {source} to {target}",
    choices={"source": _DOMAINS, "target": _DOMAINS},
    variants=ordered(_DOMAINS),
    resources=[
        *(replace(resource, of="mnist") for resource in MNIST_FILES),
        by_hand("USPS digits", _USPS, "for research", _USPS_HOW, of="usps"),
        by_hand("Semeion digits", _SEMEION, "CC BY 4.0", _SEMEION_HOW, of="semeion"),
    ],
    without=["units"],
)
