"""Estimate the value of a policy under limits: ``assess_limits`` assesses it against the incumbent,
and ``budget_curve`` varies one limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from daband.base._arrays import FloatArray
from daband.domains._contract import Pair
from daband.errors import InvalidInput
from daband.features._costs import ArmCosts
from daband.logs._mean_estimates import MeanEstimate, estimate_mean
from daband.policies._policy import Policy
from daband.serving._limits import Limit, Limiter, fit_limits
from daband.trust._assess import (
    Choices,
    SourceRounds,
    TargetContexts,
    get_assessed_source,
    read_source_rounds,
    reassess,
)
from daband.trust._assessment import Assessment
from daband.trust._choose import Choice
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
    >>> [point.budget for point in curve], curve[0].use < 0.1
    ([0.0, 0.1], True)
    """
    policy = getattr(policy, "policy", policy)
    costs = ArmCosts.parse(use, pair.class_names) or pair.costs
    if costs is None or min(costs.means) < 0.0:
        raise InvalidInput(f"use must be at least 0 for each arm, and above 0 for one, got {use}")
    uses = np.array(costs.means)
    rounds, predictions, _, scores = _predict(policy, pair, seed)
    if budgets is None:
        budgets = np.linspace(uses.min(), uses[scores.argmax(axis=1)].mean(), _N_BUDGETS).tolist()

    def estimate(values: FloatArray) -> MeanEstimate:
        """Return the mean of values of the rounds, (n,)."""
        if rounds.values is None:
            return estimate_mean(values)
        return rounds.values.mix.estimate(values).mean

    points = []
    for budget in budgets:
        if budget < uses.min():
            raise InvalidInput(f"a budget must be at least {uses.min():g}, got {budget}")
        (limit,) = fit_limits(scores, [Limit(tuple(uses.tolist()), budget)])
        rewards, spent = np.zeros((2, len(predictions)))
        for price, weight in limit.mix_prices(budget):
            arms = (predictions - price * uses).argmax(axis=1)
            rewards += weight * rounds.get_rewards(arms)
            spent += weight * uses[arms]
        mean = estimate(rewards)
        interval = mean.compute_interval(confidence)
        points.append(BudgetPoint(float(budget), estimate(spent).value, mean.value, *interval))
    return points


def assess_limits(choice: Choice, pair: Pair, limits: Sequence[Limit]) -> Assessment:
    """Return the assessment of a choice's policy under limits, against the choice's incumbent.

    Like the assessment of ``choose``, it is based on the source's rounds. Target rewards are not
    used.

    Args:
        choice: the choice.
        pair: its pair.
        limits: the limits with their prices, of a file that was exported with ``at_most`` or
            ``max_cost``: ``daband.load_deployed(file).limiter.limits``.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> choice = daband.choose(pair, candidates=[daband.trust.Candidate("linucb", "linucb")])
    >>> daband.export(choice.policy, "m.daband", pair=pair, at_most={pair.class_names[0]: 0.05})
    >>> limits = daband.load_deployed("m.daband").limiter.limits
    >>> assessment = daband.trust.assess_limits(choice, pair, limits)
    >>> assessment.target_arms[0] <= 0.07
    True
    """
    policy = choice.policy
    rounds, predictions, target, target_predictions = _predict(policy, pair, 0)
    uses = np.array([limit.use for limit in limits])
    weights, charges = zip(*Limiter(limits).mix_charges(uses), strict=True)
    rng = np.random.default_rng(0)
    arms, target_arms = (
        (means - np.array(charges)[rng.choice(len(weights), len(means), p=weights)]).argmax(axis=1)
        for means in (predictions, target_predictions)
    )
    free = predictions.argmax(axis=1)
    # without limits, the rewards are those of the choice's assessment
    rewards = rounds.get_policy_rewards(free) - rounds.get_rewards(free)
    for weight, charge in zip(weights, charges, strict=True):
        rewards = rewards + weight * rounds.get_rewards((predictions - charge).argmax(axis=1))
    rounds = rounds.with_choices(arms, rewards)
    choices = Choices(arms, predictions, target_arms, target_predictions)
    return reassess(choice.assessment, policy, pair, rounds, target, choices)


def _predict(
    policy: Policy, pair: Pair, seed: int
) -> tuple[SourceRounds, FloatArray, TargetContexts, FloatArray]:
    """Return the rounds on which a policy is assessed, and target contexts, each with the predicted
    rewards (n, K), which are minus infinity for arms that are not offered.
    """
    rounds = read_source_rounds(policy, get_assessed_source(pair, policy), _MAX_CONTEXTS, seed=seed)
    predictions = rounds.decide(policy)[1] if rounds.values is None else rounds.values.predictions
    target = TargetContexts.read(pair.target, _MAX_CONTEXTS, seed=seed)
    scores = decide(policy, target.contexts, "target")[1]
    if policy.catalogue is not None:
        in_source, in_target = policy.catalogue.offered
        predictions = np.where(in_source, predictions, -np.inf)
        scores = np.where(in_target, scores, -np.inf)
    if rounds.logged is not None and rounds.logged.offered is not None:
        predictions = np.where(rounds.logged.offered, predictions, -np.inf)
    return rounds, predictions, target, scores
