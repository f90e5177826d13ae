"""Audit, assess or update the policy in the folder of a choice, which ``Choice.save`` wrote.

``daband learn`` adds versions of the policy to the subfolder ``learned``, and ``daband audit`` works
in the subfolder ``audit``.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from daband.base._files import read_bytes, write_bytes
from daband.domains._contract import Pair
from daband.errors import InvalidInput
from daband.policies._checkpoints import load_policy
from daband.policies._policy import Policy
from daband.rounds._rounds import Rounds
from daband.trust._assess import (
    assess,
    compute_arm_fractions,
    estimate_learned_gain,
    get_assessed_source,
)
from daband.trust._assessment import Assessment, format_number, read_assessment
from daband.trust._audit import Audit, add_audit_rewards, answer_audit, audit, read_audit
from daband.trust._choose import ASSESSMENT_FILE, POLICY_FILE, Choice

#: The subfolder with the policies that learned target logs.
_LEARNED_FOLDER = "learned"
#: The subfolder with the audit.
AUDIT_FOLDER = "audit"


def list_versions(folder: Path) -> dict[int, Path]:
    """Return the files of a choice's policy by version number. The chosen policy is version 0."""
    if not (folder / POLICY_FILE).is_file():
        raise InvalidInput(
            f"{folder} is not the folder of a choice: it has no {POLICY_FILE}; `daband choose` makes"
            " one"
        )
    learned_files = (folder / _LEARNED_FOLDER).glob("policy-*.safetensors")
    numbers = {path.stem.removeprefix("policy-"): path for path in learned_files}
    versions = {int(number): path for number, path in numbers.items() if number.isdigit()}
    return {0: folder / POLICY_FILE, **versions}


def find_policy_file(folder: Path) -> Path:
    """Return the file of the latest version of a choice's policy."""
    versions = list_versions(folder)
    return versions[max(versions)]


def find_next_file(folder: Path) -> Path:
    """Return the file of the next version of a choice's policy."""
    return folder / _LEARNED_FOLDER / f"policy-{max(list_versions(folder)) + 1}.safetensors"


def read_pair(choice: Choice, folder: Path) -> Pair:
    """Read the files of a choice again, and return their pair."""
    if choice.options is None:
        raise InvalidInput(
            f"{folder} has no data.json, because its pair was not read from files; use daband.audit,"
            " daband.assess and daband.export in Python"
        )
    return choice.options.read()


def assess_choice(folder: Path, *, incumbent: str | None = None, unit: str = "") -> Assessment:
    """Return the assessment of a choice, and write it to the folder if it changed.

    The assessment of ``choose`` is kept, because it may be based on target rewards. It is repeated
    for another ``incumbent``, and shows another ``unit``.
    """
    choice = Choice.load(folder)
    assessment = choice.assessment
    if incumbent is not None:
        pair = read_pair(choice, folder)
        assessment = assess(
            choice.policy,
            source=get_assessed_source(pair, choice.policy),
            target=pair.target,
            incumbent=incumbent,
            arm_names=pair.class_names,
            unit=assessment.unit,
        )
        assessment = dataclasses.replace(
            assessment,
            version=choice.assessment.version,
            log_rounds=choice.assessment.log_rounds,
        )
    assessment = dataclasses.replace(assessment, unit=unit or assessment.unit)
    if assessment != choice.assessment:
        assessment.save(folder / ASSESSMENT_FILE)
    return assessment


def update_verdict(
    folder: Path, earlier: Policy, policy: Policy, rounds: Rounds, n_learned: int
) -> str:
    """Update the assessment of a choice by target rounds that its latest version has learned, and
    return the result in words.

    Args:
        folder: the folder of the choice.
        earlier: the policy before it learned the rounds.
        policy: the policy that has learned them.
        rounds: the rounds, or the first of many.
        n_learned: the number of all learned rounds.
    """
    assessment = read_assessment(folder / ASSESSMENT_FILE)
    assessment = dataclasses.replace(
        assessment,
        version=max(list_versions(folder)),
        log_rounds=assessment.log_rounds + n_learned,
    )
    arm = assessment.incumbent_arm
    if arm is None:
        assessment.save(folder / ASSESSMENT_FILE)
        return f"The log does not show the arms of {assessment.incumbent}; use `daband audit`."
    gain = estimate_learned_gain(earlier, rounds, arm)
    arms = policy.decide(rounds.contexts, "target", rule="greedy").arm
    updated = assessment.with_learned_rounds(
        gain,
        target_contexts=len(rounds),
        target_arms=compute_arm_fractions(arms, policy.n_arms),
        disagreement=float((arms != arm).mean()),
    )
    updated.save(folder / ASSESSMENT_FILE)
    advantage = f"{format_number(gain.value, with_sign=True)} {assessment.unit}".rstrip()
    comparison = (
        f"In these rounds, decided by policies that had not learned them: {advantage} over"
        f" {assessment.incumbent} (standard error {format_number(gain.standard_error)})."
    )
    if math.isinf(gain.standard_error) and not (arms != arm).any():
        comparison = f"The policy always chooses the arm of {assessment.incumbent}."
    elif math.isinf(gain.standard_error):
        comparison = (
            f"These rounds do not show what {assessment.incumbent} earns where the policy"
            " chooses another arm; give some rounds its arm (--control of daband decide or serve)."
        )
    return (
        f"{comparison}\nVerdict by the most precise estimate (before: {assessment.verdict})."
        f" {updated.sentence}"
    )


def start_audit(folder: Path, *, budget: int, incumbent: str | int | None = None) -> Audit:
    """Start an audit of the latest version of a choice's policy, or read the audit that was started
    before.

    The incumbent is by default that of the assessment.
    """
    choice = Choice.load(folder)
    assessment = choice.assessment
    pair = read_pair(choice, folder)
    if incumbent is None:
        incumbent = assessment.incumbent_column or assessment.incumbent_arm
    return audit(
        load_policy(find_policy_file(folder), device="cpu"),
        target=pair.target,
        budget=budget,
        incumbent=incumbent,
        directory=folder / AUDIT_FOLDER,
        arm_names=pair.class_names,
        unit=assessment.unit,
    )


def update_audit(
    folder: Path, answers: Path | None = None, *, replace: bool = False
) -> tuple[Audit, Assessment | None]:
    """Add answers to the audit of a choice, and update its assessment once the audit is finished.

    The assessment is None, and not updated, if it has another incumbent than the audit.

    Args:
        folder: the folder of the choice.
        answers: a CSV with columns ``id`` and ``reward``; None if there are no new answers.
        replace: if True, an answer replaces a different earlier one.
    """
    audit_folder = folder / AUDIT_FOLDER
    assessment_file = folder / ASSESSMENT_FILE
    result = (
        read_audit(audit_folder)
        if answers is None
        else answer_audit(audit_folder, answers, replace=replace)
    )
    current = read_assessment(assessment_file)
    if not result.finished or current.incumbent != result.incumbent:
        return result, None
    # The assessment without these rewards is kept, because answers may be added or replaced.
    original_file = audit_folder / "before.json"
    is_new = not original_file.is_file()
    if is_new:
        write_bytes(original_file, read_bytes(assessment_file))
    original = read_assessment(original_file)
    assessment = add_audit_rewards(original, audit_folder)
    has_wider_limits = assessment.advantage - assessment.low >= current.advantage - current.low
    # The assessment stays if there are no new answers, or if learned rounds gave a more precise one.
    if (answers is None and not is_new) or (current.is_from_log and has_wider_limits):
        return result, current
    if current.version > original.version:
        assessment = dataclasses.replace(
            assessment,
            version=current.version,
            log_rounds=current.log_rounds,
            log_advantage=current.log_advantage,
            log_precision=current.log_precision,
        )
    assessment.save(assessment_file)
    return result, assessment
