"""Find the decision tree that has the largest sum of scores.

Trees of depth 1 and 2 are exact over the given cuts: no other tree has a larger sum. A histogram of
scores over two columns gives the sums of all regions between two cuts, so that the search of depth
2 takes time that is linear in the number of rounds. In a tree of depth 3, the first split is one of
the ``_N_FIRST_SPLITS`` first splits with the best trees of depth 2, and its two sides are exact
trees of depth 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from daband.base._arrays import BoolArray, FloatArray, IntArray

#: Number of first splits that the search of depth 3 tries.
_N_FIRST_SPLITS = 8
#: A split must increase the value by this fraction of the sum of absolute scores.
_MIN_GAIN = 1e-9


class CodedColumn(NamedTuple):
    """A column whose values are integers, and the conditions that a tree may use.

    Condition i is ``codes <= i`` if the column is ordered, and ``codes == i`` otherwise.
    """

    #: The codes, (n,), of 0 to ``n_cuts`` if the column is ordered. Otherwise, codes that are not
    #: below ``n_cuts`` have no condition.
    codes: IntArray
    #: The number of conditions.
    n_cuts: int
    is_ordered: bool

    def sum_yes(self, histogram: FloatArray, axis: int) -> FloatArray:
        """Return the sums of the rounds for which each condition is true, from sums by code along
        an axis.
        """
        if self.is_ordered:
            histogram = histogram.cumsum(axis=axis)
        return np.take(histogram, np.arange(self.n_cuts), axis=axis)

    def apply(self, cut: int) -> BoolArray:
        """Return True for the rounds for which a condition is true, (n,)."""
        return self.codes <= cut if self.is_ordered else self.codes == cut


@dataclass(frozen=True)
class FoundSplit:
    """A node of a tree: the condition, and the nodes for rounds for which it is true or false."""

    #: The index of the column.
    column: int
    #: The index of the condition of this column.
    cut: int
    yes: FoundNode
    no: FoundNode


#: A split, or the arm of a leaf.
FoundNode: TypeAlias = FoundSplit | int


def search_tree(
    scores: FloatArray,
    columns: Sequence[CodedColumn],
    *,
    depth: int,
    counts: FloatArray | None = None,
    min_count: float = 0.0,
) -> tuple[float, FoundNode]:
    """Return the largest sum of scores of a tree's arms, and the tree.

    Args:
        scores: the weighted score of each arm in each round, (n, K); minus infinity is not allowed.
        columns: the columns with their conditions.
        depth: the maximum number of conditions of a round, 0 to 3.
        counts: how much each round counts for each arm, (n, K).
        min_count: the minimum sum of the counts of an arm in a leaf in which it is chosen.
    """
    stacked = scores if counts is None else np.concatenate([scores, counts], axis=1)
    n_arms = scores.shape[1]
    search = _Search(np.ascontiguousarray(stacked.T), n_arms, min_count)
    tolerance = _MIN_GAIN * float(np.abs(scores).sum())
    return search.grow(columns, np.arange(len(scores)), depth, tolerance)


class _Search:
    """Searches trees on subsets of the rounds."""

    def __init__(self, stacked: FloatArray, n_arms: int, min_count: float) -> None:
        #: Scores, and counts if there are any, (K or 2 K, n).
        self._stacked = stacked
        self._n_arms = n_arms
        self._min_count = min_count

    def grow(
        self, columns: Sequence[CodedColumn], rows: IntArray, depth: int, tolerance: float
    ) -> tuple[float, FoundNode]:
        """Return the value of the best tree of the rounds ``rows``, and the tree."""
        total = self._stacked[:, rows].sum(axis=1)
        values = self._compute_arm_values(total)
        best: tuple[float, FoundNode] = float(values.max()), int(values.argmax())
        if not depth or not len(rows):
            return best
        subset = [column._replace(codes=column.codes[rows]) for column in columns]
        if depth == 1:
            first_values = self._score_single_splits(subset, rows)
        else:
            first_values = self._score_double_splits(subset, rows)
        n_tried = 1 if depth < 3 else _N_FIRST_SPLITS
        for column, cut in _find_largest(first_values, n_tried):
            is_yes = subset[column].apply(cut)
            sides = [
                self.grow(columns, rows[side], depth - 1, tolerance) for side in (is_yes, ~is_yes)
            ]
            value = sides[0][0] + sides[1][0]
            if value > best[0] + tolerance:
                best = value, FoundSplit(column, cut, sides[0][1], sides[1][1])
        return best

    def _compute_arm_values(self, sums: FloatArray) -> FloatArray:
        """Return the value of choosing each arm (K, ...) in regions with these sums (K or 2 K,
        ...).
        """
        values = sums[: self._n_arms]
        if len(sums) > self._n_arms:
            values = np.where(sums[self._n_arms :] >= self._min_count, values, -np.inf)
        return values

    def _sum_by_code(self, codes: IntArray, n_codes: int, rows: IntArray) -> FloatArray:
        """Return the sums of scores and counts by code, (K or 2 K, n_codes)."""
        return np.stack(
            [np.bincount(codes, weights[rows], minlength=n_codes) for weights in self._stacked]
        )

    def _score_single_splits(
        self, columns: Sequence[CodedColumn], rows: IntArray
    ) -> list[FloatArray]:
        """Return the value of each tree with one split, (cuts,) for each column."""
        results = []
        for column in columns:
            histogram = self._sum_by_code(column.codes, column.n_cuts + 1, rows)
            yes = column.sum_yes(histogram, axis=1)
            no = histogram.sum(axis=1, keepdims=True) - yes
            results.append(self._score_regions(yes) + self._score_regions(no))
        return results

    def _score_double_splits(
        self, columns: Sequence[CodedColumn], rows: IntArray
    ) -> list[FloatArray]:
        """Return the value of the best tree of depth 2 with each first split, (cuts,) for each
        column.
        """
        # the value of the best subtree of both sides of each first split, (2, cuts)
        best = [np.full((2, column.n_cuts), -np.inf) for column in columns]
        for i, first in enumerate(columns):
            n_first = first.n_cuts + 1
            for j in range(i, len(columns)):
                second = columns[j]
                n_second = second.n_cuts + 1
                joint = self._sum_by_code(
                    first.codes * n_second + second.codes, n_first * n_second, rows
                ).reshape(-1, n_first, n_second)
                self._improve(best[i], joint, first, second)
                if j > i:
                    self._improve(best[j], joint.transpose(0, 2, 1), second, first)
        return [sides.sum(axis=0) for sides in best]

    def _improve(
        self, best: FloatArray, joint: FloatArray, first: CodedColumn, second: CodedColumn
    ) -> None:
        """Raise the values ``best`` (2, cuts) of the sides of first splits to those with a split of
        the second column, or with one arm.
        """
        first_yes = first.sum_yes(joint, axis=1)
        first_no = joint.sum(axis=1, keepdims=True) - first_yes
        for side, sums in enumerate((first_yes, first_no)):
            total = sums.sum(axis=2, keepdims=True)
            yes = second.sum_yes(sums, axis=2)
            values = self._score_regions(yes) + self._score_regions(total - yes)
            values = np.concatenate([values, self._score_regions(total)], axis=1)
            np.maximum(best[side], values.max(axis=1), out=best[side])

    def _score_regions(self, sums: FloatArray) -> FloatArray:
        """Return the value of the best arm of each region, (...), from its sums (K or 2 K, ...)."""
        return self._compute_arm_values(sums).max(axis=0)


def _find_largest(values: Sequence[FloatArray], n: int) -> list[tuple[int, int]]:
    """Return the column and the cut of the n largest values, the largest first."""
    pairs = [(column, cut) for column, array in enumerate(values) for cut in range(len(array))]
    if not pairs:
        return []
    order = np.argsort(-np.concatenate(list(values)), kind="stable")[:n]
    return [pairs[index] for index in order]
