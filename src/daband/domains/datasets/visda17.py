"""VisDA-2017, classification: rendered objects to photographs, 12 kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from daband.domains.contract import About, Pair
from daband.domains.data_paths import need
from daband.domains.readers.image_folder import ImageList, Reading, pair_of_images, scan_classes
from daband.domains.readers.images import Framing
from daband.domains.registry import register_pair
from daband.domains.splits import split_half
from daband.domains.tiny_twins import tiny_image_pair
from daband.errors import DataError

__all__ = ["read_image_list", "visda17"]

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
_ABOUT = About(
    summary="objects, rendered to photographed, 12 kinds (VisDA-2017 classification)",
    licence="the challenge's terms: non-commercial research and education, no redistribution",
    citation="Peng et al., VisDA: the visual domain adaptation challenge, arXiv:1710.06924, 2017",
    needs=("visda17/train", "visda17/validation"),
)


@register_pair("visda17", about=_ABOUT)
def visda17(
    *,
    tiny: bool = False,
    passes: int = 1,
    target_passes: int | None = None,
    source_test: float | None = 0.1,
    workers: int | None = None,
    normalise: bool = False,
) -> Pair:
    """The training set as source, the validation set as target: contexts (3, 224, 224), 12 arms.

    Images are resized to 256x256, then the centre 224x224 is taken (SENTRY's preprocessing, its random crop and flip
    being augmentation). Half of the target, the same in every run, is kept for the evaluator.

    Args:
        tiny: 10 made-up pictures a kind in each part, 32 pixels a side.
        passes: how many times each source context may be shown.
        target_passes: how many times each target context may be shown; by default as ``passes``.
        source_test: the share of the source that training does not use.
        workers: how many processes decode; by default one a core.
        normalise: contexts as float32, normalised with ImageNet's mean and deviation, instead of uint8.
    """
    if tiny:
        return tiny_image_pair(
            name="visda17",
            class_names=_CLASSES,
            about=_ABOUT,
            passes=passes,
            target_passes=target_passes,
            source_test=source_test,
            seed=5,
        )
    root = need(_ROOTS, pair="visda17")
    source, target = (_split(root / folder) for folder in ("train", "validation"))
    train, test = split_half(target.labels, name="visda17")
    return pair_of_images(
        source=source,
        target=target.take(train).paths,
        target_test=target.take(test),
        target_labelled=target.take(train),
        class_names=_CLASSES,
        framing=Framing(256, 224),
        reading=Reading(workers=workers, normalise=normalise),
        source_test=source_test,
        passes=passes,
        target_passes=target_passes,
        name="visda17",
        about=_ABOUT,
    )


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
