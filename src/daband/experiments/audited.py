"""The policy of a finished run, audited in the target: questions out, answers in."""

from __future__ import annotations

from pathlib import Path

from daband.domains import load
from daband.errors import InvalidInput
from daband.experiments.run import read_spec
from daband.policies import load as load_policy
from daband.trust import Audit, audit, read_assessment

__all__ = ["AUDIT_FOLDER", "begin_audit"]

AUDIT_FOLDER = "audit"
"""The subfolder of a run in which its audit is kept."""


def begin_audit(
    folder: str | Path, *, budget: int, seed: int = 0, confidence: float = 0.95, anytime: bool = False
) -> Audit:
    """Write the questions of an audit of a run's policy into its subfolder ``audit``; one that was begun is read.

    Where the run was assessed, its ``assessment.json`` says what to predict.
    """
    folder = Path(folder)
    if not (folder / "policy.safetensors").is_file():
        raise InvalidInput(f"{folder} is no run: it holds no policy.safetensors; give the folder of one run")
    spec = read_spec(folder)
    pair = load(spec.pair, **spec.pair_options)
    assessed = folder / "assessment.json"
    return audit(
        load_policy(folder / "policy.safetensors"),
        target=pair.target,
        budget=budget,
        assessment=read_assessment(assessed) if assessed.is_file() else None,
        directory=folder / AUDIT_FOLDER,
        anytime=anytime,
        confidence=confidence,
        rule=spec.rule,
        seed=seed,
        arm_names=pair.class_names,
    )
