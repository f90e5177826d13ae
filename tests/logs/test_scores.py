"""Doubly robust scores: their formula, their reward models, and that no model sees its rounds."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import daband
from daband.base._folds import assign_folds
from daband.errors import InvalidInput
from daband.logs._scores import (
    Scores,
    SplitScores,
    build_feature_map,
    compute_doubly_robust_scores,
)
from daband.rounds._rounds import Rounds

MODELS = ("ridge", "piecewise", "trees", Ridge(1.0))


def draw(n=1200, *, seed=0, **columns):
    """Return rounds of three arms with uniform propensities, and the expected rewards (n, 3)."""
    rng = np.random.default_rng(seed)
    contexts = rng.normal(size=(n, 3))
    means = np.abs(contexts[:, :1]) + contexts[:, 1:2] * [1.0, 0.0, -1.0] + [0.0, 0.3, 0.0]
    arms = rng.integers(0, 3, n)
    rewards = means[np.arange(n), arms] + 0.5 * rng.normal(size=n)
    return Rounds(contexts, arms, rewards, np.full(n, 1 / 3), **columns), means


def test_scores_are_predictions_corrected_by_the_logged_reward():
    predicted = np.array([[0.5, 0.2], [0.1, 0.4]])
    found = compute_doubly_robust_scores(
        predicted, np.array([1, 0]), np.array([1.0, 0.0]), np.array([0.25, 0.5])
    )
    np.testing.assert_allclose(found, [[0.5, 0.2 + 4 * 0.8], [0.1 - 2 * 0.1, 0.4]])


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_the_scores_of_every_model_average_to_the_values_of_the_arms(model):
    rounds, means = draw()
    scores = Scores(rounds, 3, model=model)
    errors = (scores.values - means).mean(axis=0)
    assert np.abs(errors).max() < 4.0 * (scores.values - means).std(axis=0).max() / 1200**0.5
    contexts = draw(seed=1)[0].contexts
    assert np.corrcoef(scores.predict(contexts)[:, 0], draw(seed=1)[1][:, 0])[0, 1] > 0.5


def test_piecewise_regressions_predict_better_than_linear_ones_if_rewards_are_not_linear():
    rounds, means = draw()
    errors = [
        np.square(Scores(rounds, 3, model=model).predictions - means).mean()
        for model in ("piecewise", "ridge")
    ]
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("excluded", [None, 2])
def test_no_model_sees_the_fold_that_it_predicts_nor_an_excluded_one(model, excluded):
    rounds, _ = draw(300)
    folds = assign_folds(300)
    rewards = np.where(folds == (excluded or 1), rounds.rewards[::-1], rounds.rewards)
    changed = Rounds(rounds.contexts, rounds.arms, rewards, rounds.propensities)
    split, other = (SplitScores(rounds.contexts, log, folds, 3, model) for log in (rounds, changed))
    before, after = split.predict(excluded), other.predict(excluded)
    unchanged = split.folds == 1 if excluded is None else split.folds != excluded
    # bounds of predictions and the fallback for few rounds may depend on all rewards
    np.testing.assert_allclose(before[unchanged], after[unchanged], atol=1e-9)
    assert np.abs(split.predict() - other.predict()).max() > 1e-3


def test_folds_are_by_cluster_and_the_score_of_an_arm_that_was_not_offered_is_the_reward():
    clusters = np.random.default_rng(0).integers(0, 40, 400)
    offered = np.ones((400, 3), np.bool_)
    plain, _ = draw(400)
    offered[plain.arms != 2, 2] = False
    rounds, _ = draw(400, clusters=clusters, offered=offered)
    scores = Scores(rounds, 3)
    for split in scores.splits:
        assert all(len(set(split.folds[clusters == cluster])) == 1 for cluster in set(clusters))
    assert (scores.values[~offered[:, 2], 2] == rounds.rewards[~offered[:, 2]]).all()


def test_one_question_has_one_answer():
    """The gap between two arms, of rounds in any order, with contexts that a policy transforms."""
    rounds, _ = draw(800)
    log = (1e3 + 50.0 * rounds.contexts, rounds.arms, rounds.rewards, rounds.propensities)
    values = [
        daband.evaluate_log(lambda x, arm=arm: np.eye(3)[np.full(len(x), arm)], log).value
        for arm in (0, 1)
    ]
    pair = daband.domains.from_log(
        source=tuple(column[::-1] for column in log), target=log[0], n_arms=3, source_test=0.0
    )
    policy = daband.LogPolicy.for_pair(pair, seed=0, by_context=False)
    daband.train(policy, source=pair.source)
    found = policy.values.scores.mean(axis=0)
    assert found[1] - found[0] == pytest.approx(values[1] - values[0], abs=1e-9)
    assessment = daband.assess(policy, source=pair.source, target=pair.target, incumbent=0)
    best = int(policy.values.source_arm)
    assert assessment.source_advantage == pytest.approx(found[best] - found[0], abs=1e-9)


def test_few_rounds_are_predicted_by_their_mean():
    rounds, _ = draw(9)
    np.testing.assert_allclose(Scores(rounds, 3).predictions, rounds.rewards.mean())


def test_long_contexts_are_reduced():
    rng = np.random.default_rng(4)
    images = rng.integers(0, 255, (80, 3, 16, 16), np.uint8)
    others = rng.random((90, 3, 16, 16))
    to_features = build_feature_map(images)
    assert to_features(images).shape == (80, 64)
    assert to_features(others).shape == (90, 64)


@pytest.mark.parametrize("model", ["forest", 3])
def test_unknown_reward_models(model):
    with pytest.raises(InvalidInput, match=r"model .*(ridge|fit)"):
        Scores(draw(50)[0], 3, model=model)


def test_a_column_that_is_constant_in_the_first_rounds_is_used():
    """A policy sorts its rounds, so the first thousands may have the same value of a column."""
    rng = np.random.default_rng(0)
    contexts = np.column_stack([np.repeat([0.0, 1.0], 4500), rng.normal(size=9000)])
    arms = rng.integers(0, 2, 9000)
    rewards = contexts[:, 0] + 0.1 * rng.normal(size=9000)
    rounds = Rounds(contexts, arms, rewards, np.full(9000, 0.5))
    predictions = Scores(rounds, 2).predictions
    assert np.square(predictions - contexts[:, :1]).mean() < 0.01
