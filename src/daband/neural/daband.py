"""Define DABand: Algorithm 1 of [1]_, and the four terms of its objective.

Algorithm 1 (``alg:DABand``) learns in the source, where rewards are observed, and aligns the
features of the target with those of the source. In the paper's notation, x are contexts, phi is the
encoder, z = phi(x) are its features of unit norm, theta, A and b are the head, and g is the
discriminator:

    A = gamma I, b = 0
    for i = 1, ..., N:
        observe the contexts x^S of a source round and the contexts x^T of the target
        choose a = argmax_a z_a.theta + alpha sqrt(z_a' A^-1 z_a), with z_a = phi(x^S_a)
        receive the reward r of the arm a
        A = A + z_a z_a',  b = b + r z_a,  theta = A^-1 b
        if i is a multiple of H, repeat H times:
            compute L^DABand (eq:final_obj) on the last H rounds and target contexts
            take an Adam step on phi and g for min_phi max_g L^DABand (eq:minimax)

``DABand.play`` chooses arms and updates A and b, ``DABand.observe_target`` stores target contexts,
and ``DABand.adapt`` takes the gradient steps. ``NeuralLinUCB`` implements them (``_play``,
``_observe``, ``_adapt``), as Neural-LinUCB is the same algorithm with the first term only.
``Learner.step`` is one gradient step, ``RidgeHead`` the head. ``daband.train`` runs the loop. The
terms are the functions below, and recipes have their weights by the same names:

    L^DABand = sum_i (L^RS_i + 2 L^eps_i + L^reg_i) + lambda L^div              (eq:final_obj)

    L^RS    eq:loss_rs    ``source_regret``       weight 1
    L^eps   eq:tr_err     ``regression_error``    weight 2, R in ablations
    L^reg   eq:r_pred     ``predicted_reward``    weight 1, P in ablations
    L^div   eq:div        ``data_divergence``     weight lambda, D in ablations

The paper leaves some points open. Here sums over rounds are means, so that weights do not depend on
the size of a batch. theta has unit norm in the terms, and is a constant for the gradient. One
context per round has a regression per arm, whose features z_a are all phi(x).

References:
    .. [1] Wang, Huo, Wang: "Towards Domain Adaptive Neural Contextual Bandits", ICLR 2025. Names
       such as ``eq:loss_rs`` are the labels of its equations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from daband.neural._recipes import recipes
from daband.neural._settings import (
    EncoderSettings,
    LearningSettings,
    Recipe,
    ReplaySettings,
    Weight,
)
from daband.neural._term import Batch, Term, TermSettings, terms
from daband.neural.encoders._encoder import DenseSettings
from daband.neural.neural_linucb import NeuralLinUCB
from daband.policies._registered import policies


def source_regret(predictions: Tensor, arms: Tensor, rewards: Tensor, *, feedback: str) -> Tensor:
    """Return the source regret, ``L^RS = sum_a (theta.z_a - r_a)^2`` (eq:loss_rs).

    The sum is over the arms whose reward r_a is known. That is the played arm. If exactly one arm
    is correct ("one_hot" feedback), a reward of 1 implies that all other arms have reward 0.

    Args:
        predictions: (B, K), the predicted rewards ``theta.z_a`` of all arms.
        arms: (B,), the played arms.
        rewards: (B,), their rewards.
        feedback: "one_hot" or "bandit".
    """
    all_arms = torch.arange(predictions.shape[1], device=arms.device)
    is_known = arms[:, None] == all_arms
    known_rewards = is_known * rewards[:, None]
    if feedback == "one_hot":
        is_known = is_known | (rewards[:, None] == 1)
    return (is_known * (predictions - known_rewards) ** 2).sum(dim=1).mean()


def regression_error(predictions: Tensor, arms: Tensor, rewards: Tensor) -> Tensor:
    """Return the regression error, ``L^eps = |r - theta.z_a|`` for the played arm a (eq:tr_err).

    The arguments are as in ``source_regret``.
    """
    return (rewards - select_arms(predictions, arms)).abs().mean()


def predicted_reward(
    predictions: Tensor,
    arms: Tensor,
    rewards: Tensor,
    target_predictions: Tensor,
    target_arms: Tensor,
    *,
    feedback: str,
) -> Tensor:
    """Return the predicted reward, ``L^reg = |theta.z^T_a| + 1[a is not the best arm] |theta.z^S_a|``
    (eq:r_pred).

    The indicator is 1 for a reward below 1 with "one_hot" feedback, and otherwise ``1 - r``.

    Args:
        predictions: (B, K), the predicted rewards for source contexts.
        arms: (B,), the played arms.
        rewards: (B,), their rewards.
        target_predictions: (T, K), the predicted rewards for target contexts.
        target_arms: (T,), the arm a of each target context. The paper does not define it.
            Algorithm 1 computes only the arms of the source rounds.
        feedback: "one_hot" or "bandit".
    """
    is_wrong = (rewards < 1).to(rewards.dtype)
    if feedback != "one_hot":
        is_wrong = (1 - rewards).clamp(min=0)
    loss = (is_wrong * select_arms(predictions, arms).abs()).mean()
    n_pairs = min(len(target_predictions), len(target_arms))
    if n_pairs == 0:
        return loss
    return select_arms(target_predictions[:n_pairs], target_arms[:n_pairs]).abs().mean() + loss


def data_divergence(
    discriminator: nn.Module, source_features: Tensor, target_features: Tensor, lambda_: Tensor
) -> Tensor:
    """Return the data divergence, ``L^div = max_g E^S[L_D(g(z), 0)] + E^T[L_D(g(z), 1)]`` (eq:div).

    L_D is the accuracy of g, and the cross-entropy is its differentiable surrogate, with opposite
    sign. The result is the mean of the two domains' cross-entropies, ln 2 at chance, and 0 if a
    domain has no rows. g descends it. phi receives the gradient reversed and multiplied by
    ``2 lambda``, because the paper adds the two expectations. So one step serves both sides of
    eq:minimax.

    Args:
        discriminator: g, which maps features (n, w) to logits (n,), positive for the target.
        source_features: (B, w).
        target_features: (T, w).
        lambda_: the weight of the divergence in eq:final_obj, a scalar tensor.
    """
    features = torch.cat([source_features, target_features])
    logits = discriminator(GradientReversal.apply(features, 2 * lambda_))  # type: ignore[no-untyped-call]
    source_logits, target_logits = logits.split([len(source_features), len(target_features)])
    if not len(source_logits) or not len(target_logits):
        return logits.sum() * 0.0
    source_loss = functional.softplus(source_logits).mean()
    target_loss = functional.softplus(-target_logits).mean()
    return (source_loss + target_loss) / 2


@recipes.register("paper")
def build_paper_recipe(is_image: bool, lambda_: float = 1.0) -> Recipe:
    """Return the recipe of Algorithm 1 with the objective eq:final_obj and the paper's settings.

    Steps use the latest rounds, and terms use coefficients of unit norm. The paper does not specify
    to which range it normalises images; [-1, 1] is used here.
    """
    network = {"widths": (256,), "normalise_input": False, "normalise_hidden": False}
    if is_image:
        network = {"channels": (32, 48), "normalise": False, "pixels": "symmetric"}
    return Recipe(
        weights={
            "source_regret": Weight(1.0),
            "regression_error": Weight(2.0),
            "predicted_reward": Weight(1.0),
            "data_divergence": Weight(lambda_),
        },
        encoder=EncoderSettings(
            name="conv" if is_image else "mlp",
            options=network,
            dense=DenseSettings(dimension=64, hidden=128, aligned="last"),
            initialisation="gaussian",
        ),
        learning=LearningSettings(learning_rate=1e-5, steps=64, batch=64, ema_decay=0.0),
        replay=ReplaySettings(sampling="last", unit_theta=True),
        alpha=0.05,
        explore="ucb",
    )


@policies.register("daband")
class DABand(NeuralLinUCB):
    """A neural policy that learns in the source, where rewards are observed, and acts in the
    target.

    Pass target contexts to ``observe_target``, and call ``adapt`` after every episode;
    ``daband.train`` does both. The arguments are the same as for ``NeuralLinUCB``. This class uses
    all terms of a named recipe, while ``NeuralLinUCB`` drops the target terms. ``recipe="paper"`` is
    Algorithm 1 of the paper; the default recipe has further terms.

    >>> policy = daband.DABand(context_shape=(8,), n_arms=3, recipe="paper", seed=0)
    >>> policy.observe_target([[0.5] * 8] * 64)
    >>> _ = policy.play([[1.0] * 8] * 64, [[1.0, 0.0, 0.0]] * 64)
    >>> metrics = policy.adapt(steps=2)
    >>> policy.deploy("target")
    >>> policy.select([[0.5] * 8]).arm.shape
    (1,)
    """

    source_only = False
    is_default_network = True


@terms.register("source_regret")
class SourceRegret(Term):
    """The source regret: the squared error of the known rewards (``source_regret``)."""

    def forward(self, batch: Batch) -> Tensor:
        rounds = (batch.predictions, batch.arms, batch.rewards)
        return source_regret(*rounds, feedback=self.settings.feedback)


@terms.register("regression_error")
class RegressionError(Term):
    """The regression error: the absolute error of the played arm (``regression_error``).

    If the recipe has a gate, which the paper's has not, the policy's skill in the source scales the
    weight (``_skill_gate.py``). The median of all rewards minimises an absolute error. As long as
    most rewards are 0, the median is 0, and an encoder that predicts 0 for every arm cannot
    distinguish arms.
    """

    is_gated = True

    def forward(self, batch: Batch) -> Tensor:
        return regression_error(batch.predictions, batch.arms, batch.rewards)


@terms.register("predicted_reward")
class PredictedReward(Term):
    """The predicted reward, for the arms of the source rounds in the target
    (``predicted_reward``).
    """

    needs_target = True

    def forward(self, batch: Batch) -> Tensor:
        rounds = (batch.predictions, batch.arms, batch.rewards)
        feedback = self.settings.feedback
        return predicted_reward(*rounds, batch.target_predictions, batch.arms, feedback=feedback)


@terms.register("data_divergence")
class DataDivergence(Term):
    """The data divergence of the aligned features, by a discriminator (``data_divergence``).

    Several sources count as one domain, and so do several targets.
    """

    needs_target = True
    applies_weight = True

    def __init__(self, settings: TermSettings) -> None:
        super().__init__(settings)
        #: The discriminator g.
        self.discriminator = nn.Sequential(
            nn.Linear(settings.n_aligned_features, 100),
            nn.ReLU(),
            nn.Linear(100, 128),
            nn.ReLU(),
            nn.Linear(128, 1),
            nn.Flatten(0),
        )

    def forward(self, batch: Batch) -> Tensor:
        features = (batch.aligned, batch.target_aligned)
        return data_divergence(self.discriminator, *features, batch.weight)

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        """Return the accuracy of the discriminator."""
        if not len(batch.aligned) or not len(batch.target_aligned):
            return {}
        with torch.no_grad():
            logits = self.discriminator(torch.cat([batch.aligned, batch.target_aligned]))
        source_logits, target_logits = logits.tensor_split([len(batch.aligned)])
        accuracies = (source_logits < 0).float().mean(), (target_logits > 0).float().mean()
        return {"discriminator_accuracy": sum(accuracies) / 2}


class GradientReversal(torch.autograd.Function):
    """The identity, whose backward pass multiplies the gradient by ``-strength``."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, strength: Tensor) -> Tensor:
        ctx.save_for_backward(strength)
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (strength,) = ctx.saved_tensors
        return -strength * gradients[0], None


def select_arms(predictions: Tensor, arms: Tensor) -> Tensor:
    """Return the predicted rewards (B,) of one arm per row, from the predictions (B, K) for all
    arms.
    """
    return predictions.gather(1, arms[:, None]).squeeze(1)
