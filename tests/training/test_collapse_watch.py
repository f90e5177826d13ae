"""Each of the three ways to collapse, provoked in real training."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import daband
from daband.neural._settings import EncoderSettings, LearningSettings, Recipe, Weight
from daband.neural.daband import DABand
from daband.neural.encoders._encoder import DenseSettings
from daband.training._collapse_watch import CollapseWarning, CollapseWatch

pytestmark = pytest.mark.slow
BASE = Recipe(
    weights={"source_cross_entropy": Weight(1.0)},
    encoder=EncoderSettings(
        name="mlp", options={"widths": (16,)}, dense=DenseSettings(dimension=8, hidden=16)
    ),
    learning=LearningSettings(steps=16, batch=32, learning_rate=3e-3, ema_decay=0.0),
    alpha=0.5,
)


def run(recipe, shift=0.5, episodes=28):
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(1280, 4)).astype(np.float32)
    labels = np.abs(contexts[:, :3]).argmax(axis=1)
    moved = contexts[::-1].copy() + np.float32(shift)
    pair = daband.domains.from_arrays(
        source=(contexts, labels),
        source_test=None,
        target=moved,
        target_test=(moved, labels[::-1].copy()),
    )
    policy = DABand(context_shape=(4,), n_arms=3, recipe=recipe, feedback="one_hot", device="cpu")
    return daband.train(
        policy, source=pair.source, target=pair.target, episodes=episodes, episode_length=32
    )


def weighed(**weights):
    return BASE.with_weights(**weights)


def test_healthy_training_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error", CollapseWarning)
        record = run(weighed(regression_error=0.1)).episodes[-1]
    terms = [value for name, value in record.items() if name.startswith("bound_")]
    assert len(terms) == 6
    assert np.isfinite(terms).all()
    # without a discriminator it is unknown
    assert not {"bound_divergence", "bound_total"} & record.keys()
    assert record["bound_rounds"] == 28 * 32
    assert record["bound_source_regret"] == record["regret"]


def said_in(recipe, **settings):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(recipe, **settings)
    return " ".join(str(entry.message) for entry in caught if entry.category is CollapseWarning)


def test_a_perfect_discriminator_is_reported():
    network = EncoderSettings(name="mlp", options={"statistics": "source", "widths": (16,)})
    assert "discriminator perfect" in said_in(
        replace(weighed(adversarial=1e-6), encoder=network), shift=5.0
    )


def test_latents_that_became_one_point_are_reported():
    recipe = weighed(predicted_reward_target_choice=50.0)
    assert "features nearly equal" in said_in(recipe, episodes=40)


def test_every_sign_is_said_once():
    watch = CollapseWatch(patience=2)
    record = {"target_top_share": 1.0, "latent_spread": 0.5}
    said = [watch.observe(record) for _ in range(4)]
    assert [len(messages) for messages in said] == [0, 1, 0, 0]
    assert "predicted_reward" in said[1][0]
    assert watch.observe({}) == []
