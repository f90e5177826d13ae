"""Seeds that are trained together end in the same folders, with the same results, as seeds one
after the other.
"""

import json
from functools import partial

import numpy as np
import pytest

from daband.bench import _executors as module
from daband.bench import _run as prepared
from daband.bench._bench import bench
from daband.bench._executors import group_runs
from daband.bench._settings import load_experiment

SETTINGS = [
    "episodes=3",
    "episode_length=32",
    'methods.nlinucb.device="cpu"',
    'methods.daband.device="cpu"',
]


@pytest.fixture
def specs():
    return load_experiment("synthetic", SETTINGS).runs(["linucb", "nlinucb", "daband"], [0, 1, 2])


def test_groups_hold_the_seeds_of_a_method(specs, monkeypatch):
    assert all(len(group) == 1 for group in group_runs(specs))  # on the CPU nothing is gained
    monkeypatch.setattr(module, "_is_on_gpu", lambda spec: spec.method != "linucb")
    groups = group_runs(specs)
    assert sorted((group[0].method, len(group)) for group in groups) == [
        ("daband", 3),
        ("linucb", 1),
        ("linucb", 1),
        ("linucb", 1),
        ("nlinucb", 3),
    ]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_results_are_those_of_runs_one_after_the_other(specs, tmp_path, monkeypatch, jobs):
    events = []
    plain = bench(specs, tmp_path / "plain")
    monkeypatch.setattr(module, "_is_on_gpu", lambda spec: spec.method != "linucb")
    beside = bench(specs, tmp_path / "stacked", jobs=jobs, on_event=events.append)
    for one, other in zip(plain, beside, strict=True):
        assert one["folder"] == other["folder"]
        assert other["target_accuracy"] == pytest.approx(one["target_accuracy"], abs=0.1)
        alone, twin = (
            np.load(tmp_path / kind / one["folder"] / "rounds.npz")["arm"]
            for kind in ("plain", "stacked")
        )
        # rounding differs from the first gradient step on
        np.testing.assert_array_equal(alone[:32], twin[:32])
        assert (alone == twin).mean() > 0.8
        assert (tmp_path / "stacked" / one["folder"] / "done").exists()
    assert sum(event.kind == "finished" for event in events) == len(specs)
    assert len(json.loads((tmp_path / "stacked" / "results.json").read_text())) == len(specs)
    events.clear()
    bench(specs, tmp_path / "stacked", jobs=jobs, on_event=events.append)
    assert {event.kind for event in events} == {"found"}


def test_a_seed_that_fails_is_told_and_the_others_are_kept(specs, tmp_path, monkeypatch):
    from daband.bench._bench import BenchError

    monkeypatch.setattr(module, "_is_on_gpu", lambda spec: spec.method == "daband")
    build = prepared.build_policy

    def broken(method, pair, *, seed, **settings):
        policy = build(method, pair, seed=seed, **settings)
        if seed == 1:
            policy.learner.parameters[0].data.fill_(float("nan"))
        return policy

    monkeypatch.setattr(prepared, "build_policy", broken)
    mine = [spec for spec in specs if spec.method == "daband"]
    with pytest.raises(BenchError, match="not finite") as caught:
        bench(mine, tmp_path)
    assert sorted(record["seed"] for record in caught.value.records) == [0, 2]


def test_a_stack_that_cannot_be_prepared_does_not_end_the_others(specs, tmp_path, monkeypatch):
    from daband.bench._bench import BenchError

    monkeypatch.setattr(module, "_is_on_gpu", lambda spec: spec.method == "daband")

    def missing(*_, **__):
        raise OSError("the data are not there")

    # of stacks: single runs are prepared elsewhere
    monkeypatch.setattr(module, "prepare_run", missing)
    with pytest.raises(BenchError, match="the data are not there") as caught:
        bench([spec for spec in specs if spec.method != "nlinucb"], tmp_path)
    assert [record["method"] for record in caught.value.records] == ["linucb"] * 3


@pytest.fixture
def mine(specs, monkeypatch):
    monkeypatch.setattr(module, "_is_on_gpu", lambda spec: spec.method == "daband")
    return [spec for spec in specs if spec.method == "daband"]


def test_progress_goes_on_when_the_first_seed_fails(mine, tmp_path, monkeypatch):
    from daband.bench._bench import BenchError

    build = prepared.build_policy
    events = []

    def broken(method, pair, *, seed, **settings):
        policy = build(method, pair, seed=seed, **settings)
        if seed == 0:
            policy.learner.parameters[0].data.fill_(float("nan"))
        return policy

    monkeypatch.setattr(prepared, "build_policy", broken)
    with pytest.raises(BenchError, match="not finite"):
        bench(mine, tmp_path, on_event=events.append)
    assert [event.detail["episode"] for event in events if event.kind == "episode"] == [1, 2, 3]


def test_a_seed_that_cannot_be_concluded_is_told_and_the_others_are_kept(
    mine, tmp_path, monkeypatch
):
    from daband.bench._bench import BenchError

    real = module.finish_run

    def torn(prepared, run):
        if prepared.spec.seed == 0:
            raise OSError("no space left")
        return real(prepared, run)

    monkeypatch.setattr(module, "finish_run", torn)
    with pytest.raises(BenchError, match="no space left") as caught:
        bench(mine, tmp_path)
    assert sorted(record["seed"] for record in caught.value.records) == [1, 2]
    monkeypatch.setattr(module, "finish_run", real)
    events = []
    assert len(bench(mine, tmp_path, on_event=events.append)) == 3
    # trained already, only concluded
    assert [event.kind for event in events] == ["found", "found", "finished"]


def test_a_group_that_ends_badly_keeps_what_was_finished(mine, tmp_path, monkeypatch):
    from daband.bench import _bench as bench_module
    from daband.bench._bench import BenchError

    def work(group, folder, *, progress=None):
        module.execute_run(group[0], folder)
        return [MemoryError("the worker is gone")] * len(group)

    monkeypatch.setattr(bench_module, "execute_all", partial(module.execute_all, execute=work))
    with pytest.raises(BenchError) as caught:
        bench(mine, tmp_path)
    assert [record["seed"] for record in caught.value.records] == [0]


def test_runs_too_large_for_the_device_together_are_done_in_turn(mine, tmp_path, monkeypatch):
    from daband.errors import DeviceOutOfMemory

    def full(trainings, **settings):
        raise DeviceOutOfMemory("the device ran out of memory")

    monkeypatch.setattr(module, "train_together", full)
    with pytest.warns(UserWarning, match="one after another"):
        records = bench(mine, tmp_path)
    assert [record["seed"] for record in records] == [0, 1, 2]


def test_nothing_is_left_of_a_group_that_is_finished(mine, tmp_path):
    bench(mine, tmp_path)
    records = module.execute_group(mine, tmp_path)
    assert [record["seed"] for record in records] == [0, 1, 2]


def test_interrupted_seeds_go_on_where_they_were(mine, tmp_path):
    def stop(event):
        if event.kind == "episode" and event.detail["episode"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench(mine, tmp_path / "broken", on_event=stop)
    events = []
    again = bench(mine, tmp_path / "broken", on_event=events.append)
    assert [event.detail["episode"] for event in events if event.kind == "episode"] == [
        1,
        2,
        3,
    ]  # nothing was saved yet
    unbroken = bench(mine, tmp_path / "unbroken")
    for one, other in zip(again, unbroken, strict=True):
        assert one["target_accuracy"] == other["target_accuracy"]
        assert one["source_regret"] == other["source_regret"]
