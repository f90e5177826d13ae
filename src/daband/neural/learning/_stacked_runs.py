"""Store one or several learners as rows of common tensors, and run their networks together.

Several learners of one shape are trained together: their parameters are rows of one matrix, the channels of their
networks are adjacent, and the objective is mapped over the rows. The number of operations is near that of one learner,
and on a GPU it determines the time of a step. Each learner has its own generator and its own buffers, so its results
are the same as in a single run, up to rounding.
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

#: Parameters or buffers of a module, by name.
Parameters = Mapping[str, torch.Tensor]


class RunInputs(NamedTuple):
    """The inputs of a run's objective; in a stack the runs are the first dimension."""

    #: (R, d): the features of all contexts.
    features: torch.Tensor
    #: (R, w): the aligned features of all contexts.
    aligned: torch.Tensor
    #: (T, K): the EMA encoder's predictions for the target contexts; empty if no term needs them.
    teacher: torch.Tensor
    #: (B,): the played arms.
    arm: torch.Tensor
    #: (B,): their rewards.
    reward: torch.Tensor
    #: (heads, d): the head's coefficients; (heads, d + 1) with an intercept.
    theta: torch.Tensor
    #: (heads, d, d): the head's A^-1, or empty; (heads, d + 1, d + 1) with an intercept.
    inverse: torch.Tensor
    #: The factor of the confidence bonus.
    alpha: torch.Tensor
    #: (2,): the centre and scale of rewards.
    unit: torch.Tensor
    #: (2, K): moving averages of the predicted probabilities of arms in the source and in the target.
    arm_frequencies: torch.Tensor
    #: (terms,): the weight of each term.
    weights: torch.Tensor


#: A function from the objective's parameters and a run's inputs to the run's loss and measurements (M,).
RunLoss = Callable[[Parameters, RunInputs], tuple[torch.Tensor, torch.Tensor]]


class Stack:
    """A stack of learners that agree in everything except seed, data and the values of weights.

    Building a stack moves the learners' numbers into its tensors, so that steps change the learners.
    """

    def __init__(self, learners: Sequence[Learner]) -> None:
        self.learners = list(learners)
        self.runs = len(self.learners)
        self.first = first = self.learners[0]
        if len({learner.shape_key for learner in learners}) != 1:
            raise InvalidInput("learners must have one shape to be stacked")
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
        ema_vectors = [learner.ema_vector for learner in self.learners if learner.ema_vector is not None]
        self.ema_parameters = torch.stack(ema_vectors) if ema_vectors else None
        for run, learner in enumerate(self.learners):
            learner.move_to(
                vector=self.parameters[run],
                ema_vector=None if self.ema_parameters is None else self.ema_parameters[run],
                moments={name: rows[run] for name, rows in self.moments.items()},
                constants={name: rows[run] for name, rows in self.constants.items()},
                faults=self.faults[run],
            )
        self.parameters.requires_grad_(True)
        #: Other tensors that a step may change, (runs, ...): buffers of networks and terms, arm frequencies.
        self.other_buffers = [buffer[None] for buffer in (*first.own_buffers, *first.objective.buffers())]
        if first.recipe.learning.match_arm_frequencies:
            self.other_buffers.append(self.constants["arm_frequencies"])
        self.ema_other_buffers = [buffer[None] for buffer in first.ema_buffers]
        statistics = FlatStatistics(first.encoder, runs=self.runs)
        self.statistics = statistics.pack([learner.encoder for learner in self.learners])
        self._buffers = statistics.buffers(self.statistics)
        self.run_of_statistic = statistics.run_indices(self.device)
        self.ema_statistics = torch.zeros_like(self.statistics)
        self._ema_buffers: Parameters = {}
        if first.ema is not None:
            self.ema_statistics = statistics.pack([learner.ema for learner in self.learners if learner.ema is not None])
            self._ema_buffers = statistics.buffers(self.ema_statistics)
        self._ema_layout = first.layout.select("encoder")

    def by_module(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the trained parameters of all runs, (runs, *shape), by module and name."""
        return {"objective": {}, **self.first.layout.parameters(self.parameters)}

    def encode(
        self, parameters: Parameters, contexts: torch.Tensor, domain_rows: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features (runs, R, d) and aligned features (runs, R, w) of contexts (runs, R, *shape)."""
        return self._forward(self.first.encoder, (parameters, self._buffers), contexts, domain_rows)

    def encode_by_teacher(self, contexts: torch.Tensor, domain_rows: Sequence[int]) -> torch.Tensor | None:
        """Return features (runs, T, d) of target contexts by the EMA encoder; None without one."""
        if self.first.ema is None or self.ema_parameters is None:
            return None
        with torch.no_grad():
            parameters = self._ema_layout.parameters(self.ema_parameters)["encoder"]
            return self._forward(self.first.ema, (parameters, self._ema_buffers), contexts, domain_rows)[0]

    def _forward(
        self,
        network: nn.Module,
        state: tuple[Parameters, Parameters],
        contexts: torch.Tensor,
        domain_rows: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Call a network with these parameters and buffers, for one run or for several together."""
        parameters, buffers = state
        if self.runs == 1:  # any encoder, with its own buffers
            run_parameters = _squeeze_run(parameters)
            options: dict[str, object] = {"domain_rows": domain_rows}
            features, aligned = functional_call(network, run_parameters, (contexts.squeeze(0),), options)
            return features[None], aligned[None]
        tensors = {**{name: parameter.flatten(0, 1) for name, parameter in parameters.items()}, **buffers}
        options = {"domain_rows": domain_rows, "runs": self.runs}
        features, aligned = functional_call(network, tensors, (contexts.transpose(0, 1),), options)
        return features.transpose(0, 1), aligned.transpose(0, 1)

    def losses(self, run_loss: RunLoss, parameters: Parameters, inputs: RunInputs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the losses (runs,) and measurements (runs, M) of all runs."""
        if self.runs == 1:
            loss, measured = run_loss(_squeeze_run(parameters), RunInputs(*(tensor.squeeze(0) for tensor in inputs)))
            return loss[None], measured[None]
        losses, measured = torch.vmap(run_loss)(dict(parameters), inputs)
        return losses, measured

    def restore_where(self, bad: torch.Tensor, statistics: torch.Tensor, other_buffers: Sequence[torch.Tensor]) -> None:
        """Restore statistics and buffers from before the step for runs whose ``bad`` (runs,) is 1."""
        torch.where(self._by_statistic(bad) > 0, statistics, self.statistics, out=self.statistics)
        for buffer, old in zip(self.other_buffers, other_buffers, strict=True):
            buffer.copy_(torch.where(_broadcast(bad, buffer) > 0, old, buffer))

    def _by_statistic(self, values: torch.Tensor) -> torch.Tensor:
        """Return the value of its run for each statistic, from values (runs,)."""
        return values if self.runs == 1 else values.index_select(0, self.run_of_statistic)

    def update_ema(self, fraction: torch.Tensor) -> None:
        """Move the EMA encoders towards the encoders by ``fraction`` (runs,) of the way."""
        if self.ema_parameters is None:
            return
        self.ema_parameters.lerp_(self.parameters.detach()[:, : self.ema_parameters.shape[1]], fraction[:, None])
        self.ema_statistics.lerp_(self.statistics, self._by_statistic(fraction))
        for ema, buffer in zip(self.ema_other_buffers, self.other_buffers, strict=False):
            ema.lerp_(buffer, _broadcast(fraction, ema)) if ema.is_floating_point() else ema.copy_(buffer)


def _squeeze_run(parameters: Parameters) -> dict[str, torch.Tensor]:
    """Return parameters (1, *shape) as (*shape). Indexing would copy the gradient into a tensor of zeros."""
    return {name: parameter.squeeze(0) for name, parameter in parameters.items()}


def _broadcast(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return values (runs,) with as many dimensions as ``rows`` (runs, ...)."""
    return values.view(-1, *[1] * (rows.ndim - 1))
