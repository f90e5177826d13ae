"""Define the network ``mlp``: dense layers for vectors. Contexts of any other shape are
flattened.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from daband.base._arrays import check_memory
from daband.errors import InvalidInput
from daband.features._domain_names import DomainNames
from daband.neural.encoders._domain_norm import DomainNorm
from daband.neural.encoders._encoder import FeatureNetwork, encoders


@encoders.register("mlp")
class MlpFeatures(FeatureNetwork):
    """Dense layers with ReLU on flattened contexts.

    Args:
        context_shape: the shape of one context.
        widths: the number of units of each layer.
        normalise_input: standardise every input. This is needed if inputs have different units.
        normalise_hidden: apply a batch norm after every layer.
        statistics: "own" if each domain is normalised by its own statistics, "source" if all
            domains use the source's.
        domains: the names of the domains.
    """

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
        if not widths or min(widths) < 1:
            raise InvalidInput(f"widths must be positive, got {widths}")
        self.context_shape = tuple(context_shape)
        n_inputs = math.prod(context_shape)
        # Five copies in single precision: the parameters, their EMA, the gradient, and Adam's two
        # moments.
        check_memory(
            4.0 * 5 * n_inputs * widths[0],
            f"encoder 'mlp' of {widths[0]} units on {n_inputs} inputs",
        )
        self.width = widths[-1]
        norm_settings: dict[str, Any] = {"domains": domains, "statistics": statistics}
        input_norm = DomainNorm(n_channels=n_inputs, affine=False, **norm_settings)
        #: The norm of the inputs, or None. Saved policies contain its buffers under this name.
        self.normalise_input = input_norm if normalise_input else None
        self.layers = nn.ModuleList()
        self.norms = nn.ModuleList()
        for layer_inputs, width in itertools.pairwise((n_inputs, *widths)):
            self.layers.append(nn.Linear(layer_inputs, width))
            norm = DomainNorm(n_channels=width, **norm_settings)
            self.norms.append(norm if normalise_hidden else nn.Identity())

    def forward(self, contexts: Tensor, *, rows_per_domain: Sequence[int]) -> Tensor:
        features = contexts.flatten(1)
        if self.normalise_input is not None:
            features = self.normalise_input(features, rows_per_domain=rows_per_domain)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            features = layer(features)
            if isinstance(norm, DomainNorm):
                features = norm(features, rows_per_domain=rows_per_domain)
            features = functional.relu(features)
        return features
