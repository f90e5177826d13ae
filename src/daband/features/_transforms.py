"""Build, save and load the transforms that a policy applies to contexts: ``PCA``, ``Standardise``
and ``Piecewise``.

A transform is fitted on unlabelled contexts before the first round. It then has a *step* for each
domain. Exported files contain these steps.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeAlias

from daband.base._arrays import AnyArray
from daband.errors import InvalidInput
from daband.features._pca import PCA, PcaStep
from daband.features._piecewise import PIECEWISE_ARRAY_NAMES, Piecewise, PiecewiseStep
from daband.features._shift import Shift
from daband.features._standardise import Standardise, StandardiseStep

#: A fitted transform for one domain.
TransformStep = StandardiseStep | PcaStep | PiecewiseStep


def build_step(settings: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> TransformStep:
    """Return the fitted transform that a file describes by the ``settings`` in its header and its
    ``arrays``.
    """
    if settings["kind"] == "pca":
        return PcaStep(arrays["centre"], arrays["axes"])
    if settings["kind"] == "piecewise":
        return PiecewiseStep(
            **{name: arrays[name] for name in PIECEWISE_ARRAY_NAMES},
            n_inputs=int(settings["inputs"]),
        )
    if settings["kind"] != "standardise":
        raise ValueError(
            f"the transform must be 'pca', 'piecewise' or 'standardise', got {settings['kind']!r}"
        )
    mean = arrays["mean"]
    deviation = arrays["deviation"]
    axes = arrays.get("axes")
    return StandardiseStep(
        mean, deviation, axes, clip=float(settings["clip"]), scale=float(settings["scale"])
    )


#: A transform, fitted or not.
Transform: TypeAlias = PCA | Standardise | Piecewise
#: The transforms, by the name in a saved file.
_TRANSFORM_CLASSES: dict[str, Any] = {
    "pca": PCA,
    "standardise": Standardise,
    "piecewise": Piecewise,
}


def as_transform(transform: Any) -> Transform | None:
    """Check the argument ``transform`` of a policy, and return a copy.

    None stays None; other types are errors.
    """
    if transform is not None and type(transform) not in _TRANSFORM_CLASSES.values():
        name = (
            f"the class {transform.__name__}"
            if isinstance(transform, type)
            else type(transform).__name__
        )
        raise InvalidInput(
            "transform must be daband.Standardise(...), daband.PCA(...) or"
            f" daband.features.Piecewise(...), got {name}; apply transforms of other libraries to"
            " the data beforehand"
        )
    return copy.copy(transform)


def get_transform_settings(transform: Transform | None) -> dict[str, Any] | None:
    """Return the settings of a transform in JSON types.

    ``build_transform`` builds an unfitted copy from them.
    """
    if transform is None:
        return None
    kind = next(
        name
        for name, transform_class in _TRANSFORM_CLASSES.items()
        if type(transform) is transform_class
    )
    return {"kind": kind, **transform.settings()}


def adapt_transform(transform: Any, shift: Shift, n_features: int) -> Any:
    """Return a transform for domains with this shift.

    It is an unfitted copy of ``transform`` with separate statistics of each domain, for the columns
    that need them (``shift.mask_separate_columns``). A transform that is fitted or already has
    ``by_domain`` is returned unchanged.
    """
    separate_columns = shift.mask_separate_columns(n_features)
    if transform is None or not any(separate_columns) or transform.fitted or transform.by_domain:
        return transform
    if isinstance(transform, PCA):
        return PCA(transform.n_components, seed=transform.seed, by_domain=True)
    by_domain = (
        True
        if all(separate_columns)
        else [index for index in range(n_features) if separate_columns[index]]
    )
    if isinstance(transform, Piecewise):
        return Piecewise(by_domain=by_domain)
    return Standardise(components=transform.components, by_domain=by_domain)


def build_transform(settings: Mapping[str, Any] | None) -> Transform | None:
    """Return an unfitted transform with the settings that ``get_transform_settings`` returned."""
    if settings is None:
        return None
    arguments = dict(settings)
    return _TRANSFORM_CLASSES[arguments.pop("kind")](**arguments)
