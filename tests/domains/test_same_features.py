"""Every way to bring a row gives the same features: files, frames, mappings, JSON, and an exported
policy.
"""

import csv
import json
from datetime import date, datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import daband
from daband.domains import Columns, TableTransform, from_table
from daband.domains.readers._columns import StatedRoles, infer_columns
from daband.domains.readers._reading import read_table

ROWS = 12
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # to shrink a table takes minutes
TEXTS = st.text(st.sampled_from(' 0015.eE+-aNTruelsæ",;\n'), max_size=6)
KINDS = {
    "count": st.integers(-(2**40), 2**40),
    "amount": st.floats(-1e9, 1e9, width=64).map(lambda number: round(number, 6)),
    "flag": st.booleans(),
    "text": TEXTS,
    "code": st.integers(0, 30).map(lambda number: f" {number:02d}"),
    "spelled": st.sampled_from(
        ["1", "1.0", "+1", "01", "1.50", "1.5", " 2 ", "2e0", "true", "True", "x", "NA", ""]
    ),
    "written": st.sampled_from(["7", " 7.0", "70e-1", "8", ".5"]),
    "day": st.dates(date(1990, 1, 1), date(2030, 1, 1)),
    "moment": (
        st.datetimes(datetime(1990, 1, 1), datetime(2030, 1, 1)).map(
            lambda at: at.replace(microsecond=0)
        )
    ),
}
CATEGORICAL = ("flag", "text", "code", "spelled")
DATES = ("day", "moment")


def values(kind):
    present = st.lists(KINDS[kind], min_size=2, max_size=2)
    others = st.lists(st.none() | KINDS[kind], min_size=ROWS - 2, max_size=ROWS - 2)
    return st.tuples(present, others).map(lambda parts: parts[0] + parts[1])


# A row of a CSV file without any value would be a blank line: every row has a number.
tables = st.fixed_dictionaries(
    {**{kind: values(kind) for kind in KINDS}, "row": st.just(list(range(ROWS)))}
)


def ways(table, folder):
    """The same rows in every form that ``read_table`` takes."""
    frame = pl.DataFrame(table, schema_overrides={"count": pl.Int64, "amount": pl.Float64})
    frame.write_csv(folder / "polars.csv")
    frame.write_csv(folder / "polars.tsv", separator="\t")
    frame.write_parquet(folder / "table.parquet")
    pandas = pd.DataFrame(table)
    pandas.to_csv(folder / "pandas.csv", index=False)
    with open(folder / "texts.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(
            [list(table), *zip(*table.values(), strict=True)]
        )
    files = {
        name: folder / name
        for name in ("polars.csv", "polars.tsv", "pandas.csv", "texts.csv", "table.parquet")
    }
    return {"polars": frame, "pandas": pandas, "arrow": frame.to_arrow(), **files}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@given(table=tables)
@settings(max_examples=40, deadline=None, phases=PHASES)
def test_a_table_gives_the_same_features_however_it_comes(folder, table):
    frame = pl.DataFrame(table, schema_overrides={"count": pl.Int64, "amount": pl.Float64})
    fitted = {}
    for way, given_table in ways(table, folder).items():
        read = read_table(given_table)
        fitted[way] = TableTransform.fit(
            read, context=list(KINDS), categorical=CATEGORICAL, dates=DATES
        )
        np.testing.assert_array_equal(
            fitted[way].apply(read), fitted["polars"].apply(frame), err_msg=way
        )
    assert len(set(fitted.values())) == 1, {way: one.columns for way, one in fitted.items()}
    transform = fitted["polars"]
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    sent = json.loads(json.dumps(rows, default=str))
    texts = [
        {name: None if value is None else str(value) for name, value in row.items()} for row in rows
    ]
    expected = transform.apply(frame)
    for how, one in (
        ("mappings", rows),
        ("JSON", sent),
        ("texts", texts),
        ("pandas", pd.DataFrame(table)),
    ):
        np.testing.assert_array_equal(transform.contexts(one), expected, err_msg=how)
    np.testing.assert_array_equal(
        TableTransform.from_state(transform.state()).apply(frame), expected
    )


@given(table=tables)
@settings(max_examples=20, deadline=None, phases=PHASES)
def test_columns_are_taken_for_the_same_however_they_come(folder, table):
    table = {**table, "offer": ["a", "b"] * (ROWS // 2)}
    roles = {}
    for way, given_table in ways(table, folder).items():
        read = read_table(given_table)
        roles[way] = [
            (one.name, one.role) for one in infer_columns(read, read, StatedRoles(label="offer"))[1]
        ]
        assert roles[way] == roles["polars"], way


@given(table=tables)
@settings(max_examples=10, deadline=None, phases=PHASES)
def test_an_exported_policy_reads_a_row_as_training_did(folder, table):
    frame = pl.DataFrame(
        {**table, "offer": ["a", "b"] * (ROWS // 2)}, schema_overrides={"amount": pl.Float64}
    )
    frame.write_csv(folder / "old.csv")
    columns = Columns(list(KINDS), CATEGORICAL, label="offer", dates=DATES)
    pair = from_table(
        source=folder / "old.csv", target=folder / "old.csv", columns=columns, source_test=None
    )
    policy = daband.LinUCB(context_shape=pair.context_shape, n_arms=2)
    daband.export(policy, folder / "p.daband", pair=pair, domain="target")
    deployed = daband.load_deployed(folder / "p.daband")
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    trained = pair.source.read(np.arange(ROWS))
    for row, context in zip(rows, trained, strict=True):
        np.testing.assert_array_equal(deployed.reader.read(row).contexts[0], context)
    for batch in (rows, pd.DataFrame(table), frame.drop("offer")):
        np.testing.assert_array_equal(deployed.reader.read(batch).contexts, trained)
    # The rows that ``ask=`` gets are those of the table, and become the contexts that it is asked
    # about.
    asked = pair.target.read_raw(np.arange(len(pair.target)))
    np.testing.assert_array_equal(
        pair.table.apply(asked), pair.target.read(np.arange(len(pair.target)))
    )


def test_leading_zeros_make_a_column_text(tmp_path):
    """Before: categories 1, 10 and 2, and ``decide({"zip": "01"})`` was an unseen category."""
    lines = [f"{['10', '01', '02'][row % 3]},{row % 40},{'ab'[row % 2]}" for row in range(120)]
    (tmp_path / "old.csv").write_text("zip,age,offer\n" + "\n".join(lines))
    with pytest.warns(UserWarning, match="zip: .*'01', .*codes"):
        pair = daband.domains.DataOptions(
            source=str(tmp_path / "old.csv"), target=str(tmp_path / "old.csv"), label="offer"
        ).read()
    assert pair.feature_names == ("zip = 01", "zip = 02", "zip = 10", "age")
    policy = daband.LinUCB(context_shape=pair.context_shape, n_arms=2)
    daband.export(policy, tmp_path / "p.daband", pair=pair, domain="target")
    deployed = daband.load_deployed(tmp_path / "p.daband")
    assert deployed.decide({"zip": " 01", "age": "7"}, strict=True).warnings == ()
    (warning,) = deployed.decide({"zip": 1, "age": 7}).warnings
    assert warning.kind == "unseen_category"
    np.testing.assert_array_equal(pair.table.contexts({"zip": "01", "age": 7})[0, :3], [1, 0, 0])


def test_a_log_may_spell_values_otherwise_in_every_file(tmp_path):
    """Before: a week whose codes all look like numbers was another type than the first file's."""
    source = pl.DataFrame(
        {"zip": ["01", "20", "x"] * 20, "age": range(60), "offer": ["a", "b"] * 30}
    )
    columns = Columns(["zip", "age"], ["zip"], label="offer")
    pair = from_table(source=source, target=source.drop("offer"), columns=columns)
    policy = daband.LinUCB.for_pair(pair, seed=0)
    for week, codes in (("1", '" 01"'), ("2", "20.0")):
        rows = "".join(f"{codes},{age},a,0.5,1\n" for age in range(20))
        (tmp_path / f"week{week}.csv").write_text(f"zip,age,arm,propensity,reward\n{rows}")
    daband.learn_log(policy, tmp_path)
    assert policy.rounds_learned == 40
