"""Standardise contexts of any scale and offset: centre, scale and clip each column, and append a
constant.

``Standardise`` is the transform that users fit. ``StandardiseStep`` is the fitted transform for one
domain, which files contain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from daband.base._arguments import check_int
from daband.base._arrays import ArrayLike, FloatArray, Shape, to_floats
from daband.errors import InvalidInput
from daband.features._fitted_steps import Step, StepTransform
from daband.features._pca import PCA, flatten_batches


@dataclass(frozen=True)
class StandardiseStep(Step):
    """A fitted ``Standardise`` for one domain. It maps flat contexts (n, d) to features (n, d + 1).

    Each column is centred, divided by its standard deviation, clipped and multiplied by ``scale``.
    With ``axes``, the result is projected on them. A 1 is appended.
    """

    #: The mean of each column, (d,).
    mean: FloatArray
    #: The standard deviation of each column, (d,).
    deviation: FloatArray
    #: Principal axes (m, d), for features (n, m + 1); None to keep the columns.
    axes: FloatArray | None = None
    kind: ClassVar[str] = "standardise"

    @property
    def n_inputs(self) -> int:  # type: ignore[override]
        return len(self.mean)

    def __call__(self, rows: FloatArray) -> FloatArray:
        features = np.ones((len(rows), len(self.mean) + 1))
        columns = features[:, :-1]
        np.subtract(rows, self.mean, out=columns)
        with np.errstate(over="ignore"):  # overflow is clipped
            columns /= self.deviation
        np.maximum(columns, -CLIP_DEVIATIONS, out=columns)  # ``clip`` is slow for one row
        np.minimum(columns, CLIP_DEVIATIONS, out=columns)
        columns *= get_feature_scale(len(self.mean))
        if self.axes is None:
            return features
        return np.concatenate([columns @ self.axes.T, features[:, -1:]], axis=1)


#: Standardised columns are clipped at this many standard deviations.
CLIP_DEVIATIONS = 5.0
#: The fraction of smallest values, and of largest values, that is winsorised.
_TAIL_FRACTION = 0.001
#: The smallest factor of standardised columns.
_MIN_FEATURE_SCALE = 1.0 / 4.0
#: The number of columns whose moments are computed at once.
_N_BLOCK_COLUMNS = 64
#: Approximate maximum size (rows times columns) of each domain's sample to which principal
#: components are fitted.
_MAX_PCA_VALUES = 1 << 23


class Standardise(StepTransform[StandardiseStep]):
    """A transform that standardises each column of contexts.

    Use it as ``transform=Standardise()`` of a policy.

    Each column is centred by its mean, divided by its standard deviation, and clipped at five
    standard deviations. It is then scaled by ``max(1 / sqrt(d), 1 / 4)``, so that a typical context
    has norm 1 up to 16 dimensions and grows slowly beyond. A constant 1 is appended. With ridge 1,
    one ``alpha`` is then sensible for contexts of any unit, offset and dimension. A constant column
    becomes 0.

    Means and standard deviations are robust. The 0.1% smallest and the 0.1% largest values of each
    column, at least one each, are winsorised. The limits are the smallest and largest remaining
    value, extended on each side by their difference. So one row of size 1e9 changes little.

    ``uint8`` contexts are images, and are scaled to [0, 1] first.

    Args:
        components: if given, the standardised columns are replaced by this many leading principal
            components.
        by_domain: False to standardise all domains by a common mean and standard deviation of each
            column. True to standardise each domain separately, for domains with their own units
            (``shift="units"``) or style. A sequence of column indices to do so for these columns
            only. ``fit`` then needs one batch per domain, in order. A domain without contexts gets
            the statistics of the first domain with contexts.

    >>> policy = daband.LinUCB(context_shape=(2,), n_arms=2, transform=daband.Standardise())
    >>> policy.prepare([[1000.0, 0.1], [3000.0, 0.3], [2000.0, 0.2], [4000.0, 0.4]])
    >>> policy.feature_shape  # the constant is the third
    (3,)
    """

    step_class = StandardiseStep

    def __init__(
        self, *, components: int | None = None, by_domain: bool | Sequence[int] = False
    ) -> None:
        super().__init__()
        self.components = (
            None if components is None else check_int("components", components, minimum=1)
        )
        if not isinstance(by_domain, bool):
            by_domain = tuple(check_int("by_domain", index, minimum=0) for index in by_domain)
        self.by_domain: bool | tuple[int, ...] = by_domain

    def __repr__(self) -> str:
        return f"Standardise(components={self.components})"

    def n_features(self, context_shape: Shape) -> int:
        return (math.prod(context_shape) if self.components is None else self.components) + 1

    def fit(self, *contexts: ArrayLike) -> Standardise:
        """Fit on batches of contexts (n_i, *C), with ``by_domain`` one per domain in order, and
        return this object.
        """
        flat_batches, dim = flatten_batches(contexts)
        if not any(len(batch) for batch in flat_batches):
            raise InvalidInput("Standardise needs at least one context to be fitted on, got none")
        has_own_statistics = np.full(dim, self.by_domain is True)
        if not isinstance(self.by_domain, bool):
            if max(self.by_domain, default=0) >= dim:
                raise InvalidInput(
                    f"by_domain must have column indices in 0..{dim - 1}, got {max(self.by_domain)}"
                )
            has_own_statistics[list(self.by_domain)] = True
        n_steps = len(flat_batches) if has_own_statistics.any() else 1
        moments = np.empty((2, n_steps, dim))
        # a few columns at a time: quantiles sort a copy
        for start in range(0, dim, _N_BLOCK_COLUMNS):
            block = slice(start, start + _N_BLOCK_COLUMNS)
            block_batches = [to_floats(batch[:, block]) for batch in flat_batches]
            if not all(np.isfinite(batch).all() for batch in block_batches):
                raise InvalidInput(
                    "contexts to fit Standardise on must be finite, but one has a NaN or infinite"
                    " value"
                )
            common_moments = _compute_robust_moments(np.concatenate(block_batches))
            moments[:, :, block] = np.array(common_moments)[:, None]
            is_own = has_own_statistics[block]
            first_batch = next(filter(len, block_batches))
            for domain, batch in enumerate(block_batches if is_own.any() else ()):
                own_moments = _compute_robust_moments(batch if len(batch) else first_batch)
                moments[:, domain, block] = np.where(is_own, own_moments, moments[:, domain, block])
        axes = None
        if self.components is not None:
            steps = [StandardiseStep(*own) for own in moments.swapaxes(0, 1)]
            max_rows = max(self.components, _MAX_PCA_VALUES // dim)
            samples = [
                steps[i % n_steps](to_floats(batch[:: -(-len(batch) // max_rows)]))[:, :-1]
                for i, batch in enumerate(flat_batches)
                if len(batch)
            ]
            n_components = min(self.components, max(1, sum(map(len, samples))))
            axes = PCA(n_components).fit(*samples).axes
            # with fewer contexts than components
            axes = np.pad(axes, ((0, self.components - n_components), (0, 0)))
        self._steps = [
            StandardiseStep(mean, deviation, axes) for mean, deviation in moments.swapaxes(0, 1)
        ]
        return self

    def settings(self) -> dict[str, Any]:
        return {"components": self.components, "by_domain": self.by_domain}


def get_feature_scale(dim: int) -> float:
    """Return the factor of standardised columns for contexts of this many dimensions."""
    return max(1.0 / math.sqrt(dim), _MIN_FEATURE_SCALE)


def _compute_robust_moments(columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the means and standard deviations (d,) of winsorised columns (n, d).

    The standard deviation of a constant column is 1.
    """
    n = len(columns)
    # at least one row on each side, if there are three
    n_tail = min(max(1, round(_TAIL_FRACTION * n)), (n - 1) // 2)
    partitioned_columns = np.partition(columns, (n_tail, n - 1 - n_tail), axis=0)
    low = partitioned_columns[n_tail]
    high = partitioned_columns[n - 1 - n_tail]
    width = high - low
    # If the middle is a single value, as in a column of mostly zeros, the column is not winsorised.
    columns = np.where(width > 0, np.clip(columns, low - width, high + width), columns)
    with np.errstate(over="ignore"):
        # rounding depends on the range of a column, not on its offset
        mean = low + (columns - low).mean(axis=0)
        deviation = np.sqrt(np.square(columns - mean).mean(axis=0))
    rounding_error = 1e-12 * np.maximum(np.abs(mean), np.abs(columns).max(axis=0))
    return mean, np.where((deviation > rounding_error) & np.isfinite(deviation), deviation, 1.0)
