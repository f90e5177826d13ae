"""Find the conditions on raw columns that the tree of a rule may use.

A number has cuts at quantiles, each the number with the fewest digits near the quantile. A boolean
is compared with true, a category with each frequent category, and a date with the first days of
years. Columns of
images and texts, and numbers that the domains measure in other units, have no conditions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Decimal
from typing import NamedTuple

import numpy as np

from daband.base._arrays import BoolArray, FloatArray, IntArray
from daband.domains._contract import Pair
from daband.features._table_transform import CategoricalColumn, DateColumn, NumericColumn
from daband.logs._tree_search import CodedColumn, FoundNode
from daband.serving._rule import Node, Split

#: Maximum number of conditions of a column, by the depth of the tree.
MAX_CUTS = {1: 64, 2: 32, 3: 16}
#: Significant digits to which numbers are restored from standardised features.
_DIGITS = 12


class RuleColumn(NamedTuple):
    """A column with its conditions."""

    name: str
    #: The kind of its splits, as in ``Split``.
    kind: str
    #: The value of each condition.
    values: Sequence[float | str]
    #: The index of the feature that decides each condition, and its threshold.
    features: Sequence[int]
    thresholds: Sequence[float]
    #: True if the condition is true for a missing value.
    or_missing: Sequence[bool]
    coded: CodedColumn

    def make_split(self, cut: int, yes: Node, no: Node) -> Split:
        """Return a split by one of the conditions."""
        return Split(
            column=self.name,
            kind=self.kind,
            value=self.values[cut],
            or_missing=self.or_missing[cut],
            feature=self.features[cut],
            threshold=float(self.thresholds[cut]),
            yes=yes,
            no=no,
        )


def list_columns(pair: Pair, contexts: FloatArray, max_cuts: int) -> list[RuleColumn]:
    """Return the columns of contexts (n, d) that have a condition."""
    has_own_units = pair.shift.mask_separate_columns(contexts.shape[1])
    columns: list[RuleColumn | None] = []
    if pair.table is None:
        names = pair.feature_names or [f"x{index}" for index in range(contexts.shape[1])]
        columns = [
            _list_cuts(name, contexts[:, index], index, max_cuts)
            for index, name in enumerate(names)
            if not has_own_units[index]
        ]
    else:
        start = 0
        for column in pair.table.columns:
            if isinstance(column, CategoricalColumn):
                columns.append(_list_categories(column, contexts, start, max_cuts))
            elif isinstance(column, DateColumn) and column.mean > 0:
                values = contexts[:, start] * column.std + column.mean
                if column.flags_missing:  # the features of a missing date are 0
                    values = values[contexts[:, start + len(column.feature_names) - 1] == 0.0]
                years = np.unique(values.round())[1:][-max_cuts:]
                thresholds = (years - column.mean) / column.std
                dates = [f"{int(year):04d}-01-01" for year in years]
                columns.append(
                    _make_ordered(
                        column.name, "before", dates, thresholds, 0.0, contexts[:, start], start
                    )
                )
            elif isinstance(column, NumericColumn) and not has_own_units[start]:
                columns.append(_list_cuts(column.name, contexts[:, start], start, max_cuts, column))
            start += len(column.feature_names)
    return [column for column in columns if column is not None and column.coded.n_cuts]


def build_node(found: FoundNode, columns: Sequence[RuleColumn]) -> tuple[Node, list[int]]:
    """Return a tree that was found, without splits whose leaves have the same arm, and the arm of
    each leaf.
    """
    arms: list[int] = []

    def build(node: FoundNode) -> Node:
        if isinstance(node, int):
            arms.append(node)
            return len(arms) - 1
        first = len(arms)
        yes, no = build(node.yes), build(node.no)
        if isinstance(yes, int) and isinstance(no, int) and arms[yes] == arms[no]:
            del arms[first + 1 :]
            return first
        return columns[node.column].make_split(node.cut, yes, no)

    return build(found), arms


def apply_found(found: FoundNode, columns: Sequence[RuleColumn]) -> IntArray:
    """Return the arm of each round by a tree that was found, (n,)."""
    if isinstance(found, int):
        return np.full(len(columns[0].coded.codes), found)
    is_yes = columns[found.column].coded.apply(found.cut)
    return np.where(is_yes, apply_found(found.yes, columns), apply_found(found.no, columns))


def select_rows(columns: Sequence[RuleColumn], rows: BoolArray) -> list[CodedColumn]:
    """Return the codes of the rounds for which a mask is True."""
    return [column.coded._replace(codes=column.coded.codes[rows]) for column in columns]


def _list_categories(
    column: CategoricalColumn, contexts: FloatArray, start: int, max_cuts: int
) -> RuleColumn:
    """Return the most frequent categories of a column."""
    one_hot = contexts[:, start : start + len(column.categories)]
    present = [index for text, index in column.index.items() if text is not None]
    frequencies = one_hot.sum(axis=0)
    kept = sorted(sorted(present, key=lambda index: -frequencies[index])[:max_cuts])
    codes = np.full(len(contexts), len(kept))
    for code, index in enumerate(kept):
        codes[one_hot[:, index] > 0.5] = code
    return RuleColumn(
        column.name,
        "equals",
        [column.categories[index] for index in kept],
        [start + index for index in kept],
        [0.5] * len(kept),
        [False] * len(kept),
        CodedColumn(codes, len(kept), is_ordered=False),
    )


def _list_cuts(
    name: str, feature: FloatArray, index: int, max_cuts: int, column: NumericColumn | None = None
) -> RuleColumn | None:
    """Return the cuts of a number.

    Args:
        name: the name of the column.
        feature: its values in the contexts, (n,).
        index: their index in a context.
        max_cuts: maximum number of cuts.
        column: the transform of the column; None if contexts are not transformed.
    """
    raw = feature.astype(np.float64)
    if column is not None:
        raw = raw * column.std + column.mean
    distinct = np.unique([float(f"{value:.{_DIGITS}g}") for value in np.unique(raw)])
    if len(distinct) < 2:
        return None
    if column is not None and column.is_boolean:
        threshold = (0.5 - column.mean) / column.std
        is_false = (feature < threshold).astype(np.int64)
        return RuleColumn(
            name,
            "equals",
            ["true"],
            [index],
            [threshold],
            [column.median > 0.5],
            CodedColumn(is_false, 1, is_ordered=False),
        )
    gaps = list(itertools.pairwise(distinct.tolist()))
    if len(gaps) > max_cuts:  # half of a bin around each quantile
        levels = (np.arange(1, max_cuts + 1)[:, None] + [-0.25, 0.25]) / (max_cuts + 1)
        quantiles = np.quantile(raw, levels.ravel(), method="nearest").reshape(-1, 2)
        gaps = [(low, high) for low, high in quantiles.tolist() if low < high]
        if not gaps:
            gaps = [(distinct[0], distinct[1])]
    cuts = np.unique([_find_short_number(low, high) for low, high in gaps])
    thresholds = cuts if column is None else (cuts - column.mean) / column.std
    missing = np.inf if column is None else (column.median - column.mean) / column.std
    return _make_ordered(name, "below", cuts.tolist(), thresholds, missing, feature, index)


def _make_ordered(
    name: str,
    kind: str,
    values: Sequence[float | str],
    thresholds: FloatArray,
    missing: float,
    feature: FloatArray,
    index: int,
) -> RuleColumn:
    """Return a column whose conditions are that a feature (n,) is below thresholds.

    ``missing`` is the feature of a missing value.
    """
    codes = np.searchsorted(thresholds, feature, side="right")
    return RuleColumn(
        name,
        kind,
        values,
        [index] * len(thresholds),
        thresholds.tolist(),
        (missing < thresholds).tolist(),
        CodedColumn(codes, len(thresholds), is_ordered=True),
    )


def _find_short_number(low: float, high: float) -> float:
    """Return the number with the fewest significant digits that is above ``low`` and at most
    ``high``.
    """
    upper = Decimal(repr(high))
    lower = Decimal(repr(low))
    exponent = max(upper.adjusted(), lower.adjusted()) + 1
    for power in range(exponent, exponent - 17, -1):
        step = Decimal(1).scaleb(power)
        candidate = (upper / step).to_integral_value(ROUND_FLOOR) * step
        if candidate > lower and low < float(candidate) <= high:
            return float(candidate)
    return high
