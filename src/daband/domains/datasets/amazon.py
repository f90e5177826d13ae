"""Amazon reviews: is a review positive? Learned on one kind of product, applied to another."""

from __future__ import annotations

from dataclasses import replace

from daband.domains.contract import About, Pair
from daband.domains.data_paths import need
from daband.domains.readers.arrays import from_arrays
from daband.domains.readers.matlab_features import read_features
from daband.domains.registry import describe, register_ordered_pairs, register_pair
from daband.domains.splits import require_classes, split_half
from daband.domains.tiny_twins import tiny_vectors
from daband.errors import InvalidInput

__all__ = ["amazon"]

_DOMAINS = ("books", "dvd", "elec", "kitchen")
_CLASSES = ("negative", "positive")
_FOLDER = "amazon_reviews_400"
_ABOUT = About(
    summary="sentiment of product reviews; 12 ordered pairs of books, dvd, elec, kitchen",
    licence="for research; the features were published without a licence",
    citation=(
        "Blitzer, Dredze and Pereira, Biographies, Bollywood, boom-boxes and blenders, ACL 2007; "
        "features: Chen, Xu, Weinberger and Sha, Marginalized denoising autoencoders for domain adaptation, ICML 2012"
    ),
    needs=tuple(f"{_FOLDER}/{domain}_400.mat" for domain in _DOMAINS),
)


@register_pair("amazon", about=_ABOUT)
def amazon(
    *,
    tiny: bool = False,
    source: str = "books",
    target: str = "dvd",
    passes: int = 1,
    target_passes: int | None = None,
    source_test: float | None = 0.1,
) -> Pair:
    """Reviews of one kind of product as source, of another as target: contexts (400,), 2 arms.

    Args:
        tiny: 120 + 120 made-up reviews, 60 for the test.
        source: books, dvd, elec or kitchen; its reviews pay.
        target: another of them; half of its reviews are seen in training, the other half is kept for the evaluator.
        passes: how many times each source context may be shown; there are about 1,800, and 1,000 of the target.
        target_passes: how many times each target context may be shown; by default as ``passes``.
        source_test: the share of the source that training does not use.
    """
    for domain in (source, target):
        if domain not in _DOMAINS:
            raise InvalidInput(f"amazon's domains are {', '.join(_DOMAINS)}, got {domain!r}")
    if source == target:
        raise InvalidInput(f"source and target are both {source!r}")
    name = f"amazon/{source}-{target}"
    if tiny:
        here, seen, held = tiny_vectors(n_arms=2, dimension=400, n=120, shift=0.5, seed=1)
        held = (held[0][:60], held[1][:60])
    else:
        here, there = (
            read_features(need([f"{_FOLDER}/{domain}_400.mat"], pair="amazon"), n_features=400, n_arms=2, first_label=0)
            for domain in (source, target)
        )
        for domain, (_, labels) in ((source, here), (target, there)):
            require_classes(labels, _CLASSES, where=f"{domain}_400.mat")
        train, test = split_half(there[1], name=name)
        seen, held = (there[0][train], there[1][train]), (there[0][test], there[1][test])
    pair = from_arrays(
        source=here,
        target=seen[0],
        target_test=held,
        target_labelled=seen,
        n_arms=2,
        class_names=_CLASSES,
        source_test=source_test,
        passes=passes,
        target_passes=target_passes,
        name=name,
    )
    return describe(pair, _ABOUT, f"sentiment of product reviews, {source} to {target}")


def _about(source: str, target: str) -> About:
    needs = tuple(f"{_FOLDER}/{domain}_400.mat" for domain in (source, target))
    return replace(_ABOUT, summary=f"sentiment of product reviews, {source} to {target}", needs=needs)


register_ordered_pairs("amazon", amazon, domains=_DOMAINS, about=_about)
