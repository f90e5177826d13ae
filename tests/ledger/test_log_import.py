"""A log enters the ledger completely, or not at all."""

import numpy as np
import polars as pl
import pytest

import daband
from daband.errors import DabandError
from daband.ledger._log_import import LogNames
from tests.ledger.conftest import read_ledger, run_week

LATE = pl.int_range(pl.len()) == 7


def set_one(name, value):
    return pl.when(LATE).then(pl.lit(value)).otherwise(pl.col(name)).alias(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (pl.col("propensity") * 100, "propensity"),
        (pl.lit(0.5).alias("propensity"), "propensity"),
        (set_one("propensity", None), "propensity"),
        (set_one("propensity", float("nan")), "propensity"),
        (set_one("arm", "fax"), "fax"),
        (set_one("arm", None), "arm"),
        (pl.col("arm").str.to_uppercase(), "arm"),
        (set_one("reward", 1e101), "reward"),
        (set_one("reward", float("inf")), "reward"),
        (set_one("version", 3), "version 3"),
        (set_one("role", "friend"), "friend"),
        (set_one("control", 2.0), "control"),
        (set_one("decision_id", "0-8"), "0-8"),
        (set_one("decision_id", None), "decision_id"),
        (pl.col("age") + 60.0, "propensity"),
    ],
    ids=[f"wrong{number}" for number in range(15)],
)
def test_a_wrong_log_changes_nothing_and_the_corrected_log_is_learned(
    quick_folder, change, message
):
    path, frame = run_week(quick_folder, 0)
    frame.with_columns(change).write_csv(path)
    with daband.open_market(quick_folder) as market:
        with pytest.raises(DabandError, match=message):
            market.learn(path)
        assert read_ledger(market.store) == ([], [], [])
        frame.write_csv(path)
        assert market.learn(path).learned == len(frame)


def test_a_cluster_that_the_log_does_not_have_changes_nothing(quick_folder):
    path, frame = run_week(quick_folder, 0)
    with daband.open_market(quick_folder) as market:
        with pytest.raises(daband.InvalidInput, match="--cluster"):
            market.learn(path, cluster="household")
        assert read_ledger(market.store) == ([], [], [])
        assert market.learn(path).learned == len(frame)


def test_an_earlier_week_may_lack_the_column_of_the_cluster(quick_folder):
    first, _ = run_week(quick_folder, 0, n=200)
    with daband.open_market(quick_folder) as market:
        market.learn(first)
    path, frame = run_week(quick_folder, 1, n=200)
    frame.with_columns(household=np.arange(len(frame)) // 2).write_csv(path)
    with daband.open_market(quick_folder) as market:
        assert market.learn(path, cluster="household").learned == len(frame)
        assert sum(record.rewards for record in market.history()) == 2 * len(frame)


def test_rows_that_no_exported_file_has_decided_need_external(quick_folder):
    _, frame = run_week(quick_folder, 0)
    log = frame.drop("version", "role", "control")
    with daband.open_market(quick_folder) as market:
        with pytest.raises(daband.InvalidInput, match="--external"):
            market.learn(log)
        with pytest.raises(daband.InvalidInput, match="--id"):
            market.learn(log.drop("decision_id"), external=True)
        lesson = market.learn(log, external=True)
        assert (lesson.learned, lesson.running, lesson.history) == (len(frame), None, [])


def test_a_log_comes_again_with_late_rewards_but_not_with_other_rewards(quick_folder):
    path, frame = run_week(quick_folder, 0, missing=0.3)
    with daband.open_market(quick_folder) as market:
        first = market.learn(path)
        assert first.entered.missing > 0
        assert first.learned == first.entered.rewards == len(frame) - first.entered.missing
        assert market.learn(path).learned == 0
        # other programs write ids as floats and round propensities
        later = market.learn(frame.with_columns(pl.col("propensity").round(5)))
        assert later.learned == first.entered.missing
        assert market.store.find_last_seq("events") == len(frame)
        before = read_ledger(market.store)
        changed = frame.with_columns(reward=1.0 - pl.col("reward"))
        with pytest.raises(daband.InvalidInput, match="--correct"):
            market.learn(changed)
        with pytest.raises(daband.InvalidInput, match="needs a new id"):
            market.learn(frame.with_columns(arm=pl.lit("call"), propensity=0.9))
        assert read_ledger(market.store) == before
        lesson = market.learn(changed, correct=True)
        assert lesson.entered.corrected == lesson.learned == len(frame)
        again = market.versions.load(0).rounds_learned + len(frame)
        assert market.versions.load().rounds_learned == again


def test_ids_that_another_program_wrote_as_floats_are_the_same_ids(quick_folder):
    _, frame = run_week(quick_folder, 0)
    numbered = frame.with_columns(decision_id=pl.int_range(len(frame)))
    with daband.open_market(quick_folder) as market:
        market.learn(numbered, external=True)
        as_floats = numbered.with_columns(pl.col("decision_id").cast(pl.Float64))
        assert market.learn(as_floats, external=True).entered.decisions == 0


def test_other_columns_may_have_the_roles(quick_folder):
    _, frame = run_week(quick_folder, 0)
    names = {"arm": "offer", "reward": "sale", "propensity": "p", "decision_id": "n"}
    renamed = frame.rename(names)
    with daband.open_market(quick_folder) as market:
        with pytest.raises(daband.InvalidInput, match="decision_id"):
            market.learn(renamed)
        columns = LogNames(arm="offer", reward="sale", propensity="p", id="n")
        assert market.learn(renamed, names=columns).learned == len(frame)
