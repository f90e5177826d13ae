"""Seasons: a market whose taste turns a little every year; the years so far are the sources, the next is the target.

Rolling evaluation: ``seasons/2022`` learns from all years before 2022 in their order, and acts in 2022.
"""

from __future__ import annotations

import numpy as np

from daband._arguments import whole
from daband._arrays import FloatArray, IntArray
from daband.domains.datasets._builder import Parts, catalogue, declare, facts, halved

_FIRST, _LAST = 2018, "2026"
_OFFERS = tuple(catalogue()["seasons"]["class_names"])
_TURN = 0.35
"""By how much taste turns in a year, in radians."""
_NUMBERS = 6


def _customers(year: int, n: int, data_seed: int) -> tuple[FloatArray, IntArray]:
    """Contexts (n, 6) of the customers of a year, and the offer that each takes, (n,)."""
    before, after = np.random.default_rng([data_seed, 1]).normal(size=(2, _NUMBERS, len(_OFFERS)))
    draw = np.random.default_rng([data_seed, year])
    contexts = draw.normal(0.05 * (year - _FIRST), 1.0, (n, _NUMBERS))
    turned = (year - _FIRST) * _TURN
    liking = contexts @ (np.cos(turned) * before + np.sin(turned) * after) + 0.4 * draw.gumbel(size=(n, len(_OFFERS)))
    return contexts, liking.argmax(axis=1)


def _read(*, year: str = _LAST, n: int = 600, data_seed: int = 0) -> Parts:
    """The years before one as sources, in their order, and that year as target: contexts (6,), 4 offers.

    Args:
        year: the year to act in, 2019 to 2026.
        n: customers of a year; half of those of the target are kept for the evaluator.
        data_seed: fixes everything that is drawn.
    """
    n, data_seed = whole("n", n, least=40), whole("data_seed", data_seed, least=0)
    sources = {str(past): _customers(past, n, data_seed) for past in range(_FIRST, int(year))}
    of_target = halved(*_customers(int(year), n, data_seed), name=f"seasons/{year}")
    by_name = {f"{what}s" if what == "target" else what: {year: part} for what, part in of_target.items()}
    return Parts({"sources": sources, **by_name, "chronological": True})


declare(
    "seasons",
    read=_read,
    tiny=lambda *, year=_LAST, n=80, data_seed=0: _read(year=year, n=min(n, 80), data_seed=data_seed),
    **facts("seasons"),
)
