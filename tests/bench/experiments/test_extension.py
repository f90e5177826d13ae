"""A longer run starts from a shorter one of the same settings, and ends as if it had been run at once."""

import pytest

from daband.bench import _run as run
from daband.bench._run import execute, start_from_shorter

SCHEDULED = {
    "recipe": {
        "weights": {"adversarial": {"value": 0.3, "shape": "sigmoid", "steps": 0.5}},
        "learning": {"linear_weight": 0.0, "steps": 2},
    },
    "device": "cpu",
}
"""A weight that is scheduled by a share of the run."""


def timeless(record):
    return {key: value for key, value in record.items() if key != "wall_seconds"}


def test_a_run_is_extended(tiny_experiment, tmp_path):
    (short,) = tiny_experiment(episodes=2).runs(["constant"], [0])
    (long,) = tiny_experiment(episodes=4).runs(["constant"], [0])
    before = timeless(execute(short, tmp_path / "a"))
    told = []
    assert start_from_shorter(long, tmp_path / "a") == tmp_path / "a" / short.folder_name
    extended = execute(long, tmp_path / "a", progress=told.append)
    assert [record["episode"] for record in told] == [3, 4]
    assert timeless(extended) == timeless(execute(long, tmp_path / "b"))
    assert timeless(execute(short, tmp_path / "a")) == before  # which stays as it was
    assert start_from_shorter(long, tmp_path / "a") is None  # it is there by now
    assert {path.name for path in (tmp_path / "a").iterdir()} == {short.folder_name, long.folder_name}


def test_a_run_that_another_process_has_begun_meanwhile_is_left_to_it(tiny_experiment, tmp_path, monkeypatch):
    (short,) = tiny_experiment(episodes=2).runs(["constant"], [0])
    (long,) = tiny_experiment(episodes=4).runs(["constant"], [0])
    execute(short, tmp_path)
    write = run.write_json

    def begin_elsewhere(*given, **named):
        (tmp_path / long.folder_name).mkdir()
        (tmp_path / long.folder_name / "config.json").touch()
        write(*given, **named)

    monkeypatch.setattr(run, "write_json", begin_elsewhere)
    assert start_from_shorter(long, tmp_path) is None
    assert {path.name for path in tmp_path.iterdir()} == {short.folder_name, long.folder_name}


@pytest.mark.parametrize(
    ("method", "changed"),
    [
        ("constant", {"episode_length": 7}),
        ("constant", {"methods": {"constant": {"alpha": 3.0}}}),
        ("constant", {"episodes": 1}),
        ("random", {}),
        ("linucb", {}),  # whose transform is fitted on a whole run
        ("linucb-p", {}),
        ("nlinucb", {}),  # with a linear part
        ("daband", {"methods": {"daband": SCHEDULED}}),
    ],
    ids=str,
)
def test_other_runs_are_not(method, changed, tiny_experiment, tmp_path):
    methods = ["constant", "linucb", "linucb-p", "nlinucb", "daband"]
    for spec in tiny_experiment(episodes=2, components=3, methods={"daband": SCHEDULED}).runs(methods, [0]):
        execute(spec, tmp_path)
    (wanted,) = tiny_experiment(**{"episodes": 4, "components": 3, **changed}).runs([method], [0])
    assert start_from_shorter(wanted, tmp_path) is None
