"""The numbers of the page: means and alarms."""

import dataclasses
import math

import numpy as np
import pytest

from daband.logs._mean_estimates import estimate_mean
from daband.service import Settings
from daband.service._event_log import Event, LoggedReward
from daband.service._log_readers import RunningMean, Statistics
from daband.serving import load_deployed
from tests.service.conftest import DIM


def test_a_running_mean_is_that_of_all_rewards():
    rewards = np.random.default_rng(0).normal(2.0, 1.0, 500)
    mean = RunningMean()
    for reward in rewards:
        mean.add(reward)
    assert mean.n == 500
    assert mean.estimate()[:2] == pytest.approx(estimate_mean(rewards)[:2])


def test_values_of_few_rounds_have_no_interval():
    mean = RunningMean()
    assert math.isnan(mean.estimate().value)
    mean.add(1.0)
    assert mean.estimate()[:2] == (1.0, math.inf)


def events(n, *, shift=0.0, seed=0):
    rng = np.random.default_rng(seed)
    contexts = rng.normal(size=(n, DIM)) + shift
    arms = rng.integers(3, size=n)
    return [
        Event(
            f"e{i}",
            60.0 * i,
            "online",
            "source",
            0,
            int(arms[i]),
            1 / 3,
            str(contexts[i].tolist()),
            None,
            None,
        )
        for i in range(n)
    ]


def logged(rows, rewards, *, kind="given"):
    return [
        LoggedReward(i + 1, i + 1, float(r), kind, e.time + 1, e)
        for i, (e, r) in enumerate(zip(rows, rewards, strict=True))
    ]


def watch(exported, **settings):
    return Statistics(load_deployed(exported), Settings(**settings))


def test_the_mean_reward_of_the_played_arms_has_an_interval(exported):
    seen = watch(exported)
    rows = events(3000)
    seen.add_events(rows)
    seen.add_rewards(logged(rows, [float(event.arm == 1) * 0.8 for event in rows]))
    found = seen.build_snapshot(0.0)
    assert found["played"]["low"] < 0.8 / 3 < found["played"]["high"]
    assert found["models"][0]["n"] == 3000
    assert found["min_propensity"] == pytest.approx(1 / 3)
    assert sum(played for _, played in found["arms"]) == 3000


def test_drift_is_told_within_two_thousand_events(exported):
    seen = watch(exported)
    seen.add_events(events(2000))
    assert seen.build_snapshot(0.0)["shift"]["contexts_changed"] is False
    seen.add_events(events(2000, shift=0.8, seed=1))
    found = seen.build_snapshot(0.0)["shift"]
    assert found["contexts_changed"]
    assert 2000 < found["at_event"] <= 4000


def test_the_curve_of_the_lift_ends_with_the_lift(exported):
    seen = watch(exported)
    rows = [
        dataclasses.replace(event, control=0.5, mode=mode)
        for event, mode in zip(events(400), ["control", "online"] * 200, strict=True)
    ]
    rewards = logged(rows, np.random.default_rng(0).random(400))
    seen.add_events(rows)
    for start in range(0, 400, 200):  # the rewards of these events arrive in two batches
        seen.add_rewards(rewards[start : start + 200])
    lift = seen.build_snapshot(0.0)["lift"]
    assert lift["policy"] + lift["control"] == 400
    assert lift["curve"] == [(400, lift["value"], lift["low"], lift["high"])]


def test_default_rewards_are_counted_apart(exported):
    rows = events(400)
    rewards = np.tile([1.0, 0.0, 1.0, 1.0], 100)
    seen = watch(exported, wait=100.0)
    seen.add_events(rows)
    seen.add_rewards([row for row in logged(rows, rewards) if row.reward])
    seen.add_rewards([row for row in logged(rows, rewards, kind="default") if not row.reward])
    found = seen.build_snapshot(0.0)
    assert (found["given"], found["defaulted"], found["defaulted_fraction"]) == (300, 100, 0.25)
