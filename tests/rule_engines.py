"""Random tables and random rules, and the arms of a rule in every language."""

import datetime
import json
import sqlite3
from contextlib import closing

import duckdb
import numpy as np
import polars as pl

import daband
from daband.serving._rule import to_state
from daband.trust._rule_columns import list_columns

#: Texts with quotes, separators and other scripts.
CITIES = ["Oslo", "Zürich", "O'Hara", '"quoted"', "東京", "a,b", "semi;colon", "back\\slash", "😀"]
ARMS = ("mail", "it's a call", "nothing 😀")
TYPES = {"age": "BIGINT", "spent": "DOUBLE", "city": "VARCHAR", "signup": "VARCHAR"}
TYPES |= {"code": "BIGINT", "member": "VARCHAR", "visits": "BIGINT"}


def draw_rows(n, seed, gaps=0.1):
    """Return a table of n rows, in which only the column visits has no gap."""
    rng = np.random.default_rng(seed)
    first = datetime.date(2019, 1, 1)
    columns = {
        "age": rng.integers(18, 90, n).tolist(),
        "spent": np.round(rng.lognormal(3, 1, n), 2).tolist(),
        "city": rng.choice(CITIES, n).tolist(),
        "signup": [str(first + datetime.timedelta(int(day))) for day in rng.integers(0, 2500, n)],
        "code": rng.integers(1, 6, n).tolist(),
        "member": rng.choice(["True", "False"], n).tolist(),
    }
    for name, values in columns.items():
        is_gap = rng.random(n) < gaps
        columns[name] = [None if gap else value for value, gap in zip(values, is_gap, strict=True)]
    columns["visits"] = rng.integers(0, 9, n).tolist()
    return pl.DataFrame({"id": np.arange(n), **columns})


def make_pair(rows, target):
    """Return a pair whose source is a log with these rows."""
    rng = np.random.default_rng(0)
    arms = rng.integers(0, len(ARMS), len(rows))
    names = sorted(ARMS)  # the order of arms in a table
    log = rows.with_columns(
        arm=pl.Series([names[arm] for arm in arms]), reward=rng.random(len(rows)), p=1 / len(ARMS)
    )
    columns = daband.domains.Columns(
        context=list(TYPES),
        categorical=["city", "code", "member"],
        dates=["signup"],
        arm="arm",
        reward="reward",
        propensity="p",
        id=["id"],
    )
    return daband.domains.from_table(source=log, target=target, columns=columns, name="rows")


def make_policy(pair, seed, depth=3, **settings):
    """Return a policy with a random tree over all columns."""
    rng = np.random.default_rng(seed)
    columns = list_columns(pair, pair.source.read(np.arange(len(pair.source))), 16)
    leaves = []

    def grow(level):
        if level == depth:
            leaves.append(rng.integers(pair.n_arms))
            return len(leaves) - 1
        column = columns[rng.integers(len(columns))]
        cut = int(rng.integers(column.coded.n_cuts))
        return column.make_split(cut, grow(level + 1), grow(level + 1))

    policy = daband.RulePolicy.for_pair(pair, tree=to_state(grow(0)), **settings)
    policy.set_prior(np.eye(pair.n_arms)[leaves], np.full((len(leaves), pair.n_arms), 100.0))
    policy.deploy("target")
    return policy


def decide_in_json(rule, rows):
    """Return the arms by the JSON tree, read as ``Rule.to_json`` describes it."""

    def find_arm(node, row):
        if isinstance(node, str):
            return node
        value = row[node["column"]]
        if value is None:
            is_true = node["or_missing"]
        elif "in" in node:
            is_true = value in node["in"]
        else:
            is_true = str(value) < node["before"] if "before" in node else value < node["below"]
        return find_arm(node["yes" if is_true else "no"], row)

    tree = json.loads(json.dumps(rule.to_json()))
    return [find_arm(tree, row) for row in rows.iter_rows(named=True)]


def decide_in_duckdb(rule, rows, date_type="VARCHAR"):
    rows = rows.with_columns(member=pl.col("member") == "True")
    types = TYPES | {"signup": date_type, "member": "BOOLEAN", "id": "BIGINT"}
    with duckdb.connect() as connection:
        return _decide_in_sql(connection, rule, rows, types)


def decide_in_sqlite(rule, rows):
    with closing(sqlite3.connect(":memory:")) as connection:
        return _decide_in_sql(connection, rule, rows, {**TYPES, "id": "BIGINT"})


def _decide_in_sql(connection, rule, rows, types):
    definition = ", ".join(f'"{name}" {types[name]}' for name in rows.columns)
    connection.execute(f"CREATE TABLE customers ({definition})")
    if isinstance(connection, duckdb.DuckDBPyConnection):
        arrow = rows.to_arrow()  # noqa: F841, which the query reads
        connection.execute("INSERT INTO customers SELECT * FROM arrow")
    else:
        marks = ", ".join("?" * len(rows.columns))
        connection.executemany(f"INSERT INTO customers VALUES ({marks})", rows.iter_rows())
    query = f"SELECT arm FROM ({rule.to_sql('customers')}) AS q ORDER BY id"
    return [arm for (arm,) in connection.execute(query).fetchall()]


def decide_in_growthbook(rule, rows):
    """Return the arms by the conditions of GrowthBook, evaluated as its JavaScript SDK does."""

    def holds(condition, row):
        if "$and" in condition:
            return all(holds(part, row) for part in condition["$and"])
        if "$or" in condition:
            return any(holds(part, row) for part in condition["$or"])
        if "$not" in condition:
            return not holds(condition["$not"], row)
        return all(
            _compare(operator, row[name], value)
            for name, tests in condition.items()
            for operator, value in tests.items()
        )

    rules = json.loads(json.dumps(rule.to_growthbook()))
    return [
        next(part["force"] for part in rules if holds(part["condition"], row))
        for row in rows.iter_rows(named=True)
    ]


def _compare(operator, value, expected):
    if operator == "$exists":
        return (value is not None) == expected
    if operator == "$in":
        return any(type(value) is type(form) and value == form for form in expected)
    assert operator == "$lt"
    # in JavaScript null is 0 in comparisons with numbers, and false in those with strings
    if value is None:
        return not isinstance(expected, str) and expected > 0
    return value < expected
