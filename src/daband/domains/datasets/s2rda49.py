"""S2RDA-49: rendered objects to photographs; the ten kinds that VisDA-2017 has too."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from daband.domains.contract import About
from daband.domains.data_paths import find, need
from daband.domains.datasets.builder import Parts, declare
from daband.domains.datasets.made_up import made_up_images
from daband.domains.datasets.visda17 import image_parts
from daband.domains.readers.image_folder import ImageList, scan_classes
from daband.domains.registry import Resource
from daband.domains.splits import split_half
from daband.errors import DataError

__all__: list[str] = []

_FOLDERS = ("airplane", "bicycle", "bus", "car", "knife", "motorcycle", "plant", "skateboard", "train", "truck")
_ROOTS = ("s2rda49", "S2RDA-49", "S2RDA-49/S2RDA-49")
_HOW = (
    "get S2RDA-49 from the address in https://github.com/huitangtang/On_the_Utility_of_Synthetic_Data, unpack it so "
    "that s2rda49/synthetic and s2rda49/real exist, and put its real_val.txt and real_test.txt into s2rda49/splits"
)


def _read(*, workers: int | None = None, normalise: bool = False) -> Parts:
    """The synthetic domain as source, the real one as target: contexts (3, 224, 224), 10 arms.

    Training sees the photographs of the authors' ``real_val.txt``, the evaluator those of ``real_test.txt``; where
    these lists are not there, half of the photographs, the same in every run, is kept for the evaluator. Images are
    resized to 256x256, then the centre 224x224 is taken.

    Args:
        workers: how many processes decode; by default one a core.
        normalise: contexts as float32, normalised with ImageNet's mean and deviation, instead of uint8.
    """
    root = need(_ROOTS, pair="s2rda49")
    lists = [find([f"splits/{name}", name], directory=root) for name in ("real_val.txt", "real_test.txt")]
    if lists[0] is not None and lists[1] is not None:
        train, test = (_listed(path, root) for path in lists if path is not None)
        common = set(train.paths) & set(test.paths)
        if common:
            raise DataError(
                f"{lists[0]} and {lists[1]} both list {min(common)}; training would see what evaluation holds"
            )
    else:
        real = scan_classes(root / "real", _FOLDERS)
        seen_rows, held_rows = split_half(real.labels, name="s2rda49")
        train, test = real.take(seen_rows), real.take(held_rows)
    return image_parts(scan_classes(root / "synthetic", _FOLDERS), train, test, workers=workers, normalise=normalise)


def _listed(path: Path, root: Path) -> ImageList:
    """The images of a list with a line ``real/airplane/NAME.jpg`` each; lines of the other 39 kinds are passed over."""
    place = {folder: label for label, folder in enumerate(_FOLDERS)}
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
        raise DataError(f"{path} lists no image of {', '.join(_FOLDERS)}")
    absent = next((image for image in paths if not image.is_file()), None)
    if absent is not None:
        raise DataError(f"{absent} is listed in {path} but not there; unpack the archive again")
    return ImageList(tuple(paths), np.array(labels, dtype=np.int64))


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
    read=_read,
    tiny=lambda **_: made_up_images(n_arms=10, per_class=10, side=32, seed=6),
    class_names=("aeroplane", *_FOLDERS[1:]),  # as VisDA-2017 calls them
    resources=[
        Resource(
            what=f"S2RDA-49, {domain} domain",
            places=tuple(f"{root}/{domain}" for root in _ROOTS),
            licence="for research",
            by_hand=_HOW,
        )
        for domain in ("synthetic", "real")
    ],
    without=["units"],
)
