"""Transforms in front of a policy, as plain arithmetic: what a fitted ``Standardise`` or ``PCA`` does to contexts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from daband.arrays import AnyArray, FloatArray

__all__ = ["PcaStep", "StandardiseStep", "Step", "step_from"]


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
        self.n_features = len(self._mean if self._axes is None else self._axes) + 1
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
        np.subtract(row, self._mean, out=inner)
        np.multiply(inner, self._factor, out=inner)
        np.maximum(inner, -self._most, out=inner)
        np.minimum(inner, self._most, out=inner)
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
