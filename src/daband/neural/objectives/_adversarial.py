"""D, the data divergence, as a game: a discriminator learns to tell source and target apart, the encoder to prevent it.

The discriminator descends the mean cross-entropy of the domain label (at chance: ln 2). The encoder receives exactly
that gradient, reversed and times twice the weight: the paper adds the two domains' expectations where the mean halves
them. Several sources are one mixture, and so are several targets: so a source that counts for nothing changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from daband.neural.objectives._term import Batch, Term, TermShape, terms


class _Reversal(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(features: torch.Tensor, strength: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - the way back needs it
        return features.view_as(features)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (strength,) = ctx.saved_tensors
        return -strength * gradients[0], None


def reverse_gradient(features: torch.Tensor, strength: torch.Tensor) -> torch.Tensor:
    """``features``, whose gradient arrives multiplied by ``-strength``, a scalar tensor."""
    return _Reversal.apply(features, strength)  # type: ignore[no-untyped-call]


def domain_cross_entropy(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """The mean over both domains of each one's mean cross-entropy.

    ``logits`` (B,) are positive for the target; the first ``rows[0]`` are of the source, ``rows[1]`` of the target. One
    alone cannot be told from the other: 0.
    """
    first, second = torch.split(logits, list(rows))
    if not len(first) or not len(second):
        return logits.sum() * 0.0
    if len(first) == len(second):  # the usual case, with half of the operations
        return functional.softplus(torch.stack([first, -second])).mean()
    return (functional.softplus(first).mean() + functional.softplus(-second).mean()) / 2


def domain_accuracy(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """The mean over both domains of the share of rows that ``logits`` (B,) put into their domain; a 0 counts half."""
    first, second = torch.split(logits, list(rows))
    return 0.5 + (torch.sign(second).mean() - torch.sign(first).mean()) / 4


class Discriminator(nn.Module):
    """A dense network from features (B, w) to one logit (B,), positive for the target."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        layers = [nn.Linear(width, 100), nn.ReLU(), nn.Linear(100, 128), nn.ReLU(), nn.Linear(128, 1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(features)
        return logits.squeeze(1)


@terms.register("adversarial")
class Adversarial(Term):
    """The discriminator sees the alignment."""

    needs_target = True
    weighs_itself = True

    def __init__(self, shape: TermShape) -> None:
        super().__init__(shape)
        self.discriminator = Discriminator(width=self.input_width(shape))

    def input_width(self, shape: TermShape) -> int:
        """How wide what the discriminator sees is."""
        return shape.alignment_width

    def forward(self, batch: Batch) -> torch.Tensor:
        alignment = reverse_gradient(batch.both_alignments, 2 * batch.weight)
        return domain_cross_entropy(self.logits(alignment, batch), batch.alignment_rows)

    def logits(self, alignment: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The discriminator's logits of all rows, the sources' first, whose alignments are ``alignment``."""
        return self.discriminator(self.seen(alignment, batch))

    def seen(self, alignment: torch.Tensor, batch: Batch) -> torch.Tensor:
        """What the discriminator sees of the rows whose alignments are ``alignment``."""
        return alignment

    def measured(self, batch: Batch) -> dict[str, torch.Tensor]:
        if min(len(batch.alignment), len(batch.target_alignment)) == 0:
            return {}
        with torch.no_grad():
            logits = self.logits(batch.both_alignments, batch)
            return {"discriminator_accuracy": domain_accuracy(logits, batch.alignment_rows)}


@terms.register("conditional_adversarial")
class ConditionalAdversarial(Adversarial):
    """The discriminator sees features and predictions together, so that class is aligned with class.

    Their outer product is projected onto random directions, which keeps it small for many arms. The predictions are
    constants here: the gradient reaches the encoder through the features. Where every arm has a context of its own,
    the two classes of a context are that its arm is the one to choose, and that it is not.
    """

    projected_width = 512

    feature_directions: torch.Tensor
    class_directions: torch.Tensor

    def __init__(self, shape: TermShape) -> None:
        super().__init__(shape)
        self.register_buffer("feature_directions", torch.randn(shape.alignment_width, self.projected_width))
        self.register_buffer("class_directions", torch.randn(shape.n_arms, self.projected_width))

    def input_width(self, shape: TermShape) -> int:
        return self.projected_width

    def seen(self, alignment: torch.Tensor, batch: Batch) -> torch.Tensor:
        contexts_a_round = len(batch.target_alignment) // len(batch.target_predicted)
        source = batch.predicted[: len(batch.alignment) // contexts_a_round]  # behind them are rounds of the target
        predicted = torch.cat([source, batch.target_predicted])
        probabilities = torch.softmax(self.shape.scale * predicted.detach(), dim=1)
        directions = self.class_directions
        if contexts_a_round > 1:
            of_context = probabilities.reshape(-1, 1)
            probabilities, directions = torch.cat([of_context, 1 - of_context], dim=1), directions[:2]
        product = (alignment @ self.feature_directions) * (probabilities @ directions)
        return product / math.sqrt(self.projected_width)

    def grow(self) -> None:
        new = torch.randn(1, self.projected_width).to(self.class_directions)
        self.class_directions = torch.cat([self.class_directions, new])
