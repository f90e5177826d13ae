"""Runs that differ in their seed alone, trained together on one GPU.

``stacked`` is put around any executor. Where a run's policy would be on a GPU, the seeds of a method become one piece
of work: one process trains them with common gradient steps (``daband.training.train_together``), and each is kept in
its own folder, as if it had been alone. Everything else is left to the executor as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daband.domains import load
from daband.errors import DabandError
from daband.experiments.executors import Executor, Listener, Outcome, Work
from daband.experiments.methods import policy_class
from daband.experiments.run import Prepared, Record, conclude, execute, finished_record, prepare
from daband.experiments.settings import RunSpec

__all__ = ["GroupWork", "groups_of", "stacked"]

_MOST_TOGETHER = 10
"""Runs in one stack; beyond it nothing is gained, and every run's memory counts."""
_LINEAR = ("random", "linucb", "linucb-p")


def stacked(executor_with: Callable[[Work], Executor]) -> Executor:
    """An executor that hands seeds of one method on as one piece of work where that is faster.

    ``executor_with`` makes the executor that does the work, from what is to be done for a run.
    """

    def executor(todo: Sequence[RunSpec], out: Path, listener: Listener) -> Iterator[tuple[RunSpec, Outcome]]:
        groups = groups_of(todo)
        by_leader = {group[0].folder_name: group for group in groups}
        leaders = [group[0] for group in groups]
        for leader, outcome in executor_with(GroupWork(by_leader))(leaders, out, listener):
            group = by_leader[leader.folder_name]
            if isinstance(outcome, Exception) or len(group) == 1:
                yield leader, outcome
                for other in group[1:]:
                    yield other, finished_record(other, out) or outcome
                continue
            for spec in group:
                record = outcome["records"].get(spec.folder_name)
                yield spec, record or DabandError(outcome["errors"][spec.folder_name])

    return executor


def groups_of(specs: Sequence[RunSpec], *, on_gpu: Callable[[RunSpec], bool] | None = None) -> list[list[RunSpec]]:
    """Runs that can be trained together, in lists, and every other run in a list of its own."""
    on_gpu = on_gpu or _on_gpu
    groups: dict[str, list[RunSpec]] = {}
    found: list[list[RunSpec]] = []
    for spec in specs:
        if not on_gpu(spec):
            found.append([spec])
            continue
        key = spec.model_dump_json(exclude={"seed"})
        if key not in groups or len(groups[key]) == _MOST_TOGETHER:
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
    from daband.policies.together import fits_together
    from daband.training import Training, train_together

    records = {spec.folder_name: known for spec in group if (known := finished_record(spec, out))}
    errors: dict[str, str] = {}
    pair = load(group[0].pair, **group[0].pair_options)
    todo = [prepare(spec, out, pair=pair) for spec in group if spec.folder_name not in records]
    if not fits_together([prepared.policy for prepared in todo]):
        for prepared in todo:
            records[prepared.spec.folder_name] = execute(prepared.spec, out, progress=progress)
        return {"records": records, "errors": errors}

    def training(prepared: Prepared, leads: bool) -> Training:
        settings = prepared.training()
        episodes = settings["episodes"]
        tell = None
        if leads and progress is not None:
            tell = lambda record: progress({**record, "of": episodes, "together": len(todo)})  # noqa: E731
        return Training(prepared.policy, **settings, progress=tell)

    runs = train_together([training(prepared, index == 0) for index, prepared in enumerate(todo)])
    for prepared, run in zip(todo, runs, strict=True):
        name = prepared.spec.folder_name
        if isinstance(run, Exception):
            errors[name] = str(run)
        else:
            records[name] = conclude(prepared, run)
    return {"records": records, "errors": errors}


def _on_gpu(spec: RunSpec) -> bool:
    """Whether the run's policy is a neural one that would be on a GPU."""
    if spec.method in _LINEAR:  # known without torch, whose import takes seconds
        return False
    import torch

    from daband.policies import NeuralLinUCB

    if not issubclass(policy_class(spec.method), NeuralLinUCB):
        return False
    device = str(spec.policy.get("device", "auto"))
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
