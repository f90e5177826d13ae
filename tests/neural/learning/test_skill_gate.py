"""The gate of the target's terms follows the policy's progressive skill, not the raw reward."""

import numpy as np
import pytest
import torch

from daband._shift import Shift
from daband.neural._recipes import recipe_for, resolve_recipe
from daband.neural.learning._learner import Learner
from daband.neural.learning._skill_gate import SkillGate

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


def test_state_and_more_arms():
    gate = observed("bandit", accuracy=0.8)
    other = SkillGate(n_arms=K, feedback="bandit")
    other.restore(gate.state())
    assert other.compute_skill() == gate.compute_skill()
    other.add_arm()
    assert other.compute_skill() == gate.compute_skill()
    other.add(np.ones((1, K + 1)), np.array([K]), np.ones(1))


def make_learner(exponent, seed=0, **changes):
    recipe = recipe_for("default", context_shape=(4,)).changed(
        {"learning": {"gate_exponent": exponent}, **changes}
    )
    return Learner(
        recipe=recipe,
        feature_shape=(4,),
        n_arms=K,
        has_shared_arms=False,
        feedback="one_hot",
        seed=seed,
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize("exponent", [0.0, 1.0, 8.0])
def test_the_target_terms_weights_are_multiplied_with_the_skill_to_the_exponent(exponent):
    learner = make_learner(exponent, weights={"adversarial": {"value": 0.3, "ramp": 0}})
    learner.skill_gate = observed("one_hot", accuracy=0.7)
    learner.set_head(np.zeros((K, 64)), np.zeros((K, 64, 64)), alpha=0.0)
    expected = learner.skill_gate.compute_skill() ** exponent
    assert 0.4 < learner.skill_gate.compute_skill() < 0.8
    assert learner.gate_factor == pytest.approx(expected)
    (row,) = learner.advance_schedule(1)
    assert row[list(learner.objective.weights).index("adversarial")] == pytest.approx(
        0.3 * expected
    )
    assert row[list(learner.objective.weights).index("source_cross_entropy")] == 1.0


def test_initial_weights_follow_the_seed():
    one = make_learner(1.0, seed=3)
    same = make_learner(1.0, seed=3)
    other = make_learner(1.0, seed=4)
    assert torch.equal(one.parameter_vector, same.parameter_vector)
    encoder = one.layout.count_values("encoder")
    assert not torch.allclose(one.parameter_vector[:encoder], other.parameter_vector[:encoder])
    assert not torch.allclose(one.parameter_vector[encoder:], other.parameter_vector[encoder:])


def test_the_shift_decides_what_is_aligned():
    for shift, statistics, terms in (
        (Shift.of("covariate"), "source", []),
        (Shift.of("units"), "own", []),
        (Shift.of("style"), "own", ["adversarial"]),
    ):
        recipe = resolve_recipe("default", context_shape=(4,), shift=shift)
        settings = {
            "feature_shape": (4,),
            "n_arms": K,
            "has_shared_arms": False,
            "feedback": "one_hot",
            "seed": 0,
        }
        made = Learner(recipe=recipe, device=torch.device("cpu"), **settings)
        assert made.objective.gated_term_names == terms
        assert {norm.statistics for norm in made.norms} == {statistics}
        assert made.uses_target == ("covariate" not in shift.kinds)


def test_the_unit_of_rewards_does_not_change_the_skill():
    gate, other = (observed("bandit", accuracy=0.8, best=best) for best in (1.0, 1000.0))
    assert other.compute_skill(1000.0) == pytest.approx(gate.compute_skill())
    assert observed("bandit", accuracy=0.8, best=0.005).compute_skill(1.0) == 0.0


def test_schedules_are_shares_of_the_planned_run():
    learner = make_learner(0.0)
    ramp = list(learner.objective.weights).index("adversarial")
    learner.set_head(np.zeros((K, 64)), np.zeros((K, 64, 64)), alpha=0.0)
    learner.set_run_steps(320)
    rows = learner.advance_schedule(60)
    assert [row[ramp] for row in rows][:2] == [
        0.0,
        pytest.approx(0.3 * (2 / (1 + np.exp(-10 / 50)) - 1)),
    ]
    assert rows[50][ramp] == pytest.approx(0.3, rel=1e-3)
    other = make_learner(0.0)
    other.restore(learner.state())
    assert other.run_steps == 320
