import numpy as np
import pytest

from daband.features._image_layout import (
    find_image_layout,
    to_channels_first,
    to_channels_first_shape,
)


@pytest.mark.parametrize(
    ("shape", "layout", "first"),
    [
        ((3, 28, 28), "channels_first", (3, 28, 28)),
        ((1, 16, 40), "channels_first", (1, 16, 40)),
        ((28, 28, 3), "channels_last", (3, 28, 28)),
        ((64, 32, 4), "channels_last", (4, 64, 32)),
        ((28, 30), "grey", (1, 28, 30)),
        ((28, 8), None, (28, 8)),
        ((2, 28, 28), None, (2, 28, 28)),
        ((3, 8, 8), None, (3, 8, 8)),
        ((784,), None, (784,)),
        ((2, 3, 28, 28), None, (2, 3, 28, 28)),
    ],
)
def test_what_is_an_image_and_how_its_pixels_lie(shape, layout, first):
    assert find_image_layout(shape) == layout
    assert to_channels_first_shape(shape) == first
    contexts = np.arange(2 * np.prod(shape)).reshape(2, *shape)
    turned = to_channels_first(contexts, layout)
    assert turned.shape == (2, *first)
    assert np.shares_memory(turned, contexts)
    if layout == "channels_last":
        np.testing.assert_array_equal(turned[1, 2], contexts[1, ..., 2])
