"""The mean and the standard deviation of rewards: of parts, of the whole, and one by one."""

import copy

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from daband.linear._reward_moments import RewardMoments


@given(
    st.lists(
        st.tuples(st.floats(-1e6, 1e6), st.just(0.0) | st.floats(1e-6, 10.0)),
        min_size=1,
        max_size=30,
    ),
    st.integers(0, 30),
)
def test_moments_of_parts_are_those_of_the_whole(rounds, cut):
    rewards, weights = np.array(rounds).T
    together, parts, single = (RewardMoments(standardise=True) for _ in range(3))
    arms = np.arange(len(rewards)) % 3
    together.add(rewards, arms, weights)
    parts.add(rewards[cut:], arms[cut:], weights[cut:])
    other = RewardMoments(standardise=True)
    other.add(rewards[:cut], arms[:cut], weights[:cut])
    parts.merge(other)
    for reward, arm, weight in zip(rewards, arms, weights, strict=True):
        single.add(np.array([reward]), np.array([arm]), np.array([weight]))
    counted = weights > 0
    if not counted.any():
        assert (together.centre, together.scale) == (0.0, 1.0)
        return
    mean = np.average(rewards, weights=weights)
    scale = (
        np.sqrt(np.average((rewards - mean) ** 2, weights=weights))
        if np.ptp(rewards[counted]) > 0
        else 1.0
    )
    for moments in (together, parts, single):
        np.testing.assert_allclose(moments.centre, mean, rtol=1e-9, atol=1e-6)
        np.testing.assert_allclose(moments.scale, scale, rtol=1e-6, atol=1e-6)
        assert (moments.low, moments.high) == (rewards[counted].min(), rewards[counted].max())
        np.testing.assert_allclose(moments.compute_units(4), together.compute_units(4), rtol=1e-6)


def test_the_unit_of_an_arm_falls_only_by_rewards_of_this_arm():
    moments = RewardMoments(standardise=True)
    assert moments.compute_units(2).tolist() == [1.0, 1.0]
    moments.add(np.array([0.0, -35.0]), np.array([0, 1]))
    largest = [17.5, 17.5]  # half of the range
    np.testing.assert_allclose(moments.compute_units(3), [np.sqrt(10 / 11) * 17.5] * 2 + [17.5])
    after_one = moments.compute_units(2)[1]
    moments.add(np.zeros(10_000), np.zeros(10_000, np.int64))
    safe, unlucky = moments.compute_units(2)
    assert safe < 0.04 * largest[0]
    assert unlucky == after_one
    # other rewards of the arm make it the standard deviation of the arm
    rewards = np.tile([5.0, -35.0], 5_000)
    moments.add(rewards, np.ones(10_000, np.int64))
    np.testing.assert_allclose(moments.compute_units(2)[1], 20.0, rtol=1e-3)
    # a rare reward in another arm restores the doubt about all arms
    moments.add(np.array([500.0]), np.array([2]))
    assert moments.compute_units(2)[0] > safe


def test_copies_of_moments_are_independent():
    moments = RewardMoments(standardise=True)
    moments.add(np.array([1.0, 3.0]), np.array([0, 0]))
    before = moments.state().copy()
    other = copy.copy(moments)
    other.add(np.array([9.0]), np.array([0]))
    np.testing.assert_array_equal(moments.state(), before)
    moments.restore(other.state())
    np.testing.assert_array_equal(moments.compute_units(2), other.compute_units(2))
