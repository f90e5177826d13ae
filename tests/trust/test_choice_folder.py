"""The folder of a choice: versions of its policy, other incumbents, audits."""

import csv
import json

import numpy as np
import polars as pl
import pytest

import daband
from daband.domains import DataOptions
from daband.logs._mean_estimates import MeanEstimate
from daband.trust import Candidate, read_assessment
from daband.trust._choice_folder import (
    assess_choice,
    find_next_file,
    find_policy_file,
    start_audit,
    update_audit,
)


@pytest.fixture
def chosen(tmp_path):
    """The folder of a choice, and the choice."""
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 70, 400)
    rows = pl.DataFrame({"age": age, "offer": np.where(age > 45, "card", "loan")})
    rows.write_csv(tmp_path / "old.csv")
    rows.drop("offer").write_csv(tmp_path / "new.csv")
    options = DataOptions(
        source=str(tmp_path / "old.csv"), target=str(tmp_path / "new.csv"), label="offer"
    )
    candidates = [Candidate("constant", "constant"), Candidate("linucb", "linucb")]
    choice = daband.choose(options.read(), candidates=candidates, episodes=4, episode_length=16)
    choice.save(tmp_path / "market")
    return tmp_path / "market", choice


def test_the_latest_version_is_used(chosen):
    folder, choice = chosen
    assert find_policy_file(folder) == folder / "policy.safetensors"
    path = find_next_file(folder)
    assert path.name == "policy-1.safetensors"
    path.parent.mkdir()
    choice.policy.save(path)
    assert find_policy_file(folder) == path
    assert find_next_file(folder).name == "policy-2.safetensors"
    with pytest.raises(daband.InvalidInput, match=r"/learned .*policy\.safetensors"):
        find_policy_file(folder / "learned")


def test_another_incumbent_is_assessed_from_the_files(chosen):
    folder, choice = chosen
    assert assess_choice(folder) == choice.assessment
    other = "card" if "loan" in choice.assessment.incumbent else "loan"
    assert assess_choice(folder, incumbent=other).incumbent == f"always {other}"
    assert assess_choice(folder, unit="points").unit == "points"
    assert read_assessment(folder / "assessment.json").unit == "points"
    (folder / "data.json").unlink()
    with pytest.raises(daband.InvalidInput, match=r"data\.json"):
        assess_choice(folder, incumbent=other)


def test_an_audit_brings_the_assessment_up_to_date(chosen, tmp_path):
    """Before: `assess` and the exported file repeated what was known before the rewards."""
    folder, choice = chosen
    started = start_audit(folder, budget=20)
    assert started.incumbent == choice.assessment.incumbent
    with open(started.questions, newline="") as file:
        rows = list(csv.DictReader(file))
    age = pl.read_csv(tmp_path / "new.csv")["age"]

    def answer(value_of, **options):
        lines = [f"{row['id']},{value_of(int(row['context']), row['arm_name'])}" for row in rows]
        (tmp_path / "answers.csv").write_text("\n".join(["id,reward", *lines]))
        return update_audit(folder, tmp_path / "answers.csv", **options)

    audit, assessment = answer(lambda row, arm: float((arm == "card") == (age[row] > 45)))
    assert assessment == read_assessment(folder / "assessment.json")
    assert (assessment.rewards, assessment.advantage) == (20, audit.advantage)
    # a limit of 90% decides
    assert audit.low < assessment.low < assessment.advantage < assessment.high < audit.high
    assert assess_choice(folder) == assessment
    _, corrected = answer(
        lambda _, arm: float(f"always {arm}" == choice.assessment.incumbent), replace=True
    )
    assert corrected.rewards == 20  # replaced answers do not count twice
    assert corrected.verdict == "keep the incumbent"
    written = json.loads((folder / "audit/audit.json").read_text())
    assert written["verdict"] == "keep the incumbent"
    # a log that was learned later, with a more precise estimate, decides
    precise = MeanEstimate(0.5, 0.01)
    learned = corrected.with_learned_rounds(precise, version=1, log_rounds=900, disagreement=0.5)
    assert (learned.rewards, learned.value) == (900, None)
    learned.save(folder / "assessment.json")
    assert update_audit(folder)[1] == learned
    assert answer(lambda *_: 0.0, replace=True)[1] == learned
    assert read_assessment(folder / "assessment.json") == learned
