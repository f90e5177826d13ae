"""Assessments of finished runs: committees by seed, files in run folders, the command, the report's first section."""

import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import daband
from daband.bench._assess_runs import assess_runs, with_committees
from daband.bench._bench import bench
from daband.bench._settings import load_experiment
from daband.bench.report._page import assemble
from daband.cli._main import app
from daband.cli._trust import assessed_line
from daband.domains._contract import About
from daband.domains._registry import PairEntry, pairs
from daband.domains.readers._arrays import from_arrays
from daband.errors import InvalidInput
from daband.trust._assessment import read_assessment


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench")
    experiment = load_experiment("synthetic", ["episodes=4", "pair_options.n_contexts=600"])
    bench(with_committees(experiment.runs(["constant", "linucb"], [0]), 2), out)
    return out


def test_a_committee_has_the_seeds_that_were_asked_for_and_the_next_ones():
    experiment = load_experiment("synthetic", ["episodes=4"])
    specs = with_committees(experiment.runs(["constant", "linucb", "daband"], [1, 2]), 3, methods=["daband"])
    found = [(spec.method, spec.seed) for spec in specs]
    assert found == [("constant", 1), ("constant", 2), ("linucb", 1), ("linucb", 2)] + [
        ("daband", seed) for seed in (1, 2, 3)
    ]


def test_every_run_of_a_folder_gets_its_assessment(folder):
    runs = assess_runs(folder)
    assert [(run.spec.method, run.spec.seed) for run in runs] == [("linucb", 0), ("linucb", 1)]
    for run in runs:
        assert read_assessment(run.path / "assessment.json") == run.assessment
        assert {name.partition(": ")[0] for name in run.assessment.explanations} == {"seed 0", "seed 1"}
        assert run.assessment.arm_names[0] == "arm 0"
        assert run.true_value == json.loads((run.path / "result.json").read_text())["target_value"]
        assert assessed_line(run).startswith("estimated without a label: .")
        assert "; true: ." in assessed_line(run)


def test_a_single_run_is_assessed_with_its_siblings(folder):
    both = assess_runs(folder)
    (alone,) = assess_runs(both[1].path)
    assert alone.spec.seed == 1
    assert alone.assessment == both[1].assessment


def test_methods_without_contexts_cannot_be_assessed(folder):
    constant = next(path for path in folder.iterdir() if "constant" in path.name)
    with pytest.raises(InvalidInput, match="no run of a method that looks at contexts"):
        assess_runs(constant)


def test_the_command_prints_the_page_and_the_report_begins_with_it(folder):
    shown = CliRunner().invoke(app, ["assess", str(folder), "--required", "0.99"])
    assert shown.exit_code == 0, shown.output
    for words in ("Do not hand over", "This assumes", "linucb, seed 1", "assessment.json"):
        assert words in shown.output
    document = assemble(folder)
    (trust,) = [section for section in document.sections[:2] if section.title == "May it be trusted in the target?"]
    assert "Do not hand over" in trust.blocks[0].text


@pytest.fixture
def equal_arms():
    """A pair whose arms all pay 0: nothing is to be learned, and linear policies of all seeds are one policy."""

    def build(*, tiny=False):
        contexts = np.random.default_rng(0).normal(size=(150, 3))
        return from_arrays(source=(contexts, np.zeros((150, 2))), target=contexts, name="equal_arms")

    entry = PairEntry("equal_arms", build, About(summary="all arms pay 0"))
    with pairs.temporarily("equal_arms", entry):
        yield


@pytest.mark.usefixtures("equal_arms")
def test_a_committee_that_cannot_be_assessed_costs_the_others_nothing(tmp_path):
    budget = ["--set", "episodes=2", "--set", "episode_length=16"]
    call = ["bench", "equal_arms", "--methods", "linucb", "--seeds", "0", "--committee", "2", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*call, *budget])
    assert done.exit_code == 0, done.output
    assert "nothing could be assessed" in done.output
    assert (tmp_path / "report.html").is_file()
    with pytest.raises(InvalidInput, match="they are one policy"):
        assess_runs(tmp_path)
    bench(load_experiment("synthetic", ["episodes=2", "pair_options.tiny=true"]).runs(["linucb"], [0, 1]), tmp_path)
    (tmp_path / "results.json").unlink()  # so that all finished runs of the folder count
    with pytest.warns(UserWarning, match="equal_arms, linucb cannot be assessed"):
        found = assess_runs(tmp_path)
    assert [run.spec.pair for run in found] == ["synthetic", "synthetic"]


def test_the_folder_of_a_choice_is_a_finished_run(tmp_path):
    from daband.bench._run import continue_run, finish_choice, policy_folder
    from daband.bench._settings import RunSpec
    from daband.bench.report._page import write_report
    from daband.domains._registry import pairs
    from daband.trust._choose import Candidate

    options = pairs.get("synthetic").resolved({"tiny": True})
    pair = daband.domains.load("synthetic", **options)
    candidates = [Candidate("constant", "constant"), Candidate("linucb", "linucb")]
    choice = daband.choose(pair, candidates=candidates, episodes=4, episode_length=16, directory=tmp_path)
    spec = RunSpec(
        pair="synthetic", pair_options=options, method="constant", variant="default", policy={}, components=64,
        episodes=4, episode_length=16, seed=0, rule="ucb", selection="choose",
    )  # fmt: skip
    finish_choice(choice, pair, spec, tmp_path)
    assert policy_folder(tmp_path).pair == "synthetic"
    (assessed,) = assess_runs(tmp_path)
    assert assessed.spec.method == choice.candidate
    assert assessed.assessment == choice.assessment  # one number of rewards to ask for, whoever is asked
    (strict,) = assess_runs(tmp_path, required=0.999)
    assert strict.assessment.verdict == "do not"
    assert strict.assessment.reasons.count("A value of 0.999 is required.") == 1
    assert len(strict.assessment.reasons) == len(choice.assessment.reasons)
    assert continue_run(tmp_path, rounds=32)["rounds"] == 32
    assert write_report(tmp_path, formats=()).is_file()
    number, path = policy_folder(tmp_path).next_version()
    assert (number, path.name) == (1, "policy-1.safetensors")
    path.parent.mkdir()
    choice.policy.save(path)
    assert policy_folder(tmp_path).policy_file == path
    assert policy_folder(tmp_path).next_version()[0] == 2


def test_a_copy_of_a_run_beside_it_is_no_other_seed(folder, tmp_path):
    for path in folder.iterdir():
        if path.is_dir() and "linucb" in path.name:
            shutil.copytree(path, tmp_path / path.name)
    before = {run.spec.seed: run.assessment for run in assess_runs(tmp_path)}
    shutil.copytree(sorted(tmp_path.iterdir())[0], tmp_path / "a-copy")
    (alone,) = assess_runs(tmp_path / "a-copy")
    assert alone.assessment == before[alone.spec.seed]
    assert [run.assessment == before[run.spec.seed] for run in assess_runs(tmp_path)] == [True, True, True]
