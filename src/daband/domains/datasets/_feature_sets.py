"""Features that others computed: Amazon reviews, Office-31 and Office-Caltech, every ordered pair of their domains."""

from __future__ import annotations

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray
from daband.domains.datasets import _builder as builder
from daband.domains.datasets._builder import Parts, catalogue, declare, facts, file_of, halved

# Amazon reviews: is a review positive? Learned on one kind of product, applied to another.

_AMAZON_CLASSES = catalogue()["amazon"]["class_names"]


def _read_amazon(*, source: str = "books", target: str = "dvd") -> Parts:
    """Reviews of one kind of product as source, of another as target: contexts (400,), 2 arms.

    Args:
        source: books, dvd, elec or kitchen; its reviews, about 2,000, pay.
        target: another of them; half of its reviews are seen in training, the other half is kept for the evaluator.
    """
    of_source, of_target = (
        builder.load_matlab(file_of("amazon", domain), n_features=400, class_names=_AMAZON_CLASSES, first_label=0)
        for domain in (source, target)
    )
    return Parts({"source": of_source, **halved(*of_target, name=f"amazon/{source}-{target}")})


declare(
    "amazon",
    read=_read_amazon,
    tiny=lambda **_: builder.made_up_vectors(n_arms=2, dimension=400, n=120, shift=0.5, seed=1, n_test=60),
    **facts("amazon"),
)


# Office-31 as pretrained features: 31 kinds of office things, photographed for a shop, by a camera, by a webcam.


_WIDTH = 1280


def _read_office31(*, source: str = "amazon", target: str = "webcam") -> Parts:
    """Photographs of one kind as source, of another as target: contexts (1280,) of float32, 31 arms.

    Features come from a network that was trained on ImageNet. A source gives both halves of its photographs. Of a
    target, training sees one half without labels, the evaluator holds the other.

    Args:
        source: amazon (2,817 photographs), dslr (498) or webcam (795); its photographs pay.
        target: another of them.
    """
    (x, y), (x_more, y_more) = _halves(source)
    seen, held = _halves(target)
    of_source = (np.concatenate([x, x_more]), np.concatenate([y, y_more]))
    return Parts({"source": of_source, "target": seen[0], "target_labelled": seen, "target_test": held})


def _tiny_office31(*, source: str = "amazon", target: str = "webcam") -> Parts:
    return builder.made_up_vectors(n_arms=31, dimension=_WIDTH, n=310, shift=0.5, seed=len(source + target))


def _halves(domain: str) -> list[tuple[AnyArray, IntArray]]:
    halves = builder.load_halves(file_of("office31_features", domain), shape=(_WIDTH,), n_classes=31, dtype=None)
    return [(contexts.astype(np.float32), labels) for contexts, labels in halves]


declare("office31_features", read=_read_office31, tiny=_tiny_office31, **facts("office31_features"))


# Office-Caltech: ten kinds of objects in four collections of pictures, as counts of visual words.


_OFFICE_CALTECH_CLASSES = catalogue()["office_caltech"]["class_names"]


def _read_office_caltech(*, source: str = "amazon", target: str = "webcam") -> Parts:
    """One collection as source, another as target: contexts (800,) of unit norm, 10 arms.

    Contexts are the square roots of each picture's share of every visual word. That depends on the picture alone: the
    usual standardising of each domain by its own statistics would do a part of the adaptation before any method starts.

    Args:
        source: amazon, caltech10 (1,123 pictures), dslr (157) or webcam; its pictures pay.
        target: another of them; half of its pictures are seen in training, the other half is kept for the evaluator.
    """
    files = (file_of("office_caltech", domain) for domain in (source, target))
    of_source, of_target = (
        _root_shares(*builder.load_matlab(path, n_features=800, class_names=_OFFICE_CALTECH_CLASSES, first_label=1))
        for path in files
    )
    return Parts({"source": of_source, **halved(*of_target, name=f"office_caltech/{source}-{target}")})


def _tiny_office_caltech(**_: str) -> Parts:
    made = builder.made_up_vectors(n_arms=10, dimension=800, n=200, shift=0.5, seed=2, n_test=100).arguments
    rooted = {part: _root_shares(*made[part]) for part in ("source", "target_labelled", "target_test")}
    return Parts({**rooted, "target": rooted["target_labelled"][0]})


def _root_shares(counts: FloatArray, labels: IntArray) -> tuple[FloatArray, IntArray]:
    total = counts.sum(axis=1, keepdims=True)
    return np.sqrt(counts / np.where(total > 0, total, 1.0)), labels


declare("office_caltech", read=_read_office_caltech, tiny=_tiny_office_caltech, **facts("office_caltech"))
