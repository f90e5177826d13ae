"""From contexts to what the head works on: the policy's transform, the layout of images, network and linear part."""

from __future__ import annotations

import numpy as np

from daband.arrays import AnyArray, FloatArray, unit_scale
from daband.handover.networks import Network
from daband.handover.transforms import Step

__all__ = ["HeadFeatures"]


class HeadFeatures:
    """Contexts (n, *C), or (n, K, *C) with one per arm, to features (n, d) or (n, K, d), float64."""

    def __init__(
        self,
        *,
        step: Step | None,
        layout: str | None,
        network: Network | None,
        linear_part: Step | None,
        constant: bool,
        per_arm: bool,
    ) -> None:
        self._step = step
        self._layout = layout
        self._network = network
        self._linear_part = linear_part
        self._constant = constant
        self._per_arm = per_arm

    def one(self, context: AnyArray) -> FloatArray:
        """The features of one row, (d,) or (K, d)."""
        if self._constant or self._per_arm:
            row: FloatArray = self.many(context[None])[0]
            return row
        if self._step is not None:
            context = self._step.one(unit_scale(context).reshape(-1))
        if self._network is None:
            flat: FloatArray = unit_scale(context).reshape(-1)
            return flat
        if self._layout == "channels_last":
            context = np.moveaxis(context, -1, -3)
        elif self._layout == "grey":
            context = context[None]
        latent = self._network.one(context)
        if self._linear_part is None:
            return latent
        return np.concatenate([latent, self._linear_part.one(unit_scale(context).reshape(-1))])

    def many(self, contexts: AnyArray) -> FloatArray:
        """The features of several rows."""
        if self._constant:
            return np.ones((len(contexts), 1))
        lead = contexts.shape[: 2 if self._per_arm else 1]
        rows = contexts.reshape(-1, *contexts.shape[len(lead) :])
        if self._step is not None:
            rows = self._step(unit_scale(rows.reshape(len(rows), -1)))
        if self._network is None:
            return unit_scale(rows).reshape(*lead, -1)
        if self._layout == "channels_last":
            rows = np.moveaxis(rows, -1, -3)
        elif self._layout == "grey":
            rows = rows[:, None]
        latents = self._network(rows)
        if self._linear_part is not None:
            flat = unit_scale(rows.reshape(len(rows), -1))
            latents = np.concatenate([latents, self._linear_part(flat)], axis=1)
        both: FloatArray = latents.reshape(*lead, -1)
        return both
