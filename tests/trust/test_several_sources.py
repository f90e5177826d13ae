"""With several sources, every held-out context is read in its own source."""

import numpy as np
import pytest

import daband
from daband.domains import from_arrays
from daband.trust._assess import SourceRounds

COEFFICIENTS = np.random.default_rng(2).normal(size=(5, 3))


def market(offset, seed, n=500):
    rng = np.random.default_rng(seed)
    contexts = rng.normal(size=(n, 5))
    return contexts + offset, (contexts @ COEFFICIENTS).argmax(axis=1)


@pytest.fixture(scope="module")
def pair():
    """Three markets with different styles: read in another's, a context means something else."""
    sources = {"de": market(0.0, 0), "fr": market(6.0, 1), "it": market(-6.0, 2)}
    return from_arrays(sources=sources, targets={"pl": market(12.0, 3)[0]}, shift="style", passes=3)


def test_held_out_contexts_are_read_in_their_own_source(pair):
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=40)
    rounds = SourceRounds.read(pair.source_test, 120, seed=0)
    arms, means = rounds.decide(policy)
    assert set(rounds.origins) == {"de", "fr", "it"}
    for name in pair.domains.sources:
        rows = np.flatnonzero(rounds.origins == name)
        assert abs(rounds.contexts[rows].mean() - {"de": 0, "fr": 6, "it": -6}[name]) < 1
        own = policy.decide(rounds.contexts[rows], name, rule="greedy")
        np.testing.assert_allclose(means[rows], own.mean, atol=1e-9)
        assert rounds.get_rewards(arms)[rows].mean() > 0.75
    assessment = daband.assess(policy, source=pair.source_test, target=pair.target)
    # read in the style of one source, the others would be chance
    assert assessment.source_value > 0.75
    assert assessment.outside_support < 0.2
