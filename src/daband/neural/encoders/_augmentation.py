"""Augment images by random affine maps and changes of contrast and brightness, which keep the best
arm.

Augmentation makes the encoder invariant to differences that are common between source and target
domains. Pseudo-labels depend on it: the EMA encoder predicts them from the original image, and the
encoder learns them from the augmented one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from daband.errors import InvalidInput
from daband.neural.encoders._encoder import to_unit_range

#: The number of random numbers for an affine map: two for the displacement, four for the matrix.
_N_AFFINE_DRAWS = 6


@dataclass(frozen=True)
class Augmentation:
    """The strength of the augmentation of images in training. Vectors are not augmented."""

    #: The maximum displacement along each axis, in pixels.
    shift: int = 0
    #: The strength of changes of contrast and brightness. With 0.4, the contrast of an image is
    #: multiplied by 0.6 to 1.4, and the contrast of each channel by a further 0.8 to 1.2. The
    #: brightness of an image changes by up to 0.2 of the full range, and the brightness of each
    #: channel by up to a further 0.1.
    contrast: float = 0.0
    #: The strength of affine maps around the centre of an image, which change its size, aspect
    #: ratio, angle and slant. With 0.2, numbers between -0.2 and 0.2 are added to each entry of the
    #: 2 x 2 identity matrix.
    affine: float = 0.0

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise InvalidInput(f"shift must be >= 0 pixels, got {self.shift}")
        if not 0.0 <= self.contrast <= 1.0:
            raise InvalidInput(f"contrast must be in [0, 1], got {self.contrast}")
        if not 0.0 <= self.affine < 0.5:  # from 0.5 on, the matrix may be singular
            raise InvalidInput(f"affine must be in [0, 0.5), got {self.affine}")

    def __bool__(self) -> bool:
        return self.moves_pixels or self.contrast > 0

    def count_draws(self, context_shape: tuple[int, ...]) -> int:
        """Return the number of random numbers that augment one context of this shape; 0 if it is
        not an image.
        """
        if len(context_shape) != 3:
            return 0
        return (_N_AFFINE_DRAWS if self.moves_pixels else 0) + (
            2 + 2 * context_shape[0] if self.contrast else 0
        )

    @property
    def moves_pixels(self) -> bool:
        """True if the augmentation changes the positions of pixels."""
        return self.shift > 0 or self.affine > 0


def augment(
    contexts: torch.Tensor, augmentation: Augmentation, draws: torch.Tensor
) -> torch.Tensor:
    """Return augmented images as floats, (B, C, H, W), and other contexts unchanged.

    ``draws`` (B, n) are uniform draws from [0, 1), with n from ``augmentation.count_draws``. All
    shapes are fixed, and no value is read on the host, so that the operations can be recorded as a
    CUDA graph.
    """
    if draws.shape[1] == 0:
        return contexts
    images = to_unit_range(contexts)
    if augmentation.moves_pixels:
        images = _apply_affine(images, augmentation, draws[:, :_N_AFFINE_DRAWS])
        draws = draws[:, _N_AFFINE_DRAWS:]
    if augmentation.contrast:
        images = _change_contrast(images, augmentation.contrast, draws)
    return images


def _apply_affine(
    images: torch.Tensor, augmentation: Augmentation, draws: torch.Tensor
) -> torch.Tensor:
    """Return images (B, C, H, W), each changed by its own affine map.

    Pixels outside an image repeat its border.

    ``draws`` (B, 6) are uniform draws from [0, 1). Each pixel is copied from the nearest pixel.
    Interpolation would blur the images, and lower the target accuracy on DIGIT by 0.03.
    """
    height, width = images.shape[2:]
    signed_draws = 2 * draws - 1
    matrices = torch.eye(2, 3, device=images.device).repeat(len(images), 1, 1)
    matrices[:, :, :2] += augmentation.affine * signed_draws[:, 2:].view(-1, 2, 2)
    for axis, size in enumerate((width, height)):
        # Coordinates run from -1 to 1. The nearest pixel is copied, so that every whole
        # displacement is equally likely.
        matrices[:, axis, 2] += (2 * augmentation.shift + 1) / size * signed_draws[:, axis]
    grid = functional.affine_grid(matrices, list(images.shape), align_corners=False)
    return functional.grid_sample(
        images, grid, mode="nearest", padding_mode="border", align_corners=False
    )


def _change_contrast(images: torch.Tensor, contrast: float, draws: torch.Tensor) -> torch.Tensor:
    """Return images (B, C, H, W) with changed contrast and brightness, from uniform draws (B, 2 + 2
    * C) in [0, 1).
    """
    n_images, n_channels = images.shape[:2]
    # The rows are for contrast and brightness. The first column is for the image, the others are
    # for its channels.
    signed_draws = (2 * draws - 1).view(n_images, 2, 1 + n_channels)
    image_draws = signed_draws[:, :, :1]
    channel_draws = signed_draws[:, :, 1:]
    gains = (1 + contrast * image_draws[:, 0]) * (1 + contrast / 2 * channel_draws[:, 0])
    shifts = contrast / 2 * image_draws[:, 1] + contrast / 4 * channel_draws[:, 1]
    means = images.mean(dim=(2, 3))
    # The result is (images - means) * gains + means + shifts. Only the last operation passes over
    # all pixels.
    offsets = torch.addcmul(means + shifts, means, gains, value=-1)
    return torch.addcmul(
        offsets.view(n_images, n_channels, 1, 1), images, gains.view(n_images, n_channels, 1, 1)
    )
