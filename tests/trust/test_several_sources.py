"""With several sources, estimates read every held-out context in the source that it is of."""

import numpy as np
import pytest

import daband
from daband.domains.readers._arrays import from_arrays
from daband.evaluation._policy_scores import scores_of
from daband.trust._explanations import explanations_of

COEFFICIENTS = np.random.default_rng(2).normal(size=(5, 3))


def market(offset, seed, n=500):
    rng = np.random.default_rng(seed)
    contexts = rng.normal(size=(n, 5))
    return contexts + offset, (contexts @ COEFFICIENTS).argmax(axis=1)


@pytest.fixture(scope="module")
def pair():
    """Three markets in styles of their own: read in another's, a context means something else."""
    sources = {"de": market(0.0, 0), "fr": market(6.0, 1), "it": market(-6.0, 2)}
    return from_arrays(sources=sources, targets={"pl": market(12.0, 3)[0]}, shift="style", passes=3)


@pytest.mark.parametrize("kind", ["LinUCB", "DABand"])
def test_held_out_contexts_are_read_in_their_own_source(pair, kind):
    settings = {} if kind == "LinUCB" else {"recipe": "small", "device": "cpu"}
    policy = getattr(daband, kind).for_pair(pair, seed=0, **settings)
    daband.train(policy, source=pair.source, target=pair.target, episodes=40)
    scores, here, there = scores_of([policy], source=pair.source_test, target=pair.target, contexts=120, rule="greedy")
    assert set(scores.origin) == {"de", "fr", "it"}
    for name in pair.domains.sources:
        rows = np.flatnonzero(scores.origin == name)
        assert abs(here[rows].mean() - {"de": 0, "fr": 6, "it": -6}[name]) < 1
        own = policy.decide(here[rows], name, rule="greedy")
        np.testing.assert_allclose(scores.source_mean[0][rows], own.mean, atol=1e-9)
        assert scores.reward[0][rows].mean() > 0.75
    found = explanations_of(
        [policy], here, there, shift=pair.shift, rule="greedy", reward_range=(0.0, 1.0), origin=scores.origin
    )
    np.testing.assert_allclose(found[0].source_mean, scores.source_mean[0], atol=1e-9)
    assessment = daband.assess(policy, source=pair.source_test, target=pair.target, rule="greedy")
    assert assessment.value > 0.6  # read in the style of one source, rewards of the others would be chance
