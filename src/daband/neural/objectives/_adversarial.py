"""Define D, the data divergence of the bound, as an adversarial term.

A discriminator learns to predict the domain of a context from its aligned features, and the encoder
learns features that prevent it. The discriminator minimises the cross-entropy of the domain label,
which is ln 2 at chance. The encoder receives the gradient of the same loss, multiplied by minus
twice the term's weight. The factor two is there because this loss is the mean over both domains,
while the paper adds their expectations. Several sources count as one domain, and so do several
targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from daband.neural.objectives._term import Batch, Term, TermSettings, terms


class _GradientReversal(torch.autograd.Function):
    """The identity, whose backward pass multiplies the gradient by ``-strength``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(features: Tensor, strength: Tensor) -> Tensor:  # noqa: ARG004
        return features.view_as(features)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (strength,) = ctx.saved_tensors
        return -strength * gradients[0], None


def reverse_gradient(features: Tensor, strength: Tensor) -> Tensor:
    """Return ``features``.

    The backward pass multiplies their gradient by ``-strength``, a scalar tensor.
    """
    return _GradientReversal.apply(features, strength)  # type: ignore[no-untyped-call]


def compute_domain_cross_entropy(logits: Tensor, rows_per_domain: Sequence[int]) -> Tensor:
    """Return the mean over both domains of each domain's mean cross-entropy; 0 if one of them has
    no rows.

    ``logits`` (B,) are positive if the discriminator predicts the target. The first
    ``rows_per_domain[0]`` rows come from the source, the following ``rows_per_domain[1]`` from the
    target.
    """
    source_logits, target_logits = torch.split(logits, list(rows_per_domain))
    if not len(source_logits) or not len(target_logits):
        return logits.sum() * 0.0
    if len(source_logits) == len(target_logits):  # the usual case, with half of the operations
        return functional.softplus(torch.stack([source_logits, -target_logits])).mean()
    return (
        functional.softplus(source_logits).mean() + functional.softplus(-target_logits).mean()
    ) / 2


def compute_domain_accuracy(logits: Tensor, rows_per_domain: Sequence[int]) -> Tensor:
    """Return the mean over both domains of the fraction of rows that the discriminator classifies
    correctly.

    The arguments are as in ``compute_domain_cross_entropy``.
    """
    source_logits, target_logits = torch.split(logits, list(rows_per_domain))
    return 0.5 + (torch.sign(target_logits).mean() - torch.sign(source_logits).mean()) / 4


class Discriminator(nn.Module):
    """A dense network that maps features (B, w) to logits (B,), which are positive if it predicts
    the target.
    """

    def __init__(self, *, n_features: int) -> None:
        super().__init__()
        layers = [
            nn.Linear(n_features, 100),
            nn.ReLU(),
            nn.Linear(100, 128),
            nn.ReLU(),
            nn.Linear(128, 1),
        ]
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.layers(features)
        return logits.squeeze(1)


@terms.register("adversarial")
class Adversarial(Term):
    """D of the bound: the cross-entropy of a discriminator on the aligned features of both
    domains.
    """

    needs_target = True
    applies_weight = True

    def __init__(self, settings: TermSettings) -> None:
        super().__init__(settings)
        self.discriminator = Discriminator(n_features=settings.n_aligned_features)

    def forward(self, batch: Batch) -> Tensor:
        aligned = reverse_gradient(batch.both_aligned, 2 * batch.weight)
        return compute_domain_cross_entropy(self.discriminator(aligned), batch.rows_per_domain)

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        if min(batch.rows_per_domain) == 0:
            return {}
        with torch.no_grad():
            logits = self.discriminator(batch.both_aligned)
            return {
                "discriminator_accuracy": compute_domain_accuracy(logits, batch.rows_per_domain)
            }
