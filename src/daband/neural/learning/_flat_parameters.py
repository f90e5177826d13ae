"""Store all parameters of a network in one vector, and all its running statistics in another.

With one vector, the optimiser (``RowAdam``), the EMA and the norm of the gradient take one
operation each. Stacked runs share a matrix of parameters, with one row per run, and a vector of
statistics, in which the channels of the runs are adjacent. A step works on these tensors for all
runs together. The parameters and buffers of each run's modules are views of them.

``FlatParameters`` is the layout of parameters, ``FlatStatistics`` the layout of running statistics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from daband.neural.encoders._domain_norm import DomainNorm, get_triton_kernels

#: The number of float32 values in 16 bytes, the alignment that kernels need.
_VALUES_PER_ALIGNMENT = 4
#: The number of float32 values in the widest CPU register. Values after the last full register may
#: be rounded differently.
_VALUES_PER_REGISTER = 16


@dataclass(frozen=True)
class _Slot:
    """The name and shape of one parameter in the vector, or of padding."""

    #: The name of the parameter's module.
    module_name: str
    #: The name of the parameter in its module; empty for padding.
    name: str
    #: The shape of the parameter; (n,) for padding.
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    def to_parameter(self, values: Tensor) -> Tensor:
        """Return values (..., size) as a parameter (..., *shape).

        Weights of convolutions are stored channels last.
        """
        batch_shape = values.shape[:-1]
        if len(self.shape) != 4:
            return values.view(*batch_shape, *self.shape)
        n_outputs, n_inputs, height, width = self.shape
        return values.view(*batch_shape, n_outputs, height, width, n_inputs).movedim(-1, -3)

    def flatten(self, parameter: Tensor) -> Tensor:
        """Return a copy of a parameter as values (size,): the inverse of ``to_parameter``."""
        channels_last = parameter.movedim(1, -1) if len(self.shape) == 4 else parameter
        return channels_last.reshape(-1)


def _make_padding(module_name: str, slots: Sequence[_Slot], multiple: int) -> list[_Slot]:
    """Return a list with a slot of padding up to the next multiple of ``multiple`` values; empty if
    none is needed.
    """
    n_missing = -sum(slot.size for slot in slots) % multiple
    return [_Slot(module_name, "", (n_missing,))] if n_missing else []


class FlatParameters:
    """The layout of the trainable parameters of named modules in one vector.

    Kernels for convolutions and products read 16 bytes at once, and some require that alignment. So
    weights start at multiples of 16 bytes. Each module is padded to a full CPU register, so that
    its optimiser steps are bit-identical whether or not another module follows. Padding belongs to
    no parameter and stays 0.
    """

    def __init__(self, slots: Sequence[_Slot]) -> None:
        self.slots = list(slots)
        self.sizes = [slot.size for slot in self.slots]
        #: The results of ``_find_order``, by number of runs and device.
        self._orders: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}

    @classmethod
    def from_modules(cls, modules: Mapping[str, nn.Module]) -> FlatParameters:
        """Return the layout of modules, given by name."""
        slots = []
        for module_name, module in modules.items():
            module_slots = [
                _Slot(module_name, name, tuple(parameter.shape))
                for name, parameter in module.named_parameters()
                if parameter.requires_grad
            ]
            # Matrices and convolutions come first, and then the many short vectors, so that little
            # padding is needed.
            for slot in sorted(module_slots, key=lambda slot: len(slot.shape) < 2):
                slots.append(slot)
                if len(slot.shape) > 1:
                    slots += _make_padding(module_name, slots, _VALUES_PER_ALIGNMENT)
            slots += _make_padding(module_name, slots, _VALUES_PER_REGISTER)
        return cls(slots)

    def select(self, module_name: str) -> FlatParameters:
        """Return the layout of the module with this name."""
        return FlatParameters([slot for slot in self.slots if slot.module_name == module_name])

    def count_values(self, module_name: str) -> int:
        """Return the number of values of a module, with padding."""
        return sum(slot.size for slot in self.slots if slot.module_name == module_name)

    def pack(self, modules: Mapping[str, nn.Module]) -> Tensor:
        """Return a copy of the parameters as one vector."""
        parameters_by_module = {
            module_name: dict(module.named_parameters()) for module_name, module in modules.items()
        }
        slot_values: list[Tensor] = []
        for slot in self.slots:
            if slot.name:
                slot_values.append(
                    slot.flatten(parameters_by_module[slot.module_name][slot.name].detach())
                )
            else:
                slot_values.append(slot_values[0].new_zeros(slot.size))
        return torch.cat(slot_values)

    def make_views(self, modules: Mapping[str, nn.Module], vector: Tensor) -> None:
        """Make the modules' parameters views of ``vector``."""
        parameters_by_module = {
            module_name: dict(module.named_parameters()) for module_name, module in modules.items()
        }
        for slot, values in zip(self.slots, torch.split(vector.detach(), self.sizes), strict=True):
            if slot.name:
                parameters_by_module[slot.module_name][slot.name].data = slot.to_parameter(values)

    def unpack(self, vectors: Tensor) -> dict[str, dict[str, Tensor]]:
        """Return the parameters (runs, *shape) of all runs, by module and name, from ``vectors``
        (runs, size).

        Vectors are split, because the gradient of a split is one concatenation, so that the
        gradient of ``vectors`` is contiguous. With several runs, all vectors are first copied once
        into an order in which the values of a parameter are adjacent for all runs. Otherwise each
        layer would have to copy its parameters.
        """
        parameters_by_module: dict[str, dict[str, Tensor]] = {
            slot.module_name: {} for slot in self.slots
        }
        n_runs = len(vectors)
        slot_values = torch.split(vectors, self.sizes, dim=1)
        if n_runs > 1:
            order, inverse_order = self._find_order(n_runs, vectors.device)
            reordered_values = _Reorder.apply(vectors, order, inverse_order)  # type: ignore[no-untyped-call]
            stacked_values = torch.split(reordered_values, [n_runs * size for size in self.sizes])
            slot_values = tuple(values.view(n_runs, -1) for values in stacked_values)
        for slot, values in zip(self.slots, slot_values, strict=True):
            if slot.name:
                parameters_by_module[slot.module_name][slot.name] = slot.to_parameter(values)
        return parameters_by_module

    def _find_order(self, n_runs: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return an order (runs * size,) in which a parameter's values are adjacent for all runs,
        and its inverse.
        """
        if (n_runs, device) not in self._orders:
            indices = torch.arange(n_runs * sum(self.sizes), device=device).view(n_runs, -1)
            order = torch.cat(
                [
                    slot_indices.reshape(-1)
                    for slot_indices in torch.split(indices, self.sizes, dim=1)
                ]
            )
            self._orders[n_runs, device] = order.int(), order.argsort().int()
        return self._orders[n_runs, device]


class _Reorder(torch.autograd.Function):
    """Copy the values of a matrix into a vector in a given order.

    The backward pass uses the inverse order.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, order: Tensor, inverse_order: Tensor) -> Tensor:
        ctx.save_for_backward(inverse_order)
        ctx.shape = matrix.shape
        return matrix.reshape(-1).index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (inverse_order,) = ctx.saved_tensors
        return gradients[0].index_select(0, inverse_order).view(ctx.shape), None, None


class FlatStatistics:
    """The layout of the running statistics of a network's ``DomainNorm`` layers, for several runs,
    in one vector.

    A buffer has a row per domain. In each row, the values of the runs are adjacent, and padding
    follows.
    """

    def __init__(self, network: nn.Module, *, n_runs: int) -> None:
        self.n_runs = n_runs
        #: The shape of each buffer in the vector, by name.
        self._buffer_shapes: dict[str, tuple[int, ...]] = {}
        for prefix, module in network.named_modules():
            if isinstance(module, DomainNorm):
                for name in ("running_mean", "running_variance", "batches_seen"):
                    self._buffer_shapes[f"{prefix}.{name}"] = tuple(getattr(module, name).shape)
        #: The number of values of the vector.
        self.size = sum(
            math.prod(self._compute_row_sizes(shape)[:2]) for shape in self._buffer_shapes.values()
        )

    def pack(self, networks: Sequence[nn.Module]) -> Tensor:
        """Return the statistics of the runs' networks as one vector; the networks' buffers become
        views of it.
        """
        parameter = next(networks[0].parameters())
        vector = torch.zeros(self.size, device=parameter.device, dtype=parameter.dtype)
        for run, network in enumerate(networks):
            for name, view in self._view_run(vector, run):
                prefix, _, buffer_name = name.rpartition(".")
                norm = network.get_submodule(prefix)
                view.copy_(getattr(norm, buffer_name))
                setattr(norm, buffer_name, view)
        return vector

    def unpack(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the buffers of all runs by name, as views: (domains, runs * channels) or (domains,
        runs).
        """
        return {name: view.flatten(1) for name, view in self._view_stacked(vector)}

    def find_run_indices(self, device: torch.device) -> Tensor:
        """Return the index of the run to which each value of the vector belongs, (size,)."""
        run_indices = torch.zeros(self.size, device=device)
        for run in range(self.n_runs):
            for _, view in self._view_run(run_indices, run):
                view.fill_(run)
        return run_indices.long()

    def _compute_row_sizes(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return a buffer's number of rows, the values of a row with padding, and the values of one
        run in a row.
        """
        n_rows = shape[0]
        run_size = math.prod(shape[1:])
        row_size = self.n_runs * run_size
        return n_rows, row_size + -row_size % _VALUES_PER_ALIGNMENT, run_size

    def _view_stacked(self, vector: Tensor) -> list[tuple[str, Tensor]]:
        """Return every buffer by name as a view (domains, runs, n).

        Each row starts at a multiple of 16 bytes.
        """
        named_views = []
        start = 0
        for name, shape in self._buffer_shapes.items():
            n_rows, row_size, run_size = self._compute_row_sizes(shape)
            rows = vector[start : start + n_rows * row_size].view(n_rows, row_size)[
                :, : self.n_runs * run_size
            ]
            named_views.append((name, rows.view(n_rows, self.n_runs, run_size)))
            start += n_rows * row_size
        return named_views

    def _view_run(self, vector: Tensor, run: int) -> list[tuple[str, Tensor]]:
        """Return the buffers of one run, by name, as views."""
        views = self._view_stacked(vector)
        return [(name, view[:, run].reshape(self._buffer_shapes[name])) for name, view in views]


def make_initial_moments(vector: Tensor) -> dict[str, Tensor]:
    """Return the state of Adam before the first step, for a vector of parameters."""
    zeros = torch.zeros_like(vector.detach())
    return {
        "exp_avg": zeros,
        "exp_avg_sq": zeros.clone(),
        "step": torch.zeros((), device=vector.device),
    }


class RowAdam:
    """Adam for the rows of a matrix of parameters (runs, n). Each step can skip some of the rows.

    Steps change ``parameters`` and ``moments`` in place. ``make_initial_moments`` returns the
    moments of a new run.
    """

    def __init__(
        self, parameters: Tensor, moments: Mapping[str, Tensor], *, learning_rate: float
    ) -> None:
        self._learning_rate = learning_rate
        self._parameters = parameters.detach()
        #: The running means of gradients and of their squares, and the numbers of steps.
        self._moments = [moments[name] for name in ("exp_avg", "exp_avg_sq", "step")]
        self._kernels = get_triton_kernels(parameters.device)

    def step(self, gradients: Tensor, is_skipped: Tensor) -> None:
        """Take one step with gradients (runs, n) for every run, except for runs whose
        ``is_skipped`` (runs,) is 1.
        """
        if self._kernels is not None:
            kernel_settings = {
                "learning_rate": self._learning_rate,
                "betas": (0.9, 0.999),
                "epsilon": 1e-8,
            }
            self._kernels.adam(
                self._parameters, gradients, *self._moments, is_skipped, **kernel_settings
            )
            return
        settings: dict[str, Any] = {
            "lr": self._learning_rate,
            "beta1": 0.9,
            "beta2": 0.999,
            "eps": 1e-8,
        }
        settings |= {"fused": True, "weight_decay": 0.0, "amsgrad": False, "maximize": False}
        for run in range(len(gradients)):
            parameters, means, squares, n_steps = (
                [rows[run]] for rows in (self._parameters, *self._moments)
            )
            adam(
                parameters,
                [gradients[run]],
                means,
                squares,
                [],
                n_steps,
                found_inf=is_skipped[run],
                **settings,
            )
