"""Steps for several policies at once, whatever each of them has been through."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from daband.errors import InvalidInput
from daband.neural._neural_linucb import adapt_stacked, can_stack
from daband.neural.encoders._encoder import encoders
from daband.neural.encoders._mlp import MlpFeatures
from daband.neural.learning._settings import EncoderSettings
from daband.neural.objectives._term import Term, terms
from tests.neural.learning.one_step import assert_same_step, copies
from tests.neural.learning.test_learner import with_terms
from tests.policies.test_neural import ARMS, problem, small, trained
from tests.policies.test_neural import make as make_policy
from tests.registries import temporarily


def make(seed, **weights):
    """A policy whose ``adapt`` is one step."""
    recipe = with_terms(**weights) if weights else small()
    return make_policy(
        seed=seed, recipe=replace(recipe, learning=replace(recipe.learning, steps=1))
    )


def test_policies_may_be_adapted_in_changing_company():
    policies = [trained(make(seed)) for seed in range(3)]
    # the second has been elsewhere each time
    for company in ((0, 1), (1,), (0, 1), (1, 2), (0, 1)):
        some = [policies[index] for index in company]
        alone = copies(some)
        adapt_stacked(some)
        for one, other in zip(some, alone, strict=True):
            other.adapt()
            assert_same_step(one, other)
            one.play(*problem(16, seed=one.learner.step_number))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_what_policies_have_seen_may_differ(order):
    def four():
        policies = [trained(make(0)), trained(make(1)), trained(make(2)), make(3)]
        policies[1].play(*problem(16, seed=5, shift=1.0), "target")
        with pytest.warns(UserWarning, match="no target context"):
            trained(policies[3], target=False)
        return policies

    together = four()
    alone = four()
    found = dict(zip(order, adapt_stacked([together[index] for index in order]), strict=True))
    for index, policy in enumerate(alone):
        measured = policy.adapt()
        assert set(measured) == set(found[index])
        assert found[index]["loss"] == pytest.approx(measured["loss"], rel=1e-3)
        assert_same_step(together[index], policy)


def test_bytes_of_one_and_numbers_of_another_stay_what_they_are():
    pictures = np.random.default_rng(0).integers(0, 256, (32, 5), dtype=np.uint8)
    rewards = np.eye(ARMS)[np.arange(32) % ARMS]

    def both():
        # Without a norm at the input, which would hide a wrong scale.
        options = {"normalise_input": False, "normalise_hidden": False}
        recipe = replace(small(), encoder=EncoderSettings(name="mlp", options=options))
        recipe = replace(recipe, learning=replace(recipe.learning, steps=1))
        policies = [make_policy(recipe=recipe, seed=seed) for seed in (0, 1)]
        for policy, contexts in zip(
            policies, (pictures, (pictures / 255).astype(np.float32)), strict=True
        ):
            policy.play(contexts, rewards)
            policy.observe_target(contexts)
        return policies

    found = adapt_stacked(both())
    for policy, measured in zip(both(), found, strict=True):
        assert measured["loss"] == pytest.approx(policy.adapt()["loss"], rel=1e-3)


def test_an_arm_more_is_another_shape():
    policies = [trained(make(seed, adversarial=0.5)) for seed in (0, 1)]
    adapt_stacked(policies)
    policies[1].add_arm()
    with pytest.raises(InvalidInput, match="one shape"):
        adapt_stacked(policies)
    policies[0].add_arm()
    alone = copies(policies)
    for policy, one, measured in zip(alone, policies, adapt_stacked(policies), strict=True):
        assert measured["loss"] == pytest.approx(policy.adapt()["loss"], rel=1e-3)
        assert_same_step(one, policy)


class Counting(Term):
    """Has a frozen parameter of its own and a buffer that every step changes."""

    def __init__(self, settings):
        super().__init__(settings)
        self.frozen = nn.Parameter(torch.rand(settings.n_arms), requires_grad=False)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, batch):
        with torch.no_grad():
            self.steps.add_(batch.rewards.mean() * 0 + 1)
        return (batch.predictions * self.frozen).mean() ** 2


class OwnBuffer(MlpFeatures):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.register_buffer("mine", torch.rand(3))


@pytest.fixture
def registered():
    with temporarily(terms, "counting", Counting), temporarily(encoders, "own_buffer", OwnBuffer):
        yield


def test_networks_and_terms_with_buffers_are_trained_in_turn(registered):
    recipe = small(encoder=EncoderSettings(name="own_buffer"))
    assert not can_stack([make_policy(recipe=recipe, seed=seed) for seed in (0, 1)])
    counting = [trained(make(seed, counting=0.5), episodes=1) for seed in (0, 1)]
    assert not can_stack(counting)
    assert counting[0].adapt()["skipped_steps"] == 0


def test_nothing_and_a_policy_twice_do_not_fit_together():
    policy = make(0)
    assert not can_stack([])
    assert not can_stack([policy, policy])
    assert can_stack([policy])
