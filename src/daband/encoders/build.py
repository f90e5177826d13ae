"""An encoder from the name of a network, or around a custom module."""

from __future__ import annotations

import inspect

from torch import nn

from daband.encoders.contract import Encoder, Features, LatentSettings, encoders
from daband.encoders.custom import CustomFeatures
from daband.errors import InvalidInput
from daband.image_layout import image_layout
from daband.suggestions import did_you_mean

__all__ = ["build_encoder"]


def build_encoder(
    network: str | nn.Module,
    *,
    context_shape: tuple[int, ...],
    latent: LatentSettings | None = None,
    **options: object,
) -> Encoder:
    """The encoder with the network of this registered name, or around a custom module, for contexts of one shape.

    "auto" is "conv" for images (channels, height, width) and "mlp" for everything else. The other keywords are the
    network's own settings.
    """
    latent = LatentSettings() if latent is None else latent
    if isinstance(network, nn.Module):
        features: Features = CustomFeatures(module=network, context_shape=context_shape, **options)  # type: ignore[arg-type]
    else:
        if network == "auto":
            network = "conv" if image_layout(context_shape) == "channels_first" else "mlp"
        kind = encoders.get(network)
        known = [option for option in inspect.signature(kind).parameters if option != "context_shape"]
        for option in options:
            if option not in known:
                hint = did_you_mean(option, known)
                raise InvalidInput(
                    f"encoder {network!r} has no option {option!r}{hint} (its options: {', '.join(known)})"
                )
        features = kind(context_shape=context_shape, **options)
    return Encoder(features=features, latent=latent)
