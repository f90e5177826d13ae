"""Which contexts are images, and images as bytes, base64 or a path."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from daband.errors import InvalidInput
from daband.features._image_layout import (
    find_image_layout,
    read_image_bytes,
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


def test_an_image_is_bytes_base64_or_a_path(tmp_path):
    content = io.BytesIO()
    Image.new("RGB", (4, 4)).save(content, "PNG")
    raw = content.getvalue()
    text = base64.b64encode(raw).decode()
    (tmp_path / "a.png").write_bytes(raw)
    given = (
        raw,
        text,
        f"data:image/png;base64,{text}",
        str(tmp_path / "a.png"),
        tmp_path / "a.png",
    )
    assert {read_image_bytes(one) for one in given} == {raw}
    with pytest.raises(InvalidInput, match="base64"):
        read_image_bytes(str(tmp_path / "a.png"), allow_paths=False)
    with pytest.raises(InvalidInput, match=r"nowhere\.png "):
        read_image_bytes("nowhere.png")
