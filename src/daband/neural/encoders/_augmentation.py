"""Augmentations of images that do not change the right arm: a shift, a change of contrast and of brightness.

They make the encoder invariant to differences that are common between source and target domains. Pseudo-labels need
them: the teacher sees the original image, the student the augmented one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from daband.errors import InvalidInput
from daband.neural.encoders._encoder import unit_range


@dataclass(frozen=True)
class Augmentation:
    """The strength of the augmentation of images in training; vectors are not augmented.

    ``shift`` is the largest displacement in pixels, with the border repeated. ``contrast`` 0.4 multiplies an image's
    distance from its mean by 0.6 to 1.4 (each channel by a further half of that), and moves its brightness by up to
    0.2 of the full range (each channel by a further half of that).
    """

    shift: int = 0
    contrast: float = 0.0

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise InvalidInput(f"shift must be >= 0 pixels, got {self.shift}")
        if not 0.0 <= self.contrast <= 1.0:
            raise InvalidInput(f"contrast must lie in [0, 1], got {self.contrast}")

    def __bool__(self) -> bool:
        return self.shift > 0 or self.contrast > 0

    def draws(self, context_shape: tuple[int, ...]) -> int:
        """Return the number of random numbers for one context."""
        if len(context_shape) != 3:
            return 0
        return (2 if self.shift else 0) + (2 + 2 * context_shape[0] if self.contrast else 0)


def augment(contexts: torch.Tensor, settings: Augmentation, draws: torch.Tensor) -> torch.Tensor:
    """Return images (B, C, H, W) as augmented floats, and other contexts unchanged.

    ``draws`` (B, settings.draws(...)) are uniform draws from [0, 1). Shapes are static, and there is no wait for the
    device.
    """
    if draws.shape[1] == 0:
        return contexts
    images = unit_range(contexts)
    if settings.shift:
        images = _shifted(images, settings.shift, draws[:, :2])
        draws = draws[:, 2:]
    if settings.contrast:
        images = _recoloured(images, settings.contrast, draws)
    return images


def _shifted(images: torch.Tensor, reach: int, draws: torch.Tensor) -> torch.Tensor:
    batch, channels, height, width = images.shape
    offset = (draws * (2 * reach + 1)).long()
    rows = torch.arange(-reach, height - reach, device=images.device) + offset[:, :1]
    columns = torch.arange(-reach, width - reach, device=images.device) + offset[:, 1:]
    rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    pixels = torch.add(columns[:, None, :], rows[:, :, None], alpha=width)
    pixels = pixels.view(batch, 1, height * width).expand(batch, channels, height * width)
    return images.flatten(2).gather(2, pixels).view(batch, channels, height, width)


def _recoloured(images: torch.Tensor, contrast: float, draws: torch.Tensor) -> torch.Tensor:
    batch, channels = images.shape[:2]
    drawn = (2 * draws - 1).view(batch, 2, 1 + channels)  # for contrast and brightness: of the image, of each channel
    whole, single = drawn[:, :, :1], drawn[:, :, 1:]
    gain = (1 + contrast * whole[:, 0]) * (1 + contrast / 2 * single[:, 0])
    brightness = contrast / 2 * whole[:, 1] + contrast / 4 * single[:, 1]
    mean = images.mean(dim=(2, 3))
    # (x - mean) gain + mean + brightness; all but the last step work on one number per image and channel.
    offset = torch.addcmul(mean + brightness, mean, gain, value=-1)
    return torch.addcmul(offset.view(batch, channels, 1, 1), images, gain.view(batch, channels, 1, 1))
