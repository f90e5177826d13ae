"""Store one or several learners as rows of common tensors, and run their networks together.

A run is the training of one learner. Several learners of one shape can be stacked and trained
together: their parameters are rows of one matrix, the channels of their networks are adjacent, and
the objective is mapped over the rows. A step then needs few more operations than for one learner,
and on a GPU the number of operations determines the time of a step. Each learner has its own random
generator and replay buffers, so its results are the same as in a single run, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from daband.errors import InvalidInput
from daband.neural.learning._flat_parameters import FlatStatistics
from daband.neural.learning._learner import Learner

#: Parameters or buffers of a module, by name.
Parameters = Mapping[str, Tensor]
#: Two tensors: features and aligned features, or losses and measurements.
TensorPair = tuple[Tensor, Tensor]


class RunInputs(NamedTuple):
    """The inputs of one run's objective.

    For a stack, every tensor has the runs as an additional first dimension.

    In the shapes, N is the number of contexts of a batch, B its rounds, T its unlabelled target
    contexts, d the number of features for the head, w the number of aligned features, and K the
    number of arms. There is one head per arm, or one for shared arms.
    """

    #: (N, d): the features of all contexts.
    features: Tensor
    #: (N, w): the aligned features of all contexts.
    aligned: Tensor
    #: (T, K): predictions for the target contexts by the teacher, which is the EMA encoder
    #: (exponential moving average); empty if no term needs them.
    teacher_predictions: Tensor
    #: (B,): the indices of the played arms.
    arms: Tensor
    #: (B,): the rewards of the played arms.
    rewards: Tensor
    #: (heads, d): the coefficients of each head; (heads, d + 1) with an intercept.
    theta: Tensor
    #: (heads, d, d): the inverse of each head's matrix ``A = ridge * I + Z' Z`` for features Z;
    #: (heads, d + 1, d + 1) with an intercept. Empty if no term needs bonuses.
    inverses: Tensor
    #: (): the factor of the confidence bonus.
    alpha: Tensor
    #: (2,): the mean and the standard deviation of rewards, or 0 and 1 if rewards are not
    #: standardised.
    reward_unit: Tensor
    #: (2, K): moving averages of the predicted probability of each arm, in the source and in the
    #: target.
    arm_frequencies: Tensor
    #: (terms,): the weight of each term.
    weights: Tensor


#: A function from the objective's parameters and a run's inputs to the run's loss and measurements
#: (M,).
RunLoss = Callable[[Parameters, RunInputs], TensorPair]


class Stack:
    """Common tensors of learners that agree in everything except seed, data and the values of
    weights.

    The learners' parameters and other state become views of rows of these tensors, so that steps
    change the learners.
    """

    def __init__(self, learners: Sequence[Learner]) -> None:
        self.learners = list(learners)
        self.n_runs = len(self.learners)
        #: The first learner, for the settings and networks that all learners share.
        first_learner = self.first_learner = self.learners[0]
        if len({learner.shape_key for learner in learners}) != 1:
            raise InvalidInput("learners must have one shape to be stacked")
        if self.n_runs > 1 and not first_learner.is_stackable:
            raise InvalidInput(f"encoder {first_learner.recipe.encoder.name!r} cannot be stacked")
        self.device = first_learner.device
        self.parameters = torch.stack(
            [learner.parameter_vector.detach() for learner in self.learners]
        )
        self.moments = _stack_by_name([learner.moments for learner in self.learners])
        self.loss_inputs = _stack_by_name([learner.loss_inputs for learner in self.learners])
        self.skip_counts = torch.stack([learner.skip_counts for learner in self.learners])
        ema_vectors = [
            learner.ema_vector for learner in self.learners if learner.ema_vector is not None
        ]
        self.ema_parameters = torch.stack(ema_vectors) if ema_vectors else None
        for run, learner in enumerate(self.learners):
            learner.use_tensors(
                parameter_vector=self.parameters[run],
                ema_vector=None if self.ema_parameters is None else self.ema_parameters[run],
                moments={name: rows[run] for name, rows in self.moments.items()},
                loss_inputs={name: rows[run] for name, rows in self.loss_inputs.items()},
                skip_counts=self.skip_counts[run],
            )
        self.parameters.requires_grad_(True)
        #: Tensors (runs, ...) other than parameters and statistics that a step may change: buffers
        #: of networks and terms, and arm frequencies.
        self.other_buffers = [buffer[None] for buffer in first_learner.other_buffers]
        self.other_buffers += [buffer[None] for buffer in first_learner.objective.buffers()]
        if first_learner.recipe.learning.match_arm_frequencies:
            self.other_buffers.append(self.loss_inputs["arm_frequencies"])
        self.ema_other_buffers = [buffer[None] for buffer in first_learner.ema_other_buffers]
        layout = FlatStatistics(first_learner.encoder, n_runs=self.n_runs)
        #: The running statistics of all runs, in one vector.
        self.statistics = layout.pack([learner.encoder for learner in self.learners])
        self._buffers = layout.unpack(self.statistics)
        #: The index of the run of each statistic.
        self.run_of_statistic = layout.find_run_indices(self.device)
        self.ema_statistics = torch.zeros_like(self.statistics)
        self._ema_buffers: Parameters = {}
        ema_encoders = [
            learner.ema_encoder for learner in self.learners if learner.ema_encoder is not None
        ]
        if ema_encoders:
            self.ema_statistics = layout.pack(ema_encoders)
            self._ema_buffers = layout.unpack(self.ema_statistics)
        self._ema_layout = first_learner.layout.select("encoder")

    def unpack_parameters(self) -> dict[str, dict[str, Tensor]]:
        """Return the trained parameters of all runs, (runs, *shape), by module and name."""
        return {"objective": {}, **self.first_learner.layout.unpack(self.parameters)}

    def encode(
        self, parameters: Parameters, contexts: Tensor, rows_per_domain: Sequence[int]
    ) -> TensorPair:
        """Return features (runs, N, d) and aligned features (runs, N, w) of contexts (runs, N,
        *context_shape).

        ``parameters`` are the encoder's, from ``unpack_parameters``. ``rows_per_domain[i]`` rows
        come from domain i.
        """
        return self._forward(
            self.first_learner.encoder, parameters, self._buffers, contexts, rows_per_domain
        )

    def encode_by_teacher(self, contexts: Tensor, rows_per_domain: Sequence[int]) -> Tensor | None:
        """Return the EMA encoders' features (runs, T, d) of target contexts; None if there is no
        EMA encoder.
        """
        network = self.first_learner.ema_encoder
        if network is None or self.ema_parameters is None:
            return None
        with torch.no_grad():
            parameters = self._ema_layout.unpack(self.ema_parameters)["encoder"]
            return self._forward(network, parameters, self._ema_buffers, contexts, rows_per_domain)[
                0
            ]

    def _forward(
        self,
        network: nn.Module,
        parameters: Parameters,
        buffers: Parameters,
        contexts: Tensor,
        rows_per_domain: Sequence[int],
    ) -> TensorPair:
        """Call a network with these parameters and buffers, for one run or for all runs
        together.
        """
        if self.n_runs == 1:  # the network may be any encoder, and uses its own buffers
            options: dict[str, object] = {"rows_per_domain": rows_per_domain}
            features, aligned = functional_call(
                network, _squeeze_run(parameters), (contexts.squeeze(0),), options
            )
            return features[None], aligned[None]
        tensors = {
            **{name: parameter.flatten(0, 1) for name, parameter in parameters.items()},
            **buffers,
        }
        options = {"rows_per_domain": rows_per_domain, "n_runs": self.n_runs}
        features, aligned = functional_call(network, tensors, (contexts.transpose(0, 1),), options)
        return features.transpose(0, 1), aligned.transpose(0, 1)

    def compute_losses(
        self, run_loss: RunLoss, parameters: Parameters, inputs: RunInputs
    ) -> TensorPair:
        """Return the losses (runs,) and measurements (runs, M) of all runs."""
        if self.n_runs == 1:
            run_inputs = RunInputs(*(tensor.squeeze(0) for tensor in inputs))
            loss, measurements = run_loss(_squeeze_run(parameters), run_inputs)
            return loss[None], measurements[None]
        losses, measurements = torch.vmap(run_loss)(dict(parameters), inputs)
        return losses, measurements

    def restore_where(
        self, is_skipped: Tensor, old_statistics: Tensor, old_buffers: Sequence[Tensor]
    ) -> None:
        """Restore the statistics and buffers from before the step, for runs whose ``is_skipped``
        (runs,) is 1.
        """
        torch.where(
            self._repeat_per_statistic(is_skipped) > 0,
            old_statistics,
            self.statistics,
            out=self.statistics,
        )
        for buffer, old_buffer in zip(self.other_buffers, old_buffers, strict=True):
            buffer.copy_(torch.where(_add_dimensions(is_skipped, buffer) > 0, old_buffer, buffer))

    def _repeat_per_statistic(self, run_values: Tensor) -> Tensor:
        """Return, for each statistic, the value of the run that it belongs to, from ``run_values``
        (runs,).
        """
        return run_values if self.n_runs == 1 else run_values.index_select(0, self.run_of_statistic)

    def update_ema(self, rates: Tensor) -> None:
        """Move the EMA encoders towards the encoders by the fractions ``rates`` (runs,) of
        the way.
        """
        if self.ema_parameters is None:
            return
        self.ema_parameters.lerp_(
            self.parameters.detach()[:, : self.ema_parameters.shape[1]], rates[:, None]
        )
        self.ema_statistics.lerp_(self.statistics, self._repeat_per_statistic(rates))
        for ema, buffer in zip(self.ema_other_buffers, self.other_buffers, strict=False):
            (
                ema.lerp_(buffer, _add_dimensions(rates, ema))
                if ema.is_floating_point()
                else ema.copy_(buffer)
            )


def _stack_by_name(tensors_by_run: Sequence[Parameters]) -> dict[str, Tensor]:
    """Return the tensors of all runs by name, (runs, *shape)."""
    return {
        name: torch.stack([tensors[name] for tensors in tensors_by_run])
        for name in tensors_by_run[0]
    }


def _squeeze_run(parameters: Parameters) -> dict[str, Tensor]:
    """Return parameters (1, *shape) with shape (*shape).

    Indexing would do the same, but its backward pass would copy each gradient into a tensor of
    zeros.
    """
    return {name: parameter.squeeze(0) for name, parameter in parameters.items()}


def _add_dimensions(run_values: Tensor, tensor: Tensor) -> Tensor:
    """Return ``run_values`` (runs,) with as many dimensions as ``tensor`` (runs, ...), for
    arithmetic with it.
    """
    return run_values.view(-1, *[1] * (tensor.ndim - 1))
