"""Images as contexts: image shapes, pixel layouts, and decoding of files to pixels."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from daband._arrays import AnyArray

ImageLayout = Literal["channels_first", "channels_last", "grey"]

_CHANNELS = (1, 3, 4)
_SMALLEST_SIDE = 16


def image_layout(context_shape: tuple[int, ...]) -> ImageLayout | None:
    """Return the layout of images of this shape, or None if contexts are not images.

    Images are (channels, height, width), (height, width, channels) or (height, width), with 1, 3 or 4 channels and at
    least 16 pixels per side.
    """
    if len(context_shape) == 2:
        return "grey" if min(context_shape) >= _SMALLEST_SIDE else None
    if len(context_shape) != 3:
        return None
    if context_shape[0] in _CHANNELS and min(context_shape[1:]) >= _SMALLEST_SIDE:
        return "channels_first"
    if context_shape[2] in _CHANNELS and min(context_shape[:2]) >= _SMALLEST_SIDE:
        return "channels_last"
    return None


def channels_first_shape(context_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape (channels, height, width) of these images; other shapes are returned unchanged."""
    layout = image_layout(context_shape)
    if layout == "channels_last":
        return (context_shape[2], *context_shape[:2])
    return (1, *context_shape) if layout == "grey" else context_shape


def channels_first(contexts: AnyArray, layout: ImageLayout | None) -> AnyArray:
    """Return a view of images (..., *shape) as (..., channels, height, width); unchanged without a layout."""
    if layout == "channels_last":
        return np.moveaxis(contexts, -1, -3)
    return contexts[..., None, :, :] if layout == "grey" else contexts


def in_eight_bits(image: Any) -> Any:
    """Return a Pillow image with 8 bits per channel: ``convert`` would clip 16-bit grey at 255, all white."""
    from PIL import Image

    if image.mode == "F":
        raise ValueError("its pixels are fractions of an unknown range; save it with 8 or 16 bits")
    pixels = np.asarray(image)
    wide = image.mode.startswith("I;16") or (image.mode == "I" and pixels.max() > 255)  # 32-bit images may use 8 bits
    return Image.fromarray((pixels >> 8).clip(0, 255).astype(np.uint8)) if wide else image


def open_rgb(source: Any) -> Any:
    """Return an image file as a Pillow image in RGB. Transparent pixels are white."""
    from PIL import Image

    with Image.open(source) as opened:
        image = in_eight_bits(opened)
        if image.has_transparency_data:  # the colour under transparent pixels is arbitrary: show them on white
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return image.convert("RGB")


def decode(source: Any, resize: int | None = None, crop: int | None = None) -> AnyArray:
    """Return an image as uint8 (H, W, 3): both sides resized to ``resize``, then the centre ``crop`` x ``crop``."""
    from PIL import Image

    image = open_rgb(source)
    if resize is not None and image.size != (resize, resize):
        image = image.resize((resize, resize), Image.Resampling.BILINEAR)
    pixels: AnyArray = np.array(image)
    if crop is not None and crop != resize:
        top, left = (pixels.shape[0] - crop) // 2, (pixels.shape[1] - crop) // 2
        pixels = pixels[top : top + crop, left : left + crop]
    return pixels
