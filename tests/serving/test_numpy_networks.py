"""Convolutions of a deployed policy, against torch."""

import numpy as np
import pytest

import daband
from daband.serving import _numpy_networks as numpy_networks

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("shape", "side", "kernels"),
    [
        ((28, 28, 3), 5, 64),
        ((12, 12, 64), 5, 48),
        ((13, 9, 40), 3, 8),  # sizes that pooling does not divide
        ((70, 90, 3), 5, 4),  # in several pieces
        ((101, 90, 2), 3, 32),
        ((6, 6, 1), 5, 2),
        ((9, 7, 2), 4, 3),
        ((5, 5, 3), 1, 2),
    ],
)
def test_a_pooled_convolution_is_that_of_torch(shape, side, kernels):
    draw = np.random.default_rng(0)
    maps = draw.standard_normal(shape).astype(np.float32)
    weight = draw.standard_normal((kernels, shape[2], side, side)).astype(np.float32)
    found = numpy_networks._convolve_and_pool(maps, numpy_networks._evaluate_kernel(weight))
    image = torch.from_numpy(maps).permute(2, 0, 1)[None]
    convolved = torch.nn.functional.conv2d(image, torch.from_numpy(weight))
    expected = torch.nn.functional.max_pool2d(convolved, 2)[0].permute(1, 2, 0)
    np.testing.assert_allclose(
        found, expected.numpy(), atol=1e-5 * side * shape[2] ** 0.5, rtol=1e-5
    )


def test_larger_kernels_are_refused():
    """More points would cost accuracy, and the encoder has kernels of 5 x 5."""
    with pytest.raises(ValueError, match="kernels of 6 x 6"):
        numpy_networks._evaluate_kernel(np.zeros((1, 1, 6, 6), np.float32))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(28, 26), (1, 28, 26), (28, 26, 1)], ids=str)
def test_grey_images_of_every_type_and_layout_are_decided_as_the_policy_does(
    shape, dtype, tmp_path
):
    """A view of one channel has strides that mean nothing; patches were cut by them, and decisions
    were wrong.
    """
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (40, *shape)).astype(np.uint8)
    contexts = images if dtype is np.uint8 else (images / 255.0).astype(dtype)
    encoder = {
        "name": "conv",
        "options": {"channels": [4, 5]},
        "dense": {"dimension": 8, "hidden": 10},
    }
    recipe = {"base": "small", "learning": {"steps": 2, "batch": 8}, "encoder": encoder}
    policy = daband.DABand(context_shape=shape, n_arms=3, recipe=recipe, seed=0)
    policy.observe_target(contexts)
    policy.update(contexts, draw.integers(0, 3, 40), draw.random(40))
    policy.adapt()
    daband.export(policy, tmp_path / "grey.daband", domain="target")
    deployed = daband.load_deployed(tmp_path / "grey.daband")
    expected = policy.decide(contexts, domain="target")
    np.testing.assert_allclose(
        deployed.decide(contexts, round_number=0).mean, expected.mean, atol=1e-5
    )
    np.testing.assert_allclose(
        [deployed.decide(one).mean for one in contexts], expected.mean, atol=1e-5
    )
