"""Features that others computed: Amazon reviews, Office-31 and Office-Caltech, every ordered pair of their domains."""

from __future__ import annotations

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray
from daband.domains.contract import About
from daband.domains.datasets.builder import (
    Parts,
    by_hand,
    declare,
    halved,
    load_labelled,
    load_matlab,
    made_up_vectors,
)
from daband.domains.registry import need

# Amazon reviews: is a review positive? Learned on one kind of product, applied to another.

_AMAZON_DOMAINS = ("books", "dvd", "elec", "kitchen")
_AMAZON_CLASSES = ("negative", "positive")
_AMAZON_FILE = "amazon_reviews_400/{}_400.mat"
_AMAZON_HOW = "get the 400-feature .mat files (variables fts, labels) that skada-bench and transferlearning.xyz hand on"


def _read_amazon(*, source: str = "books", target: str = "dvd") -> Parts:
    """Reviews of one kind of product as source, of another as target: contexts (400,), 2 arms.

    Args:
        source: books, dvd, elec or kitchen; its reviews, about 2,000, pay.
        target: another of them; half of its reviews are seen in training, the other half is kept for the evaluator.
    """
    paths = (need([_AMAZON_FILE.format(domain)], pair="amazon") for domain in (source, target))
    of_source, of_target = (
        load_matlab(path, n_features=400, class_names=_AMAZON_CLASSES, first_label=0) for path in paths
    )
    return Parts({"source": of_source, **halved(*of_target, name=f"amazon/{source}-{target}")})


declare(
    "amazon",
    about=About(
        summary="sentiment of product reviews; 12 ordered pairs of books, dvd, elec, kitchen",
        licence="for research; the features were published without a licence",
        citation=(
            "Blitzer, Dredze and Pereira, Biographies, Bollywood, boom-boxes and blenders, ACL 2007; features: Chen, "
            "Xu, Weinberger and Sha, Marginalized denoising autoencoders for domain adaptation, ICML 2012"
        ),
    ),
    read=_read_amazon,
    tiny=lambda **_: made_up_vectors(n_arms=2, dimension=400, n=120, shift=0.5, seed=1, n_test=60),
    class_names=_AMAZON_CLASSES,
    summary="sentiment of product reviews, {source} to {target}",
    domains=_AMAZON_DOMAINS,
    resources=[
        by_hand(f"reviews of {domain}", _AMAZON_FILE.format(domain), "for research", _AMAZON_HOW, of=domain)
        for domain in _AMAZON_DOMAINS
    ],
)


# Office-31 as pretrained features: 31 kinds of office things, photographed for a shop, by a camera, by a webcam.


_OFFICE31_DOMAINS = ("amazon", "dslr", "webcam")
_NAMES = (
    "back pack, bike, bike helmet, bookcase, bottle, calculator, desk chair, desk lamp, desktop computer, "
    "file cabinet, headphones, keyboard, laptop computer, letter tray, mobile phone, monitor, mouse, mug, "
    "paper notebook, pen, phone, printer, projector, punchers, ring binder, ruler, scissors, speaker, stapler, "
    "tape dispenser, trash can"
)
_WIDTH = 1280
_OFFICE31_HOW = (
    "compute the 1,280 features of EfficientNet-Lite0 (ImageNet weights, resize 256, centre 224) of Office-31's "
    "photographs, and save an npz with x_train y_train x_test y_test, half of each class each"
)


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
    return made_up_vectors(n_arms=31, dimension=_WIDTH, n=310, shift=0.5, seed=len(source + target))


def _halves(domain: str) -> list[tuple[AnyArray, IntArray]]:
    path = need([f"office31_features/{domain}.npz"], pair="office31_features")
    halves = (
        load_labelled(path, (f"x_{half}", f"y_{half}"), shape=(_WIDTH,), n_classes=31, dtype=None)
        for half in ("train", "test")
    )
    return [(contexts.astype(np.float32), labels) for contexts, labels in halves]


declare(
    "office31_features",
    about=About(
        summary="office things by pretrained features; 6 ordered pairs of amazon, dslr, webcam",
        licence="for research; the photographs were published without a licence",
        citation="Saenko, Kulis, Fritz and Darrell, Adapting visual category models to new domains, ECCV 2010",
    ),
    read=_read_office31,
    tiny=_tiny_office31,
    class_names=_NAMES.split(", "),
    summary="office things by pretrained features, {source} to {target}",
    domains=_OFFICE31_DOMAINS,
    resources=[
        by_hand(
            f"photographs of {domain}",
            f"office31_features/{domain}.npz",
            "for research",
            _OFFICE31_HOW,
            of=domain,
        )
        for domain in _OFFICE31_DOMAINS
    ],
)


# Office-Caltech: ten kinds of objects in four collections of pictures, as counts of visual words.


_OFFICE_CALTECH_DOMAINS = ("amazon", "caltech10", "dslr", "webcam")
_OFFICE_CALTECH_NAMES = (
    "backpack, touring bike, calculator, headphones, computer keyboard, laptop, computer monitor, computer mouse, "
    "coffee mug, video projector"
)
_OFFICE_CALTECH_CLASSES = tuple(_OFFICE_CALTECH_NAMES.split(", "))
_OFFICE_CALTECH_FILE = "office_caltech10_surf/{}.mat"
_OFFICE_CALTECH_HOW = "get the SURF .mat files (variables fts, labels) of the geodesic flow kernel's authors"


def _read_office_caltech(*, source: str = "amazon", target: str = "webcam") -> Parts:
    """One collection as source, another as target: contexts (800,) of unit norm, 10 arms.

    Contexts are the square roots of each picture's share of every visual word. That depends on the picture alone: the
    usual standardising of each domain by its own statistics would do a part of the adaptation before any method starts.

    Args:
        source: amazon, caltech10 (1,123 pictures), dslr (157) or webcam; its pictures pay.
        target: another of them; half of its pictures are seen in training, the other half is kept for the evaluator.
    """
    paths = (need([_OFFICE_CALTECH_FILE.format(domain)], pair="office_caltech") for domain in (source, target))
    of_source, of_target = (
        _root_shares(*load_matlab(path, n_features=800, class_names=_OFFICE_CALTECH_CLASSES, first_label=1))
        for path in paths
    )
    return Parts({"source": of_source, **halved(*of_target, name=f"office_caltech/{source}-{target}")})


def _tiny_office_caltech(**_: str) -> Parts:
    made = made_up_vectors(n_arms=10, dimension=800, n=200, shift=0.5, seed=2, n_test=100).arguments
    rooted = {part: _root_shares(*made[part]) for part in ("source", "target_labelled", "target_test")}
    return Parts({**rooted, "target": rooted["target_labelled"][0]})


def _root_shares(counts: FloatArray, labels: IntArray) -> tuple[FloatArray, IntArray]:
    total = counts.sum(axis=1, keepdims=True)
    return np.sqrt(counts / np.where(total > 0, total, 1.0)), labels


declare(
    "office_caltech",
    about=About(
        summary="objects by SURF words; 12 ordered pairs of amazon, caltech10, dslr, webcam",
        licence="for research; the features were published without a licence",
        citation=(
            "Gong, Shi, Sha and Grauman, Geodesic flow kernel for unsupervised domain adaptation, CVPR 2012; "
            "pictures: Saenko et al., Adapting visual category models to new domains, ECCV 2010, and Griffin et al., "
            "Caltech-256 object category dataset, 2007"
        ),
    ),
    read=_read_office_caltech,
    tiny=_tiny_office_caltech,
    class_names=_OFFICE_CALTECH_CLASSES,
    summary="objects by SURF words, {source} to {target}",
    domains=_OFFICE_CALTECH_DOMAINS,
    resources=[
        by_hand(
            f"pictures of {domain}", _OFFICE_CALTECH_FILE.format(domain), "for research", _OFFICE_CALTECH_HOW, of=domain
        )
        for domain in _OFFICE_CALTECH_DOMAINS
    ],
)
