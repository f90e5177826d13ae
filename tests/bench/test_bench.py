import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from daband.bench import BenchError, bench, load_experiment, read_results
from daband.bench._executors import execute_all
from daband.errors import InvalidInput, WorkerDied

FIELDS = {
    "pair",
    "method",
    "variant",
    "seed",
    "target_accuracy",
    "target_accuracy_macro",
    "target_regret",
    "per_class",
    "source_regret",
    "rounds",
    "wall_seconds",
    "config_hash",
    "settings_hash",
}
LONG_ENOUGH = {"episodes": 150, "episode_length": 100}
"""Settings of runs that can be interrupted while they are at it."""
LONG_COMMAND = [
    *(sys.executable, "-m", "daband", "bench", "synthetic", "--methods", "linucb,linucb-p"),
    *("--seeds", "0-1", "--episodes", "150", "--episode-length", "100"),
]


@pytest.fixture
def small(tiny_experiment):
    return tiny_experiment(compare=("random", "linucb", "linucb-p"), components=3)


def timeless(records):
    return [
        {key: value for key, value in record.items() if key != "wall_seconds"} for record in records
    ]


def test_records_have_all_fields_and_stay_on_disk(small, tmp_path):
    records = bench(small.runs(), tmp_path)
    assert len(records) == 6
    assert all(set(record) >= FIELDS for record in records)
    assert read_results(tmp_path) == records
    folder = tmp_path / records[0]["folder"]
    names = {
        "config.json",
        "rounds.npz",
        "episodes.jsonl",
        "policy.safetensors",
        "result.json",
        "done",
    }
    assert {path.name for path in folder.iterdir()} == names | {"environment.json"}
    assert json.loads((folder / "result.json").read_text()) == records[0]


@pytest.mark.slow
def test_processes_give_the_same_results(small, tmp_path):
    alone = bench(small.runs(), tmp_path / "one")
    events = []
    together = bench(small.runs(), tmp_path / "two", jobs=2, on_event=events.append)
    assert timeless(alone) == timeless(together)
    assert {event.kind for event in events} == {"finished"}


def in_processes(specs, folder, work):
    return list(execute_all(specs, folder, print, jobs=2, execute=work))


def die_with_seed_1(spec, bench_folder, progress):
    if spec.seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


def test_a_worker_that_dies_is_reported(small, tmp_path):
    todo = small.runs(["random"], range(2))
    outcomes = {
        spec.seed: outcome for spec, outcome in in_processes(todo, tmp_path, die_with_seed_1)
    }
    assert isinstance(outcomes[1], WorkerDied)


def fail(spec, bench_folder, progress):
    raise KeyError("wage")


def test_a_run_that_fails_in_a_process_says_how_and_where(small, tmp_path):
    for _, outcome in in_processes(small.runs(["random"], range(2)), tmp_path, fail):
        assert re.fullmatch(r"KeyError: 'wage' \(.*test_bench\.py, line \d+\)", str(outcome))


def test_a_second_call_does_no_work(small, tmp_path):
    first = bench(small.runs(), tmp_path)
    events = []
    assert bench(small.runs(), tmp_path, on_event=events.append) == first
    assert {event.kind for event in events} == {"found"}


def test_a_later_call_for_other_methods_keeps_the_earlier_results(small, tmp_path):
    bench(small.runs(["random", "linucb"]), tmp_path)
    bench(small.runs(["linucb-p"]), tmp_path)
    assert [record["method"] for record in read_results(tmp_path)].count("linucb") == 2
    assert len(read_results(tmp_path)) == 6
    changed = replace(small, methods={"linucb": {"alpha": 0.7}})
    # another alpha stands in for the first, it is not averaged with it
    bench(changed.runs(["linucb"]), tmp_path)
    assert [record["method"] for record in read_results(tmp_path)].count("linucb") == 2


def test_nothing_to_run_and_runs_named_twice(small, tmp_path):
    assert len(bench(small.runs(["linucb", "linucb"], [0]), tmp_path)) == 1
    with pytest.raises(InvalidInput, match=r"method .*seed"):
        bench(small.runs([]), tmp_path)
    assert len(read_results(tmp_path)) == 1


def test_a_failed_run_does_not_lose_the_others(small, tmp_path):
    broken = replace(small, methods={"linucb": {"ridge": -1.0}})
    for jobs in (1, 2):
        with pytest.raises(BenchError, match=r"^2 .*6 .*linucb, seed 0: ridge "):
            bench(broken.runs(), tmp_path / str(jobs), jobs=jobs)
        assert len(read_results(tmp_path / str(jobs))) == 4


def test_a_run_that_fails_by_a_mistake_says_where(small, tmp_path, monkeypatch):
    """A method of one's own fails by errors that are not daband's: "'wage'" alone tells nobody what
    to mend.
    """

    def missing(*_, **__):
        raise KeyError("wage")

    monkeypatch.setattr("daband.LinUCB._play", missing)
    with pytest.raises(
        BenchError, match=r"linucb, seed 0: KeyError: 'wage' \(.*test_bench.py, line \d+\)"
    ):
        bench(small.runs(["linucb"], [0]), tmp_path)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The records of a bench that nothing interrupted."""
    experiment = replace(load_experiment("synthetic"), **LONG_ENOUGH)
    specs = experiment.runs(["linucb", "linucb-p"], [0, 1])
    return bench(specs, tmp_path_factory.mktemp("unbroken"))


@pytest.mark.slow
def test_interrupted_and_completed(unbroken, tmp_path):
    """Ctrl-C in the middle: the same command completes the folder, with the results of an unbroken
    one.
    """
    command = [*LONG_COMMAND, "--out", str(tmp_path / "broken")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 600
    while not list((tmp_path / "broken").glob("*/config.json")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode in (130, -signal.SIGINT)
    assert "the same command continues" in errors
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert timeless(read_results(tmp_path / "broken")) == timeless(unbroken)


AT_ONCE = """
import sys
from daband.bench import Experiment, bench
small = Experiment("synthetic", pair_options={"tiny": True}, episodes=4, episode_length=10, components=3)
bench(small.runs(sys.argv[2].split(","), [0, 1, 2]), sys.argv[1])
"""


@pytest.mark.slow
def test_two_processes_in_one_folder(tmp_path):
    """Both are at work at the same time; ``results.json`` has every record of both, and each run is
    there once.
    """
    methods = ("random,linucb", "linucb,random,linucb-p")
    started = [
        subprocess.Popen(
            [sys.executable, "-c", AT_ONCE, str(tmp_path), names], stderr=subprocess.PIPE, text=True
        )
        for names in methods
    ]
    for process in started:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    wanted = {
        (method, seed) for names in methods for method in names.split(",") for seed in range(3)
    }
    assert sorted(
        (record["method"], record["seed"]) for record in read_results(tmp_path)
    ) == sorted(wanted)
    assert not list(tmp_path.rglob("*lock"))
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.slow
def test_terminated_and_completed(unbroken, tmp_path):
    """SIGTERM, as a scheduler sends it: the runs under way are saved, and the same command
    completes the folder.
    """
    command = [*LONG_COMMAND, "--jobs", "2", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    # Until each of them has begun: a signal during the first save of a run acts at once, and leaves
    # its temporary file.
    while len(list(tmp_path.glob("*/policy.safetensors"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    assert process.returncode == 143
    assert "Traceback" not in errors
    assert "the same command continues" in errors
    assert not list(tmp_path.rglob("*.tmp"))
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert timeless(read_results(tmp_path)) == timeless(unbroken)


@pytest.mark.slow
def test_killed_with_its_workers_and_completed(unbroken, tmp_path):
    """kill -9, as a machine that is out of memory sends it: no process is left behind."""
    command = [*LONG_COMMAND, "--jobs", "2", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("*/policy.safetensors"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    children = subprocess.check_output(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], text=True
    ).split()
    process.kill()
    process.wait()
    assert len(children) >= 3
    while (
        any(Path(f"/proc/{child}").exists() for child in children)
        and time.monotonic() < deadline + 60
    ):
        time.sleep(0.05)
    assert not [child for child in children if Path(f"/proc/{child}").exists()]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert timeless(read_results(tmp_path)) == timeless(unbroken)
