"""The mean and the standard deviation of rewards: of parts, of the whole, and one by one."""

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
    together.add(rewards, weights)
    parts.add(rewards[cut:], weights[cut:])
    other = RewardMoments(standardise=True)
    other.add(rewards[:cut], weights[:cut])
    parts.merge(other)
    for reward, weight in zip(rewards, weights, strict=True):
        single.add(np.array([reward]), np.array([weight]))
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
