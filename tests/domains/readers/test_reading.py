"""Logs in memory."""

import numpy as np
import pandas
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daband.domains import from_log
from daband.domains.readers import _reading
from daband.domains.readers._reading import _convert_texts, read_table
from daband.errors import InvalidInput
from tests.leaks import check_pair

N = 30
CONTEXTS = np.random.default_rng(0).random((N, 4))
LABELS = np.random.default_rng(1).integers(0, 3, N)
LABELS[:3] = [0, 1, 2]
LOG = (CONTEXTS, LABELS, (LABELS == 1).astype(float), np.full(N, 0.5))


def test_a_log_keeps_rows_together():
    test = (CONTEXTS + 2, LABELS[::-1])
    pair = from_log(source=LOG, target=CONTEXTS + 1, target_test=test, n_arms=3, source_test=0)
    check_pair(pair)
    rounds = pair.source.rounds(0, 2 * N, seed=4)
    order = pair.source.order(0, 2 * N, seed=4)
    np.testing.assert_array_equal(rounds.contexts, CONTEXTS[order])
    np.testing.assert_array_equal(rounds.arms, LABELS[order])
    np.testing.assert_array_equal(rounds.rewards, LABELS[order] == 1)


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (1, LABELS + 0.5, "arm .*float64"),
        (1, LABELS + 1, r"arm 3 .*row 2 .*0\.\.2"),
        (1, LABELS[:-1], r"arm .*\(30,\), .*\(29,\)"),
        (2, np.full(N, np.nan), "reward .*row 0"),
        (3, np.zeros(N), r"propensity .*\(0, 1\], row 0 has 0 "),
        (3, np.full(N, 1.5), r"propensity .*\(0, 1\], row 0 has 1\.5 "),
    ],
)
def test_wrong_logs(position, value, message):
    log = list(LOG)
    log[position] = value
    with pytest.raises(InvalidInput, match=message):
        from_log(source=tuple(log), target=CONTEXTS, target_test=(CONTEXTS, LABELS), n_arms=3)


@pytest.mark.parametrize("options", [{"n_arms": "3"}, {"n_arms": 3.0}])
def test_a_log_needs_whole_numbers(options):
    with pytest.raises(InvalidInput, match=r"n_arms .*('3'|3\.0)$"):
        from_log(source=LOG, target=CONTEXTS, target_test=(CONTEXTS, LABELS), **options)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    st.lists(
        st.none()
        | st.text(st.sampled_from("0019.e-+ N"), max_size=4)
        | st.sampled_from(["nan", "inf", "-1e300", "9" * 18, "9" * 19, "007", "1.", "true", "NA"])
        | st.floats(allow_nan=False).map(str)
        | st.integers().map(str),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 3),
)
def test_a_column_is_converted_like_each_of_its_texts(texts, n_times):
    """Plain numbers and repeated texts have shorter ways to the same column."""
    column = pl.Series("a", texts * n_times, dtype=pl.String)
    expected = _convert_texts(column, ".")
    assert read_table(column.to_frame())["a"].equals(expected, check_dtypes=True, null_equal=True)


@pytest.mark.parametrize("blank", ["\n", "\r\n", " \t\n"])
@pytest.mark.parametrize("place", ["start", "middle", "end", "unfinished end"])
def test_blank_lines_are_not_rows_wherever_a_block_ends(tmp_path, monkeypatch, blank, place):
    lines = ["a,b\n", *(f"{row},x{row}\n" for row in range(9))]
    if place == "start":  # spaces in the first line are the names of columns
        blank = blank.strip(" \t")
    index = {"start": 0, "middle": 5}.get(place, len(lines))
    lines.insert(index, blank.rstrip("\n") if place == "unfinished end" else blank * 2)
    (tmp_path / "rows.csv").write_text("".join(lines), newline="")
    for n_bytes in (1, 2, 3, 7, 1000):
        monkeypatch.setattr(_reading, "_BLOCK_BYTES", n_bytes)
        frame = read_table(tmp_path / "rows.csv")
        assert frame.to_dict(as_series=False) == {
            "a": list(range(9)),
            "b": [f"x{row}" for row in range(9)],
        }


def test_pandas_categories_and_nullable_types_need_no_pyarrow(monkeypatch):
    frame = pandas.DataFrame(
        {
            "city": pandas.Categorical(["Oslo", None, "Rome"]),
            "age": pandas.array([41, None, 3], dtype="Int64"),
            "seen": pandas.to_datetime(["2024-05-31", "2024-06-01", None]),
            "price": [1.5, float("nan"), 2.0],
        }
    )
    expected = read_table(frame).with_columns(pl.col("city").cast(pl.String))

    def raise_import_error(_):
        raise ModuleNotFoundError("pyarrow is required")

    monkeypatch.setattr(pl, "from_pandas", raise_import_error)
    assert read_table(frame).to_dicts() == expected.to_dicts()
