"""Train several runs together: a GPU computes their gradient steps at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from daband.errors import InvalidInput
from daband.policies._policy import Policy
from daband.training._phase import Phase
from daband.training._trainer import Run, Trainer
from daband.training._work_folder import defer_stop_signals


def can_train_together(policies: Sequence[Policy]) -> bool:
    """Return True if ``train_together`` can train these policies: several neural policies on one
    device.
    """
    if len(policies) < 2 or not all(
        isinstance(policy, Policy) and policy.learns_by_gradients for policy in policies
    ):
        return False
    from daband.neural._accelerator import can_adapt_together  # imports torch

    return can_adapt_together(policies)


def train_together(phases: Sequence[Phase]) -> list[Run | Exception]:
    """Play several phases together, and return the run of each, or the exception that ended it.

    Rounds are played run by run, and a GPU computes the gradient steps of all runs at the same time.
    Each result equals the result of a separate run, on a GPU up to rounding, and each folder can be
    resumed separately. Runs that were resumed ahead of the others wait for them. If a run fails, the
    others continue.
    """
    if not can_train_together([phase.policy for phase in phases]):
        raise InvalidInput(
            "to be trained together, policies must be different neural policies on one device; train"
            " them separately"
        )
    from daband.neural._accelerator import adapt_together

    trainers: dict[int, Trainer] = {}
    failures: dict[int, Exception] = {}

    def attempt(index: int, action: Callable[[], object]) -> None:
        """Call ``action`` for a run. If it raises an exception, drop the run."""
        try:
            action()
        except Exception as error:
            failures[index] = error
            if index in trainers:
                trainers.pop(index).stop()

    def save() -> None:
        for index in list(trainers):
            attempt(index, trainers[index].save)

    has_folders = any(phase.directory is not None for phase in phases)
    with defer_stop_signals(enabled=has_folders) as stop_request, ExitStack() as folders:

        def start(index: int) -> None:
            trainer = Trainer(phases[index], n_runs=len(phases))
            trainers[index] = folders.enter_context(trainer)

        for index in range(len(phases)):
            attempt(index, partial(start, index))
        while unfinished := {i: t for i, t in trainers.items() if not t.is_finished}:
            stop_request.handle_signal(save)
            episode = min(trainer.next_episode for trainer in unfinished.values())
            running = [i for i, trainer in unfinished.items() if trainer.next_episode == episode]
            for index in running:
                attempt(index, trainers[index].play_rounds)
            running = [index for index in running if index in trainers]
            results = adapt_together([trainers[index].policy for index in running])
            for index, metrics in zip(running, results, strict=True):
                attempt(index, partial(trainers[index].record_episode, metrics))
    return [
        failures[index] if index in failures else trainers[index].build_run()
        for index in range(len(phases))
    ]
