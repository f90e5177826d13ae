"""Traffic signs: rendered to photographed, 43 kinds."""

from __future__ import annotations

import numpy as np

from daband.arrays import AnyArray, IntArray
from daband.domains.contract import About, Pair
from daband.domains.data_paths import need
from daband.domains.readers.arrays import from_arrays
from daband.domains.readers.image_folder import ImageList, scan_classes
from daband.domains.readers.images import Framing, ImageStore
from daband.domains.registry import describe, register_pair
from daband.domains.splits import split_half
from daband.domains.tiny_twins import tiny_images

__all__ = ["signs"]

_FOLDERS = tuple(f"{number:02d}" for number in range(43))
_CLASSES = (
    *(f"limit {speed}" for speed in (20, 30, 50, 60, 70, 80)),
    "end of limit 80",
    "limit 100",
    "limit 120",
    "no passing",
    "no passing for trucks",
    "right of way",
    "priority road",
    "yield",
    "stop",
    "no vehicles",
    "no trucks",
    "no entry",
    "danger",
    "curve left",
    "curve right",
    "double curve",
    "bumpy road",
    "slippery road",
    "road narrows",
    "road works",
    "traffic lights",
    "pedestrians",
    "children",
    "bicycles",
    "ice or snow",
    "animals",
    "end of all limits",
    "turn right",
    "turn left",
    "straight on",
    "straight or right",
    "straight or left",
    "keep right",
    "keep left",
    "roundabout",
    "end of no passing",
    "end of no passing for trucks",
)
_ABOUT = About(
    summary="traffic signs, rendered to photographed, 43 kinds",
    licence="GTSRB: free for research, with citation; SynSigns: for research",
    citation=(
        "Stallkamp et al., Man vs. computer: benchmarking machine learning algorithms for traffic sign recognition, "
        "2012; Moiseev et al., Evaluation of traffic sign recognition methods trained on synthetically generated data, "
        "2013"
    ),
    needs=("signs/synthetic", "signs/real"),
)


@register_pair("signs", about=_ABOUT)
def signs(
    *,
    tiny: bool = False,
    side: int = 32,
    passes: int = 1,
    target_passes: int | None = None,
    source_test: float | None = 0.1,
    workers: int | None = None,
) -> Pair:
    """Rendered signs as source, photographs as target: contexts (3, side, side) of uint8, 43 arms.

    Photographs of one sign, taken while driving towards it, are near-copies; they stay on one side of the split.

    Args:
        tiny: 8 made-up pictures a kind in each part, 16 pixels a side.
        side: pixels a side.
        passes: how many times each source context may be shown; there are about 1,800, and 1,000 of the target.
        target_passes: how many times each target context may be shown; by default as ``passes``.
        source_test: the share of the source that training does not use.
        workers: how many processes decode; by default one a core.
    """
    if tiny:
        here, seen, held = tiny_images(n_arms=43, per_class=8, side=16, seed=4)
    else:
        framing = Framing(side, side)
        rendered, photographed = (
            scan_classes(need([f"signs/{folder}"], pair="signs"), _FOLDERS) for folder in ("synthetic", "real")
        )
        tracks = [f"{path.parent.name}/{path.stem.partition('_')[0]}" for path in photographed.paths]
        train, test = split_half(photographed.labels, name="signs", groups=tracks)
        here, seen, held = (
            _decoded(images, framing, workers)
            for images in (rendered, photographed.take(train), photographed.take(test))
        )
    pair = from_arrays(
        source=here,
        target=seen[0],
        target_test=held,
        target_labelled=seen,
        n_arms=43,
        class_names=_CLASSES,
        source_test=source_test,
        passes=passes,
        target_passes=target_passes,
        name="signs",
    )
    return describe(pair, _ABOUT)


def _decoded(images: ImageList, framing: Framing, workers: int | None) -> tuple[AnyArray, IntArray]:
    # A dozen megabytes in all: decoded once and held, with nothing left of the file names.
    store = ImageStore(images.paths, framing, workers=workers)
    return store.read(np.arange(len(store))), images.labels
