"""Audit, assess or complete the policy in the folder of a run or of a choice.

``find_policy_folder`` finds the policy's files. ``daband choose`` calls the functions that complete
a folder.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daband.base._files import read_bytes, read_json, read_npz, write_bytes, write_json
from daband.bench._methods import CONTEXT_FREE_METHODS
from daband.bench._records import Record
from daband.bench._run import PreparedRun, find_finished_runs, finish_run, read_spec
from daband.bench._settings import RunSpec
from daband.domains._contract import Pair
from daband.domains._registry import load
from daband.errors import DataError, InvalidInput, NotFitted
from daband.policies._checkpoints import load_policy, read_notes
from daband.training._loop import name_candidate_folder
from daband.training._trainer import Run
from daband.trust._assess import assess
from daband.trust._assessment import Assessment, read_assessment
from daband.trust._audit import Audit, add_audit_rewards, answer_audit, audit, read_audit
from daband.trust._choose import Choice

#: The file that ``daband choose`` writes next to the policy, with the table of candidates and the
#: pair.
CHOICE_FILE = "choice.json"
#: The subfolder of a choice in which its candidates are trained.
CANDIDATES_FOLDER = "candidates"
#: The subfolder of a run or a choice with the policies that learned target logs.
LEARNED_FOLDER = "learned"
#: The subfolder of a run in which its audit is kept.
AUDIT_FOLDER = "audit"


@dataclass(frozen=True)
class PolicyFolder:
    """A policy on disk, and the pair that it was trained on."""

    #: The folder of the run or the choice.
    path: Path
    #: Name of the pair.
    pair_name: str
    #: Options of the pair, as in ``daband.domains.load``.
    pair_options: dict[str, Any]
    #: The decision rule of the policy in the target: "ucb" or "greedy".
    rule: str

    @property
    def policy_file(self) -> Path:
        """The file of the latest version that ``daband learn`` wrote, else of the trained
        policy.
        """
        versions = self.list_versions()
        return versions[max(versions)] if versions else self.path / "policy.safetensors"

    def list_versions(self) -> dict[int, Path]:
        """Return the policies that learned target logs, by version number."""
        path_by_number = {
            path.stem.removeprefix("policy-"): path
            for path in (self.path / LEARNED_FOLDER).glob("policy-*.safetensors")
        }
        return {int(number): path for number, path in path_by_number.items() if number.isdigit()}

    def get_next_version(self) -> tuple[int, Path]:
        """Return the number and the file of the next version; the trained policy is version 0."""
        number = max(self.list_versions(), default=0) + 1
        return number, self.path / LEARNED_FOLDER / f"policy-{number}.safetensors"

    def load_pair(self) -> Pair:
        """Read the pair again, and return it."""
        return load(self.pair_name, **self.pair_options)

    @property
    def arm_names(self) -> list[str] | None:
        """The arm names in the folder, so that the data need not be read; None if they are not
        stored.
        """
        for name in ("result.json", CHOICE_FILE):
            if (self.path / name).is_file():
                return read_json(self.path / name).get("class_names")
        return None

    @property
    def assessment_file(self) -> Path | None:
        """The file with the policy's assessment in the target; None if it was not assessed."""
        path = self.path / "assessment.json"
        return path if path.is_file() else None


def find_policy_folder(folder: str | Path) -> PolicyFolder:
    """Return the policy in a folder.

    The folder may be that of a finished run, of ``daband choose``, or a folder with one such run.
    """
    folder = Path(folder)
    if (folder / CHOICE_FILE).is_file():
        choice_fields = read_json(folder / CHOICE_FILE)
        try:
            policy_folder = PolicyFolder(
                folder, str(choice_fields["pair"]), dict(choice_fields["pair_options"]), "ucb"
            )
        except (KeyError, TypeError, ValueError):
            raise DataError(
                f"{folder / CHOICE_FILE} does not name its pair; run `daband choose` again"
            ) from None
    else:
        run_folders = (
            [folder] if (folder / "policy.safetensors").is_file() else find_finished_runs(folder)
        )
        if len(run_folders) > 1:
            example = f"e.g. {run_folders[0]}; use the folder of one"
            raise InvalidInput(f"{folder} has {len(run_folders)} finished runs, {example}")
        spec = read_spec(run_folders[0])
        policy_folder = PolicyFolder(run_folders[0], spec.pair, spec.pair_options, spec.rule)
    if not policy_folder.policy_file.is_file():
        raise InvalidInput(f"{folder} has no policy.safetensors; use the folder of one run")
    return policy_folder


def get_reward_unit(unit: str, pair_options: Mapping[str, Any]) -> str:
    """Return the stated unit of the rewards, or else the name of the reward column, or "" if the
    pair has none.
    """
    return unit or str(pair_options.get("reward") or "")


def start_audit(folder: str | Path, *, budget: int, incumbent: Any = None) -> Audit:
    """Start an audit of a folder's policy in the subfolder ``audit``, or read the audit that was
    started before.

    The arguments after ``folder`` are those of ``daband.audit``. The incumbent is by default the
    one in the policy's ``assessment.json``.
    """
    policy_folder = find_policy_folder(folder)
    pair = policy_folder.load_pair()
    assessment = (
        None
        if policy_folder.assessment_file is None
        else read_assessment(policy_folder.assessment_file)
    )
    if incumbent is None and assessment is not None:
        incumbent = (
            assessment.incumbent_column
            if assessment.incumbent_arm is None
            else assessment.incumbent_arm
        )
    return audit(
        load_policy(policy_folder.policy_file),
        target=pair.target,
        budget=budget,
        incumbent=incumbent,
        directory=policy_folder.path / AUDIT_FOLDER,
        rule=policy_folder.rule,
        arm_names=pair.class_names,
        unit=get_reward_unit(
            "" if assessment is None else assessment.unit, policy_folder.pair_options
        ),
    )


def update_audit(
    folder: str | Path, answers: str | Path | None = None, *, replace: bool = False
) -> tuple[Audit, Assessment | None]:
    """Add answers to the audit of a folder's policy, and update its assessment once the audit is
    finished.

    The assessment is None, and not updated, if it has another incumbent than the audit.

    Args:
        folder: the folder of a run or a choice.
        answers: a CSV with columns ``id`` and ``reward``; None if there are no new answers.
        replace: if True, an answer replaces a different earlier one.
    """
    policy_folder = find_policy_folder(folder)
    audit_folder = policy_folder.path / AUDIT_FOLDER
    result = (
        read_audit(audit_folder)
        if answers is None
        else answer_audit(audit_folder, answers, replace=replace)
    )
    assessment_file = policy_folder.assessment_file
    if (
        assessment_file is None
        or not result.finished
        or read_assessment(assessment_file).incumbent != result.incumbent
    ):
        return result, None
    # The assessment without these rewards is kept, because answers may be added or replaced.
    original_file = audit_folder / "before.json"
    if not original_file.is_file():
        write_bytes(original_file, read_bytes(assessment_file))
    assessment = add_audit_rewards(read_assessment(original_file), audit_folder)
    assessment.save(assessment_file)
    return result, assessment


def finish_choice(choice: Choice, pair: Pair, spec: RunSpec, folder: Path) -> None:
    """Complete the folder of a choice, so that other commands can use it as a finished run of the
    chosen candidate.

    ``spec`` has the training settings of the candidates, which were trained in the subfolder
    ``candidates``. The file ``done``, which marks a finished run, is written last.
    """
    row = next(row for row in choice.table if row["chosen"])
    chosen_fields = {
        "method": row["method"],
        "policy": dict(row["settings"]),
        "components": row["components"],
    }
    spec = spec.model_copy(update=chosen_fields)
    policy = choice.policy
    policy.save(folder / "policy.safetensors")
    choice.assessment.save(folder / "assessment.json")
    pair_fields = {
        "pair": spec.pair,
        "pair_options": spec.pair_options,
        "class_names": list(pair.class_names),
    }
    write_json(folder / CHOICE_FILE, {**pair_fields, **choice.as_dict()})
    (folder / "done").unlink(missing_ok=True)  # a choice may be made again, with rewards
    candidate_folder = _find_candidate_folder(folder, choice.table, spec.seed)
    for name in ("rounds.npz", "episodes.jsonl"):
        write_bytes(folder / name, read_bytes(candidate_folder / name))
    config = {**read_json(candidate_folder / "config.json"), "run": spec.model_dump(mode="json")}
    write_json(folder / "config.json", config, sort_keys=True)
    finish_run(PreparedRun(spec, pair, policy, folder), _read_run(candidate_folder))


def _find_candidate_folder(folder: Path, table: Sequence[Mapping[str, Any]], seed: int) -> Path:
    """Return the folder in which the chosen candidate of a choice was trained, from the table of
    the choice.
    """
    index = next(index for index, row in enumerate(table) if row["chosen"])
    return (
        folder / CANDIDATES_FOLDER / name_candidate_folder(index, table[index]["candidate"], seed)
    )


def _read_run(folder: Path) -> Run:
    """Return the history of a run, read from its folder."""
    columns = read_npz(folder / "rounds.npz")
    episodes = [
        json.loads(line) for line in read_bytes(folder / "episodes.jsonl").decode().splitlines()
    ]
    seconds = float(read_notes(folder / "policy.safetensors")["seconds"])
    return Run(
        columns["arm"],
        columns["reward"],
        columns["regret"],
        columns["propensity"],
        episodes,
        seconds,
    )


@dataclass(frozen=True)
class AssessedRun:
    """A run and its assessment.

    If the target has labels, the record has the true value of the policy.
    """

    #: The folder of the run.
    path: Path
    #: The settings of the run.
    spec: RunSpec
    #: The content of its ``result.json``.
    record: Record
    #: The estimated advantage over the incumbent.
    assessment: Assessment


def assess_runs(folder: str | Path, *, incumbent: Any = None, unit: str = "") -> list[AssessedRun]:
    """Assess every finished run of a folder, and write ``assessment.json`` into each.

    The assessment of a choice is kept, because it may be based on target rewards. It is repeated
    only for another incumbent. Methods that ignore contexts are not assessed. A run that cannot be
    assessed causes a warning with the error. If no run can be assessed, the first error is raised.

    Args:
        folder: a run, a choice, or a folder of runs.
        incumbent: the policy used today, as in ``daband.assess``.
        unit: unit of the rewards; by default the name of the reward column.
    """
    folder = Path(folder)
    assessed_runs: list[AssessedRun] = []
    errors_by_run: dict[str, InvalidInput | NotFitted] = {}
    for run_folder in find_finished_runs(folder):
        spec = read_spec(run_folder)
        is_choice = (run_folder / CHOICE_FILE).is_file()
        if not is_choice and spec.method in CONTEXT_FREE_METHODS:
            continue
        try:
            if is_choice and incumbent is None:
                assessment = read_assessment(run_folder / "assessment.json")
            else:
                assessment = _assess_run(run_folder, spec, incumbent)
        except (InvalidInput, NotFitted) as error:
            errors_by_run[spec.label] = error
            continue
        assessment = dataclasses.replace(
            assessment, unit=get_reward_unit(unit or assessment.unit, spec.pair_options)
        )
        assessment.save(run_folder / "assessment.json")
        assessed_runs.append(
            AssessedRun(run_folder, spec, read_json(run_folder / "result.json"), assessment)
        )
    if not assessed_runs:
        for first_error in errors_by_run.values():
            raise first_error
        raise InvalidInput(
            f"{folder} has no run of a method that uses contexts, so nothing can be assessed"
        )
    for name, run_error in errors_by_run.items():
        warnings.warn(f"{name} cannot be assessed: {run_error}", stacklevel=2)
    return assessed_runs


def _assess_run(run_folder: Path, spec: RunSpec, incumbent: Any) -> Assessment:
    """Return the assessment of a run."""
    pair = load(spec.pair, **spec.pair_options)
    if pair.source_test is None:
        raise InvalidInput(
            f"the pair {pair.name!r} has no held-out source rounds; set source_test=0.1"
        )
    policy = load_policy(run_folder / "policy.safetensors")
    source = pair.source_test
    target = pair.target
    names = pair.class_names
    return assess(
        policy, source=source, target=target, incumbent=incumbent, rule=spec.rule, arm_names=names
    )
