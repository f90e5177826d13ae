"""Assessments of finished runs: files in run folders, the command, the report's section, and
audits.
"""

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import daband
from daband.bench._bench import bench
from daband.bench._policy_folders import (
    assess_runs,
    find_policy_folder,
    finish_choice,
    start_audit,
    update_audit,
)
from daband.bench._run import continue_run
from daband.bench._settings import RunSpec, load_experiment
from daband.bench.report._page import build_content, write_report
from daband.cli._main import app
from daband.domains._registry import pairs
from daband.errors import InvalidInput
from daband.policies._default_members import Candidate
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
    (alone,) = assess_runs(runs[1].path)
    assert alone.assessment == runs[1].assessment
    other = assess_runs(folder, incumbent="arm 1")
    assert {run.assessment.incumbent for run in other} == {"always arm 1"}


def test_methods_without_contexts_cannot_be_assessed(folder):
    constant = next(path for path in folder.iterdir() if "constant" in path.name)
    with pytest.raises(InvalidInput, match="no run of a method that uses contexts"):
        assess_runs(constant)


def test_the_command_prints_the_sentence_first_and_the_report_has_it(folder):
    shown = CliRunner().invoke(app, ["assess", str(folder), "--incumbent", "arm 2"])
    assert shown.exit_code == 0, shown.output
    for words in (
        "over always arm 2",
        "shifts between real domains",
        "linucb, seed 1",
        "assessment.json",
    ):
        assert words in " ".join(shown.output.split())
    document = build_content(folder)
    (section,) = [
        one for one in document["sections"][:2] if one.title == "Advantage over the incumbent"
    ]
    assert "over always arm 2" in section.texts[0]


@pytest.fixture
def chosen(tmp_path):
    """The folder of a choice, its choice and its pair."""
    options = pairs.get("synthetic").resolve_options({"tiny": True})
    pair = daband.domains.load("synthetic", **options)
    candidates = [
        Candidate("constant", "constant"),
        Candidate("linucb-p", "linucb-p", components=4),
    ]
    choice = daband.choose(
        pair, candidates=candidates, episodes=4, episode_length=16, directory=tmp_path
    )
    spec = RunSpec(
        pair="synthetic",
        pair_options=options,
        method="constant",
        variant="default",
        policy={},
        components=64,
        episodes=4,
        episode_length=16,
        seed=0,
        rule="ucb",
        selection="choose",
    )
    finish_choice(choice, pair, spec, tmp_path)
    return tmp_path, choice, pair


def test_the_folder_of_a_choice_is_a_finished_run(chosen):
    place, choice, _ = chosen
    assert find_policy_folder(place).pair_name == "synthetic"
    (assessed,) = assess_runs(place)
    assert (assessed.spec.method, assessed.spec.components) == (choice.candidate, 4)
    assert assessed.assessment == choice.assessment
    assert continue_run(place, rounds=32)["rounds"] == 32
    assert write_report(place, formats=()).is_file()
    number, path = find_policy_folder(place).get_next_version()
    assert (number, path.name) == (1, "policy-1.safetensors")
    path.parent.mkdir()
    choice.policy.save(path)
    assert find_policy_folder(place).policy_file == path
    assert find_policy_folder(place).get_next_version()[0] == 2


def test_an_audit_brings_the_assessment_up_to_date(chosen, tmp_path_factory):
    """Before: `assess` and the exported file repeated what was known before the rewards."""
    place, choice, pair = chosen
    started = start_audit(place, budget=20)
    assert started.incumbent == choice.assessment.incumbent
    with open(started.questions, newline="") as file:
        rows = list(csv.DictReader(file))
    rewards, _ = pair.target_labelled.read_rewards(np.arange(len(pair.target)))
    path = tmp_path_factory.mktemp("answers") / "answers.csv"

    def answer(value_of, **options):
        lines = [f"{row['id']},{value_of(int(row['context']), int(row['arm']))}" for row in rows]
        path.write_text("\n".join(["id,reward", *lines]))
        return update_audit(place, path, **options)

    audit, assessment = answer(lambda context, arm: rewards[context, arm])
    assert assessment == read_assessment(place / "assessment.json")
    assert (assessment.rewards, assessment.advantage) == (20, audit.advantage)
    # a limit of 90% decides
    assert audit.low < assessment.low < assessment.advantage < assessment.high < audit.high
    (assessed,) = assess_runs(place)
    assert assessed.assessment == assessment
    _, corrected = answer(
        lambda context, arm: float(arm == choice.assessment.incumbent_arm), replace=True
    )
    assert corrected.rewards == 20  # replaced answers do not count twice
    assert corrected.verdict == "keep the incumbent"
    assert json.loads((place / "audit/audit.json").read_text())["verdict"] == "keep the incumbent"
