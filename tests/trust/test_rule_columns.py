"""Cuts of columns in a rule."""

import pytest

from daband.trust._rule_columns import _find_short_number


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(39.0, 40.0, 40.0), (31.2, 47.9, 40.0), (0.123, 0.1239, 0.1235), (-3.0, 2.0, 0.0)],
)
def test_cuts_have_few_digits(low, high, expected):
    cut = _find_short_number(low, high)
    assert low < cut <= high
    assert len(repr(cut)) <= len(repr(expected))
