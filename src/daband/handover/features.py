"""From contexts to what the head works on: the policy's transform, the layout of images, the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from daband.arrays import AnyArray, FloatArray, unit_scale
from daband.handover.networks import Network

__all__ = ["Features", "PcaStep", "StandardiseStep", "Step", "step_from"]


class Step(Protocol):
    """Flattened contexts (n, d) to features (n, f)."""

    def __call__(self, rows: FloatArray) -> FloatArray:
        """Features of rows."""
        ...

    def one(self, row: FloatArray) -> FloatArray:
        """The features (f,) of one row (d,)."""
        ...


class StandardiseStep:
    """What a fitted ``daband.Standardise`` does; values far outside are clipped as there, without a warning."""

    def __init__(self, settings: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> None:
        self._mean, deviation = arrays["mean"], arrays["deviation"]
        if self._mean.shape != deviation.shape or not (deviation > 0).all():
            raise ValueError("the standardisation has no deviation for every mean")
        self._axes = arrays.get("axes")
        self._factor = float(settings["scale"]) / deviation
        self._most = float(settings["clip"]) * float(settings["scale"])

    def __call__(self, rows: FloatArray) -> FloatArray:
        out = np.empty((len(rows), rows.shape[1] + 1))
        out[:, -1] = 1.0
        inner = out[:, :-1]
        np.subtract(rows, self._mean, out=inner)
        inner *= self._factor
        np.maximum(inner, -self._most, out=inner)
        np.minimum(inner, self._most, out=inner)
        if self._axes is None:
            return out
        return np.concatenate([inner @ self._axes.T, out[:, -1:]], axis=1)

    def one(self, row: FloatArray) -> FloatArray:
        """The features of one row, in fewer calls."""
        out = np.empty(len(row) + 1)
        out[-1] = 1.0
        inner = out[:-1]
        np.subtract(row, self._mean, inner)
        np.multiply(inner, self._factor, inner)
        np.maximum(inner, -self._most, inner)
        np.minimum(inner, self._most, inner)
        return out if self._axes is None else np.append(self._axes @ inner, 1.0)


class PcaStep:
    """What a fitted ``daband.PCA`` does."""

    def __init__(self, settings: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> None:  # noqa: ARG002
        self._centre, self._axes = arrays["centre"], np.ascontiguousarray(arrays["axes"].T)
        if self._axes.shape[:1] != self._centre.shape:
            raise ValueError("the axes have other dimensions than the centre")

    def __call__(self, rows: FloatArray) -> FloatArray:
        features: FloatArray = (rows - self._centre) @ self._axes
        return features

    def one(self, row: FloatArray) -> FloatArray:
        """The features of one row."""
        return self(row)


def step_from(settings: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> Step:
    """The transform that a file describes."""
    kinds: dict[str, type[StandardiseStep] | type[PcaStep]] = {"standardise": StandardiseStep, "pca": PcaStep}
    return kinds[settings["kind"]](settings, arrays)


class Features:
    """Contexts (n, *C), or (n, K, *C) with one per arm, to features (n, d) or (n, K, d), float64."""

    def __init__(
        self, *, step: Step | None, layout: str | None, network: Network | None, constant: bool, per_arm: bool
    ) -> None:
        self._step = step
        self._layout = layout
        self._network = network
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
        return self._network.one(context)

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
        latents: FloatArray = self._network(rows).reshape(*lead, -1)
        return latents
