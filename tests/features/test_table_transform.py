"""A policy for a pair of tables keeps what turns a raw row into a context, in its file and in its
run's folder.
"""

import copy
import json
import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

import daband
from daband.domains import Columns, TableTransform, from_table
from daband.errors import CheckpointError, InvalidInput
from daband.features._table_transform import as_date
from daband.policies import policies
from daband.policies._checkpoints import read_checkpoint, write_checkpoint

pl = pytest.importorskip("polars")


def rows(n=60, *, seed=0):
    generator = np.random.default_rng(seed)
    ages = generator.integers(20, 80, n).astype(float)
    cities = [["Rome", "Oslo", None][value] for value in generator.integers(0, 3, n)]
    offers = ["blue" if age < 50 else "green" for age in ages]
    return [{"age": a, "city": c, "offer": o} for a, c, o in zip(ages, cities, offers, strict=True)]


@pytest.fixture(scope="module")
def pair():
    columns = Columns(context=("age", "city"), categorical=("city",), label="offer")
    return from_table(
        source=pl.DataFrame(rows()), target=pl.DataFrame(rows(seed=1)), columns=columns
    )


@pytest.mark.parametrize("name", policies.names())
def test_a_saved_policy_judges_raw_rows(name, pair, tmp_path):
    policy = policies.get(name).for_pair(pair, seed=0)
    assert policy.table is pair.table
    policy.prepare(pair.source.read(np.arange(20)), pair.target.read(np.arange(20)))
    rounds = pair.source.rounds(0, 20, seed=0)
    policy.play(rounds.contexts, rounds.rewards)
    policy.save(tmp_path / "p.safetensors", replay=False)
    loaded = daband.load(tmp_path / "p.safetensors")
    assert loaded.table == pair.table
    raw = {"age": 41, "city": "Oslo"}
    told = loaded.decide(loaded.table.contexts(raw))
    expected = policy.decide(pair.table.contexts(raw))
    assert told.arm.shape == (1,)
    np.testing.assert_allclose(told.mean, expected.mean, rtol=1e-6, atol=1e-9)
    assert copy.deepcopy(loaded).table == pair.table


def test_a_table_can_be_set_by_hand_where_it_fits(pair):
    policy = daband.LinUCB(context_shape=pair.context_shape, n_arms=2)
    policy.table = pair.table
    assert policy.table is pair.table
    small = daband.LinUCB(context_shape=(2,), n_arms=2)
    with pytest.raises(InvalidInput, match=r"table .*\(2,\), .*\(4,\)"):
        small.table = pair.table
    with pytest.raises(InvalidInput, match=r"table .*daband\.domains\.TableTransform"):
        small.table = pair.table.state()
    assert small.table is None


@pytest.mark.parametrize(
    "change",
    [{"kind": "complex"}, {"std": 0.0}, {"mean": "nan"}, {"mean": "much"}, {"median": None}],
)
def test_a_damaged_table_is_refused(pair, tmp_path, change):
    state = json.loads(json.dumps(pair.table.state()))
    state["columns"][0] |= change
    with pytest.raises(daband.DataError, match=r"state .*transform"):
        TableTransform.from_state(state)
    path = tmp_path / "p.safetensors"
    daband.LinUCB.for_pair(pair).save(path)
    settings, arrays, notes = read_checkpoint(path)
    write_checkpoint(path, {**settings, "table": state}, arrays, notes)
    with pytest.raises(CheckpointError, match=r"state .*transform"):
        daband.load(path)


def test_the_same_instant_has_the_same_features_in_every_time_zone():
    zones = ["UTC", "Europe/Oslo", "Asia/Kolkata"]
    instants = [
        datetime(2024, 12, 31, 23, 30, tzinfo=UTC) + timedelta(hours=5 * i) for i in range(9)
    ]
    frames = [
        pl.DataFrame({"at": [one.astimezone(ZoneInfo(zone)) for one in instants]}) for zone in zones
    ]
    transform = TableTransform.fit(frames[0], context=["at"], dates=["at"])
    expected = transform.contexts([{"at": one.replace(tzinfo=None)} for one in instants])
    for zone, frame in zip(zones, frames, strict=True):
        np.testing.assert_array_equal(transform.apply(frame), expected)
        np.testing.assert_array_equal(transform.apply(frame.to_pandas()), expected)
        texts = [{"at": one.astimezone(ZoneInfo(zone)).isoformat()} for one in instants]
        np.testing.assert_array_equal(transform.contexts(texts), expected)


@pytest.mark.parametrize(
    "text", ["2024-W22", "2024-W22-5", "2024W225", "202405311", "0001-01-01T00:00+02:00"]
)
def test_other_texts_are_not_dates(text):
    with pytest.raises(daband.InvalidInput, match=re.escape(text)):
        as_date(text, "day")


@pytest.mark.parametrize(
    ("column", "value"), [("age", 1e300), ("age", float("inf")), ("city", "a\0b")]
)
def test_values_that_nothing_can_use_are_rejected_in_frames_and_rows(column, value):
    row = {"age": 41.0, "city": "Rome"}
    frame = pl.DataFrame([row] * 3 + [row | {column: value}])
    with pytest.raises(daband.DabandError, match=rf"{column!r}.*row 3"):
        TableTransform.fit(frame, context=["age", "city"], categorical=["city"])
    transform = TableTransform.fit(frame[:3], context=["age", "city"], categorical=["city"])
    with pytest.raises(InvalidInput, match=repr(column)):
        transform.contexts(row | {column: value})


def test_a_policy_names_the_transform_if_it_is_given_a_frame(pair):
    policy = daband.LinUCB.for_pair(pair, seed=0)
    frame = pl.DataFrame(rows(3)).drop("offer")
    for wrong in (frame, frame.to_pandas(), frame.select("age", age_2="age")):
        with pytest.raises(InvalidInput, match=r"policy\.table\.contexts\(frame\)"):
            policy.decide(wrong)
