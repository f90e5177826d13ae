"""
Add a policy, a pair, a loss term
=================================

**How do I compare my own method or data set with the others?**

.. image:: images/sphx_glr_add_your_own_001.png
   :alt: mean reward and target accuracy of a custom policy, LinUCB and a random policy

A policy, a pair or a loss term is one class or function with a decorator. It can then be used by
name on the command line, in presets and in comparisons. Public checks test whether a policy or a
pair satisfies the requirements."""

# %%
# A policy
# --------
#
# This policy predicts the mean reward of every arm, with a bonus for arms that were rarely chosen.
# A policy implements two methods: return a predictor, and learn rounds. Contexts are checked before
# they reach these methods. Rewards have the user's unit, and predictions and bonuses have the same
# unit: ``reward_moments`` has the mean and the standard deviation of the learned rewards. The
# predictor maps contexts to predictions and bonuses. ``Policy`` chooses arms from them, and an
# exported file contains the predictor. ``arm_arrays`` are the learned arrays, which are saved, and
# get a zero for a new arm.

from typing import Any

import matplotlib.pyplot as plt  # pip install matplotlib
import numpy as np
import torch

import daband
from daband.checks import check_pair, check_policy
from daband.domains import About, Pair, from_arrays, register_pair
from daband.linear import RidgePredictor
from daband.neural import Batch, Term, terms
from daband.policies import Policy, policies


@policies.register("means")
class Means(Policy):
    """Predict the mean reward of every arm, plus a bonus for arms that were rarely chosen.

    Contexts are not used.
    """

    arm_arrays = ("_reward_sums", "_weight_sums")

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._reward_sums = np.zeros(self.n_arms)
        self._weight_sums = np.zeros(self.n_arms)

    def _predictor(self, domain: int) -> RidgePredictor:
        moments = self.reward_moments
        means = (moments.centre + self._reward_sums) / (
            1 + self._weight_sums
        )  # an arm without rounds has the mean of all
        bonuses = self._compute_units() / np.sqrt(1 + self._weight_sums)
        return RidgePredictor.constant(means, bonuses)

    def _learn(self, rounds: Any, domain: int) -> None:
        weights = self._weigh(rounds)
        weights = np.ones(len(rounds.arms)) if weights is None else weights
        np.add.at(self._reward_sums, rounds.arms, weights * rounds.rewards)
        np.add.at(self._weight_sums, rounds.arms, weights)


# %% The checks find common errors: predictions of a batch that differ from those of its rows, an
# error after which the state has changed, a loaded policy that differs from the saved one, a round
# that counts twice. The built-in policies pass the same checks.

check_policy(Means)
print("checked:", daband.checks.POLICY_CHECKS[0].__doc__)

# %%
# A pair
# ------
#
# A pair is a function that returns a ``Pair``, with a small version for tests. Training sees only
# contexts of the target. Target rewards belong in ``target_test``; the check tests that nothing
# else contains them.


@register_pair(
    "rings",
    about=About(summary="points on a ring, rotated in the target", licence="none, generated"),
)
def rings(*, tiny: bool = False, turn: float = 40.0) -> Pair:
    """Return points on a ring; the label is the quadrant.

    The target is rotated by ``turn`` degrees and translated.
    """
    rng = np.random.default_rng(0)
    n = 200 if tiny else 3000

    def draw(turn_degrees: float, offset: float) -> tuple[np.ndarray, np.ndarray]:
        quadrants = rng.integers(0, 4, n)
        angles = (quadrants + rng.uniform(0.1, 0.9, n)) * np.pi / 2 + np.deg2rad(turn_degrees)
        return (
            np.stack([np.cos(angles), np.sin(angles)], 1) + 0.1 * rng.normal(size=(n, 2)) + offset,
            quadrants,
        )

    unlabelled = draw(turn, 1.0)
    labelled = draw(turn, 1.0)
    return from_arrays(
        source=draw(0.0, 0.0), target=unlabelled[0], target_test=labelled, name="rings"
    )


check_pair(daband.domains.load("rings", tiny=True))
pair = daband.domains.load("rings", turn=20.0)

# %%
# A term
# ------
#
# A loss term is a function of a ``Batch``, which has features, predicted rewards and observed
# rewards. This term is the distance between the mean features of the domains. A step may have no
# source rounds. Their mean would be NaN, so the first line handles this case.


@terms.register("mean_distance")
class MeanDistance(Term):
    """The squared distance between the mean aligned features of both domains."""

    needs_target = True

    def forward(self, batch: Batch) -> torch.Tensor:
        if len(batch.aligned) == 0 or len(batch.target_aligned) == 0:
            return (batch.aligned.sum() + batch.target_aligned.sum()) * 0
        return (batch.aligned.mean(dim=0) - batch.target_aligned.mean(dim=0)).square().mean()


recipe_with_term = {
    "base": "small",
    "weights": {"mean_distance": {"value": 10.0}, "data_divergence": 0.0},
}

# %%
# Compare all three
# -----------------

candidates = {
    "Random": daband.Random.for_pair(pair, seed=0),
    "Means": Means.for_pair(pair, seed=0),
    "LinUCB": daband.LinUCB.for_pair(pair, seed=0),
    "DABand, mean_distance": daband.DABand.for_pair(pair, recipe=recipe_with_term, seed=0),
}
source_reward = {}
target_accuracy = {}
for name, policy in candidates.items():
    run = daband.train(policy, source=pair.source, target=pair.target, episodes=20)
    source_reward[name] = run.reward.mean()
    target_accuracy[name] = daband.evaluate(policy, pair.target_test).accuracy

figure, axes = plt.subplots(1, 2, figsize=(8.5, 2.6), sharey=True)
for axis, values, label in zip(
    axes,
    (source_reward, target_accuracy),
    ("reward per round, source", "accuracy, target"),
    strict=True,
):
    axis.bar_label(axis.barh(list(values), list(values.values())), fmt="%.2f", padding=3)
    axis.set(xlabel=label, xlim=(0, 1.15))
axes[0].invert_yaxis()
plt.show()

# %%
# On the command line
# -------------------
#
# Put the three into a module of a package, here ``mine.py``, and declare it in the package's
# ``pyproject.toml``::
#
#     [project.entry-points."daband.plugins"]
#     mine = "mine"
#
# After ``pip install --editable .``, the command line knows their names::
#
#     daband bench rings --methods means,linucb,daband --seeds 0-4
