"""The lift over a control group: its interval holds at all times at once."""

import math

import numpy as np
import pytest

from daband.logs._mean_estimates import LiftSequence


def streams(n_streams, n, *, control=0.1, policy=0.5, incumbent=0.5, kind="binary", seed=0):
    """Yield a sequence per stream, to which all rounds were added; every round is a look."""
    rng = np.random.default_rng(seed)
    for _ in range(n_streams):
        in_control = rng.random(n) < control
        means = np.where(in_control, incumbent, policy)
        rewards = (
            1e6 + rng.normal(means, 1.0)
            if kind == "large"
            else (rng.random(n) < means).astype(float)
        )
        if kind == "purchases":
            rewards *= rng.lognormal(3.0, 1.0, n)
        sequence = LiftSequence(0.95)
        for reward, kept in zip(rewards.tolist(), in_control.tolist(), strict=True):
            sequence.add(reward, control, in_control=kept)
        yield sequence


@pytest.mark.parametrize(
    ("kind", "mean", "control"),
    [
        ("binary", 0.5, 0.1),
        ("binary", 0.02, 0.1),
        ("binary", 0.5, 0.5),
        ("large", 0.0, 0.1),
        ("purchases", 0.05, 0.1),
    ],
)
def test_an_equal_policy_is_seldom_called_better_or_worse_however_often_one_looks(
    kind, mean, control
):
    """The error of 5% is of both sides together; 200 streams with a look at every one of 1,000
    rounds.
    """
    found = list(streams(200, 1000, policy=mean, incumbent=mean, kind=kind, control=control))
    assert np.mean([one.is_worse or one.is_better for one in found]) <= 0.05


@pytest.mark.parametrize(("policy", "verdict"), [(0.7, "better"), (0.3, "worse")])
def test_a_better_and_a_worse_policy_are_recognised(policy, verdict):
    for sequence in streams(10, 4000, policy=policy):
        assert (sequence.is_better, sequence.is_worse) == (verdict == "better", verdict == "worse")
        value, low, high = sequence.compute_lift()
        assert low < policy - 0.5 < high
        assert value == pytest.approx(policy - 0.5, abs=0.1)


def test_the_mean_of_the_terms_is_the_lift_for_changing_fractions():
    """A fraction that changes with the mean of rewards misleads a difference of plain means, but
    not this one.
    """
    rng = np.random.default_rng(1)
    sequence = LiftSequence()
    plain = {True: [], False: []}
    for at in range(40_000):
        control, level = (0.5, 0.0) if at % 2 else (0.1, 1.0)
        kept = bool(rng.random() < control)
        reward = level + rng.normal(0.0 if kept else 0.2, 0.5)
        sequence.add(reward, control, in_control=kept)
        plain[kept].append(reward)
    value, low, high = sequence.compute_lift()
    assert low < 0.2 < high
    assert value == pytest.approx(0.2, abs=0.05)
    assert abs(np.mean(plain[False]) - np.mean(plain[True]) - 0.2) > 0.2
    assert sequence.counts == (len(plain[False]), len(plain[True]))


def test_units_change_nothing():
    one = LiftSequence()
    other = LiftSequence()
    rng = np.random.default_rng(2)
    for _ in range(2000):
        kept = bool(rng.random() < 0.2)
        reward = float(rng.normal())
        one.add(reward, 0.2, in_control=kept)
        other.add(5.0 + 100.0 * reward, 0.2, in_control=kept)
    assert np.allclose(np.array(one.compute_lift()) * 100.0, other.compute_lift())


def test_small_groups_have_no_interval():
    sequence = LiftSequence()
    assert math.isnan(sequence.compute_lift()[0])
    for at in range(200):
        sequence.add(float(at % 4 == 0), 0.1, in_control=at < 49)
    assert sequence.compute_lift()[1:] == (-math.inf, math.inf)
    sequence.add(0.0, 0.1, in_control=True)
    assert np.isfinite(sequence.compute_lift()).all()
