"""Gradient reversal: the identity in the forward pass, a negated gradient in the backward pass."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["reverse_gradient"]


class _Reversal(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(features: torch.Tensor, strength: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - the way back needs it
        return features.view_as(features)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (strength,) = ctx.saved_tensors
        return -strength * gradients[0], None


def reverse_gradient(features: torch.Tensor, strength: torch.Tensor) -> torch.Tensor:
    """``features``, whose gradient arrives multiplied by ``-strength``, a scalar tensor."""
    reversed_features: torch.Tensor = _Reversal.apply(features, strength)  # type: ignore[no-untyped-call]
    return reversed_features
