"""One reader makes rounds of tables, of the batches of a log, and for the check of a log."""

from datetime import UTC, date, datetime

import numpy as np
import polars as pl
import pytest

import daband
from daband.domains import Columns, ParquetLog, from_table
from daband.errors import DataError

N = 60
COLUMNS = Columns(
    arm="offer", reward="euros", propensity="chance", offered="shown", cluster="school"
)


def make_log():
    arms = np.array(["a", "b", "c"])[np.arange(N) % 3]
    return pl.DataFrame(
        {
            "age": np.arange(N) / 10,
            "offer": arms,
            "euros": np.arange(N) % 7 * 1.0,
            "chance": 0.5,
            "shown": "a|b|c",
            "school": np.array(["north", "south", "west"])[np.arange(N) // 20],
        }
    )


def read_as_table(log, path):
    target = log.select("age")
    pair = from_table(source=log, target=target, columns=COLUMNS, source_test=None)
    return pair.source.read_rounds(np.arange(N))


def read_as_files(log, path):
    log.write_parquet(path)
    opened = ParquetLog(path, n_arms=3, columns=COLUMNS, arm_names=["a", "b", "c"])
    return opened.read_rounds(np.arange(N))


def check(log, path):
    return daband.check_log(log, Columns(**{**vars(COLUMNS), "context": ("age",)}))


@pytest.mark.parametrize("read", [read_as_table, read_as_files, check])
@pytest.mark.parametrize(
    ("column", "value", "word"),
    [
        ("euros", float("inf"), "inf"),
        ("euros", "5 euros", "5 euros"),
        ("chance", 1.5, "1.5"),
        ("chance", 0.0, "has 0"),
        ("chance", None, "no value"),
        ("shown", "a|x|c", "'x'"),
        ("shown", "b", "'c'"),
        ("school", None, "no value"),
    ],
)
def test_a_wrong_value_is_named_with_its_column_and_row_by_every_reader(
    tmp_path, read, column, value, word
):
    log = make_log()
    values = log[column].to_list()
    values[17] = value
    if isinstance(value, str) and column == "euros":
        values = [str(number) for number in values[:17]] + [value] + values[18:]
        values = list(map(str, values))
    with pytest.raises(DataError) as error:
        read(log.with_columns(pl.Series(column, values, strict=False)), tmp_path / "log.parquet")
    message = str(error.value)
    assert repr(column) in message
    assert "row 17 (line 19" in message
    assert word in message


def test_a_table_and_files_have_the_same_rounds(tmp_path):
    log = make_log()
    table, files = (read(log, tmp_path / "log.parquet") for read in (read_as_table, read_as_files))
    for name in ("arms", "rewards", "propensities", "offered", "clusters"):
        np.testing.assert_array_equal(vars(table)[name], vars(files)[name])
    np.testing.assert_array_equal(table.arms, np.arange(N) % 3)
    assert len(np.unique(table.clusters)) == 3


def test_a_column_without_a_role_is_a_context():
    log = make_log().with_columns(pl.Series("weight", np.arange(N)))
    pair = from_table(source=log, target=log.select("weight", "age"), columns=COLUMNS)
    assert pair.table.names == ("age", "weight")
    with pytest.raises(daband.InvalidInput, match="context"):
        from_table(source=log, target=log.select("offer"), columns=COLUMNS)


class Stream:
    """A table of a library that only speaks the arrow interface."""

    def __init__(self, frame):
        self.frame = frame

    def __arrow_c_stream__(self, requested_schema=None):
        return self.frame.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("library", ["polars", "pandas", "arrow", "stream"])
def test_types_are_read_from_the_frame(library):
    log = make_log().with_columns(
        city=pl.Series(["Oslo", "Rome", None] * 20),
        kind=pl.Series(["new", "old"] * 30).cast(pl.Categorical),
        member=pl.Series([True, False] * 30),
        visits=pl.Series([1, None, 3] * 20),
        day=pl.Series([date(2024, 1 + row % 12, 1 + row % 28) for row in range(N)]),
        at=pl.Series([datetime(2024, 1, 1, row % 24, tzinfo=UTC) for row in range(N)]),
        written=pl.Series([f"2024-0{1 + row % 9}-11" for row in range(N)]),
    )
    target = log.drop("offer", "euros", "chance", "shown", "school")
    convert = {
        "polars": lambda frame: frame,
        "pandas": lambda frame: frame.to_pandas(),
        "arrow": lambda frame: frame.to_arrow(),
        "stream": Stream,
    }[library]
    pair = from_table(source=convert(log), target=convert(target), columns=COLUMNS)
    kinds = {column.name: column.kind for column in pair.table.columns}
    assert kinds == {
        "age": "numeric",
        "city": "categorical",
        "kind": "categorical",
        "member": "numeric",
        "visits": "numeric",
        "day": "date",
        "at": "date",
        "written": "date",
    }
    numbers = Columns(**{**vars(COLUMNS), "categorical": ("visits",)})
    pair = from_table(source=convert(log), target=convert(target), columns=numbers)
    assert {column.name: column.kind for column in pair.table.columns}["visits"] == "categorical"
