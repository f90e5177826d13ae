"""R, the regression error: the absolute error of the predicted reward of the pulled arm."""

from __future__ import annotations

import torch

from daband.objectives.contract import Batch, Term, terms

__all__ = ["RegressionError", "regression_error"]


def regression_error(predicted: torch.Tensor, arm: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
    """Mean over rounds of ``|reward - predicted[arm]|``; predicted (B, K), arm and reward (B,)."""
    chosen = predicted.gather(1, arm[:, None]).squeeze(1)
    return (reward - chosen).abs().mean()


@terms.register("regression_error")
class RegressionError(Term):
    """R of the bound.

    It is gated as alignment is: an absolute error asks for the number in the middle of all rewards, which is 0
    as long as most rounds pay nothing, and an encoder that has learned that has no latent left to tell arms apart.
    """

    gated = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return regression_error(batch.predicted, batch.arm, batch.reward)
