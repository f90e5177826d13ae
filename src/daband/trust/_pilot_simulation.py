"""Simulate many pilots at once, for the plan of a pilot."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from daband.base._arrays import FloatArray, IntArray
from daband.logs._controlled_trial import Moments, TrialRule

#: Codes of decisions.
GO_ON, DEPLOY, KEEP, LIMIT = range(4)
#: The fraction of the policy for the rule, the rewards so far, and the number of rounds.
ChooseFraction = Callable[[TrialRule, Moments, float], FloatArray]


class WeekRewards(NamedTuple):
    """The rounds of a week in which policy and incumbent differ, in R pilots."""

    #: Number of rounds of the policy, (R,).
    n_policy: FloatArray
    #: Number of rewards of the policy and the incumbent, (R, 2).
    counts: FloatArray
    #: Their sums, (R, 2).
    sums: FloatArray
    #: Sums of their squares, (R, 2).
    squares: FloatArray
    #: Expected loss in a round of the policy, (R,).
    loss: FloatArray


class Courses(NamedTuple):
    """The courses of R simulated pilots."""

    #: Codes of the decisions, (R,).
    decisions: IntArray
    #: Weeks until the decision, or all weeks without one, (R,).
    weeks: IntArray
    #: Expected loss until the end of each week; negative for a gain, (R, W).
    costs: FloatArray


def simulate_pilots(
    rule: TrialRule,
    draw: Callable[[int, FloatArray], WeekRewards],
    *,
    n_pilots: int,
    rounds_per_week: float,
    n_weeks: int,
    delay: int = 0,
    choose_fraction: ChooseFraction = TrialRule.choose_fraction,
) -> Courses:
    """Return the courses of pilots.

    Args:
        rule: the settings.
        draw: returns the rewards of a week for the fractions (R,) of the policy.
        n_pilots: number of pilots, R.
        rounds_per_week: rounds in a week in which policy and incumbent differ.
        n_weeks: number of planned weeks.
        delay: weeks until rewards arrive.
        choose_fraction: returns the fractions of the policy in the next week.
    """
    fractions = np.zeros((n_pilots, n_weeks))
    n_policy = np.zeros((n_pilots, n_weeks))
    #: counts, sums and squares
    moments = np.zeros((3, n_pilots, n_weeks, 2))
    decisions = np.zeros(n_pilots, np.int64)
    weeks = np.full(n_pilots, n_weeks)
    costs = np.zeros((n_pilots, n_weeks))
    for week in range(n_weeks):
        seen = max(week - delay, 0)
        past = _read_weeks(fractions, n_policy, moments, seen, max(week, 1))
        is_active = decisions == GO_ON
        fraction = np.where(is_active, choose_fraction(rule, past, rounds_per_week), 0.0)
        has_missing = n_policy[:, seen:week].any(axis=1)
        is_futile = rule.is_futile(past, fraction, (n_weeks - week) * rounds_per_week)
        fraction = np.where(is_futile, 0.0, fraction)
        decisions[is_active & is_futile & ~has_missing] = LIMIT
        weeks[is_active & (decisions == LIMIT)] = week
        fractions[:, week] = fraction
        rewards = draw(week, fraction)
        n_policy[:, week] = rewards.n_policy
        moments[:, :, week] = rewards[1:4]
        costs[:, week:] += (rewards.n_policy * rewards.loss)[:, None]
        seen = max(week + 1 - delay, 0)
        past = _read_weeks(fractions, n_policy, moments, seen, max(seen, 1))
        is_active = decisions == GO_ON
        is_better, is_worse = rule.decide(past)
        decisions[is_active & is_better] = DEPLOY
        decisions[is_active & is_worse] = KEEP
        weeks[is_active & (decisions != GO_ON)] = week + 1
        if (decisions != GO_ON).all():
            break
    return Courses(decisions, weeks, costs)


def _read_weeks(
    fractions: FloatArray,
    n_policy: FloatArray,
    rewards: FloatArray,
    seen: int,
    n_weeks: int,
) -> Moments:
    """Return the moments of ``n_weeks`` with the rewards (3, R, W, 2) of the first ``seen``."""
    is_seen = (np.arange(n_weeks) < seen)[:, None]
    counts, sums, squares = rewards[:, :, :n_weeks] * is_seen
    return Moments(fractions[:, :n_weeks], n_policy[:, :n_weeks], counts, sums, squares)
