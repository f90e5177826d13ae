"""Algorithm selection: which of 31 solvers is fastest on an instance? From hand-made to industrial, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from daband.arrays import FloatArray
from daband.domains.contract import About
from daband.domains.data_paths import need
from daband.domains.datasets.builder import Parts, by_hand, declare, load_packed, ordered
from daband.domains.readers.columns import Columns
from daband.domains.readers.tables import from_table
from daband.errors import DataError

__all__: list[str] = []

_DOMAINS = ("hand", "indu")
_KINDS = {"hand": "hand-made", "indu": "industrial"}
_HOW = (
    "get the ASlib scenarios SAT12-HAND and SAT12-INDU (https://www.coseal.net/aslib), keep the instances that some "
    "solver solves, and save an npz with x, seconds, cutoff, features, arms"
)


def _read(*, source: str = "hand", target: str = "indu") -> Parts:
    """Instances of one kind as source, of the other as target; 31 arms, and every arm's reward is known.

    The reward is 1 - log(1 + seconds) / log(1 + cutoff): 1 at once, 0 where the solver does not end in 1,200 seconds.
    Features count clauses and variables over many magnitudes: they are taken as sign(x) log(1 + abs(x)). Those of a
    probe that did not end are missing together: they become the median, and one column for each such group says so.

    Args:
        source: hand (538 hand-made instances) or indu (958 industrial ones).
        target: the other; half of its instances are seen in training, the other half is kept for the evaluator.
    """
    return _parts(*(_domain(domain) for domain in (source, target)))


def _tiny(*, source: str = "hand", target: str = "indu") -> Parts:
    generator = np.random.default_rng([len(source), len(target)])
    effects = generator.normal(size=(6, 31))
    made = []
    for place in (0.0, 0.4):
        x = generator.normal(place, 1.0, size=(124, 6))
        seconds = np.clip(np.exp(3.0 + x @ effects + generator.normal(0.0, 0.3, (124, 31))), 0.0, 1200.0)
        x[generator.random(124) < 0.1, 3:] = np.nan
        made.append((np.exp(2 * x), seconds, 1200.0, [f"feature {n}" for n in range(6)], [f"a{n}" for n in range(31)]))
    return _parts(*made)


def _domain(domain: str) -> tuple[Any, ...]:
    path = need([f"sat12/sat12-{domain}.npz"], pair="sat12")
    x, seconds, cutoff, features, arms = load_packed(path, ("x", "seconds", "cutoff", "features", "arms"))
    if seconds.shape != (len(x), len(arms)) or x.shape[1] != len(features) or not (seconds >= 0).all():
        raise DataError(f"{path} should hold x (n, d) and seconds (n, K), got {x.shape} and {seconds.shape}")
    return x, seconds, cutoff, features, arms


def _parts(*domains: tuple[Any, ...]) -> Parts:
    import polars as pl

    arms = [str(arm) for arm in domains[0][4]]
    both = np.concatenate([x for x, *_ in domains]).astype(np.float64)
    groups, first = np.unique(np.isnan(both), axis=1, return_index=True)
    flags = [int(place) for group, place in zip(groups.T, first, strict=True) if group.any()]
    median = np.nanmedian(both, axis=0)
    frames = []
    for x, seconds, cutoff, features, _ in domains:
        filled = np.where(np.isnan(x), median, x)
        columns: dict[str, FloatArray] = dict(zip(map(str, features), (np.sign(filled) * np.log1p(np.abs(filled))).T))  # noqa: B905
        columns |= {f"{features[place]} is missing": np.isnan(x[:, place]).astype(np.float64) for place in flags}
        rewards = 1.0 - np.log1p(np.minimum(seconds, cutoff)) / np.log1p(cutoff)
        frames.append(pl.DataFrame(columns | dict(zip(arms, rewards.astype(np.float64).T, strict=True))))
    context = tuple(name for name in frames[0].columns if name not in arms)
    meaning = Columns(context=context, rewards=tuple(arms))
    return Parts({"source": frames[0], "target": frames[1], "columns": meaning}, reader=from_table)


declare(
    "sat12",
    about=About(
        summary="the fastest of 31 solvers for an instance; hand-made to industrial, and back",
        licence="GPLv3 (ASlib)",
        citation="Bischl et al., ASlib: a benchmark library for algorithm selection, Artificial Intelligence 237, 2016",
    ),
    read=_read,
    tiny=_tiny,
    name="sat12/{source}-{target}",
    summary="the fastest of 31 solvers, {source} to {target}",
    choices={"source": _DOMAINS, "target": _DOMAINS},
    variants=ordered(_DOMAINS),
    resources=[
        by_hand(f"{_KINDS[domain]} instances", f"sat12/sat12-{domain}.npz", "GPLv3", _HOW, of=domain)
        for domain in _DOMAINS
    ],
)
