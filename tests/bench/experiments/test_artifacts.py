"""What a run leaves behind for the report: true to the evaluation, small, and never in the way of a result."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import daband
from daband.bench import _artifacts as artifacts
from daband.bench._run import execute
from daband.bench._settings import Experiment
from daband.domains.readers._arrays import from_arrays
from daband.domains.readers._logs import from_log


def finished(out, pair, method, *, episodes=2, policy=None, **more):
    experiment = Experiment(
        pair=pair,
        pair_options={"tiny": True},
        episodes=episodes,
        episode_length=8,
        seeds=(0,),
        components=3,
        compare=(method,),
        policy=policy or {},
        **more,
    )
    (spec,) = experiment.runs()
    record = execute(spec, out)
    return record, out / record["folder"]


def artifacts_of(folder):
    with np.load(folder / "artifacts.npz", allow_pickle=False) as table:
        return {name: table[name] for name in table.files}


def test_confusion_says_what_the_result_says(tmp_path):
    record, folder = finished(tmp_path, "digit", "nlinucb", policy={"recipe": "small"})
    kept = artifacts_of(folder)
    confusion = kept["confusion"]
    assert confusion.sum() == record["target_contexts"]
    assert np.trace(confusion) / confusion.sum() == pytest.approx(record["target_accuracy"])
    for arm, share in enumerate(record["per_class"]):
        if share is not None:
            assert confusion[arm, arm] / confusion[arm].sum() == pytest.approx(share)


def test_latents_are_those_of_the_trained_policy_in_a_plane(tmp_path):
    _, folder = finished(tmp_path, "synthetic", "daband", episodes=4)
    kept = artifacts_of(folder)
    pair = daband.domains.load("synthetic", tiny=True)
    n = min(500, len(pair.source))
    assert (kept["latent_domain"] == 0).sum() == n
    assert kept["latent"].shape == (n + min(500, len(pair.target_test)), 2)
    rounds = pair.source.rounds(0, n, seed=0)
    np.testing.assert_array_equal(kept["latent_arm"][:n], rounds.expected.argmax(axis=1))
    latents = daband.load(folder / "policy.safetensors").latent(rounds.contexts, "source")
    explained = np.linalg.lstsq(np.c_[latents, np.ones(n)], kept["latent"][:n], rcond=None)[0]
    np.testing.assert_allclose(np.c_[latents, np.ones(n)] @ explained, kept["latent"][:n], atol=1e-3)


@pytest.mark.parametrize(
    ("pair", "method"),
    [("digit", "linucb-p"), ("signs", "nlinucb-p"), ("synthetic", "random"), ("synthetic", "nlinucb-p")],
)
def test_pairs_leave_artifacts(tmp_path, pair, method):
    record, folder = finished(tmp_path, pair, method)
    kept = artifacts_of(folder)
    assert (folder / "artifacts.npz").stat().st_size < 1_000_000
    assert kept["confusion"].sum() == record["target_contexts"]
    assert ("latent" in kept) == (method == "nlinucb-p")
    about = json.loads((folder / "environment.json").read_text())
    assert about["daband"] == daband.__version__
    assert about["device"] == "cpu"
    assert "artifacts_error" not in about


def test_shared_arms_leave_out_what_has_no_meaning(tmp_path):
    experiment = Experiment(
        pair="synthetic", pair_options={"tiny": True, "arms": "shared"}, episodes=2, episode_length=8, seeds=(0,)
    )
    (spec,) = experiment.runs(["nlinucb"])
    record = execute(spec, tmp_path)
    assert artifacts_of(tmp_path / record["folder"]) == {}


def test_a_log_has_latents_but_no_right_arm_in_the_source(tmp_path):
    generator = np.random.default_rng(0)
    contexts, arms = generator.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 3
    pair = from_log(
        source=(contexts, arms, (arms == 0).astype(float), np.full(40, 1 / 3)),
        target=contexts,
        target_test=(contexts + 1.0, arms),
        n_arms=3,
    )
    policy = daband.NeuralLinUCB.for_pair(pair)
    policy.prepare(contexts, contexts)
    artifacts.gather(pair, policy, tmp_path, "ucb")
    kept = artifacts_of(tmp_path)
    assert (kept["latent_arm"][kept["latent_domain"] == 0] == -1).all()
    np.testing.assert_array_equal(kept["latent_arm"][kept["latent_domain"] == 1].shape, (40,))


def test_any_of_several_best_arms_is_right():
    expected = np.array([[1.0, 1.0, 0.0], [0.2, 0.9, 0.9], [0.2, 0.9, 0.9]])
    np.testing.assert_array_equal(artifacts.right_arms(expected, np.array([1, 2, 0])), [1, 2, 1])


def test_contexts_of_a_large_target_are_read_from_all_parts_of_it(tmp_path):
    labels = np.repeat(np.arange(3), 2000)
    contexts = np.eye(3, dtype=np.float32)[labels]
    pair = from_arrays(source=(contexts, labels), target=contexts, target_test=(contexts, labels))
    artifacts.gather(pair, daband.Random.for_pair(pair), tmp_path, "ucb")
    counts = artifacts_of(tmp_path)["confusion"].sum(axis=1)
    np.testing.assert_allclose(counts, 2000 / 3, rtol=0.1)


def test_a_failure_is_told_and_the_run_stands(tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("no picture today")

    monkeypatch.setattr(artifacts, "_latents", broken)
    with pytest.warns(artifacts.ArtifactWarning, match="no picture today"):
        record, folder = finished(tmp_path, "synthetic", "nlinucb")
    assert (folder / "done").exists()
    assert json.loads((folder / "environment.json").read_text())["artifacts_error"] == "RuntimeError: no picture today"
    assert record["target_contexts"] > 0


@pytest.mark.slow
def test_the_commit_is_recorded_where_there_is_no_git_directory(tmp_path):
    package = Path(daband.__file__).parent
    shutil.copytree(package, tmp_path / "src" / "daband", ignore=shutil.ignore_patterns("embedded", "__pycache__"))
    code = "from daband.bench._artifacts import _commit; print(_commit())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "DABAND_COMMIT": "0123abc"}
    for told, expected in ((environment, "0123abc"), ({**environment, "DABAND_COMMIT": ""}, "None")):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=told, cwd=tmp_path, check=True
        )
        assert done.stdout.strip() == expected
