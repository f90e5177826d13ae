"""Office-31 as pretrained features: 31 kinds of office things, photographed for a shop, by a camera, by a webcam."""

from __future__ import annotations

import numpy as np

from daband.arrays import AnyArray, IntArray
from daband.domains.contract import About
from daband.domains.data_paths import need
from daband.domains.datasets.builder import Parts, by_hand, declare, load_packed, ordered
from daband.domains.datasets.made_up import made_up_vectors
from daband.errors import DataError

__all__: list[str] = []

_DOMAINS = ("amazon", "dslr", "webcam")
_NAMES = (
    "back pack, bike, bike helmet, bookcase, bottle, calculator, desk chair, desk lamp, desktop computer, "
    "file cabinet, headphones, keyboard, laptop computer, letter tray, mobile phone, monitor, mouse, mug, "
    "paper notebook, pen, phone, printer, projector, punchers, ring binder, ruler, scissors, speaker, stapler, "
    "tape dispenser, trash can"
)
_WIDTH = 1280
_HOW = (
    "compute the 1,280 features of EfficientNet-Lite0 (ImageNet weights, resize 256, centre 224) of Office-31's "
    "photographs, and save an npz with x_train y_train x_test y_test, half of each class each"
)


def _read(*, source: str = "amazon", target: str = "webcam") -> Parts:
    """Photographs of one kind as source, of another as target: contexts (1280,) of float32, 31 arms.

    Features come from a network that was trained on ImageNet. A source gives both halves of its photographs. Of a
    target, training sees one half without labels, the evaluator holds the other.

    Args:
        source: amazon (2,817 photographs), dslr (498) or webcam (795); its photographs pay.
        target: another of them.
    """
    (x, y), (x_more, y_more) = _halves(source)
    seen, held = _halves(target)
    here = (np.concatenate([x, x_more]), np.concatenate([y, y_more]))
    return Parts({"source": here, "target": seen[0], "target_labelled": seen, "target_test": held})


def _tiny(*, source: str = "amazon", target: str = "webcam") -> Parts:
    return made_up_vectors(n_arms=31, dimension=_WIDTH, n=310, shift=0.5, seed=len(source + target))


def _halves(domain: str) -> tuple[tuple[AnyArray, IntArray], tuple[AnyArray, IntArray]]:
    path = need([f"office31_features/{domain}.npz"], pair="office31_features")
    x, y, x_test, y_test = load_packed(path, ("x_train", "y_train", "x_test", "y_test"))
    for contexts, labels in ((x, y), (x_test, y_test)):
        if contexts.ndim != 2 or contexts.shape[1] != _WIDTH or labels.shape != (len(contexts),) or labels.max() > 30:
            raise DataError(f"{path} should hold contexts (n, {_WIDTH}) with labels 0..30, got {contexts.shape}")
    return (x.astype(np.float32), y.astype(np.int64)), (x_test.astype(np.float32), y_test.astype(np.int64))


declare(
    "office31_features",
    about=About(
        summary="office things by pretrained features; 6 ordered pairs of amazon, dslr, webcam",
        licence="for research; the photographs were published without a licence",
        citation="Saenko, Kulis, Fritz and Darrell, Adapting visual category models to new domains, ECCV 2010",
    ),
    read=_read,
    tiny=_tiny,
    class_names=_NAMES.split(", "),
    name="office31_features/{source}-{target}",
    summary="office things by pretrained features, {source} to {target}",
    choices={"source": _DOMAINS, "target": _DOMAINS},
    variants=ordered(_DOMAINS),
    resources=[
        by_hand(f"photographs of {domain}", f"office31_features/{domain}.npz", "for research", _HOW, of=domain)
        for domain in _DOMAINS
    ],
)
