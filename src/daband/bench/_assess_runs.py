"""Assess finished runs in the target; each gets ``assessment.json``."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from daband._files import read_json
from daband.bench._methods import WITHOUT_CONTEXTS
from daband.bench._records import Record
from daband.bench._run import CHOICE_FILE, finished_runs, read_spec
from daband.bench._settings import RunSpec
from daband.domains._registry import load
from daband.errors import InvalidInput, NotFitted
from daband.policies._checkpoints import load_policy
from daband.trust._assess import assess
from daband.trust._assessment import Assessment, read_assessment


@dataclass(frozen=True)
class AssessedRun:
    """A run, its record and its assessment."""

    path: Path
    spec: RunSpec
    record: Record
    assessment: Assessment


def assess_runs(folder: str | Path, *, required: float | None = None) -> list[AssessedRun]:
    """Assess every finished run of a folder and write ``assessment.json`` into each.

    The assessment of ``choose`` is kept. Methods that ignore contexts are skipped. A run that cannot be assessed is a
    warning, or an error if there is no other.
    """
    assessed: list[AssessedRun] = []
    refused: dict[str, InvalidInput | NotFitted] = {}
    for path in finished_runs(folder):
        spec = read_spec(path)
        if spec.method in WITHOUT_CONTEXTS:
            continue
        try:
            assessment = _assess(path, spec, required)
        except (InvalidInput, NotFitted) as error:
            refused[spec.label] = error
            continue
        assessment.save(path / "assessment.json")
        assessed.append(AssessedRun(path, spec, read_json(path / "result.json"), assessment))
    if not assessed:
        for reason in refused.values():
            raise reason
        raise InvalidInput(f"{folder} has no run of a method that uses contexts; there is nothing to assess")
    for name, reason in refused.items():
        warnings.warn(f"{name} cannot be assessed: {reason}", stacklevel=2)
    return assessed


def _assess(path: Path, spec: RunSpec, required: float | None) -> Assessment:
    if (path / CHOICE_FILE).is_file():
        found = read_assessment(path / "assessment.json")
        return found if required is None else found.judge(required=required)
    pair = load(spec.pair, **spec.pair_options)
    if pair.source_test is None:
        raise InvalidInput(f"the pair {pair.name!r} holds out no source rounds; give it source_test=.1")
    return assess(
        [load_policy(path / "policy.safetensors")],
        source=pair.source_test,
        target=pair.target,
        required=required,
        rule=spec.rule,
        arm_names=pair.class_names,
    )
