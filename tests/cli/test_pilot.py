"""The commands of a pilot: plan, export, learn and status."""

import numpy as np
import polars as pl
import pytest

import daband
from daband.cli._main import app
from daband.errors import InvalidInput


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
    plan = daband.open_market(folder).pilot.plan
    assert plan.largest_cost == pytest.approx(0.02 * 8000 * plan.incumbent_mean)
    rule = plan.rule
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
        run(runner, f"decide pilot.daband week.csv --id visit --out log{week}.csv")
        if not week:
            refused = runner.invoke(app, ["decide", "pilot.daband", "week.csv", "--control", "0.1"])
            assert isinstance(refused.exception, InvalidInput)
        log = pl.read_csv(f"log{week}.csv")
        means = np.where(log["arm"] == "call", 0.5, 0.3)
        log = log.with_columns(reward=pl.Series((rng.random(1000) < means).astype(float)))
        log.write_csv(f"log{week}.csv")
        learned = run(runner, f"learn market log{week}.csv")
        if "Deploy" in learned:
            break
        assert "To do: " not in learned  # only the next export of the pilot
        assert "Next: daband export market pilot.daband --pilot" in learned
    assert "Deploy. The policy is proven to be better." in learned
    assert "daband export market market.daband --epsilon 0.1" in learned
    assert (folder / "learned" / f"policy-{week + 1}.safetensors").is_file()
    assert "Deploy." in run(runner, "pilot status market")
    again = runner.invoke(app, ["pilot", "plan", "market", "--per-week", "1000"])
    assert isinstance(again.exception, InvalidInput)  # its plan cannot change now
    assert "given up" in run(runner, "pilot cancel market")
    assert isinstance(runner.invoke(app, ["pilot", "status", "market"]).exception, InvalidInput)
    assert "To start it" in run(runner, "pilot plan market --per-week 1000")


def test_a_plan_without_a_choice_is_printed():
    from typer.testing import CliRunner

    command = (
        "pilot plan --per-week 2000 --incumbent-mean 0.1 --reward-deviation 0.3 --min-reward 0"
    )
    assert "Largest cost: 24.0" in run(CliRunner(), command)
    wrong = CliRunner().invoke(app, [*command.split(), "--max-loss", "much"])
    assert wrong.exit_code != 0
