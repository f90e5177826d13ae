"""The interval of an audit against closed forms, brute force, and its own promise."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daband.trust._confidence_intervals import Counts, counted, score_interval, score_limits

Z = 1.959963984540054


def wilson(successes, n):
    share, square = successes / n, Z * Z / n
    centre = (share + square / 2) / (1 + square)
    half = math.sqrt(square * share * (1 - share) + square * square / 4) / (1 + square)
    return centre - half, centre + half


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (0, 20), (20, 20), (7, 20), (95, 100), (1, 1000)])
def test_one_stratum_of_zeros_and_ones_is_wilsons(successes, n):
    rewards = np.repeat([1.0, 0.0], [successes, n - successes])
    found = score_interval(counted([rewards]), np.ones(1))
    assert found.value == pytest.approx(successes / n)
    assert (found.low, found.high) == pytest.approx(wilson(successes, n), abs=1e-9)


def test_the_search_for_any_reward_agrees_with_the_closed_form_for_zeros_and_ones():
    counts = np.array([[3.0, 17.0], [0.0, 12.0], [5.0, 0.0]])
    weights = np.array([0.5, 0.3, 0.2])
    closed = score_interval(Counts(np.tile([0.0, 1.0], (3, 1)), counts), weights, n_contexts=200)
    # A value that nobody got sends the same rewards through the search.
    wider = Counts(np.tile([0.0, 1.0, 0.5], (3, 1)), np.column_stack([counts, np.zeros(3)]))
    searched = score_interval(wider, weights, n_contexts=200)
    assert (searched.low, searched.high) == pytest.approx((closed.low, closed.high), abs=1e-9)


def test_limits_are_where_the_score_test_turns():
    """Brute force over the success rates of two strata: of all with one theta, the likeliest gives the variance."""
    ones, sizes, weights = np.array([9, 4]), np.array([10, 10]), np.array([0.7, 0.3])
    counts = np.column_stack([sizes - ones, ones]).astype(float)
    found = score_interval(Counts(np.tile([0.0, 1.0], (2, 1)), counts), weights)
    estimate = float(weights @ (ones / sizes))

    def kept(theta):
        first = np.linspace(0, 1, 200_001)[1:-1]
        second = (theta - weights[0] * first) / weights[1]
        inside = (second > 0) & (second < 1)
        rates = np.stack([first[inside], second[inside]])
        likelihood = (ones[:, None] * np.log(rates) + (sizes - ones)[:, None] * np.log(1 - rates)).sum(axis=0)
        best = rates[:, likelihood.argmax()]
        variance = (weights**2 * best * (1 - best) / sizes).sum() * 20 / 19
        return (estimate - theta) ** 2 <= Z * Z * variance

    for inside, outside in ((found.low + 1e-3, found.low - 1e-3), (found.high - 1e-3, found.high + 1e-3)):
        assert kept(inside)
        assert not kept(outside)


def test_a_stratum_without_failures_may_hide_some():
    """With no failure seen, the interval grows with the weight of the least sampled stratum."""
    values, weights = np.tile([0.0, 1.0], (2, 1)), np.array([0.5, 0.5])
    even = score_interval(Counts(values, np.array([[0.0, 50.0], [0.0, 50.0]])), weights)
    uneven = score_interval(Counts(values, np.array([[0.0, 80.0], [0.0, 20.0]])), weights)
    assert uneven.high == even.high == 1.0
    assert uneven.low < even.low < 1.0


bounded = st.lists(
    st.lists(st.sampled_from([0.0, 0.1, 0.4, 0.75, 1.0]), min_size=1, max_size=8), min_size=1, max_size=4
)


@settings(max_examples=12, deadline=None)
@given(bounded)
def test_intervals_are_ordered_mirrored_and_grow_with_confidence(rewards):
    sample = counted([np.array(part) for part in rewards])
    weights = np.arange(1.0, len(rewards) + 1)
    weights /= weights.sum()
    found = score_interval(sample, weights, n_contexts=100)
    assert -1e-12 <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= 1 + 1e-12
    mirrored = score_interval(sample.mirrored(), weights, n_contexts=100)
    assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx((found.low, found.high), abs=1e-9)
    wider = score_interval(sample, weights, n_contexts=100, confidence=0.99)
    assert wider.low <= found.low + 1e-9
    assert wider.high >= found.high - 1e-9


def test_many_samples_at_once_are_each_alone():
    generator = np.random.default_rng(0)
    counts = generator.integers(1, 9, size=(5, 3, 2)).astype(float)
    shares = generator.dirichlet(np.ones(3), size=5)
    low, high = score_limits(Counts(np.broadcast_to([0.0, 1.0], counts.shape), counts), shares, n_contexts=50)
    for row in range(5):
        alone = score_interval(Counts(np.tile([0.0, 1.0], (3, 1)), counts[row]), shares[row], n_contexts=50)
        assert (low[row], high[row]) == pytest.approx((alone.low, alone.high), abs=1e-9)


def test_exact_coverage_of_three_strata_near_one():
    """Over every outcome, weighted by its probability: no simulation, no seed."""
    rates, sizes, weights = np.array([0.99, 0.95, 0.7]), (12, 12, 12), np.array([0.5, 0.3, 0.2])
    outcomes = np.array(list(itertools.product(*(range(n + 1) for n in sizes))), dtype=float)
    n = np.array(sizes, dtype=float)
    low, high = score_limits(
        Counts(np.broadcast_to([0.0, 1.0], (len(outcomes), 3, 2)), np.stack([n - outcomes, outcomes], axis=-1)), weights
    )
    chances = np.prod(
        [
            [math.comb(size, int(k)) * rate**k * (1 - rate) ** (size - k) for k in outcomes[:, column]]
            for column, (size, rate) in enumerate(zip(sizes, rates, strict=True))
        ],
        axis=0,
    )
    assert chances.sum() == pytest.approx(1.0)
    truth = float(weights @ rates)
    assert chances[(low <= truth) & (truth <= high)].sum() > 0.93
