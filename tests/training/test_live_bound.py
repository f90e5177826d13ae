"""The bound in the records of a run: in one unit whatever the rewards' unit is, and silent about
what is not known.
"""

import numpy as np
import pytest

import daband
from daband.domains.readers._arrays import from_arrays

SHIFT = -4.0
SCALE = 8.0


def episodes(kind, *, low=0.0, high=1.0):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype(np.float32)
    rewards = low + (high - low) * np.eye(3)[rng.integers(0, 3, 64)]
    pair = from_arrays(source=(x, rewards), target=x + 1.0, target_test=(x, rewards))
    policy = kind(context_shape=(4,), n_arms=3, standardise_rewards=True, shift="style", seed=0)
    return daband.train(
        policy, source=pair.source, target=pair.target, episodes=2, episode_length=16
    ).episodes


def test_the_bound_does_not_depend_on_the_unit_of_rewards():
    unit = episodes(daband.DABand)
    euros = episodes(daband.DABand, low=SHIFT, high=SHIFT + SCALE)
    names = [name for name in unit[-1] if name.startswith("bound_")]
    assert {"bound_total", "bound_source_regret", "bound_exploration"} <= set(names)
    # before the first reward a policy knows no unit, so the second episode is compared
    for name in names:
        expected = unit[1][name] - unit[0][name]
        assert euros[1][name] - euros[0][name] == pytest.approx(expected, rel=1e-6), name
    # what users see stays in their unit
    assert euros[-1]["regret"] == pytest.approx(SCALE * unit[-1]["regret"])


def test_without_a_discriminator_there_is_no_divergence_and_no_sum():
    last = episodes(daband.NeuralLinUCB)[-1]
    assert last["bound_rounds"] == 32
    assert last["bound_regression_error"] > 0
    assert not {"bound_divergence", "bound_total"} & set(last)
