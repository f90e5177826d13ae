"""Decisions on a table: ids, roles and logs that keep what they have."""

import numpy as np
import polars as pl
import pytest

import daband
from daband.ledger._decisions import append_decisions, decide_rows
from tests.ledger.conftest import run_week


@pytest.fixture
def deployed(quick_folder):
    run_week(quick_folder, 0, n=10)
    return daband.load_deployed(quick_folder.parent / "market.daband")


def make_rows(n=500):
    ages = np.random.default_rng(0).normal(42.0, 10.0, n).round(1)
    return pl.DataFrame({"age": ages, "visit": [f"v{row}" for row in range(n)]})


def test_the_same_ids_have_the_same_arms_in_any_order(deployed):
    rows = make_rows()
    first = decide_rows(deployed, rows, id_column="visit", control=0.2).frame
    mixed = rows.sample(fraction=1.0, shuffle=True, seed=1)
    second = decide_rows(deployed, mixed, id_column="visit", control=0.2).frame
    assert first.sort("visit").equals(second.sort("visit"))
    assert set(first["role"]) == {"policy", "exploration", "control"}
    control = first.filter(pl.col("role") == "control")
    assert set(control["arm"]) == {"letter"}
    assert len(control) == pytest.approx(100, abs=35)
    drawn = decide_rows(deployed, rows, control=0.2).frame
    assert drawn["decision_id"].n_unique() == len(rows)
    assert drawn["arm"].to_list() != first["arm"].to_list()


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_a_log_is_extended_and_never_replaced(deployed, tmp_path, suffix):
    rows = make_rows()
    path = tmp_path / f"log.{suffix}"
    some = decide_rows(deployed, rows.head(300), id_column="visit", control=0.2).frame
    assert append_decisions(path, some, has_ids=True) == 300
    content = path.read_bytes()
    with pytest.raises(daband.InvalidInput, match="--id"):
        append_decisions(path, some, has_ids=False)
    with pytest.raises(daband.InvalidInput, match="columns"):
        append_decisions(path, some.drop("age"), has_ids=True)
    assert path.read_bytes() == content
    # other arms, as another file would choose
    other = decide_rows(deployed, rows, id_column="visit", control=1.0).frame
    assert append_decisions(path, other, has_ids=True) == 200
    read = daband.domains.readers._reading.read_table(path)
    assert read["arm"].to_list() == [*some["arm"].to_list(), *other["arm"].to_list()[300:]]


def test_a_log_with_numbers_as_ids_is_extended_by_texts_and_in_its_order_of_columns(
    deployed, tmp_path
):
    path = tmp_path / "log.csv"
    numbers = make_rows(20).with_columns(visit=pl.int_range(20))
    first = decide_rows(deployed, numbers, id_column="visit").frame
    append_decisions(path, first, has_ids=True)
    # as a program that fills in rewards may write it
    pl.read_csv(path).drop("reward").with_columns(reward=pl.lit(1.5)).write_csv(path)
    second = decide_rows(deployed, make_rows(10), id_column="visit").frame
    assert append_decisions(path, first, has_ids=True) == 0
    assert append_decisions(path, second, has_ids=True) == 10
    read = pl.read_csv(path)
    expected = [*map(str, range(20)), *(f"v{row}" for row in range(10))]
    assert read["decision_id"].to_list() == read["visit"].to_list() == expected
    assert read["reward"].to_list() == [1.5] * 20 + [None] * 10
    assert read["arm"].to_list() == [*first["arm"], *second["arm"]]


@pytest.mark.parametrize("name", ["arm", "propensity", "decision_id"])
def test_a_column_of_the_decisions_is_refused_in_the_rows(deployed, name):
    with pytest.raises(daband.InvalidInput, match=name):
        decide_rows(deployed, make_rows(5).with_columns(pl.lit("x").alias(name)))


def test_rows_without_a_column_or_with_equal_ids_are_refused(deployed):
    with pytest.raises(daband.InvalidInput, match="age"):
        decide_rows(deployed, make_rows(5).rename({"age": "aeg"}))
    with pytest.raises(daband.InvalidInput, match="visit"):
        decide_rows(deployed, make_rows(5).with_columns(visit=pl.lit("a")), id_column="visit")
    with pytest.raises(daband.InvalidInput, match="vist"):
        decide_rows(deployed, make_rows(5), id_column="vist")


def test_a_market_decides_and_remembers(quick_folder):
    run_week(quick_folder, 0, n=10)
    rows = make_rows(50)
    with daband.open_market(quick_folder) as market:
        first = market.decide(rows, id="visit", control=0.2)
        again = market.decide(rows.tail(20), id="visit", control=0.2)
        assert again["arm"].to_list() == first["arm"].to_list()[30:]
        assert market.store.find_last_seq("events") == 50
        assert market.learn(first.with_columns(reward=1.0)).learned == 50
