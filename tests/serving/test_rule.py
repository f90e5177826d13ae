"""A rule gives the same arm in every language."""

import re
import sqlite3
from contextlib import closing

import duckdb
import numpy as np
import polars as pl
import pytest

import daband
from daband.serving import Rule
from daband.serving._rule import Split
from tests import rule_engines as engines

N_ROWS = 400


@pytest.fixture(scope="module")
def pair():
    return engines.make_pair(engines.draw_rows(500, 0), engines.draw_rows(500, 1))


def check_all(policy, rows, folder):
    """Check that all languages give the same arms."""
    rule = policy.rule
    arms = engines.decide_in_json(rule, rows)
    assert engines.decide_in_duckdb(rule, rows) == arms
    assert engines.decide_in_duckdb(rule, rows, date_type="DATE") == arms
    assert engines.decide_in_sqlite(rule, rows) == arms
    assert engines.decide_in_growthbook(rule, rows) == arms
    policy.save(folder / "rules.json")
    decision = daband.load(folder / "rules.json").as_deployed().decide(rows)
    assert list(decision.arm_name) == arms
    assert (decision.propensity == 1.0).all()


@pytest.mark.parametrize("seed", range(8))
def test_the_same_arms_in_every_language(pair, seed, tmp_path):
    policy = engines.make_policy(pair, seed)
    check_all(policy, engines.draw_rows(N_ROWS, 2 + seed), tmp_path)


@pytest.mark.slow
def test_the_same_arms_for_many_rows(pair, tmp_path):
    rows = engines.draw_rows(20_000, 9)
    for seed in range(10, 14):
        check_all(engines.make_policy(pair, seed), rows, tmp_path)


def test_missing_values_go_where_the_table_puts_them():
    """Visits have no gap in training, so that a missing value counts as the median."""
    rows = engines.draw_rows(500, 0)
    pair = engines.make_pair(rows, rows)
    policy = engines.make_policy(pair, 0)
    row = {**rows.row(0, named=True), "visits": None}
    (decision,) = policy.as_deployed().decide([row]).arm_name
    assert engines.decide_in_json(policy.rule, pl.DataFrame([row])) == [decision]


@pytest.mark.parametrize("median", [True, False])
def test_booleans_in_every_language(median, tmp_path):
    rng = np.random.default_rng(0)
    values = [None] * 20 + [median] * 100 + [not median] * 80
    rows = pl.DataFrame({"id": range(200), "member": [values[i] for i in rng.permutation(200)]})
    log = rows.with_columns(
        arm=pl.Series(rng.choice(engines.ARMS, 200)), reward=rng.random(200), p=1 / 3
    )
    columns = daband.domains.Columns(
        context=["member"], arm="arm", reward="reward", propensity="p", id=["id"]
    )
    pair = daband.domains.from_table(source=log, target=rows, columns=columns)
    policy = engines.make_policy(pair, 0, depth=1)
    policy.set_prior(np.eye(3)[:2], np.full((2, 3), 100.0))
    rule = policy.rule
    assert rule.to_text().startswith(f"if member = true{' or member is missing' * median}:")
    policy.save(tmp_path / "rules.json")
    deployed = daband.load(tmp_path / "rules.json").as_deployed()
    arms = list(deployed.decide(rows).arm_name)
    assert len(set(arms)) == 2
    assert engines.decide_in_json(rule, rows) == arms
    assert engines.decide_in_growthbook(rule, rows) == arms
    query = f"SELECT arm FROM ({rule.to_sql('customers')}) AS q ORDER BY id"
    for connect, type_name, convert in (
        (duckdb.connect, "BOOLEAN", bool),
        (duckdb.connect, "DOUBLE", float),
        (sqlite3.connect, "BOOLEAN", bool),
        (sqlite3.connect, "TEXT", lambda value: str(value).lower()),
    ):
        with closing(connect(":memory:")) as connection:
            connection.execute(f"CREATE TABLE customers (id BIGINT, member {type_name})")
            connection.executemany(
                "INSERT INTO customers VALUES (?, ?)",
                [(i, None if value is None else convert(value)) for i, value in rows.iter_rows()],
            )
            assert [arm for (arm,) in connection.execute(query).fetchall()] == arms


def test_a_rule_with_one_leaf():
    rule = Rule(0, ("mail",))
    assert rule.to_sql() == "'mail'"
    assert rule.to_json() == "mail"
    assert rule.to_growthbook() == [{"condition": {"$and": []}, "force": "mail"}]
    assert rule.to_text() == "mail\n"


def test_a_condition_says_that_it_is_true_for_a_missing_value():
    rule = Rule(Split("age", "below", 40.0, True, 0, 0.1, 0, 1), ("mail", "call"))
    assert '"age" < 40 OR "age" IS NULL' in rule.to_sql()
    assert "age < 40 or age is missing" in rule.to_text()


@pytest.mark.parametrize("name", ["user.country", "$country"])
def test_names_that_growthbook_reads_as_paths_are_rejected_there_only(name):
    rule = Rule(Split(name, "equals", "NO", False, 0, 0.5, 0, 1), ("mail", "call"))
    with pytest.raises(daband.InvalidInput, match=re.escape(name)):
        rule.to_growthbook()
    rows = pl.DataFrame({"id": [0, 1], name: ["NO", "SE"]})
    assert engines.decide_in_json(rule, rows) == ["mail", "call"]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f'CREATE TABLE customers (id, "{name}")')
        connection.executemany("INSERT INTO customers VALUES (?, ?)", rows.iter_rows())
        arms = connection.execute(f"SELECT arm FROM ({rule.to_sql('customers')})").fetchall()
    assert arms == [("mail",), ("call",)]
