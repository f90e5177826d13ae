"""Augment images without changing the right arm: affine maps, and changes of contrast and brightness.

Augmentation makes the encoder invariant to differences that are common between source and target domains. Pseudo-labels
depend on it: the teacher sees the original image, the student the augmented one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from daband.errors import InvalidInput
from daband.neural.encoders._encoder import to_unit_range

#: The number of random numbers of an affine map: two for the displacement, four for the matrix.
_AFFINE_DRAWS = 6


@dataclass(frozen=True)
class Augmentation:
    """The strength of the augmentation of images in training. Vectors are not augmented."""

    #: The largest displacement in pixels.
    shift: int = 0
    #: 0.4 multiplies the contrast of an image by 0.6 to 1.4, and that of each channel by a further 0.8 to 1.2. It
    #: moves the brightness of an image by up to 0.2 of the full range, and that of each channel by a further 0.1.
    contrast: float = 0.0
    #: 0.2 adds a number between -0.2 and 0.2 to each entry of the 2 x 2 identity matrix, by which an image is mapped
    #: around its centre. This changes its size, aspect ratio, angle and slant.
    affine: float = 0.0

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise InvalidInput(f"shift must be >= 0 pixels, got {self.shift}")
        if not 0.0 <= self.contrast <= 1.0:
            raise InvalidInput(f"contrast must be in [0, 1], got {self.contrast}")
        if not 0.0 <= self.affine < 0.5:  # at 0.5 a map may be singular
            raise InvalidInput(f"affine must be in [0, 0.5), got {self.affine}")

    def __bool__(self) -> bool:
        return self.moves_pixels or self.contrast > 0

    def draws(self, context_shape: tuple[int, ...]) -> int:
        """Return the number of random numbers for one context."""
        if len(context_shape) != 3:
            return 0
        return (_AFFINE_DRAWS if self.moves_pixels else 0) + (2 + 2 * context_shape[0] if self.contrast else 0)

    @property
    def moves_pixels(self) -> bool:
        """True if pixels change their positions."""
        return self.shift > 0 or self.affine > 0


def augment(contexts: torch.Tensor, settings: Augmentation, draws: torch.Tensor) -> torch.Tensor:
    """Return images (B, C, H, W) as augmented floats, and other contexts unchanged.

    ``draws`` (B, settings.draws(...)) are uniform draws from [0, 1). Shapes are static, and there is no wait for the
    device.
    """
    if draws.shape[1] == 0:
        return contexts
    images = to_unit_range(contexts)
    if settings.moves_pixels:
        images = _apply_affine(images, settings, draws[:, :_AFFINE_DRAWS])
        draws = draws[:, _AFFINE_DRAWS:]
    if settings.contrast:
        images = _change_contrast(images, settings.contrast, draws)
    return images


def _apply_affine(images: torch.Tensor, settings: Augmentation, draws: torch.Tensor) -> torch.Tensor:
    """Return images (B, C, H, W), each under its own affine map. Pixels outside an image repeat its border.

    Pixels are copied, not interpolated: interpolation blurs the images of training, and costs 0.03 on DIGIT.
    """
    height, width = images.shape[2:]
    signed_draws = 2 * draws - 1
    matrices = torch.eye(2, 3, device=images.device).repeat(len(images), 1, 1)
    matrices[:, :, :2] += settings.affine * signed_draws[:, 2:].view(-1, 2, 2)
    for axis, side in enumerate((width, height)):
        # Coordinates run from -1 to 1. A displacement is rounded, so that all numbers of pixels are equally likely.
        matrices[:, axis, 2] += (2 * settings.shift + 1) / side * signed_draws[:, axis]
    grid = functional.affine_grid(matrices, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode="nearest", padding_mode="border", align_corners=False)


def _change_contrast(images: torch.Tensor, contrast: float, draws: torch.Tensor) -> torch.Tensor:
    """Return images (B, C, H, W) with another contrast and brightness."""
    batch, channels = images.shape[:2]
    # One row for contrast, one for brightness; the first column is for the image, the others are for its channels.
    signed_draws = (2 * draws - 1).view(batch, 2, 1 + channels)
    image_draws, channel_draws = signed_draws[:, :, :1], signed_draws[:, :, 1:]
    gain = (1 + contrast * image_draws[:, 0]) * (1 + contrast / 2 * channel_draws[:, 0])
    brightness = contrast / 2 * image_draws[:, 1] + contrast / 4 * channel_draws[:, 1]
    mean = images.mean(dim=(2, 3))
    # (x - mean) gain + mean + brightness; all but the last step work on one number per image and channel.
    offset = torch.addcmul(mean + brightness, mean, gain, value=-1)
    return torch.addcmul(offset.view(batch, channels, 1, 1), images, gain.view(batch, channels, 1, 1))
