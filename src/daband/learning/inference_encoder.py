"""The encoder that acts: a copy that training does not touch, so that threads may encode while another one trains."""

from __future__ import annotations

import math

import numpy as np
import torch

from daband.arrays import AnyArray, FloatArray
from daband.encoders import Encoder, domain_rows

__all__ = ["InferenceEncoder"]

_ROWS = 2048
_NUMBERS = 1 << 18
"""How many numbers of contexts are encoded at a time on the CPU: the output of a layer then stays in the cache."""


class InferenceEncoder:
    """Encodes contexts for the head. Nothing changes ``network``, and encoding changes no state of the process."""

    def __init__(self, network: Encoder, *, shared: bool, device: torch.device) -> None:
        self.network = network.requires_grad_(False).eval()
        self.shared = shared
        self.device = device

    def encode(self, contexts: AnyArray | torch.Tensor, domain: int) -> FloatArray:
        """Latents for the head of contexts of a domain, float64: (B, d), or (B, K, d) for shared arms."""
        tensor = contexts if isinstance(contexts, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(contexts))
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
        latents: FloatArray = torch.cat(pieces).cpu().numpy().astype(np.float64)
        # Norms of exactly one, also behind float32: the head's algebra counts on it.
        latents /= np.maximum(np.linalg.norm(latents, axis=1, keepdims=True), 1e-12)
        return latents.reshape(*lead, -1)


def _filled_up(contexts: torch.Tensor) -> torch.Tensor:
    """Contexts and copies of the first up to a power of two: a GPU's libraries plan anew for every number of rows."""
    more = (1 << (len(contexts) - 1).bit_length()) - len(contexts)
    return torch.cat([contexts, contexts[:1].expand(more, *contexts.shape[1:])]) if more else contexts
