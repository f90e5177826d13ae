"""``budget_curve``: estimate the value of a policy under limits of increasing size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from daband.domains._contract import Pair
from daband.errors import InvalidInput
from daband.features._costs import ArmCosts
from daband.logs._mean_estimates import estimate_mean
from daband.policies._policy import Policy
from daband.serving._limits import Limit, fit_limits
from daband.trust._assess import TargetContexts, get_assessed_source, read_source_rounds
from daband.trust._incumbent import decide

#: Maximum number of contexts of each domain.
_MAX_CONTEXTS = 2000
#: Number of budgets by default.
_N_BUDGETS = 11


class BudgetPoint(NamedTuple):
    """The value of a policy under a limit."""

    #: The largest mean use per decision.
    budget: float
    #: The mean use of the rounds on which the value is estimated.
    use: float
    #: The mean reward.
    value: float
    #: Lower limit of its interval.
    low: float
    #: Upper limit of its interval.
    high: float


def budget_curve(
    policy: Policy | Any,
    pair: Pair,
    *,
    use: Mapping[str, float] | None = None,
    budgets: Sequence[float] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> list[BudgetPoint]:
    """Return the mean reward of a policy for each limit on its mean use of arms.

    The price of a limit is found on target contexts. The reward is estimated on the source rounds
    by which the policy is assessed. For a ``LogPolicy`` these are the rounds that it learned, by
    cross-fitting and for the target's contexts. It is exact for the rounds if the rewards of all
    arms are known.

    Args:
        policy: a policy or a ``Choice``.
        pair: the pair that it was trained on.
        use: the use of each arm by name, e.g. ``{"call": 1.0}`` for the fraction of calls. Other
            arms use nothing. By default the costs of the pair.
        budgets: the largest mean use of each point. By default 11 budgets, from the cheapest arm
            to the use without a limit.
        confidence: level of the intervals.
        seed: determines which contexts are used if a domain has many.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policy = daband.LinUCB.for_pair(pair, seed=0)
    >>> run = daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=32)
    >>> curve = daband.budget_curve(policy, pair, use={pair.class_names[0]: 1.0}, budgets=[0.0, 0.1])
    >>> [point.budget for point in curve], curve[0].use
    ([0.0, 0.1], 0.0)
    """
    policy = getattr(policy, "policy", policy)
    costs = ArmCosts.parse(use, pair.class_names) or pair.costs
    if costs is None or min(costs.means) < 0.0:
        raise InvalidInput(f"use must be at least 0 for each arm, and above 0 for one, got {use}")
    uses = np.array(costs.means)
    rounds = read_source_rounds(policy, get_assessed_source(pair, policy), _MAX_CONTEXTS, seed=seed)
    predictions = rounds.decide(policy)[1] if rounds.values is None else rounds.values.predictions
    sample = TargetContexts.read(pair.target, _MAX_CONTEXTS, seed=seed)
    scores = decide(policy, sample.contexts, "target")[1]
    if budgets is None:
        budgets = np.linspace(uses.min(), uses[scores.argmax(axis=1)].mean(), _N_BUDGETS).tolist()
    points = []
    rows = np.arange(len(predictions))
    for budget in budgets:
        if budget < uses.min():
            raise InvalidInput(f"a budget must be at least {uses.min():g}, got {budget}")
        (limit,) = fit_limits(scores, [Limit(tuple(uses.tolist()), budget)])
        rewards, spent = np.zeros((2, len(rows)))
        for price, weight in limit.mix_prices(budget):
            arms = (predictions - price * uses).argmax(axis=1)
            rewards += weight * rounds.rewards[rows, arms]
            spent += weight * uses[arms]
        if rounds.values is None:
            estimate, spent_mean = estimate_mean(rewards), float(spent.mean())
        else:
            mean, use_mean = rounds.values.mix.estimate_all(np.column_stack([rewards, spent]))
            estimate, spent_mean = mean.mean, use_mean.mean.value
        interval = estimate.compute_interval(confidence)
        points.append(BudgetPoint(float(budget), spent_mean, estimate.value, *interval))
    return points
