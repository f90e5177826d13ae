"""Office-Caltech: ten kinds of objects in four collections of pictures, as counts of visual words."""

from __future__ import annotations

import numpy as np

from daband.arrays import FloatArray, IntArray
from daband.domains.contract import About
from daband.domains.data_paths import need
from daband.domains.datasets.builder import Parts, by_hand, declare, halved, load_matlab, ordered
from daband.domains.datasets.made_up import made_up_vectors

__all__: list[str] = []

_DOMAINS = ("amazon", "caltech10", "dslr", "webcam")
_CLASSES = (
    "backpack",
    "touring bike",
    "calculator",
    "headphones",
    "computer keyboard",
    "laptop",
    "computer monitor",
    "computer mouse",
    "coffee mug",
    "video projector",
)
_FILE = "office_caltech10_surf/{}.mat"
_HOW = "get the SURF .mat files (variables fts, labels) of the geodesic flow kernel's authors"


def _read(*, source: str = "amazon", target: str = "webcam") -> Parts:
    """One collection as source, another as target: contexts (800,) of unit norm, 10 arms.

    Contexts are the square roots of each picture's share of every visual word. That depends on the picture alone: the
    usual standardising of each domain by its own statistics would do a part of the adaptation before any method starts.

    Args:
        source: amazon, caltech10 (1,123 pictures), dslr (157) or webcam; its pictures pay.
        target: another of them; half of its pictures are seen in training, the other half is kept for the evaluator.
    """
    paths = (need([_FILE.format(domain)], pair="office_caltech") for domain in (source, target))
    here, there = (
        _root_shares(*load_matlab(path, n_features=800, class_names=_CLASSES, first_label=1)) for path in paths
    )
    return Parts({"source": here, **halved(*there, name=f"office_caltech/{source}-{target}")})


def _tiny(**_: str) -> Parts:
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
    read=_read,
    tiny=_tiny,
    class_names=_CLASSES,
    name="office_caltech/{source}-{target}",
    summary="objects by SURF words, {source} to {target}",
    choices={"source": _DOMAINS, "target": _DOMAINS},
    variants=ordered(_DOMAINS),
    resources=[
        by_hand(f"pictures of {domain}", _FILE.format(domain), "for research", _HOW, of=domain) for domain in _DOMAINS
    ],
)
