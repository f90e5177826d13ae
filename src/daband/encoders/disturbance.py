"""Small disturbances of images that leave the right arm as it is: a shift, a change of contrast and of brightness.

They make the encoder indifferent to what differs between many source and target domains anyway, and they are what
pseudo-labels need: a teacher that sees the image as it is, and a pupil that sees it disturbed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from daband.encoders.contract import unit_range
from daband.errors import InvalidInput

__all__ = ["Disturbance", "disturb"]


@dataclass(frozen=True)
class Disturbance:
    """How far images are disturbed while training; vectors are left alone.

    ``shift`` is the largest displacement in pixels, the border repeated. ``contrast`` 0.4 multiplies an image's
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


def disturb(contexts: torch.Tensor, settings: Disturbance, *, generator: torch.Generator) -> torch.Tensor:
    """Images (B, C, H, W) as floats, disturbed; anything else as it came. Shapes are static and nothing waits."""
    if not settings or contexts.ndim != 4:
        return contexts
    images = unit_range(contexts)
    if settings.shift:
        images = _shifted(images, settings.shift, generator)
    if settings.contrast:
        images = _recoloured(images, settings.contrast, generator)
    return images


def _shifted(images: torch.Tensor, reach: int, generator: torch.Generator) -> torch.Tensor:
    batch, channels, height, width = images.shape
    draws = torch.rand(2, batch, 1, 1, generator=generator, device=images.device)
    offset = torch.floor(draws * (2 * reach + 1)).long() - reach
    rows = (torch.arange(height, device=images.device).view(1, height, 1) + offset[0]).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device).view(1, 1, width) + offset[1]).clamp(0, width - 1)
    places = (rows * width + columns).view(batch, 1, height * width).expand(batch, channels, height * width)
    return images.flatten(2).gather(2, places).view(batch, channels, height, width)


def _recoloured(images: torch.Tensor, contrast: float, generator: torch.Generator) -> torch.Tensor:
    batch, channels = images.shape[:2]
    whole = 2 * torch.rand(2, batch, 1, 1, 1, generator=generator, device=images.device) - 1
    single = 2 * torch.rand(2, batch, channels, 1, 1, generator=generator, device=images.device) - 1
    mean = images.mean(dim=(2, 3), keepdim=True)
    spread = (1 + contrast * whole[0]) * (1 + contrast / 2 * single[0])
    brightness = contrast / 2 * whole[1] + contrast / 4 * single[1]
    return (images - mean) * spread + mean + brightness
