"""Store all parameters of a network in one vector, and all its running statistics in another.

With one vector, the optimiser (``RowAdam``), the EMA and the norm of the gradient take one operation each.
Stacked runs share a matrix of parameters, one row per run, and a vector of statistics in which the channels of the runs
are adjacent. A step works on all runs together, while the modules of each run are views of its part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.adam import adam

from daband.neural.encoders._domain_norm import DomainNorm, triton_kernels

#: The number of float32 numbers in 16 bytes, the alignment that kernels need.
_ALIGNMENT_NUMBERS = 4
#: The number of float32 numbers in the widest register. Numbers after the last full register may be rounded
#: differently.
_REGISTER_NUMBERS = 16


@dataclass(frozen=True)
class _Slot:
    """The name and shape of one parameter in the vector."""

    #: The name of the module.
    part: str
    #: The name of the parameter; empty for padding.
    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of numbers."""
        return math.prod(self.shape)

    def to_parameter(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return numbers (..., size) as a parameter (..., *shape). Weights of convolutions are stored channels last."""
        batch_shape = numbers.shape[:-1]
        if len(self.shape) != 4:
            return numbers.view(*batch_shape, *self.shape)
        out, inputs, height, width = self.shape
        return numbers.view(*batch_shape, out, height, width, inputs).movedim(-1, -3)

    def to_numbers(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return a parameter as numbers (size,), a copy; the inverse of ``to_parameter``."""
        ordered = parameter.movedim(1, -1) if len(self.shape) == 4 else parameter
        return ordered.reshape(-1)


def _padding(part: str, slots: Sequence[_Slot], multiple: int) -> list[_Slot]:
    """Return a slot of padding up to the next multiple of ``multiple`` numbers, if needed."""
    missing = -sum(slot.size for slot in slots) % multiple
    return [_Slot(part, "", (missing,))] if missing else []


class FlatParameters:
    """The layout of the trainable parameters of named modules in one vector.

    Kernels for convolutions and products read 16 bytes at once, and some require that alignment, so weights start at
    multiples of 16 bytes. A module's numbers end at a full register, so that its steps give the same bits with and
    without a module after it. Padding belongs to no parameter and stays 0.
    """

    def __init__(self, slots: Sequence[_Slot]) -> None:
        self.slots = list(slots)
        self.sizes = [slot.size for slot in self.slots]
        self._orders: dict[tuple[int, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}

    @classmethod
    def from_modules(cls, modules: Mapping[str, nn.Module]) -> FlatParameters:
        """Return the layout of these modules."""
        slots = []
        for part, module in modules.items():
            module_slots = [
                _Slot(part, name, tuple(parameter.shape))
                for name, parameter in module.named_parameters()
                if parameter.requires_grad
            ]
            # Matrices and convolutions first, then the many short vectors, which needs little padding.
            for slot in sorted(module_slots, key=lambda slot: len(slot.shape) < 2):
                slots.append(slot)
                if len(slot.shape) > 1:
                    slots += _padding(part, slots, _ALIGNMENT_NUMBERS)
            slots += _padding(part, slots, _REGISTER_NUMBERS)
        return cls(slots)

    def select(self, part: str) -> FlatParameters:
        """Return the layout of one of the modules."""
        return FlatParameters([slot for slot in self.slots if slot.part == part])

    def size_of(self, part: str) -> int:
        """Return the number of numbers of a module, with padding."""
        return sum(slot.size for slot in self.slots if slot.part == part)

    def pack(self, modules: Mapping[str, nn.Module]) -> torch.Tensor:
        """Return the parameters as one vector, a copy."""
        parameters_by_part = {part: dict(module.named_parameters()) for part, module in modules.items()}
        pieces = []
        for slot in self.slots:
            if slot.name:
                pieces.append(slot.to_numbers(parameters_by_part[slot.part][slot.name].detach()))
            else:
                pieces.append(pieces[0].new_zeros(slot.size))
        return torch.cat(pieces)

    def install(self, modules: Mapping[str, nn.Module], vector: torch.Tensor) -> None:
        """Make the modules' parameters views of ``vector``."""
        parameters_by_part = {part: dict(module.named_parameters()) for part, module in modules.items()}
        for slot, numbers in zip(self.slots, torch.split(vector.detach(), self.sizes), strict=True):
            if slot.name:
                parameters_by_part[slot.part][slot.name].data = slot.to_parameter(numbers)

    def parameters(self, rows: torch.Tensor) -> dict[str, dict[str, torch.Tensor]]:
        """Return the parameters of all runs, by module and name, from (runs, size): each (runs, *shape).

        The gradient of a split is one concatenation, so the gradient of ``rows`` is contiguous. With several runs, the
        runs' parts of each parameter are made adjacent by one copy of all rows; networks would copy each parameter.
        """
        parameters_by_part: dict[str, dict[str, torch.Tensor]] = {slot.part: {} for slot in self.slots}
        runs, pieces = len(rows), torch.split(rows, self.sizes, dim=1)
        if runs > 1:
            adjacent = _Reorder.apply(rows, *self._order(runs, rows.device))  # type: ignore[no-untyped-call]
            sizes = [runs * size for size in self.sizes]
            pieces = tuple(piece.view(runs, -1) for piece in torch.split(adjacent, sizes))
        for slot, numbers in zip(self.slots, pieces, strict=True):
            if slot.name:
                parameters_by_part[slot.part][slot.name] = slot.to_parameter(numbers)
        return parameters_by_part

    def _order(self, runs: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the order of numbers (runs, size) in which a parameter's runs are adjacent, and its inverse."""
        if (runs, device) not in self._orders:
            numbers = torch.arange(runs * sum(self.sizes), device=device).view(runs, -1)
            order = torch.cat([piece.reshape(-1) for piece in torch.split(numbers, self.sizes, dim=1)])
            self._orders[runs, device] = order.int(), order.argsort().int()
        return self._orders[runs, device]


class _Reorder(torch.autograd.Function):
    """Copy the numbers of rows in another order. The backward pass copies in the inverse order."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inverse)
        ctx.shape = rows.shape
        return rows.reshape(-1).index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradients[0].index_select(0, inverse).view(ctx.shape), None, None


class FlatStatistics:
    """The layout of the running statistics of a network's norms, for several runs, in one vector."""

    def __init__(self, network: nn.Module, *, runs: int) -> None:
        self.runs = runs
        self._buffers: list[tuple[str, tuple[int, ...]]] = []
        for prefix, module in network.named_modules():
            if isinstance(module, DomainNorm):
                for name in ("running_mean", "running_variance", "batches_seen"):
                    self._buffers.append((f"{prefix}.{name}", tuple(getattr(module, name).shape)))
        self.size = sum(n_rows * row_size for n_rows, row_size, _ in map(self._row_sizes, self._buffers))

    def pack(self, networks: Sequence[nn.Module]) -> torch.Tensor:
        """Return the statistics of the runs' networks as one vector; the networks' buffers become views of it."""
        example = next(networks[0].parameters())
        vector = torch.zeros(self.size, device=example.device, dtype=example.dtype)
        for run, network in enumerate(networks):
            for name, view in self._run_views(vector, run):
                prefix, _, leaf = name.rpartition(".")
                owner = network.get_submodule(prefix)
                view.copy_(getattr(owner, leaf))
                setattr(owner, leaf, view)
        return vector

    def buffers(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the buffers of all runs, by name, as views: (domains, runs * channels) or (domains, runs)."""
        return {name: part.flatten(1) for name, part in self._stacked(vector)}

    def run_indices(self, device: torch.device) -> torch.Tensor:
        """Return the index of the run to which each number of the vector belongs, (size,)."""
        vector = torch.zeros(self.size, device=device)
        for run in range(self.runs):
            for _, view in self._run_views(vector, run):
                view.fill_(run)
        return vector.long()

    def _row_sizes(self, buffer: tuple[str, tuple[int, ...]]) -> tuple[int, int, int]:
        """Return the number of rows of a buffer, the size of a row with padding, and the size of a run's part."""
        n_rows, run_size = buffer[1][0], math.prod(buffer[1][1:])
        row_size = self.runs * run_size
        return n_rows, row_size + -row_size % _ALIGNMENT_NUMBERS, run_size

    def _stacked(self, vector: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """Return every buffer as (rows, runs, a run's part); each row starts at a multiple of 16 bytes."""
        stacked, start = [], 0
        for buffer in self._buffers:
            n_rows, row_size, run_size = self._row_sizes(buffer)
            rows = vector[start : start + n_rows * row_size].view(n_rows, row_size)[:, : self.runs * run_size]
            stacked.append((buffer[0], rows.view(n_rows, self.runs, run_size)))
            start += n_rows * row_size
        return stacked

    def _run_views(self, vector: torch.Tensor, run: int) -> list[tuple[str, torch.Tensor]]:
        """Return the buffers of one run, by name, as views."""
        shapes = dict(self._buffers)
        return [(name, part[:, run].reshape(shapes[name])) for name, part in self._stacked(vector)]


def initial_moments(vector: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return Adam's state for a vector of parameters before the first step."""
    zeros = torch.zeros_like(vector.detach())
    return {"exp_avg": zeros, "exp_avg_sq": zeros.clone(), "step": torch.zeros((), device=vector.device)}


class RowAdam:
    """Adam for the rows of a matrix of parameters (runs, n); a row whose gradient is not finite does not change.

    It changes ``parameters`` and ``moments`` in place; ``initial_moments`` returns the moments of a new run.
    """

    def __init__(self, parameters: torch.Tensor, moments: Mapping[str, torch.Tensor], *, learning_rate: float) -> None:
        self._learning_rate = learning_rate
        self._rows = [parameters.detach(), *(moments[name] for name in ("exp_avg", "exp_avg_sq", "step"))]
        self._kernels = triton_kernels(parameters.device)

    def step(self, gradient: torch.Tensor, bad: torch.Tensor) -> None:
        """Take one step for every run, except for runs whose ``bad`` (runs,) is 1."""
        if self._kernels is not None:
            kernel_settings = {"learning_rate": self._learning_rate, "betas": (0.9, 0.999), "epsilon": 1e-8}
            self._kernels.adam(self._rows[0], gradient, *self._rows[1:], bad, **kernel_settings)
            return
        settings: dict[str, Any] = {"lr": self._learning_rate, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
        settings |= {"fused": True, "weight_decay": 0.0, "amsgrad": False, "maximize": False}
        for run in range(len(gradient)):
            parameters, averages, squares, step_counts = ([rows[run]] for rows in self._rows)
            adam(parameters, [gradient[run]], averages, squares, [], step_counts, found_inf=bad[run], **settings)
