import warnings

import numpy as np
import pytest

from daband.bench.report._document import Cell, Table
from daband.bench.report._figures import regret_figure
from daband.bench.report._method_styles import css_variables, style_of, themed
from daband.bench.report._method_summaries import growth_exponent, role_of
from daband.bench.report._rendering import render
from daband.bench.report._run_files import Curve, common_curve


@pytest.mark.parametrize("exponent", [0.3, 0.5, 1.0, 1.4])
def test_the_exponent_of_a_power_is_found(exponent):
    rounds = np.arange(64, 6464, 64)
    assert growth_exponent(rounds, 3.0 * rounds**exponent) == pytest.approx(exponent)


def test_an_exponent_is_of_the_later_half_and_needs_positive_values():
    rounds = np.arange(1, 401)
    bent = np.where(rounds < 200, rounds.astype(float), 200.0 * (rounds / 200.0) ** 0.5)
    assert growth_exponent(rounds, bent) == pytest.approx(0.5, abs=0.01)
    assert np.isnan(growth_exponent(rounds, np.zeros(400)))
    assert f"{growth_exponent(rounds, np.full(400, 8.7)):.2f}" == "0.00"
    assert np.isnan(growth_exponent(rounds[:2], bent[:2]))


@pytest.mark.parametrize(
    ("method", "variant", "role"),
    [
        ("daband", "paper:none", "ablation"),
        ("daband", "default-rpd:RPD", "ablation"),
        ("daband", "default-rpd:DPR", "comparison"),
        ("daband", "mine:RPD", "comparison"),
        ("nlinucb", "paper:R", "comparison"),
        ("daband", "lambda=5", "sweep"),
        ("daband", "lambda=5,alpha=0.1", "sweep"),
        ("daband", "default", "comparison"),
    ],
)
def test_what_a_run_is_part_of(method, variant, role):
    assert role_of({"method": method, "variant": variant}) == role


def test_curves_of_different_lengths_meet_on_common_rounds():
    curve = common_curve(
        [(np.array([1, 5, 9]), np.array([1.0, 5.0, 9.0])), None, (np.array([1, 4]), np.array([2.0, 8.0]))]
    )
    np.testing.assert_array_equal(curve.rounds, [1, 4])
    np.testing.assert_allclose(curve.values, [[1.0, 4.0], [2.0, 8.0]])
    assert common_curve([None]) is None


def test_a_method_looks_the_same_everywhere_and_unlike_the_others():
    methods = ["daband", "nlinucb", "nlinucb-p", "linucb", "linucb-p", "random", "constant"]
    assert len({style_of(method).colour for method in methods}) == len(methods)
    assert len({style_of(method).marker for method in methods}) == len(methods)
    assert style_of("mine") == style_of("mine")


def test_colours_become_variables_of_both_pages():
    for method in ("daband", "nlinucb", "random"):
        colour = style_of(method).colour
        name, fallback = themed(f"fill: {colour.upper()}").removeprefix("fill: var(").removesuffix(")").split(",")
        assert fallback == colour
        assert f"{name}:{colour};" in css_variables(dark=False)
        assert f"{name}:" in css_variables(dark=True)
        assert f"{name}:{colour};" not in css_variables(dark=True)


def test_tables():
    table = Table("t", "A & B. More.", ["name", "x_1"])
    table.add("50%", Cell("0.5", "0.1", bold=True))
    shown = render("table.html", table=table)
    assert "<strong>0.5 <small>± 0.1</small></strong>" in shown
    assert "A &amp; B. More." in shown
    with pytest.raises(ValueError, match="2 columns, the row has 1"):
        table.add("alone")
    turned = table.transposed("number")
    assert turned.headings == ["number", "50%"]
    assert turned.rows[0][0].text == "x_1"


def test_the_figure_of_runs_without_regret():
    nothing = Curve(np.array([1, 10, 20]), np.zeros((2, 3)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert regret_figure({("linucb", "default"): nothing}, where="source").axes[0].get_ylim() == (0.0, 1.0)
