"""The exact search of small trees agrees with a search of all trees."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daband.logs._tree_search import CodedColumn, FoundSplit, search_tree


def value_of(node, scores, columns, rows):
    if isinstance(node, FoundSplit):
        is_yes = columns[node.column].apply(node.cut)
        return value_of(node.yes, scores, columns, rows & is_yes) + value_of(
            node.no, scores, columns, rows & ~is_yes
        )
    return scores[rows, node].sum()


def brute_force(scores, columns, counts, min_count, depth, rows):
    """Return the value of the best tree, by trying all."""
    allowed = counts[rows].sum(axis=0) >= min_count
    best = max(np.where(allowed, scores[rows].sum(axis=0), -np.inf))
    if not depth:
        return best
    for column in columns:
        for cut in range(column.n_cuts):
            is_yes = column.apply(cut)
            sides = [
                brute_force(scores, columns, counts, min_count, depth - 1, rows & side)
                for side in (is_yes, ~is_yes)
            ]
            best = max(best, sum(sides))
    return best


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = draw(st.integers(1, 30))
    n_arms = draw(st.integers(1, 4))
    columns = []
    for _ in range(draw(st.integers(1, 3))):
        is_ordered = draw(st.booleans())
        n_cuts = draw(st.integers(1, 4))
        columns.append(CodedColumn(rng.integers(0, n_cuts + 1, n), n_cuts, is_ordered))
    counts = np.eye(n_arms)[rng.integers(0, n_arms, n)]
    return rng.normal(size=(n, n_arms)), columns, counts, draw(st.integers(0, 3))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problems(), st.integers(0, 2))
def test_no_tree_is_better(problem, depth):
    scores, columns, counts, min_count = problem
    value, tree = search_tree(scores, columns, depth=depth, counts=counts, min_count=min_count)
    rows = np.ones(len(scores), np.bool_)
    assert value == pytest.approx(
        brute_force(scores, columns, counts, min_count, depth, rows), abs=1e-6
    )
    if np.isfinite(value):
        assert value_of(tree, scores, columns, rows) == pytest.approx(value, abs=1e-6)


def test_depth_three_finds_three_nested_conditions():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, (3, 4000))
    columns = [CodedColumn(row, 3, is_ordered=True) for row in codes]
    is_best = (codes[0] <= 1) & (codes[1] <= 0) & (codes[2] <= 2)
    scores = np.stack([np.full(4000, 0.5), is_best.astype(float)], axis=1)
    value, tree = search_tree(scores, columns, depth=3)
    assert value == pytest.approx(np.where(is_best, 1.0, 0.5).sum())
    assert value_of(tree, scores, columns, np.ones(4000, np.bool_)) == pytest.approx(value)
    assert value > search_tree(scores, columns, depth=2)[0]


def test_a_useless_split_is_not_made():
    columns = [CodedColumn(np.arange(40) % 2, 1, is_ordered=True)]
    assert search_tree(np.tile([0.0, 1.0], (40, 1)), columns, depth=2)[1] == 1
