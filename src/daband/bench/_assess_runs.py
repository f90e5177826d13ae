"""Finished runs assessed in the target: seeds of one method are a committee, and each run gets ``assessment.json``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from daband._files import read_json
from daband.bench._methods import WITHOUT_CONTEXTS
from daband.bench._records import Record, group_by
from daband.bench._run import CHOICE_FILE, finished_runs, read_spec
from daband.bench._settings import RunSpec
from daband.domains._registry import load
from daband.errors import InvalidInput, NotFitted
from daband.policies._checkpoints import load_policy
from daband.trust._assess import assess_each
from daband.trust._assessment import Assessment, read_assessment

_Runs = list[tuple[Path, RunSpec]]


@dataclass(frozen=True)
class AssessedRun:
    """A run and what is estimated of it; its record has what is true, where the target has labels."""

    path: Path
    spec: RunSpec
    record: Record
    assessment: Assessment

    @property
    def true_value(self) -> float | None:
        """The value in the target, None where nobody knows it."""
        value = self.record.get("target_value")
        return None if value is None else float(value)


def with_committees(specs: Sequence[RunSpec], size: int, *, methods: Sequence[str] = ()) -> list[RunSpec]:
    """Runs, and as many more seeds of each method that looks at contexts as make a committee of this size.

    ``methods`` limits that to some methods. Seeds of one method are trained stacked on a GPU, as in every bench.
    """
    committees = []
    for group in group_by(specs, lambda spec: spec.without_seed).values():
        committees += group
        method = group[0].method
        if method in WITHOUT_CONTEXTS or (methods and method not in methods):
            continue
        taken = {spec.seed for spec in group}
        fresh = (seed for seed in count(min(taken)) if seed not in taken)
        committees += [group[0].model_copy(update={"seed": next(fresh)}) for _ in range(size - len(group))]
    return committees


def assess_runs(folder: str | Path, *, required: float | None = None, methods: Sequence[str] = ()) -> list[AssessedRun]:
    """Assess every finished run of a folder, and write ``assessment.json`` into each.

    Runs that differ in their seed alone are a committee. A single run is assessed with its siblings, the runs of other
    seeds beside it; where there are none, by itself. A copy of a run is no other seed. What ``choose`` found of its
    policy, with all candidates, stands: nothing in the folder of a choice is estimated anew. Methods that do not look
    at contexts are left out, and where ``methods`` are given, all others. Where some committees cannot be assessed, a
    warning says why; where none can, an error does.
    """
    folder = Path(folder)
    asked = finished_runs(folder)
    alone = asked == [folder]
    if alone and (folder / CHOICE_FILE).is_file():
        return [_of_choice(folder, required)]
    if alone:  # its siblings, the finished runs beside it, and itself; a link is the same run
        asked = sorted({path.parent.resolve() for path in folder.resolve().parent.glob("*/done")})
    runs = [(path, read_spec(path)) for path in asked]
    runs = [(p, s) for p, s in runs if s.method not in WITHOUT_CONTEXTS and (not methods or s.method in methods)]
    groups = group_by(runs, lambda run: run[1].without_seed)
    assessed: list[AssessedRun] = []
    refused: dict[str, InvalidInput | NotFitted] = {}
    for members in groups.values():
        wanted = [(path, spec) for path, spec in members if not alone or path.resolve() == folder.resolve()]
        if not wanted:
            continue
        try:
            assessed += _assess(wanted, members, required)
        except (InvalidInput, NotFitted) as error:
            refused[f"{members[0][1].pair}, {members[0][1].method}"] = error
    if not assessed:
        for first_reason in refused.values():
            raise first_reason
        raise InvalidInput(f"{folder} holds no run of a method that looks at contexts; there is nothing to assess")
    for name, reason in refused.items():
        warnings.warn(f"{name} cannot be assessed: {reason}", stacklevel=2)
    return assessed


def _of_choice(folder: Path, required: float | None) -> AssessedRun:
    assessment = read_assessment(folder / "assessment.json")
    if required is not None:
        assessment = assessment.judge(required=required)
        assessment.save(folder / "assessment.json")
    return AssessedRun(folder, read_spec(folder), read_json(folder / "result.json"), assessment)


def _assess(wanted: _Runs, members: _Runs, required: float | None) -> list[AssessedRun]:
    """Assess the runs that are wanted, each with one run of every seed."""
    by_seed = {spec.seed: path for path, spec in [*reversed(members), *reversed(wanted)]}
    seeds = sorted(by_seed)
    first = members[0][1]
    pair = load(first.pair, **first.pair_options)
    if pair.source_test is None:
        raise InvalidInput(f"the pair {pair.name!r} holds out no source rounds; give it source_test=.1")
    policies = [load_policy(by_seed[seed] / "policy.safetensors") for seed in seeds]
    assessments = assess_each(
        policies,
        source=pair.source_test,
        target=pair.target,
        required=required,
        rule=first.rule,
        arm_names=pair.class_names,
        policy_names=[f"seed {seed}" for seed in seeds],
        wanted=[seeds.index(spec.seed) for _, spec in wanted],
    )
    assessed = []
    for (path, spec), assessment in zip(wanted, assessments, strict=True):
        assessment.save(path / "assessment.json")
        assessed.append(AssessedRun(path, spec, read_json(path / "result.json"), assessment))
    return assessed
