import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import daband
from daband.features._catalogue import Catalogue
from daband.neural import EncoderSettings, LearningSettings, Recipe, Weight, recipe_for
from daband.neural.daband import DABand
from daband.neural.neural_linucb import NeuralLinUCB

SHAPE = (5,)
ARMS = 3


def small(**changes):
    """A recipe that is quick on vectors of five numbers, with every kind of term."""
    weights = {
        "source_cross_entropy": Weight(1.0),
        "regression_error": Weight(0.5),
        "predicted_reward": Weight(0.05),
        "data_divergence": Weight(0.3, ramp=50),
        "target_diversity": Weight(0.1),
        "pseudo_labels": Weight(0.5, start=5),
    }
    base = Recipe(
        weights=weights,
        encoder=EncoderSettings(name="mlp", options={"widths": (16,)}),
        learning=LearningSettings(steps=4, batch=16, gate_exponent=1.0, max_frequency_ratio=1.0),
    )
    return replace(base, **changes)


def make(kind=DABand, seed=0, **settings):
    common = {
        "context_shape": SHAPE,
        "n_arms": ARMS,
        "seed": seed,
        "device": "cpu",
        "recipe": small(),
    }
    return kind(**{**common, "standardise_rewards": False, **settings})


def problem(n, seed=0, shift=0.0):
    rng = np.random.default_rng(seed)
    contexts = rng.normal(size=(n, *SHAPE)) + shift
    labels = (np.abs(contexts[:, :ARMS] - shift)).argmax(axis=1)
    return contexts.astype(np.float32), np.eye(ARMS)[labels]


def trained(policy, episodes=3, target=True, start=0):
    for episode in range(start, start + episodes):
        contexts, rewards = problem(32, seed=episode)
        policy.play(contexts, rewards)
        if target:
            policy.observe_target(problem(32, seed=1000 + episode, shift=1.0)[0])
        policy.adapt()
    return policy


def fingerprint(policy):
    return {name: array.tobytes() for name, array in policy._state().items()}


def test_with_the_source_regret_alone_daband_is_neural_linucb_to_the_bit():
    alone = small().source_only()
    zeroed = replace(
        small(), weights={name: Weight(0.0) for name in small().weights} | alone.weights
    )
    ours = make(recipe=alone)
    theirs = make(NeuralLinUCB, recipe=alone)
    third = make(recipe=zeroed)
    for policy in (ours, theirs, third):
        trained(policy)
    assert fingerprint(ours) == fingerprint(theirs) == fingerprint(third)


def test_without_target_contexts_daband_warns_and_is_neural_linucb():
    recipe = small(learning=LearningSettings(steps=4, batch=16))
    policy = make(recipe=recipe)
    with pytest.warns(UserWarning, match="target .*observe_target"):
        trained(policy, target=False)
    reference = trained(make(NeuralLinUCB, recipe=recipe.source_only()), target=False)
    contexts, _ = problem(20, seed=99)
    ours = policy.decide(contexts)
    theirs = reference.decide(contexts)
    # R needs no target and stays on; without it the two are the same.
    assert not np.array_equal(ours.mean, theirs.mean)
    bare = replace(
        recipe, weights={n: w for n, w in recipe.weights.items() if n != "regression_error"}
    )
    with pytest.warns(UserWarning, match="target .*observe_target"):
        policy = trained(make(recipe=bare), target=False)
    assert np.array_equal(policy.decide(contexts).mean, theirs.mean)


def test_every_round_is_counted_once_however_often_it_is_replayed():
    policy = trained(make(), episodes=5)
    assert policy.counts.sum() == 5 * 32
    policy.adapt(steps=50)
    assert policy.counts.sum() == 5 * 32


def test_it_learns_what_linear_policies_cannot():
    policy = make(
        recipe=small(learning=LearningSettings(steps=32, batch=32), alpha=0.3), feedback="one_hot"
    )
    trained(policy, episodes=12)
    contexts, rewards = problem(300, seed=77)
    linear = daband.LinUCB(context_shape=SHAPE, n_arms=ARMS, alpha=0.3)
    trained(linear, episodes=12)
    share = {
        p.name: rewards[np.arange(300), p.decide(contexts).arm].mean() for p in (policy, linear)
    }
    assert share["daband"] > share["linucb"] + 0.15


@pytest.mark.parametrize("feedback", ["one_hot", "bandit"])
@pytest.mark.parametrize("arms", ["disjoint", "shared"])
def test_both_arm_models_and_both_reveal_rules_train(arms, feedback):
    rng = np.random.default_rng(0)
    shape = (ARMS, *SHAPE) if arms == "shared" else SHAPE
    policy = make(arms=arms, feedback=feedback)
    for _ in range(3):
        policy.play(rng.normal(size=(16, *shape)), rng.integers(0, 2, (16, ARMS)).astype(float))
        policy.observe_target(rng.normal(size=(16, *shape)))
        measured = policy.adapt()
    assert math.isfinite(measured["loss"])


def test_an_encoder_trained_with_arm_features_scores_new_arms_that_linear_policies_cannot():
    draw = np.random.default_rng(0)
    features = draw.normal(size=(24, 2))
    catalogue = Catalogue.fit([str(arm) for arm in range(24)], features)
    contexts = draw.normal(size=(2000, 3))
    arms = draw.integers(0, 18, 2000)  # six arms are new
    expected = np.sign(contexts[:, :1] * contexts[:, 1:2]) * features[:, 0]  # (rounds, arms)
    correlations = []
    for kind, settings in (
        (daband.LinUCB, {}),
        (NeuralLinUCB, {"recipe": "small", "device": "cpu"}),
    ):
        policy = kind(context_shape=(3,), n_arms=24, catalogue=catalogue, seed=0, **settings)
        for start in range(0, 1600, 100):
            rows = slice(start, start + 100)
            policy.update(
                contexts[rows], arms[rows], expected[np.arange(start, start + 100), arms[rows]]
            )
            policy.adapt()
        mean = policy.decide(contexts[1600:]).mean[:, 18:]
        correlations.append(np.corrcoef(mean.ravel(), expected[1600:, 18:].ravel())[0, 1])
    assert correlations[0] < 0.3
    assert correlations[1] > 0.6


def test_images_of_bytes_train_and_images_of_floats_may_follow():
    rng = np.random.default_rng(0)
    recipe = recipe_for("default", context_shape=(1, 16, 16))
    recipe = replace(
        recipe,
        encoder=EncoderSettings(name="conv", options={"channels": (4,)}),
        learning=replace(recipe.learning, steps=2, batch=8),
    )
    policy = DABand(context_shape=(1, 16, 16), n_arms=2, recipe=recipe, device="cpu")
    images = rng.integers(0, 256, (20, 1, 16, 16), dtype=np.uint8)
    policy.play(images, rng.integers(0, 2, (20, 2)).astype(float))
    assert policy.buffers.rounds[0].contexts.dtype == torch.uint8
    policy.observe_target(images)
    assert math.isfinite(policy.adapt()["loss"])
    np.testing.assert_allclose(
        policy.decide(images).mean, policy.decide((images / 255).astype(np.float32)).mean, atol=1e-5
    )
    policy.play((images / 255).astype(np.float32), rng.integers(0, 2, (20, 2)).astype(float))
    assert math.isfinite(policy.adapt()["loss"])


def test_one_hot_feedback_learns_rewards_between_the_ends_as_bandit_feedback():
    policy = make(feedback="one_hot")
    contexts, rewards = problem(32)
    policy.play(contexts, rewards)
    policy.update(contexts[:8], np.zeros(8, int), np.full(8, 0.37))  # the mean of several answers
    policy.observe_target(contexts)
    assert math.isfinite(policy.adapt()["loss"])
    assert policy.rounds_learned == 40
    assert policy.reward_moments.scale == 1.0


def test_the_unit_of_rewards_changes_no_decision_of_bandit_feedback():
    arms = []
    for scale, offset in ((1.0, 0.0), (250.0, -40.0)):
        policy = make(seed=3, standardise_rewards=True)
        for episode in range(4):
            contexts, rewards = problem(32, seed=episode)
            policy.play(contexts, offset + scale * rewards)
            policy.observe_target(problem(32, seed=100 + episode, shift=1.0)[0])
            policy.adapt()
        mean = policy.decide(problem(64, seed=9)[0], "target").mean
        arms.append((mean - offset) / scale)
    np.testing.assert_allclose(*arms, atol=1e-3)


def test_a_warning_that_is_an_error_leaves_no_half_learned_round():
    policy = NeuralLinUCB(context_shape=(3, 20, 20), n_arms=2, recipe="small", device="cpu")
    with pytest.raises(UserWarning, match="uint8"):  # the tests turn warnings into errors
        policy.update(np.full((2, 3, 20, 20), 200.0), [0, 1], [1.0, 0.0])
    assert policy.counts.sum() == len(policy.buffers.rounds[0]) == policy.rounds_learned == 0


def test_full_rewards_of_a_target_determine_the_worth_of_source_rounds():
    policy = trained(make(NeuralLinUCB))
    assert policy.source_worth.worth == 1.0
    contexts, rewards = problem(40)
    policy.learn_full(contexts, rewards, "source")
    assert policy.source_worth.worth == 1.0
    policy.learn_full(contexts, rewards, "target")
    assert policy.source_worth.worth != 1.0
