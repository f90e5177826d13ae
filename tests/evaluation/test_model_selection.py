import math

import numpy as np
import pytest

import daband
from daband.errors import InvalidInput
from daband.evaluation._model_selection import (
    CRITERIA,
    SourceHistory,
    criteria,
    mutual_information,
    prediction_entropy,
)


def test_entropy_and_mutual_information_by_hand():
    sure = np.array([[1.0, 0.0], [0.0, 1.0]])
    unsure = np.full((4, 2), 0.5)
    collapsed = np.array([[1.0, 0.0]] * 5)
    assert prediction_entropy(sure) == prediction_entropy(collapsed) == 0.0
    assert prediction_entropy(unsure) == pytest.approx(math.log(2))
    assert mutual_information(sure) == pytest.approx(math.log(2))
    assert mutual_information(unsure) == pytest.approx(0.0)
    assert mutual_information(collapsed) == pytest.approx(0.0)  # confident, but about one arm: no information


@pytest.fixture(scope="module")
def trained():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    pair = daband.domains.from_arrays(
        source=(x, y), source_test=None, target=x[:500] + 0.1, target_test=(x[:50], y[:50])
    )
    policy = daband.LinUCB(context_shape=(4,), n_arms=2, seed=0)
    run = daband.train(policy, source=pair.source, target=pair.target, episodes=10, episode_length=50)
    return pair, policy, run


def test_the_held_out_reward_is_that_of_rounds_not_trained_on(trained):
    pair, policy, run = trained
    values = criteria(policy, source=pair.source, target=pair.target, history=SourceHistory(run.reward, 0))
    rounds = pair.source.rounds(500, 900, seed=0)
    arm = policy.decide(rounds.contexts, "source", rule="greedy").arm
    assert values["source-validation"] == pytest.approx(rounds.pay(arm).mean())
    assert set(values) == set(CRITERIA)


def test_without_rounds_left_the_reward_is_progressive(trained):
    pair, policy, run = trained
    used_up = np.concatenate([run.reward, np.linspace(0, 1, 350)])
    values = criteria(policy, source=pair.source, target=pair.target, history=SourceHistory(used_up, 0))
    assert values["source-validation"] == pytest.approx(used_up[-212:].mean())


def test_a_log_counts_by_propensity():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3)).astype(np.float32)
    arm = (rng.random(600) < 0.8).astype(int)
    reward = (arm == (x[:, 0] > 0)).astype(float)
    propensity = np.where(arm == 0, 0.2, 0.8)
    pair = daband.domains.from_log(
        source_test=None, source=(x, arm, reward, propensity), target=x, target_test=(x, arm), n_arms=2
    )
    log = pair.source
    policy = daband.LinUCB(context_shape=(3,), n_arms=2, seed=0)
    run = daband.train(policy, source=log, episodes=4, episode_length=50)
    values = criteria(policy, source=log, target=pair.target, history=SourceHistory(run.reward, 0))
    rounds = log.rounds(200, 600, seed=0)
    agrees = policy.decide(rounds.contexts, "source", rule="greedy").arm == rounds.arms
    share = agrees / rounds.propensities
    assert values["source-validation"] == pytest.approx((share * rounds.rewards).sum() / share.sum())
    assert values["source-validation"] > 0.9


def test_held_out_rounds_that_are_listed_class_by_class_are_all_looked_at():
    labels = np.repeat(np.arange(4), 1500)  # sorted, as folders of images are
    contexts = np.eye(4)[labels]
    pair = daband.domains.from_arrays(source=(contexts, labels), target=contexts, source_test=0.5)
    policy = daband.Constant(context_shape=(4,), n_arms=4, seed=0)
    policy.update(contexts[:40], np.zeros(40, int), np.ones(40))  # always arm 0: right for a quarter
    history = SourceHistory(np.zeros(40), 0)
    given = {"source": pair.source, "target": pair.target, "history": history, "source_test": pair.source_test}
    assert criteria(policy, **given, contexts=400)["source-validation"] == pytest.approx(0.25, abs=0.05)


def test_the_rewards_of_a_log_are_not_those_of_the_policy():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(250, 3))
    pair = daband.domains.from_log(
        source_test=None, source=(x, np.zeros(250, int), rng.random(250), np.ones(250)), target=x, n_arms=2
    )
    policy = daband.LinUCB(context_shape=(3,), n_arms=2, seed=0)
    run = daband.train(policy, source=pair.source, episodes=5, episode_length=50)
    values = criteria(policy, source=pair.source, target=pair.target, history=SourceHistory(run.reward, 0))
    assert values["source-validation"] is None


def test_measuring_changes_nothing():
    pair = daband.domains.load("synthetic")
    policy = daband.DABand(context_shape=pair.context_shape, n_arms=pair.n_arms, seed=0, device="cpu", recipe="small")
    run = daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=32)
    before = policy.decide(pair.target.batch(0, 8, seed=0), "target").mean
    values = criteria(
        policy, source=pair.source, target=pair.target, history=SourceHistory(run.reward, 0), contexts=300
    )
    assert all(value is not None and math.isfinite(value) for value in values.values())
    np.testing.assert_array_equal(policy.decide(pair.target.batch(0, 8, seed=0), "target").mean, before)


def test_target_rewards_cannot_be_given(trained):
    pair, policy, run = trained
    for domain in (pair.source, pair.target_test, pair.target_labelled):
        with pytest.raises(InvalidInput, match="target contexts without rewards"):
            criteria(policy, source=pair.source, target=domain, history=SourceHistory(run.reward, 0))


def test_validation_uses_the_rounds_that_were_held_out():
    """Labels of the held-out rounds decide, though the source itself is used up."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(400, 4))
    labels = (x[:, 0] > 0).astype(int)
    pair = daband.domains.from_arrays(source=(x, labels), target=x, source_test=(x[:150], 1 - labels[:150]))
    policy = daband.LinUCB.for_pair(pair)
    run = daband.train(policy, source=pair.source, target=pair.target, episodes=6)
    asked = {"source": pair.source, "target": pair.target, "history": SourceHistory(run.reward, 0)}
    turned = criteria(policy, **asked, source_test=pair.source_test)["source-validation"]
    assert turned < 0.2  # every label of these rounds is wrong on purpose
    assert criteria(policy, **asked)["source-validation"] > 0.8
