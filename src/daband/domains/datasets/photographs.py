"""Rendered objects to photographs: VisDA-2017, S2RDA-49, and traffic signs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from daband.arrays import AnyArray, IntArray
from daband.domains.contract import About
from daband.domains.datasets.builder import Parts, by_hand, declare, halved, made_up_images
from daband.domains.readers.image_folder import ImageList, Reading, pair_of_images, scan_classes
from daband.domains.readers.images import Framing, ImageStore
from daband.domains.registry import Resource, find, need
from daband.domains.splits import split_half
from daband.errors import DataError

# VisDA-2017, classification: rendered objects to photographs, 12 kinds.


_VISDA17_NAMES = "aeroplane bicycle bus car horse knife motorcycle person plant skateboard train truck"
_VISDA17_CLASSES = tuple(_VISDA17_NAMES.split())
_VISDA17_ROOTS = ("visda17", "VisDA2017", "visda-2017")
_TERMS = "non-commercial research and education, no redistribution"


def _read_visda17(*, workers: int | None = None, normalise: bool = False) -> Parts:
    """The training set as source, the validation set as target: contexts (3, 224, 224), 12 arms.

    Images are resized to 256x256, then the centre 224x224 is taken (SENTRY's preprocessing, its random crop and flip
    being augmentation). Half of the target, the same in every run, is kept for the evaluator.

    Args:
        workers: how many threads decode; by default one a core.
        normalise: contexts as float32, normalised with ImageNet's mean and deviation, instead of uint8.
    """
    root = need(_VISDA17_ROOTS, pair="visda17")
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
    return read_image_list(listed, _VISDA17_CLASSES) if listed.is_file() else scan_classes(folder, _VISDA17_CLASSES)


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
    return _require_images(path, paths, labels)


def _require_images(path: Path, paths: list[Path], labels: list[int]) -> ImageList:
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
    read=_read_visda17,
    tiny=lambda **_: made_up_images(n_arms=12, per_class=10, side=32, seed=5),
    class_names=_VISDA17_CLASSES,
    resources=[
        Resource(
            what=f"VisDA-2017 classification, {split} set",
            places=tuple(f"{root}/{split}" for root in _VISDA17_ROOTS),
            licence=_TERMS,
            url=f"http://csr.bu.edu/ftp/visda17/clf/{split}.tar",
            archive=f"{split}.tar",
            unpack_into="visda17",
        )
        for split in ("train", "validation")
    ],
    without=["units"],
)


# S2RDA-49: rendered objects to photographs; the ten kinds that VisDA-2017 has too.

_S2RDA49_FOLDERS = ("airplane", "bicycle", "bus", "car", "knife", "motorcycle", "plant", "skateboard", "train", "truck")
_S2RDA49_ROOTS = ("s2rda49", "S2RDA-49", "S2RDA-49/S2RDA-49")
_S2RDA49_HOW = (
    "get S2RDA-49 from the address in https://github.com/huitangtang/On_the_Utility_of_Synthetic_Data, unpack it so "
    "that s2rda49/synthetic and s2rda49/real exist, and put its real_val.txt and real_test.txt into s2rda49/splits"
)


def _read_s2rda49(*, workers: int | None = None, normalise: bool = False) -> Parts:
    """The synthetic domain as source, the real one as target: contexts (3, 224, 224), 10 arms.

    Training sees the photographs of the authors' ``real_val.txt``, the evaluator those of ``real_test.txt``; where
    these lists are not there, half of the photographs, the same in every run, is kept for the evaluator. Images are
    resized to 256x256, then the centre 224x224 is taken.

    Args:
        workers: how many threads decode; by default one a core.
        normalise: contexts as float32, normalised with ImageNet's mean and deviation, instead of uint8.
    """
    root = need(_S2RDA49_ROOTS, pair="s2rda49")
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
    return image_parts(
        scan_classes(root / "synthetic", _S2RDA49_FOLDERS), train, test, workers=workers, normalise=normalise
    )


def _read_split_list(path: Path, root: Path) -> ImageList:
    """The images of a list with a line ``real/airplane/NAME.jpg`` each; lines of the other 39 kinds are passed over."""
    place = {folder: label for label, folder in enumerate(_S2RDA49_FOLDERS)}
    paths, labels = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        parts = Path(words[0]).parts
        if len(parts) < 3 or parts[0] != "real" or ".." in parts:
            raise DataError(f"{path} line {number} should read `real/FOLDER/NAME`, got {line!r}")
        if parts[1] in place:
            paths.append(root / words[0])
            labels.append(place[parts[1]])
    if not paths:
        raise DataError(f"{path} lists no image of {', '.join(_S2RDA49_FOLDERS)}")
    return _require_images(path, paths, labels)


declare(
    "s2rda49",
    about=About(
        summary="objects, rendered to photographed, 10 of the 49 kinds (S2RDA-49)",
        licence="given out for research by its authors; the photographs keep their own licences",
        citation=(
            "Tang and Jia, A new benchmark: on the utility of synthetic data with Blender for bare supervised learning "
            "and downstream domain adaptation, CVPR 2023"
        ),
    ),
    read=_read_s2rda49,
    tiny=lambda **_: made_up_images(n_arms=10, per_class=10, side=32, seed=6),
    class_names=("aeroplane", *_S2RDA49_FOLDERS[1:]),  # as VisDA-2017 calls them
    resources=[
        Resource(
            what=f"S2RDA-49, {domain} domain",
            places=tuple(f"{root}/{domain}" for root in _S2RDA49_ROOTS),
            licence="for research",
            by_hand=_S2RDA49_HOW,
        )
        for domain in ("synthetic", "real")
    ],
    without=["units"],
)


# Traffic signs: rendered to photographed, 43 kinds.


_SIGNS_FOLDERS = tuple(f"{number:02d}" for number in range(43))
_SIGNS_NAMES = (
    "limit 20, limit 30, limit 50, limit 60, limit 70, limit 80, end of limit 80, limit 100, limit 120, no "
    "passing, no passing for trucks, right of way, priority road, yield, stop, no vehicles, no trucks, no entry, "
    "danger, curve left, curve right, double curve, bumpy road, slippery road, road narrows, road works, traffic "
    "lights, pedestrians, children, bicycles, ice or snow, animals, end of all limits, turn right, turn left, "
    "straight on, straight or right, straight or left, keep right, keep left, roundabout, end of no passing, end "
    "of no passing for trucks"
)
_SIGNS_CLASSES = tuple(_SIGNS_NAMES.split(", "))
_SIGNS_HOW = (
    "put one folder a class, 00 to 42 in GTSRB's order, below it: SynSigns' rendered signs in signs/synthetic, "
    "GTSRB's (https://benchmark.ini.rub.de, as PNG, names TRACK_FRAME.png) in signs/real"
)


def _read_signs(*, side: int = 32, workers: int | None = None) -> Parts:
    """Rendered signs as source, photographs as target: contexts (3, side, side) of uint8, 43 arms.

    Photographs of one sign, taken while driving towards it, are near-copies; they stay on one side of the split.

    Args:
        side: pixels a side.
        workers: how many threads decode; by default one a core.
    """
    framing = Framing(side, side)
    rendered, photographed = (
        scan_classes(need([f"signs/{folder}"], pair="signs"), _SIGNS_FOLDERS) for folder in ("synthetic", "real")
    )
    tracks = [f"{path.parent.name}/{path.stem.partition('_')[0]}" for path in photographed.paths]
    parts = halved(*_decode(photographed, framing, workers), name="signs", groups=tracks)
    return Parts({"source": _decode(rendered, framing, workers), **parts})


def _decode(images: ImageList, framing: Framing, workers: int | None) -> tuple[AnyArray, IntArray]:
    # A dozen megabytes in all: decoded once and held, with nothing left of the file names.
    store = ImageStore(images.paths, framing, workers=workers)
    return store.read(np.arange(len(store))), images.labels


declare(
    "signs",
    about=About(
        summary="traffic signs, rendered to photographed, 43 kinds",
        licence="GTSRB: free for research, with citation; SynSigns: for research",
        citation=(
            "Stallkamp et al., Man vs. computer: benchmarking machine learning algorithms for traffic sign "
            "recognition, 2012; Moiseev et al., Evaluation of traffic sign recognition methods trained on "
            "synthetically generated data, 2013"
        ),
    ),
    read=_read_signs,
    tiny=lambda **_: made_up_images(n_arms=43, per_class=8, side=16, seed=4),
    class_names=_SIGNS_CLASSES,
    resources=[
        by_hand("SynSigns, rendered signs", "signs/synthetic", "for research", _SIGNS_HOW),
        by_hand("GTSRB, photographed signs", "signs/real", "free for research, with citation", _SIGNS_HOW),
    ],
    without=["units"],
)
