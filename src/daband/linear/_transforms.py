"""Transforms of contexts before a policy, fitted on unlabelled contexts before the first round.

``PCA``, ``Standardise`` and ``Piecewise`` are built in. ``as_transform`` wraps any other object with ``fit`` and
``transform``, such as scikit-learn transformers and pipelines.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

import numpy as np

from daband._arrays import AnyArray, ArrayLike, FloatArray, unit_scale
from daband._shift import Shift
from daband.errors import InvalidInput, NotFitted
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


class UnsavedPartWarning(UserWarning):
    """A saved policy lacks a part that does not offer its state; ``daband.load`` must be given that part again."""


class CustomTransform:
    """An object of another library, with ``fit(X)`` and ``transform(X)`` for X of shape (n, d).

    The number of features must be known when the policy is built. It is taken from the fitted object, or from its
    ``n_components``; otherwise it is the size of a context. ``fit`` checks it. All domains are treated alike.
    """

    by_domain = False

    def __init__(self, inner: Any) -> None:
        for method in ("fit", "transform"):
            if not callable(getattr(inner, method, None)):
                raise InvalidInput(
                    f"transform must be a daband.PCA, a daband.Standardise or an object with fit and transform, "
                    f"got {type(inner).__name__}"
                )
        self.inner = copy.deepcopy(inner)
        self._n_features: int | None = None
        self._was_fitted = False

    def __repr__(self) -> str:
        return f"CustomTransform({self.inner!r})"

    @property
    def name(self) -> str:
        """The class name of the wrapped object."""
        return _class_name(self.inner)

    @property
    def fitted(self) -> bool:
        """True if fitted: by ``fit``, by the object's own flag, or by scikit-learn's attributes that end in "_"."""
        if self._was_fitted:
            return True
        is_fitted = getattr(self.inner, "__sklearn_is_fitted__", None)
        if callable(is_fitted):
            return bool(is_fitted())
        if isinstance(getattr(self.inner, "fitted", None), bool):
            return bool(self.inner.fitted)
        return any(name.endswith("_") and not name.startswith("__") for name in vars(self.inner))

    def fit(self, *contexts: ArrayLike) -> CustomTransform:
        """Fit the wrapped object on all contexts, flattened to (n, d)."""
        flat = np.concatenate([_flat(np.asarray(batch)) for batch in contexts])
        fitted = copy.deepcopy(self.inner)
        fitted.fit(flat)
        width = _features(fitted, flat[:1])
        if self._n_features is not None and width != self._n_features:
            raise InvalidInput(
                f"{self.name} gives {width} features, {self._n_features} were expected when the policy was built; "
                "fit it before you give it to the policy"
            )
        self.inner = fitted
        self._was_fitted = True
        return self

    def __call__(self, contexts: AnyArray, domain: int = 0) -> FloatArray:  # noqa: ARG002
        """Return features (n, d) of contexts (n, *C)."""
        if not self.fitted:
            raise NotFitted(
                f"{self.name} is not fitted: train the policy, call policy.prepare(...), or fit it yourself"
            )
        out = np.asarray(self.inner.transform(_flat(contexts)), dtype=np.float64)
        if not np.isfinite(out).all():
            raise InvalidInput(f"{self.name} made a NaN or infinite value of a context")
        return np.ascontiguousarray(out)

    def frozen(self, domain: int = 0) -> NoReturn:  # noqa: ARG002
        """Raise an error: the transform is code and cannot be stored as arrays."""
        raise InvalidInput(
            f"transform: {self!r} is an object of another library, which a file cannot hold; use daband.PCA or "
            "daband.Standardise, or apply it to the data before daband sees them"
        )

    def n_features(self, context_shape: tuple[int, ...]) -> int:
        """Return the number of features per context of this shape."""
        size = math.prod(context_shape)
        if self.fitted:
            self._n_features = _features(self.inner, np.zeros((1, size)))
        else:
            components = getattr(self.inner, "n_components", None)
            self._n_features = int(components) if isinstance(components, int | np.integer) and components > 0 else size
        return self._n_features

    def settings(self) -> dict[str, Any]:
        """Return the class name, and the object's own settings if it offers them in JSON types."""
        settings = getattr(self.inner, "settings", None)
        return {"class": self.name, "settings": settings() if callable(settings) else None}

    def state(self) -> dict[str, AnyArray]:
        """Return the object's own arrays if it has ``state`` and ``restore``; otherwise warn, naming the object."""
        if not self.fitted:
            return {}
        if callable(getattr(self.inner, "state", None)) and callable(getattr(self.inner, "restore", None)):
            return {name: np.asarray(array) for name, array in self.inner.state().items()}
        warnings.warn(
            f"the transform {self.name} has no state() and restore(), so the file does not hold it: keep the fitted "
            "object, and load the policy with daband.load(path, transform=...)",
            UnsavedPartWarning,
            stacklevel=4,
        )
        return {}

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore the object's arrays; an object without arrays must already be fitted."""
        if state:
            self.inner.restore(dict(state))


#: Maps contexts (n, *C) of a domain to features (n, d); a batch gives the same result as its single rows.
Transform: TypeAlias = PCA | Standardise | Piecewise | CustomTransform


def as_transform(transform: Any) -> Transform | None:
    """Return a policy's own copy of its ``transform`` argument; None stays None."""
    if transform is None:
        return None
    if isinstance(transform, PCA | Standardise | Piecewise):
        return copy.copy(transform)
    if isinstance(transform, CustomTransform):
        return CustomTransform(transform.inner)
    if isinstance(transform, type):
        raise InvalidInput(
            f"transform must be an object, got the class {transform.__name__}; write {transform.__name__}(...)"
        )
    return CustomTransform(transform)


_KINDS: dict[str, Any] = {"pca": PCA, "standardise": Standardise, "piecewise": Piecewise}


def transform_settings(transform: Transform | None) -> dict[str, Any] | None:
    """Return the description of a transform for a saved policy."""
    if transform is None:
        return None
    kind = next((name for name, kind_class in _KINDS.items() if type(transform) is kind_class), "custom")
    if kind != "custom" or isinstance(transform, CustomTransform):
        return {"kind": kind, **transform.settings()}
    return {"kind": kind, "class": _class_name(transform), "settings": transform.settings()}  # a subclass of ours


def shift_transform(transform: Any, shift: Shift, n_features: int) -> Any:
    """Return a built-in, unfitted transform for this shift: with statistics by domain if those differ.

    Custom transforms, those with ``by_domain`` set, and fitted ones are returned unchanged.
    """
    differs_at = shift.own_statistics(n_features)
    ours = isinstance(transform, PCA | Standardise | Piecewise)
    if not any(differs_at) or not ours or transform.fitted or transform.by_domain:
        return transform
    if isinstance(transform, PCA):
        return PCA(transform.n_components, seed=transform.seed, by_domain=True)
    own = True if all(differs_at) else [index for index, differs in enumerate(differs_at) if differs]
    if isinstance(transform, Piecewise):
        return Piecewise(by_domain=own)
    return Standardise(components=transform.components, by_domain=own)


def build_transform(settings: Mapping[str, Any] | None, custom: Any = None) -> Any:
    """Return an unfitted transform from ``transform_settings``; ``custom`` is the object of another library."""
    if settings is None:
        if custom is not None:
            raise InvalidInput("transform was given, but the saved policy has none")
        return None
    arguments = dict(settings)
    kind = arguments.pop("kind")
    if kind in _KINDS:
        if custom is not None:
            raise InvalidInput(f"transform was given, but the saved policy has its own ({kind})")
        return _KINDS[kind](**arguments)
    if custom is None:
        raise InvalidInput(
            f"the policy was saved with a transform of its own, {arguments['class']}: pass it, fitted unless it offers "
            "state() and restore(), as daband.load(path, transform=...)"
        )
    wrapped = as_transform(custom)
    class_name = _class_name(wrapped.inner if isinstance(wrapped, CustomTransform) else wrapped)
    if class_name != arguments["class"]:
        raise InvalidInput(f"transform must be a {arguments['class']}, as in the saved policy, got {class_name}")
    return wrapped


def _class_name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _flat(contexts: AnyArray) -> FloatArray:
    return unit_scale(contexts.reshape(len(contexts), -1))


def _features(inner: Any, row: FloatArray) -> int:
    out = np.asarray(inner.transform(row))
    if out.ndim != 2 or len(out) != len(row):
        raise InvalidInput(
            f"{type(inner).__name__}.transform must return (n, d), got shape {out.shape} for {row.shape}"
        )
    return int(out.shape[1])
