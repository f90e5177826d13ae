"""The interface of encoders: from contexts to a latent of unit norm, and wider features for alignment.

A registered network returns *features*; ``Encoder`` appends the two dense layers of the paper. By default the
features before those layers are aligned, which changes target accuracy far more than aligning the small latent.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from daband._arguments import one_of
from daband._arrays import AnyArray, FloatArray
from daband._domain_names import DomainNames
from daband._image_layout import image_layout
from daband._registry import Registry
from daband.errors import InvalidInput, did_you_mean
from daband.neural.encoders._domain_norm import DomainNorm


class Encoded(NamedTuple):
    """The output of an encoder for B contexts."""

    #: (B, d), each row of unit norm.
    latent: torch.Tensor
    #: (B, w), the features that are aligned.
    alignment: torch.Tensor


class Features(nn.Module):
    """The part of an encoder that differs between networks: (B, *context_shape) to (B, width)."""

    context_shape: tuple[int, ...]
    width: int
    #: True if ``forward`` takes ``runs``. Contexts are then (B, runs, *context_shape), the parameters of the runs
    #: are adjacent along the first dimension, and features are (B, runs * width). All parameters must be trained,
    #: and all buffers must belong to ``DomainNorm``; runs must be independent.
    stackable: ClassVar[bool] = False

    def forward(self, contexts: torch.Tensor, *, domain_rows: Sequence[int]) -> torch.Tensor:
        """Return features; the first ``domain_rows[0]`` contexts come from the first domain, and so on."""
        raise NotImplementedError


def dense(layer: nn.Linear, rows: torch.Tensor, *, runs: int) -> torch.Tensor:
    """Apply ``layer`` to (B, runs * inputs), each run's part by its own weights: (B, runs * outputs)."""
    if runs == 1:
        return layer(rows)
    weight = layer.weight.view(runs, -1, layer.weight.shape[-1])
    apart = rows.view(len(rows), runs, -1).transpose(0, 1)
    out = torch.baddbmm(layer.bias.view(runs, 1, -1), apart, weight.transpose(1, 2))
    return out.transpose(0, 1).reshape(len(rows), -1)


@dataclass(frozen=True)
class LatentSettings:
    """The two dense layers that every encoder ends in."""

    dimension: int = 64
    hidden: int = 100
    #: The features that are aligned: "features" (before the dense layers) or "latent" (the paper).
    alignment: str = "features"

    def __post_init__(self) -> None:
        for name in ("dimension", "hidden"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"latent {name} must be at least 1, got {getattr(self, name)}")
        one_of("latent alignment", self.alignment, ("features", "latent"))


class Encoder(nn.Module):
    """A network, two dense layers, and a latent of unit norm."""

    def __init__(self, *, features: Features, latent: LatentSettings) -> None:
        super().__init__()
        self.features = features
        self.latent = latent
        self.first = nn.Linear(features.width, latent.hidden)
        self.second = nn.Linear(latent.hidden, latent.dimension)

    @property
    def context_shape(self) -> tuple[int, ...]:
        """The shape of one context."""
        return self.features.context_shape

    @property
    def dimension(self) -> int:
        """The width d of the latent."""
        return self.latent.dimension

    @property
    def alignment_width(self) -> int:
        """The width w of the alignment."""
        return self.features.width if self.latent.alignment == "features" else self.latent.dimension

    def forward(self, contexts: torch.Tensor, *, domain_rows: Sequence[int] | None = None, runs: int = 1) -> Encoded:
        """Encode (B, *context_shape), ``domain_rows[i]`` of them from domain i; by default all from the first.

        With ``runs`` above 1, contexts are (B, runs, *context_shape), parameters and buffers belong to all runs (see
        ``Features.stackable``), and outputs are (B, runs, ...).
        """
        lead = () if runs == 1 else (runs,)
        if tuple(contexts.shape[1:]) != (*lead, *self.context_shape):
            raise InvalidInput(f"contexts must have shape (B, *{self.context_shape}), got {tuple(contexts.shape)}")
        domain_rows = (len(contexts),) if domain_rows is None else domain_rows
        more = {} if runs == 1 else {"runs": runs}
        wide = self.features(unit_range(contexts), domain_rows=domain_rows, **more)
        wide, kind = wide.to(self.first.weight.dtype), wide.device.type
        # The dense layers are too small to gain from lower precision.
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
            latent = dense(self.second, functional.relu(dense(self.first, wide, runs=runs)), runs=runs)
            if runs > 1:
                latent, wide = latent.view(len(latent), runs, -1), wide.view(len(wide), runs, -1)
            latent = unit_norm(latent)
        return Encoded(latent, wide if self.latent.alignment == "features" else latent)


def unit_norm(rows: torch.Tensor) -> torch.Tensor:
    """Divide rows (..., d) by their norms, except rows of zeros; the shape does not change."""
    return _UnitNorm.apply(rows)  # type: ignore[no-untyped-call]


class _UnitNorm(torch.autograd.Function):
    """The gradient is the part orthogonal to the unit vector; autograd needs three times as many operations."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_(min=1e-12)
        unit: torch.Tensor = rows / norm
        ctx.save_for_backward(unit, norm)
        return unit

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        unit, norm = ctx.saved_tensors
        along = (gradients[0] * unit).sum(dim=-1, keepdim=True)
        return torch.addcmul(gradients[0], along, unit, value=-1) / norm


def unit_range(contexts: torch.Tensor) -> torch.Tensor:
    """Return contexts as floats; ``uint8`` is read as an image and scaled from 0..255 to [0, 1]."""
    if contexts.dtype == torch.uint8:
        return contexts / _BYTE  # in one pass, to float32 for any default type of torch
    return contexts if contexts.is_floating_point() else contexts.to(torch.float32)


_BYTE = torch.tensor(255.0, dtype=torch.float32)

BuildFeatures = Callable[..., Features]
encoders: Registry[BuildFeatures] = Registry("encoder", "daband.neural.encoders")


#: The maximum number of contexts that are encoded together.
_ROWS = 2048
#: The maximum numbers of contexts encoded together on the CPU, so that the output of a layer stays in the cache.
_NUMBERS = 1 << 18


def domain_rows(domain: int, rows: int) -> tuple[int, ...]:
    """Return the number of rows of each domain if all ``rows`` come from one domain."""
    return (0,) * domain + (rows,)


class InferenceEncoder:
    """Encodes contexts for the head. Nothing changes ``network``, and encoding changes no state of the process."""

    def __init__(self, network: Encoder, *, shared: bool, device: torch.device) -> None:
        for module in network.modules():
            if isinstance(module, DomainNorm):
                module.frozen = {}
        self.network = network.requires_grad_(False).eval()
        self.shared = shared
        self.device = device

    def encode(self, contexts: AnyArray, domain: int) -> FloatArray:
        """Return features for the head, float64 and of unit norm: (B, d), or (B, K, d) for shared arms."""
        tensor = torch.from_numpy(np.ascontiguousarray(contexts))
        if tensor.dtype != torch.uint8:
            tensor = tensor.to(torch.float32)
        lead = tensor.shape[:2] if self.shared else tensor.shape[:1]
        flat = tensor.reshape(-1, *tensor.shape[len(lead) :])
        rows = _ROWS
        if self.device.type == "cpu":
            rows = min(rows, max(64, _NUMBERS // math.prod(flat.shape[1:])))
        pieces = []
        with torch.no_grad():
            for start in range(0, len(flat), rows):
                part = flat[start : start + rows].to(self.device)
                given = _filled_up(part) if self.device.type == "cuda" else part
                latent = self.network(given, domain_rows=domain_rows(domain, len(given))).latent
                pieces.append(latent[: len(part)])
        features: FloatArray = torch.cat(pieces).cpu().numpy().astype(np.float64)
        features /= np.maximum(np.linalg.norm(features, axis=-1, keepdims=True), 1e-12)  # exactly 1 after float32
        return features.reshape(*lead, -1)


def _filled_up(contexts: torch.Tensor) -> torch.Tensor:
    """Append copies of the first context up to a power of two: GPU libraries plan again for each number of rows."""
    more = (1 << (len(contexts) - 1).bit_length()) - len(contexts)
    return torch.cat([contexts, contexts[:1].expand(more, *contexts.shape[1:])]) if more else contexts


def build_encoder(
    network: str | nn.Module,
    *,
    context_shape: tuple[int, ...],
    latent: LatentSettings | None = None,
    domains: DomainNames | None = None,
    **options: object,
) -> Encoder:
    """Return the encoder with the network of this name, or with a custom module, for contexts of one shape.

    "auto" is "conv" for images (channels, height, width) and "mlp" for all other contexts. ``options`` are settings of
    the network. ``domains`` are the domains with statistics: a source and a target by default.
    """
    if isinstance(network, nn.Module):
        features: Features = CustomFeatures(module=network, context_shape=context_shape, **options)  # type: ignore[arg-type]
    else:
        if network == "auto":
            network = "conv" if image_layout(context_shape) == "channels_first" else "mlp"
        kind = encoders.get(network)
        takes = inspect.signature(kind).parameters
        offered = [option for option in takes if option not in ("context_shape", "domains")]
        for option in options:
            if option not in offered:
                hint = f"{did_you_mean(option, offered)} (its options: {', '.join(offered)})"
                raise InvalidInput(f"encoder {network!r} has no option {option!r}{hint}")
        if "domains" in takes:
            options["domains"] = domains
        features = kind(context_shape=context_shape, **options)
    return Encoder(features=features, latent=LatentSettings() if latent is None else latent)


class CustomFeatures(Features):
    """A copy of a custom module from (B, *context_shape) to (B, ...), flattened.

    With ``trainable=False`` the module stays in evaluation mode and receives no gradient. Batch norms of the module
    always use their running statistics, so that training and decisions have the same features.
    """

    def __init__(self, *, module: nn.Module, context_shape: tuple[int, ...], trainable: bool = True) -> None:
        super().__init__()
        module = copy.deepcopy(module)  # policies with the same network must not train each other's copy
        self.module = module
        self.trainable = trainable
        self.context_shape = tuple(context_shape)
        if not trainable:
            module.requires_grad_(False)
        module.eval()  # the trial call must not change statistics of the module
        reference = next(iter(module.parameters()), torch.zeros(()))
        with torch.no_grad():
            probe = torch.zeros((1, *context_shape), device=reference.device, dtype=reference.dtype)
            try:
                features = module(probe)
            except (RuntimeError, ValueError, IndexError) as error:
                raise InvalidInput(f"the encoder cannot take contexts of shape {self.context_shape}: {error}") from None
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

    def forward(self, contexts: torch.Tensor, *, domain_rows: Sequence[int]) -> torch.Tensor:
        return self.module(contexts).flatten(1)
