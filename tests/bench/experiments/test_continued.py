"""What finished runs do once the target pays."""

import numpy as np
import pytest

from daband.bench._bench import BenchError, bench, continue_bench
from daband.bench._run import continue_run, find_finished_runs
from daband.errors import DataError


@pytest.fixture
def small(tiny_experiment):
    return tiny_experiment(compare=("random", "linucb"))


def timeless(records):
    return [
        {key: value for key, value in record.items() if key != "wall_seconds"} for record in records
    ]


def test_one_run(small, tmp_path):
    bench(small.runs(["linucb", "random"], [0]), tmp_path)
    folders = find_finished_runs(tmp_path)
    assert len(folders) == 2
    before = (folders[0] / "policy.safetensors").read_bytes()
    heard = []
    first = [continue_run(folder, rounds=40, progress=heard.append) for folder in folders]
    assert [continue_run(folder, rounds=40) for folder in folders] == first
    assert (folders[0] / "policy.safetensors").read_bytes() == before
    assert [(record["episode"], record["of"]) for record in heard] == [
        (n, 5) for n in (1, 2, 3, 4, 5)
    ] * 2
    for record in first:
        assert (record["rounds"], record["zero_shot_contexts"]) == (40, 50)
        assert record["total_regret"] == pytest.approx(
            record["zero_shot_regret"] + record["continued_regret"]
        )
    with pytest.raises(DataError, match="remove it"):
        continue_run(folders[0], rounds=41)
    with pytest.raises(DataError, match="nowhere does not exist"):
        find_finished_runs(tmp_path / "nowhere")


def test_a_whole_bench(small, tmp_path):
    bench(small.runs(), tmp_path)
    events = []
    records = continue_bench(tmp_path, rounds=40, on_event=events.append)
    assert {(record["method"], record["seed"]) for record in records} == {
        (method, seed) for method in ("random", "linucb") for seed in (0, 1)
    }
    assert {event.kind for event in events} == {"episode", "finished"}
    for record in records:
        with np.load(tmp_path / record["folder"] / "continued" / "rounds.npz") as rounds:
            assert rounds["regret"].shape == (40,)
            assert rounds["regret"].sum() == pytest.approx(record["continued_regret"])


def test_what_is_done_is_not_repeated_and_what_is_not_is_completed(small, tmp_path):
    bench(small.runs(), tmp_path)
    whole = continue_bench(tmp_path, rounds=40)
    broken = tmp_path / whole[0]["folder"] / "continued"
    (broken / "done").unlink()  # killed after its last save
    events = []
    assert timeless(continue_bench(tmp_path, rounds=40, on_event=events.append)) == timeless(whole)
    assert sorted(event.kind for event in events) == ["finished", "found", "found", "found"]


def test_runs_that_the_bench_no_longer_lists_are_left_alone(small, tmp_path):
    bench(small.runs(["linucb"], [0]), tmp_path)
    changed = small.model_copy(update={"methods": {"linucb": {"alpha": 0.7}}})
    (now,) = bench(changed.runs(["linucb"], [0]), tmp_path)
    assert [path.name for path in find_finished_runs(tmp_path)] == [now["folder"]]
    (tmp_path / "results.json").unlink()
    assert len(find_finished_runs(tmp_path)) == 2


def test_a_run_by_itself(small, tmp_path):
    (record,) = bench(small.runs(["random"], [0]), tmp_path)
    folder = tmp_path / record["folder"]
    (continued,) = continue_bench(folder, rounds=16)
    assert continued["rounds"] == 16


def test_one_that_cannot_go_on_does_not_stop_the_others(small, tmp_path):
    records = bench(small.runs(["random"]), tmp_path)
    (tmp_path / records[0]["folder"] / "policy.safetensors").write_bytes(b"nonsense")
    with pytest.raises(
        BenchError, match=r"1 of 2 runs could not be continued.*random, seed 0"
    ) as caught:
        continue_bench(tmp_path, rounds=16)
    assert [record["seed"] for record in caught.value.records] == [1]
    (tmp_path / records[0]["folder"] / "config.json").write_text("{}")
    with pytest.raises(DataError, match="does not have the settings of a run"):
        continue_bench(tmp_path, rounds=16)
