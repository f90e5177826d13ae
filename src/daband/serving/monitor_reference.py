"""What training saw of the contexts that a policy will decide on, as counts: the monitor compares with it.

Of every reference context a few *summary scores* are taken: the numbers of a vector, brightness and contrast of an
image, and what the policy predicts there. Each score is cut into bins. The edges of the bins come from one half of the
reference contexts and the counts from the other half, so that, with the edges given, the counted contexts and those
that arrive later are exchangeable as long as nothing changes. No context and no score of a single one is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray

__all__ = ["MOST_CONTEXTS", "Reference", "bins_of", "build_reference", "summary_names", "summary_scores"]

MOST_CONTEXTS = 4096
"""How many reference contexts are looked at."""
LEAST_CONTEXTS = 64
"""With fewer there is nothing to compare with."""
_BINS = 10
_BESIDE = 1e-9
_MOST_NUMBERS = 256
"""Vectors of more numbers are watched by what the policy predicts alone."""


@dataclass(frozen=True)
class Reference:
    """Edges (scores, bins - 1) and counts (scores, bins) of summary scores, and how often each arm was preferred, (K,).

    Edges that a score does not use are infinite. With one context per arm there are no arms to count: (0,).
    """

    names: tuple[str, ...]
    edges: FloatArray
    counts: IntArray
    arms: IntArray

    def __post_init__(self) -> None:
        if self.counts.shape != (len(self.names), self.edges.shape[1] + 1) or len(self.edges) != len(self.names):
            raise ValueError(f"edges {self.edges.shape} and counts {self.counts.shape} of {len(self.names)} scores")


def summary_names(shape: Sequence[int], *, image: bool, feature_names: Sequence[str], n_arms: int) -> tuple[str, ...]:
    """The names of the summary scores of contexts of this shape, (K, *shape) where there is one per arm."""
    size = int(np.prod(shape))
    names: list[str] = []
    if image:
        names = ["brightness", "contrast"]
    elif size <= _MOST_NUMBERS:
        names = list(feature_names) if len(feature_names) == size else [f"number {at}" for at in range(size)]
    names += ["predicted reward", "width"]
    return tuple([*names, "margin"] if n_arms > 1 else names)


def summary_scores(
    contexts: AnyArray, mean: FloatArray, width: FloatArray, *, dimensions: int, image: bool, multiplier: float
) -> tuple[FloatArray, IntArray]:
    """Scores (n, J) of contexts (n, ...) with means and widths (n, K), and the preferred arms (n,).

    The preferred arm has the largest mean plus ``multiplier`` times the width among all arms, whatever is available.
    """
    n = len(contexts)
    parts: list[FloatArray] = []
    if image:
        flat = contexts.reshape(n, -1).astype(np.float64)
        flat = flat / 255.0 if contexts.dtype == np.uint8 else flat
        parts = [flat.mean(axis=1, keepdims=True), flat.std(axis=1, keepdims=True)]
    elif dimensions <= _MOST_NUMBERS:
        per_arm = contexts.reshape(n, -1, dimensions).astype(np.float64)
        parts = [per_arm.mean(axis=1) / (255.0 if contexts.dtype == np.uint8 else 1.0)]
    scores = mean + multiplier * width
    preferred: IntArray = scores.argmax(axis=1)
    rows = np.arange(n)
    parts += [mean[rows, preferred, None], width[rows, preferred, None]]
    if scores.shape[1] > 1:
        two = np.partition(scores, scores.shape[1] - 2, axis=1)[:, -2:]
        parts.append(two[:, 1:] - two[:, :1])
    return np.concatenate(parts, axis=1), preferred


def bins_of(scores: FloatArray, edges: FloatArray) -> IntArray:
    """The bin of each score: scores (J,) or (n, J), edges (J, B - 1); as many as there are edges below it."""
    found: IntArray = (edges < scores[..., None]).sum(axis=-1)
    return found


def build_reference(
    names: Sequence[str], scores: FloatArray, preferred: IntArray, *, n_arms: int, count_arms: bool
) -> Reference | None:
    """The reference for scores (n, J) and preferred arms (n,) of reference contexts; None where they are too few."""
    n = len(scores)
    if n < LEAST_CONTEXTS:
        return None
    order = np.random.default_rng(n).permutation(n)  # contexts may be sorted
    first, second = order[: n // 2], order[n // 2 :]
    cuts = [_cuts(column) for column in scores[first].T]
    edges = np.full((len(cuts), max(len(own) for own in cuts)), np.inf)
    for score, own in enumerate(cuts):
        edges[score, : len(own)] = own
    counts = np.zeros((len(edges), edges.shape[1] + 1), np.int64)
    for row in bins_of(scores[second], edges):
        counts[np.arange(len(row)), row] += 1
    arms = np.bincount(preferred[second], minlength=n_arms) if count_arms else np.zeros(0, np.int64)
    return Reference(tuple(names), edges, counts, arms.astype(np.int64))


def reference_from(header: Mapping[str, Any] | None, arrays: Mapping[str, AnyArray]) -> Reference | None:
    """The reference that a file describes."""
    if header is None:
        return None
    return Reference(tuple(header["names"]), arrays["edges"], arrays["counts"], arrays["arms"])


def _cuts(values: FloatArray) -> FloatArray:
    """Edges of bins of about equal counts, halfway between neighbouring values and never at one.

    A value that many contexts share has an edge on both sides, so that whatever differs from it falls elsewhere.
    """
    distinct = np.unique(values)
    ordered = np.sort(values)
    below = (np.arange(1, _BINS) * len(ordered)) // _BINS
    cuts = []
    for lower, upper in zip(ordered[below - 1], ordered[below], strict=True):
        if lower < upper:
            cuts.append(0.5 * (lower + upper))
            continue
        at = int(np.searchsorted(distinct, lower))
        beside = _BESIDE * (1.0 + abs(float(lower)))
        cuts.append(0.5 * (lower + distinct[at - 1]) if at > 0 else lower - beside)
        cuts.append(0.5 * (lower + distinct[at + 1]) if at + 1 < len(distinct) else lower + beside)
    return np.unique(np.array(cuts))
