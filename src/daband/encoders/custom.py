"""A custom ``torch.nn.Module`` as the network of an encoder."""

from __future__ import annotations

import copy

import torch
from torch import nn

from daband.encoders.contract import Features
from daband.errors import InvalidInput

__all__ = ["CustomFeatures"]


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

    def forward(self, contexts: torch.Tensor, *, n_source: int) -> torch.Tensor:  # noqa: ARG002 - one network for both
        features: torch.Tensor = self.module(contexts).flatten(1)
        return features
