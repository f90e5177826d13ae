"""Compute principal components of contexts with many dimensions, in a few passes and with little
memory.

``PCA`` is the transform that users fit. ``PcaStep`` is the fitted transform for one domain, which
saved files store.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from daband.base._arguments import check_int
from daband.base._arrays import (
    AnyArray,
    ArrayLike,
    FloatArray,
    Shape,
    as_numpy,
    take_chosen,
    to_floats,
)
from daband.errors import InvalidInput
from daband.features._fitted_steps import Step, StepTransform


@dataclass(frozen=True)
class PcaStep(Step):
    """A fitted PCA for one domain. It maps flat contexts (n, d) to components (n, m)."""

    #: The number that is subtracted from each column, (d,).
    centre: FloatArray
    #: The principal axes, (m, d).
    axes: FloatArray
    kind: ClassVar[str] = "pca"

    @property
    def n_inputs(self) -> int:  # type: ignore[override]
        return len(self.centre)

    def __call__(self, rows: FloatArray) -> FloatArray:
        return (rows - self.centre).dot(self.axes.T)


#: Maximum number of dimensions for an exact eigendecomposition of the covariance.
_MAX_EXACT_DIM = 1024
#: The number of additional directions of the randomised method, which make it more accurate.
_N_EXTRA_DIRECTIONS = 16
#: The number of power iterations of the randomised method.
_N_POWER_ITERATIONS = 4


class PCA(StepTransform[PcaStep]):
    """A transform of contexts to their leading principal components.

    Use it as ``transform=PCA(64)`` of a policy.

    It is fitted on unlabelled contexts of both source and target, before the first round.
    ``daband.train`` does this, or ``policy.prepare(source_contexts, target_contexts)``, or ``fit``.

    Up to 1,024 dimensions, the covariance is summed in one pass and decomposed exactly. Above, a
    randomised subspace iteration (Halko, Martinsson, Tropp 2011) passes over the contexts five
    times and needs a few megabytes.

    Args:
        n_components: the number of principal components.
        seed: determines the random start of the subspace iteration.
        by_domain: if True, each domain is centred by its own mean instead of the common mean. The
            axes are common.

    >>> policy = daband.LinUCB(context_shape=(4,), n_arms=2, transform=daband.PCA(2))
    >>> policy.prepare([[1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 4.0, 3.0], [0.0, 1.0, 0.0, 1.0]])
    >>> policy.feature_shape
    (2,)
    """

    step_class = PcaStep

    def __init__(self, n_components: int, *, seed: int = 0, by_domain: bool = False) -> None:
        super().__init__()
        self.n_components = check_int("n_components", n_components, minimum=1)
        self.seed = check_int("seed", seed, minimum=0)
        self.by_domain = by_domain

    def __repr__(self) -> str:
        return f"PCA({self.n_components})"

    def n_features(self, context_shape: Shape) -> int:  # noqa: ARG002
        return self.n_components

    @property
    def axes(self) -> FloatArray:
        """The principal axes, (n_components, d): orthonormal, sorted by decreasing variance."""
        return self.get_step().axes

    def fit(self, *contexts: ArrayLike) -> PCA:
        """Fit on batches of contexts (n_i, *C), and return this object.

        With ``by_domain``, the i-th batch has the contexts of domain i, and may be empty.
        """
        all_batches, dim = flatten_batches(contexts)
        batches = [batch for batch in all_batches if len(batch)]
        n = sum(len(batch) for batch in batches)
        if n < 2:
            raise InvalidInput(f"PCA needs at least two contexts to be fitted on, got {n}")
        if self.n_components > min(dim, n):
            raise InvalidInput(
                f"n_components must be at most {min(dim, n)} for this data, got {self.n_components}"
            )
        groups = [[batch] for batch in batches] if self.by_domain else [batches]
        centres = [
            sum((block.sum(axis=0) for block in _split_blocks(group)), np.zeros(dim))
            / sum(map(len, group))
            for group in groups
        ]
        if not np.isfinite(centres).all():
            raise InvalidInput(
                "contexts to fit PCA on must be finite, but one has a NaN or infinite value"
            )
        compute_axes = (
            self._compute_exact_axes if dim <= _MAX_EXACT_DIM else self._compute_randomised_axes
        )
        axes = compute_axes(batches, centres if self.by_domain else centres * len(batches))
        # the sign of an eigenvector is arbitrary
        axes *= np.sign(take_chosen(axes, np.abs(axes).argmax(axis=1)))[:, None]
        axes = np.ascontiguousarray(axes)
        if self.by_domain:  # an empty batch gets the first centre
            own_centres = iter(centres)
            centres = [next(own_centres) if len(batch) else centres[0] for batch in all_batches]
        self._steps = [PcaStep(centre, axes) for centre in centres]
        return self

    def __call__(self, contexts: AnyArray, domain: int = 0) -> FloatArray:
        step = self.get_step(domain)
        rows = contexts.reshape(-1, step.n_inputs)
        components = np.empty((len(rows), self.n_components))
        start = 0
        for block in _split_blocks([rows]):
            components[start : start + len(block)] = step(block)
            start += len(block)
        return components

    def settings(self) -> dict[str, Any]:
        return {
            "n_components": self.n_components,
            "seed": self.seed,
            "by_domain": self.by_domain,
        }

    def _compute_exact_axes(
        self, batches: Sequence[AnyArray], centres: Sequence[FloatArray]
    ) -> FloatArray:
        """Return the principal axes (m, d), from an eigendecomposition of the scatter matrix."""
        scatter = np.zeros((batches[0].shape[1], batches[0].shape[1]))
        for block in _centre_blocks(batches, centres):
            scatter += block.T @ block
        _, eigenvectors = np.linalg.eigh(scatter)
        return eigenvectors[:, ::-1][:, : self.n_components].T.copy()

    def _compute_randomised_axes(
        self, batches: Sequence[AnyArray], centres: Sequence[FloatArray]
    ) -> FloatArray:
        """Return the principal axes (m, d), from a randomised subspace iteration."""
        n = sum(len(batch) for batch in batches)
        dim = batches[0].shape[1]
        n_columns = min(self.n_components + _N_EXTRA_DIRECTIONS, dim, n)
        basis = np.random.default_rng(self.seed).standard_normal((dim, n_columns))
        for _ in range(_N_POWER_ITERATIONS):
            basis, _ = np.linalg.qr(_multiply_scatter(batches, centres, basis))
        small_scatter = basis.T @ _multiply_scatter(batches, centres, basis)
        _, eigenvectors = np.linalg.eigh(0.5 * (small_scatter + small_scatter.T))
        return (basis @ eigenvectors[:, ::-1][:, : self.n_components]).T


def flatten_batches(contexts: Sequence[ArrayLike]) -> tuple[list[AnyArray], int]:
    """Return batches of contexts (n_i, *C) as (n_i, d), and d.

    Raise an error unless d is equal for all batches.

    Empty batches may have any d.
    """
    batches = [as_numpy(batch, f"contexts[{i}]") for i, batch in enumerate(contexts)]
    if any(batch.ndim < 2 for batch in batches):
        raise InvalidInput("contexts must have shape (n, *C)")
    flat_batches = [batch.reshape(len(batch), math.prod(batch.shape[1:])) for batch in batches]
    dims = {batch.shape[1] for batch in flat_batches if len(batch)}
    if len(dims) > 1:
        raise InvalidInput(
            f"contexts of different dimensions cannot be fitted together: {sorted(dims)}"
        )
    return flat_batches, dims.pop() if dims else 0


def _multiply_scatter(
    batches: Sequence[AnyArray], centres: Sequence[FloatArray], basis: FloatArray
) -> FloatArray:
    """Return the scatter matrix (X - centre)'(X - centre) times ``basis`` (d, m), with one block of
    X at a time.
    """
    product = np.zeros_like(basis)
    for block in _centre_blocks(batches, centres):
        product += block.T @ (block @ basis)
    return product


def _centre_blocks(
    batches: Sequence[AnyArray], centres: Sequence[FloatArray]
) -> Iterable[FloatArray]:
    """Yield blocks of each batch, minus the batch's centre."""
    for batch, centre in zip(batches, centres, strict=True):
        for block in _split_blocks([batch]):
            yield block - centre


def _split_blocks(batches: Sequence[AnyArray]) -> Iterable[FloatArray]:
    """Yield the batches in float64 blocks of at most 32 MiB."""
    for batch in batches:
        block_rows = max(1, (32 << 20) // (8 * batch.shape[1]))
        for start in range(0, len(batch), block_rows):
            yield to_floats(batch[start : start + block_rows])
