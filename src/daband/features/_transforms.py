"""Build, save and load the transforms that a policy applies to contexts: ``PCA``, ``Standardise``
and ``Piecewise``.

A transform is fitted on unlabelled contexts before the first round. It then has a *step* for each
domain. Exported files contain these steps.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from daband.base._arrays import Arrays
from daband.errors import InvalidInput
from daband.features._fitted_steps import InterceptStep, Step
from daband.features._pca import PCA
from daband.features._piecewise import Piecewise
from daband.features._shift import Shift
from daband.features._standardise import Standardise

#: A transform, fitted or not.
Transform: TypeAlias = PCA | Standardise | Piecewise
#: The transforms, by the name in a saved file.
_TRANSFORM_CLASSES: dict[str, Any] = {
    transform.step_class.kind: transform for transform in (PCA, Standardise, Piecewise)
}


def build_step(kind: str, arrays: Arrays) -> Step:
    """Return the fitted transform of a kind with these arrays of a file."""
    if kind == InterceptStep.kind:
        return InterceptStep(int(arrays["n_inputs"]))
    return _TRANSFORM_CLASSES[kind].step_class(**arrays)


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
    return {"kind": transform.step_class.kind, **transform.settings()}


def adapt_transform(transform: Any, shift: Shift, n_features: int) -> Any:
    """Return a transform for domains with this shift.

    It is an unfitted copy of ``transform`` with separate statistics of each domain, for the columns
    that need them (``shift.mask_separate_columns``). A transform that is fitted or already has
    ``by_domain`` is returned unchanged, and so is every transform if the shift is not stated.
    """
    separate_columns = shift.mask_separate_columns(n_features)
    needs_domains = shift.stated and any(separate_columns)
    if transform is None or not needs_domains or transform.fitted or transform.by_domain:
        return transform
    adapted = copy.copy(transform)
    is_common = isinstance(transform, PCA) or all(separate_columns)
    adapted.by_domain = is_common or tuple(np.flatnonzero(separate_columns).tolist())
    return adapted


def build_transform(settings: Mapping[str, Any] | None) -> Transform | None:
    """Return an unfitted transform with the settings that ``get_transform_settings`` returned."""
    if settings is None:
        return None
    arguments = dict(settings)
    return _TRANSFORM_CLASSES[arguments.pop("kind")](**arguments)
