"""``daband evaluate-log`` as a user calls it."""

import json
import subprocess
import sys

import numpy as np
import pytest

import daband as library

pl = pytest.importorskip("polars")


def frame(n=400, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.normal(40, 10, n)
    city = rng.choice(["Oslo", "Bergen"], n)
    arm = rng.integers(0, 2, n)
    reward = (rng.random(n) < 0.3 + 0.4 * ((city == "Oslo") == (arm == 1))).astype(float)
    return pl.DataFrame(
        {"age": age, "city": city, "arm": arm, "reward": reward, "propensity": np.full(n, 0.5)}
    )


@pytest.fixture
def policy(tmp_path):
    """A policy for raw rows, its log, and its file."""
    from daband.domains import TableTransform

    table = TableTransform.fit(frame(), context=["age", "city"], categorical=["city"])
    made = library.LinUCB(context_shape=(len(table.feature_names),), n_arms=2, alpha=0.0, seed=0)
    made.table = table
    rows = frame(seed=1)
    made.update(table.apply(rows), rows["arm"].to_numpy(), rows["reward"].to_numpy())
    made.save(tmp_path / "p.safetensors")
    (tmp_path / "log").mkdir()
    for number in range(3):
        frame(seed=2 + number).write_parquet(tmp_path / "log" / f"{number}.parquet")
    return made


def test_a_policy_of_tables_reads_raw_rows(daband, policy, tmp_path):
    done = daband("evaluate-log", "p.safetensors", "log", "--out", "found.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Mean reward 0.")  # without empty lines before it
    found = json.loads((tmp_path / "found.json").read_text())
    rows = pl.concat([frame(seed=2 + number) for number in range(3)])
    log = (
        policy.table.apply(rows),
        *(rows[name].to_numpy() for name in ("arm", "reward", "propensity")),
    )
    assert found["estimate"]["value"] == pytest.approx(
        library.evaluate_log(policy, log).value, abs=1e-9
    )
    assert 0.6 < found["estimate"]["value"] < 0.8  # it takes the arm that pays .7


def save_choice(folder):
    """Save a choice of LinUCB for vectors, and return its policy."""
    pair = library.domains.load("synthetic", tiny=True)
    linucb = library.trust.Candidate("linucb", "linucb")
    choice = library.choose(pair, candidates=[linucb], episodes=3, episode_length=20)
    choice.save(folder)
    return choice.policy


def test_a_choice_and_its_folder(daband, tmp_path):
    saved = save_choice(tmp_path / "market")
    rng = np.random.default_rng(0)
    columns = {f"x{i}": rng.normal(size=100) for i in range(saved.context_shape[0])}
    columns |= {"arm": rng.integers(0, saved.n_arms, 100), "reward": rng.random(100)}
    pl.DataFrame({**columns, "propensity": np.full(100, 1 / saved.n_arms)}).write_parquet(
        "log.parquet"
    )
    done = daband("evaluate-log", "market", "log.parquet")
    assert done.returncode == 0, done.stderr
    estimate = json.loads((tmp_path / "market/log_estimates.json").read_text())["estimate"]
    assert estimate["domain"] == "target"
    assert "in the target" in done.stdout
    done = daband("evaluate-log", "market", "log.parquet", "--domain", "source")
    assert "in the source" in done.stdout


def test_errors_name_what_is_wrong(daband, policy, tmp_path):
    for arguments, message in (
        (["nothing.safetensors", "log"], "nothing.safetensors"),
        (["p.safetensors", "logs"], "logs does not exist"),
        (
            ["p.safetensors", "log", "--context", "age"],
            "the context must be the policy's columns: age, city",
        ),
    ):
        done = daband("evaluate-log", *arguments)
        assert done.returncode == 2
        assert message in " ".join(done.stderr.split())
    frame().rename({"age": "aeg"}).write_parquet("log/1.parquet")
    done = daband("evaluate-log", "p.safetensors", "log")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "1.parquet has no column 'age'; did you mean 'aeg'?" in said


def write_weeks(saved):
    """Write two logs of 100 rounds each."""
    for number in range(2):
        rng = np.random.default_rng(number)
        columns = {f"x{i}": rng.normal(size=100) for i in range(saved.context_shape[0])}
        columns |= {"arm": rng.integers(0, saved.n_arms, 100), "reward": rng.random(100)}
        columns |= {"n": np.arange(100) + 100 * number}
        pl.DataFrame({**columns, "propensity": np.full(100, 1 / saved.n_arms)}).write_csv(
            f"week{number}.csv"
        )


#: The command that learns the log of another system.
LEARN = ("learn", "market", "--external", "--id", "n")


@pytest.mark.slow
def test_two_processes_that_learn_at_once_lose_no_log(daband, tmp_path):
    saved = save_choice(tmp_path / "market")
    write_weeks(saved)
    processes = [
        subprocess.Popen([sys.executable, "-m", "daband", *LEARN, f"week{number}.csv"])
        for number in range(2)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    learned = library.load(tmp_path / "market/learned/policy-2.safetensors")
    assert learned.rounds_learned == saved.rounds_learned + 200
    assert daband("learn", "nothing", "week0.csv").returncode == 2
    assert not (tmp_path / "nothing").exists()


def test_a_log_that_was_learned_is_refused(daband, tmp_path):
    write_weeks(save_choice(tmp_path / "market"))
    done = daband(*LEARN, "week0.csv")
    assert done.returncode == 0, done.stderr
    assert "as version 1" in done.stdout
    done = daband("evaluate-log", "market", "week0.csv", "--id", "n")
    assert done.returncode == 2
    assert "the policy has learned the log" in " ".join(done.stderr.split())
    assert daband("export", "market", "market.daband", "--epsilon", "0.1").returncode == 0
    options = ["--id", "n", "--out", "found.json"]
    done = daband("evaluate-log", "market.daband", "week1.csv", *options)
    assert done.returncode == 0, done.stderr
    estimate = json.loads((tmp_path / "found.json").read_text())["estimate"]
    rows = pl.read_csv("week1.csv")
    contexts = rows.drop("arm", "reward", "propensity", "n").to_numpy()
    log = (contexts, *(rows[name].to_numpy() for name in ("arm", "reward", "propensity")))
    deployed = library.load_deployed("market.daband")
    assert deployed.frozen.exploration.rule == "greedy"
    assert estimate["value"] == pytest.approx(library.evaluate_log(deployed, log).value, abs=1e-9)
