"""Recognise images by the shape of a context, convert between layouts, and decode image files.

A *layout* is the order of the axes of an image (``ImageLayout``).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from daband.base._arrays import AnyArray, Shape
from daband.errors import InvalidInput

#: The order of the axes of an image.
ImageLayout = Literal["channels_first", "channels_last", "grey"]

#: The possible numbers of channels of an image.
_CHANNEL_COUNTS = (1, 3, 4)
#: The minimum side of an image, in pixels.
_MIN_SIDE_PIXELS = 16
#: The formats of images in requests. Pillow runs programs to read some other formats.
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
#: The first characters of files of these formats in base64.
_BASE64_PREFIXES = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR", "Qk")


def find_image_layout(context_shape: Shape) -> ImageLayout | None:
    """Return the layout of images of this shape, or None if contexts are not images.

    Images are (channels, height, width), (height, width, channels) or (height, width), with 1, 3 or
    4 channels and at least 16 pixels per side.
    """
    if len(context_shape) == 2:
        return "grey" if min(context_shape) >= _MIN_SIDE_PIXELS else None
    if len(context_shape) != 3:
        return None
    if context_shape[0] in _CHANNEL_COUNTS and min(context_shape[1:]) >= _MIN_SIDE_PIXELS:
        return "channels_first"
    if context_shape[2] in _CHANNEL_COUNTS and min(context_shape[:2]) >= _MIN_SIDE_PIXELS:
        return "channels_last"
    return None


def to_channels_first_shape(context_shape: Shape) -> Shape:
    """Return the shape of images as (channels, height, width).

    Shapes that are not images are returned unchanged.
    """
    layout = find_image_layout(context_shape)
    if layout == "channels_last":
        return (context_shape[2], *context_shape[:2])
    return (1, *context_shape) if layout == "grey" else context_shape


def to_channels_first(contexts: AnyArray, layout: ImageLayout | None) -> AnyArray:
    """Return a view of images of this layout as (..., channels, height, width).

    If ``layout`` is None, ``contexts`` are not images and are returned unchanged.
    """
    if layout == "channels_last":
        return np.moveaxis(contexts, -1, -3)
    return contexts[..., None, :, :] if layout == "grey" else contexts


def to_eight_bits(image: Any) -> Any:
    """Return a Pillow image, converted to 8 bits per channel.

    Grey images with 16 bits are scaled. Pillow's ``convert`` would clip them at 255.
    """
    from PIL import Image

    if image.mode == "F":
        raise ValueError(
            "its pixels are floating-point numbers; save it with 8 or 16 bits per channel"
        )
    if not image.mode.startswith("I"):
        return image
    pixels = np.asarray(image)
    # Mode "I" has 32 bits, and may hold 8-bit values.
    is_16_bit = image.mode != "I" or pixels.max() > 255
    return Image.fromarray((pixels >> 8).clip(0, 255).astype(np.uint8)) if is_16_bit else image


def open_rgb(file: Any) -> Any:
    """Return an image file, given by its path or opened, as a Pillow image in RGB.

    Transparent pixels are white.
    """
    from PIL import Image

    with Image.open(file) as original_image:
        image = to_eight_bits(original_image)
        if image.has_transparency_data:  # the colour of transparent pixels is arbitrary
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return image.convert("RGB")


def read_pixels(file: Any, resize: int | None = None, crop: int | None = None) -> AnyArray:
    """Return an image file as uint8 (H, W, 3).

    ``file`` is a path or an open file. With ``resize``, both sides are resized to this many pixels.
    With ``crop``, the centre of ``crop`` x ``crop`` pixels is returned.
    """
    from PIL import Image

    image = open_rgb(file)
    if resize is not None and image.size != (resize, resize):
        image = image.resize((resize, resize), Image.Resampling.BILINEAR)
    pixels: AnyArray = np.array(image)
    if crop is not None and crop != resize:
        top = (pixels.shape[0] - crop) // 2
        left = (pixels.shape[1] - crop) // 2
        pixels = pixels[top : top + crop, left : left + crop]
    return pixels


def read_image_bytes(image: Any, *, allow_paths: bool = True) -> bytes:
    """Return the bytes of an image file.

    ``image`` is these bytes, their base64 encoding (also as a data URL), or with ``allow_paths``
    the path of the file.
    """
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str) and image.startswith(("data:image/", *_BASE64_PREFIXES)):
        with contextlib.suppress(binascii.Error, ValueError):  # a path may start like base64
            return base64.b64decode(
                image.partition(",")[2] if image.startswith("data:") else image, validate=True
            )
    if not allow_paths:
        raise InvalidInput("an image must be a PNG, JPEG, GIF, WebP or BMP file in base64")
    if not isinstance(image, str | os.PathLike):
        raise InvalidInput(
            "an image must be the path or the bytes of a file, or base64, got"
            f" {type(image).__name__}"
        )
    try:
        return Path(image).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: not a valid path
        raise InvalidInput(
            f"{str(image)[:80]} cannot be read: {getattr(error, 'strerror', error)}"
        ) from None


def measure_image(content: bytes) -> tuple[int, int]:
    """Return the width and height in pixels of an image file, without decoding it."""
    with convert_image_errors("an image"):
        from PIL import Image

        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            return image.size


@contextlib.contextmanager
def convert_image_errors(name: str) -> Iterator[None]:
    """Convert errors of Pillow within this block to ``InvalidInput``.

    Messages call the image ``name``.
    """
    try:
        yield
    except ImportError:
        raise InvalidInput(
            "image files cannot be read without Pillow: pip install pillow"
        ) from None
    # Pillow raises OSError, SyntaxError, ValueError, ... for damaged files
    except Exception as error:
        reason = "" if "BytesIO" in str(error) else f" ({error})"
        raise InvalidInput(f"{name} is not an image file or is damaged{reason}") from None
