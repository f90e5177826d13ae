"""Propensities of a log that has none."""

import numpy as np

from daband.linear._propensities import estimate_propensities


def test_propensities_are_estimated_where_a_log_has_none():
    generator = np.random.default_rng(0)
    contexts = generator.normal(size=(4000, 3))
    propensity = np.where(contexts[:, 0] > 0, 0.8, 0.2)
    arms = (generator.random(4000) < propensity).astype(np.int64)
    truth = np.where(arms == 1, propensity, 1 - propensity)
    estimated, how = estimate_propensities(contexts, arms, 2)
    assert "logistic model" in how
    frequency = np.where(arms == 1, arms.mean(), 1 - arms.mean())
    assert np.abs(estimated - truth).mean() < 0.6 * np.abs(frequency - truth).mean()
    generator = np.random.default_rng(0)
    contexts = generator.normal(size=(600, 4))
    even = generator.integers(3, size=600)
    assert "frequency" in estimate_propensities(contexts, even, 3)[1]
    none = np.zeros(600, np.int64)
    assert estimate_propensities(contexts, none, 3)[0].tolist() == [1.0] * 600
    assert (estimate_propensities(contexts[:9], even[:9], 3)[0] > 0).all()
