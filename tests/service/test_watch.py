"""The numbers of the page: values from sums, alarms and modes."""

import math

import numpy as np
import pytest

from daband.logs._mean_estimates import (
    compute_effective_size,
    estimate_mean,
    estimate_weighted_mean,
)
from daband.service._event_log import Event, LoggedReward
from daband.service._log_readers import RewardSums, Statistics
from daband.service._settings import Settings
from daband.serving._deployed_policy import load_deployed
from tests.service.conftest import DIM


def test_values_from_sums_are_those_of_all_rounds():
    rng = np.random.default_rng(0)
    weights = rng.choice([0.0, 1.25, 4.0], 500)
    rewards = rng.normal(2.0, 1.0, 500)
    sums = RewardSums()
    for weight, reward in zip(weights, rewards, strict=True):
        sums.add(weight, reward)
    assert sums.n == 500
    assert sums.estimate(1, 0)[:2] == pytest.approx(estimate_mean(rewards)[:2])
    assert sums.estimate(0, 1)[:2] == pytest.approx(estimate_weighted_mean(rewards, weights)[:2])
    assert sums.effective_sample_size == pytest.approx(compute_effective_size(weights))
    played = rewards.mean()
    other = (weights @ rewards) / weights.sum()
    influence = (rewards - played) - weights * (rewards - other) / weights.mean()
    found = sums.estimate(1, -1)
    assert found.value == pytest.approx(played - other)
    assert found.standard_error == pytest.approx(estimate_mean(influence).standard_error, rel=1e-3)


def test_values_of_few_rounds_have_no_interval():
    sums = RewardSums()
    assert math.isnan(sums.estimate(1, 0).value)
    sums.add(0.0, 1.0)
    assert sums.estimate(1, 0)[:2] == (1.0, math.inf)
    sums.add(0.0, 1.0)
    assert not math.isfinite(sums.estimate(0, 1).standard_error)
    assert not math.isfinite(sums.estimate(1, -1).standard_error)


def events(n, *, mode="online", shift=0.0, own=None, incumbent=None, seed=0, first=0):
    rng = np.random.default_rng(seed)
    contexts = rng.normal(size=(n, DIM)) + shift
    arms = rng.integers(3, size=n)
    return [
        Event(
            f"e{first + i}",
            60.0 * i,
            mode,
            "source",
            0,
            int(arms[i]),
            1 / 3,
            int(arms[i]) if own is None else own,
            incumbent,
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


def test_the_incumbents_value_comes_from_rounds_that_played_its_arm(exported):
    seen = watch(exported)
    rows = events(3000, incumbent=1)
    rewards = [float(event.arm == 1) * 0.8 for event in rows]
    seen.add_events(rows)
    seen.add_rewards(logged(rows, rewards))
    found = seen.build_snapshot(0.0)
    assert found["other"]["value"] == pytest.approx(0.8)
    assert found["played"]["low"] < 0.8 / 3 < found["played"]["high"]
    assert found["uplift"]["high"] < 0
    assert found["equal_fraction"] == pytest.approx(1 / 3, abs=0.05)
    assert found["effective_sample_size"] == pytest.approx(sum(event.arm == 1 for event in rows))
    assert found["min_propensity"] == pytest.approx(1 / 3)
    assert sum(played for _, played, _ in found["arms"]) == 3000


def test_an_apprentices_uplift_is_the_models_over_the_incumbents(exported):
    seen = watch(exported, mode="apprentice")
    rows = events(3000, mode="apprentice", own=2)
    seen.add_events(rows)
    seen.add_rewards(logged(rows, [0.9 if event.arm == 2 else 0.3 for event in rows]))
    found = seen.build_snapshot(0.0)
    assert found["other"]["value"] == pytest.approx(0.9)
    assert found["uplift"]["low"] < 0.4 < found["uplift"]["high"]


def test_drift_is_told_within_two_thousand_events(exported):
    seen = watch(exported)
    seen.add_events(events(2000))
    assert seen.build_snapshot(0.0)["shift"]["contexts_changed"] is False
    seen.add_events(events(2000, shift=0.8, seed=1))
    found = seen.build_snapshot(0.0)["shift"]
    assert found["contexts_changed"]
    assert 2000 < found["at_event"] <= 4000


def test_default_rewards_are_counted_apart(exported):
    rows = events(400)
    rewards = np.tile([1.0, 0.0, 1.0, 1.0], 100)
    seen = watch(exported, wait=100.0)
    seen.add_events(rows)
    seen.add_rewards([row for row in logged(rows, rewards) if row.reward])
    seen.add_rewards([row for row in logged(rows, rewards, kind="default") if not row.reward])
    found = seen.build_snapshot(0.0)
    assert (found["given"], found["defaulted"], found["defaulted_fraction"]) == (300, 100, 0.25)
