"""Estimates from the ledger, against simulated truth."""

import numpy as np
import pytest

import daband
from daband.ledger._evidence import estimate_gains
from daband.rounds._rounds import Rounds
from tests.ledger.conftest import run_week


def test_the_lift_of_what_ran_is_near_the_truth(quick_folder):
    path, frame = run_week(quick_folder, 0, call=0.9, letter=0.1, n=2000)
    policy = daband.load(quick_folder / "policy.safetensors")
    deployed = daband.load_deployed(quick_folder.parent / "market.daband")
    with daband.open_market(quick_folder) as market:
        market.learn(path)
        (record,) = market.history()
    greedy = policy.decide(policy.table.contexts(frame), "target", rule="greedy").arm
    calls = np.array(deployed.arm_names)[greedy] == "call"
    # a fifth of the rows is drawn at random
    truth = 0.8 * (0.8 * calls.mean() + 0.2 * 0.5)
    low, high = record.lift.compute_interval(0.999)
    assert low < truth < high
    assert high - low < 0.2
    outside = frame.filter(frame["role"] != "control")
    assert record.mean.value == pytest.approx(outside["reward"].mean())
    inside = frame.filter(frame["role"] == "control")
    assert record.control_mean.value == pytest.approx(inside["reward"].mean())
    assert (record.decisions, record.rewards) == (2000, 2000)
    assert record.control_rewards == len(inside)
    letter, call = (record.arm_means[deployed.arm_names.index(name)] for name in ("letter", "call"))
    assert letter.value == pytest.approx(0.1, abs=0.05)
    assert call.value == pytest.approx(0.9, abs=0.05)
    assert 0.0 < record.explored < 0.2


def test_a_version_that_learns_the_better_arm_is_recommended(quick_folder):
    path, _ = run_week(quick_folder, 0, call=0.9, letter=0.1, n=1000)
    with daband.open_market(quick_folder) as market:
        lesson = market.learn(path)
        if lesson.gain.value >= 0.0:
            assert (lesson.version, lesson.action) == (1, "export")
        else:
            assert (lesson.version, lesson.action) == (0, "go on")
        assert lesson.running == 0
        assert lesson.assessment.verdict == "deploy"
        assert lesson.assessment.log_rounds == 1000


def test_a_policy_that_is_worse_than_the_incumbent_goes_back(quick_folder):
    path, _ = run_week(quick_folder, 0, call=0.0, letter=0.9, n=1000)
    with daband.open_market(quick_folder) as market:
        before = market.assess()
        lesson = market.learn(path)
        assert before.verdict != "keep the incumbent"
        assert lesson.history[0].lift.compute_interval(0.95)[1] < 0.0
        assert lesson.assessment.verdict == "keep the incumbent"
        assert lesson.action == "go back to the incumbent"
        # the new version, which has learned it, chooses the letter more often
        assert lesson.gain.value > 0.0


def estimate_gain(policy, rounds):
    """Return the gain over arm 0 of the version that learns the rounds."""
    incumbents = np.zeros(len(rounds), int)
    is_new = np.ones(len(rounds), bool)
    return estimate_gains(policy, policy, rounds, incumbents, is_new).over_incumbent


@pytest.mark.parametrize("has_clusters", [False, True])
def test_the_gain_in_a_learned_log_is_not_that_of_a_fit_to_its_noise(has_clusters):
    """Arms do not differ, so a fit to the learned rounds would show a gain."""
    rng = np.random.default_rng(3)
    gains = []
    for _ in range(20):
        contexts = rng.normal(size=(120, 8))
        arms = rng.integers(3, size=120)
        clusters = np.repeat(np.arange(60), 2) if has_clusters else None
        rounds = Rounds(
            contexts, arms, rng.normal(size=120), np.full(120, 1 / 3), clusters=clusters
        )
        policy = daband.LinUCB(context_shape=(8,), n_arms=3, alpha=0.0)
        gains.append(estimate_gain(policy, rounds))
        assert policy.rounds_learned == 0
    scores = np.array([gain.value / gain.standard_error for gain in gains])
    assert abs(scores.mean()) < 0.6
    assert 0.5 < scores.std() < 1.5


def test_a_log_without_the_incumbents_arm_shows_no_gain():
    contexts = np.zeros((30, 2))
    rounds = Rounds(contexts, np.ones(30, int), np.ones(30), np.ones(30))
    policy = daband.LinUCB(context_shape=(2,), n_arms=2, alpha=0.0)
    assert estimate_gain(policy, rounds).standard_error == np.inf
