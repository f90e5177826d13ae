import warnings

import numpy as np
import pytest

from daband.bench.report._figures import draw_regret, get_style
from daband.bench.report._method_summaries import get_role
from daband.bench.report._run_files import RunCurves, merge_curves
from daband.bench.report._sections import Bold, Table


@pytest.mark.parametrize(
    ("method", "variant", "role"),
    [
        ("daband", "paper:none", "ablation"),
        ("daband", "default-rpd:RPD", "ablation"),
        ("daband", "default-rpd:DPR", "comparison"),
        ("daband", "mine:RPD", "comparison"),
        ("nlinucb", "paper:R", "comparison"),
        ("daband", "default", "comparison"),
    ],
)
def test_what_a_run_is_part_of(method, variant, role):
    assert get_role({"method": method, "variant": variant}) == role


def test_curves_of_different_lengths_meet_on_common_rounds():
    curve = merge_curves(
        [
            (np.array([1, 5, 9]), np.array([1.0, 5.0, 9.0])),
            None,
            (np.array([1, 4]), np.array([2.0, 8.0])),
        ]
    )
    np.testing.assert_array_equal(curve.rounds, [1, 4])
    np.testing.assert_allclose(curve.values, [[1.0, 4.0], [2.0, 8.0]])
    assert merge_curves([None]) is None


def test_a_method_looks_the_same_everywhere_and_unlike_the_others():
    methods = ["daband", "nlinucb", "nlinucb-p", "linucb", "linucb-p", "random", "constant"]
    assert len({colour for colour, _ in map(get_style, methods)}) == len(methods)
    assert get_style("mine") == get_style("mine")


def test_a_table_has_the_columns_with_any_text():
    table = Table.from_columns(
        "t", "A & B.", {"name": ["50%", "b"], "x": ["", ""], "y": [Bold("0.5"), ""]}
    )
    assert table.headings == ["name", "y"]
    assert table.rows == [("50%", "0.5"), ("b", "")]
    assert [table.is_bold(row[1]) for row in table.rows] == [True, False]


def test_the_figure_of_runs_without_regret():
    nothing = RunCurves(np.array([1, 10, 20]), np.zeros((2, 3)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert draw_regret({("linucb", "default"): nothing}, domain="source").axes[
            0
        ].get_ylim() == (0.0, 1.0)
