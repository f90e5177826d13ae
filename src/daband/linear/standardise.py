"""Contexts of any scale and offset, made alike: centred, scaled, clipped, with a constant added."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from daband.arguments import whole
from daband.arrays import AnyArray, ArrayLike, FloatArray, as_numpy, restored_array, unit_scale
from daband.errors import InvalidInput, NotFitted
from daband.linear.pca import PCA
from daband.linear.steps import StandardiseStep

__all__ = ["CLIP", "OutlierWarning", "Standardise", "feature_scale"]

CLIP = 5.0
"""Deviations at which standardised numbers are clipped."""
_OUTLIER = 1e4  # far beyond the square root of n deviations that a value seen once in n contexts has
_TAIL = 0.001
_SMALLEST_SCALE = 1.0 / 4.0
_COLUMNS = 64


class OutlierWarning(UserWarning):
    """A context lies so far from the others that it was clipped."""


class Standardise:
    """Standardises every number of a context by what source and target contexts show: ``transform=Standardise()``.

    Each number loses its mean and is divided by its deviation, clipped at five deviations, and scaled by
    ``max(1 / sqrt(d), 1 / 4)``, so that a typical context has norm 1 up to 16 dimensions and grows slowly beyond; a
    constant 1 is appended. Against ridge 1 that leaves one ``alpha`` sensible for contexts of any unit, offset and
    dimension. A number that never changes becomes 0. With ``components``, only so many leading principal components of
    the standardised numbers are kept, besides the constant.

    Means and deviations are those of all contexts together, so that a number means the same in every domain. The
    numbers in the places ``own`` are standardised by each domain's own statistics instead: they are measured in other
    units there (``daband.Shift``).

    Means and deviations are robust. The 0.1% smallest and largest values of each number, at least one on each side,
    count as no further out than the width of the range of all others, so that one row of size 1e9 changes little. Such
    a row is clipped like any other, with an ``OutlierWarning``.

    ``uint8`` contexts are images, whose scale is known; they are read as [0, 1] before anything else.

    >>> policy = daband.LinUCB(context_shape=(2,), n_arms=2, transform=daband.Standardise())
    >>> policy.prepare([[1000.0, 0.1], [3000.0, 0.3], [2000.0, 0.2], [4000.0, 0.4]])
    >>> policy.feature_shape  # the constant is the third
    (3,)
    """

    takes_domain = True
    """``policy.transform(contexts, domain)``: what it does may depend on the index of the domain."""

    def __init__(self, *, components: int | None = None, own: Sequence[int] | None = None) -> None:
        self.components = None if components is None else whole("components", components, least=1)
        self.own = () if own is None else tuple(sorted({whole("own", place, least=0) for place in own}))
        self._steps: tuple[StandardiseStep, ...] = ()

    def __repr__(self) -> str:
        given = [] if self.components is None else [f"components={self.components}"]
        if self.own:
            given.append(f"own=({len(self.own)} numbers)")
        return f"Standardise({', '.join(given)})"

    @property
    def fitted(self) -> bool:
        """Whether ``fit`` has been called."""
        return bool(self._steps)

    def n_features(self, context_shape: tuple[int, ...]) -> int:
        """One more than a context has numbers, or than there are components: the constant."""
        return (math.prod(context_shape) if self.components is None else self.components) + 1

    def fit(self, *contexts: ArrayLike) -> Standardise:
        """Fit on batches of contexts (n_i, *C), all together; batch i is of domain i where numbers have own statistics.

        A domain without contexts has the statistics of all others.
        """
        batches = [as_numpy(batch, f"contexts[{i}]") for i, batch in enumerate(contexts)]
        if any(batch.ndim < 2 for batch in batches):
            raise InvalidInput("contexts must have shape (n, *C)")
        flat = [batch.reshape(len(batch), -1) for batch in batches if len(batch)]
        if not flat:
            raise InvalidInput("Standardise needs at least one context")
        dims = {batch.shape[1] for batch in flat}
        if len(dims) != 1:
            raise InvalidInput(f"contexts of different dimensions cannot be fitted together: {sorted(dims)}")
        dim = dims.pop()
        mean, deviation = np.empty(dim), np.empty(dim)
        for start in range(0, dim, _COLUMNS):  # a few columns at a time: quantiles sort a copy
            part = slice(start, start + _COLUMNS)
            columns = np.concatenate([unit_scale(batch[:, part]) for batch in flat])
            if not np.isfinite(columns).all():
                raise InvalidInput("contexts have a NaN or infinite value")
            mean[part], deviation[part] = _robust_moments(columns)
        if self.own and max(self.own) >= dim:
            raise InvalidInput(f"own names number {max(self.own)}, and contexts have {dim}, from 0 on")
        moments = [(mean.copy(), deviation.copy()) for _ in batches] if self.own else [(mean, deviation)]
        places = list(self.own)
        for (domain_mean, domain_deviation), batch in zip(moments, batches, strict=False):
            if self.own and len(batch):
                columns = unit_scale(batch.reshape(len(batch), -1)[:, places])
                domain_mean[places], domain_deviation[places] = _robust_moments(columns)
        axes = None
        if self.components is not None:
            by_domain = zip(batches, moments, strict=True) if self.own else ((batch, moments[0]) for batch in flat)
            parts = [(batch.reshape(len(batch), -1), _step(*moment)) for batch, moment in by_domain if len(batch)]
            axes = PCA(self.components).fit(*[step(unit_scale(rows))[:, :-1] for rows, step in parts]).axes
        self._steps = tuple(_step(*moment, axes) for moment in moments)
        return self

    def __call__(self, contexts: AnyArray, domain: int = 0) -> FloatArray:
        """Features (n, d + 1) of contexts (n, *C) of a domain."""
        step = self.frozen(domain)
        return step(unit_scale(contexts.reshape(-1, step.n_inputs)), watch=self._warn_of_outlier)

    def frozen(self, domain: int = 0) -> StandardiseStep:
        """What it does to contexts of a domain, as fitted."""
        if not self._steps:
            raise NotFitted(
                f"{self!r} is not fitted: train the policy, or give unlabelled contexts to policy.prepare(...)"
            )
        return self._steps[min(domain, len(self._steps) - 1)]

    def _warn_of_outlier(self, rows: FloatArray, deviations: FloatArray) -> None:
        if max(deviations.max(), -deviations.min()) <= _OUTLIER:
            return
        row, column = np.unravel_index(np.abs(deviations).argmax(), deviations.shape)
        warnings.warn(
            f"a context has {rows[row, column]:.4g} in place {column}, {abs(deviations[row, column]):.4g} deviations "
            f"from the mean {self.frozen().mean[column]:.4g}; it counts as {CLIP:g} deviations. Check where it comes "
            "from",
            OutlierWarning,
            stacklevel=6,
        )

    def settings(self) -> dict[str, Any]:
        """What ``Standardise(**settings)`` needs to make the same, unfitted."""
        return {"components": self.components, **({"own": list(self.own)} if self.own else {})}

    def state(self) -> dict[str, AnyArray]:
        """The fitted arrays; empty before ``fit``."""
        if len(self._steps) < 2:
            return self._steps[0].arrays() if self._steps else {}
        by_domain = {
            "means": np.stack([step.mean for step in self._steps]),
            "deviations": np.stack([step.deviation for step in self._steps]),
        }
        return {**self._steps[0].arrays(), **by_domain}

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Take what ``state`` returned."""
        if state:
            mean = restored_array(state, "mean", np.zeros(state["mean"].shape))
            deviation = restored_array(state, "deviation", np.zeros(mean.shape))
            axes = None
            if self.components is not None:
                axes = restored_array(state, "axes", np.zeros((self.components, len(mean))))
            means, deviations = mean[None], deviation[None]
            if "means" in state:
                means = restored_array(state, "means", np.zeros((len(state["means"]), len(mean))))
                deviations = restored_array(state, "deviations", np.zeros(means.shape))
            self._steps = tuple(_step(*moments, axes) for moments in zip(means, deviations, strict=True))


def _step(mean: FloatArray, deviation: FloatArray, axes: FloatArray | None = None) -> StandardiseStep:
    return StandardiseStep(mean, deviation, axes, clip=CLIP, scale=feature_scale(len(mean)))


def feature_scale(dimensions: int) -> float:
    """The factor of standardised numbers, by how many of them a context has."""
    return max(1.0 / math.sqrt(dimensions), _SMALLEST_SCALE)


def _robust_moments(columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and deviation (d,) of columns (n, d) after winsorising; a deviation that rounding alone made becomes 1."""
    n = len(columns)
    tail = min(max(1, round(_TAIL * n)), (n - 1) // 2)  # at least one row on each side, where there are three
    ordered = np.partition(columns, (tail, n - 1 - tail), axis=0)
    low, high = ordered[tail], ordered[n - 1 - tail]
    spread = high - low
    # Where the middle is a single value, as in a column of mostly zeros, the rest is all that the column says.
    kept = np.where(spread > 0, np.clip(columns, low - spread, high + spread), columns)
    with np.errstate(over="ignore"):
        mean = low + (kept - low).mean(axis=0)  # rounding goes by the spread of a column, not by its offset
        deviation = np.sqrt(np.square(kept - mean).mean(axis=0))
    rounding = 1e-12 * np.maximum(np.abs(mean), np.abs(kept).max(axis=0))
    return mean, np.where((deviation > rounding) & np.isfinite(deviation), deviation, 1.0)
