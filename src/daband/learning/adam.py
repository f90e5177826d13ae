"""Adam for the rows of a matrix of parameters, one row per run; a row whose gradient is not finite is left alone."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.optim.adam import adam

__all__ = ["RowAdam", "fresh_moments"]

_CHUNK = 8192
"""Numbers in a piece of a row. The fused kernel gives a tensor only a few blocks of a GPU; pieces of a row fill it."""


def fresh_moments(vector: torch.Tensor) -> dict[str, torch.Tensor]:
    """What Adam knows of a vector of parameters before its first step."""
    vector = vector.detach()
    return {
        "exp_avg": torch.zeros_like(vector),
        "exp_avg_sq": torch.zeros_like(vector),
        "step": torch.zeros(-(-len(vector) // _CHUNK), dtype=torch.float32, device=vector.device),
    }


class RowAdam:
    """Changes ``parameters`` (runs, n) and ``moments``, as ``fresh_moments`` makes them for each run, in place."""

    def __init__(self, parameters: torch.Tensor, moments: Mapping[str, torch.Tensor], *, learning_rate: float) -> None:
        self._learning_rate = learning_rate
        self._rows = [
            [list(torch.split(rows[run], _CHUNK)) for rows in (parameters.detach(), *_averages(moments))]
            + [list(moments["step"][run].unbind())]
            for run in range(len(parameters))
        ]

    def step(self, gradient: torch.Tensor, bad: torch.Tensor) -> None:
        """One step for every run; a run whose ``bad`` (runs,) is 1 takes none."""
        for run, (parameters, averages, squares, taken) in enumerate(self._rows):
            adam(
                parameters,
                list(torch.split(gradient[run], _CHUNK)),
                averages,
                squares,
                [],
                taken,
                fused=True,
                found_inf=bad[run],
                lr=self._learning_rate,
                beta1=0.9,
                beta2=0.999,
                eps=1e-8,
                weight_decay=0.0,
                amsgrad=False,
                maximize=False,
            )


def _averages(moments: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return moments["exp_avg"], moments["exp_avg_sq"]
