"""Execute one run of an experiment, from its settings to a finished folder.

``execute_run`` trains the policy, and calls ``finish_run``, which evaluates it. The folder of a
finished run has a file ``done``.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

from daband.base._arguments import Progress
from daband.base._files import lock_folder, read_json, write_json
from daband.bench._environment import describe_environment
from daband.bench._methods import build_policy
from daband.bench._records import Record, read_results
from daband.bench._settings import RunSpec
from daband.domains._contract import Pair
from daband.domains._registry import load
from daband.errors import DataError, FolderInUse, InvalidInput
from daband.policies._policy import Policy
from daband.training._loop import play
from daband.training._phase import build_source_phase
from daband.training._trainer import Run
from daband.training._zero_shot import evaluate

#: The fields of an evaluation that become fields of a record, as ``target_...``.
_TARGET_FIELDS = (
    "accuracy",
    "accuracy_macro",
    "value",
    "best_value",
    "constant_value",
    "regret",
    "arm_counts",
)


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


def execute_run(spec: RunSpec, bench_folder: Path, *, progress: Progress | None = None) -> Record:
    """Execute or resume the run of ``spec`` in a folder below ``bench_folder``.

    A finished run is read, not repeated.

    ``progress`` is called after every episode with its record, in which ``of`` is the number of
    episodes.
    """
    folder = bench_folder / spec.folder_name
    while True:
        record = read_finished_record(spec, bench_folder)
        if record is not None:
            return record
        try:
            return _train_and_finish(spec, folder, progress)
        except FolderInUse:  # another process executes this run; use its record
            with lock_folder(folder, wait=True):
                pass


def _train_and_finish(spec: RunSpec, folder: Path, progress: Progress | None) -> Record:
    """Train and evaluate the policy of a run, and return the record."""
    pair = load(spec.pair, **spec.pair_options)
    if pair.target_test is None:
        raise InvalidInput(f"{spec.pair} has no target_test, on which methods are compared")
    n_complete = max(1, spec.passes * len(pair.source) // spec.episode_length)
    n_episodes = n_complete if spec.episodes == "all" else spec.episodes
    policy = build_policy(
        spec.method, pair, seed=spec.seed, settings=spec.policy, n_components=spec.components
    )
    phase = build_source_phase(
        policy,
        pair.source,
        pair.target,
        episodes=n_episodes,
        episode_length=spec.episode_length,
        seed=spec.seed,
        directory=folder,
        config={"run": spec.model_dump(mode="json")},
        progress=progress and (lambda record: progress({**record, "of": n_episodes})),
    )
    return finish_run(spec, pair, policy, play(phase), folder)


def finish_run(spec: RunSpec, pair: Pair, policy: Policy, run: Run, folder: Path) -> Record:
    """Evaluate a trained policy, write the remaining files, mark the folder as done, and return the
    record.
    """
    start_time = time.perf_counter()
    evaluation = evaluate(policy, pair.target_test, rule=spec.rule)
    record: Record = {
        "pair": spec.pair,
        "method": spec.method,
        "variant": spec.variant,
        "seed": spec.seed,
        **{f"target_{name}": getattr(evaluation, name) for name in _TARGET_FIELDS},
        "per_class": evaluation.per_class,
        "target_contexts": evaluation.contexts,
        "source_regret": None if math.isnan(run.total_regret) else run.total_regret,
        # with the rewards of all arms, a policy does not choose the arms that it learns
        "source_reward": None
        if getattr(pair.source, "full_feedback", False)
        else float(run.reward.mean()),
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
    environment = describe_environment(policy)
    with lock_folder(folder, wait=True):
        if (folder / "done").exists():  # another process was faster
            return read_json(folder / "result.json")
        write_json(folder / "environment.json", environment)
        write_json(folder / "result.json", record)
        (folder / "done").touch()
    return record


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
        raise DataError(f"{folder} {problem}; start a run with `daband bench`")
    return run_folders
