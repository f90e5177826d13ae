"""Parquet files as one log: which files, which columns, in which order, and what is wrong with
them.
"""

import pickle

import numpy as np
import pytest

import daband
from daband.domains import Columns, ParquetLog
from daband.errors import DataError, InvalidInput

pl = pytest.importorskip("polars")


def frame(rows, *, seed=0, features=4, **columns):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)).astype(np.float32)
    logged = {
        "arm": rng.integers(0, 3, rows),
        "reward": rng.random(rows),
        "propensity": rng.uniform(0.1, 1, rows),
    }
    return pl.DataFrame({**{f"x{i}": x[:, i] for i in range(features)}, **logged, **columns})


def write(folder, *frames, **options):
    folder.mkdir(exist_ok=True)
    for number, table in enumerate(frames):
        table.write_parquet(folder / f"{number}.parquet", **options)
    return folder


def contexts(table, features=4):
    return table.select([f"x{i}" for i in range(features)]).to_numpy()


def test_a_folder_a_glob_and_a_list_are_the_same_log(tmp_path):
    tables = [frame(50, seed=seed) for seed in range(3)]
    folder = write(tmp_path / "log", *tables)
    files = sorted(folder.glob("*.parquet"))
    for given in (folder, str(folder), f"{folder}/*.parquet", files, f"{tmp_path}/**/*.parquet"):
        log = ParquetLog(given, n_arms=3)
        assert [file.path for file in log.files] == [str(path) for path in files]
        assert (len(log), log.context_shape) == (150, (4,))
    alone = ParquetLog(files[0], n_arms=3)
    np.testing.assert_array_equal(alone.read(np.arange(50)), contexts(tables[0]))


def test_parts_and_batches_cover_every_row_once_in_order(tmp_path):
    tables = [frame(n, seed=n) for n in (100, 1, 57)]
    log = ParquetLog(write(tmp_path / "log", *tables, row_group_size=16), n_arms=3)
    parts = log.parts(40)
    assert [(part.start, part.stop) for part in parts] == [
        (0, 40),
        (40, 80),
        (80, 100),
        (0, 1),
        (0, 40),
        (40, 57),
    ]
    batches = [batch for part in parts for batch in log.batches(part, 7)]
    assert max(len(batch) for batch in batches) == 7
    whole = pl.concat(tables)
    np.testing.assert_array_equal(
        np.concatenate([batch.contexts for batch in batches]), contexts(whole)
    )
    np.testing.assert_array_equal(np.concatenate([batch.arms for batch in batches]), whole["arm"])
    np.testing.assert_array_equal(
        np.concatenate([batch.rewards for batch in batches]), whole["reward"]
    )
    np.testing.assert_array_equal(
        np.concatenate([batch.propensities for batch in batches]), whole["propensity"]
    )


def test_the_order_of_rounds_is_fixed_by_the_seed_and_complete(tmp_path):
    tables = [frame(n, seed=n) for n in (100, 30)]
    log = ParquetLog(write(tmp_path / "log", *tables), n_arms=3)
    order = log.order(0, 260, seed=5)
    assert sorted(order[:130]) == sorted(order[130:]) == list(range(130))
    assert not np.array_equal(order[:130], order[130:])
    pieces = [log.order(start, min(start + 11, 260), seed=5) for start in range(0, 260, 11)]
    np.testing.assert_array_equal(np.concatenate(pieces), order)
    assert not np.array_equal(log.order(0, 130, seed=6), order[:130])
    rounds = log.rounds(3, 90, seed=5)
    np.testing.assert_array_equal(rounds.contexts, contexts(pl.concat(tables))[order[3:90]])
    np.testing.assert_array_equal(rounds.arms, pl.concat(tables)["arm"].to_numpy()[order[3:90]])
    copy = pickle.loads(pickle.dumps(log))
    np.testing.assert_array_equal(copy.rounds(3, 90, seed=5).contexts, rounds.contexts)


def test_train_takes_it_as_any_other_source(tmp_path):
    log = ParquetLog(write(tmp_path / "log", frame(200), frame(200, seed=1)), n_arms=3)
    policy = daband.LinUCB(context_shape=(4,), n_arms=3)
    daband.train(policy, source=log, episodes=10, episode_length=40)
    assert policy.rounds_learned == 400
    pair = daband.domains.from_log(
        source=f"{tmp_path}/log/*.parquet", source_test=None, target=contexts(frame(50)), n_arms=3
    )
    assert len(pair.source) == 400
    assert pair.context_shape == (4,)


def test_columns_by_name_lists_and_tables(tmp_path):
    table = frame(30).with_columns(pl.lit("other").alias("note"))
    folder = write(tmp_path / "named", table)
    columns = Columns(("x2", "x0"), arm="arm", reward="reward", propensity="propensity")
    log = ParquetLog(folder, n_arms=3, columns=columns)
    np.testing.assert_array_equal(log.read(np.arange(30)), table.select("x2", "x0").to_numpy())

    nested = frame(30).select(
        "arm", "reward", "propensity", pl.concat_list("x0", "x1", "x2", "x3").alias("context")
    )
    for number, kind in enumerate(
        (nested, nested.with_columns(pl.col("context").list.to_array(4)))
    ):
        log = ParquetLog(write(tmp_path / f"lists{number}", kind), n_arms=3, context_shape=(2, 2))
        np.testing.assert_array_equal(log.read(np.arange(30)).reshape(30, 4), contexts(frame(30)))

    city = pl.DataFrame({"age": np.arange(30.0), "city": ["Oslo", "Rome", "Bern"] * 10})
    transform = daband.domains.TableTransform.fit(
        city, context=("age", "city"), categorical=("city",)
    )
    columns = Columns(
        ("age", "city"), ("city",), arm="arm", reward="reward", propensity="propensity"
    )
    mixed = frame(30, features=0).with_columns(city["age"], city["city"])
    log = ParquetLog(
        write(tmp_path / "mixed", mixed), n_arms=3, columns=columns, transform=transform
    )
    np.testing.assert_array_equal(log.read(np.arange(30)), transform.apply(city))


def test_what_footers_tell_is_checked_before_the_first_row(tmp_path):
    good = frame(20)
    wrong = {
        "has no column 'reward'": good.drop("reward"),
        "has no column 'x1'": good.drop("x1"),
        "has a column 'x9'": good.with_columns(pl.lit(1.0).alias("x9")),
        "has String in column 'x0'": good.with_columns(pl.col("x0").cast(pl.String)),
    }
    for number, (message, table) in enumerate(wrong.items()):
        folder = write(tmp_path / str(number), good, table, good)
        with pytest.raises(DataError, match=r"1\.parquet has ") as caught:
            ParquetLog(folder, n_arms=3)
        assert message in str(caught.value)
    write(
        tmp_path / "widths",
        good,
        good.with_columns(pl.col("x0").cast(pl.Float64), pl.col("arm").cast(pl.Int8)),
    )
    assert len(ParquetLog(tmp_path / "widths", n_arms=3)) == 40
    (tmp_path / "0" / "1.parquet").write_bytes((tmp_path / "0" / "0.parquet").read_bytes()[:-100])
    with pytest.raises(DataError, match=r"1\.parquet .*PAR1"):
        ParquetLog(tmp_path / "0", n_arms=3)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("propensity", 0.0, "must be in (0, 1]"),
        ("propensity", 1e-300, "at least 1e-12"),
        ("propensity", 1.5, "must be in (0, 1]"),
        ("propensity", float("nan"), "column 'propensity' has no value"),
        ("arm", 3, "not an arm (0, 1, 2)"),
        ("reward", float("inf"), "'reward' has inf"),
        ("x1", float("nan"), "of 'x1'"),
        ("x1", None, "column 'x1'"),
        ("arm", None, "column 'arm'"),
    ],
)
def test_what_rows_hold_is_named_with_file_and_row(tmp_path, column, value, message):
    row = pl.int_range(pl.len()) == 17
    bad = frame(40).with_columns(
        pl.when(row).then(pl.lit(value)).otherwise(pl.col(column)).alias(column)
    )
    bad = bad.with_columns(pl.col(column).cast(frame(1).schema[column]))
    log = ParquetLog(write(tmp_path / "log", frame(40), bad), n_arms=3)
    with pytest.raises(DataError, match=r"1\.parquet.* row 17") as caught:
        [batch for part in log.parts() for batch in log.batches(part, 10)]
    assert message in str(caught.value)


def test_logs_that_are_none(tmp_path):
    with pytest.raises(DataError, match=rf"{tmp_path}/\*\.parquet;"):
        ParquetLog(f"{tmp_path}/*.parquet", n_arms=3)
    with pytest.raises(DataError, match=r"\*\.parquet .*\*\.csv .*\*\.tsv"):
        ParquetLog(tmp_path, n_arms=3)
    with pytest.raises(DataError, match=r"one\.parquet"):
        ParquetLog(tmp_path / "one.parquet", n_arms=3)
    with pytest.raises(InvalidInput, match=r"log .*empty"):
        ParquetLog([], n_arms=3)
    with pytest.raises(DataError, match=r"empty/0\.parquet .*rows"):
        ParquetLog(write(tmp_path / "empty", frame(0)), n_arms=3)
    with pytest.raises(InvalidInput, match=r" 4 .*\(5,\)"):
        ParquetLog(write(tmp_path / "log", frame(5)), n_arms=3, context_shape=(5,))


def test_a_log_in_csv_is_read_as_one_in_parquet(tmp_path):
    frame(20).write_csv(tmp_path / "log.csv")
    pair = daband.domains.from_log(
        source=str(tmp_path / "log.csv"), source_test=None, target=np.zeros((5, 4)), n_arms=3
    )
    np.testing.assert_allclose(pair.source.read(np.arange(20)), contexts(frame(20)), rtol=1e-6)
    copy = pickle.loads(pickle.dumps(pair.source))
    np.testing.assert_array_equal(copy.read(np.arange(20)), pair.source.read(np.arange(20)))


def test_rounds_without_a_reward_keep_the_row_numbers_of_the_others(tmp_path):
    table = frame(30).with_columns(reward=pl.when(pl.int_range(30) > 9).then("reward"))
    log = ParquetLog(write(tmp_path / "log", table), n_arms=3, skip_unrewarded=True)
    assert (len(log), log.unrewarded) == (20, {str(tmp_path / "log" / "0.parquet"): 10})
    np.testing.assert_array_equal(log.read(np.array([0]))[0], contexts(table)[10])
    table = table.with_columns(
        propensity=pl.when(pl.int_range(30) == 12).then(0.0).otherwise("propensity")
    )
    log = ParquetLog(write(tmp_path / "bad", table), n_arms=3, skip_unrewarded=True)
    with pytest.raises(DataError, match=r"0\.parquet: .*'propensity'.* row 12 "):
        log.read_log(np.arange(20))


def test_arms_are_read_by_their_names(tmp_path):
    names = ["tea", "none", "coffee"]
    table = frame(30).with_columns(
        pl.col("arm").replace_strict(dict(enumerate(names)), return_dtype=pl.String)
    )
    log = ParquetLog(write(tmp_path / "log", table), n_arms=3, arm_names=names)
    np.testing.assert_array_equal(log.read_log(np.arange(30))[0], frame(30)["arm"])
    with pytest.raises(
        DataError,
        match=r"'coffee' .*'arm', .*\(tea, none, mate\)",
    ):
        ParquetLog(tmp_path / "log", n_arms=3, arm_names=["tea", "none", "mate"])


def test_a_reward_that_is_no_number_is_shown_with_its_row(tmp_path):
    rewards = pl.Series("reward", ["1.5"] * 7 + ["none"] + ["0.5"] * 12)
    log = ParquetLog(write(tmp_path, frame(20).with_columns(rewards)), n_arms=3)
    with pytest.raises(
        DataError,
        match=r"0\.parquet: .*'reward' .*'none' .*row 7",
    ):
        log.read_log(np.arange(20))
