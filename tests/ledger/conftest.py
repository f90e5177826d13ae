"""A market of two offers, whose true means are known, and its weeks."""

import dataclasses
import shutil

import numpy as np
import polars as pl
import pytest

import daband
from daband.ledger._decisions import decide_rows


@pytest.fixture(scope="session")
def log():
    """Old customers, the offers that they got at random, and sales."""
    rng = np.random.default_rng(0)
    ages = rng.normal(40.0, 10.0, 3000).round(1)
    arms = rng.integers(0, 2, 3000)
    means = np.where(arms == 1, 0.5 - 0.3 * (ages < 35), 0.3)
    return pl.DataFrame(
        {
            "age": ages,
            "offer": np.array(["letter", "call"])[arms],
            "sale": (rng.random(3000) < means).astype(float),
            "propensity": 0.5,
        }
    )


@pytest.fixture(scope="session")
def chosen(log, tmp_path_factory):
    """The folder of a choice, which no test changes."""
    data = tmp_path_factory.mktemp("data")
    log.write_csv(data / "old.csv")
    log.select("age").write_csv(data / "new.csv")
    options = daband.domains.DataOptions(
        source=str(data / "old.csv"),
        target=str(data / "new.csv"),
        arm="offer",
        reward="sale",
        propensity="propensity",
    )
    choice = daband.choose(options.read(), incumbent="letter", unit="sales")
    choice.save(data / "market")
    return data / "market"


@pytest.fixture(scope="session")
def quick(log, chosen, tmp_path_factory):
    """The same choice with a policy that learns in milliseconds, which no test changes."""
    choice = daband.Choice.load(chosen)
    pair = choice.options.read()
    policy = daband.LinUCB.for_pair(pair, seed=0)
    arms = [pair.class_names.index(name) for name in log["offer"]]
    rewards = log["sale"].to_numpy()
    policy.prepare(pair.table.contexts(log))
    policy.update(pair.table.contexts(log), arms, rewards, "source")
    policy.deploy("target")
    folder = tmp_path_factory.mktemp("quick") / "market"
    dataclasses.replace(choice, policy=policy).save(folder)
    return folder


@pytest.fixture
def folder(chosen, tmp_path):
    """A copy of the folder of a choice."""
    return shutil.copytree(chosen, tmp_path / "market")


@pytest.fixture
def quick_folder(quick, tmp_path):
    """A copy of the folder of the quick choice."""
    return shutil.copytree(quick, tmp_path / "market")


def run_week(
    folder,
    week,
    *,
    call=0.5,
    letter=0.3,
    missing=0.0,
    n=400,
    control=0.2,
    pilot=False,
    by_age=False,
):
    """Export, decide for n customers, draw rewards, and return the log's path and its frame."""
    file = folder.parent / "market.daband"
    with daband.open_market(folder) as market:
        options = {"pilot": True} if pilot else {"epsilon": 0.2, "explore": "greedy"}
        deployed = market.export(file, with_data=False, **options).deployed
    rng = np.random.default_rng(week)
    rows = pl.DataFrame(
        {
            "age": rng.normal(42.0, 10.0, n).round(1),
            "visit": [f"{week}-{row}" for row in range(n)],
        }
    )
    control = None if pilot else control
    frame = decide_rows(deployed, rows, id_column="visit", control=control).frame
    means = np.where(frame["arm"] == "call", call, letter)
    if by_age:
        means = np.where((frame["arm"] == "call") & (rows["age"] < 42), 0.0, means)
    rewards = pl.Series((rng.random(n) < means).astype(float))
    frame = frame.with_columns(reward=rewards)
    path = folder.parent / f"week{week}.csv"
    is_missing = pl.Series(rng.random(n) < missing)
    frame.with_columns(reward=pl.when(~is_missing).then(pl.col("reward"))).write_csv(path)
    return path, frame


def read_ledger(store):
    """Return what a ledger has, without times."""
    events = [(seq, *_without_time(event)) for seq, event in store.read_events(0)]
    rewards = [(one.seq, one.event.event_id, one.reward, one.kind) for one in store.read_rewards(0)]
    versions = [_without_time(row) for row in store.list_versions()]
    return events, rewards, versions


def _without_time(row):
    return [getattr(row, name) for name in row.__dataclass_fields__ if name != "time"]
