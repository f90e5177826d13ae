"""A trial of a policy against the incumbent: its errors, its limit of cost, and its decisions."""

import math

import numpy as np
import pytest

from daband.logs._controlled_trial import Moments, TrialCounts, TrialRule, estimate_effect


def draw(rng, shape, *, fraction=0.1, policy=0.5, incumbent=0.5, kind="binary"):
    """Return whether each round is of the policy, and its reward."""
    is_policy = rng.random(shape) < fraction
    means = np.where(is_policy, policy, incumbent)
    rewards = rng.normal(means, 1.0) if kind == "normal" else (rng.random(shape) < means) * 1.0
    if kind == "purchases":
        rewards *= rng.lognormal(3.0, 1.0, shape)
    return is_policy, rewards


def count(n, *, fraction=0.1, level=0.0, **options):
    """Return the counts of n rounds that are added one by one."""
    counts = TrialCounts()
    rounds = draw(np.random.default_rng(0), n, fraction=fraction, **options)
    for is_policy, reward in zip(*(column.tolist() for column in rounds), strict=True):
        counts.add_round(fraction, is_policy=is_policy, differs=True)
        counts.add_reward(fraction, level + reward, is_policy=is_policy)
    return counts


@pytest.mark.parametrize(
    ("kind", "mean", "fraction"),
    [
        ("binary", 0.5, 0.1),
        ("binary", 0.02, 0.1),
        ("binary", 0.5, 0.5),
        ("binary", 0.5, 0.9),
        ("normal", 0.0, 0.1),
        ("purchases", 0.05, 0.1),
    ],
)
def test_an_equal_policy_is_seldom_called_better_or_worse_however_often_one_looks(
    kind, mean, fraction
):
    """The error of 4% is of each side; 300 trials with 50 looks."""
    rng = np.random.default_rng(0)
    is_policy, rewards = draw(
        rng, (300, 1000), fraction=fraction, policy=mean, incumbent=mean, kind=kind
    )
    groups = np.stack([is_policy, ~is_policy], axis=-1)[:, :, None, :]
    powers = np.stack([np.ones_like(rewards), rewards, rewards**2])[..., None, None]
    sums = (powers * groups).cumsum(axis=2)[:, :, 19::20]
    n_policy = is_policy[:, :, None].cumsum(axis=1)[:, 19::20]
    effect = estimate_effect(Moments(np.array([fraction]), n_policy, *sums))
    rule = TrialRule(expected_effect=0.3 * mean, expected_error=0.1 * mean)
    assert rule.is_better(effect).any(axis=1).mean() <= 0.05
    assert rule.is_worse(effect).any(axis=1).mean() <= 0.05


@pytest.mark.parametrize("policy", [0.7, 0.3])
def test_a_better_and_a_worse_policy_are_recognised(policy):
    effect = estimate_effect(count(3000, policy=policy, level=1e6).moments)
    assert (TrialRule().is_better(effect), TrialRule().is_worse(effect)) == (
        policy > 0.5,
        policy < 0.5,
    )
    low, high = TrialRule().compute_interval(effect)
    assert low < policy - 0.5 < high
    assert effect.value == pytest.approx(policy - 0.5, abs=0.1)
    assert (low > 0, high < 0) == (policy > 0.5, policy < 0.5)


def test_the_estimate_is_the_effect_if_fractions_follow_the_mean_of_rewards():
    """A fraction that changes with the mean of rewards misleads a difference of plain means."""
    rng = np.random.default_rng(1)
    counts = TrialCounts()
    plain = {True: [], False: []}
    for at in range(20_000):
        fraction, level = (0.5, 0.0) if at % 2 else (0.1, 1.0)
        is_policy = bool(rng.random() < fraction)
        reward = level + rng.normal(0.2 if is_policy else 0.0, 0.5)
        counts.add_round(fraction, is_policy=is_policy, differs=True)
        counts.add_reward(fraction, reward, is_policy=is_policy)
        plain[is_policy].append(reward)
    effect = estimate_effect(counts.moments)
    assert effect.value == pytest.approx(0.2, abs=4 * effect.error)
    assert effect.error < 0.03
    assert abs(np.mean(plain[True]) - np.mean(plain[False]) - 0.2) > 0.2


def test_units_change_nothing():
    fractions, n_policy = np.array([0.1, 0.5]), np.array([100.0, 80.0])
    rng = np.random.default_rng(0)
    rewards = [rng.normal(1.0, 2.0, (2, n)) for n in (100, 900)]

    def measure(scale):
        counts = np.array([[100.0, 900.0]] * 2)
        sums = scale * np.stack([group.sum(axis=1) for group in rewards], axis=1)
        squares = scale**2 * np.stack([(group**2).sum(axis=1) for group in rewards], axis=1)
        return estimate_effect(Moments(fractions, n_policy, counts, sums, squares))

    one, other = measure(1.0), measure(100.0)
    assert np.allclose([100 * one.value, 100 * one.error], [other.value, other.error])
    assert TrialRule().is_better(one) == TrialRule().is_better(other)


def test_small_groups_and_equal_rewards_have_no_interval():
    rule = TrialRule()
    counts = count(200, fraction=0.02)
    assert rule.compute_interval(estimate_effect(counts.moments)) == (-math.inf, math.inf)
    counts = count(1000, policy=1.0, incumbent=1.0)
    assert rule.compute_interval(estimate_effect(counts.moments)) == (-math.inf, math.inf)


def test_evidence_that_is_right_decides_sooner_and_wrong_evidence_later():
    effect = estimate_effect(count(2000, policy=0.58, fraction=0.5).moments)
    rules = [
        TrialRule(expected_effect=expected, expected_error=0.01)
        for expected in (float(effect.value), None, -0.3)
    ]
    lows = [rule.compute_interval(effect)[0] for rule in rules]
    assert lows[0] > lows[1] > lows[2]


def test_the_fraction_follows_the_limit_of_the_cost():
    rule = TrialRule(max_cost=10.0, worst_loss=0.5)
    empty = TrialCounts()
    # 20 rounds of 200, less 2.1 standard deviations of their number
    expected = (20 - 2.1 * math.sqrt(20)) / 200
    assert rule.choose_fraction(empty.moments, 200) == pytest.approx(expected)
    assert rule.limit_cost(empty.moments) == 0.0
    for _ in range(20):  # their rewards are missing
        empty.add_round(0.1, is_policy=True, differs=True)
    assert rule.choose_fraction(empty.moments, 200) == 0.0
    assert rule.limit_cost(empty.moments) == pytest.approx(10.0)
    worse, better = count(2000, policy=0.3), count(2000, policy=0.7)
    assert rule.choose_fraction(worse.moments, 200) == 0.0
    assert rule.choose_fraction(better.moments, 200) == 0.5
    assert rule.limit_cost(better.moments) == 0.0
