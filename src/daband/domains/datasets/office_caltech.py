"""Office-Caltech: ten kinds of objects in four collections of pictures, as counts of visual words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from daband.arrays import FloatArray
from daband.domains.contract import About, Pair
from daband.domains.data_paths import need
from daband.domains.readers.arrays import from_arrays
from daband.domains.readers.matlab_features import read_features
from daband.domains.registry import describe, register_ordered_pairs, register_pair
from daband.domains.splits import require_classes, split_half
from daband.domains.tiny_twins import tiny_vectors
from daband.errors import InvalidInput

__all__ = ["office_caltech"]

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
_FOLDER = "office_caltech10_surf"
_ABOUT = About(
    summary="objects by SURF words; 12 ordered pairs of amazon, caltech10, dslr, webcam",
    licence="for research; the features were published without a licence",
    citation=(
        "Gong, Shi, Sha and Grauman, Geodesic flow kernel for unsupervised domain adaptation, CVPR 2012; "
        "pictures: Saenko et al., Adapting visual category models to new domains, ECCV 2010, and Griffin et al., "
        "Caltech-256 object category dataset, 2007"
    ),
    needs=tuple(f"{_FOLDER}/{domain}.mat" for domain in _DOMAINS),
)


@register_pair("office_caltech", about=_ABOUT)
def office_caltech(
    *,
    tiny: bool = False,
    source: str = "amazon",
    target: str = "webcam",
    passes: int = 1,
    target_passes: int | None = None,
    source_test: float | None = 0.1,
) -> Pair:
    """One collection as source, another as target: contexts (800,) of unit norm, 10 arms.

    Contexts are the square roots of each picture's share of every visual word. That depends on the picture alone: the
    usual standardising of each domain by its own statistics would do a part of the adaptation before any method starts.

    Args:
        tiny: 200 + 200 made-up pictures, 100 for the test.
        source: amazon, caltech10, dslr or webcam; its pictures pay.
        target: another of them; half of its pictures are seen in training, the other half is kept for the evaluator.
        passes: how many times each source context may be shown; dslr has 157 pictures, caltech10 1,123.
        target_passes: how many times each target context may be shown; by default as ``passes``.
        source_test: the share of the source that training does not use.
    """
    for domain in (source, target):
        if domain not in _DOMAINS:
            raise InvalidInput(f"office_caltech's domains are {', '.join(_DOMAINS)}, got {domain!r}")
    if source == target:
        raise InvalidInput(f"source and target are both {source!r}")
    name = f"office_caltech/{source}-{target}"
    if tiny:
        here, seen, held = tiny_vectors(n_arms=10, dimension=800, n=200, shift=0.5, seed=2)
        held = (held[0][:100], held[1][:100])
    else:
        here, there = (
            read_features(
                need([f"{_FOLDER}/{domain}.mat"], pair="office_caltech"), n_features=800, n_arms=10, first_label=1
            )
            for domain in (source, target)
        )
        for domain, (_, labels) in ((source, here), (target, there)):
            require_classes(labels, _CLASSES, where=f"{domain}.mat")
        train, test = split_half(there[1], name=name)
        seen, held = (there[0][train], there[1][train]), (there[0][test], there[1][test])
    contexts = _root_shares(seen[0])
    pair = from_arrays(
        source=(_root_shares(here[0]), here[1]),
        target=contexts,
        target_test=(_root_shares(held[0]), held[1]),
        target_labelled=(contexts, seen[1]),
        n_arms=10,
        class_names=_CLASSES,
        source_test=source_test,
        passes=passes,
        target_passes=target_passes,
        name=name,
    )
    return describe(pair, _ABOUT, f"objects by SURF words, {source} to {target}")


def _root_shares(counts: FloatArray) -> FloatArray:
    total = counts.sum(axis=1, keepdims=True)
    shares: FloatArray = np.sqrt(counts / np.where(total > 0, total, 1.0))
    return shares


def _about(source: str, target: str) -> About:
    needs = tuple(f"{_FOLDER}/{domain}.mat" for domain in (source, target))
    return replace(_ABOUT, summary=f"objects by SURF words, {source} to {target}", needs=needs)


register_ordered_pairs("office_caltech", office_caltech, domains=_DOMAINS, about=_about)
