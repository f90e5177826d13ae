"""Encoders that have no plain form here, such as pretrained backbones and custom modules: run by torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from daband.arrays import AnyArray, FloatArray
from daband.encoders import LatentSettings, build_encoder
from daband.errors import InvalidInput

__all__ = ["TorchNetwork"]


class TorchNetwork:
    """An encoder of ``daband.encoders``, with the weights of a file, for contexts of one domain.

    ``module`` is the network where it is a custom one; a file holds its weights alone.
    """

    def __init__(self, settings: Mapping[str, Any], arrays: Mapping[str, AnyArray], module: Any) -> None:
        if settings["name"] == "custom" and module is None:
            raise InvalidInput(
                f"the policy has a custom encoder ({settings['module']}), of which a file holds the weights alone; "
                "pass the module: daband.load_deployed(path, encoder=module)"
            )
        if settings["name"] != "custom" and module is not None:
            raise InvalidInput(f"encoder was given, but the policy has its own ({settings['name']})")
        options = dict(settings["options"])
        if settings["name"] == "pretrained":
            options["weights"] = "random"  # those of the file follow
        with torch.random.fork_rng(devices=[]):
            encoder = build_encoder(
                settings["name"] if module is None else module,
                context_shape=tuple(settings["context_shape"]),
                latent=LatentSettings(**settings["latent"]),
                **options,
            )
        encoder.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in arrays.items()})
        self._encoder = encoder.to("cpu").requires_grad_(False).eval()
        self._source = settings["domain"] == "source"
        self.dimension = encoder.dimension

    def __call__(self, contexts: AnyArray) -> FloatArray:
        tensor = torch.from_numpy(np.ascontiguousarray(contexts))
        if tensor.dtype != torch.uint8:
            tensor = tensor.to(torch.float32)
        with torch.inference_mode():
            latent = self._encoder(tensor, domain_rows=(len(tensor),) if self._source else (0, len(tensor))).latent
        latents: FloatArray = latent.numpy().astype(np.float64)
        latents /= np.maximum(np.linalg.norm(latents, axis=1, keepdims=True), 1e-12)
        return latents

    def one(self, context: AnyArray) -> FloatArray:
        """The latent of one context."""
        latent: FloatArray = self(context[None])[0]
        return latent
