"""D, the data divergence, as a game: a discriminator learns to tell the domains apart, the encoder to prevent it.

The discriminator descends the mean cross-entropy of the domain label (chance: ln 2). The encoder receives exactly that
gradient, reversed and times twice the weight: the paper adds the two domains' expectations where the mean halves them.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from daband.objectives.contract import Batch, Term, TermShape, terms
from daband.objectives.reversal import reverse_gradient

__all__ = [
    "Adversarial",
    "ConditionalAdversarial",
    "Discriminator",
    "domain_accuracy",
    "domain_cross_entropy",
    "domain_logits",
]


def domain_cross_entropy(source_logits: torch.Tensor, target_logits: torch.Tensor) -> torch.Tensor:
    """The mean over domains of each domain's mean cross-entropy; the label of the source is 0, of the target 1."""
    source = functional.softplus(source_logits).mean()
    target = functional.softplus(-target_logits).mean()
    return (source + target) / 2


def domain_accuracy(source_logits: torch.Tensor, target_logits: torch.Tensor) -> torch.Tensor:
    """The mean over domains of the share of rows on the right side; a logit of 0 counts half."""
    return 0.5 + (torch.sign(target_logits).mean() - torch.sign(source_logits).mean()) / 4


class Discriminator(nn.Module):
    """A dense network from features (B, w) to one logit (B,): positive means target."""

    def __init__(self, *, width: int, hidden: tuple[int, int] = (100, 128)) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, hidden[0]),
            nn.ReLU(),
            nn.Linear(hidden[0], hidden[1]),
            nn.ReLU(),
            nn.Linear(hidden[1], 1),
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(features)
        return logits.squeeze(1)


def domain_logits(
    discriminator: nn.Module, source: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both domains through the discriminator in one pass."""
    logits: torch.Tensor = discriminator(torch.cat([source, target]))
    of_source, of_target = torch.split(logits, [len(source), len(target)])
    return of_source, of_target


@terms.register("adversarial")
class Adversarial(Term):
    """The discriminator sees the tap."""

    needs_target = True
    weighs_itself = True

    def __init__(self, shape: TermShape) -> None:
        super().__init__(shape)
        self.discriminator = Discriminator(width=self.input_width(shape))

    def input_width(self, shape: TermShape) -> int:
        """How wide what the discriminator sees is."""
        return shape.tap_width

    def seen(self, tap: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - for the conditional one
        """What the discriminator sees of rows whose tap is (B, w) and whose predicted rewards are (B, K)."""
        return tap

    def forward(self, batch: Batch) -> torch.Tensor:
        strength = 2 * batch.weight
        source = self.seen(reverse_gradient(batch.tap, strength), batch.predicted)
        target = self.seen(reverse_gradient(batch.target_tap, strength), batch.target_predicted)
        source_logits, target_logits = domain_logits(self.discriminator, source, target)
        with torch.no_grad():
            self.accuracy = domain_accuracy(source_logits, target_logits)
        return domain_cross_entropy(source_logits, target_logits)


@terms.register("conditional_adversarial")
class ConditionalAdversarial(Adversarial):
    """The discriminator sees features and predictions together, so that class is aligned with class.

    Their outer product is projected onto random directions, which keeps it small for many arms. The predictions are
    constants here: the gradient reaches the encoder through the features.
    """

    projected_width = 512

    feature_directions: torch.Tensor
    class_directions: torch.Tensor

    def __init__(self, shape: TermShape) -> None:
        super().__init__(shape)
        self.register_buffer("feature_directions", torch.randn(shape.tap_width, self.projected_width))
        self.register_buffer("class_directions", torch.randn(shape.n_arms, self.projected_width))

    def input_width(self, shape: TermShape) -> int:  # noqa: ARG002
        return self.projected_width

    def seen(self, tap: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
        probabilities = torch.softmax(self.shape.scale * predicted.detach(), dim=1)
        product = (tap @ self.feature_directions) * (probabilities @ self.class_directions)
        scaled: torch.Tensor = product / math.sqrt(self.projected_width)
        return scaled

    def grow(self) -> None:
        new = torch.randn(1, self.projected_width).to(self.class_directions)
        self.class_directions = torch.cat([self.class_directions, new])
