"""What a term of the objective sees, and how terms are found.

A term is a pure function of tensors, and a thin module around it that holds whatever it learns (a discriminator) and
reads what it needs from a ``Batch``. A new term is one file:

    @terms.register("mine")
    class Mine(Term):
        needs_target = True
        def forward(self, batch: Batch) -> torch.Tensor: ...

Several runs may be trained at once, the term mapped over them by ``torch.vmap``: what a term holds are parameters and
buffers, and nothing branches on values. ``daband.checks.check_term(Mine)`` tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from daband._arguments import one_of
from daband._registry import Registry
from daband.errors import InvalidInput

FEEDBACKS = ("one_hot", "bandit")
"""What a reward tells. "one_hot": exactly one arm pays 1 and the others 0, without noise, so a reward of 1
determines the reward of every arm. "bandit": only the played arm's reward is known."""


@dataclass(frozen=True)
class Batch:
    """One gradient step's material: B source rounds and T target contexts, encoded. Rewards are scaled to [0, 1].

    Several sources, or targets, follow one another in the order of their indices. With target rewards, R target rounds
    follow the sources' in ``predicted``, ``arm`` and ``reward``. B is 0 where no source ever gave a reward. With shared
    arms every round has K contexts, hence K rows of alignment features.

    Everything carries gradients to the encoder except what came from the head, which is a constant of the objective.
    """

    predicted: torch.Tensor
    """(B + R, K): predicted rewards of the rounds, the head's coefficients times the latent."""
    arm: torch.Tensor
    """(B + R,): the arm that was played."""
    reward: torch.Tensor
    """(B + R,): its reward."""
    alignment: torch.Tensor
    """(B, w), or (B * K, w): the source features that alignment works on."""
    target_predicted: torch.Tensor
    """(T, K); empty (0, K) when no term needs the target."""
    target_width: torch.Tensor
    """(T, K): alpha times the width of the head at the target contexts, a constant."""
    target_alignment: torch.Tensor
    """(T, w), or (T * K, w)."""
    target_teacher: torch.Tensor
    """(T, K): what the EMA encoder predicts for the target contexts as they are, a constant."""
    weight: torch.Tensor
    """The term's own weight at this step, as scheduled and gated, a scalar."""
    alignments: torch.Tensor | None = None
    """The one tensor that ``alignment`` and ``target_alignment`` were split from, if any: see ``both_alignments``."""
    target_prior: torch.Tensor | None = None
    """(K,): how often each arm is expected to be the best one in the target; None: all as often."""

    @property
    def alignment_rows(self) -> tuple[int, int]:
        """How many rows of ``both_alignments`` are of sources, and of targets."""
        return len(self.alignment), len(self.target_alignment)

    @property
    def both_alignments(self) -> torch.Tensor:
        """The source's alignments and then the target's, without a copy where they lie so already."""
        return torch.cat([self.alignment, self.target_alignment]) if self.alignments is None else self.alignments


@dataclass(frozen=True)
class TermShape:
    """What a term must know to be built."""

    n_arms: int
    alignment_width: int
    feedback: str = "bandit"
    scale: float = 10.0
    """Predicted rewards lie in [0, 1], too flat for a softmax; they are multiplied by this first."""

    def __post_init__(self) -> None:
        one_of("feedback", self.feedback, FEEDBACKS)
        if not self.scale > 0:
            raise InvalidInput(f"scale must be positive, got {self.scale}")


class Term(nn.Module):
    """One term: ``forward`` gives its value, a scalar that the weight multiplies.

    A term with ``weighs_itself`` uses ``batch.weight`` inside and is added as it is: the adversarial terms are, because
    their weight acts on the encoder's gradient and not on the discriminator's.
    """

    needs_target: ClassVar[bool] = False
    gated: ClassVar[bool | None] = None
    """Whether the weight is gated (``LearningSettings.gate_exponent``); None: if the term needs the target."""
    needs_width: ClassVar[bool] = False
    needs_teacher: ClassVar[bool] = False
    weighs_itself: ClassVar[bool] = False
    holds_constants: ClassVar[bool] = False
    """Whether something computed from the batch is held constant (a bandwidth), so that the gradient is not the
    derivative of the value, on purpose."""
    concurrent_feedback: ClassVar[frozenset[str]] = frozenset()
    """For which feedback a GPU may work on the term beside others: on the way back it reads nothing of the batch."""

    def __init__(self, shape: TermShape) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, batch: Batch) -> torch.Tensor:
        """The value of the term."""
        raise NotImplementedError

    def measured(self, batch: Batch) -> dict[str, torch.Tensor]:
        """What there is to know of a batch besides the value, by name, each a scalar without a gradient."""
        return {}

    def grow(self) -> None:
        """One more arm; a term whose parts depend on the number of arms makes room."""


terms: Registry[type[Term]] = Registry("term", "daband.neural.objectives")


class WithGradient(torch.autograd.Function):
    """A value of predictions (T, K), a factor that makes them logits, and constants; the gradient comes with it.

    ``forward`` gives the gradient by the logits, times T. Autograd would take twice the operations.
    """

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.scale, ctx.constants = inputs[1], len(inputs) - 1

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        (by_logits,) = ctx.saved_tensors
        if gradients[0] is None:
            return None, *[None] * ctx.constants
        return by_logits * (gradients[0] * (ctx.scale / len(by_logits))), *[None] * ctx.constants
