"""Several runs in step: rounds are played run by run, gradient steps are taken for all at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from daband.domains import Contexts, LoggedDomain, RewardDomain
from daband.errors import InvalidInput
from daband.policies import Policy
from daband.training.stop_signals import stop_signals_deferred
from daband.training.trainer import Phase, Progress, Run, Trainer, check_training, check_weighting, order_seed

__all__ = ["Training", "can_train_stacked", "run_stacked", "train_stacked"]


@dataclass(frozen=True)
class Training:
    """The arguments of ``train`` for one of several stacked runs."""

    policy: Policy
    source: RewardDomain | LoggedDomain
    target: Contexts | None = None
    episodes: int = 300
    episode_length: int = 64
    seed: int | None = None
    directory: str | Path | None = None
    config: Mapping[str, Any] | None = None
    progress: Progress | None = None
    propensity_weighting: str | None = None


def can_train_stacked(policies: Sequence[Policy]) -> bool:
    """Whether these policies can be trained in a stack: several neural ones of one shape and recipe."""
    if len(policies) < 2 or not all(isinstance(one, Policy) and one.learns_by_gradients for one in policies):
        return False
    from daband.policies import can_stack  # brings torch

    return can_stack(policies)


def train_stacked(trainings: Sequence[Training], *, save_every: float = 30.0) -> list[Run | Exception]:
    """``train`` for several runs in step: rounds are played run by run, gradient steps are taken for all at once.

    On a GPU five seeds took about half the time that they take one after the other. Every run's result is what it is
    alone, up to rounding, and its folder can be resumed alone; the time is divided among the runs. A run that fails,
    by its numbers, its data or its folder, has its exception in the returned list; the others continue.
    """
    if not trainings:
        return []
    _check_stack(trainings)
    phases = []
    for one in trainings:
        check_training(one.policy, one.source, one.target, one.episodes, one.episode_length)
        check_weighting(one.policy, one.source, one.propensity_weighting)
        phases.append(
            Phase(
                "source",
                one.source,
                one.target,
                one.episodes,
                one.episode_length,
                order_seed(one.policy, one.seed),
                propensity_weighting=one.propensity_weighting,
            )
        )
    return run_stacked(trainings, phases, save_every=save_every)


def run_stacked(
    trainings: Sequence[Training], phases: Sequence[Phase], *, save_every: float = 30.0
) -> list[Run | Exception]:
    """The phases of several policies in step; of each ``Training``, its policy, folder, config and progress count."""
    from daband.policies import adapt_stacked

    _check_stack(trainings)
    trainers: dict[int, Trainer] = {}
    failed: dict[int, Exception] = {}

    def attempt(index: int, what: Callable[[], None]) -> bool:
        """Call ``what`` for one run; a run that raises is dropped, and the others continue."""
        try:
            what()
        except Exception as error:
            failed[index] = error
            if index in trainers:
                trainers.pop(index).stop()
        return index in trainers

    def begin(index: int) -> None:
        one = trainings[index]
        trainers[index] = Trainer(one.policy, phases[index], one.directory, one.config, save_every, one.progress)

    def close(index: int, measured: dict[str, float] | Exception) -> None:
        if isinstance(measured, Exception):
            raise measured
        trainers[index].close(measured)

    def save() -> None:
        for index in list(trainers):
            attempt(index, trainers[index].save)

    with stop_signals_deferred(wanted=any(one.directory is not None for one in trainings)) as request:
        try:
            for index in range(len(trainings)):
                attempt(index, partial(begin, index))
            while unfinished := [index for index, trainer in trainers.items() if not trainer.over]:
                # Runs that were resumed may be ahead: they wait.
                behind = min(trainers[index].episode for index in unfinished)
                present = [index for index in unfinished if trainers[index].episode == behind]
                since, beside = time.perf_counter(), len(present)
                play = partial(Trainer.play, since=since, beside=beside)
                present = [index for index in present if attempt(index, partial(play, trainers[index]))]
                for index, measured in zip(present, adapt_stacked([trainers[i].policy for i in present]), strict=True):
                    attempt(index, partial(close, index, measured))
                request.obey(save)
        finally:
            for trainer in trainers.values():
                trainer.stop()
    return [failed[index] if index in failed else trainers[index].result() for index in range(len(trainings))]


def _check_stack(trainings: Sequence[Training]) -> None:
    from daband.policies import can_stack

    if not can_stack([training.policy for training in trainings]):
        raise InvalidInput(
            "only different neural policies of one shape and recipe can be stacked; train them one after another"
        )
