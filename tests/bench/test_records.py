import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daband.bench._records import adjust_holm, compare_paired


def test_against_scipy():
    from scipy import stats

    rng = np.random.default_rng(3)
    for n in (2, 5, 30):
        first = rng.normal(size=n)
        second = rng.normal(0.4, size=n)
        ours = compare_paired(first, second)
        theirs = stats.ttest_rel(first, second)
        interval = theirs.confidence_interval(0.95)
        assert ours.p_value == pytest.approx(theirs.pvalue)
        assert (ours.low, ours.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
        assert ours.difference == pytest.approx((first - second).mean())


def test_what_has_no_spread():
    single = compare_paired([0.9], [0.7])
    assert single.difference == pytest.approx(0.2)
    assert math.isnan(single.low) and math.isnan(single.high) and math.isnan(single.p_value)  # noqa: PT018
    same = compare_paired([0.1, 0.7, 0.3], [0.1, 0.7, 0.3])
    assert (same.difference, same.low, same.high, same.p_value) == (0.0, 0.0, 0.0, 1.0)
    # 0.3 - 0.2, 0.8 - 0.7 and 0.5 - 0.4 are not the same number to the last bit; that is no spread.
    shifted = compare_paired([0.3, 0.8, 0.5], [0.2, 0.7, 0.4])
    assert (shifted.low, shifted.high, shifted.p_value) == (
        pytest.approx(0.1),
        pytest.approx(0.1),
        0.0,
    )


def test_holm_by_hand():
    assert adjust_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust_holm([]) == []
    with_gap = adjust_holm([0.01, math.nan, 0.5])
    assert with_gap[0] == 0.02
    assert math.isnan(with_gap[1])


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_is_between_the_raw_values_and_bonferroni_and_keeps_their_order(p_values):
    adjusted = adjust_holm(p_values)
    for raw, now in zip(p_values, adjusted, strict=True):
        assert raw <= now <= min(1.0, len(p_values) * raw) + 1e-15 or now == max(adjusted)
        assert now <= 1.0
    order = np.argsort(p_values, kind="stable")
    assert np.all(np.diff(np.array(adjusted)[order]) >= 0)
