"""Compute piecewise linear features, on which a linear regression can fit nonlinear functions of a
column.

A column x with knots t_0 < ... < t_m becomes m features, clip((x - t_b) / (t_{b+1} - t_b), 0, 1).
The knots are quantiles of the contexts (Gorishniy, Rubachev and Babenko, "On embeddings for
numerical features in tabular deep learning", 2022). The coefficient of a feature is the rise of the
fitted function over a piece, so a ridge penalty prefers functions that change little. Beyond the
outer knots, the function is constant.

``Piecewise`` is the transform that users fit. ``PiecewiseStep`` is the fitted transform for one
domain, which saved files store. ``fit_ramps`` fits a step to one table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from daband.base._arrays import ArrayLike, FloatArray, IntArray, Shape, to_floats
from daband.features._fitted_steps import Step, StepTransform
from daband.features._pca import flatten_batches
from daband.features._standardise import Standardise, get_feature_scale

#: Maximum number of features per context, unless the context has more columns.
_MAX_FEATURES = 128
#: Maximum number of pieces per column.
_MAX_PIECES = 8
#: Approximate maximum number of contexts per domain from which knots are computed.
_MAX_ROWS = 4096
#: Knots are rounded to a grid with this many points per standard deviation. This keeps exact
#: training values out of files, and gives every piece a minimum length.
_GRID_POINTS_PER_DEVIATION = 1024.0
#: The names of the arrays of a ``PiecewiseStep``.
PIECEWISE_ARRAY_NAMES = "column", "start", "width", "centre", "scale"


@dataclass(frozen=True)
class PiecewiseStep(Step):
    """A fitted ``Piecewise`` for one domain. It maps flat contexts (n, d) to features (n, m + 1).

    The first feature is a constant 1. The others are m ramps, each between two knots of one column.
    """

    #: The index of the column that each ramp is computed from, (m,).
    column: IntArray
    #: The value at which each ramp starts, (m,).
    start: FloatArray
    #: The length of each ramp, (m,).
    width: FloatArray
    #: The number that is subtracted from a ramp's value in [0, 1], (m,).
    centre: FloatArray
    #: The factor by which the centred value is multiplied, (m,).
    scale: FloatArray
    #: The number of dimensions of a context.
    n_inputs: int
    kind: ClassVar[str] = "piecewise"
    #: The index of the constant feature.
    constant_index: ClassVar[int] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_inputs", int(self.n_inputs))  # in files, it is an array

    @property
    def n_features(self) -> int:
        """The number of features per context."""
        return len(self.column) + 1

    def __call__(self, rows: FloatArray) -> FloatArray:
        features = np.ones((len(rows), self.n_features))
        ramps = features[:, 1:]
        with np.errstate(over="ignore"):  # overflow is clipped
            np.subtract(rows[:, self.column], self.start, out=ramps)
            ramps /= self.width
        np.clip(ramps, 0.0, 1.0, out=ramps)
        ramps -= self.centre
        ramps *= self.scale
        return features

    @property
    def feature_limits(self) -> tuple[FloatArray, FloatArray]:
        """The smallest and the largest value of each feature, (m + 1,) each."""
        lower_limits = -self.centre * self.scale
        return np.append(1.0, lower_limits), np.append(1.0, lower_limits + self.scale)


class Piecewise(StepTransform[PiecewiseStep]):
    """A transform of each column to piecewise linear features.

    Use it as ``transform=Piecewise()`` of a linear policy.

    Columns are standardised first, with common statistics of all domains, or by domain as in
    ``Standardise``. Knots are quantiles of the contexts of all domains. A column with two values
    has one piece. Other columns have at most eight pieces, and fewer if there would be more than
    128 features, but at least one. Together, the features of a column have the same variance as the
    column after ``Standardise``. The number of features depends only on the number of columns; the
    remaining features are 0.

    Args:
        by_domain: True, or the indices of columns, to standardise by domain; see ``Standardise``.

    >>> import numpy as np
    >>> from daband.features import Piecewise
    >>> piecewise = Piecewise().fit(np.arange(9.0)[:, None])
    >>> features = piecewise(np.array([[2.0], [100.0]]))
    >>> features.shape, bool((features[1] == piecewise(np.array([[8.0]]))).all())
    ((2, 9), True)
    """

    step_class = PiecewiseStep

    def __init__(self, *, by_domain: bool | Sequence[int] = False) -> None:
        super().__init__()
        self.by_domain = Standardise(by_domain=by_domain).by_domain

    def __repr__(self) -> str:
        return "Piecewise()"

    def n_features(self, context_shape: Shape) -> int:
        # including unused ones
        dim = math.prod(context_shape)
        return max(dim, min(_MAX_FEATURES, dim * _MAX_PIECES)) + 1

    def fit(self, *contexts: ArrayLike) -> Piecewise:
        """Fit on batches of contexts (n_i, *C), one per domain in order, and return this object."""
        batches, dim = flatten_batches(contexts)
        samples = [to_floats(batch[:: max(1, len(batch) // _MAX_ROWS)]) for batch in batches]
        standardise = Standardise(by_domain=self.by_domain).fit(*samples)
        steps = [
            standardise.get_step(domain)
            for domain in range(len(samples) if standardise.by_domain else 1)
        ]
        steps_and_samples = [
            (steps[min(i, len(steps) - 1)], rows) for i, rows in enumerate(samples) if len(rows)
        ]
        standardised = [step(sample)[:, :-1] for step, sample in steps_and_samples]
        z_scores = np.concatenate(standardised) / get_feature_scale(dim)
        n_ramps = self.n_features((dim,)) - 1
        columns, (starts, widths, centres, scales) = _fit_columns(z_scores, _MAX_PIECES, n_ramps)
        padding = (0, n_ramps - len(columns))  # features without a ramp are 0
        columns, starts, centres, scales = (
            np.pad(array, padding) for array in (columns, starts, centres, scales)
        )
        widths = np.pad(widths, padding, constant_values=1.0)
        scales = scales * get_feature_scale(dim)
        self._steps = [
            PiecewiseStep(
                columns, means + starts * deviations, widths * deviations, centres, scales, dim
            )
            for means, deviations in (
                (step.mean[columns], step.deviation[columns]) for step in steps
            )
        ]
        return self

    def settings(self) -> dict[str, Any]:
        return {"by_domain": self.by_domain}


def fit_ramps(rows: FloatArray, max_pieces: int, *, clip_quantile: float = 0.0) -> PiecewiseStep:
    """Return a step with ramps between quantiles of each column of ``rows`` (n, d), at most
    ``max_pieces`` per column.

    Columns are clipped at the quantiles q = ``clip_quantile`` and 1 - q, unless both quantiles are
    equal.
    """
    sample = rows[:: max(1, len(rows) // _MAX_ROWS)]
    dim = sample.shape[1]
    mean = sample.mean(axis=0)
    deviation = sample.std(axis=0)
    deviation = np.where(deviation > 1e-12 * (1.0 + np.abs(mean)), deviation, 1.0)
    z_scores = (sample - mean) / deviation
    low, high = np.quantile(z_scores, [clip_quantile, 1.0 - clip_quantile], axis=0)
    z_scores = np.where(low < high, np.clip(z_scores, low, high), z_scores)
    columns, (starts, widths, centres, scales) = _fit_columns(
        z_scores, max_pieces, max(dim, _MAX_FEATURES)
    )
    return PiecewiseStep(
        columns,
        mean[columns] + starts * deviation[columns],
        widths * deviation[columns],
        centres,
        scales,
        dim,
    )


def _fit_columns(
    z_scores: FloatArray, max_pieces: int, max_ramps: int
) -> tuple[IntArray, FloatArray]:
    """Return the column of each ramp, (m,), and the ramps' starts, widths, centres and scales, (4,
    m).

    A column with two values has one piece. Other columns have at most ``max_pieces`` pieces, and
    fewer if there would be more than ``max_ramps`` ramps, but at least one.
    """
    has_many_values = ((z_scores > z_scores.min(axis=0)) & (z_scores < z_scores.max(axis=0))).any(
        axis=0
    )
    n_available = max_ramps - int((~has_many_values).sum())
    max_pieces = max(1, min(max_pieces, n_available // max(1, int(has_many_values.sum()))))
    piece_limits = np.where(has_many_values, max_pieces, 1).tolist()
    pieces = [
        _fit_pieces(values, limit) for values, limit in zip(z_scores.T, piece_limits, strict=True)
    ]
    columns = np.repeat(np.arange(len(pieces)), [len(starts) for starts, *_ in pieces])
    return columns, np.concatenate(pieces, axis=1)


def _fit_pieces(values: FloatArray, max_pieces: int) -> FloatArray:
    """Return starts, widths, centres and scales (4, m) of the ramps of a column (n,).

    Their total variance is 1.
    """
    quantiles = np.quantile(values, np.linspace(0.0, 1.0, max_pieces + 1))
    knots = np.unique(np.round(_GRID_POINTS_PER_DEVIATION * quantiles) / _GRID_POINTS_PER_DEVIATION)
    starts = knots[:-1]
    widths = np.diff(knots)
    ramps = np.clip((values[:, None] - starts) / widths, 0.0, 1.0)
    variance = float(ramps.var(axis=0).sum())
    if not variance > 0.0:
        return np.zeros((4, 0))
    return np.stack(
        [starts, widths, ramps.mean(axis=0), np.full(len(starts), 1.0 / math.sqrt(variance))]
    )
