"""Amazon reviews: is a review positive? Learned on one kind of product, applied to another."""

from __future__ import annotations

from daband.domains.contract import About
from daband.domains.data_paths import need
from daband.domains.datasets.builder import Parts, by_hand, declare, halved, load_matlab, ordered
from daband.domains.datasets.made_up import made_up_vectors

__all__: list[str] = []

_DOMAINS = ("books", "dvd", "elec", "kitchen")
_CLASSES = ("negative", "positive")
_FILE = "amazon_reviews_400/{}_400.mat"
_HOW = "get the 400-feature .mat files (variables fts, labels) that skada-bench and transferlearning.xyz hand on"


def _read(*, source: str = "books", target: str = "dvd") -> Parts:
    """Reviews of one kind of product as source, of another as target: contexts (400,), 2 arms.

    Args:
        source: books, dvd, elec or kitchen; its reviews, about 2,000, pay.
        target: another of them; half of its reviews are seen in training, the other half is kept for the evaluator.
    """
    paths = (need([_FILE.format(domain)], pair="amazon") for domain in (source, target))
    here, there = (load_matlab(path, n_features=400, class_names=_CLASSES, first_label=0) for path in paths)
    return Parts({"source": here, **halved(*there, name=f"amazon/{source}-{target}")})


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
    read=_read,
    tiny=lambda **_: made_up_vectors(n_arms=2, dimension=400, n=120, shift=0.5, seed=1, n_test=60),
    class_names=_CLASSES,
    name="amazon/{source}-{target}",
    summary="sentiment of product reviews, {source} to {target}",
    choices={"source": _DOMAINS, "target": _DOMAINS},
    variants=ordered(_DOMAINS),
    resources=[
        by_hand(f"reviews of {domain}", _FILE.format(domain), "for research", _HOW, of=domain) for domain in _DOMAINS
    ],
)
