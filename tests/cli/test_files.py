"""A user's own files on the command line, each command in a process of its own."""

import subprocess
import sys
import tomllib

import numpy as np
import polars as pl
import pytest


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    folder = tmp_path_factory.mktemp("market")
    generator = np.random.default_rng(1)
    for name, currency in (("old", 1.0), ("new", 4.3)):
        spent, age = generator.normal(100.0, 30.0, 240), generator.normal(40.0, 9.0, 240)
        offer = generator.integers(3, size=240)
        right = np.digitize(spent, [85.0, 115.0])
        table = pl.DataFrame(
            {
                "customer": [f"{name}{number}" for number in range(240)],
                "spent": (currency * spent).round(2),
                "age": age.round(1),
                "city": generator.choice(["Oslo", "Rome"], size=240),
                "joined": [f"202{number % 4}-0{1 + number % 9}-11" for number in range(240)],
                "offer": np.array(["call", "mail", "none"])[offer],
                "euros": np.where(offer == right, 5.0, 1.0).round(2),
                "p": [1 / 3] * 240,
            }
        )
        (table if name == "old" else table.drop("offer", "euros", "p")).write_csv(folder / f"{name}.csv")
    return folder


def daband(*arguments, cwd, code=0):
    command = [sys.executable, "-m", "daband", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


FILES = ("--source", "old.csv", "--target", "new.csv", "--arm", "offer", "--reward", "euros", "--id", "customer")


def test_a_policy_from_two_files_and_the_settings_serve_later_commands(market):
    told = daband("run", *FILES, "--propensity", "p", "--units", "spent", "--set", "episodes=2", cwd=market)
    assert "old.csv: 240 rows; new.csv: 240" in told
    assert "│ spent │ number │" in told
    assert "│ city │ category │ 2 different values" in told
    assert "│ joined │ date │" in told
    assert "│ customer │ left out │ an id, as you say" in told
    assert "propensities" not in told
    settings = market / "runs/old-to-new/daband.toml"
    written = tomllib.loads(settings.read_text())
    assert written["pair"] == "files"
    assert written["pair_options"]["units"] == ["spent"]
    (config,) = market.glob("runs/old-to-new/files-linucb-seed0-*/config.json")
    assert str(market / "old.csv") in config.read_text()
    again = daband("run", str(settings), "--set", "episodes=2", "--out", "runs/old-to-new", cwd=market)
    assert "files-linucb-seed0" in again
    assert "assessment.json" in daband("assess", str(config.parent), cwd=market)


def test_choose_takes_files_and_says_that_propensities_are_estimated(market):
    told = daband("choose", *FILES, "--set", "episodes=2", "--out", "chosen", cwd=market)
    assert "The log has no propensities: they are estimated" in told
    assert "a number is taken to mean the same in both" in told
    assert (market / "chosen/daband.toml").is_file()
    assert (market / "chosen/policy.safetensors").is_file()
    assert "UserWarning" not in told


def test_fit_log_takes_a_table(market):
    import daband as library

    told = daband("fit-log", "old.csv", *FILES[4:], "--propensity", "p", "--out", "fitted.safetensors", cwd=market)
    assert "│ spent │ number │" in told
    policy = library.load(market / "fitted.safetensors")
    assert policy.rounds_learned == 240
    rows = [{"spent": spent, "age": 40.0, "city": "Oslo", "joined": "2021-05-11"} for spent in (40.0, 160.0)]
    assert policy.select(policy.table.contexts(rows)).mean.argmax(axis=1).tolist() == [0, 2]
    told = daband("fit-log", "old.csv", "--arm", "offer", "--out", "x.safetensors", cwd=market, code=2)
    assert "both columns.arm and columns.reward" in told


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--source", "old.csv"), "--target is needed as well"),
        (("synthetic", "--source", "old.csv"), "NAME, or files"),
        ((), "give a preset's NAME, a TOML file, or --source old.csv --target new.csv"),
        ((*FILES, "--drop", "citty"), "did you mean 'city'"),
        ((*FILES, "--units", "city"), "--units city is no column of numbers (those are: spent, age)"),
        ((*FILES[:4], "--arm", "offer"), "both columns.arm and columns.reward"),
        (("--source", "no.csv", "--target", "new.csv", "--label", "y"), "no.csv is not there"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(market, arguments, says):
    assert says in daband("bench", *arguments, cwd=market, code=2)
