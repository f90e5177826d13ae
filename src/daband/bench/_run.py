"""Execute one run of an experiment, from its settings to a finished folder.

``execute_run`` trains the policy, and calls ``finish_run``, which evaluates it. The folder of a
finished run has a file ``done``.
"""

from __future__ import annotations

import datetime
import math
import os
import platform
import time
from dataclasses import asdict
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import daband
from daband.base._arguments import Progress
from daband.base._files import lock_folder, read_json, write_json
from daband.bench._methods import build_policy
from daband.bench._records import Record
from daband.bench._settings import RunSpec, hash_settings
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
    *("accuracy", "accuracy_macro", "value", "best_value", "constant_value"),
    *("regret", "arm_counts"),
)
#: The packages whose versions are recorded, by the name of their module.
_PACKAGES = {"numpy": "numpy", "torch": "torch", "sklearn": "scikit-learn"}


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


def execute_run(spec: RunSpec, bench_folder: Path, *, progress: Progress | None = None) -> Record:
    """Execute or resume the run of ``spec`` in a folder below ``bench_folder``.

    A finished run is read, not repeated. ``progress`` is called after every episode with its
    record.
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
    policy = build_policy(
        spec.method, pair, seed=spec.seed, settings=spec.policy, n_components=spec.components
    )
    phase = build_source_phase(
        policy,
        pair.source,
        pair.target,
        episodes=spec.episodes,
        episode_length=spec.episode_length,
        seed=spec.seed,
        directory=folder,
        config={"run": asdict(spec)},
        progress=progress,
    )
    return finish_run(spec, pair, policy, play(phase), folder)


def finish_run(spec: RunSpec, pair: Pair, policy: Policy, run: Run, folder: Path) -> Record:
    """Evaluate a trained policy, write the remaining files, mark the folder as done, and return the
    record.
    """
    start_time = time.perf_counter()
    evaluation = evaluate(policy, pair.target_test)
    settings = asdict(spec)
    del settings["seed"]
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
        "config_hash": spec.config_hash,
        "settings_hash": hash_settings(settings),
        "class_names": list(pair.class_names),
        "feedback": pair.feedback,
        "folder": spec.folder_name,
    }
    if run.note:
        record["note"] = run.note
    environment = _describe_environment(policy)
    with lock_folder(folder, wait=True):
        if (folder / "done").exists():  # another process was faster
            return read_json(folder / "result.json")
        write_json(folder / "environment.json", environment)
        write_json(folder / "result.json", record)
        (folder / "done").touch()
    return record


def _describe_environment(policy: Policy) -> dict[str, Any]:
    """Return versions and hardware as a dictionary of JSON types, without names of machines or
    people.
    """
    device_name = policy.settings().get("device")
    device, accelerator = "cpu", None
    if device_name is not None:  # a network, for which torch is imported
        from daband.neural._torch_settings import find_device, find_gpu_name

        device, accelerator = str(find_device(device_name)), find_gpu_name(device_name)
    return {
        "daband": daband.__version__,
        "python": platform.python_version(),
        **{
            package: metadata.version(package)
            for module, package in _PACKAGES.items()
            if find_spec(module)
        },
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "device": device,
        "accelerator": accelerator,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
