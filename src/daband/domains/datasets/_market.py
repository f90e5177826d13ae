"""Synthetic markets: a log of offers in euros from an old market, and a new market that differs in one known way.

A customer belongs to a segment and has habits, which appear in the table: amounts in euros, two scores from 1 to 10,
age, visits, a channel. The expected reward of an offer depends on the habits. The old market's log has the offer that
was made, its reward (0 in many rounds) and its propensity. The kind of the new market is its difference:

* ``covariate``: different customers, the same columns and the same tastes.
* ``units``: amounts are in another currency, 4.3 to the euro. Correct setting: ``units=`` the three amount columns.
* ``inverted``: both scores run from best to worst instead of worst to best. Contexts do not reveal it.
* ``moved``: the offers are permuted: the rewards of one offer are now those of another. Contexts do not reveal it.
* ``labels``: the segments have other frequencies, so that other offers are best for most customers.

Rewards stay in euros. In the old market, the best constant offer has a mean reward of 4.1 and the best offer
for each customer 6.1.
"""

from __future__ import annotations

import numpy as np

from daband._arguments import check_int
from daband._arrays import FloatArray, IntArray
from daband._lazy_polars import pl
from daband.domains.datasets._builder import Parts, declare
from daband.domains.readers._columns import Columns
from daband.domains.readers._tables import from_table

_OFFERS = ("none", "discount", "delivery", "bundle", "premium")
_CHANNELS = ("app", "shop", "web")
_CURRENCY = 4.3
_CONSTANT, _BEST = 4.1, 6.1
_HABITS = 6  # spending, order size, two scores, age, visits
_BUYERS = 0.6  # the fraction of rounds with a reward above 0


def _read(*, kind: str = "covariate", n_source: int = 4000, n_target: int = 3000, data_seed: int = 0) -> Parts:
    """Read a market's log as source and a new market as target: 5 offers, rewards in euros, categories and gaps.

    Training sees half of the new market's customers. The other half is kept for the evaluator, with the expected
    reward of every offer. Every ``data_seed`` is another market with other tastes.

    Args:
        kind: the difference of the new market: covariate, units, inverted, moved or labels.
        n_source: rounds of the log.
        n_target: customers of the new market.
        data_seed: fixes all random draws.
    """
    for name, value in (("n_source", n_source), ("n_target", n_target)):
        check_int(name, value, minimum=100)
    draw = np.random.default_rng([check_int("data_seed", data_seed, minimum=0), 2024])
    world = _World(draw)
    habits = world.habits(draw, n_source, np.full(len(_OFFERS), 1.0 / len(_OFFERS)))
    old = _log(draw, _table(draw, habits, channels=(0.3, 0.3, 0.4)), habits, world.expected(habits))

    frequencies, offset = np.full(len(_OFFERS), 1.0 / len(_OFFERS)), np.zeros(_HABITS)
    offset[4] = 0.3  # a little older: no two markets have the same customers
    if kind == "labels":
        frequencies = np.array([0.04, 0.06, 0.1, 0.2, 0.6])[draw.permutation(len(_OFFERS))]
    if kind == "covariate":
        offset += draw.choice([-0.7, 0.7], size=_HABITS)
    habits = world.habits(draw, n_target, frequencies) + offset
    expected = world.expected(habits)
    if kind == "moved":
        expected = expected[:, np.roll(np.arange(len(_OFFERS)), 1 + draw.integers(len(_OFFERS) - 1))]
    new = _table(draw, habits, channels=(0.6, 0.1, 0.3), currency=_CURRENCY if kind == "units" else 1.0)
    if kind == "inverted":
        new = new.with_columns(11.0 - new["satisfaction"], 11.0 - new["price_score"])
    columns = Columns(
        context=tuple(new.columns),
        categorical=("channel",),
        rewards=_OFFERS,
        arm="offer",
        reward="euros",
        propensity="propensity",
    )
    new = new.with_columns(**dict(zip(_OFFERS, expected.T, strict=True)))
    return Parts({"source": old, "target": new, "columns": columns}, reader=from_table)


class _World:
    """The tastes of both markets: the segment centres among the habits, and the reward of an offer."""

    def __init__(self, draw: np.random.Generator) -> None:
        self.centres = 1.3 * draw.standard_normal((len(_OFFERS), _HABITS))
        self.slopes = self.centres / np.linalg.norm(self.centres, axis=1, keepdims=True)
        self.slopes = self.slopes + 0.3 * draw.standard_normal(self.slopes.shape)
        self.slopes[:, :4] *= 1.4  # amounts and scores are the most informative
        self.bends = 0.35 * draw.standard_normal((len(_OFFERS), _HABITS))
        self.base = 0.3 * draw.standard_normal(len(_OFFERS))
        raw = self._raw(self.habits(draw, 20_000, np.full(len(_OFFERS), 1.0 / len(_OFFERS))))
        constant, best = raw.mean(axis=0).max(), raw.max(axis=1).mean()
        self.scale = (_BEST - _CONSTANT) / (best - constant)
        self.offset = _CONSTANT - self.scale * constant

    def habits(self, draw: np.random.Generator, n: int, frequencies: FloatArray) -> FloatArray:
        """Return customers (n, 6): a segment centre plus individual noise."""
        segments: IntArray = draw.choice(len(_OFFERS), size=n, p=frequencies)
        return self.centres[segments] + 0.8 * draw.standard_normal((n, _HABITS))

    def expected(self, habits: FloatArray) -> FloatArray:
        """Return the mean reward of each offer, (n, 5), in euros."""
        return self.offset + self.scale * self._raw(habits)

    def _raw(self, habits: FloatArray) -> FloatArray:
        raw: FloatArray = habits @ self.slopes.T + self.base
        raw += np.abs(habits) @ self.bends.T  # a linear policy gets most of it, not all
        return raw


def _table(
    draw: np.random.Generator, habits: FloatArray, *, channels: tuple[float, ...], currency: float = 1.0
) -> pl.DataFrame:
    """Return the table of customers' habits, with one category and gaps for those who never ordered."""
    spending, order, content, price, age, visits = habits.T
    n = len(habits)
    last = np.where(draw.random(n) < 0.12, np.nan, 30.0 + 9.0 * order + 3.0 * spending + draw.normal(0.0, 2.0, n))
    columns = {
        "basket": currency * (40.0 + 12.0 * order + draw.normal(0.0, 2.0, n)),
        "spent_last_year": currency * (500.0 + 160.0 * spending + draw.normal(0.0, 30.0, n)),
        "last_order": currency * last, "satisfaction": 5.5 + 1.2 * content, "price_score": 5.5 + 1.2 * price,
        "age": 44.0 + 9.0 * age, "visits": 8.0 + 2.0 * visits, "channel": draw.choice(_CHANNELS, size=n, p=channels),
    }  # fmt: skip
    return pl.DataFrame(columns).with_columns(pl.col("last_order").fill_nan(None))


def _log(draw: np.random.Generator, table: pl.DataFrame, habits: FloatArray, expected: FloatArray) -> pl.DataFrame:
    """Return the log of the old market's policy, which is slightly better than random and tries every offer."""
    n, rows = len(habits), np.arange(len(habits))
    score = 0.5 * (expected + draw.normal(0.0, 2.0, expected.shape))
    weights = np.exp(score - score.max(axis=1, keepdims=True))
    propensities = 0.7 * weights / weights.sum(axis=1, keepdims=True) + 0.3 / len(_OFFERS)
    arms = (draw.random((n, 1)) > propensities.cumsum(axis=1)).sum(axis=1).clip(max=len(_OFFERS) - 1)
    bought = draw.random(n) < _BUYERS
    rewards = np.where(bought, expected[rows, arms] / _BUYERS + draw.normal(0.0, 1.0, n), 0.0)
    return table.with_columns(
        offer=np.array(_OFFERS)[arms], euros=rewards.round(2), propensity=propensities[rows, arms]
    )


declare("market", read=_read)
