"""VisDA-2017, classification: rendered objects to photographs, 12 kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from daband.domains.contract import About
from daband.domains.data_paths import need
from daband.domains.datasets.builder import Parts, declare
from daband.domains.datasets.made_up import made_up_images
from daband.domains.readers.image_folder import ImageList, Reading, pair_of_images, scan_classes
from daband.domains.readers.images import Framing
from daband.domains.registry import Resource
from daband.domains.splits import split_half
from daband.errors import DataError

__all__ = ["image_parts"]

_CLASSES = (
    "aeroplane",
    "bicycle",
    "bus",
    "car",
    "horse",
    "knife",
    "motorcycle",
    "person",
    "plant",
    "skateboard",
    "train",
    "truck",
)
_ROOTS = ("visda17", "VisDA2017", "visda-2017")
_TERMS = "non-commercial research and education, no redistribution"


def _read(*, workers: int | None = None, normalise: bool = False) -> Parts:
    """The training set as source, the validation set as target: contexts (3, 224, 224), 12 arms.

    Images are resized to 256x256, then the centre 224x224 is taken (SENTRY's preprocessing, its random crop and flip
    being augmentation). Half of the target, the same in every run, is kept for the evaluator.

    Args:
        workers: how many processes decode; by default one a core.
        normalise: contexts as float32, normalised with ImageNet's mean and deviation, instead of uint8.
    """
    root = need(_ROOTS, pair="visda17")
    source, target = (_split(root / folder) for folder in ("train", "validation"))
    train, test = split_half(target.labels, name="visda17")
    return image_parts(source, target.take(train), target.take(test), workers=workers, normalise=normalise)


def image_parts(
    source: ImageList, target: ImageList, target_test: ImageList, *, workers: int | None, normalise: bool
) -> Parts:
    """Lists of photographs, read when they are first needed, at 224 pixels a side."""
    arguments = {
        "source": source,
        "target": target.paths,
        "target_labelled": target,
        "target_test": target_test,
        "framing": Framing(256, 224),
        "reading": Reading(workers=workers, normalise=normalise),
    }
    return Parts(arguments, reader=pair_of_images)


def _split(folder: Path) -> ImageList:
    if not folder.is_dir():
        raise DataError(f"{folder} is not there; `daband data check visda17` says where to get it")
    listed = folder / "image_list.txt"
    return read_image_list(listed, _CLASSES) if listed.is_file() else scan_classes(folder, _CLASSES)


def read_image_list(path: Path, class_names: tuple[str, ...]) -> ImageList:
    """Files and classes of an ``image_list.txt``, which has a line ``aeroplane/NAME.png 0`` an image."""
    paths, labels = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        name, _, label = line.rpartition(" ")
        if not name or not label.isdigit() or int(label) >= len(class_names):
            raise DataError(f"{path} line {number} should read `FOLDER/NAME LABEL`, got {line!r}")
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise DataError(f"{path} line {number} points outside its folder: {name!r}")
        if Path(name).parts[0] != class_names[int(label)]:
            raise DataError(
                f"{path} line {number}: {name!r} has label {label}, which is {class_names[int(label)]!r}; "
                "the labels do not match the images"
            )
        paths.append(path.parent / name)
        labels.append(int(label))
    if not paths:
        raise DataError(f"{path} lists no images")
    absent = next((image for image in paths if not image.is_file()), None)
    if absent is not None:
        raise DataError(f"{absent} is listed in {path} but not there; unpack the archive again")
    return ImageList(tuple(paths), np.array(labels, dtype=np.int64))


declare(
    "visda17",
    about=About(
        summary="objects, rendered to photographed, 12 kinds (VisDA-2017 classification)",
        licence=f"the challenge's terms: {_TERMS}",
        citation="Peng et al., VisDA: the visual domain adaptation challenge, arXiv:1710.06924, 2017",
    ),
    read=_read,
    tiny=lambda **_: made_up_images(n_arms=12, per_class=10, side=32, seed=5),
    class_names=_CLASSES,
    resources=[
        Resource(
            what=f"VisDA-2017 classification, {split} set",
            places=tuple(f"{root}/{split}" for root in _ROOTS),
            licence=_TERMS,
            url=f"http://csr.bu.edu/ftp/visda17/clf/{split}.tar",
            archive=f"{split}.tar",
            unpack_into="visda17",
        )
        for split in ("train", "validation")
    ],
    without=["units"],
)
