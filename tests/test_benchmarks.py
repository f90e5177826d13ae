"""Run every benchmark script at a tiny size, without other libraries."""

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import daband
from daband.training import Run

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
slow = pytest.mark.slow


def run(script: str, *arguments: object) -> str:
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@slow
def test_bandits_are_played_once(tmp_path):
    path = tmp_path / "new" / "bandits.json"
    options = ["--rounds", 512, "--problems", "wheel .5", "--methods", "LinUCB", "--out", path]
    assert "wheel .5 LinUCB 1" in run("bandits.py", "--seeds", "0-1", *options)
    assert run("bandits.py", "--seeds", "0-1", *options) == ""
    first, second = json.loads(path.read_text())["runs"]
    assert (first["seed"], second["seed"]) == (0, 1)
    assert 0 < first["regret"] == first["curve"][-1] < 1


def test_rewards_of_bandits_are_around_the_expected(script):
    bandits = script("bandits")
    for name in ("wheel .9", "linear", "quadratic", "sinus"):
        problem = bandits.make_problem(name, 0)
        np.testing.assert_allclose(
            problem.rewards.mean(axis=0), problem.expected.mean(axis=0), atol=0.02
        )
        best = problem.expected.argmax(axis=1)
        assert problem.measure_regret(best).sum() == 0
        arms = np.random.default_rng(0).integers(problem.expected.shape[1], size=len(best))
        ratio = problem.measure_regret(arms).mean() / problem.random_regret
        assert ratio == pytest.approx(1, abs=0.05)


@slow
def test_latency_measures_every_case(tmp_path):
    run("latency.py", "--quick", "--json", tmp_path / "latency.json")
    cases = json.loads((tmp_path / "latency.json").read_text())["cases"]
    assert {case["case"] for case in cases} >= {
        "linucb, array",
        "linucb, dict",
        "daband, small image",
    }
    assert all(min(case["deployed_us"], case["bare_us"]) > 0 for case in cases)


@slow
def test_predictions_are_stored_and_questions_measured(tmp_path, script):
    predictions = script("predictions")
    assert ("synthetic", "rotation-0") in predictions.list_data_sets(["synthetic"])
    predictions.store_predictions("synthetic", "rotation-0", 0, tmp_path, "cpu")
    first = tmp_path / "synthetic__rotation-0__0.npz"
    stored = np.load(first)
    assert stored["target_means"].shape[0] == len(stored["candidates"])
    rows = script("questions").measure_choices(first)
    assert {row["way"] for row in rows} >= {"questions", "uniform"}
    assert np.mean([row["true"] for row in rows if "true" in row]) > 0.8
    assert {row["target"] for row in script("questions").measure_verdicts(first)} == {
        "real",
        "unrelated",
        "flipped",
    }
    # generated data sets do not belong to the class
    assert script("reference_class").build_new_rows(tmp_path) == []


@slow
def test_large_logs(tmp_path, script):
    path = tmp_path / "record.json"
    run(
        "fit_log.py",
        "--rows",
        "1280",
        "--data",
        tmp_path / "log",
        "--out",
        path,
        "--repeats",
        "1",
        "--no-ray",
    )
    records = json.loads(path.read_text())
    assert (records[0]["rows"], records[0]["files"]) == (1280, 64)
    assert "| 1,280 | `fit_log`, one process |" in script("pages.speed").fit_log(records)


@slow
def test_a_variant_is_trained_and_its_record_replaces_the_older_one(script, tmp_path):
    study = script("attribution")
    pair = daband.domains.load("synthetic", tiny=True)
    (variant,) = [one for one in study.list_studies()["bound"] if one.method == "nlinucb-p"]
    (record,) = study.run_variant("bound", replace(variant, seeds=(0,)), pair, 2)
    assert record["rounds"] == 128
    assert record["bound"]["rounds"] == [64.0, 128.0]
    assert record["bound"]["source_regret"][-1] == pytest.approx(record["source_regret"], abs=0.01)
    assert "divergence" not in record["bound"], "there is no discriminator"
    path = tmp_path / "record.json"
    path.write_text(
        json.dumps([{**record, "target_accuracy": 0.0}, {**record, "variant": "daband"}])
    )
    study._update_record(path, [record])
    assert [run["variant"] for run in json.loads(path.read_text())] == ["nlinucb-p", "daband"]
    assert json.loads(path.read_text())[0] == json.loads(json.dumps(record))


def test_terms_that_an_episode_lacks_are_omitted(script):
    episodes = [{"bound_rounds": 64.0 * i, "bound_exploration": float(i)} for i in range(1, 46)]
    for episode in episodes[5:]:
        episode["bound_divergence"] = 1.0
    trained = Run(*(np.zeros(0, kind) for kind in (int, float, float, float)), episodes, 0.0)
    terms = script("attribution").compute_bound_terms(trained)
    assert set(terms) == {"rounds", "exploration"}
    assert terms["rounds"][-1] == 64 * 45
    assert np.all(np.diff(terms["rounds"]) == 128)


def test_the_record_has_the_variants_of_the_script(script):
    known = {
        (study, one.name)
        for study, variants in script("attribution").list_studies().items()
        for one in variants
    }
    recorded = json.loads((BENCHMARKS / "records" / "attribution.json").read_text())
    # Measured before these terms were removed, because they did not help.
    removed = {
        ("leave-one-out", "no entropy and diversity"),
        ("paper ablation", "RPD, P on the policy's own choice"),
    }
    assert {(run["study"], run["variant"]) for run in recorded} == known | removed


@pytest.mark.parametrize("name", ["fresh", "third", "fourth", "fifth"])
def test_held_out_records_have_data_sets_of_their_set(script, name):
    recorded = script("split").read_split
    record = json.loads((BENCHMARKS / "records" / f"{name}.json").read_text())
    for one in record["runs"]:
        assert one["name"] in recorded(record["half"])[one["data"]]


@slow
def test_routers_are_judged(tmp_path):
    if not (daband.domains._registry.get_data_directory() / "routing").is_dir():
        pytest.skip("needs the data set routing")
    run("routing.py", "--pairs", 1, "--out", tmp_path / "routing.json")
    (row,) = json.loads((tmp_path / "routing.json").read_text())["rows"]
    assert {len(judged) for judged in row["verdicts"].values()} == {3}
    assert min(map(min, row["values"].values())) >= min(row["singles"]) - 0.2


@slow
def test_six_weeks_are_simulated(script, monkeypatch):
    six_weeks = script("six_weeks")
    monkeypatch.setattr(six_weeks, "_N_SOURCE", 800)
    monkeypatch.setattr(six_weeks, "_PER_WEEK", 160)
    rows = [six_weeks.measure("same", seed) for seed in (0, 1)]
    assert rows[0] == six_weeks.measure("same", 0)
    summary = six_weeks.summarise(rows)["same"]
    means = summary["mean"]
    assert summary["markets"] == 2
    assert all(0.12 < means[name] < 0.25 for name in six_weeks.POLICIES)
    assert summary["difference"] == pytest.approx(means["LogPolicy"] - means["LinUCB"], abs=2e-4)
    assert np.shape(summary["weeks"]["LogPolicy"]) == (6,)
