"""What fitted transforms do to contexts, as arithmetic on arrays: for training and for exported policies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from daband.arrays import AnyArray, FloatArray

__all__ = ["PcaStep", "StandardiseStep", "TransformStep", "step_from"]

_SMALLEST_DEVIATION = 1e-200
"""No number that a policy accepts overflows when it is divided by a larger one."""


@dataclass(frozen=True)
class StandardiseStep:
    """Flat contexts (n, d) to (n, d + 1): centred, divided by deviations, clipped, scaled; and a constant 1.

    With ``axes`` (m, d) the standardised numbers are projected on them, which gives (n, m + 1).
    """

    mean: FloatArray
    deviation: FloatArray
    axes: FloatArray | None
    clip: float
    scale: float
    kind: ClassVar[str] = "standardise"

    def __post_init__(self) -> None:
        if self.mean.ndim != 1 or self.deviation.shape != self.mean.shape:
            raise ValueError(f"mean has shape {self.mean.shape}, deviation {self.deviation.shape}")
        if self.axes is not None and (self.axes.ndim != 2 or self.axes.shape[1] != len(self.mean)):
            raise ValueError(f"axes have shape {self.axes.shape}, there are {len(self.mean)} means")
        if not ((self.deviation > 0).all() and np.isfinite(self.deviation).all() and np.isfinite(self.mean).all()):
            raise ValueError("means must be finite and deviations positive")
        if not (0 < self.clip < np.inf and 0 < self.scale < np.inf):
            raise ValueError(f"clip and scale must be positive, got {self.clip} and {self.scale}")

    @property
    def n_inputs(self) -> int:
        """Numbers of a context."""
        return len(self.mean)

    @property
    def n_features(self) -> int:
        """Numbers that a context becomes."""
        return len(self.mean if self.axes is None else self.axes) + 1

    def __call__(self, rows: FloatArray, watch: Callable[[FloatArray, FloatArray], None] | None = None) -> FloatArray:
        """Features of rows; ``watch`` sees the rows, and what they are in deviations before these are clipped."""
        dimensions = len(self.mean)
        out = np.empty((len(rows), dimensions + 1))
        out[:, -1] = 1.0
        inner = out[:, :-1]
        np.subtract(rows, self.mean, out=inner)
        if self._may_overflow:
            with np.errstate(over="ignore"):  # what overflows is clipped
                inner /= self.deviation
        else:
            inner /= self.deviation
        if watch is not None:
            watch(rows, inner)
        lowest, highest, scale = self._bounds
        np.maximum(inner, lowest, out=inner)
        np.minimum(inner, highest, out=inner)
        inner *= scale
        if self.axes is None:
            return out
        return np.concatenate([inner @ self.axes.T, out[:, -1:]], axis=1)

    @functools.cached_property
    def _bounds(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Lowest and highest deviation and the scale, as arrays: numpy converts numbers anew in every call."""
        return np.array(-self.clip), np.array(self.clip), np.array(self.scale)

    @functools.cached_property
    def _may_overflow(self) -> bool:
        return bool(self.deviation.min() < _SMALLEST_DEVIATION)

    def settings(self) -> dict[str, Any]:
        """What a file's header says of it."""
        return {"kind": self.kind, "clip": self.clip, "scale": self.scale}

    def arrays(self) -> dict[str, AnyArray]:
        """What a file holds of it."""
        arrays = {"mean": self.mean, "deviation": self.deviation}
        return arrays if self.axes is None else {**arrays, "axes": self.axes}


@dataclass(frozen=True)
class PcaStep:
    """Flat contexts (n, d), centred and projected on ``axes`` (m, d): (n, m)."""

    centre: FloatArray
    axes: FloatArray
    kind: ClassVar[str] = "pca"

    def __post_init__(self) -> None:
        if self.centre.ndim != 1 or self.axes.ndim != 2 or self.axes.shape[1] != len(self.centre):
            raise ValueError(f"axes have shape {self.axes.shape}, the centre {self.centre.shape}")
        if not (np.isfinite(self.centre).all() and np.isfinite(self.axes).all()):
            raise ValueError("centre and axes must be finite")

    @property
    def n_inputs(self) -> int:
        """Numbers of a context."""
        return len(self.centre)

    @property
    def n_features(self) -> int:
        """Numbers that a context becomes."""
        return len(self.axes)

    def __call__(self, rows: FloatArray) -> FloatArray:
        features: FloatArray = (rows - self.centre).dot(self.axes.T)
        return features

    def settings(self) -> dict[str, Any]:
        """What a file's header says of it."""
        return {"kind": self.kind}

    def arrays(self) -> dict[str, AnyArray]:
        """What a file holds of it."""
        return {"centre": self.centre, "axes": self.axes}


TransformStep = StandardiseStep | PcaStep


def step_from(settings: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> TransformStep:
    """The step that a file describes: ``settings`` of its header, ``arrays`` by name."""
    if settings["kind"] == "pca":
        return PcaStep(arrays["centre"], arrays["axes"])
    if settings["kind"] != "standardise":
        raise ValueError(f"the transform is of the unknown kind {settings['kind']!r}")
    mean, deviation, axes = arrays["mean"], arrays["deviation"], arrays.get("axes")
    return StandardiseStep(mean, deviation, axes, clip=float(settings["clip"]), scale=float(settings["scale"]))
