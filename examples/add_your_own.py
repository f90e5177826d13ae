"""
Add a policy, a term, a pair
============================

**How do I put my own method or data set beside the others?**

.. image:: images/sphx_glr_add_your_own_001.png
   :alt: mean reward of a policy of one's own beside LinUCB and a random one, and target accuracy of each

Each is one class or function with a decorator. The command line, presets and comparisons then know it by name, and
the public checks say whether it keeps the contract.
"""

# %%
# A policy
# --------
#
# Boltzmann exploration over the mean reward of every arm. A policy fills in five hooks, and a sixth where it draws at
# random. (A seventh, ``_freeze``, would let it be exported: it returns regressions as arrays, and an ``Exploration``.
# A softmax is none of these.) Contexts are checked before they reach the hooks, rewards arrive scaled to [0, 1]. Random
# numbers come from the seed and the number of the round alone, so that a batch equals its rounds one by one.

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

import daband
from daband.checks import check_pair, check_policy, check_term
from daband.domains import About, Pair, from_arrays, register_pair
from daband.linear import Decision
from daband.neural.objectives import Batch, Term, terms
from daband.policies import Policy, policies


@policies.register("boltzmann")
class Boltzmann(Policy):
    """Draws an arm by a softmax over the arms' mean rewards; contexts are not looked at."""

    def __init__(
        self,
        *,
        context_shape: Sequence[int],
        n_arms: int,
        temperature: float = 0.1,
        arms: str = "disjoint",
        reward_range: Any = (0.0, 1.0),
        transform: Any = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            context_shape=context_shape,
            n_arms=n_arms,
            arms=arms,
            reward_range=reward_range,
            transform=transform,
            seed=seed,
        )
        self.temperature = temperature
        self._total, self._count = np.zeros(n_arms), np.zeros(n_arms)

    def settings(self) -> dict[str, Any]:
        """What makes this policy anew: a file holds it."""
        return {**super().settings(), "temperature": self.temperature}

    def _decide(self, contexts: Any, domain: int, available: Any, first_round: int, rule: str | None) -> Decision:
        n = len(contexts)
        mean = np.tile((self._total + 0.5) / (self._count + 1), (n, 1))
        width = np.tile(1 / np.sqrt(self._count + 1), (n, 1))
        allowed = np.ones((n, self.n_arms), bool) if available is None else available
        draws = np.array(
            [np.random.default_rng([self.seed, first_round + row]).random(self.n_arms) for row in range(n)]
        )
        if rule is None:
            # The largest of these is an arm with the probability of the softmax.
            score = mean / self.temperature - np.log(-np.log(draws))
        else:
            score = mean + (width if rule == "ucb" else 0) + 1e-9 * draws  # no randomness but for ties
        arm = np.where(allowed, score, -np.inf).argmax(axis=1)
        if rule is not None:
            return Decision(arm, np.ones(n), mean, width)
        shares = self._probabilities(contexts, domain, available, rule)
        return Decision(arm, shares[np.arange(n), arm], mean, width)

    def _probabilities(self, contexts: Any, domain: int, available: Any, rule: str | None) -> np.ndarray:
        if rule is not None:
            return super()._probabilities(contexts, domain, available, rule)
        mean = (self._total + 0.5) / (self._count + 1)
        likelihood = np.tile(np.exp((mean - mean.max()) / self.temperature), (len(contexts), 1))
        likelihood = likelihood if available is None else likelihood * available
        return likelihood / likelihood.sum(axis=1, keepdims=True)

    def _learn(self, contexts: Any, arms: Any, rewards: Any, domain: int, weights: Any) -> None:
        np.add.at(self._total, arms, rewards)
        np.add.at(self._count, arms, 1)

    def _grow(self) -> None:
        self._total, self._count = np.append(self._total, 0.0), np.append(self._count, 0.0)

    def _state(self, *, replay: bool = True) -> dict[str, Any]:
        return {"total": self._total, "count": self._count}

    def _restore(self, state: dict[str, Any]) -> None:
        self._total, self._count = state["total"].copy(), state["count"].copy()


# %%
# The checks find what one forgets: a batch that differs from its singles, an error that leaves a trace, a file that
# does not come back the same, a round that counts twice. Our own policies pass the same ones.

check_policy(Boltzmann)
print("checked:", daband.checks.POLICY_CHECKS[0].__doc__)

# %%
# A pair
# ------
#
# A function that builds a ``Pair``, with a tiny twin for tests. What training may see of the target are contexts;
# rewards go into ``target_test``, and the check proves that nothing else holds one.


@register_pair("rings", about=About(summary="two rings, the target turned and moved", licence="none needed: generated"))
def rings(*, tiny: bool = False, turn: float = 40.0) -> Pair:
    """Which of four quarters of a ring is a point in? The target is turned by ``turn`` degrees and moved."""
    rng = np.random.default_rng(0)
    n = 200 if tiny else 3000

    def draw(angle: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
        quarter = rng.integers(0, 4, n)
        turned = (quarter + rng.uniform(0.1, 0.9, n)) * np.pi / 2 + np.deg2rad(angle)
        return np.stack([np.cos(turned), np.sin(turned)], 1) + 0.1 * rng.normal(size=(n, 2)) + shift, quarter

    seen, held = draw(turn, 1.0), draw(turn, 1.0)
    return from_arrays(source=draw(0.0, 0.0), target=seen[0], target_test=held, name="rings")


check_pair(daband.domains.load("rings", tiny=True))
pair = daband.domains.load("rings", turn=20.0)

# %%
# A term
# ------
#
# A term of the objective is a scalar of a ``Batch``: latents, predicted rewards, what was paid. This one asks that the
# mean features of both domains be close. The check holds its gradient to finite differences, and a weight of 0 to the
# term left out. It also asks what happens in a step without a source round: our first version gave NaN there, hence
# the first line.


@terms.register("mean_distance")
class MeanDistance(Term):
    """The squared distance of the domains' mean alignment features."""

    needs_target = True

    def forward(self, batch: Batch) -> torch.Tensor:
        if len(batch.alignment) == 0 or len(batch.target_alignment) == 0:
            return batch.both_alignments.sum() * 0
        return (batch.alignment.mean(dim=0) - batch.target_alignment.mean(dim=0)).square().mean()


check_term(MeanDistance)
with_term = {"base": "small", "weights": {"mean_distance": {"value": 10.0}, "adversarial": 0.0}}

# %%
# All three beside the rest
# -------------------------

made = {
    "Random": daband.Random.for_pair(pair, seed=0),
    "Boltzmann": Boltzmann.for_pair(pair, seed=0),
    "LinUCB": daband.LinUCB.for_pair(pair, seed=0),
    "DABand, mean_distance": daband.DABand.for_pair(pair, recipe=with_term, seed=0),
}
source_reward, target_accuracy = {}, {}
for name, policy in made.items():
    run = daband.train(policy, source=pair.source, target=pair.target, episodes=20)
    source_reward[name] = run.reward.mean()
    target_accuracy[name] = daband.evaluate(policy, pair.target_test).accuracy

figure, axes = plt.subplots(1, 2, figsize=(8.5, 2.6), sharey=True)
for axis, numbers, label in zip(
    axes, (source_reward, target_accuracy), ("reward a round, source", "right, target"), strict=True
):
    axis.bar_label(axis.barh(list(numbers), list(numbers.values())), fmt="%.2f", padding=3)
    axis.set(xlabel=label, xlim=(0, 1.15))
axes[0].invert_yaxis()
plt.show()

# %%
# On the command line
# -------------------
#
# Put the three into a module, here ``mine.py``, and name it::
#
#     daband --plugin mine bench rings --methods boltzmann,linucb,daband --seeds 0-4
#
# A package can name its module under the entry point ``daband.plugins`` instead, and needs no option then.
