"""Arms that cost something: choices by what remains of a reward, within a budget.

The net value of an arm is its predicted reward, with the width that the policy explores by, less its cost. A budget is
a mean cost per round. It is kept by a Lagrange multiplier, the *price*: an arm is chosen by ``reward - (1 + price) *
cost``, and after every round the price rises by how much the cost exceeded the budget, or falls, never below 0. Where
the budget does not bind the price stays 0. What was spent exceeds ``budget * rounds`` by at most a constant times the
square root of the rounds (online gradient descent on the dual: Agrawal and Devanur 2014).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from daband._arrays import ArrayLike, BoolArray, FloatArray, as_numpy, checked_number
from daband.errors import InvalidInput
from daband.linear._exploration import Decision
from daband.policies._policy import Policy


class Paced:
    """A policy that chooses by net value, within a budget per round.

    Args:
        policy: predicts rewards; ``update`` it as ever. Its ``epsilon`` is not used here.
        cost: what each arm costs, (K,), in the unit of rewards; or None where ``select`` is given costs by row.
        budget: the mean cost of a round that is allowed; None: any.
        price: the price to begin with, e.g. that of the day before.

    >>> policy = daband.LinUCB(context_shape=(1,), n_arms=2, alpha=0.0)
    >>> skipped = policy.update([[1.0]] * 20, [0, 1] * 10, [0.5, 0.8] * 10)
    >>> policy.select([[1.0]]).arm.tolist(), daband.policies.Paced(policy, cost=[0.0, 0.6]).select([[1.0]]).arm.tolist()
    ([1], [0])
    """

    def __init__(
        self, policy: Policy, *, cost: ArrayLike | None = None, budget: float | None = None, price: float = 0.0
    ) -> None:
        if not isinstance(getattr(policy, "alpha", None), float | int):
            raise InvalidInput(f"policy must predict rewards and explore by a width, got {policy!r}")
        self.policy = policy
        self.cost = None if cost is None else _checked_cost(cost, (policy.n_arms,))
        self.budget = None if budget is None else checked_number("budget", budget)
        self.price = checked_number("price", price)
        if (self.budget is not None and self.budget < 0) or self.price < 0:
            raise InvalidInput(f"budget and price must not be negative, got {budget!r} and {price!r}")
        self.spent = 0.0
        """The cost of all choices so far."""
        self.rounds = 0

    def select(
        self,
        contexts: ArrayLike,
        domain: str | None = None,
        available: ArrayLike | None = None,
        *,
        cost: ArrayLike | None = None,
        rule: str | None = None,
    ) -> Decision:
        """Choose an arm for every context, one after the other: the price changes after each.

        ``cost`` (B, K) are the costs of these rounds, where they differ by row. The propensity of a choice is 1.
        """
        # The rounds count as decided by the policy, so that its ties and draws go on.
        decision = (
            self.policy.select(contexts, domain, available)
            if rule is None
            else self.policy.decide(contexts, domain, available, rule=rule)
        )
        n = len(decision.arm)
        given = self._costs(cost, n)
        allowed = np.ones(given.shape, np.bool_)
        if available is not None:
            allowed = np.broadcast_to(np.asarray(available, np.bool_), given.shape)
        arms = self.choose(decision.mean + self._optimism(rule) * decision.width, given, allowed)
        return Decision(arms, np.ones(n), decision.mean, decision.width)

    def choose(self, score: FloatArray, cost: FloatArray, available: BoolArray) -> Any:
        """Arms (B,) by scores and costs (B, K), round by round; spends the budget."""
        low, high = self.policy.reward_range
        largest = max(float(cost.max(initial=0.0)), 1e-12)
        arms = np.empty(len(score), np.int64)
        for row in range(len(score)):
            net = np.where(available[row], score[row] - (1.0 + self.price) * cost[row], -np.inf)
            arms[row] = int(net.argmax())
            paid = float(cost[row, arms[row]])
            self.spent += paid
            self.rounds += 1
            if self.budget is not None:
                # A price of (high - low) / largest makes the most expensive arm useless: that sets the size of a step.
                step = 2.0 * (high - low) / (largest * largest * math.sqrt(self.rounds))
                self.price = max(0.0, self.price + step * (paid - self.budget))
        return arms

    def _optimism(self, rule: str | None) -> float:
        explored = getattr(self.policy, "explore", "ucb") if rule is None else rule
        return float(self.policy.alpha) if explored == "ucb" else 0.0  # type: ignore[attr-defined]

    def _costs(self, cost: ArrayLike | None, n: int) -> FloatArray:
        if cost is not None:
            return _checked_cost(cost, (n, self.policy.n_arms))
        if self.cost is None:
            raise InvalidInput("cost is missing: give it by arm to Paced, or by row to select")
        return np.broadcast_to(self.cost, (n, self.policy.n_arms))


def _checked_cost(cost: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    array = np.asarray(as_numpy(cost, "cost"), np.float64)
    if array.shape != shape or not np.isfinite(array).all() or (array < 0).any():
        raise InvalidInput(f"cost must be numbers >= 0 of shape {shape}, got shape {array.shape}")
    return array
