"""Images that a deployed policy decides on, against the policy."""

import numpy as np
import pytest

import daband

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")


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
