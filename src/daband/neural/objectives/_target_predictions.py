"""Terms on the target's predictions alone: entropy, diversity, class confusion, pseudo-labels.

Entropy: the policy should be sure of its choice in the target; a boundary then avoids dense regions. Diversity guards
against one arm for all: arms should be chosen as often as they are expected to be best, by default all as often, which
is wrong where the target is imbalanced (``LearningSettings.prior`` says where the expectation comes from). Class
confusion (Jin et al., 2020): no two arms should be predicted together. Pseudo-labels: where the EMA encoder is sure of
a context as it is, the encoder, which sees it augmented, should agree; unsure contexts are left out, or early
mistakes would teach themselves.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from daband.neural.objectives._term import FEEDBACKS, Batch, Term, WithGradient, terms

_TEMPERATURE = 2.5
_CONFIDENCE = 0.95
_RAREST = 1e-6


def _row_entropy(logits: torch.Tensor) -> torch.Tensor:
    """The entropy (B,) of the softmax of each row of (B, K)."""
    log_probabilities = torch.log_softmax(logits, dim=1)
    return -(log_probabilities.exp() * log_probabilities).sum(dim=1)


class _MeanEntropy(WithGradient):
    @staticmethod
    def forward(predicted: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        logs = torch.log_softmax(scale * predicted, dim=1)
        probabilities = logs.exp()
        parts = probabilities * logs
        less = parts.sum(dim=1, keepdim=True)  # minus the entropy of each row
        return -less.mean(), torch.addcmul(-parts, probabilities, less)


class _Divergence(WithGradient):
    """Of the mean softmax from expected frequencies (K,)."""

    @staticmethod
    def forward(predicted: torch.Tensor, scale: float, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        probabilities = torch.softmax(scale * predicted, dim=1)
        mean = probabilities.mean(dim=0)
        # The probability is kept off zero: its logarithm is finite, and times the probability next to nothing.
        ratio = (mean.clamp(min=1e-12) / expected).log()
        return mean @ ratio, probabilities * (ratio - (probabilities @ ratio)[:, None])


def target_entropy(target_predicted: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Mean entropy of the softmax over arms of ``scale`` times the predicted rewards (T, K)."""
    return _MeanEntropy.apply(target_predicted, scale)[0]  # type: ignore[no-untyped-call]


@terms.register("target_entropy")
class TargetEntropy(Term):
    """Mean entropy of the target's predictions."""

    concurrent_feedback = frozenset(FEEDBACKS)
    needs_target = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return target_entropy(batch.target_predicted, scale=self.shape.scale)


def target_diversity(
    target_predicted: torch.Tensor, *, scale: float, prior: torch.Tensor | None = None
) -> torch.Tensor:
    """How far the mean prediction over (T, K) contexts is from ``prior`` (K,): its Kullback-Leibler divergence.

    Without a prior it is the distance from even: ``ln K`` minus the entropy of the mean prediction.
    """
    n_arms = target_predicted.shape[1]
    if prior is None:
        expected = target_predicted.new_full((n_arms,), max(1 / n_arms, _RAREST))
    else:
        expected = prior.to(target_predicted.dtype).clamp(min=_RAREST)
    given = (target_predicted, scale, expected)
    return _Divergence.apply(*given)[0]  # type: ignore[no-untyped-call]


@terms.register("target_diversity")
class TargetDiversity(Term):
    """How far the target's predictions are, on average, from the arms' expected frequencies."""

    concurrent_feedback = frozenset(FEEDBACKS)
    needs_target = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return target_diversity(batch.target_predicted, scale=self.shape.scale, prior=batch.target_prior)


def class_confusion(target_predicted: torch.Tensor, *, scale: float, temperature: float = _TEMPERATURE) -> torch.Tensor:
    """The off-diagonal mass of the arms' confusion over (T, K) contexts, per arm; confident rows count more."""
    logits = scale * target_predicted / temperature
    probabilities = torch.softmax(logits, dim=1)
    certainty = 1 + torch.exp(-_row_entropy(logits))
    certainty = certainty / certainty.sum() * len(probabilities)
    confusion = (probabilities * certainty[:, None]).T @ probabilities
    confusion = confusion / confusion.sum(dim=1, keepdim=True).clamp(min=1e-12)
    return (confusion.sum() - confusion.diagonal().sum()) / probabilities.shape[1]


@terms.register("class_confusion")
class ClassConfusion(Term):
    """Class confusion of the target's predictions."""

    needs_target = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return class_confusion(batch.target_predicted, scale=self.shape.scale)


def pseudo_label_loss(
    target_predicted: torch.Tensor, teacher: torch.Tensor, *, scale: float, confidence: float = _CONFIDENCE
) -> torch.Tensor:
    """Cross-entropy of predictions (T, K) against the teacher's arm where its probability exceeds ``confidence``.

    The mean runs over all T contexts: when few are sure, the term is small.
    """
    probability, arm = torch.softmax(scale * teacher.detach(), dim=1).max(dim=1)
    sure = (probability > confidence).to(target_predicted.dtype)
    return (sure * functional.cross_entropy(scale * target_predicted, arm, reduction="none")).mean()


@terms.register("pseudo_labels")
class PseudoLabels(Term):
    """Agreement with the EMA encoder on the target."""

    needs_target = True
    needs_teacher = True

    def forward(self, batch: Batch) -> torch.Tensor:
        return pseudo_label_loss(batch.target_predicted, batch.target_teacher, scale=self.shape.scale)
