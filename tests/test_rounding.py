"""What `make test-portable` changes, and what it leaves alone."""

import numpy as np
import pytest
import torch

from daband.policies import LinUCB
from tests.rounding import nudge, nudged


def test_a_nudge_is_small_goes_both_ways_and_depends_on_the_number_alone():
    numbers = np.random.default_rng(0).normal(size=(40, 5))
    changed = nudged(numbers, 1)
    np.testing.assert_allclose(np.abs(changed / numbers - 1), 1e-7, rtol=1e-6)
    assert 0.3 < np.mean(changed > numbers) < 0.7
    np.testing.assert_array_equal(nudged(numbers[7:9, 2:], 1), changed[7:9, 2:])
    assert not np.array_equal(nudged(numbers, 2), changed)


def test_bytes_and_whole_numbers_are_left_alone():
    for kind in (np.uint8, np.int64):
        numbers = np.arange(10, dtype=kind)
        np.testing.assert_array_equal(nudged(numbers, 1), numbers)


def test_policies_and_networks_are_reached():
    contexts = np.random.default_rng(0).normal(size=(8, 3))

    def learned():
        policy = LinUCB(context_shape=(3,), n_arms=2)
        policy.update(contexts, np.arange(8) % 2, np.arange(8) % 2)
        torch.manual_seed(0)
        return policy.decide(contexts).mean, torch.nn.Linear(4, 4).weight.detach().numpy()

    plain = learned()
    with pytest.MonkeyPatch.context() as patch:
        nudge(patch, 3)
        for one, other in zip(learned(), plain, strict=True):
            assert not np.array_equal(one, other)
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    for one, other in zip(learned(), plain, strict=True):
        np.testing.assert_array_equal(one, other)
