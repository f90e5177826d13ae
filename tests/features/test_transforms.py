"""Transforms before a policy: each policy has its own copy, and saves it."""

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

import daband
from daband.errors import InvalidInput, NotFitted
from daband.features._transforms import Transform, as_transform

X = np.random.default_rng(0).normal(size=(60, 5)) * 4 + 2
ARMS = np.arange(60) % 3
REWARDS = (np.arange(60) % 2).astype(float)


def policy(transform):
    made = daband.LinUCB(context_shape=(5,), n_arms=3, transform=transform)
    if not made.transform.fitted:
        made.prepare(X)
    made.update(X, ARMS, REWARDS)
    return made


@pytest.mark.parametrize(
    "given", [daband.PCA(2), daband.Standardise(), daband.features.Piecewise()]
)
def test_every_transform_is_the_policys_own_copy_and_is_saved(given, tmp_path):
    made = policy(given)
    assert isinstance(made.transform, Transform)
    assert not given.fitted
    singles = np.concatenate([made.decide(X[i : i + 1]).mean for i in range(4)])
    np.testing.assert_allclose(made.decide(X[:4]).mean, singles, atol=1e-9)
    made.save(tmp_path / "p")
    np.testing.assert_array_equal(daband.load(tmp_path / "p").decide(X).mean, made.decide(X).mean)


def test_images_and_shared_arms_are_flattened():
    images = np.random.default_rng(1).integers(0, 256, size=(30, 3, 4, 4), dtype=np.uint8)
    made = daband.LinUCB(context_shape=(3, 4, 4), n_arms=2, transform=daband.Standardise())
    made.prepare(images)
    assert made.select(images[:3]).arm.shape == (3,)
    shared = daband.LinUCB(
        context_shape=(5,), n_arms=2, arms="shared", transform=daband.Standardise()
    )
    shared.prepare(X.reshape(30, 2, 5))
    assert shared.select(X[:8].reshape(4, 2, 5)).mean.shape == (4, 2)


def test_before_it_is_fitted():
    made = daband.LinUCB(context_shape=(5,), n_arms=3, transform=daband.Standardise())
    with pytest.raises(NotFitted, match=r"policy\.prepare"):
        made.select(X)


class Doubled(daband.Standardise):
    """A change of one of ours, which a file cannot hold."""


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (3, "int"),
        (daband.PCA, "the class PCA"),
        (Doubled(), "Doubled"),
        (StandardScaler(), "StandardScaler; apply transforms of other libraries to the data"),
    ],
)
def test_other_objects_are_refused(wrong, named):
    with pytest.raises(InvalidInput, match=f"transform .* {named}"):
        daband.LinUCB(context_shape=(5,), n_arms=3, transform=wrong)


def test_nothing_stays_nothing():
    assert as_transform(None) is None
