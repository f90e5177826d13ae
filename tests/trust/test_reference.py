"""The reference class: quantiles by hand, units, and the promises that the shipped record keeps."""

from pathlib import Path

import numpy as np
import pytest

from daband.trust._reference import FULL, KINDS, ReferenceClass, infer_kind, load_reference_class


def rows_of(kept, advantage=0.2, error=0.0, scale=0.5):
    return [
        {
            "set": f"set {number}",
            "kind": "tables",
            "source": advantage,
            "error": error,
            "scale": scale,
            "target": advantage * one,
        }
        for number, one in enumerate(kept)
    ]


def test_quantiles_of_a_class_that_is_known():
    kept = np.arange(1, 100) / 100.0  # 99 data sets kept 1%, 2%, ... 99%
    forecast = ReferenceClass.from_rows(rows_of(kept)).forecast(0.2, 0.0, 0.5)
    assert forecast.n_data_sets == 99
    # of 100 data sets, the tenth smallest
    assert forecast.low == pytest.approx(0.2 * 0.10, abs=0.002)
    assert forecast.advantage == pytest.approx(0.2 * 0.50, abs=0.003)
    assert (
        forecast.median_kept,
        forecast.tenth_percentile_kept,
        forecast.lost_fraction,
    ) == pytest.approx((0.5, 0.1, 0.0))


def test_an_uncertain_source_advantage_has_a_lower_limit():
    class_ = ReferenceClass.from_rows(rows_of(np.linspace(0.1, 1.2, 60)))
    sure, unsure = (class_.forecast(0.2, error, 0.5) for error in (0.01, 0.1))
    assert unsure.low < sure.low


@pytest.mark.parametrize("advantage", [-0.1, 0.0, 0.2])
def test_an_uncertain_source_advantage_is_not_expected_to_grow(advantage):
    # most data sets kept more than 100%
    class_ = ReferenceClass.from_rows(rows_of(np.linspace(0.9, 1.5, 60)))
    forecast = class_.forecast(advantage, 0.3, 0.5)
    assert forecast.low <= forecast.advantage == advantage


def test_rows_of_one_data_set_count_once():
    rows = [*rows_of(np.linspace(0.1, 1.2, 60)), *([rows_of([-5.0])[0]] * 30)]
    rows[60:] = [{**row, "set": "the same"} for row in rows[60:]]
    once = ReferenceClass.from_rows(rows[:61]).forecast(0.2, 0.0, 0.5)
    assert ReferenceClass.from_rows(rows).forecast(0.2, 0.0, 0.5) == once


def test_a_class_of_few_data_sets_promises_nothing():
    assert ReferenceClass.from_rows(rows_of([0.5] * 5)).forecast(0.2, 0.0, 0.5).low == -np.inf


def test_units_change_nothing():
    class_ = load_reference_class().select_kind("tables")
    one = class_.forecast(0.2, 0.03, 0.4)
    thousand = class_.forecast(200.0, 30.0, 400.0)
    assert (thousand.advantage, thousand.low) == pytest.approx(
        (1000 * one.advantage, 1000 * one.low)
    )


def test_a_predicted_advantage_has_a_limit_of_its_own():
    class_ = load_reference_class()
    predicted, measured = (class_.select_kind(kind) for kind in (FULL, "tables"))
    assert set(predicted.kinds) == {FULL}
    assert predicted.forecast(0.2, 0.01, 0.4).low > measured.forecast(0.2, 0.01, 0.4).low
    # collections differ more than tables: no collection may be the whole class
    families = [name.partition("/")[0] for name in predicted.data_sets]
    assert max(map(families.count, families)) < len(families) / 2


def test_kinds():
    assert [infer_kind(shape) for shape in ((10,), (64,), (65,), (28, 28), (3, 8, 8))] == [
        "tables",
        "tables",
        "features",
        "images",
        "images",
    ]


def leave_one_out(kind):
    """Return the lower limit and the target advantage of each row, and its weight, without its own
    data set.
    """
    class_ = load_reference_class().select_kind(kind)
    sets = np.array(class_.data_sets)
    columns = class_.source_advantages, class_.standard_errors, class_.reward_deviations
    low = np.empty(len(sets))
    for name in set(sets):
        others = class_.select(sets != name)
        for row in np.flatnonzero(sets == name):
            low[row] = others.forecast(*(column[row] for column in columns)).low
    return low, class_.target_advantages, np.array([1.0 / (sets == name).sum() for name in sets])


@pytest.mark.parametrize("kind", KINDS)
def test_limits_hold_and_deployments_are_right_on_data_sets_that_are_left_out(kind):
    """The lower limit is true for 88% to 96%, 80% of good policies are deployed, and at most 4% of
    those are worse.
    """
    low, target, weight = leave_one_out(kind)
    assert 0.88 <= weight @ (target >= low) / weight.sum() <= 0.96
    good = target >= 0.05
    deployed = low > 0.0
    assert weight[good] @ deployed[good] / weight[good].sum() >= 0.8
    assert weight[deployed] @ (target[deployed] < 0.0) / weight[deployed].sum() <= 0.04


def test_no_data_set_counts_twice_under_two_names():
    """Office-31 was stored as ``office31`` and as ``office31_features``, so three of its pairs
    counted twice.
    """
    families = {name.partition("/")[0] for name in load_reference_class().data_sets}
    assert not [family for family in families if f"{family}_features" in families]


@pytest.mark.parametrize("kind", KINDS)
def test_the_results_page_has_the_numbers_that_an_assessment_prints(kind):
    forecast = load_reference_class().select_kind(kind).forecast(0.2, 0.01, 0.5)
    page = (Path(__file__).parents[2] / "docs/results/trust.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {kind} | ")]
    assert line.startswith(f"| {kind} | {forecast.n_data_sets} |")
    assert line.endswith(
        f"| {forecast.median_kept:.0%} | {max(forecast.tenth_percentile_kept, 0.0):.0%} |"
    )
