"""Transforms of contexts before a policy, fitted on unlabelled contexts before the first round.

They are ``PCA``, ``Standardise`` and ``Piecewise``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeAlias

from daband._arrays import AnyArray
from daband._shift import Shift
from daband.errors import InvalidInput
from daband.linear._pca import PCA, PcaStep
from daband.linear._piecewise import PIECEWISE_ARRAYS, Piecewise, PiecewiseStep
from daband.linear._standardise import Standardise, StandardiseStep

TransformStep = StandardiseStep | PcaStep | PiecewiseStep


def step_from(settings: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> TransformStep:
    """Return the step that a file describes: ``settings`` of its header, ``arrays`` by name."""
    if settings["kind"] == "pca":
        return PcaStep(arrays["centre"], arrays["axes"])
    if settings["kind"] == "piecewise":
        return PiecewiseStep(**{name: arrays[name] for name in PIECEWISE_ARRAYS}, n_inputs=int(settings["inputs"]))
    if settings["kind"] != "standardise":
        raise ValueError(f"the transform is of the unknown kind {settings['kind']!r}")
    mean, deviation, axes = arrays["mean"], arrays["deviation"], arrays.get("axes")
    return StandardiseStep(mean, deviation, axes, clip=float(settings["clip"]), scale=float(settings["scale"]))


Transform: TypeAlias = PCA | Standardise | Piecewise
_KINDS: dict[str, Any] = {"pca": PCA, "standardise": Standardise, "piecewise": Piecewise}


def as_transform(transform: Any) -> Transform | None:
    """Return a copy of the transform, which a policy can fit."""
    if transform is not None and type(transform) not in _KINDS.values():
        given = f"the class {transform.__name__}" if isinstance(transform, type) else type(transform).__name__
        raise InvalidInput(
            f"transform must be a daband.PCA(...) or a daband.Standardise(...), got {given}; apply transforms of other "
            "libraries to the data before daband sees them"
        )
    return copy.copy(transform)


def transform_settings(transform: Transform | None) -> dict[str, Any] | None:
    """Return the settings of a transform, from which ``build_transform`` makes it again."""
    if transform is None:
        return None
    kind = next(name for name, kind_class in _KINDS.items() if type(transform) is kind_class)
    return {"kind": kind, **transform.settings()}


def shift_transform(transform: Any, shift: Shift, n_features: int) -> Any:
    """Return an unfitted transform for this shift: with statistics by domain if those differ.

    Transforms with ``by_domain`` set, and fitted ones, are returned unchanged.
    """
    differs_at = shift.own_statistics(n_features)
    if transform is None or not any(differs_at) or transform.fitted or transform.by_domain:
        return transform
    if isinstance(transform, PCA):
        return PCA(transform.n_components, seed=transform.seed, by_domain=True)
    own = True if all(differs_at) else [index for index, differs in enumerate(differs_at) if differs]
    if isinstance(transform, Piecewise):
        return Piecewise(by_domain=own)
    return Standardise(components=transform.components, by_domain=own)


def build_transform(settings: Mapping[str, Any] | None) -> Transform | None:
    """Return the transform with these settings, not fitted."""
    if settings is None:
        return None
    arguments = dict(settings)
    built: Transform = _KINDS[arguments.pop("kind")](**arguments)
    return built
