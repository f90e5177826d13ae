"""Runs that differ in their seed alone, trained as one stack on a GPU.

``stacked`` is put around any executor. Where a run's policy would be on a GPU, the seeds of a method become one piece
of work: one process trains them with common gradient steps (``daband.training.train_stacked``), and each is kept in
its own folder, as if it had been alone. Everything else is left to the executor as it is.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from daband.domains import load
from daband.errors import DabandError, DeviceOutOfMemory, FolderInUse
from daband.experiments.executors import Executor, Listener, Outcome, Work
from daband.experiments.methods import policy_class
from daband.experiments.prepared import Prepared, prepare
from daband.experiments.records import Record
from daband.experiments.run import conclude, execute, finished_record
from daband.experiments.settings import RunSpec
from daband.training import Run

__all__ = ["GroupWork", "groups_of", "stacked"]

_LARGEST_STACK = 10
"""Runs in one stack; beyond it nothing is gained, and every run's memory counts."""


def stacked(executor_with: Callable[[Work], Executor]) -> Executor:
    """An executor that hands seeds of one method on as one piece of work where that is faster.

    ``executor_with`` makes the executor that does the work, from what is to be done for a run.
    """

    def executor(todo: Sequence[RunSpec], out: Path, listener: Listener) -> Iterator[tuple[RunSpec, Outcome]]:
        groups = groups_of(todo)
        by_leader = {group[0].folder_name: group for group in groups}
        leaders = [group[0] for group in groups]
        for leader, outcome in executor_with(GroupWork(by_leader))(leaders, out, listener):
            for spec in by_leader[leader.folder_name]:
                if isinstance(outcome, Exception):
                    yield spec, finished_record(spec, out) or outcome
                elif "records" in outcome:
                    record = outcome["records"].get(spec.folder_name)
                    yield spec, record or DabandError(outcome["errors"][spec.folder_name])
                else:
                    yield spec, outcome

    return executor


def groups_of(specs: Sequence[RunSpec], *, on_gpu: Callable[[RunSpec], bool] | None = None) -> list[list[RunSpec]]:
    """Runs that can be trained in a stack, in lists, and every other run in a list of its own."""
    on_gpu = on_gpu or _on_gpu
    groups: dict[str, list[RunSpec]] = {}
    found: list[list[RunSpec]] = []
    for spec in specs:
        if not on_gpu(spec):
            found.append([spec])
            continue
        key = spec.model_dump_json(exclude={"seed"})
        if key not in groups or len(groups[key]) == _LARGEST_STACK:
            groups[key] = []
            found.append(groups[key])
        groups[key].append(spec)
    return found


@dataclass(frozen=True)
class GroupWork:
    """Does what is to be done for a run or, where it leads a group, for the whole group; processes can receive it."""

    groups: dict[str, list[RunSpec]] = field(default_factory=dict)

    def __call__(
        self, spec: RunSpec, out: Path, *, progress: Callable[[dict[str, float]], None] | None = None
    ) -> Record:
        group = self.groups.get(spec.folder_name, [spec])
        if len(group) == 1:
            return execute(spec, out, progress=progress)
        return _execute_group(group, out, progress)


def _execute_group(
    group: Sequence[RunSpec], out: Path, progress: Callable[[dict[str, float]], None] | None
) -> dict[str, Any]:
    """The records of a group by folder, and what ended those that have none."""
    records = {spec.folder_name: known for spec in group if (known := finished_record(spec, out))}
    errors: dict[str, str] = {}
    todo = [spec for spec in group if spec.folder_name not in records]

    def attempt(spec: RunSpec, work: Callable[[], Record]) -> None:
        try:
            records[spec.folder_name] = work()
        except Exception as error:
            errors[spec.folder_name] = str(error)

    trained = _trained_stacked(todo, out, progress)
    if trained is None:
        gc.collect()  # policies and their common steps hold one another, and memory of the device with them
    for spec in todo:
        if trained is None:
            attempt(spec, partial(execute, spec, out, progress=progress))
            continue
        prepared, run = trained[spec.folder_name]
        if isinstance(run, FolderInUse):  # another process has it: waited for, alone
            attempt(spec, partial(execute, spec, out, progress=progress))
        elif isinstance(run, Exception):
            errors[spec.folder_name] = str(run)
        else:
            attempt(spec, partial(conclude, prepared, run))
    return {"records": records, "errors": errors}


def _trained_stacked(
    specs: Sequence[RunSpec], out: Path, progress: Callable[[dict[str, float]], None] | None
) -> dict[str, tuple[Prepared, Run | Exception]] | None:
    """Runs trained with common steps, by folder; None where that cannot be, and each has to be executed by itself."""
    from daband.policies import can_stack
    from daband.training import Training, train_stacked

    if not specs:
        return {}
    pair = load(specs[0].pair, **specs[0].pair_options)
    todo = [prepare(spec, out, pair=pair) for spec in specs]
    if not can_stack([prepared.policy for prepared in todo]):
        return None
    told = 0

    def tell(record: dict[str, float], of: int) -> None:
        nonlocal told
        if progress is not None and record["episode"] > told:  # report each episode once, for the first run to reach it
            told = int(record["episode"])
            progress({**record, "of": of})

    trainings = []
    for prepared in todo:
        settings = prepared.training()
        trainings.append(Training(prepared.policy, **settings, progress=partial(tell, of=settings["episodes"])))
    try:
        runs = train_stacked(trainings)
    except DeviceOutOfMemory as error:
        # Their folders keep how far they came; one after the other they need less.
        warnings.warn(f"{len(todo)} runs could not be stacked and are trained one after another: {error}", stacklevel=2)
        return None
    return {one.spec.folder_name: (one, run) for one, run in zip(todo, runs, strict=True)}


def _on_gpu(spec: RunSpec) -> bool:
    """Whether the run's policy learns by gradients and would be on a GPU; what does not fit together is seen later."""
    if not policy_class(spec.method).learns_by_gradients:
        return False
    import torch  # here, as a comparison of linear methods has no need of it

    device = str(spec.policy.get("device", "auto"))
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
