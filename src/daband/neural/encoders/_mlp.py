"""``mlp``: dense layers for vectors, and for small contexts that are flattened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from daband._arrays import check_memory
from daband._domain_names import DomainNames
from daband.errors import InvalidInput
from daband.neural.encoders._domain_norm import DomainNorm
from daband.neural.encoders._encoder import Features, dense, encoders


@encoders.register("mlp")
class MlpFeatures(Features):
    """Dense layers over the flattened context, each batch-normalised.

    ``normalise_input`` standardises every input feature, which raw columns of different units need. ``statistics`` is
    an argument of ``DomainNorm``.
    """

    stackable = True

    def __init__(
        self,
        *,
        context_shape: tuple[int, ...],
        widths: tuple[int, ...] = (256,),
        normalise_input: bool = True,
        normalise_hidden: bool = True,
        statistics: str = "own",
        domains: DomainNames | None = None,
    ) -> None:
        super().__init__()
        if not context_shape or min(context_shape) < 1:
            raise InvalidInput(f"encoder 'mlp' needs contexts with at least one number each, got shape {context_shape}")
        if not widths or min(widths) < 1:
            raise InvalidInput(f"widths must be positive, got {widths}")
        self.context_shape = tuple(context_shape)
        inputs = math.prod(context_shape)
        # Five copies in single precision: the parameters, their EMA, the gradient, and Adam's two moments.
        check_memory(4.0 * 5 * inputs * widths[0], f"encoder 'mlp' of {widths[0]} units on {inputs} inputs")
        self.width = widths[-1]
        shared: dict[str, Any] = {"domains": domains, "statistics": statistics}
        norm = DomainNorm(channels=inputs, affine=False, **shared)
        self.normalise_input = norm if normalise_input else None
        self.layers = nn.ModuleList()
        self.norms = nn.ModuleList()
        for width in widths:
            self.layers.append(nn.Linear(inputs, width))
            norm = DomainNorm(channels=width, **shared)
            self.norms.append(norm if normalise_hidden else nn.Identity())
            inputs = width

    def forward(self, contexts: torch.Tensor, *, domain_rows: Sequence[int], runs: int = 1) -> torch.Tensor:
        hidden = contexts.flatten(1)
        if self.normalise_input is not None:
            hidden = self.normalise_input(hidden, domain_rows=domain_rows)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            assert isinstance(layer, nn.Linear)
            hidden = dense(layer, hidden, runs=runs)
            if isinstance(norm, DomainNorm):
                hidden = norm(hidden, domain_rows=domain_rows)
            hidden = functional.relu(hidden)
        return hidden
