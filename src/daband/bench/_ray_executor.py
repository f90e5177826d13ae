"""Runs on a Ray cluster: an executor for ``bench`` (extra ``ray``).

A run is a task with one CPU, and with one GPU where the cluster has some and the method learns with gradients. The
driver alone decides what is done: a run whose worker or node is lost is submitted again, and resumes from its last
save where the folder can still be seen. A finished run is on the driver's disk before it counts, so a node that is lost
later takes nothing with it.

Where workers see the folder of the bench (one machine, or a shared file system) they work in it. Elsewhere they work in
a folder of their own, and the finished run travels back.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from daband._files import make_folder, write_bytes, write_text
from daband._ray_cluster import cancel_tasks, connected, import_ray, task_result
from daband._registry import name_plugins, named_plugins
from daband.bench._executors import Executor, Listener, Outcome, RunEvent, attempt
from daband.bench._methods import policy_class
from daband.bench._records import Record
from daband.bench._run import Progress, execute
from daband.bench._settings import RunSpec
from daband.errors import WorkerDied

#: How often a run is submitted before it counts as failed: what kills its worker every time is the run itself.
_ATTEMPTS = 5


def on_ray(address: str, *, workers: int | None = None) -> Executor:
    """An executor on the Ray cluster at ``address``.

    "local" starts a cluster on this machine for as long as the runs take, with as many workers as are asked for (one
    per core by default). Any other address is one that Ray understands: "auto" or "HOST:6379".
    """
    ray = import_ray()  # raises before anything is done where Ray is not installed

    def executor(todo: Sequence[RunSpec], out: Path, listener: Listener) -> Iterator[tuple[RunSpec, Outcome]]:
        with connected(ray, address, min(workers or os.cpu_count() or 1, len(todo))):
            yield from _submit_all(ray, todo, out.resolve(), listener)

    return executor


def _submit_all(ray: Any, todo: Sequence[RunSpec], out: Path, listener: Listener) -> Iterator[tuple[RunSpec, Outcome]]:
    with_gpus = bool(ray.cluster_resources().get("GPU"))
    reports = ray.remote(num_cpus=0)(_Reports).remote()
    task = ray.remote(num_cpus=1, max_retries=0)(_work)
    sign = out / f".seen-by-workers-{uuid.uuid4().hex}"
    #: What was submitted, and how often it has been by now.
    waiting: dict[Any, tuple[RunSpec, int]] = {}

    def submit(spec: RunSpec, attempt: int) -> None:
        gpus = 1 if with_gpus and policy_class(spec.method).learns_by_gradients else 0
        named = task.options(name=f"daband {spec.label}", num_gpus=gpus)
        waiting[named.remote(spec, out, sign, reports, named_plugins())] = spec, attempt

    write_text(sign, "")
    try:
        for spec in todo:
            submit(spec, 1)
        while waiting:
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=0.2)
            under_way = {spec.folder_name: spec for spec, _ in waiting.values()}
            for folder_name, record in _new_reports(ray, reports):
                if folder_name in under_way:  # a late report of a run that is over would show its line again
                    listener(RunEvent("episode", under_way[folder_name], record))
            for reference in done:
                spec, attempt = waiting.pop(reference)
                outcome = _outcome(ray, reference, out / spec.folder_name)
                if isinstance(outcome, WorkerDied) and attempt < _ATTEMPTS:
                    listener(RunEvent("again", spec, {"reason": str(outcome)}))
                    submit(spec, attempt + 1)
                else:
                    yield spec, outcome
    finally:
        sign.unlink(missing_ok=True)
        cancel_tasks(ray, waiting)


def _new_reports(ray: Any, reports: Any) -> list[tuple[str, dict[str, float]]]:
    """What workers reported since the last call. Progress is no reason to fail: with the actor lost there is none."""
    try:
        return list(ray.get(reports.empty.remote(), timeout=30))
    except ray.exceptions.RayError:
        return []


def _outcome(ray: Any, reference: Any, folder: Path) -> Outcome:
    """What became of a task: its record, the exception of the run itself, or that its worker is gone."""
    record: Record
    try:
        record, files = task_result(ray, reference)
        for name in sorted(files, key=lambda name: name == "done"):  # the file that marks the run as complete is last
            write_bytes(make_folder((folder / name).parent) / Path(name).name, files[name])
    except Exception as error:
        return error
    return record


class _Reports:
    """An actor that keeps what workers report until the driver asks."""

    def __init__(self) -> None:
        self._reports: list[tuple[str, dict[str, float]]] = []

    def put(self, folder_name: str, record: dict[str, float]) -> None:
        self._reports.append((folder_name, record))

    def empty(self) -> list[tuple[str, dict[str, float]]]:
        new, self._reports = self._reports, []
        return new


def _work(spec: RunSpec, out: Path, sign: Path, reports: Any, plugins: list[str]) -> tuple[Record, dict[str, bytes]]:
    """On a worker: execute a run, in the bench's own folder where it can be seen. Else its files are returned too.

    ``plugins`` are the driver's: a worker of a cluster that was there before does not have the driver's environment.
    """
    name_plugins(plugins)

    def tell(record: dict[str, float]) -> None:
        reports.put.remote(spec.folder_name, record)

    if sign.exists():
        return _record(spec, out, tell), {}
    workplace = Path(tempfile.gettempdir()) / f"daband-{hashlib.sha256(str(out).encode()).hexdigest()[:12]}"
    workplace.mkdir(parents=True, exist_ok=True)
    record = _record(spec, workplace, tell)
    folder = workplace / spec.folder_name
    files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    shutil.rmtree(folder)
    return record, files


def _record(spec: RunSpec, out: Path, progress: Progress) -> Record:
    outcome = attempt(execute, spec, out, progress=progress)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
