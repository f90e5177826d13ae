"""An encoder of torch as the arrays that ``daband.handover.networks`` calculates with."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import nn

from daband.arrays import AnyArray, FloatArray
from daband.encoders import DomainNorm, Encoder
from daband.encoders.conv import ConvFeatures, normalised_pixels
from daband.encoders.mlp import MlpFeatures
from daband.learning.settings import EncoderSettings

__all__ = ["frozen_network"]


def frozen_network(
    encoder: Encoder, settings: EncoderSettings, *, domain: str, layout: str | None
) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """What a file says of an encoder that acts in one domain, and its arrays."""
    features = encoder.features
    number = 0 if domain == "source" else 1
    if type(features) is MlpFeatures:
        header, arrays = _mlp(features, number)
        last = []
    elif type(features) is ConvFeatures:
        header, arrays = _conv(features, number)
        last = list(features.map_shape)
    else:
        return _as_it_is(encoder, settings, domain=domain, layout=layout)
    first = _folded(encoder.first, encoder.normalise, number)
    if last:  # maps lie channels last here, channels first there
        weight = first[0].reshape(len(first[0]), -1, *last).transpose(0, 2, 3, 1)
        first = (weight.reshape(len(weight), -1), first[1])
    own = header.pop("layers")
    for index, (weight, bias) in enumerate([*own, first, _folded(encoder.second, None, number)]):
        arrays[f"dense.{index}.weight"], arrays[f"dense.{index}.bias"] = _single(weight), _single(bias)
    return {**header, "layers": len(own) + 2, "layout": layout}, arrays


def _mlp(features: MlpFeatures, domain: int) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    arrays: dict[str, AnyArray] = {}
    if features.normalise_input is not None:
        scale, shift = features.normalise_input.folded(domain)
        arrays["input_scale"], arrays["input_shift"] = _double(scale), _double(shift)
    layers = [
        _folded(layer, norm if isinstance(norm, DomainNorm) else None, domain)
        for layer, norm in zip(features.layers, features.norms, strict=True)
        if isinstance(layer, nn.Linear)
    ]
    return {"kind": "mlp", "layers": layers}, arrays


def _conv(features: ConvFeatures, domain: int) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    arrays: dict[str, AnyArray] = {}
    for index, (layer, norm) in enumerate(zip(features.layers, features.norms, strict=True)):
        assert isinstance(layer, nn.Conv2d)
        weight, bias = _folded(layer, norm if isinstance(norm, DomainNorm) else None, domain)
        if index == 0 and not features.normalise_image:
            weight, bias = _with_pixels(weight, bias, features.pixels)
        arrays[f"convolution.{index}.weight"], arrays[f"convolution.{index}.bias"] = _single(weight), _single(bias)
    header = {
        "kind": "conv",
        "layers": [],
        "convolutions": len(features.layers),
        "normalise_image": features.normalise_image,
        "pooled": list(features.map_shape) if features.pools else None,
    }
    if features.normalise_image:  # by the image's own mean and spread, which stand between pixels and convolution
        scale, shift = _pixel_map(features.pixels, features.context_shape[0])
        arrays["pixel_scale"], arrays["pixel_shift"] = _single(scale), _single(shift)
    return header, arrays


def _as_it_is(
    encoder: Encoder, settings: EncoderSettings, *, domain: str, layout: str | None
) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    options = {name: value for name, value in settings.options.items() if name != "module"}
    header = {
        "kind": "torch",
        "name": settings.name,
        "module": settings.options.get("module"),
        "options": options,
        "latent": asdict(settings.latent),
        "context_shape": list(encoder.context_shape),
        "domain": domain,
        "layout": layout,
    }
    return header, {name: tensor.detach().cpu().numpy() for name, tensor in encoder.state_dict().items()}


def _folded(layer: nn.Linear | nn.Conv2d, norm: DomainNorm | None, domain: int) -> tuple[FloatArray, FloatArray]:
    """Weights and biases of a layer, with the norm behind it taken in."""
    weight = _double(layer.weight)
    bias = np.zeros(len(weight)) if layer.bias is None else _double(layer.bias)
    if norm is None:
        return weight, bias
    scale, shift = (_double(part) for part in norm.folded(domain))
    return weight * scale.reshape(-1, *[1] * (weight.ndim - 1)), bias * scale + shift


def _with_pixels(weight: FloatArray, bias: FloatArray, pixels: str) -> tuple[FloatArray, FloatArray]:
    """The first convolution's weights and biases, with the normalisation of pixels in [0, 1] taken in."""
    scale, shift = (part.reshape(1, -1, 1, 1) for part in _pixel_map(pixels, weight.shape[1]))
    return weight * scale, bias + (weight * shift).sum(axis=(1, 2, 3))


def _pixel_map(pixels: str, channels: int) -> tuple[FloatArray, FloatArray]:
    """Scale and shift (channels,) that normalise pixels in [0, 1] as ``pixels`` says."""
    ends = normalised_pixels(torch.stack([torch.zeros(channels, 1, 1), torch.ones(channels, 1, 1)]), pixels)
    shift = _double(ends[0]).reshape(-1)
    return _double(ends[1]).reshape(-1) - shift, shift


def _double(tensor: torch.Tensor) -> FloatArray:
    array: FloatArray = tensor.detach().cpu().double().numpy()
    return array


def _single(array: FloatArray) -> AnyArray:
    return array.astype(np.float32)
