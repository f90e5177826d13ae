"""Adam for the rows of a matrix of parameters, a run each; a row whose gradient is not finite is left alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["MOMENTS", "RowAdam"]

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""What Adam knows of a row: the means of the gradient and of its square, and the steps taken."""
_BETAS = (0.9, 0.999)
_EPSILON = 1e-8
_CHUNK = 8192


class RowAdam:
    """Changes ``parameters`` (runs, n) in place, and ``moments``, which stand in the order of ``MOMENTS``."""

    def __init__(self, parameters: torch.Tensor, moments: Sequence[torch.Tensor], *, learning_rate: float) -> None:
        self._learning_rate = learning_rate
        self._taken = moments[2]
        # The fused optimiser gives every tensor a few blocks of the device: in pieces, one vector keeps all of it busy.
        self._chunks = [
            [list(torch.split(rows[run], _CHUNK)) for rows in (parameters.detach(), *moments[:2])]
            for run in range(len(parameters))
        ]

    def step(self, gradient: torch.Tensor, bad: torch.Tensor) -> None:
        """One step for every run; those whose ``bad`` (runs,) is 1 take none."""
        self._taken += 1 - bad
        for run, (parameters, means, squares) in enumerate(self._chunks):
            # The fused optimiser leaves everything alone where found_inf is 1, without asking the host.
            torch._fused_adam_(
                parameters,
                list(torch.split(gradient[run], _CHUNK)),
                means,
                squares,
                [],
                [self._taken[run]] * len(parameters),
                lr=self._learning_rate,
                beta1=_BETAS[0],
                beta2=_BETAS[1],
                weight_decay=0.0,
                eps=_EPSILON,
                amsgrad=False,
                maximize=False,
                found_inf=bad[run],
            )
