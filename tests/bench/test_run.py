"""The folders of finished runs."""

import pytest

from daband.bench import bench
from daband.bench._run import find_finished_runs
from daband.errors import DataError


@pytest.fixture
def small(tiny_experiment):
    return tiny_experiment(compare=("random", "linucb"))


def test_runs_that_the_bench_no_longer_lists_are_left_alone(small, tmp_path):
    bench(small.runs(["linucb"], [0]), tmp_path)
    changed = small.model_copy(update={"methods": {"linucb": {"alpha": 0.7}}})
    (now,) = bench(changed.runs(["linucb"], [0]), tmp_path)
    assert [path.name for path in find_finished_runs(tmp_path)] == [now["folder"]]
    (tmp_path / "results.json").unlink()
    assert len(find_finished_runs(tmp_path)) == 2
    with pytest.raises(DataError, match="/nowhere "):
        find_finished_runs(tmp_path / "nowhere")
