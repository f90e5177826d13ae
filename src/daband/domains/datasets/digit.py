"""DIGIT: MNIST to MNIST-M, embedded in the package, built from MNIST and BSDS500, or as released."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from daband.arrays import AnyArray
from daband.domains.contract import About
from daband.domains.data_paths import find, need
from daband.domains.datasets.builder import Parts, declare
from daband.domains.datasets.mnist import (
    MNIST_FILES,
    MNIST_PLACES,
    Arrays,
    blend,
    packaged_photographs,
    photographs_in,
    read_archive,
    read_folder,
    read_mnist,
    read_packed,
)
from daband.domains.registry import Resource

__all__: list[str] = []

_FORMS = ("auto", "embedded", "built", "released")
_EMBEDDED = Path(__file__).parents[1] / "embedded" / "mnist.npz"
_BSDS500 = ("bsds500_train", "BSR/BSDS500/data/images/train")
_RELEASED = ("mnist_m/mnist_m_28.npz", "mnist_m/mnist_m_train_labels.txt", "mnist_m/mnist_m.tar.gz", "mnist_m.tar.gz")
# Of the generator alone; the data do not depend on a run's seed.
_SEED_TRAIN, _SEED_TEST, _SEED_SOURCE_TEST = 20160525, 20160526, 20160527


def _resolved(options: dict[str, Any]) -> dict[str, Any]:
    """The options with the form that "auto" stands for on this machine."""
    if options.get("tiny"):  # whose form is always the embedded one
        return {name: value for name, value in options.items() if name != "form"}
    if options.get("form", "auto") != "auto":
        return options
    return {**options, "form": _best_form()}


def _read(*, form: str = "auto") -> Parts:
    """MNIST as source, MNIST-M as target: contexts (3, 28, 28) of uint8, 10 arms.

    ``source_test`` is MNIST's test set, or its 3,000 embedded digits.

    Args:
        form: "embedded" (inside the package: 20,000 + 20,000 digits, test 3,000), "built" (MNIST's idx files and
            BSDS500 of the data directory: 60,000 + 60,000, test 10,000), "released" (MNIST's idx files and the
            released MNIST-M), or "auto": released if it is there, else built if it is, else embedded.
    """
    if form == "auto":
        form = _best_form()
    if form == "embedded":
        return _parts(form, *_embedded(None))
    source, source_test = read_mnist("train", pair="digit"), read_mnist("t10k", pair="digit")
    return _parts(form, source, source_test, *(_released() if form == "released" else _built(source, source_test)))


def _parts(form: str, source: Arrays, source_test: Arrays, target: Arrays, target_test: Arrays) -> Parts:
    # The target's test shows the same digits: shuffled, so that a position of one does not tell the label of the other.
    order = np.random.default_rng(_SEED_SOURCE_TEST).permutation(len(source_test[1]))
    arguments = {
        "source": (_three_channels(source[0]), source[1]),
        "source_test": (_three_channels(source_test[0][order]), source_test[1][order]),
        "target": target[0],
        "target_test": target_test,
        "target_labelled": target,
    }
    return Parts(arguments, note=f"; the {form} form")


def _best_form() -> str:
    if find(MNIST_PLACES) is None:
        return "embedded"
    if find(_RELEASED) is not None:
        return "released"
    return "built" if find(_BSDS500) is not None else "embedded"


@lru_cache(maxsize=1)
def _packed_digits() -> tuple[Arrays, Arrays]:
    with np.load(_EMBEDDED, allow_pickle=False) as packed:
        parts = {key: packed[key] for key in packed.files}
    for part in parts.values():
        part.setflags(write=False)
    return (parts["x_train"], parts["y_train"]), (parts["x_test"], parts["y_test"])


def _embedded(n: int | None) -> tuple[Arrays, Arrays, Arrays, Arrays]:
    (x, y), (x_test, y_test) = _packed_digits()
    x, y = x[:n], y[:n].astype(np.int64)
    if n is not None:
        x_test, y_test = x_test[: n // 3], y_test[: n // 3]
    held = (x_test, y_test.astype(np.int64))
    return (x, y), held, *_made((x, y), held, packaged_photographs())


def _built(train: Arrays, test: Arrays) -> tuple[Arrays, Arrays]:
    return _made(train, test, photographs_in(need(_BSDS500, pair="digit")))


def _made(train: Arrays, test: Arrays, photographs: list[AnyArray]) -> tuple[Arrays, Arrays]:
    # As in the release, the target shows the source's digits. Shuffled: position i is another digit on each side, else
    # the source's labels would be the target's.
    order = np.random.default_rng(_SEED_TRAIN).permutation(len(train[0]))
    target = (blend(train[0][order], photographs, seed=_SEED_TRAIN), train[1][order])
    return target, (blend(test[0], photographs, seed=_SEED_TEST), test[1])


def _released() -> tuple[Arrays, Arrays]:
    found = need(_RELEASED, pair="digit")
    if found.suffix == ".npz":
        return read_packed(found)
    if found.suffix == ".txt":
        return read_folder(found.parent, "train"), read_folder(found.parent, "test")
    return read_archive(found, "train"), read_archive(found, "test")


def _three_channels(digits: AnyArray) -> AnyArray:
    """Grey digits (n, 28, 28) as colour images (n, 3, 28, 28).

    Written out: one channel shown three times would save memory, but numpy reads such views 20 times slower.
    """
    return np.repeat(digits[:, None], 3, axis=1)


declare(
    "digit",
    about=About(
        summary="handwritten digits, MNIST to MNIST-M (digits over photographs)",
        licence="MNIST: CC BY-SA 3.0; photographs of BSDS500 and MNIST-M: for research",
        citation=(
            "LeCun et al., Gradient-based learning applied to document recognition, 1998; "
            "Ganin et al., Domain-adversarial training of neural networks, 2016; "
            "Arbelaez et al., Contour detection and hierarchical image segmentation, 2011"
        ),
    ),
    read=_read,
    tiny=lambda **_: _parts("embedded", *_embedded(300)),
    class_names=tuple(str(number) for number in range(10)),
    choices={"form": _FORMS},
    resolve=_resolved,
    without=["source_test", "units"],
    resources=[
        *(replace(resource, optional=True) for resource in MNIST_FILES),  # the embedded form does without
        Resource(
            what="MNIST-M as released",
            places=("mnist_m/mnist_m_train_labels.txt", "mnist_m/mnist_m_28.npz", "mnist_m/mnist_m.tar.gz"),
            licence="for research",
            url="https://cornell.box.com/shared/static/jado7quprg6hzzdubvwzh9umr75damwi",
            md5="859df31c91afe82e80e5012ba928f279",
            archive="mnist_m.tar.gz",
            unpack_into=".",
            optional=True,
        ),
        Resource(
            what="BSDS500's training photographs",
            places=("BSR/BSDS500/data/images/train", "bsds500_train"),
            licence="non-commercial research and education",
            url="https://www.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/BSR/BSR_bsds500.tgz",
            md5="0b17383ff0b21fe43d2f28e624203169",  # the one that public loaders of it check
            size=70_763_455,
            archive="BSR_bsds500.tgz",
            unpack_into=".",
            optional=True,
        ),
    ],
)
