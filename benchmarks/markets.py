"""Generate synthetic markets: a log of offers from an old market, and a new market that differs in
one known way.

A customer belongs to a segment and has habits. The table of customers shows the habits as amounts
in euros, two scores from 1 to 10, age, visits and a channel. The expected reward of an offer
depends on the habits. The old market's log has the offer that was made, its reward (0 in many
rounds) and its propensity. The option ``kind`` states how the new market differs:

* ``covariate``: different customers, the same columns and the same tastes.
* ``units``: amounts are in another currency, 4.3 to the euro. The argument ``units`` takes the
  three amount columns.
* ``inverted``: the best score is 1 instead of 10, for both scores. Contexts do not reveal this
  difference.
* ``moved``: the offers are permuted, so that each offer has the rewards of another. Contexts do not
  reveal this either.
* ``labels``: the segments have other frequencies, so that other offers are best for most customers.

Rewards stay in euros. In the old market, the best constant offer has a mean reward of 4.1 and the
best offer for each customer 6.1.
"""

from __future__ import annotations

import numpy as np
import polars as pl

import daband
from daband.base._arrays import FloatArray, IntArray

#: Names of the arms.
_OFFERS = ("none", "discount", "delivery", "bundle", "premium")
#: Equal frequencies of the segments. There is one segment per offer.
_EQUAL_FREQUENCIES = np.full(len(_OFFERS), 1.0 / len(_OFFERS))
#: Categories of the column ``channel``.
_CHANNELS = ("app", "shop", "web")
#: The number of units of the other currency per euro.
_EXCHANGE_RATE = 4.3
#: Mean reward of the best constant offer in the old market, in euros.
_BEST_CONSTANT_REWARD = 4.1
#: Mean reward of the best offer for each customer in the old market, in euros.
_BEST_REWARD = 6.1
#: Habits of a customer, in the order of columns.
_HABITS = ("spending", "order_size", "satisfaction", "price_score", "age", "visits")
#: Fraction of rounds with a reward above 0.
_BUYING_FRACTION = 0.6


def load_market(
    kind: str, *, data_seed: int = 0, n_source: int = 4000, n_target: int = 3000
) -> daband.domains.Pair:
    """Return a market's log as source and a new market as target: 5 offers, and rewards in euros.

    Contexts have numbers, a category and missing values.

    Training sees half of the new market's customers. The other half is kept for the evaluator, with
    the expected reward of every offer. Every ``data_seed`` gives another market with other tastes.

    Args:
        kind: how the new market differs: covariate, units, inverted, moved or labels.
        data_seed: seed of all random draws.
        n_source: the number of rounds of the log.
        n_target: the number of customers of the new market.
    """
    rng = np.random.default_rng([data_seed, 2024])
    tastes = _Tastes(rng)
    old_habits = tastes.draw_habits(rng, n_source, _EQUAL_FREQUENCIES)
    old_customers = _build_customer_table(rng, old_habits, channel_probabilities=(0.3, 0.3, 0.4))
    old_log = _draw_log(rng, old_customers, tastes.compute_mean_rewards(old_habits))

    segment_frequencies = _EQUAL_FREQUENCIES
    habit_offset = np.zeros(len(_HABITS))
    habit_offset[_HABITS.index("age")] = 0.3  # customers are slightly older in every new market
    if kind == "labels":
        segment_frequencies = np.array([0.04, 0.06, 0.1, 0.2, 0.6])[rng.permutation(len(_OFFERS))]
    if kind == "covariate":
        habit_offset += rng.choice([-0.7, 0.7], size=len(_HABITS))
    new_habits = tastes.draw_habits(rng, n_target, segment_frequencies) + habit_offset
    new_mean_rewards = tastes.compute_mean_rewards(new_habits)
    if kind == "moved":
        new_mean_rewards = new_mean_rewards[
            :, np.roll(np.arange(len(_OFFERS)), 1 + rng.integers(len(_OFFERS) - 1))
        ]
    rate = _EXCHANGE_RATE if kind == "units" else 1.0
    new_customers = _build_customer_table(
        rng, new_habits, channel_probabilities=(0.6, 0.1, 0.3), exchange_rate=rate
    )
    if kind == "inverted":
        new_customers = new_customers.with_columns(
            (11.0 - pl.col("satisfaction", "price_score")).name.keep()
        )
    context = tuple(new_customers.columns)
    columns = daband.domains.Columns(
        context, ("channel",), rewards=_OFFERS, arm="offer", reward="euros", propensity="propensity"
    )
    new_customers = new_customers.with_columns(
        **dict(zip(_OFFERS, new_mean_rewards.T, strict=True))
    )
    return daband.domains.from_table(
        source=old_log, target=new_customers, columns=columns, name=f"market/{kind}"
    )


class _Tastes:
    """The parameters that both markets share: the mean habits of each segment, and the function
    from habits to rewards.

    There is one segment per offer, in which that offer tends to be best.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        #: The mean habits of each segment, (5, 6).
        self.centres = 1.3 * rng.standard_normal((len(_OFFERS), len(_HABITS)))
        #: The effect of each habit on the reward of each offer, (5, 6).
        self.slopes = self.centres / np.linalg.norm(self.centres, axis=1, keepdims=True)
        self.slopes = self.slopes + 0.3 * rng.standard_normal(self.slopes.shape)
        self.slopes[:, :4] *= 1.4  # amounts and scores are the most informative
        #: The effect of the absolute value of each habit, (5, 6).
        self.abs_slopes = 0.35 * rng.standard_normal((len(_OFFERS), len(_HABITS)))
        #: The reward of each offer for habits of 0, before scaling, (5,).
        self.intercepts = 0.3 * rng.standard_normal(len(_OFFERS))
        unscaled_rewards = self._compute_unscaled_rewards(
            self.draw_habits(rng, 20_000, _EQUAL_FREQUENCIES)
        )
        constant_value = unscaled_rewards.mean(axis=0).max()
        best_value = unscaled_rewards.max(axis=1).mean()
        #: Euros per unit of an unscaled reward.
        self.scale = (_BEST_REWARD - _BEST_CONSTANT_REWARD) / (best_value - constant_value)
        #: The reward in euros of an unscaled reward of 0.
        self.offset = _BEST_CONSTANT_REWARD - self.scale * constant_value

    def draw_habits(self, rng: np.random.Generator, n: int, frequencies: FloatArray) -> FloatArray:
        """Return the habits of n customers, (n, 6): the centre of a segment plus individual noise.

        ``frequencies`` (5,) are the probabilities of the segments.
        """
        segments: IntArray = rng.choice(len(_OFFERS), size=n, p=frequencies)
        return self.centres[segments] + 0.8 * rng.standard_normal((n, len(_HABITS)))

    def compute_mean_rewards(self, habits: FloatArray) -> FloatArray:
        """Return the mean reward of each offer, (n, 5), in euros."""
        return self.offset + self.scale * self._compute_unscaled_rewards(habits)

    def _compute_unscaled_rewards(self, habits: FloatArray) -> FloatArray:
        """Return the reward of each offer before scaling to euros, (n, 5)."""
        # Because of the absolute habits, a linear policy is good, but not optimal.
        unscaled_rewards: FloatArray = (
            habits @ self.slopes.T + self.intercepts + np.abs(habits) @ self.abs_slopes.T
        )
        return unscaled_rewards


def _build_customer_table(
    rng: np.random.Generator,
    habits: FloatArray,
    *,
    channel_probabilities: tuple[float, ...],
    exchange_rate: float = 1.0,
) -> pl.DataFrame:
    """Return the table of customers from their habits (n, 6), with a category and missing values.

    ``channel_probabilities`` follow the order of ``_CHANNELS``. ``exchange_rate`` is in currency
    units per euro.
    """
    spending, order_size, satisfaction, price_score, age, visits = habits.T
    n = len(habits)
    mean_last_order = 30.0 + 9.0 * order_size + 3.0 * spending
    last_order = np.where(rng.random(n) < 0.12, np.nan, mean_last_order + rng.normal(0.0, 2.0, n))
    columns = {
        "basket": exchange_rate * (40.0 + 12.0 * order_size + rng.normal(0.0, 2.0, n)),
        "spent_last_year": exchange_rate * (500.0 + 160.0 * spending + rng.normal(0.0, 30.0, n)),
        "last_order": exchange_rate * last_order,
        "satisfaction": 5.5 + 1.2 * satisfaction,
        "price_score": 5.5 + 1.2 * price_score,
        "age": 44.0 + 9.0 * age,
        "visits": 8.0 + 2.0 * visits,
        "channel": rng.choice(_CHANNELS, size=n, p=channel_probabilities),
    }
    return pl.DataFrame(columns).with_columns(pl.col("last_order").fill_nan(None))


def _draw_log(
    rng: np.random.Generator, customers: pl.DataFrame, mean_rewards: FloatArray
) -> pl.DataFrame:
    """Return the log of a policy that is slightly better than random, and may choose any offer.

    ``mean_rewards`` (n, 5) has the mean reward of each offer for the n ``customers``.
    """
    n = len(mean_rewards)
    rows = np.arange(len(mean_rewards))
    scores = 0.5 * (mean_rewards + rng.normal(0.0, 2.0, mean_rewards.shape))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    propensities = 0.7 * weights / weights.sum(axis=1, keepdims=True) + 0.3 / len(_OFFERS)
    arms = (rng.random((n, 1)) > propensities.cumsum(axis=1)).sum(axis=1).clip(max=len(_OFFERS) - 1)
    has_bought = rng.random(n) < _BUYING_FRACTION
    rewards = np.where(
        has_bought, mean_rewards[rows, arms] / _BUYING_FRACTION + rng.normal(0.0, 1.0, n), 0.0
    )
    return customers.with_columns(
        offer=np.array(_OFFERS)[arms], euros=rewards.round(2), propensity=propensities[rows, arms]
    )
