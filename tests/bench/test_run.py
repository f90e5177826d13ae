"""The folders and the records of finished runs."""

from dataclasses import replace

import pytest

import daband
from daband.bench import BenchError, bench
from daband.bench import _run as run


@pytest.fixture
def small(tiny_experiment):
    return tiny_experiment(compare=("random", "linucb"))


def test_the_record_has_the_evaluation(small, tmp_path):
    (record,) = bench(small.runs(["linucb"], [0]), tmp_path)
    policy = daband.load(tmp_path / record["folder"] / "policy.safetensors")
    pair = daband.domains.load("synthetic", tiny=True)
    result = daband.evaluate(policy, pair.target_test)
    for name in ("accuracy", "accuracy_macro", "value", "best_value", "constant_value", "regret"):
        assert record[f"target_{name}"] == getattr(result, name)
    assert record["target_arm_counts"] == result.arm_counts


def test_a_target_without_labels_is_refused(small, tmp_path, monkeypatch):
    pair = replace(daband.domains.load("synthetic", tiny=True), target_test=None)
    monkeypatch.setattr(run, "load", lambda *_, **__: pair)
    with pytest.raises(BenchError, match="target_test"):
        bench(small.runs(["linucb"], [0]), tmp_path)
