"""One reader makes rounds of tables, of the batches of a log, and for the check of a log."""

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
