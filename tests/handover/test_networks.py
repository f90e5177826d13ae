"""Convolutions of a deployed policy, against torch."""

import numpy as np
import pytest

from daband.handover import networks

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("shape", "side", "kernels", "by_rows"),
    [
        ((28, 28, 3), 5, 64, False),
        ((12, 12, 64), 5, 48, True),
        ((13, 9, 40), 3, 8, True),  # sizes that pooling does not divide
        ((70, 90, 3), 5, 4, True),
        ((100, 90, 2), 3, 32, False),  # patches are multiplied in several pieces
        ((6, 6, 1), 5, 2, False),
    ],
)
def test_a_pooled_convolution_is_that_of_torch(shape, side, kernels, by_rows, monkeypatch):
    draw = np.random.default_rng(0)
    maps = draw.standard_normal(shape).astype(np.float32)
    weight = draw.standard_normal((side * side * shape[2], kernels)).astype(np.float32)
    taken = []
    for name in ("_convolve_rows", "_convolve_patches"):
        own = getattr(networks, name)
        monkeypatch.setattr(networks, name, lambda *given, own=own, name=name: (taken.append(name), own(*given)))
    found = networks._pooled_convolution(maps, side, weight)
    assert taken == ["_convolve_rows" if by_rows else "_convolve_patches"]
    kernel = torch.from_numpy(weight).reshape(side, side, shape[2], kernels).permute(3, 2, 0, 1)
    image = torch.from_numpy(maps).permute(2, 0, 1)[None]
    expected = torch.nn.functional.max_pool2d(torch.nn.functional.conv2d(image, kernel), 2)[0].permute(1, 2, 0)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5 * len(weight) ** 0.5, rtol=1e-5)
