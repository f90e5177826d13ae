"""``check_log`` names what is wrong with a log."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import daband
from daband.cli._main import app
from daband.domains import Columns

COLUMNS = Columns(
    ["age", "city"],
    categorical=["city"],
    arm="offer",
    reward="euros",
    propensity="p",
    id=["customer"],
)


def draw_log(n=4000, seed=0):
    rng = np.random.default_rng(seed)
    arms = rng.integers(0, 2, n)
    return pl.DataFrame(
        {
            "customer": np.arange(n),
            "age": rng.normal(40, 10, n).round(),
            "city": rng.choice(["Oslo", "Bergen"], n),
            "offer": np.array(["coupon", "letter"])[arms],
            "euros": ((rng.random(n) < 0.2) * rng.gamma(2.0, 10.0, n)).round(2),
            "p": 0.5,
        }
    )


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_wrong_with_a_randomised_log(seed):
    check = daband.check_log(draw_log(seed=seed), COLUMNS)
    assert check.findings == ()
    assert [arm.name for arm in check.arms] == ["coupon", "letter"]
    for arm in check.arms:
        assert arm.low < arm.mean < arm.high
        assert arm.mean == pytest.approx(4.0, abs=0.8)
    assert "Nothing wrong" in str(check)


def change(log, kind):
    """Return the log with one mistake."""
    rng = np.random.default_rng(1)
    n = len(log)
    is_letter = (log["offer"] == "letter").to_numpy()
    if kind == "propensities":
        return log.with_columns(p=pl.when(pl.col("offer") == "letter").then(0.4).otherwise(0.6))
    if kind == "contexts":
        is_letter = rng.random(n) < np.where(log["age"].to_numpy() > 40, 0.4, 0.6)
        return log.with_columns(offer=pl.Series(np.where(is_letter, "letter", "coupon")))
    if kind == "certain":
        return log.with_columns(p=pl.when(pl.col("customer") < 300).then(1.0).otherwise(0.5))
    if kind == "after the arm":
        return log.with_columns(age=pl.Series(10.0 * is_letter + rng.normal(size=n)))
    if kind == "after the reward":
        return log.with_columns(age=pl.col("euros") * 2.0)
    if kind == "missing code":
        return log.with_columns(
            euros=pl.when(pl.col("customer") % 10 == 0).then(-999.0).otherwise(pl.col("euros"))
        )
    if kind == "tiny propensity":
        return log.with_columns(p=pl.when(pl.col("customer") == 7).then(1e-11).otherwise(0.5))
    if kind == "ids":
        halves = log[: n // 2].with_columns(euros=pl.col("euros").reverse())
        return pl.concat([log[: n // 2], halves])
    if kind == "drift":
        return log.with_columns(euros=pl.col("euros") + (pl.col("customer") > n // 2) * 3.0)
    if kind == "truncated":
        return log.with_columns(euros=pl.col("euros").clip(upper_bound=20.0))
    return log.with_columns(
        euros=pl.when(pl.col("customer") == 7).then(19999.0).otherwise(pl.col("euros"))
    )


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("propensities", "sample-ratio"),
        ("contexts", "age"),
        ("certain", "propensity of 1"),
        ("after the arm", "'age' depends strongly on the arm"),
        ("after the reward", "'age' nearly equals the reward"),
        ("ids", "customer"),
        ("missing code", "euros: -999 is in 400 rows"),
        ("tiny propensity", "Row 7 has a propensity of 1e-11"),
        ("drift", "drift"),
        ("truncated", "truncated"),
        ("mistyped", "19999"),
    ],
)
def test_a_mistake_is_named(kind, text):
    findings = daband.check_log(change(draw_log(), kind), COLUMNS).findings
    assert any(text in finding for finding in findings), findings


def test_without_propensities_a_finding_does_not_speak_of_them():
    log = change(draw_log(), "contexts")
    findings = daband.check_log(log, replace(COLUMNS, propensity=None)).findings
    assert findings
    for finding in findings:
        assert "'age'" in finding
        assert "--propensity" in finding
        assert "Correct the propensities" not in finding


@pytest.mark.parametrize("time", ["10:00", "09:30", "07:20"])
def test_a_constant_time_of_day_depends_on_nothing(time):
    """Its sine and cosine differ from their means by rounding."""
    rng = np.random.default_rng(9)
    log = draw_log()
    days = [f"2024-03-{day:02d} {time}" for day in rng.integers(1, 29, len(log))]
    columns = Columns(["ts"], dates=["ts"], arm="offer", reward="euros", propensity="p")
    assert daband.check_log(log.with_columns(ts=pl.Series(days)), columns).findings == ()


def test_the_command_prints_arms_and_findings(tmp_path):
    change(draw_log(), "truncated").write_csv(tmp_path / "norway.csv")
    arguments = ["check-log", str(tmp_path / "norway.csv"), "--arm", "offer", "--reward", "euros"]
    result = CliRunner().invoke(app, [*arguments, "--propensity", "p", "--id", "customer"])
    assert result.exit_code == 0, result.output
    assert "coupon" in result.output
    assert "truncated" in result.output


def test_the_command_reports_missing_rewards(tmp_path):
    """Before: the rows were dropped first, and nothing was found."""
    euros = pl.when(pl.col("euros") > 0).then(pl.col("euros"))
    draw_log().with_columns(euros=euros).write_csv(tmp_path / "norway.csv")
    arguments = ["check-log", str(tmp_path / "norway.csv"), "--arm", "offer", "--reward", "euros"]
    result = CliRunner().invoke(app, arguments)
    assert "rows have none yet and are ignored; write 0" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("euros", "0,50", "'euros'.*'0,50'"),
        ("p", "50%", "'p'.*'50%'"),
        ("p", 0.0, "'p'.* 0"),
        ("p", 1e-300, "'p'.*1e-300"),
    ],
)
def test_a_value_that_is_no_number_or_probability_is_named(column, value, text):
    """Before: a decimal comma in a CSV file ended in an error of polars."""
    log = draw_log().with_columns(**{column: pl.lit(value)})
    with pytest.raises(daband.DabandError, match=text):
        daband.check_log(log, COLUMNS)


def test_an_id_may_be_in_the_target_only():
    """Before: ``choose`` raised an error for today's choices in a column of the target."""
    assert daband.check_log(draw_log().drop("customer"), COLUMNS).findings == ()


def test_a_log_needs_its_columns():
    with pytest.raises(daband.InvalidInput, match=r"'p' \(.*: customer, age, city, offer, euros\)"):
        daband.check_log(draw_log().drop("p"), COLUMNS)
    with pytest.raises(daband.InvalidInput, match=r"columns .*arm .*reward"):
        daband.check_log(draw_log(), Columns(["age"], label="offer"))
