"""The benchmark scripts must not rot: each runs at a tiny size, without the peers."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_linear_writes_every_metric(tmp_path: Path) -> None:
    path = tmp_path / "new" / "linear.json"
    printed = run("linear.py", "--quick", "--only", "daband,bare numpy", "--json", str(path))
    document = json.loads(path.read_text())
    assert {comparison["metric"] for comparison in document["comparisons"]} == set(document["results"])
    assert "bare numpy loop" in printed
    for metric, result in document["results"].items():
        assert result["values"]["daband LinUCB"], metric
        assert min(result["values"]["daband LinUCB"]) > 0, metric
    reward = document["results"]["cumulative reward"]["values"]
    for name in ("daband LinUCB", "bare numpy loop"):
        for earned, best in zip(reward[name], reward["best arm in hindsight"], strict=True):
            assert earned < best


@pytest.mark.exact_contexts
def test_the_bare_loop_is_linucb_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learned from the same rounds, the two give the same scores; who wins a tie in the first rounds is chance."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    peers = importlib.import_module("peers")
    rng = np.random.default_rng(0)
    ours, bare = (adapter(8, 3, 0.3, 0) for adapter in (peers.Daband, peers.BareNumpy))
    contexts, arms, rewards = rng.normal(size=(60, 8)), rng.integers(0, 3, 60), rng.random(60)
    for context, arm, reward in zip(contexts, arms, rewards, strict=True):
        for policy in (ours, bare):
            policy.update(policy.encode(context), int(arm), float(reward))
    fresh = rng.normal(size=(20, 8))
    decision = ours.policy.decide(fresh)
    np.testing.assert_allclose(decision.mean, fresh @ bare.theta.T, rtol=1e-8, atol=1e-10)
    squares = np.einsum("bd,kde,be->bk", fresh, bare.inverse, fresh)
    np.testing.assert_allclose(decision.width, np.sqrt(squares), rtol=1e-8)
    scores = np.sort(decision.mean + 0.3 * decision.width, axis=1)
    clear = scores[:, -1] - scores[:, -2] > 1e-6
    assert clear.any()
    np.testing.assert_array_equal(np.asarray(ours.score(fresh))[clear], bare.score(fresh)[clear])


def test_latency_measures_every_case(tmp_path: Path) -> None:
    path = tmp_path / "latency.json"
    run("latency.py", "--quick", "--json", str(path))
    document = json.loads(path.read_text())
    assert {case["case"] for case in document["cases"]} >= {"linucb, array", "linucb, dict", "daband, small image"}
    for case in document["cases"]:
        assert min(case["deployed_us"], case["bare_us"], case["policy_us"]) > 0, case


def test_baselines_write_a_value_for_each_seed(tmp_path: Path) -> None:
    path = tmp_path / "baselines.json"
    run(
        "baselines.py", "--pairs", "synthetic", "--methods", "linucb", "linucb-coral", "trees", "--seeds", "2",
        "--episodes", "3", "--json", str(path),
    )  # fmt: skip
    values = json.loads(path.read_text())["values"]["synthetic"]
    assert list(values) == ["linucb", "linucb-coral", "trees"]
    assert all(len(seeds) == 2 and all(0 < one < 1 for one in seeds) for seeds in values.values())


def test_dual_learns(tmp_path: Path) -> None:
    path = tmp_path / "dual.json"
    run("dual.py", "--rounds", "256", "--shape", "3,16,32", "--evaluate", "64", "--arms", "4", "--json", str(path))
    result = json.loads(path.read_text())
    assert result["rounds"] == 256
    assert result["evaluated"] == 64
    assert result["target_accuracy"] > 0.5


def test_training_writes_rates_and_shares(tmp_path: Path) -> None:
    path = tmp_path / "training.json"
    printed = run(
        "training.py", "--device", "cpu", "--encoders", "mlp", "--episodes", "1", "--repeats", "1", "--eager",
        "--json", str(path),
    )  # fmt: skip
    document = json.loads(path.read_text())
    (result,) = document["results"]
    assert set(result["shares"]) == {"step", "features", "head", "host"}
    assert all(0 < share < 1 for share in result["shares"].values())
    assert result["outside_steps"] == pytest.approx(1 - result["shares"]["step"])
    assert result["images_per_second"] == pytest.approx(128 * result["steps_per_second"])
    assert result["flops_per_step"] > 1e8
    assert result["share_of_product"] > 0
    assert document["against_plain"][0]["threads"] == 1
    assert "mlp" in printed


def test_report_times_a_folder_of_all_kinds_of_runs(tmp_path: Path) -> None:
    path, kept = tmp_path / "report.json", tmp_path / "runs"
    run("report.py", "--runs", "80", "--json", str(path), "--keep", str(kept))
    result = json.loads(path.read_text())
    assert result["runs"] == 80
    assert all(seconds > 0 for seconds in result["seconds"].values())
    page = (kept / "report.html").read_text()
    for wanted in ("What R, P and D are worth", "The sweep", "Every pair", "figure-digit-map-DABand"):
        assert wanted in page


def test_simulated_audits_record_coverage_and_width(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    predicted = generator.random(300)
    kept = tmp_path / "policies"
    kept.mkdir()
    np.savez(
        kept / "made_up_linucb-7.npz",
        mean=np.stack([predicted, 1 - predicted], axis=1),
        arm=np.zeros(300, np.int64),
        reward=(generator.random(300) < predicted).astype(float),
    )
    run("audit.py", "simulate", "--policies", str(kept), "--out", str(tmp_path / "a.json"), "--simulations", "10")
    records = json.loads((tmp_path / "a.json").read_text())["records"]
    assert [record["budget"] for record in records] == [100, 200]
    for record in records:
        assert (record["data"], record["pair"], record["method"], record["episodes"]) == ("made", "up", "linucb", 7)
        assert 0.5 < record["width_ratio"] < 1.1
        assert record["coverage"] >= 0.7


def test_studies_of_logs(tmp_path: Path) -> None:
    path = tmp_path / "coverage.json"
    run("off_policy.py", "--studies", "coverage", "--logs", "2", "--part", "3/7", "--out", str(path))
    (row,) = json.loads(path.read_text())["coverage"]
    assert row["shift"] == "normal"
    assert row["estimators"]["dr"]["rmse"] < 0.2
    path = tmp_path / "learning.json"
    run("log_learning.py", "--policies", "linucb", "--seeds", "1", "--rounds", "200", "--out", str(path))
    run("log_learning.py", "--join", str(path), str(path), "--out", str(tmp_path / "joined.json"))
    joined = json.loads((tmp_path / "joined.json").read_text())
    assert len(joined["runs"]) == 2
    assert len(joined["records"]) == 2 * 8
    for record in joined["records"]:
        assert len(record["values"]) == 4
        assert max(record["values"].values()) <= record["best"]


def test_what_assess_ships_is_what_the_data_sets_for_development_give(monkeypatch: pytest.MonkeyPatch) -> None:
    from daband.trust._estimate import ADAPTED, ALONE, MISSED

    monkeypatch.syspath_prepend(str(BENCHMARKS))
    study = importlib.import_module("trust_report")
    names = ("trust-development", "fresh-development", "third", "fourth")
    records = [json.loads((BENCHMARKS / "records" / f"{name}.json").read_text()) for name in names]
    assert [record["half"] for record in records] == ["development", "development", "third", "fourth"]
    assert study.fitted([run for record in records for run in record["runs"]]) == (ALONE, MISSED, ADAPTED)


@pytest.mark.parametrize("name", ["fresh", "third", "fourth", "fifth"])
def test_the_report_is_of_the_other_half(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    split, study = importlib.import_module("split"), importlib.import_module("trust_report")
    record = json.loads((BENCHMARKS / "records" / f"{name}.json").read_text())
    for run_record in record["runs"]:
        assert run_record["name"] in split.recorded(record["half"])[run_record["data"]]
    assert study.summary(record["runs"])["assess"] == record["assess"]


def test_a_market_whose_shift_is_named_keeps_it_in_its_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    study = importlib.import_module("trust_report")
    for kind, units in ((study.NAMED, (0, 1, 2)), ("markets", None)):  # basket, spent_last_year, last_order
        np.savez(tmp_path / "pair.npz", **study._arrays(study.load_pair(kind, "units-1")))
        read = study.pair_of(tmp_path / "pair.npz")
        assert (read.shift.units, read.shift.stated) == (units, units is not None)
        names = [candidate.name for part in study.candidates_of(read) for candidate in part]
        assert ("daband, other units" in names) == (kind == "markets")


def test_the_record_of_shared_data_sets_has_each_of_them_and_three_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    study = importlib.import_module("trust_report")
    record = json.loads((BENCHMARKS / "records" / "shared.json").read_text())
    seeds: dict[tuple[str, str], set[int]] = {}
    for run in record["runs"]:
        seeds.setdefault((run["data"], run["name"]), set()).add(run["seed"])
    assert set(seeds) == set(study.data_sets("shared")) - {("images", "signs")}  # which is on a page of its own
    assert all(own == {0, 1, 2} for own in seeds.values())
    runs = [run for run in record["runs"] if run["data"] != study.NAMED]
    assert {key: record[key] for key in ("assess", "rewards", "default")} == study.summary(runs)
