"""Build the pairs of rendered and photographed objects in the paper: ``visda17`` and ``s2rda49``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from daband.domains._contract import Pair
from daband.domains._registry import find_data, pairs, register_pair, require_data
from daband.domains._splits import split_half
from daband.domains.datasets._catalogue import describe_data
from daband.domains.readers._images import ImageList, build_image_pair, scan_classes
from daband.errors import DataError
from daband.features._shift import ShiftLike

# VisDA-2017, classification: rendered objects to photographs, 12 kinds.


#: Names of the classes, which are also the names of the folders.
_VISDA17_CLASSES = (
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


@register_pair("visda17", **describe_data("visda17"))
def _build_visda17(
    *,
    source_test: float | None = 0.1,
    shift: ShiftLike = None,
) -> Pair:
    """Read the training set as source and the validation set as target: contexts (3, 224, 224), 12
    arms.

    Images are resized to 256x256, then cropped to the centre 224x224. This is SENTRY's
    preprocessing; its random crop and flip are augmentation. Half of the target, the same in every
    run, is kept for the evaluator. The arguments are as in ``from_images``.
    """
    root = require_data(pairs.get("visda17").resources[0].paths, pair="visda17").parent
    source, target = (
        scan_classes(root / folder, _VISDA17_CLASSES) for folder in ("train", "validation")
    )
    training_rows, test_rows = split_half(target.labels, name="visda17")
    return _build_pair(
        "visda17",
        _VISDA17_CLASSES,
        source=source,
        target_labelled=target.select(training_rows),
        target_test=target.select(test_rows),
        source_test=source_test,
        shift=shift,
    )


def _build_pair(
    name: str, class_names: Sequence[str], *, target_labelled: ImageList, **arguments: Any
) -> Pair:
    """Return a pair of images with 224 pixels per side, which are read when they are needed."""
    pair = build_image_pair(
        name=name,
        class_names=class_names,
        target=target_labelled.paths,
        target_labelled=target_labelled,
        framing=(256, 224),
        **arguments,
    )
    pair.source.full_feedback = False  # type: ignore[union-attr]
    return replace(pair, about=pairs.get(name).about)


# S2RDA-49: rendered objects to photographs; the ten kinds that VisDA-2017 has too.

#: The folder of each class.
_S2RDA49_FOLDERS = (
    "airplane",
    "bicycle",
    "bus",
    "car",
    "knife",
    "motorcycle",
    "plant",
    "skateboard",
    "train",
    "truck",
)


@register_pair("s2rda49", **describe_data("s2rda49"))
def _build_s2rda49(
    *,
    source_test: float | None = 0.1,
    shift: ShiftLike = None,
) -> Pair:
    """Read the synthetic domain as source and the real one as target: contexts (3, 224, 224), 10
    arms.

    Training sees the photographs of the authors' ``real_val.txt``, the evaluator those of
    ``real_test.txt``. If these lists are missing, half of the photographs, the same in every run,
    is kept for the evaluator. Images are resized to 256x256, then cropped to the centre 224x224.
    The arguments are as in ``from_images``.
    """
    root = require_data(pairs.get("s2rda49").resources[0].paths, pair="s2rda49").parent
    list_names = ("real_val.txt", "real_test.txt")
    train_list, test_list = (
        find_data([f"splits/{name}", name], directory=root) for name in list_names
    )
    if train_list is not None and test_list is not None:
        training_images, test_images = (
            _read_split_list(path, root) for path in (train_list, test_list)
        )
        common_paths = set(training_images.paths) & set(test_images.paths)
        if common_paths:
            raise DataError(
                f"{train_list} and {test_list} both list {min(common_paths)}; training would see"
                " data of the evaluator"
            )
    else:
        photographs = scan_classes(root / "real", _S2RDA49_FOLDERS)
        training_rows, test_rows = split_half(photographs.labels, name="s2rda49")
        training_images = photographs.select(training_rows)
        test_images = photographs.select(test_rows)
    return _build_pair(
        "s2rda49",
        ("aeroplane", *_S2RDA49_FOLDERS[1:]),
        source=scan_classes(root / "synthetic", _S2RDA49_FOLDERS),
        target_labelled=training_images,
        target_test=test_images,
        source_test=source_test,
        shift=shift,
    )


def _read_split_list(list_path: Path, root: Path) -> ImageList:
    """Return the images of the ten classes in a list with lines such as
    ``real/airplane/NAME.jpg``.
    """
    image_paths = []
    for line in list_path.read_text(encoding="utf-8").split():
        image_path = Path(line)
        if image_path.parts[:1] != ("real",) or ".." in image_path.parts:
            raise DataError(f"{list_path} should have lines `real/FOLDER/NAME`, got {line!r}")
        if image_path.parts[1] in _S2RDA49_FOLDERS:
            if not (root / image_path).is_file():
                raise DataError(f"{list_path} lists {image_path}, which does not exist")
            image_paths.append(image_path)
    if not image_paths:
        raise DataError(f"{list_path} lists no image of its classes")
    labels = np.array(
        [_S2RDA49_FOLDERS.index(image_path.parts[1]) for image_path in image_paths], np.int64
    )
    return ImageList(tuple(root / image_path for image_path in image_paths), labels)
