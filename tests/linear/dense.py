"""An independent reference: ridge regression by solving dense systems from all rounds, with no update formula."""

import numpy as np


class DenseReference:
    def __init__(self, n_arms, dim, arms, ridge):
        self.n_arms, self.dim, self.arms, self.ridge = n_arms, dim, arms, ridge
        self.rows = [([], []) for _ in range(n_arms if arms == "disjoint" else 1)]

    def _system(self, head):
        contexts, rewards = self.rows[head]
        z = np.array(contexts).reshape(-1, self.dim)
        return self.ridge * np.eye(self.dim) + z.T @ z, z.T @ np.array(rewards)

    def score(self, context):
        """Mean and width of every arm for one round's context, (d,) or (K, d)."""
        mean, width = np.empty(self.n_arms), np.empty(self.n_arms)
        for arm in range(self.n_arms):
            z = context if self.arms == "disjoint" else context[arm]
            gram, moment = self._system(arm if self.arms == "disjoint" else 0)
            mean[arm] = z @ np.linalg.solve(gram, moment)
            width[arm] = np.sqrt(z @ np.linalg.solve(gram, z))
        return mean, width

    def learn(self, context, arm, reward):
        z = context if self.arms == "disjoint" else context[arm]
        contexts, rewards = self.rows[arm if self.arms == "disjoint" else 0]
        contexts.append(z)
        rewards.append(reward)
