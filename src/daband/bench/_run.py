"""One run of an experiment, from settings to a finished folder: prepare, train, evaluate; and folders with a policy."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daband._files import finish_folder, locked, read_bytes, read_json, read_npz, write_bytes, write_json
from daband.bench._artifacts import ArtifactRecorder, gather
from daband.bench._methods import build_policy
from daband.bench._records import Record, read_results
from daband.bench._settings import RunSpec
from daband.domains._contract import LoggedDomain, Pair
from daband.domains._registry import load
from daband.errors import DataError, FolderInUse, InvalidInput
from daband.evaluation._zero_shot import Evaluation, count_arms, evaluate
from daband.policies._checkpoints import load_policy, read_notes
from daband.policies._policy import Policy
from daband.training._loop import continue_on_target, run_phase
from daband.training._trainer import Phase, Run, TrainSettings, source_phase
from daband.training._work_folder import as_json
from daband.trust._assessment import Assessment, read_assessment
from daband.trust._audit import Audit, answer_audit, audit
from daband.trust._choose import Choice

#: What ``done`` has digests of; the policy's file has its own.
_FILES = ("config.json", "rounds.npz", "episodes.jsonl", "artifacts.npz", "environment.json", "result.json")
#: What ``daband choose`` writes beside the policy: the table of candidates, and the pair.
CHOICE_FILE = "choice.json"
#: The subfolder of a choice in which its candidates are trained.
CANDIDATES_FOLDER = "candidates"
CONTINUED_FOLDER = "continued"
#: The subfolder of a run or a choice with the policies that learned logs of the target.
LEARNED_FOLDER = "learned"
#: The subfolder of a run in which its audit is kept.
AUDIT_FOLDER = "audit"
Progress = Callable[[dict[str, float]], None]


def finished_record(spec: RunSpec, out: Path) -> Record | None:
    """The record of a run that is done, None for one that is not."""
    folder = out / spec.folder_name
    if not (folder / "done").exists():
        return None
    try:
        record: Record = read_json(folder / "result.json")
    except DataError as error:
        raise DataError(f"{error}; remove the folder to run it again") from None
    return record


def read_spec(folder: str | Path) -> RunSpec:
    """What ran in a folder."""
    path = Path(folder) / "config.json"
    try:
        return RunSpec(**read_json(path)["run"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} does not say which run of an experiment this is: {error}") from None


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to be trained: the pair is loaded, the policy built, the folder named."""

    spec: RunSpec
    pair: Pair
    policy: Policy
    folder: Path

    def phase(self, progress: Progress | None = None) -> Phase:
        """The work; ``progress`` is called after every episode with its record, in which ``of`` says how many."""
        spec, source = self.spec, self.pair.source
        whole = max(1, source.rounds_available // spec.episode_length)
        episodes = None if spec.episodes == "auto" else whole if spec.episodes == "all" else spec.episodes

        settings = TrainSettings(
            episodes=episodes,
            episode_length=spec.episode_length,
            seed=spec.seed,
            directory=self.folder,
            config={"run": spec.model_dump(mode="json")},
            progress=None if progress is None else lambda record: progress({**record, "of": phase.episodes}),
        )
        phase = source_phase(self.policy, source, self.pair.target, settings)
        return phase


def prepare(spec: RunSpec, out: Path, *, pair: Pair | None = None) -> Prepared:
    """Load the pair, unless it is given, and build the policy of a run."""
    pair = load(spec.pair, **spec.pair_options) if pair is None else pair
    policy = build_policy(spec.method, pair, seed=spec.seed, settings=spec.policy, components=spec.components)
    return Prepared(spec, pair, policy, out / spec.folder_name)


def execute(spec: RunSpec, out: Path, *, progress: Progress | None = None) -> Record:
    """Run, or go on with, what ``spec`` says, in a folder below ``out``. A finished run is read, not repeated.

    ``progress`` is called after every episode with its record, in which ``of`` says how many there will be.
    """
    folder = out / spec.folder_name

    def work() -> Record:
        prepared = prepare(spec, out)
        return conclude(prepared, run_phase(prepared.phase(progress)))

    return _done_once(folder, lambda: finished_record(spec, out), work)


def _done_once(folder: Path, read: Callable[[], Record | None], work: Callable[[], Record]) -> Record:
    """The record of work in a folder: read where it is known, waited for where another process is at it, else done."""
    while True:
        record = read()
        if record is not None:
            return record
        try:
            return work()
        except FolderInUse:  # another process has this run: its result will be this one's
            with locked(folder, wait=True):
                pass


def conclude(prepared: Prepared, run: Run) -> Record:
    """Evaluate a trained policy, write what is left to write, and mark the folder as done.

    Where the target has no labels, every field that needs them is None.
    """
    spec, pair, folder, policy = prepared.spec, prepared.pair, prepared.folder, prepared.policy
    started = time.perf_counter()
    recorder = ArtifactRecorder(pair)
    result: Evaluation | None = None
    if pair.target_test is None:
        arm_counts = count_arms(policy, pair.target, rule=spec.rule, seed=spec.seed, observe=recorder.see)
    else:
        result = evaluate(policy, pair.target_test, rule=spec.rule, observe=recorder.see)
        arm_counts = result.arm_counts
    record: Record = {
        "pair": spec.pair, "method": spec.method, "variant": spec.variant, "seed": spec.seed, **_target_fields(result),
        "target_arm_counts": arm_counts, "target_contexts": sum(arm_counts),
        "source_regret": None if math.isnan(run.total_regret) else run.total_regret,
        "source_reward": float(run.reward.mean()),
        "logger_value": float(run.reward.mean()) if isinstance(pair.source, LoggedDomain) else None,
        "rounds": run.rounds, "wall_seconds": run.seconds + time.perf_counter() - started, "selection": spec.selection,
        "config_hash": spec.config_hash, "class_names": list(pair.class_names), "feedback": pair.feedback,
        "folder": spec.folder_name,
    }  # fmt: skip
    if run.note:
        record["note"] = run.note
    return _finish(folder, record, lambda: gather(pair, policy, folder, recorder))


def _finish(folder: Path, record: Record, write_more: Callable[[], object] = bool) -> Record:
    """Write the record and mark the folder as done; where another process was faster, its record is the run's."""
    with locked(folder, wait=True):
        if (folder / "done").exists():
            return read_json(folder / "result.json")
        write_more()
        write_json(folder / "result.json", record)
        finish_folder(folder, _FILES)
    return record


def _target_fields(result: Evaluation | None) -> Record:
    """What the evaluation says of the target; None throughout where there was none."""
    names = ("accuracy", "accuracy_macro", "value", "best_value", "constant_value", "regret")
    fields = {f"target_{name}": None if result is None else getattr(result, name) for name in names}
    return {**fields, "per_class": None if result is None else result.per_class}


def continued_record(folder: Path, rounds: int) -> Record | None:
    """The record of a run's sequel in the target, None for one that is not done; one of other settings is refused."""
    place = folder / CONTINUED_FOLDER
    if not (place / "done").exists():
        return None
    record: Record = read_json(place / "result.json")
    if record["rounds_asked"] != rounds:
        raise DataError(f"{place} was continued for {record['rounds_asked']} rounds; remove it to ask for {rounds}")
    return record


def continue_run(folder: str | Path, *, rounds: int = 1920, progress: Progress | None = None) -> Record:
    """Continue one finished run on target rewards, in its subfolder ``continued``; read, not repeated, when done.

    The run itself stays as it is. ``zero_shot_regret`` is the regret of the fixed policy on the evaluation contexts
    (``zero_shot_contexts`` of them), ``continued_regret`` that of the rounds played here, ``total_regret`` their sum;
    ``zero_shot_value`` and ``continued_reward`` are the mean rewards of a context and of a round, all in the user's
    unit. What needs labels is None where there are none.
    """
    folder = Path(folder)
    place = folder / CONTINUED_FOLDER

    def work() -> Record:
        spec = read_spec(folder)
        length = read_json(folder / "config.json")["training"]["episode_length"]
        pair = load(spec.pair, **spec.pair_options)
        if pair.target_labelled is None:
            raise DataError(
                f"the pair {spec.pair!r} has no target contexts with rewards to continue on; a log of the target is "
                f"learned by `daband learn {folder} LOG.csv`"
            )
        episodes = -(-min(rounds, pair.target_labelled.rounds_available) // length)
        run = continue_on_target(
            load_policy(folder / "policy.safetensors"),
            target=pair.target_labelled,
            rounds=rounds,
            episode_length=length,
            seed=spec.seed,
            directory=place,
            config={"continued_from": spec.config_hash, "rounds": rounds},
            progress=None if progress is None else lambda record: progress({**record, "of": episodes}),
        )
        before = read_json(folder / "result.json")
        zero_shot, continued = before["target_regret"], None if math.isnan(run.total_regret) else run.total_regret
        record = {
            "pair": spec.pair, "method": spec.method, "variant": spec.variant, "seed": spec.seed, "rounds": run.rounds,
            "rounds_asked": rounds, "zero_shot_regret": zero_shot,
            "zero_shot_contexts": before.get("target_contexts"), "zero_shot_value": before.get("target_value"),
            "continued_regret": continued, "continued_reward": float(run.reward.mean()),
            "total_regret": None if zero_shot is None or continued is None else zero_shot + continued,
            "feedback": before.get("feedback", "one_hot"), "wall_seconds": run.seconds,
            "config_hash": spec.config_hash, "folder": folder.name,
        }  # fmt: skip
        return _finish(place, record)

    return _done_once(place, lambda: continued_record(folder, rounds), work)


def finish_choice(choice: Choice, pair: Pair, spec: RunSpec, folder: Path) -> None:
    """Make the folder of a choice a finished run of the chosen candidate, so that every command takes it.

    ``spec`` says how candidates were trained, in the subfolder ``candidates``; ``choice.json`` is written before
    ``done``.
    """
    row = next(row for row in choice.table if row["chosen"])
    components = int(row.get("components", spec.components))
    spec = spec.model_copy(update={"method": row["method"], "policy": dict(row["settings"]), "components": components})
    policy = choice.policy
    policy.save(folder / "policy.safetensors")
    choice.assessment.save(folder / "assessment.json")
    about = {"pair": spec.pair, "pair_options": spec.pair_options, "class_names": list(pair.class_names)}
    write_json(folder / CHOICE_FILE, {**about, **choice.as_dict()})
    (folder / "done").unlink(missing_ok=True)  # a choice may be made again, with rewards
    wanted = _trained_settings({**policy.settings(), "name": policy.name})
    for path in sorted((folder / CANDIDATES_FOLDER).glob("*/config.json")):
        config = read_json(path)
        if _trained_settings(config.get("policy") or {}) == wanted:
            run = _read_run(path.parent)
            for name in ("rounds.npz", "episodes.jsonl"):
                write_bytes(folder / name, read_bytes(path.parent / name))
            config["run"] = spec.model_dump(mode="json")
            write_json(folder / "config.json", config, sort_keys=True)
            conclude(Prepared(spec, pair, policy, folder), run)
            return


def _trained_settings(settings: dict[str, Any]) -> Any:
    """The settings of a policy but for how it explores, which may be changed after training."""
    return as_json({name: value for name, value in settings.items() if name not in ("epsilon", "explore")})


def _read_run(folder: Path) -> Run:
    """What happened in a run, from its folder."""
    columns = read_npz(folder / "rounds.npz")
    episodes = [json.loads(line) for line in read_bytes(folder / "episodes.jsonl").decode().splitlines()]
    seconds = float(read_notes(folder / "policy.safetensors")["seconds"])
    return Run(columns["arm"], columns["reward"], columns["regret"], columns["propensity"], episodes, seconds)


def finished_runs(folder: str | Path) -> list[Path]:
    """The finished runs in a folder: itself if it is one, those of its ``results.json``, or else all below it."""
    folder = Path(folder)
    if (folder / "done").exists():
        return [folder]
    # A bench that was started again with other settings has old runs beside the ones that count.
    listed = (folder / "results.json").is_file()
    names = {str(record.get("folder")) for record in read_results(folder)} if listed else None
    runs = sorted(path.parent for path in folder.glob("*/done") if names is None or path.parent.name in names)
    if not runs:
        raise DataError(f"{folder} holds no finished run; `daband run NAME` or `daband bench NAME` makes some")
    return runs


@dataclass(frozen=True)
class PolicyFolder:
    """A policy on disk, and the pair that it was trained on."""

    path: Path
    pair: str
    pair_options: dict[str, Any]
    #: How the policy acts in the target: "ucb" or "greedy".
    rule: str

    @property
    def policy_file(self) -> Path:
        """The saved policy: the latest version that ``daband learn`` wrote, else the one that was trained."""
        versions = self.versions()
        return versions[max(versions)] if versions else self.path / "policy.safetensors"

    def versions(self) -> dict[int, Path]:
        """The policies that learned logs of the target, by their numbers."""
        files = {
            path.stem.removeprefix("policy-"): path
            for path in (self.path / LEARNED_FOLDER).glob("policy-*.safetensors")
        }
        return {int(number): path for number, path in files.items() if number.isdigit()}

    def next_version(self) -> tuple[int, Path]:
        """The number and the file of the version that comes next; the trained policy is version 0."""
        number = max(self.versions(), default=0) + 1
        return number, self.path / LEARNED_FOLDER / f"policy-{number}.safetensors"

    def load_pair(self) -> Pair:
        """The pair, read anew."""
        return load(self.pair, **self.pair_options)

    @property
    def arm_names(self) -> list[str] | None:
        """What the run or the choice wrote down of the arms' names: known without the data."""
        for name in ("result.json", CHOICE_FILE):
            if (self.path / name).is_file():
                return read_json(self.path / name).get("class_names")
        return None

    @property
    def assessment_file(self) -> Path | None:
        """What is estimated of its quality in the target; None where nobody assessed it."""
        path = self.path / "assessment.json"
        return path if path.is_file() else None


def policy_folder(folder: str | Path) -> PolicyFolder:
    """The one policy in a folder: of a finished run, of a folder that holds one such run, or of ``daband choose``."""
    folder = Path(folder)
    if (folder / CHOICE_FILE).is_file():
        choice = read_json(folder / CHOICE_FILE)
        try:
            policy = PolicyFolder(folder, str(choice["pair"]), dict(choice["pair_options"]), "ucb")
        except (KeyError, TypeError, ValueError):
            raise DataError(f"{folder / CHOICE_FILE} does not name its pair; run `daband choose` again") from None
    else:
        runs = [folder] if (folder / "policy.safetensors").is_file() else finished_runs(folder)
        if len(runs) > 1:
            raise InvalidInput(f"{folder} has {len(runs)} finished runs, e.g. {runs[0]}; name the folder of one")
        spec = read_spec(runs[0])
        policy = PolicyFolder(runs[0], spec.pair, spec.pair_options, spec.rule)
    if not policy.policy_file.is_file():
        raise InvalidInput(f"{folder} holds no policy.safetensors; give the folder of one run")
    return policy


def begin_audit(
    folder: str | Path, *, budget: int, seed: int = 0, confidence: float = 0.95, incumbent: Any = None
) -> Audit:
    """Write the questions of an audit of a folder's policy into its subfolder ``audit``; one that was started is read.

    The incumbent is that of the policy's ``assessment.json`` unless another is given.
    """
    of_policy = policy_folder(folder)
    pair = of_policy.load_pair()
    if incumbent is None and of_policy.assessment_file is not None:
        incumbent = read_assessment(of_policy.assessment_file).incumbent_arm
    return audit(
        load_policy(of_policy.policy_file),
        target=pair.target,
        budget=budget,
        incumbent=incumbent,
        directory=of_policy.path / AUDIT_FOLDER,
        confidence=confidence,
        rule=of_policy.rule,
        seed=seed,
        arm_names=pair.class_names,
    )


def finish_audit(folder: str | Path, answers: str | Path, *, replace: bool = False) -> tuple[Audit, Assessment | None]:
    """Add answers to the audit of a folder's policy, and bring its assessment up to date once it is finished.

    Args:
        folder: the folder of a run or a choice.
        answers: a CSV with columns ``id`` and ``reward``.
        replace: let an answer that differs from an earlier one replace it.
    """
    of_policy = policy_folder(folder)
    place = of_policy.path / AUDIT_FOLDER
    result = answer_audit(place, answers, replace=replace)
    if of_policy.assessment_file is None or not result.finished:
        return result, None
    before = place / "before.json"  # the assessment without these rewards: answers may be added or replaced
    if not before.is_file():
        write_bytes(before, read_bytes(of_policy.assessment_file))
    assessment = read_assessment(before).with_rewards(result.interval, result.value_interval, result.answered)
    assessment.save(of_policy.assessment_file)
    return result, assessment
