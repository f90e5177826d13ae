"""Traffic signs: rendered to photographed, 43 kinds."""

from __future__ import annotations

import numpy as np

from daband.arrays import AnyArray, IntArray
from daband.domains.contract import About
from daband.domains.data_paths import need
from daband.domains.datasets.builder import Parts, by_hand, declare, halved
from daband.domains.datasets.made_up import made_up_images
from daband.domains.readers.image_folder import ImageList, scan_classes
from daband.domains.readers.images import Framing, ImageStore

__all__: list[str] = []

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
_HOW = (
    "put one folder a class, 00 to 42 in GTSRB's order, below it: SynSigns' rendered signs in signs/synthetic, "
    "GTSRB's (https://benchmark.ini.rub.de, as PNG, names TRACK_FRAME.png) in signs/real"
)


def _read(*, side: int = 32, workers: int | None = None) -> Parts:
    """Rendered signs as source, photographs as target: contexts (3, side, side) of uint8, 43 arms.

    Photographs of one sign, taken while driving towards it, are near-copies; they stay on one side of the split.

    Args:
        side: pixels a side.
        workers: how many processes decode; by default one a core.
    """
    framing = Framing(side, side)
    rendered, photographed = (
        scan_classes(need([f"signs/{folder}"], pair="signs"), _FOLDERS) for folder in ("synthetic", "real")
    )
    tracks = [f"{path.parent.name}/{path.stem.partition('_')[0]}" for path in photographed.paths]
    there = halved(*_decoded(photographed, framing, workers), name="signs", groups=tracks)
    return Parts({"source": _decoded(rendered, framing, workers), **there})


def _decoded(images: ImageList, framing: Framing, workers: int | None) -> tuple[AnyArray, IntArray]:
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
    read=_read,
    tiny=lambda **_: made_up_images(n_arms=43, per_class=8, side=16, seed=4),
    class_names=_CLASSES,
    resources=[
        by_hand("SynSigns, rendered signs", "signs/synthetic", "for research", _HOW),
        by_hand("GTSRB, photographed signs", "signs/real", "free for research, with citation", _HOW),
    ],
    without=["units"],
)
