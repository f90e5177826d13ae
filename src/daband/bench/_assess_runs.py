"""Assess finished runs in the target; each run gets an ``assessment.json``."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """A run and its assessment; its record has the true value if the target has labels."""

    path: Path
    spec: RunSpec
    record: Record
    assessment: Assessment


def assess_runs(folder: str | Path, *, incumbent: Any = None) -> list[AssessedRun]:
    """Assess every finished run of a folder, and write ``assessment.json`` into each.

    The assessment of a choice is kept, as it may be based on target rewards; it is made again only for another
    incumbent. Methods that ignore contexts are not assessed. If some runs cannot be assessed, a warning says why; if
    none can, an error does.

    Args:
        folder: a run, a choice, or a folder of runs.
        incumbent: what the user does today, as in ``daband.assess``.
    """
    folder = Path(folder)
    assessed: list[AssessedRun] = []
    rejected: dict[str, InvalidInput | NotFitted] = {}
    for path in finished_runs(folder):
        spec = read_spec(path)
        chosen = (path / CHOICE_FILE).is_file()
        if not chosen and spec.method in WITHOUT_CONTEXTS:
            continue
        try:
            keep = chosen and incumbent is None
            assessment = read_assessment(path / "assessment.json") if keep else _assess(path, spec, incumbent)
        except (InvalidInput, NotFitted) as error:
            rejected[spec.label] = error
            continue
        assessed.append(AssessedRun(path, spec, read_json(path / "result.json"), assessment))
    if not assessed:
        for first_reason in rejected.values():
            raise first_reason
        raise InvalidInput(f"{folder} holds no run of a method that uses contexts; there is nothing to assess")
    for name, reason in rejected.items():
        warnings.warn(f"{name} cannot be assessed: {reason}", stacklevel=2)
    return assessed


def _assess(path: Path, spec: RunSpec, incumbent: Any) -> Assessment:
    pair = load(spec.pair, **spec.pair_options)
    if pair.source_test is None:
        raise InvalidInput(f"the pair {pair.name!r} holds out no source rounds; give it source_test=0.1")
    assessment = assess(
        load_policy(path / "policy.safetensors"),
        source=pair.source_test,
        target=pair.target,
        incumbent=incumbent,
        rule=spec.rule,
        arm_names=pair.class_names,
    )
    assessment.save(path / "assessment.json")
    return assessment
