"""The policy of a finished run or of a choice, audited in the target: questions out, answers in."""

from __future__ import annotations

from pathlib import Path

from daband.experiments.policy_folder import policy_folder
from daband.policies import load as load_policy
from daband.trust import Audit, audit, read_assessment

__all__ = ["AUDIT_FOLDER", "begin_audit"]

AUDIT_FOLDER = "audit"
"""The subfolder of a run in which its audit is kept."""


def begin_audit(
    folder: str | Path, *, budget: int, seed: int = 0, confidence: float = 0.95, anytime: bool = False
) -> Audit:
    """Write the questions of an audit of a folder's policy into its subfolder ``audit``; one that was begun is read.

    Where the policy was assessed, its ``assessment.json`` says what to predict.
    """
    found = policy_folder(folder)
    pair = found.load_pair()
    return audit(
        load_policy(found.policy_file),
        target=pair.target,
        budget=budget,
        assessment=None if found.assessment_file is None else read_assessment(found.assessment_file),
        directory=found.path / AUDIT_FOLDER,
        anytime=anytime,
        confidence=confidence,
        rule=found.rule,
        seed=seed,
        arm_names=pair.class_names,
    )
