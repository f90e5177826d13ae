import numpy as np
import pytest
from sklearn import decomposition

import daband
from daband.errors import InvalidInput, NotFitted


def low_rank(n, dim, rank, seed=0):
    rng = np.random.default_rng(seed)
    scale = np.logspace(1, -1, rank)
    return (
        rng.normal(size=(n, rank)) * scale @ rng.normal(size=(rank, dim))
        + 0.01 * rng.normal(size=(n, dim))
        + 3.0
    )


@pytest.mark.parametrize("dim", [12, 4200])  # the exact and the randomised way
def test_equals_scikit_learn_up_to_sign(dim):
    x = low_rank(120, dim, 8)
    ours = daband.PCA(5).fit(x[:50], x[50:])
    theirs = decomposition.PCA(5, svd_solver="full").fit(x)
    np.testing.assert_allclose(
        np.abs(np.sum(ours.axes * theirs.components_, axis=1)), 1.0, atol=1e-6
    )
    np.testing.assert_allclose(np.abs(ours(x)), np.abs(theirs.transform(x)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dim", [12, 1100])
def test_the_largest_number_of_an_axis_is_positive(dim):
    """A decomposition leaves the sign open; a policy must not depend on whose it is."""
    x = low_rank(60, dim, 8)
    axes = [daband.PCA(5).fit(contexts).axes for contexts in (x, -x)]
    np.testing.assert_allclose(*axes, atol=1e-6)
    assert (axes[0].max(axis=1) == np.abs(axes[0]).max(axis=1)).all()


def test_images_are_scaled_and_flattened():
    images = np.random.default_rng(0).integers(0, 256, (40, 3, 4, 4), dtype=np.uint8)
    components = daband.PCA(6).fit(images)(images)
    assert components.shape == (40, 6)
    np.testing.assert_allclose(
        components, daband.PCA(6).fit(images / 255.0)(images / 255.0), atol=1e-10
    )


def test_fitting_twice_gives_the_same():
    x = low_rank(60, 4500, 6)
    np.testing.assert_array_equal(daband.PCA(3).fit(x).axes, daband.PCA(3).fit(x).axes)


def test_a_policy_with_an_unfitted_transform_says_what_to_do():
    policy = daband.LinUCB(context_shape=(6,), n_arms=2, transform=daband.PCA(2))
    x = low_rank(20, 6, 3)
    with pytest.raises(NotFitted, match="prepare"):
        policy.select(x)
    policy.prepare(x[:10], x[10:])
    assert policy.select(x).mean.shape == (20, 2)
    with pytest.raises(InvalidInput, match=r"PCA.*fitted"):
        policy.prepare(x)


def test_shared_arms_are_transformed_arm_by_arm():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 4, 6))
    policy = daband.LinUCB(context_shape=(6,), n_arms=4, arms="shared", transform=daband.PCA(3))
    policy.prepare(x)
    plain = daband.LinUCB(context_shape=(3,), n_arms=4, arms="shared", intercept=False)
    projected = np.stack([policy.transform(x[:, arm]) for arm in range(4)], axis=1)
    rewards = rng.random((30, 4))
    np.testing.assert_array_equal(policy.play(x, rewards).arm, plain.play(projected, rewards).arm)


@pytest.mark.parametrize(
    ("components", "batches", "named"),
    [
        (0, [], "n_components"),
        (2, [np.zeros((1, 4))], "two .*1$"),
        (9, [np.zeros((5, 4))], "n_components .*4"),
        (1, [np.zeros((5, 4)), np.zeros((5, 3))], r"dimensions .*\[3, 4\]"),
        (1, [np.full((5, 4), np.nan)], "NaN"),
    ],
)
def test_bad_input(components, batches, named):
    with pytest.raises(InvalidInput, match=named):
        daband.PCA(components).fit(*batches)
