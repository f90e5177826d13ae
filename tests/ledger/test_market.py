"""A market: other incumbents, audits, and calls that are killed."""

import csv
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest

import daband
from daband.domains import DataOptions
from daband.ledger import _store
from daband.ledger._market import has_decisions
from daband.service import Settings
from daband.trust import Candidate, read_assessment
from tests.ledger.conftest import read_ledger, run_week
from tests.service.api import Api
from tests.service.conftest import served


@pytest.fixture
def labelled(tmp_path):
    """The folder of a choice, and the choice."""
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 70, 400)
    rows = pl.DataFrame({"age": age, "offer": np.where(age > 45, "card", "loan")})
    rows.write_csv(tmp_path / "old.csv")
    rows.drop("offer").write_csv(tmp_path / "new.csv")
    options = DataOptions(
        source=str(tmp_path / "old.csv"), target=str(tmp_path / "new.csv"), label="offer"
    )
    candidates = [Candidate("constant", "constant"), Candidate("linucb", "linucb")]
    choice = daband.choose(options.read(), candidates=candidates, episodes=4, episode_length=16)
    choice.save(tmp_path / "market")
    return tmp_path / "market", choice


def test_another_incumbent_is_assessed_from_the_files(labelled):
    folder, choice = labelled
    with daband.open_market(folder) as market:
        assert market.assess() == choice.assessment
        other = "card" if "loan" in choice.assessment.incumbent else "loan"
        assert market.assess(incumbent=other).incumbent == f"always {other}"
        assert market.assess(unit="points").unit == "points"
        assert market.assess().incumbent == f"always {other}"
        assert read_assessment(folder / "assessment.json").unit == "points"
        (folder / "data.json").unlink()
        with pytest.raises(daband.InvalidInput, match=r"data\.json"):
            market.assess(incumbent=other)


def test_another_incumbent_is_compared_by_the_ledger_too(folder):
    """Before: the verdict fell back to that of version 0."""
    path, _ = run_week(folder, 0, call=0.9, letter=0.1, n=800)
    with daband.open_market(folder) as market:
        learned = market.learn(path).assessment
        other = market.assess(incumbent="call")
        assert (learned.version, other.version) == (1, 1)
        assert learned.log_rounds == other.log_rounds == 800
        assert learned.advantage > 0.3
        assert (learned.verdict, other.verdict) == ("deploy", "keep the incumbent")
        assert market.assess(incumbent="letter") == learned


def test_an_audit_brings_the_assessment_up_to_date(labelled, tmp_path):
    """Before: `assess` and the exported file repeated what was known before the rewards."""
    folder, choice = labelled
    market = daband.open_market(folder)
    started = market.start_audit(budget=20)
    assert started.incumbent == choice.assessment.incumbent
    with open(started.questions, newline="") as file:
        rows = list(csv.DictReader(file))
    age = pl.read_csv(tmp_path / "new.csv")["age"]

    def answer(value_of, **options):
        lines = [f"{row['id']},{value_of(int(row['context']), row['arm_name'])}" for row in rows]
        (tmp_path / "answers.csv").write_text("\n".join(["id,reward", *lines]))
        return market.update_audit(tmp_path / "answers.csv", **options)

    audit, assessment = answer(lambda row, arm: float((arm == "card") == (age[row] > 45)))
    assert (assessment.rewards, assessment.advantage) == (20, audit.advantage)
    # a limit of 90% decides
    assert audit.low < assessment.low < assessment.advantage < assessment.high < audit.high
    assert market.assess() == assessment
    _, corrected = answer(
        lambda _, arm: float(f"always {arm}" == choice.assessment.incumbent), replace=True
    )
    assert corrected.rewards == 20  # replaced answers do not count twice
    assert corrected.verdict == "keep the incumbent"
    written = json.loads((folder / "audit/audit.json").read_text())
    assert written["verdict"] == "keep the incumbent"
    assert read_assessment(folder / "assessment.json") == choice.assessment
    market.close()


def test_a_service_and_learn_share_a_ledger(quick_folder, tmp_path):
    """The rewards of a service are learned without a log, and it takes the next export."""
    file = tmp_path / "market.daband"
    options = {"epsilon": 0.2, "explore": "greedy", "with_data": False}
    with daband.open_market(quick_folder) as market:
        with pytest.raises(daband.InvalidInput, match="exported"):
            market.write_newest_export()
        market.export(file, **options)
        assert market.write_newest_export().read_bytes() == file.read_bytes()
        with (
            served(file, market.store.address, Settings(control=0.2)) as client,
            Api(str(client.base_url)) as api,
        ):
            ages = np.random.default_rng(0).normal(42.0, 10.0, 300).round(1)
            decisions = api.decide_many([{"context": {"age": age}} for age in ages])
            rewards = [_store.Reward(one.event_id, float(one.arm == 0), 1.0) for one in decisions]
            market.store.append(rewards)
            lesson = market.learn()
            (record,) = lesson.history
            roles = [one.role for one in decisions]
            assert set(roles) == {"policy", "exploration", "control"}
            assert (lesson.learned, record.decisions) == (300, 300)
            assert record.control_rewards == roles.count("control")
            market.export(file, version=1, **options)
            deadline = time.monotonic() + 30
            while (model := api.decide({"age": 40.0}).model) == 0 and time.monotonic() < deadline:
                time.sleep(0.2)
            assert model == 1


# Kills. A call that is killed is a call of which a write, and all later ones, fail.


class Killed(BaseException):
    """Ends a call, as a kill ends its process."""


class Connection:
    """A connection whose commits can fail."""

    def __init__(self, connection, check):
        self._connection = connection
        self._check = check

    def execute(self, statement, *values):
        if statement != "COMMIT":
            return self._connection.execute(statement, *values)
        self._check()
        result = self._connection.execute(statement)
        self._check()
        return result

    def __getattr__(self, name):
        return getattr(self._connection, name)


def run_killed(call, point):
    """Call a function whose write number ``point`` and all later writes fail; return True if it
    was killed.
    """
    n_writes = 0

    def check():
        nonlocal n_writes
        n_writes += 1
        if n_writes >= point:
            raise Killed

    def fail_at(original):
        def checked(*arguments, **options):
            check()
            return original(*arguments, **options)

        return checked

    connect = _store._connect_to_sqlite
    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "fsync"):
            patch.setattr(os, name, fail_at(getattr(os, name)))
        patch.setattr(_store, "_connect_to_sqlite", lambda path: Connection(connect(path), check))
        try:
            call()
        except Killed:
            return True
    return False


def learn_weeks(folder, path):
    with daband.open_market(folder) as market:
        market.learn(path)


def export_again(folder, _):
    with daband.open_market(folder) as market:
        market.export(folder / "market.daband", epsilon=0.2, with_data=False)


def plan_again(folder, _):
    with daband.open_market(folder) as market:
        market.plan_pilot(per_week=500, min_reward=0.0)


def report_again(folder, _):
    daband.open_market(folder).report()


def assess_again(folder, _):
    with daband.open_market(folder) as market:
        market.assess(unit="calls")


def read_all(folder):
    """Return what a market has, without times."""
    with daband.open_market(folder) as market:
        for version in range(1, market.versions.newest + 1):
            market.versions.load(version)
        state = read_ledger(market.store), market.assess(), market.recommended, market.pilot
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix in (".safetensors", ".json", ".daband", ".html")
    }
    return (*state[:3], state[3] and vars(state[3].plan), files)


@pytest.mark.slow
@pytest.mark.parametrize(
    "call", [learn_weeks, export_again, plan_again, report_again, assess_again]
)
def test_a_call_that_is_killed_at_any_write_and_repeated_ends_as_if_it_had_not_been(
    quick_folder, tmp_path, call
):
    first, _ = run_week(quick_folder, 0, n=100)
    learn_weeks(quick_folder, first)
    second, _ = run_week(quick_folder, 1, n=100)
    learn_weeks(quick_folder, second)
    third, _ = run_week(quick_folder, 2, n=100, missing=0.2)
    work = tmp_path / "work" / "market"
    shutil.copytree(quick_folder, work)
    call(work, third)
    expected = read_all(work)
    for point in itertools.count(1):
        shutil.rmtree(work)
        shutil.copytree(quick_folder, work)
        was_killed = run_killed(lambda: call(work, third), point)
        call(work, third)
        assert read_all(work) == expected, point
        if not was_killed:
            break
    assert point > 2


#: A program that is killed when it writes the file whose name is its first argument.
KILLED = """
import os, signal, sys

name = sys.argv.pop(1)
replace = os.replace

def die(source, target, **options):
    if str(target).endswith(name):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target, **options)

os.replace = die
from daband.cli._main import app
app()
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["policy-1.safetensors", "gains-1.json"])
def test_a_killed_process_loses_no_verdict(quick_folder, name):
    """Before: the next call said that the log was learned, and the verdict stayed that of before."""
    path, _ = run_week(quick_folder, 0, call=0.0, letter=0.9, n=400)
    command = ["learn", str(quick_folder), str(path)]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, name, *command], check=False, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    other = shutil.copytree(quick_folder.parent / "market", quick_folder.parent / "other")
    assert has_decisions(other)
    with daband.open_market(quick_folder) as market, daband.open_market(other) as unlearned:
        lesson = market.learn(path)
        assert lesson.newest == 1
        assert unlearned.assess() == lesson.assessment or unlearned.versions.newest == 0
        assert lesson.assessment.log_rounds == 400
