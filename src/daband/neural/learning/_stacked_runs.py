"""The numbers of one or several learners as rows of common tensors, and how their networks are run on them.

Several learners of one shape are trained at once: their parameters are rows of one matrix, the channels of their
networks lie next to each other, and the objective is mapped over the rows. The number of operations stays near that of
one learner, which is what a step costs where a GPU spends its time on many small ones. Each learner has its own
generator and its own buffers, so its results are those that it would have alone, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.func import functional_call

from daband.errors import InvalidInput
from daband.neural.learning._flat_parameters import FlatStatistics
from daband.neural.learning._learner import Learner

Parameters = Mapping[str, torch.Tensor]


class RunInputs(NamedTuple):
    """What the objective of a run is computed from; in a stack each has the runs in front."""

    latent: torch.Tensor
    """(R, d)."""
    alignment: torch.Tensor
    """(R, w)."""
    teacher: torch.Tensor
    """(T, d): the EMA encoder's latents of the target contexts; empty where no term needs them."""
    arm: torch.Tensor
    reward: torch.Tensor
    theta: torch.Tensor
    inverse: torch.Tensor
    alpha: torch.Tensor
    prior: torch.Tensor
    """(K,): how often each arm is expected to be the best one in the target."""
    weights: torch.Tensor
    """One per term."""
    counts: torch.Tensor
    """(rounds,): how much each round counts; empty where all count as much."""


RunLoss = Callable[[Parameters, RunInputs], tuple[torch.Tensor, torch.Tensor]]
"""A run's loss, and what was measured (M,), from the objective's parameters and a run's inputs."""


class Stack:
    """Learners that agree in everything but seed, data and the values of weights.

    Building a stack moves the learners' numbers into its tensors: what a step changes there, the learners have.
    """

    def __init__(self, learners: Sequence[Learner]) -> None:
        self.learners = list(learners)
        self.runs = len(self.learners)
        self.first = first = self.learners[0]
        if len({learner.shape_key for learner in learners}) != 1:
            raise InvalidInput("only learners of one shape can be stacked")
        if self.runs > 1 and not first.stackable:
            raise InvalidInput(f"encoder {first.recipe.encoder.name!r} cannot be stacked")
        self.device = first.device
        self.parameters = torch.stack([learner.vector.detach() for learner in self.learners])
        self.moments = {
            name: torch.stack([learner.moments[name] for learner in self.learners]) for name in first.moments
        }
        self.constants = {
            name: torch.stack([learner.constants[name] for learner in self.learners]) for name in first.constants
        }
        self.faults = torch.stack([learner.faults for learner in self.learners])
        averages = [learner.ema_vector for learner in self.learners if learner.ema_vector is not None]
        self.ema_parameters = torch.stack(averages) if averages else None
        for run, learner in enumerate(self.learners):
            learner.move_to(
                vector=self.parameters[run],
                ema_vector=None if self.ema_parameters is None else self.ema_parameters[run],
                moments={name: rows[run] for name, rows in self.moments.items()},
                constants={name: rows[run] for name, rows in self.constants.items()},
                faults=self.faults[run],
            )
        self.parameters.requires_grad_(True)
        self._objective_rest: dict[str, torch.Tensor] = {}
        self.other_buffers = [buffer[None] for buffer in (*first.own_buffers, *first.objective.buffers())]
        """What else a step may change, (runs, ...): buffers of networks, other than norms' statistics, and of terms."""
        if self.runs > 1:
            self._stack_rest_of_objective()
        self.ema_other_buffers = [buffer[None] for buffer in first.ema_buffers]
        statistics = FlatStatistics(first.encoder, runs=self.runs)
        self.statistics = statistics.pack([learner.encoder for learner in self.learners])
        self._buffers = statistics.buffers(self.statistics)
        self.run_of_statistic = statistics.run_of(self.device)
        self.ema_statistics = torch.zeros_like(self.statistics)
        self._ema_buffers: Parameters = {}
        if first.ema is not None:
            self.ema_statistics = statistics.pack([learner.ema for learner in self.learners if learner.ema is not None])
            self._ema_buffers = statistics.buffers(self.ema_statistics)
            for run, learner in enumerate(self.learners):
                learner.ema_statistics = statistics, self.ema_statistics, run
        self._ema_layout = first.layout.only("encoder")

    def _stack_rest_of_objective(self) -> None:
        """Stack what the objective holds and the optimiser does not change: buffers and frozen parameters."""
        rest = [
            {
                **{name: own for name, own in learner.objective.named_parameters() if not own.requires_grad},
                **dict(learner.objective.named_buffers()),
            }
            for learner in self.learners
        ]
        self._objective_rest = {name: torch.stack([own[name] for own in rest]) for name in rest[0]}
        for run, own in enumerate(rest):
            for name, tensor in own.items():
                tensor.data = self._objective_rest[name][run]
        self.other_buffers = list(self._objective_rest.values())

    def by_module(self) -> dict[str, dict[str, torch.Tensor]]:
        """Every trained parameter of all runs, (runs, *shape), by module and name."""
        return {"objective": {}, **self.first.layout.parameters(self.parameters)}

    def encode(
        self, parameters: Parameters, contexts: torch.Tensor, domain_rows: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents (runs, R, d) and alignment features (runs, R, w) of contexts (runs, R, *shape)."""
        return self._forward(self.first.encoder, (parameters, self._buffers), contexts, domain_rows)

    def encode_by_teacher(self, contexts: torch.Tensor, domain_rows: Sequence[int]) -> torch.Tensor | None:
        """Latents (runs, T, d) of target contexts by the EMA encoder; None without one."""
        if self.first.ema is None or self.ema_parameters is None:
            return None
        with torch.no_grad():
            parameters = self._ema_layout.parameters(self.ema_parameters)["encoder"]
            return self._forward(self.first.ema, (parameters, self._ema_buffers), contexts, domain_rows)[0]

    def _forward(
        self,
        network: nn.Module,
        numbers: tuple[Parameters, Parameters],
        contexts: torch.Tensor,
        domain_rows: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Call a network by these parameters and buffers: one run's as it is, several runs' at once."""
        parameters, buffers = numbers
        if self.runs == 1:  # which any encoder can; its own buffers are those of the only run
            only = _of_only_run(parameters)
            latent, alignment = functional_call(network, only, (contexts.squeeze(0),), {"domain_rows": domain_rows})
            return latent[None], alignment[None]
        given = {**{name: parameter.flatten(0, 1) for name, parameter in parameters.items()}, **buffers}
        settings = {"domain_rows": domain_rows, "runs": self.runs}
        latent, alignment = functional_call(network, given, (contexts.transpose(0, 1),), settings)
        return latent.transpose(0, 1), alignment.transpose(0, 1)

    def losses(self, run_loss: RunLoss, parameters: Parameters, inputs: RunInputs) -> tuple[torch.Tensor, torch.Tensor]:
        """The losses (runs,) and measurements (runs, M) of all runs."""
        if self.runs == 1:
            loss, measured = run_loss(_of_only_run(parameters), RunInputs(*(tensor.squeeze(0) for tensor in inputs)))
            return loss[None], measured[None]
        losses, measured = torch.vmap(run_loss)({**parameters, **self._objective_rest}, inputs)
        return losses, measured

    def restore_where(self, bad: torch.Tensor, statistics: torch.Tensor, others: Sequence[torch.Tensor]) -> None:
        """Put back, for runs whose ``bad`` (runs,) is 1, what these were before the step."""
        torch.where(self._by_statistic(bad) > 0, statistics, self.statistics, out=self.statistics)
        for buffer, before in zip(self.other_buffers, others, strict=True):
            buffer.copy_(torch.where(_broadcast(bad, buffer) > 0, before, buffer))

    def _by_statistic(self, values: torch.Tensor) -> torch.Tensor:
        """Values (runs,) with one for each statistic."""
        return values if self.runs == 1 else values.index_select(0, self.run_of_statistic)

    def update_ema(self, share: torch.Tensor) -> None:
        """Move the EMA encoders towards the encoders by ``share`` (runs,) of the way."""
        if self.ema_parameters is None:
            return
        self.ema_parameters.lerp_(self.parameters.detach()[:, : self.ema_parameters.shape[1]], share[:, None])
        self.ema_statistics.lerp_(self.statistics, self._by_statistic(share))
        for slow, fast in zip(self.ema_other_buffers, self.other_buffers, strict=False):
            slow.lerp_(fast, _broadcast(share, slow)) if slow.is_floating_point() else slow.copy_(fast)


def _of_only_run(parameters: Parameters) -> dict[str, torch.Tensor]:
    """Parameters (1, *shape) squeezed, not selected: the gradient of a selection is zeros with a copy in it."""
    return {name: parameter.squeeze(0) for name, parameter in parameters.items()}


def _broadcast(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Values (runs,) with as many dimensions as ``rows`` (runs, ...)."""
    return values.view(-1, *[1] * (rows.ndim - 1))
