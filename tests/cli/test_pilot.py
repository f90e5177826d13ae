"""The commands of a pilot: plan, export, learn and status."""

import signal
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

import daband
from daband.cli._main import app
from daband.errors import InvalidInput
from daband.trust import Pilot


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a choice for a log with two arms, and the working directory."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    ages = rng.normal(40.0, 10.0, 2000).round(1)
    arms = rng.integers(0, 2, 2000)
    log = pl.DataFrame(
        {
            "age": ages,
            "offer": np.array(["letter", "call"])[arms],
            "sale": (rng.random(2000) < np.where(arms == 1, 0.5, 0.3)).astype(float),
            "propensity": 0.5,
        }
    )
    log.write_csv("old.csv")
    log.select("age", visit=pl.int_range(len(log))).write_csv("new.csv")
    options = daband.domains.DataOptions(
        source="old.csv",
        target="new.csv",
        arm="offer",
        reward="sale",
        propensity="propensity",
        id=("visit",),
    )
    daband.choose(options.read(), incumbent="letter", unit="sales").save("market")
    return tmp_path / "market"


def run(runner, command):
    done = runner.invoke(app, command.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_pilot_from_the_plan_to_the_decision(folder):
    from typer.testing import CliRunner

    runner = CliRunner()
    planned = run(runner, "pilot plan market --max-loss 2% --per-week 1000 --weeks 8 --drift 30%")
    assert "daband export market pilot.daband --pilot" in planned
    assert Pilot(folder).plan.largest_cost == pytest.approx(
        0.02 * 8000 * Pilot(folder).plan.incumbent_mean
    )
    rule = Pilot(folder).plan.rule
    assert rule.worst_loss == pytest.approx(1.3 / 0.3 * rule.drift)
    assert "Go on" in run(runner, "pilot status market")
    rng = np.random.default_rng(1)
    learned = ""
    for week in range(8):
        assert "the policy gets" in run(runner, "export market pilot.daband --pilot --no-data")
        if not week:
            saved = "serve pilot.daband --learn market/policy.safetensors --port 0"
            assert "does not change" in str(runner.invoke(app, saved.split()).exception)
        rows = pl.DataFrame(
            {
                "age": rng.normal(40.0, 10.0, 1000).round(1),
                "visit": [f"{week}-{row}" for row in range(1000)],
            }
        )
        rows.write_csv("week.csv")
        run(runner, f"decide pilot.daband week.csv --out log{week}.csv")
        if not week:
            refused = runner.invoke(app, ["decide", "pilot.daband", "week.csv", "--control", "0.1"])
            assert isinstance(refused.exception, InvalidInput)
        log = pl.read_csv(f"log{week}.csv")
        means = np.where(log["arm"] == "call", 0.5, 0.3)
        log = log.with_columns(reward=pl.Series((rng.random(1000) < means).astype(float)))
        log.write_csv(f"log{week}.csv")
        learned = run(runner, f"learn market log{week}.csv --id visit")
        if "Deploy" in learned:
            break
    assert "Deploy. The policy is proven to be better." in learned
    assert "daband export market market.daband --epsilon 0.1" in learned
    assert (folder / "learned" / f"policy-{week + 1}.safetensors").is_file()
    assert "Deploy." in run(runner, "pilot status market")
    again = runner.invoke(app, ["pilot", "plan", "market", "--per-week", "1000"])
    assert again.exit_code != 0  # its plan cannot change now


def test_a_plan_without_a_choice_is_printed():
    from typer.testing import CliRunner

    command = (
        "pilot plan --per-week 2000 --incumbent-mean 0.1 --reward-deviation 0.3 --min-reward 0"
    )
    assert "Largest cost: 24.0" in run(CliRunner(), command)
    wrong = CliRunner().invoke(app, [*command.split(), "--max-loss", "much"])
    assert wrong.exit_code != 0


#: A program that is killed when it calls the function "module:name" that is its first argument.
KILLED = """
import importlib, os, signal, sys

def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

module, names = sys.argv.pop(1).split(":")
owner = importlib.import_module(module)
*owners, name = names.split(".")
for one in owners:
    owner = getattr(owner, one)
setattr(owner, name, die)
from daband.cli._main import app
app()
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the policy has learned")
@pytest.mark.parametrize("call", [0.3, 1.0])
def test_a_killed_learn_loses_nothing_and_counts_no_round_twice(folder, call):
    from typer.testing import CliRunner

    runner = CliRunner()
    run(runner, "pilot plan market --max-loss 10% --per-week 1000 --weeks 8")
    run(runner, "export market pilot.daband --pilot --no-data")
    rng = np.random.default_rng(1)
    rows = pl.DataFrame({"age": rng.normal(40.0, 10.0, 1000).round(1), "visit": range(1000)})
    rows.write_csv("week.csv")
    run(runner, "decide pilot.daband week.csv --out log.csv")
    log = pl.read_csv("log.csv")
    means = np.where(log["arm"] == "call", call, 0.3)
    log.with_columns(reward=pl.Series((rng.random(1000) < means).astype(float))).write_csv(
        "log.csv"
    )
    learn = ["learn", "market", "log.csv", "--id", "visit"]
    before = daband.load(folder / "policy.safetensors").rounds_learned
    for function in (
        "daband.trust._pilot:write_bytes",  # before the rounds are written
        "daband.trust._pilot:write_json",  # after them, before the course
        "daband:learn_log",
        "daband.policies._policy:Policy.save",
    ):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, function, *learn], check=False, capture_output=True
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    learned = run(runner, " ".join(learn))
    assert [path.name for path in (folder / "learned").glob("policy-*")] == ["policy-1.safetensors"]
    assert daband.load(folder / "learned" / "policy-1.safetensors").rounds_learned == before + 1000
    pilot = Pilot(folder)
    assert pilot.read_status().rounds == 1000
    assert [point["rounds"] for point in pilot.course] == [1000]
    assert pilot.read_status().decision == pilot.course[0]["decision"]
    assert call < 1.0 or pilot.course[0]["decision"] == "deploy"
    assert "of this log before" in run(runner, " ".join(learn))
    assert Pilot(folder).read_status() == pilot.read_status()
    assert "Learned 1,000 target rounds" in learned
