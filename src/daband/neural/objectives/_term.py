"""Define the interface of a term of the objective (the loss), and the registry of terms.

A term is a module. It has the term's parameters, such as a discriminator, and computes the term from a ``Batch`` of
tensors, without side effects. The number of arms may grow during a run, so no parameter depends on it. A new term needs
only a file:

    @terms.register("mine")
    class Mine(Term):
        needs_target = True
        def forward(self, batch: Batch) -> torch.Tensor: ...

Several runs may be trained together, with the term mapped over them by ``torch.vmap``. Therefore a term has only
parameters and buffers, and does not branch on values. ``daband.checks.check_term(Mine)`` checks this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from daband._arguments import check_one_of
from daband._registry import Registry
from daband.errors import InvalidInput

#: The information in a reward. "one_hot": exactly one arm has reward 1 and the others 0, without noise, so a reward of
#: 1 determines the reward of every arm. "bandit": only the played arm's reward is known.
FEEDBACKS = ("one_hot", "bandit")


@dataclass(frozen=True)
class Batch:
    """The data of one gradient step: B source rounds and T target contexts, encoded.

    Rewards and predictions are 0 to 1, or standardised (``TermShape.standardised``). Several sources, or targets, are
    concatenated in the order of their indices. With target rewards, R target rounds follow the source rounds in
    ``predicted``, ``arm`` and ``reward``. B is 0 if no source has a reward. With shared arms every round has K
    contexts, hence K rows of aligned features. The gradient passes to the encoder; the head is a constant.
    """

    #: (B + R, K): predicted rewards of the rounds, the head's coefficients times the features.
    predicted: torch.Tensor
    #: (B + R,): the arm that was played.
    arm: torch.Tensor
    #: (B + R,): its reward.
    reward: torch.Tensor
    #: (B, w), or (B * K, w): the source features that are aligned with the target.
    aligned: torch.Tensor
    #: (T, K): predicted rewards of the target contexts; empty (0, K) if no term needs the target.
    target_predicted: torch.Tensor
    #: (T, K): alpha times the head's confidence bonus at the target contexts, a constant.
    target_bonus: torch.Tensor
    #: (T, w), or (T * K, w): the target features that are aligned with the source.
    target_aligned: torch.Tensor
    #: (T, K): predictions of the EMA encoder for the target contexts without augmentation, a constant.
    target_teacher: torch.Tensor
    #: The term's weight at this step, scheduled and gated, a scalar.
    weight: torch.Tensor
    #: The tensor that ``aligned`` and ``target_aligned`` were split from, if any: see ``both_aligned``.
    all_aligned: torch.Tensor | None = None

    @property
    def aligned_rows(self) -> tuple[int, int]:
        """The numbers of source and target rows in ``both_aligned``."""
        return len(self.aligned), len(self.target_aligned)

    @property
    def both_aligned(self) -> torch.Tensor:
        """The aligned features of the source, followed by those of the target."""
        return torch.cat([self.aligned, self.target_aligned]) if self.all_aligned is None else self.all_aligned


@dataclass(frozen=True)
class TermShape:
    """The sizes and settings from which a term is built."""

    n_arms: int
    #: The number of aligned features.
    aligned_width: int
    #: One of ``FEEDBACKS``.
    feedback: str = "bandit"
    #: The factor between predicted rewards, which are too flat for a softmax, and logits.
    scale: float = 10.0
    #: True if rewards are standardised to mean 0 and standard deviation 1; otherwise they are in [0, 1].
    standardised: bool = False

    def __post_init__(self) -> None:
        check_one_of("feedback", self.feedback, FEEDBACKS)
        if not self.scale > 0:
            raise InvalidInput(f"scale must be > 0, got {self.scale}")


class Term(nn.Module):
    """One term of the objective: ``forward`` returns its value, a scalar that is multiplied by the term's weight.

    A term with ``applies_weight`` applies ``batch.weight`` itself and is added without a factor. The adversarial term
    does so, because its weight acts only on the encoder's gradient, not on the discriminator's.
    """

    #: True if the term uses target contexts.
    needs_target: ClassVar[bool] = False
    #: True if the weight is gated (``LearningSettings.gate_exponent``). With None, it is gated if the term needs the
    #: target.
    gated: ClassVar[bool | None] = None
    #: True if the term uses ``Batch.target_bonus``.
    needs_bonus: ClassVar[bool] = False
    #: True if the term uses ``Batch.target_teacher``.
    needs_teacher: ClassVar[bool] = False
    #: True if the term applies its weight itself.
    applies_weight: ClassVar[bool] = False
    #: The kinds of feedback for which a GPU may compute the term concurrently: its backward pass must not read the
    #: batch.
    concurrent_feedback: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, shape: TermShape) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the value of the term."""
        raise NotImplementedError

    def measured(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return measurements of a batch in addition to the value, by name, each a scalar without a gradient."""
        return {}


#: The registry of terms, by name.
terms: Registry[type[Term]] = Registry("term", "daband.neural.objectives")


class WithGradient(torch.autograd.Function):
    """A function with an explicit gradient, because autograd would need twice as many operations.

    Its arguments are predictions (T, K), the factor that turns them into logits, and constants. ``forward`` returns the
    value, and T times its gradient with respect to the logits.
    """

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.scale, ctx.n_constants = inputs[1], len(inputs) - 1

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        (logit_gradient,) = ctx.saved_tensors
        if gradients[0] is None:
            return None, *[None] * ctx.n_constants
        return logit_gradient * (gradients[0] * (ctx.scale / len(logit_gradient))), *[None] * ctx.n_constants
