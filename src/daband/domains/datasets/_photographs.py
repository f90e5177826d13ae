"""Rendered objects to photographs: VisDA-2017, S2RDA-49, and traffic signs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from daband._arrays import AnyArray, IntArray
from daband.domains._registry import find, need
from daband.domains._splits import split_half
from daband.domains.datasets import _builder as builder
from daband.domains.datasets._builder import Parts, catalogue, declare, facts, file_of
from daband.domains.readers._images import Framing, ImageContexts, ImageList, pair_of_images, scan_classes
from daband.errors import DataError

# VisDA-2017, classification: rendered objects to photographs, 12 kinds.


_VISDA17_CLASSES = tuple(catalogue()["visda17"]["class_names"])


def _read_visda17() -> Parts:
    """The training set as source, the validation set as target: contexts (3, 224, 224), 12 arms.

    Images are resized to 256x256, then the centre 224x224 is taken (SENTRY's preprocessing, its random crop and flip
    being augmentation). Half of the target, the same in every run, is kept for the evaluator.
    """
    root = file_of("visda17").parent
    source, target = (_split(root / folder) for folder in ("train", "validation"))
    train, test = split_half(target.labels, name="visda17")
    return image_parts(source, target.take(train), target.take(test))


def image_parts(source: ImageList, target: ImageList, target_test: ImageList) -> Parts:
    """Lists of photographs, read when they are first needed, at 224 pixels a side."""
    arguments = {
        "source": source, "target": target.paths, "target_labelled": target, "target_test": target_test,
        "framing": Framing(256, 224),
    }  # fmt: skip
    return Parts(arguments, reader=pair_of_images)


def _split(folder: Path) -> ImageList:
    if not folder.is_dir():
        raise DataError(f"{folder} is not there; `daband data check visda17` says where to get it")
    listed = folder / "image_list.txt"
    return read_image_list(listed, _VISDA17_CLASSES) if listed.is_file() else scan_classes(folder, _VISDA17_CLASSES)


def read_image_list(path: Path, class_names: tuple[str, ...]) -> ImageList:
    """Files and classes of an ``image_list.txt``, which has a line ``aeroplane/NAME.png 0`` an image."""

    def parse(line: str) -> tuple[str, int]:
        name, _, label = line.rpartition(" ")
        if not name or not label.isdigit() or int(label) >= len(class_names):
            raise ValueError(f"should read `FOLDER/NAME LABEL`, got {line!r}")
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"points outside its folder: {name!r}")
        right = class_names[int(label)]
        if Path(name).parts[0] != right:
            raise ValueError(f"has label {label}, {right!r}, for {name!r}; the labels do not match the images")
        return name, int(label)

    return _listed_images(path, path.parent, parse)


def _listed_images(path: Path, root: Path, parse: Callable[[str], tuple[str, int] | None]) -> ImageList:
    names, labels = builder.read_listing(path, parse)
    paths = tuple(root / name for name in names)
    absent = next((image for image in paths if not image.is_file()), None)
    if absent is not None:
        raise DataError(f"{absent} is listed in {path} but not there; unpack the archive again")
    return ImageList(paths, labels)


declare(
    "visda17",
    read=_read_visda17,
    tiny=lambda **_: builder.made_up_images(n_arms=12, per_class=10, side=32, seed=5),
    **facts("visda17"),
)


# S2RDA-49: rendered objects to photographs; the ten kinds that VisDA-2017 has too.

_S2RDA49_FOLDERS = ("airplane", "bicycle", "bus", "car", "knife", "motorcycle", "plant", "skateboard", "train", "truck")


def _read_s2rda49() -> Parts:
    """The synthetic domain as source, the real one as target: contexts (3, 224, 224), 10 arms.

    Training sees the photographs of the authors' ``real_val.txt``, the evaluator those of ``real_test.txt``; where
    these lists are not there, half of the photographs, the same in every run, is kept for the evaluator. Images are
    resized to 256x256, then the centre 224x224 is taken.
    """
    root = file_of("s2rda49").parent
    lists = [find([f"splits/{name}", name], directory=root) for name in ("real_val.txt", "real_test.txt")]
    if lists[0] is not None and lists[1] is not None:
        train, test = (_read_split_list(path, root) for path in lists if path is not None)
        common = set(train.paths) & set(test.paths)
        if common:
            raise DataError(
                f"{lists[0]} and {lists[1]} both list {min(common)}; training would see what evaluation holds"
            )
    else:
        real = scan_classes(root / "real", _S2RDA49_FOLDERS)
        seen_rows, held_rows = split_half(real.labels, name="s2rda49")
        train, test = real.take(seen_rows), real.take(held_rows)
    return image_parts(scan_classes(root / "synthetic", _S2RDA49_FOLDERS), train, test)


def _read_split_list(path: Path, root: Path) -> ImageList:
    """The images of a list with a line ``real/airplane/NAME.jpg`` each; lines of the other 39 kinds are passed over."""

    def parse(line: str) -> tuple[str, int] | None:
        name = line.split(maxsplit=1)[0]
        parts = Path(name).parts
        if len(parts) < 3 or parts[0] != "real" or ".." in parts:
            raise ValueError(f"should read `real/FOLDER/NAME`, got {line!r}")
        return (name, _S2RDA49_FOLDERS.index(parts[1])) if parts[1] in _S2RDA49_FOLDERS else None

    return _listed_images(path, root, parse)


declare(
    "s2rda49",
    read=_read_s2rda49,
    tiny=lambda **_: builder.made_up_images(n_arms=10, per_class=10, side=32, seed=6),
    **facts("s2rda49"),
)


# Traffic signs: rendered to photographed, 43 kinds.


_SIGNS_FOLDERS = tuple(f"{number:02d}" for number in range(43))


def _read_signs(*, side: int = 32) -> Parts:
    """Rendered signs as source, photographs as target: contexts (3, side, side) of uint8, 43 arms.

    Photographs of one sign, taken while driving towards it, are near-copies; they stay on one side of the split.

    Args:
        side: pixels a side.
    """
    framing = Framing(side, side)
    rendered, photographed = (
        scan_classes(need([f"signs/{folder}"], pair="signs"), _SIGNS_FOLDERS) for folder in ("synthetic", "real")
    )
    tracks = [f"{path.parent.name}/{path.stem.partition('_')[0]}" for path in photographed.paths]
    parts = builder.halved(*_decode(photographed, framing), name="signs", groups=tracks)
    return Parts({"source": _decode(rendered, framing), **parts})


def _decode(images: ImageList, framing: Framing) -> tuple[AnyArray, IntArray]:
    # A dozen megabytes in all: decoded once and held, with nothing left of the file names.
    contexts = ImageContexts(images.paths, framing)
    return contexts.read(np.arange(len(contexts))), images.labels


declare(
    "signs",
    read=_read_signs,
    tiny=lambda **_: builder.made_up_images(n_arms=43, per_class=8, side=16, seed=4),
    **facts("signs"),
)
