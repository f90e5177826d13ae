"""Assessments of finished runs: files in run folders, the command, the report's first section."""

import pytest
from typer.testing import CliRunner

import daband
from daband.bench._assess_runs import assess_runs
from daband.bench._bench import bench
from daband.bench._settings import load_experiment
from daband.bench.report._page import assemble
from daband.cli._main import app
from daband.cli._trust import assessed_line
from daband.domains._registry import pairs
from daband.errors import InvalidInput
from daband.trust._assessment import read_assessment


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench")
    experiment = load_experiment("synthetic", ["episodes=4", "pair_options.n_contexts=600"])
    bench(experiment.runs(["constant", "linucb"], [0, 1]), out)
    return out


def test_every_run_of_a_folder_gets_its_assessment(folder):
    runs = assess_runs(folder)
    assert [(run.spec.method, run.spec.seed) for run in runs] == [("linucb", 0), ("linucb", 1)]
    for run in runs:
        assert read_assessment(run.path / "assessment.json") == run.assessment
        assert run.assessment.arm_names[0] == "arm 0"
        assert assessed_line(run).startswith("estimated without a label: .")
        assert "; true: ." in assessed_line(run)


def test_a_single_run_is_assessed_alone(folder):
    both = assess_runs(folder)
    (alone,) = assess_runs(both[1].path)
    assert alone.spec.seed == 1
    assert alone.assessment == both[1].assessment


def test_methods_without_contexts_cannot_be_assessed(folder):
    constant = next(path for path in folder.iterdir() if "constant" in path.name)
    with pytest.raises(InvalidInput, match="no run of a method that uses contexts"):
        assess_runs(constant)


def test_the_command_prints_the_page_and_the_report_begins_with_it(folder):
    shown = CliRunner().invoke(app, ["assess", str(folder), "--required", "0.99"])
    assert shown.exit_code == 0, shown.output
    for words in ("Do not hand over", "This assumes", "linucb, seed 1", "assessment.json"):
        assert words in shown.output
    document = assemble(folder)
    (trust,) = [section for section in document.sections[:2] if section.title == "Assessment in the target"]
    assert "Do not hand over" in trust.blocks[0].text


def test_the_folder_of_a_choice_is_a_finished_run(tmp_path):
    from daband.bench._run import continue_run, finish_choice, policy_folder
    from daband.bench._settings import RunSpec
    from daband.bench.report._page import write_report
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
