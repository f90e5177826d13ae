"""The predictors of a frozen policy, and all of them on one row: constants folded, few products.

With one row at a time the calls of numpy take longer than its arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from daband._arrays import AnyArray, FloatArray, unit_scale
from daband.linear._piecewise import PiecewiseStep
from daband.linear._primal_ridge import ridge_scores
from daband.linear._standardise import StandardiseStep
from daband.linear._transforms import TransformStep
from daband.serving._numpy_networks import ConvNetwork, Float32Array, MlpNetwork, Network

__all__ = ["Member", "RowScorer"]

# Deviations between zero and the mean of a column up to which single precision is enough to standardise it.
_LARGEST_OFFSET = 16.0
_LARGEST_WEIGHT = 1e15  # of a column whose deviation is tiny: with larger ones products overflow
_MOST_NUMBERS = 1 << 20  # numbers up to which folding pays: with more of them memory is what takes time
_BLOCK = 32  # columns of a triangular matrix that are multiplied at once, at least
_ALIGNED = 8  # rows of weights begin at a multiple of so many numbers: those that do not take a fifth longer


@dataclass(frozen=True, eq=False)
class Member:
    """One predictor of a policy: features, ridge regressions on them, and its share in the policy's predictions.

    theta is (heads, d), inverse (heads, d, d) that of A: a regression per arm, or one for all with a context per arm.
    ``width_share`` is what its width counts, in units of the policy's alpha; at 0 inverse may be (heads, 0, 0).
    Features are contexts, after ``transform`` and ``network`` if there are any, or a single 1 if ``constant``.
    """

    theta: FloatArray
    inverse: FloatArray
    share: float = 1.0
    width_share: float = 1.0
    transform: TransformStep | None = None
    network: Network | None = None
    constant: bool = False

    def __post_init__(self) -> None:
        shape = (*self.theta.shape, self.dimension) if self.has_widths else (len(self.theta), 0, 0)
        if self.theta.ndim != 2 or 0 in self.theta.shape or self.inverse.shape != shape:
            raise ValueError(f"theta has shape {self.theta.shape}, inverse {self.inverse.shape}")
        if self.theta.dtype != np.float64 or self.inverse.dtype != np.float64:
            raise ValueError(f"theta is {self.theta.dtype}, inverse {self.inverse.dtype}; both must be float64")
        if not (np.isfinite(self.theta).all() and np.isfinite(self.inverse).all()):
            raise ValueError("theta or inverse has a NaN or infinite value")
        if not all(0.0 <= share < math.inf for share in (self.share, self.width_share)):
            raise ValueError(f"the shares of a member are {self.share} and {self.width_share}")
        object.__setattr__(self, "inverse", np.ascontiguousarray(self.inverse))

    @property
    def dimension(self) -> int:
        """How many features there are."""
        return int(self.theta.shape[1])

    @property
    def takes_contexts(self) -> bool:
        """Whether contexts are the features."""
        return self.network is None and self.transform is None and not self.constant

    @property
    def has_widths(self) -> bool:
        """Whether the inverse is there: without one the member predicts rewards alone."""
        return self.inverse.size > 0 or self.width_share > 0.0

    def check_inputs(self, shape: tuple[int, ...], n_heads: int) -> None:
        """Raise where contexts of this shape do not fit, or where there are not so many regressions."""
        if len(self.theta) != n_heads:
            raise ValueError(f"a member has {len(self.theta)} regressions, expected {n_heads}")
        features = math.prod(shape)
        if self.transform is not None:
            if self.transform.n_inputs != features:
                raise ValueError(f"a transform takes {self.transform.n_inputs} numbers, contexts have {features}")
            features = self.transform.n_features
            shape = (features,)
        if self.network is not None:
            self.network.check_inputs(shape)
            features = self.network.dimension
        if self.dimension != (1 if self.constant else features):
            raise ValueError(f"a member has regressions on {self.dimension} features, and {features} features")

    def features(self, rows: AnyArray) -> FloatArray:
        """Features (m, d) of contexts (m, *C)."""
        if self.constant:
            return np.ones((len(rows), 1))
        if self.transform is not None:
            rows = self.transform(unit_scale(rows if rows.ndim == 2 else rows.reshape(len(rows), -1)))
        if self.network is not None:
            return self.network(rows)
        return unit_scale(rows if rows.ndim == 2 else rows.reshape(len(rows), -1))

    def score(self, rows: AnyArray) -> tuple[FloatArray, FloatArray]:
        """Predicted rewards and widths of contexts (m, *C) under every regression, (m, heads) each."""
        if not self.has_widths:
            mean = self.features(rows) @ self.theta.T
            return mean, np.zeros_like(mean)
        mean, variance = ridge_scores(self.theta, self.inverse, self.features(rows))
        return mean, np.sqrt(variance)


class RowScorer:
    """Means, widths and scores of one context, in single precision, as the latent of a network is.

    All members read a flat context by one product, which has the first layer of networks and the standardisation of
    every member in it; a single member may read an image by its convolutions instead. Further layers have their bias as
    a row of their weights. One product of the features of all members gives the means. A width is the norm of R'z with
    A^-1 = R R': its rounding error is in proportion to the largest width, where that of z'A^-1 z is not. Where a
    member's features are the context itself, its R is a part of the product with the context.
    """

    def __init__(
        self, members: Sequence[Member], n_inputs: int, optimism: float, before: StandardiseStep | None
    ) -> None:
        networks = [member for member in members if member.network is not None]
        linear = [member for member in members if member.network is None]
        n_features = n_inputs if before is None else before.n_features
        firsts = {member: _first(member, n_features) for member in (*linear, *networks)}
        network = networks[0].network
        self._convolutions = network.maps if isinstance(network, ConvNetwork) else None
        self._networks = [(len(firsts[member].low), firsts[member].layers) for member in networks]
        # Numbers lie in this order: latents of networks, features of linear members, first layers of networks, zeros
        # that align what follows, products with roots. The product with a context makes all but the latents and those
        # products that must wait for features to be clipped.
        low, high = (np.concatenate([getattr(first, side) for first in firsts.values()]) for side in ("low", "high"))
        self._n_latent, places, at = sum(member.dimension for member in networks), {}, 0
        for member in (*networks, *linear):
            places[member], at = at, at + member.dimension
        self._theta = np.concatenate([member.share * member.theta.T for member in places]).astype(np.float32)
        with_widths = [member for member in members if member.width_share] or networks[:1]
        with_widths.sort(key=lambda member: not member.takes_contexts)
        lengths = [member.dimension if member.width_share else 1 for member in with_widths]
        self._adds = np.repeat(np.eye(len(lengths), dtype=np.float32), lengths, axis=1)
        self._roots: list[tuple[slice, Float32Array, slice]] = []
        folded, heads, start = [], self._theta.shape[1], 0
        for member, length in zip(with_widths, lengths, strict=True):
            root = _root(member)
            if member.takes_contexts:
                folded.append(firsts[member].weight @ root.reshape(len(root), -1))
            else:
                at, step = places[member], _aligned(-(-length // max(length // _BLOCK, 1)))
                for first in range(0, length, step):  # what stands above the diagonal is zero, and is left out
                    block = root[first:, first : first + step].reshape(len(root) - first, -1).astype(np.float32)
                    where = (start + first) * heads
                    self._roots.append((slice(at + first, at + len(root)), block, slice(where, where + block.shape[1])))
            start += length
        self._spare = -(len(low) + sum(part.shape[1] for part in folded)) % _ALIGNED
        columns = [*(first.weight for first in firsts.values()), np.zeros((n_features + 1, self._spare)), *folded]
        weight = np.concatenate(columns, axis=1)
        offset = max(first.offset for first in firsts.values())
        self._range: tuple[FloatArray, FloatArray] | None = None
        if before is not None:  # it clips, and is a linear function of what is left, which is folded into the weights
            reach, slope = before.clip * before.deviation, before.scale / before.deviation
            self._range = before.mean - reach, before.mean + reach
            if not np.abs(self._range).max() < _LARGEST_WEIGHT:
                raise OverflowError("a column has numbers too large for single precision")
            bias = weight[-2:].sum(axis=0) - (before.mean * slope) @ weight[:-2]  # a feature of 1, and the 1 of a bias
            weight = np.vstack([slope[:, None] * weight[:-2], bias])
            offset = max(offset, 1.0) * max(float(np.abs(before.mean / before.deviation).max()), 1.0)
        if not np.abs(weight).max(initial=0.0) < _LARGEST_WEIGHT:
            raise OverflowError("a column has a deviation of almost nothing")
        kind = np.float32 if offset <= _LARGEST_OFFSET else np.float64
        self._weight, self._low = weight.astype(kind), low.astype(kind)
        self._high = high[: np.isfinite(high).nonzero()[0].max(initial=-1) + 1].astype(kind)
        self._sums = np.ones((3, 1 + len(with_widths)))
        self._sums[0, 1:], self._sums[1, 0], self._sums[2, 1:] = 0.0, 0.0, min(optimism, _LARGEST_WEIGHT)
        self._free: list[Callable[[AnyArray], FloatArray]] = []

    def __getstate__(self) -> dict[str, Any]:
        """Without functions that have arrays of their own."""
        return {**self.__dict__, "_free": []}

    @classmethod
    def of(
        cls,
        members: Sequence[Member],
        n_inputs: int,
        optimism: float = 0.0,
        before: TransformStep | None = None,
    ) -> RowScorer | None:
        """One for members that it can fold: perceptrons and linear members beside them, or one of images and constants.

        ``optimism`` is what a width counts in the score of an arm, ``before`` the policy's own transform.
        """
        if before is not None and not (isinstance(before, StandardiseStep) and before.axes is None):
            return None
        if sum(n_inputs * member.dimension + member.inverse.size for member in members) > _MOST_NUMBERS:
            return None
        for member in members:
            if member.network is None:
                folds = getattr(member.transform, "axes", None) is None
            elif member.transform is not None:
                folds = False
            elif isinstance(member.network, ConvNetwork):
                folds = before is None and all(other is member or other.constant for other in members)
            else:
                folds = isinstance(member.network, MlpNetwork) and len(member.network.layers) > 1
            if not folds:
                return None
        try:
            return (
                cls(members, n_inputs, optimism, before)
                if any(member.network is not None for member in members)
                else None
            )
        except (OverflowError, np.linalg.LinAlgError):  # or rounding left an inverse that is not positive definite
            return None

    @property
    def reads_images(self) -> bool:
        """Whether contexts are images (channels, height, width) and no numbers."""
        return self._convolutions is not None

    def __call__(self, context: AnyArray) -> FloatArray:
        """Means, widths and scores, (3, K), of numbers, or of an image (channels, height, width)."""
        try:
            score = self._free.pop()  # threads share the scorer; nobody else has these arrays until they are put back
        except IndexError:
            score = self._with_arrays()
        scores = score(context)
        self._free.append(score)
        return scores

    def _with_arrays(self) -> Callable[[AnyArray], FloatArray]:
        """``__call__`` on arrays and parts of them that are its own: they take longer to make than to fill."""
        kind, convolutions, n_latent = self._weight.dtype, self._convolutions, self._n_latent
        n_hidden, n_features = sum(n for n, _ in self._networks), len(self._theta)
        n_first = len(self._low)
        start, shape = n_latent + n_first + self._spare, (self._adds.shape[1], self._theta.shape[1])
        outputs = np.ones(start + math.prod(shape), np.float32)  # where images are read, constants stay as they are
        features, products = outputs[:n_features], outputs[start:]
        squares = products.reshape(shape)
        single: Any = outputs[n_latent : n_latent + self._weight.shape[1]]
        first = single if kind == np.float32 else np.empty(len(single), kind)
        clipped, bounded = first[:n_first], first[: len(self._high)]
        hidden = outputs[n_features : n_features + n_hidden]
        row = hidden if convolutions is not None else np.empty(len(self._weight), kind)
        row[-1] = 1.0
        layers, latents, rest = [], [], outputs
        for n, steps in self._networks:
            inputs, hidden = hidden[:n], hidden[n:]
            for weight, least in steps:
                units = np.empty(weight.shape[1], np.float32)
                if least is None:
                    units, rest = rest[: len(units)], rest[len(units) :]
                    latents.append((units, np.empty((), np.float32)))
                layers.append((inputs.dot, weight, units, least))
                inputs = units
        roots = [(features[place].dot, root, products[where]) for place, root, where in self._roots]
        predicted = np.empty((self._sums.shape[1], self._theta.shape[1]), np.float32)
        stacked = np.empty(predicted.shape)
        place, within, mean, widths = row[:-1], np.empty(len(row) - 1), predicted[0], predicted[1:]
        low, high, span, weights, theta = self._low, self._high, self._range, self._weight, self._theta
        read, predict, add, combine = row.dot, features.dot, self._adds.dot, self._sums.dot

        def score(context: AnyArray) -> FloatArray:
            if convolutions is not None:
                place[...] = convolutions(context)
            else:
                flat = context if context.ndim == 1 else context.reshape(-1)
                if span is not None:  # in double precision, for numbers may be too large for single precision
                    _maximum(flat, span[0], out=within)
                    flat = _minimum(within, span[1], out=within)
                place[...] = flat
                read(weights, first)
                _maximum(clipped, low, out=clipped)
                if len(high):
                    _minimum(bounded, high, out=bounded)
                if single is not first:
                    single[...] = first
            for multiply, weight, outputs, least in layers:
                multiply(weight, outputs)
                if least is not None:
                    _maximum(outputs, least, out=outputs)
            for latent, norm in latents:
                norm[...] = max(math.sqrt(latent.dot(latent)), 1e-12)
                _divide(latent, norm, latent)
            for multiply, weight, outputs in roots:
                multiply(weight, outputs)
            predict(theta, mean)
            _multiply(products, products, products)
            _sqrt(add(squares, widths), widths)
            stacked[...] = predicted
            return combine(stacked)

        return score


_maximum, _minimum, _divide, _multiply, _sqrt = np.maximum, np.minimum, np.divide, np.multiply, np.sqrt

# Weights (inputs + 1, outputs), the bias last, and the least that outputs may be: None for the last layer.
_Layer = tuple[Float32Array, Float32Array | None]


class _First(NamedTuple):
    """What a member makes of a context x (d,) at first: (x, 1) @ weight, clipped to low and high."""

    weight: AnyArray
    low: AnyArray
    high: AnyArray
    offset: float
    layers: list[_Layer]  # what follows in a network


def _first(member: Member, n_inputs: int) -> _First:
    if isinstance(member.network, ConvNetwork):  # maps and a 1 are all that it reads
        layers = _with_biases(member.network.layers)
        rows = np.ones(len(layers[0][0]))
        return _First(np.zeros((n_inputs + 1, 0)), rows, rows, 0.0, layers)
    if isinstance(member.network, MlpNetwork):
        first, bias, offset = member.network.first_layer()
        (weight, low), *layers = _with_biases([(first, bias), *member.network.layers[1:]])
        assert low is not None
        return _First(weight, low, np.full(len(low), np.inf), offset, layers)
    step: Any = member.transform
    if member.constant:
        return _First(np.eye(n_inputs + 1)[:, -1:], np.ones(1), np.full(1, np.inf), 0.0, [])
    if step is None:
        high = np.full(n_inputs, np.inf)
        return _First(np.eye(n_inputs + 1, n_inputs), -high, high, 0.0, [])
    if isinstance(step, PiecewiseStep):
        slope, least = step.scale / step.width, -step.scale * step.centre
        ramps = np.zeros((n_inputs + 1, step.n_features))
        ramps[step.column, np.arange(1, step.n_features)] = slope
        ramps[-1] = np.append(1.0, least - slope * step.start)
        effect = step.scale * member.share * np.abs(member.theta[:, 1:]).max(axis=0)  # of a whole ramp on means
        offset = float((effect * (1.0 + np.abs(step.start)) / step.width).max(initial=0.0))
        return _First(ramps, np.append(1.0, least), np.append(1.0, least + step.scale), offset, [])
    weight = np.eye(n_inputs + 1) * np.append(step.scale / step.deviation, 1.0)
    weight[-1, :-1] = -step.scale * step.mean / step.deviation
    high = np.append(np.full(n_inputs, step.clip * step.scale), 1.0)
    return _First(weight, -high, high, float(np.abs(step.mean / step.deviation).max()), [])


def _with_biases(dense: Sequence[tuple[AnyArray, AnyArray]]) -> list[_Layer]:
    """Every layer but the last has a further unit that is always 1, whose weights in the next layer are its bias."""
    layers: list[_Layer] = []
    rows = len(dense[0][0]) + 1
    for number, (weight, bias) in enumerate(dense, 1):
        inputs, outputs = weight.shape
        is_last = number == len(dense)
        layer = np.zeros((rows, outputs if is_last else _aligned(outputs + 1)), weight.dtype)
        layer[:inputs, :outputs], layer[inputs, :outputs] = weight, bias
        if not is_last:
            layer[inputs, outputs] = 1.0
        rows = layer.shape[1]
        layers.append((layer, None if is_last else np.zeros(rows, np.float32)))
    return layers


def _root(member: Member) -> FloatArray:
    """R of all regressions with the width's share, (d, r, K): triangular with r = d, or zeros with r = 1."""
    if not member.width_share:
        return np.zeros((member.dimension, 1, len(member.theta)))
    roots: FloatArray = np.linalg.cholesky(member.inverse) * np.float64(member.width_share)
    return roots.transpose(1, 2, 0)


def _aligned(columns: int) -> int:
    return -(-columns // _ALIGNED) * _ALIGNED
