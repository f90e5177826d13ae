"""Execute one run of an experiment, from its settings to a finished folder.

``execute_run`` calls ``prepare_run``, trains the policy, and calls ``finish_run``, which evaluates
it. ``continue_run`` continues a finished run with target rewards. The folder of a finished run has
a file ``done``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from daband.base._files import finish_folder, lock_folder, read_json, write_json
from daband.bench._environment import describe_environment
from daband.bench._methods import build_policy
from daband.bench._records import Record, read_results
from daband.bench._settings import RunSpec
from daband.domains._contract import LoggedDomain, Pair
from daband.domains._registry import load
from daband.errors import DataError, FolderInUse
from daband.policies._checkpoints import load_policy
from daband.policies._policy import Policy
from daband.training._loop import continue_on_target, play
from daband.training._phase import Phase, build_source_phase
from daband.training._trainer import Run
from daband.training._zero_shot import Evaluation, count_chosen_arms, evaluate

#: The files whose digests are stored in ``done``. The policy's file is not listed, because it
#: contains its own digest.
_DIGESTED_FILES = ("config.json", "rounds.npz", "episodes.jsonl", "environment.json", "result.json")
#: The subfolder of a run in which it is continued on target rewards.
CONTINUED_FOLDER = "continued"
#: Called after every episode with its record.
Progress = Callable[[dict[str, float]], None]


def read_finished_record(spec: RunSpec, bench_folder: Path) -> Record | None:
    """Return the record of the run of ``spec`` in a folder below ``bench_folder``; None if it is
    not finished.
    """
    folder = bench_folder / spec.folder_name
    if not (folder / "done").exists():
        return None
    try:
        record: Record = read_json(folder / "result.json")
    except DataError as error:
        raise DataError(f"{error}; remove the folder to run it again") from None
    return record


def read_spec(folder: str | Path) -> RunSpec:
    """Return the settings of the run in a folder."""
    path = Path(folder) / "config.json"
    try:
        return RunSpec(**read_json(path)["run"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} does not have the settings of a run: {error}") from None


@dataclass(frozen=True)
class PreparedRun:
    """A run that is ready for training: its settings, pair, untrained policy and folder."""

    spec: RunSpec
    pair: Pair
    policy: Policy
    folder: Path

    def build_phase(self, progress: Progress | None = None) -> Phase:
        """Return the training phase.

        ``progress`` is called with the record of each episode, in which ``of`` is the number of
        episodes.
        """
        spec = self.spec
        source = self.pair.source
        n_complete = max(1, source.rounds_available // spec.episode_length)
        n_episodes = n_complete if spec.episodes == "all" else spec.episodes
        phase: Phase = build_source_phase(
            self.policy,
            source,
            self.pair.target,
            episodes=n_episodes,
            episode_length=spec.episode_length,
            seed=spec.seed,
            directory=self.folder,
            config={"run": spec.model_dump(mode="json")},
            progress=(
                None
                if progress is None
                else lambda record: progress({**record, "of": phase.n_episodes})
            ),
        )
        return phase


def prepare_run(spec: RunSpec, bench_folder: Path, *, pair: Pair | None = None) -> PreparedRun:
    """Load the pair of a run, unless it is given, and build its policy.

    The folder is below ``bench_folder``.
    """
    pair = load(spec.pair, **spec.pair_options) if pair is None else pair
    policy = build_policy(
        spec.method, pair, seed=spec.seed, settings=spec.policy, n_components=spec.components
    )
    return PreparedRun(spec, pair, policy, bench_folder / spec.folder_name)


def execute_run(spec: RunSpec, bench_folder: Path, *, progress: Progress | None = None) -> Record:
    """Execute or resume the run of ``spec`` in a folder below ``bench_folder``.

    A finished run is read, not repeated.

    ``progress`` is called after every episode with its record, in which ``of`` is the number of
    episodes.
    """
    folder = bench_folder / spec.folder_name

    def compute_record() -> Record:
        """Train and evaluate the policy, and return the record."""
        prepared_run = prepare_run(spec, bench_folder)
        return finish_run(prepared_run, play(prepared_run.build_phase(progress)))

    return _run_once(folder, lambda: read_finished_record(spec, bench_folder), compute_record)


def _run_once(
    folder: Path, read_record: Callable[[], Record | None], compute_record: Callable[[], Record]
) -> Record:
    """Return the record of a folder.

    If it has none, compute it, or wait for the process that computes it.
    """
    while True:
        record = read_record()
        if record is not None:
            return record
        try:
            return compute_record()
        except FolderInUse:  # another process executes this run; use its record
            with lock_folder(folder, wait=True):
                pass


def finish_run(prepared: PreparedRun, run: Run) -> Record:
    """Evaluate a trained policy, write the remaining files, mark the folder as done, and return the
    record.

    If the target has no labels, every field that needs them is None.
    """
    spec = prepared.spec
    pair = prepared.pair
    folder = prepared.folder
    policy = prepared.policy
    start_time = time.perf_counter()
    evaluation: Evaluation | None = None
    if pair.target_test is None:
        arm_counts = count_chosen_arms(policy, pair.target, rule=spec.rule, seed=spec.seed)
    else:
        evaluation = evaluate(policy, pair.target_test, rule=spec.rule)
        arm_counts = evaluation.arm_counts
    record: Record = {
        "pair": spec.pair,
        "method": spec.method,
        "variant": spec.variant,
        "seed": spec.seed,
        **_get_target_fields(evaluation),
        "target_arm_counts": arm_counts,
        "target_contexts": sum(arm_counts),
        "source_regret": None if math.isnan(run.total_regret) else run.total_regret,
        "source_reward": float(run.reward.mean()),
        "logger_value": float(run.reward.mean()) if isinstance(pair.source, LoggedDomain) else None,
        "rounds": run.rounds,
        "wall_seconds": run.seconds + time.perf_counter() - start_time,
        "selection": spec.selection,
        "config_hash": spec.config_hash,
        "class_names": list(pair.class_names),
        "feedback": pair.feedback,
        "folder": spec.folder_name,
    }
    if run.note:
        record["note"] = run.note
    return _write_record(folder, record, describe_environment(policy))


def _write_record(folder: Path, record: Record, environment: Record | None = None) -> Record:
    """Write the record, mark the folder as done, and return the record.

    If another process was faster, its record is returned and nothing is written.
    """
    with lock_folder(folder, wait=True):
        if (folder / "done").exists():
            return read_json(folder / "result.json")
        if environment is not None:
            write_json(folder / "environment.json", environment)
        write_json(folder / "result.json", record)
        finish_folder(folder, _DIGESTED_FILES)
    return record


def _get_target_fields(evaluation: Evaluation | None) -> Record:
    """Return the target fields of an evaluation; all are None if there is no evaluation."""
    names = ("accuracy", "accuracy_macro", "value", "best_value", "constant_value", "regret")
    fields = {
        f"target_{name}": None if evaluation is None else getattr(evaluation, name)
        for name in names
    }
    return {**fields, "per_class": None if evaluation is None else evaluation.per_class}


def read_continued_record(folder: Path, rounds: int) -> Record | None:
    """Return the record of a run's continuation in the target; None if it is not done.

    A continuation with another number of rounds is an error.
    """
    continued_folder = folder / CONTINUED_FOLDER
    if not (continued_folder / "done").exists():
        return None
    record: Record = read_json(continued_folder / "result.json")
    if record["rounds_asked"] != rounds:
        raise DataError(
            f"{continued_folder} was continued for {record['rounds_asked']} rounds; remove it to"
            f" continue for {rounds}"
        )
    return record


def continue_run(
    folder: str | Path, *, rounds: int = 1920, progress: Progress | None = None
) -> Record:
    """Continue one finished run on target rewards, in its subfolder ``continued``, and return its
    record.

    The run itself is not changed. A finished continuation is read, not repeated. In the record,
    ``zero_shot_regret`` is the regret of the fixed policy on ``zero_shot_contexts`` evaluation
    contexts, ``continued_regret`` the regret of the rounds played here, and ``total_regret`` their
    sum. ``zero_shot_value`` is the mean reward of an evaluation context, and ``continued_reward``
    the mean reward of a round. All are in the user's unit. Fields that need labels are None if
    there are no labels.
    """
    folder = Path(folder)
    continued_folder = folder / CONTINUED_FOLDER

    def compute_record() -> Record:
        """Continue the run and return its record."""
        spec = read_spec(folder)
        episode_length = read_json(folder / "config.json")["training"]["episode_length"]
        pair = load(spec.pair, **spec.pair_options)
        if pair.target_labelled is None:
            raise DataError(
                f"the pair {spec.pair!r} has no target contexts with rewards to continue on"
            )
        n_episodes = -(-min(rounds, pair.target_labelled.rounds_available) // episode_length)
        run = continue_on_target(
            load_policy(folder / "policy.safetensors"),
            target=pair.target_labelled,
            rounds=rounds,
            episode_length=episode_length,
            seed=spec.seed,
            directory=continued_folder,
            config={"continued_from": spec.config_hash, "rounds": rounds},
            progress=(
                None if progress is None else lambda record: progress({**record, "of": n_episodes})
            ),
        )
        trained_record = read_json(folder / "result.json")
        zero_shot_regret = trained_record["target_regret"]
        continued_regret = None if math.isnan(run.total_regret) else run.total_regret
        total_regret = (
            None
            if None in (zero_shot_regret, continued_regret)
            else zero_shot_regret + continued_regret
        )
        record = {
            "pair": spec.pair,
            "method": spec.method,
            "variant": spec.variant,
            "seed": spec.seed,
            "rounds": run.rounds,
            "rounds_asked": rounds,
            "zero_shot_regret": zero_shot_regret,
            "zero_shot_contexts": trained_record.get("target_contexts"),
            "zero_shot_value": trained_record.get("target_value"),
            "continued_regret": continued_regret,
            "continued_reward": float(run.reward.mean()),
            "total_regret": total_regret,
            "feedback": trained_record.get("feedback", "one_hot"),
            "wall_seconds": run.seconds,
            "config_hash": spec.config_hash,
            "folder": folder.name,
        }
        return _write_record(continued_folder, record)

    return _run_once(
        continued_folder, lambda: read_continued_record(folder, rounds), compute_record
    )


def find_finished_runs(folder: str | Path) -> list[Path]:
    """Return the folders of finished runs.

    They are the folder itself if it is a run, otherwise the runs that its ``results.json`` lists.
    Without that file, they are all runs in the folder.
    """
    folder = Path(folder)
    if (folder / "done").exists():
        return [folder]
    # A bench that was started again with other settings also has old runs, which do not count.
    run_folders = sorted(path.parent for path in folder.glob("*/done"))
    if (folder / "results.json").is_file():
        listed_names = {str(record.get("folder")) for record in read_results(folder)}
        run_folders = [path for path in run_folders if path.name in listed_names]
    if not run_folders:
        problem = "has no finished run" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {problem}; start a run with `daband run` or `daband bench`")
    return run_folders
