"""S2RDA-49: rendered objects to photographs; the ten kinds that VisDA-2017 has too."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from daband.domains.contract import About, Pair
from daband.domains.data_paths import find, need
from daband.domains.readers.image_folder import ImageList, Reading, pair_of_images, scan_classes
from daband.domains.readers.images import Framing
from daband.domains.registry import register_pair
from daband.domains.splits import split_half
from daband.domains.tiny_twins import tiny_image_pair
from daband.errors import DataError

__all__ = ["s2rda49"]

# Folder names of S2RDA-49, and what VisDA-2017 calls the same things.
_FOLDERS = ("airplane", "bicycle", "bus", "car", "knife", "motorcycle", "plant", "skateboard", "train", "truck")
_CLASSES = ("aeroplane", *_FOLDERS[1:])
_ROOTS = ("s2rda49", "S2RDA-49", "S2RDA-49/S2RDA-49")
_ABOUT = About(
    summary="objects, rendered to photographed, 10 of the 49 kinds (S2RDA-49)",
    licence="given out for research by its authors; the photographs keep their own licences",
    citation=(
        "Tang and Jia, A new benchmark: on the utility of synthetic data with Blender for bare supervised learning and "
        "downstream domain adaptation, CVPR 2023"
    ),
    needs=("s2rda49/synthetic", "s2rda49/real"),
)


@register_pair("s2rda49", about=_ABOUT)
def s2rda49(
    *,
    tiny: bool = False,
    passes: int = 1,
    target_passes: int | None = None,
    source_test: float | None = 0.1,
    workers: int | None = None,
    normalise: bool = False,
) -> Pair:
    """The synthetic domain as source, the real one as target: contexts (3, 224, 224), 10 arms.

    Training sees the photographs of the authors' ``real_val.txt``, the evaluator those of ``real_test.txt``; where
    these lists are not there, half of the photographs, the same in every run, is kept for the evaluator. Images are
    resized to 256x256, then the centre 224x224 is taken.

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
            name="s2rda49",
            class_names=_CLASSES,
            about=_ABOUT,
            passes=passes,
            target_passes=target_passes,
            source_test=source_test,
            seed=6,
        )
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
    return pair_of_images(
        source=scan_classes(root / "synthetic", _FOLDERS),
        target=train.paths,
        target_test=test,
        target_labelled=train,
        class_names=_CLASSES,
        framing=Framing(256, 224),
        reading=Reading(workers=workers, normalise=normalise),
        source_test=source_test,
        passes=passes,
        target_passes=target_passes,
        name="s2rda49",
        about=_ABOUT,
    )


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
