"""An independent reference: ridge regression by solving dense systems from all rounds, with no
update formula.
"""

import numpy as np

from daband.linear import Exploration
from daband.linear._draws import make_draw_key, make_seeded_draw
from daband.linear._reward_moments import RewardMoments


class DenseReference:
    """Predicts rewards by ridge regressions of rewards less their mean, and measures the bonuses of
    each regression in the standard deviation of its rewards, with ten rounds of the largest possible
    one.
    """

    def __init__(self, n_arms, dim, arms, ridge, *, standardise=False):
        self.n_arms = n_arms
        self.dim = dim
        self.arms = arms
        self.ridge = ridge
        self.standardise = standardise
        self.rows = [([], []) for _ in range(n_arms if arms == "disjoint" else 1)]

    @property
    def centre(self):
        """The prior mean of a reward."""
        rewards = [reward for _, some in self.rows for reward in some]
        return np.mean(rewards) if self.standardise and rewards else 0.0

    @property
    def units(self):
        """The unit of the bonus of each regression."""
        rewards = [reward for _, some in self.rows for reward in some]
        if not self.standardise or len(set(rewards)) < 2:
            return np.ones(len(self.rows))
        variances = [
            (10 * (np.ptp(rewards) / 2) ** 2 + len(some) * (np.var(some) if some else 0.0))
            / (10 + len(some))
            for _, some in self.rows
        ]
        return np.sqrt(variances)

    def score(self, context):
        """Mean and bonus of every arm for one round's context, (d,) or (K, d)."""
        mean = np.empty(self.n_arms)
        bonus = np.empty(self.n_arms)
        centre = self.centre
        for arm in range(self.n_arms):
            z = context if self.arms == "disjoint" else context[arm]
            contexts, rewards = self.rows[arm if self.arms == "disjoint" else 0]
            learned = np.array(contexts).reshape(-1, self.dim)
            gram = self.ridge * np.eye(self.dim) + learned.T @ learned
            mean[arm] = centre + z @ np.linalg.solve(gram, learned.T @ (np.array(rewards) - centre))
            unit = self.units[arm if self.arms == "disjoint" else 0]
            bonus[arm] = unit * np.sqrt(z @ np.linalg.solve(gram, z))
        return mean, bonus

    def learn(self, context, arm, reward):
        z = context if self.arms == "disjoint" else context[arm]
        contexts, rewards = self.rows[arm if self.arms == "disjoint" else 0]
        contexts.append(z)
        rewards.append(reward)


def play(head, contexts, rewards, *, first_round=0, moments=None, alpha=0.6, seed=0, **rule):
    """Play rounds by a head."""
    return head.play(
        contexts,
        rewards,
        exploration=Exploration("ucb", alpha, **rule),
        draw_from=lambda row: make_seeded_draw(make_draw_key(seed), first_round + row),
        moments=RewardMoments(standardise=False) if moments is None else moments,
    )
