"""Define the interface of a term of the objective (the loss), and the registry of terms.

``daband.py`` has the paper's four terms, and ``_further_terms.py`` others. A term is a torch module. It
holds its parameters, such as a discriminator, and computes its value from a ``Batch`` of tensors.
The number of arms may grow during a run, so no parameter depends on it. To add a term, register a
subclass:

    @terms.register("mine")
    class Mine(Term):
        needs_target = True
        def forward(self, batch: Batch) -> torch.Tensor: ...

On a GPU, steps are recorded as a CUDA graph. The code of a term must therefore not read values of
tensors on the host (``.item()``, ``if``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from daband.base._arguments import check_one_of
from daband.base._registry import Registry
from daband.errors import InvalidInput

#: The information in a reward. "one_hot": exactly one arm has reward 1 and the others 0, without
#: noise, so a reward of 1 determines the reward of every arm. "bandit": only the played arm's
#: reward is known.
FEEDBACKS = ("one_hot", "bandit")


@dataclass(frozen=True)
class Batch:
    """The data of one gradient step: B source rounds and T unlabelled target contexts, encoded.

    K is the number of arms, and w the number of aligned features. If target rewards are available,
    L target rounds follow the B source rounds in ``predictions``, ``arms`` and ``rewards``;
    otherwise L is 0. B is 0 if no source round has a reward. Several sources, or several targets,
    are concatenated in the order of their indices. With shared arms every round has K contexts,
    hence K rows of aligned features.

    Rewards and predictions are in [0, 1], or standardised (``TermSettings.standardise_rewards``).
    Gradients flow through the predictions and the aligned features to the encoder. The head's
    coefficients are constants.
    """

    #: (B + L, K): the predicted reward of every arm in each round, the head's coefficients times
    #: the features.
    predictions: torch.Tensor
    #: (B + L,): the index of the played arm in each round.
    arms: torch.Tensor
    #: (B + L,): the reward of the played arm in each round.
    rewards: torch.Tensor
    #: (B, w), or (B * K, w) with shared arms: the source features that are aligned with the target.
    aligned: torch.Tensor
    #: (T, K): the predicted rewards for the target contexts; empty (0, K) if no term needs the
    #: target.
    target_predictions: torch.Tensor
    #: (T, w), or (T * K, w) with shared arms: the target features that are aligned with the source.
    target_aligned: torch.Tensor
    #: (T, K): predictions of the EMA encoder, an exponential moving average of the encoder, for the
    #: target contexts without augmentation; without a gradient.
    teacher_predictions: torch.Tensor
    #: (K,): the assumed frequency of each arm in the target, for "target_diversity".
    arm_frequencies: torch.Tensor
    #: The term's weight at this step, after its schedule and gate, a scalar tensor, for a term with
    #: ``applies_weight``. For other terms, the weights of all terms.
    weight: torch.Tensor


@dataclass(frozen=True)
class TermSettings:
    """The settings from which a term is built."""

    #: The number of arms at the start of the run.
    n_arms: int
    #: The number of aligned features.
    n_aligned_features: int
    #: One of ``FEEDBACKS``.
    feedback: str = "bandit"
    #: Logits are predicted rewards times ``scale``. Without it, rewards in [0, 1] would give a
    #: nearly uniform softmax.
    scale: float = 10.0
    #: True if rewards are standardised to mean 0 and standard deviation 1; otherwise they are in
    #: [0, 1].
    standardise_rewards: bool = False

    def __post_init__(self) -> None:
        check_one_of("feedback", self.feedback, FEEDBACKS)
        if not self.scale > 0:
            raise InvalidInput(f"scale must be > 0, got {self.scale}")


class Term(nn.Module):
    """One term of the objective: ``forward`` returns its value, a scalar that is multiplied by the
    term's weight.

    A term with ``applies_weight`` applies ``batch.weight`` itself and is added without a factor.
    The data divergence does so, because its weight acts only on the encoder's gradient, not on the
    discriminator's. A term may have a method ``measure(batch)``, which returns measurements for the
    metrics of a run by name, scalars without a gradient.
    """

    #: True if the term uses target contexts.
    needs_target: ClassVar[bool] = False
    #: True if the weight is gated (``LearningSettings.gate_exponent``). None means that it is gated
    #: if the term needs the target.
    is_gated: ClassVar[bool | None] = None
    #: True if the term uses ``Batch.teacher_predictions``.
    needs_teacher: ClassVar[bool] = False
    #: True if the term applies its weight itself.
    applies_weight: ClassVar[bool] = False

    def __init__(self, settings: TermSettings) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the value of the term for a batch, a scalar tensor."""
        raise NotImplementedError


#: The registry of terms, by name.
terms: Registry[type[Term]] = Registry("term", "daband.neural")
