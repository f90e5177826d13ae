"""A pair whose target nobody has labelled runs to its end: the record says what is known, and
nothing else.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

import daband
from daband.bench import Experiment, write_report
from daband.bench._methods import build_policy
from daband.bench._run import finish_run
from daband.training._loop import play
from daband.training._phase import build_source_phase

TARGET = (
    "target_accuracy",
    "target_accuracy_macro",
    "target_value",
    "target_best_value",
    "target_constant_value",
    "target_regret",
    "per_class",
)


def finished(out, method, *, labels):
    experiment = Experiment(
        pair="synthetic", pair_options={"tiny": True}, episodes=2, episode_length=8, seeds=(0,)
    )
    (spec,) = experiment.runs([method])
    pair = daband.domains.load("synthetic", tiny=True)
    folder = out / spec.folder_name
    evaluated_pair = pair if labels else replace(pair, target_test=None)
    policy = build_policy(method, pair, seed=0, settings={}, n_components=2)
    phase = build_source_phase(
        policy,
        pair.source,
        pair.target,
        episodes=2,
        episode_length=8,
        seed=0,
        directory=folder,
        config={"run": spec.model_dump(mode="json")},
    )
    run = play(phase)
    return finish_run(spec, evaluated_pair, policy, run, folder), run, folder, pair


@pytest.mark.parametrize("method", ["linucb", "nlinucb"])
def test_a_target_without_labels(tmp_path, method):
    record, run, folder, pair = finished(tmp_path, method, labels=False)
    assert [record[name] for name in TARGET] == [None] * len(TARGET)
    policy = daband.load(folder / "policy.safetensors")
    arms = policy.decide(pair.target.batch(0, len(pair.target), seed=0), "target", rule="ucb").arm
    assert record["target_arm_counts"] == np.bincount(arms, minlength=pair.n_arms).tolist()
    assert record["target_contexts"] == len(pair.target)
    assert record["source_reward"] == pytest.approx(run.reward.mean())
    assert record["source_regret"] == pytest.approx(run.total_regret)
    assert json.loads((folder / "result.json").read_text()) == record
    page = write_report(tmp_path).read_text()
    assert "the target has no labels" in page


def test_with_labels_the_record_is_the_evaluation(tmp_path):
    record, _, folder, pair = finished(tmp_path, "linucb", labels=True)
    result = daband.evaluate(daband.load(folder / "policy.safetensors"), pair.target_test)
    for name in ("accuracy", "accuracy_macro", "value", "best_value", "constant_value", "regret"):
        assert record[f"target_{name}"] == getattr(result, name)
    assert record["target_arm_counts"] == result.arm_counts
    assert record["feedback"] == "bandit"
