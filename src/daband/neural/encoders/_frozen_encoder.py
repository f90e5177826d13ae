"""A trained encoder, frozen for one domain: as arrays for numpy, or run by torch.

``freeze_encoder`` folds batch norms into the layers before them. Encoders that numpy cannot run, such as pretrained
backbones and custom modules, become a ``TorchNetwork``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import nn

from daband._arrays import AnyArray, FloatArray
from daband.errors import InvalidInput
from daband.neural.encoders._conv import ConvFeatures
from daband.neural.encoders._domain_norm import DomainNorm
from daband.neural.encoders._encoder import CustomFeatures, Encoder, InferenceEncoder, LatentSettings, build_encoder
from daband.neural.encoders._mlp import MlpFeatures
from daband.serving._numpy_networks import Network, network_from, torch_loaders


def freeze_encoder(encoder: Encoder, *, name: str, options: Mapping[str, Any], domain: int) -> Network:
    """Return an encoder frozen for one domain (its index); it was built from ``name`` and ``options``."""
    features = encoder.features
    if type(features) is MlpFeatures:
        header, arrays = _mlp(features, domain)
        last = []
    elif type(features) is ConvFeatures:
        header, arrays = _conv(features, domain)
        last = list(features.map_shape)
    else:
        settings = {
            "kind": "torch", "name": name, "module": options.get("module"),
            "options": {key: value for key, value in options.items() if key != "module"},
            "latent": asdict(encoder.latent), "context_shape": list(encoder.context_shape), "domain": domain,
        }  # fmt: skip
        return TorchNetwork(settings, copy.deepcopy(encoder).to("cpu"))
    first = _folded(encoder.first, None, domain)
    if last:  # maps are channels last in numpy, channels first in torch
        weight = first[0].reshape(len(first[0]), -1, *last).transpose(0, 2, 3, 1)
        first = (weight.reshape(len(weight), -1), first[1])
    layers = [*header.pop("layers"), first, _folded(encoder.second, None, domain)]
    for index, (weight, bias) in enumerate(layers):
        arrays[f"dense.{index}.weight"], arrays[f"dense.{index}.bias"] = _single(weight), _single(bias)
    return network_from({**header, "layers": len(layers)}, arrays)


class TorchNetwork:
    """An encoder of ``daband.neural.encoders`` for contexts of one domain."""

    def __init__(self, settings: Mapping[str, Any], encoder: Encoder) -> None:
        self.settings = settings
        tensors = encoder.state_dict().items()
        self.arrays: Mapping[str, AnyArray] = {name: tensor.detach().numpy() for name, tensor in tensors}
        self._encoder = InferenceEncoder(encoder, shared=False, device=torch.device("cpu"))
        self._domain = int(settings["domain"])
        self.dimension = encoder.dimension

    @classmethod
    def from_file(cls, settings: Mapping[str, Any], arrays: Mapping[str, AnyArray], module: Any) -> TorchNetwork:
        """Return the network with the weights of a file; ``module`` is a custom encoder, if it has one."""
        if settings["name"] == "custom" and module is None:
            raise InvalidInput(
                f"the policy has a custom encoder ({settings['module']}), of which a file holds only the weights; "
                "pass the module: daband.load_deployed(path, encoder=module)",
                argument="encoder",
            )
        if settings["name"] != "custom" and module is not None:
            text = f"encoder was given, but the policy has its own ({settings['name']})"
            raise InvalidInput(text, argument="encoder")
        options = dict(settings["options"])
        if settings["name"] == "pretrained":
            options["weights"] = "random"  # the file's weights are loaded below

        def build() -> Encoder:
            with torch.random.fork_rng(devices=[]):
                return build_encoder(
                    settings["name"] if module is None else module,
                    context_shape=tuple(settings["context_shape"]),
                    latent=LatentSettings(**settings["latent"]),
                    **options,
                )

        with torch.device("meta"):  # sizes only: a header may claim more than the file holds
            sizes = {name: tuple(tensor.shape) for name, tensor in build().state_dict().items()}
        shapes = {name: array.shape for name, array in arrays.items()}
        if sizes != shapes:
            name = next(name for name in {**sizes, **shapes} if sizes.get(name) != shapes.get(name))
            raise ValueError(f"{name} should have shape {sizes.get(name)}, the file has {shapes.get(name)}")
        encoder = build()
        encoder.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in arrays.items()})
        return cls(settings, encoder.to("cpu"))

    @property
    def custom_module(self) -> nn.Module | None:
        """The user's module, which loading needs; None for encoders of daband."""
        features = self._encoder.network.features
        return features.module if isinstance(features, CustomFeatures) else None

    def check_inputs(self, shape: tuple[int, ...]) -> None:
        taken = tuple(self._encoder.network.context_shape)
        if taken != shape:
            raise ValueError(f"the encoder takes {taken}, contexts have shape {shape}")

    def __call__(self, contexts: AnyArray) -> FloatArray:
        return self._encoder.encode(contexts, self._domain)


torch_loaders.append(TorchNetwork.from_file)


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
        if index == 0 and features.pixels == "symmetric":  # the first layer includes 2 x - 1
            weight, bias = 2 * weight, bias - weight.sum(axis=(1, 2, 3))
        arrays[f"convolution.{index}.weight"], arrays[f"convolution.{index}.bias"] = _single(weight), _single(bias)
    pooled = list(features.map_shape) if features.pools else None
    return {"kind": "conv", "layers": [], "convolutions": len(features.layers), "pooled": pooled}, arrays


def _folded(layer: nn.Linear | nn.Conv2d, norm: DomainNorm | None, domain: int) -> tuple[FloatArray, FloatArray]:
    """Return weights and biases of a layer that include the norm after it."""
    weight = _double(layer.weight)
    bias = np.zeros(len(weight)) if layer.bias is None else _double(layer.bias)
    if norm is None:
        return weight, bias
    scale, shift = (_double(part) for part in norm.folded(domain))
    return weight * scale.reshape(-1, *[1] * (weight.ndim - 1)), bias * scale + shift


def _double(tensor: torch.Tensor) -> FloatArray:
    return tensor.detach().cpu().double().numpy()


def _single(array: FloatArray) -> AnyArray:
    return array.astype(np.float32)
