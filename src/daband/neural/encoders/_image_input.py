"""Convert images to the layout that daband's networks take."""

from __future__ import annotations

import warnings

from daband.base._arrays import AnyArray
from daband.features._image_layout import (
    find_image_layout,
    to_channels_first,
    to_channels_first_shape,
)

#: The largest expected value of a pixel in a floating-point image; larger values cause a warning.
_MAX_PIXEL = 2.0


class ImageInput:
    """The conversion of contexts for a network.

    Contexts that are not images are not changed, and other networks get all contexts as they are.

    Args:
        context_shape: the shape of one context.
        takes_images: True for a network that takes images with the channels first.
    """

    def __init__(self, context_shape: tuple[int, ...], *, takes_images: bool) -> None:
        #: The layout of images, or None.
        self.layout = find_image_layout(context_shape) if takes_images else None
        #: The shape of a context after the conversion.
        self.shape = to_channels_first_shape(context_shape) if takes_images else context_shape
        self._has_warned = False

    def __call__(self, contexts: AnyArray) -> AnyArray:
        """Return converted contexts."""
        return contexts if self.layout is None else to_channels_first(contexts, self.layout)

    def check_and_convert(self, contexts: AnyArray) -> AnyArray:
        """Return converted contexts. Warn once if floating-point images have pixels from 0 to 255,
        from which networks learn less well.
        """
        is_checked = self.layout is None or contexts.dtype.kind != "f" or self._has_warned
        if not is_checked and (max_pixel := float(contexts.max())) > _MAX_PIXEL:
            self._has_warned = True
            warnings.warn(
                f"contexts are images of floating-point numbers up to {max_pixel:g}; pass them as"
                " uint8, or divide them by 255, so that pixels are in [0, 1]",
                stacklevel=5,
            )
        return self(contexts)
