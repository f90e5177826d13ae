"""An encoder from the name of a network, or around a custom module."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence

import torch
from torch import nn

from daband.domain_names import DomainNames
from daband.encoders.contract import Encoder, Features, LatentSettings, encoders
from daband.errors import InvalidInput, did_you_mean
from daband.image_layout import image_layout

__all__ = ["CustomFeatures", "build_encoder"]


def build_encoder(
    network: str | nn.Module,
    *,
    context_shape: tuple[int, ...],
    latent: LatentSettings | None = None,
    domains: DomainNames | None = None,
    **options: object,
) -> Encoder:
    """The encoder with the network of this registered name, or around a custom module, for contexts of one shape.

    "auto" is "conv" for images (channels, height, width) and "mlp" for everything else. The other keywords are the
    network's own settings. ``domains`` are those that statistics are kept for: a source and a target by default.
    """
    latent = LatentSettings() if latent is None else latent
    if isinstance(network, nn.Module):
        features: Features = CustomFeatures(module=network, context_shape=context_shape, **options)  # type: ignore[arg-type]
    else:
        if network == "auto":
            network = "conv" if image_layout(context_shape) == "channels_first" else "mlp"
        kind = encoders.get(network)
        known = [option for option in inspect.signature(kind).parameters if option not in ("context_shape", "domains")]
        for option in options:
            if option not in known:
                hint = did_you_mean(option, known)
                raise InvalidInput(
                    f"encoder {network!r} has no option {option!r}{hint} (its options: {', '.join(known)})"
                )
        if "domains" in inspect.signature(kind).parameters:
            options["domains"] = domains
        features = kind(context_shape=context_shape, **options)
    statistics = str(options.get("statistics", "own"))
    return Encoder(features=features, latent=latent, domains=domains, statistics=statistics)


class CustomFeatures(Features):
    """A copy of any module from (B, *context_shape) to (B, ...), flattened; its normalisation layers stay as they are.

    With ``trainable=False`` the module is held in evaluation mode and receives no gradient. A trainable module with
    batch norm of its own would make a batch differ from its singles while training, so its norms are always held to
    their running statistics.
    """

    def __init__(self, *, module: nn.Module, context_shape: tuple[int, ...], trainable: bool = True) -> None:
        super().__init__()
        module = copy.deepcopy(module)  # policies that are given one network must not train one another's
        self.module = module
        self.trainable = trainable
        self.context_shape = tuple(context_shape)
        if not trainable:
            module.requires_grad_(False)
        module.eval()  # a trial must leave no trace in statistics that the module keeps
        reference = next(iter(module.parameters()), torch.zeros(()))
        with torch.no_grad():
            probe = torch.zeros((1, *context_shape), device=reference.device, dtype=reference.dtype)
            try:
                features = module(probe)
            except (RuntimeError, ValueError, IndexError) as error:
                raise InvalidInput(
                    f"the encoder cannot take contexts of shape {tuple(context_shape)}: {error}"
                ) from None
        if not isinstance(features, torch.Tensor) or features.ndim < 2 or features.shape[0] != 1:
            raise InvalidInput("an encoder module must return one tensor (B, ...) for contexts (B, *context_shape)")
        self.width = features[0].numel()
        self.train(self.training)

    def train(self, mode: bool = True) -> CustomFeatures:
        super().train(mode)
        if not self.trainable:
            self.module.eval()
        for module in self.module.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    def forward(self, contexts: torch.Tensor, *, domain_rows: Sequence[int]) -> torch.Tensor:  # noqa: ARG002 - one for all
        features: torch.Tensor = self.module(contexts).flatten(1)
        return features
