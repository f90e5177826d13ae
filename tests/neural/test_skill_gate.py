"""The gate of the target's terms follows the policy's progressive skill, not the raw reward."""

import numpy as np
import pytest

import daband
from daband.neural import recipe_for
from daband.neural._skill_gate import SkillGate
from daband.neural.encoders._domain_norm import DomainNorm

K = 4


def observed(
    feedback, *, accuracy, rounds=2000, best=1.0, worst=0.0, noise=0.0, uniform_log=False, seed=0
):
    """A gate after rounds of a policy whose highest prediction is right with this probability."""
    rng = np.random.default_rng(seed)
    right = rng.integers(0, K, rounds)
    believed = np.where(
        rng.random(rounds) < accuracy, right, (right + 1 + rng.integers(0, K - 1, rounds)) % K
    )
    predicted = np.full((rounds, K), worst)
    predicted[np.arange(rounds), believed] = accuracy * best + (1 - accuracy) * worst
    arms = rng.integers(0, K, rounds) if uniform_log else believed
    rewards = np.where(arms == right, best, worst)
    if noise:
        rewards = (rng.random(rounds) < rewards).astype(float)
    gate = SkillGate(n_arms=K, feedback=feedback)
    for start in range(0, rounds, 64):
        part = slice(start, start + 64)
        gate.add(predicted[part], arms[part], rewards[part])
    return gate


@pytest.mark.parametrize("accuracy", [0.3, 0.6, 0.9, 1.0])
def test_with_one_right_arm_the_skill_is_the_gain_over_the_best_constant(accuracy):
    gate = observed("one_hot", accuracy=accuracy)
    constant = accuracy / K  # an arm is known to be right only where it was played
    assert gate.compute_skill() == pytest.approx(
        max(0, (accuracy - constant) / (1 - constant)), abs=0.06
    )


def test_a_policy_that_reaches_what_is_attainable_has_skill_one_however_small_or_noisy_rewards_are():
    assert observed("bandit", accuracy=1.0, best=0.02, worst=0.0).compute_skill() > 0.95
    assert (
        observed(
            "bandit", accuracy=1.0, best=0.3, worst=0.1, noise=1.0, rounds=6000
        ).compute_skill()
        > 0.7
    )


def test_a_log_that_somebody_else_wrote_tells_the_same():
    own, log = (observed("one_hot", accuracy=0.9, uniform_log=logged) for logged in (False, True))
    assert log.compute_skill() == pytest.approx(own.compute_skill(), abs=0.1)


def test_a_constant_policy_has_no_skill():
    rng = np.random.default_rng(0)
    gate = SkillGate(n_arms=K, feedback="bandit")
    gate.add(
        np.tile([0.5, 0.4, 0.3, 0.2], (640, 1)),
        np.zeros(640, int),
        (rng.random(640) < 0.5).astype(float),
    )
    assert gate.compute_skill() == 0.0


def test_nothing_is_known_before_64_rounds_and_everything_of_a_perfect_policy_after():
    gate = SkillGate(n_arms=K, feedback="one_hot")
    right = np.arange(200) % K
    for first, last, expected in ((0, 32, 0.0), (32, 128, 1.0)):
        gate.add(np.eye(K)[right[first:last]], right[first:last], np.ones(last - first))
        assert gate.compute_skill() == pytest.approx(expected)


def make_policy(exponent, **settings):
    recipe = recipe_for("default", context_shape=(4,)).changed(
        {
            "weights": {"data_divergence": {"value": 0.3, "ramp": 0}},
            "learning": {"gate_exponent": exponent},
        }
    )
    policy = daband.DABand(
        context_shape=(4,), n_arms=K, recipe=recipe, feedback="one_hot", device="cpu", **settings
    )
    contexts = np.random.default_rng(0).normal(size=(64, 4))
    policy.update(contexts, np.zeros(64, int), np.ones(64))
    policy.observe_target(contexts)
    return policy


@pytest.mark.parametrize("exponent", [0.0, 1.0, 8.0])
def test_the_target_terms_weights_are_multiplied_with_the_skill_to_the_exponent(exponent):
    policy = make_policy(exponent)
    learner = policy.learner
    learner.skill_gate = observed("one_hot", accuracy=0.7)
    expected = learner.skill_gate.compute_skill() ** exponent
    assert 0.4 < learner.skill_gate.compute_skill() < 0.8
    policy.start_steps(1)
    assert learner.gate_factor == pytest.approx(expected)
    (weights,) = learner.draw_block(policy.buffers, 1).weights.tolist()
    by_name = dict(zip(learner.terms, weights, strict=True))
    assert by_name["data_divergence"] == pytest.approx(0.3 * expected)
    assert by_name["source_cross_entropy"] == 1.0


def test_the_shift_decides_what_is_aligned():
    for shift, statistics, names in (
        ("covariate", "source", []),
        ("units", "own", []),
        ("style", "own", ["data_divergence"]),
    ):
        policy = daband.DABand(context_shape=(4,), n_arms=K, device="cpu", shift=shift)
        learner = policy.learner
        norms = [layer for layer in learner.encoder.modules() if isinstance(layer, DomainNorm)]
        assert [name for name in learner.terms if name != "source_cross_entropy"] == names
        assert learner.uses_gate == bool(names)
        assert {norm.statistics for norm in norms} == {statistics}
        assert learner.uses_target == (shift != "covariate")
