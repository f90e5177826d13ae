import numpy as np
import pytest
import torch

import daband
from daband.errors import InvalidInput
from daband.neural import EncoderSettings, LearningSettings, ReplaySettings
from daband.neural.daband import DABand
from daband.policies import load_policy
from tests.neural.test_neural_linucb import ARMS, fingerprint, make, problem, small, trained


def test_a_saved_policy_goes_on_as_if_it_never_stopped(tmp_path):
    unbroken = trained(make(), episodes=6)
    trained(make(), episodes=3).save(tmp_path / "p.safetensors")
    resumed = trained(load_policy(tmp_path / "p.safetensors"), episodes=3, start=3)
    assert fingerprint(resumed) == fingerprint(unbroken)
    assert isinstance(resumed, DABand)
    assert resumed.recipe == unbroken.recipe


def test_an_arm_added_later_can_be_chosen_and_saved(tmp_path):
    policy = trained(make())
    assert policy.add_arm() == ARMS
    rng = np.random.default_rng(1)
    policy.play(problem(32, seed=8)[0], rng.random((32, ARMS + 1)))
    policy.adapt()
    policy.save(tmp_path / "p.safetensors")
    contexts, _ = problem(5)
    assert np.array_equal(
        load_policy(tmp_path / "p.safetensors").decide(contexts).mean, policy.decide(contexts).mean
    )


def test_nonsense_is_refused():
    for wrong, message in (
        ({"recipe": "defualt"}, "'defualt'.*'default'"),
        ({"recipe": {"weight": {}}}, "'weight'"),
        ({"feedback": "labels"}, "feedback .*'labels'"),
        ({"device": "tpu9"}, "device"),
        ({"recipe": {"learning": {"prior": "even"}}}, r"'learning\.prior'"),
        ({"recipe": small(encoder=EncoderSettings(name="conv"))}, "images"),
    ):
        with pytest.raises(InvalidInput, match=message):
            make(**wrong)
    for settings in (
        {"batch": 0},
        {"learning_rate": 0.0},
        {"ema_decay": 1.0},
        {"scale": 0.0},
        {"steps": -1},
    ):
        with pytest.raises(InvalidInput):
            LearningSettings(**settings)
    for settings in ({"sampling": "some"}, {"capacity": 0}, {"capacity": -1}):
        with pytest.raises(InvalidInput):
            ReplaySettings(**settings)


def test_building_a_policy_leaves_other_peoples_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    make()
    assert torch.equal(torch.rand(3), expected)


def test_a_run_of_few_episodes_takes_more_steps_in_each(tmp_path):
    contexts = np.random.default_rng(0).normal(size=(64, 3))
    for n_arms, episodes, steps in (
        (2, 64, 8),
        (2, 16, 16),
        (3, 500, 8),
        (3, 64, 16),
        (5, 64, 16),
        (3, 4, 32),
    ):
        policy = daband.DABand(context_shape=(3,), n_arms=n_arms, shift="covariate", device="cpu")
        policy.plan(episodes)
        assert policy.learner.run_steps == steps * episodes
        policy.update(contexts, [0, 1] * 32, [1.0, 0.0] * 32)
        policy.adapt()
        assert policy.learner.step_number == steps
        policy.save(tmp_path / "p.safetensors")
        again = daband.load(tmp_path / "p.safetensors")
        again.plan(7)  # a run that goes on keeps its plan
        again.adapt()
        assert again.learner.step_number == 2 * steps
    images = daband.DABand(context_shape=(3, 28, 28), n_arms=2, recipe="small", device="cpu")
    many = daband.DABand(context_shape=(65,), n_arms=2, shift="covariate", device="cpu")
    changed = [
        daband.DABand(
            context_shape=(3,), n_arms=2, recipe={"learning": {"steps": steps}}, device="cpu"
        )
        for steps in (2, 8)  # 8 is also what a recipe has that nobody changed
    ]
    # images have their own plan, and on many numbers more steps overfit
    for policy in (images, many, *changed):
        policy.plan(4)
        assert policy.learner.run_steps == 4 * policy.recipe.learning.steps
