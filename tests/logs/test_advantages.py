"""Advantages from a log: choices by context only where the log proves that they gain."""

import numpy as np
import pytest

from daband.features._piecewise import fit_ramps
from daband.logs._advantages import (
    AdvantageModel,
    _choose_candidate,
    learn_advantages,
    score_log,
    weigh_target_rounds,
)
from daband.logs._target_mix import TargetMix
from daband.rounds._rounds import Rounds

K = 3


def learn(x, arms, rewards, chances, n_arms, **options) -> AdvantageModel:
    """Return the model of a log in arrays, without trees."""
    return learn_advantages(
        Rounds(x, arms, rewards, chances, np.ones(len(arms))), n_arms, **options
    )


def log(n=3_000, effect=0.0, best=0.3, seed=0, rule=None):
    """Arm 0 is best by ``best``, but with ``effect`` arm 2 gains that where the rule says so."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5))
    arms = rng.integers(0, K, n)
    helped = (x[:, 0] + x[:, 1] > 0) if rule is None else rule(x)
    means = np.stack([np.full(n, best), np.zeros(n), effect * helped], axis=1) + 0.5 * x[:, [2]]
    return x, arms, means[np.arange(n), arms] + rng.normal(size=n), np.full(n, 1 / K)


def choices(advantages, x):
    return (advantages.step(x) @ advantages.theta.T).argmax(axis=1)


def test_without_effects_the_best_arm_is_chosen_everywhere():
    x, *rounds = log()
    found = learn(x, *rounds, K)
    assert found.evidence.arm == 0
    assert not found.evidence.personalises
    assert found.evidence.low <= 0.0
    assert (choices(found, x) == 0).all()
    assert found.evidence.value == pytest.approx(0.3, abs=0.1)


def test_a_large_effect_is_used():
    x, *rounds = log(effect=1.7, best=1.0)
    found = learn(x, *rounds, K)
    there = np.random.default_rng(9).normal(size=(2_000, 5))
    helped = there[:, 0] + there[:, 1] > 0
    assert found.evidence.personalises
    assert 0.1 < found.evidence.low < found.evidence.gain < 0.5  # the truth is half of 1.7 - 1.0
    assert np.mean(choices(found, there) == np.where(helped, 2, 0)) > 0.9
    assert 0.4 < found.evidence.fraction < 0.6


def test_an_effect_in_the_middle_needs_pieces():
    x, *rounds = log(6_000, effect=1.5, rule=lambda x: np.abs(x[:, 0]) < 0.6)
    found = learn(x, *rounds, K)
    there = np.zeros((3, 5))
    there[:, 0] = [-2.0, 0.0, 2.0]
    assert choices(found, there).tolist() == [0, 2, 0]


@pytest.mark.slow
def test_noise_is_seldom_taken_for_evidence():
    """Without any effect the limit is above 0 in at most 2.5% of the logs; arms are equal, which is
    hardest.
    """
    used = [learn(*log(400, best=0.0, seed=seed), K).evidence.personalises for seed in range(40)]
    assert np.mean(used) <= 0.05


def test_predictions_are_rewards():
    x, arms, rewards, chances = log(effect=1.3)
    found = learn(x, arms, rewards, chances, K)
    predicted = found.step(x) @ found.theta.T
    assert np.mean(predicted[np.arange(len(arms)), arms] - rewards) == pytest.approx(0.0, abs=0.05)


def test_unequal_propensities_are_undone():
    """The log prefers arm 1 where rewards are high anyway; its mean reward is the highest, and it
    is not the best.
    """
    rng = np.random.default_rng(3)
    x = rng.normal(size=(6_000, 2))
    first = np.where(x[:, 0] > 0, 0.8, 0.1)
    arms = (rng.random(6_000) < first).astype(int)
    rewards = 2.0 * x[:, 0] - 0.3 * arms + rng.normal(size=6_000)
    assert rewards[arms == 1].mean() > rewards[arms == 0].mean() + 0.5
    found = learn(x, arms, rewards, np.where(arms == 1, first, 1 - first), 2)
    assert found.evidence.arm == 0
    assert (choices(found, x) == 0).all()


def test_arms_with_few_rounds_are_never_chosen():
    x, arms, rewards, chances = log(effect=1.3)
    arms = np.where(arms == 1, 0, arms)
    arms[:3], rewards[:3] = 1, 50.0
    found = learn(x, arms, rewards, chances, 5)
    assert set(choices(found, x)) <= {0, 2}


@pytest.mark.parametrize("n", [1, 2, 19, 60])
def test_short_logs(n):
    x, arms, rewards, chances = log(n, best=3.0)
    arms[0], rewards[0] = 0, 3.0
    found = learn(x, arms, rewards, chances, K)
    assert found.evidence.arm == 0
    assert (choices(found, x) == 0).all()


def test_constant_columns_and_outliers():
    x, arms, rewards, chances = log(500)
    x[:, 1], x[3, 0] = 7.0, 1e9
    assert np.isfinite(learn(x, arms, rewards, chances, K).theta).all()
    none = learn(np.zeros((500, 2)), arms, rewards, chances, K)
    assert not none.evidence.personalises
    assert none.evidence.gain == 0.0


def test_ramps_cover_what_was_trimmed():
    rows = np.random.default_rng(0).normal(size=(1_000, 1))
    step = fit_ramps(rows, 1, clip_quantile=0.1)
    low, high = np.quantile(rows, [0.1, 0.9])
    np.testing.assert_array_equal(step(np.array([[-9.0]])), step(np.array([[low - 0.1]])))
    np.testing.assert_array_equal(step(np.array([[9.0]])), step(np.array([[high + 0.1]])))
    assert step(rows)[:, 1].std() == pytest.approx(1.0, abs=0.05)
    assert fit_ramps(rows, 8)(rows).shape == (1_000, 9)


@pytest.mark.parametrize(("offset", "sign"), [(0.0, 1.0), (-0.6, 1.0), (-0.6, -1.0)])
def test_source_rewards_are_corrected_unless_choices_by_context_are_others(offset, sign):
    """Arm 0 is worse by the offset in the target; the sign is that of the context's effects."""
    rng = np.random.default_rng(0)
    n = 4_000
    x = rng.normal(size=(n, 2))
    is_target = np.arange(n) >= 3_000
    arms = rng.integers(0, K, n)
    effects = np.array([1.0, 0.0, -1.0])[arms] * x[:, 0]
    rewards = np.where(is_target, sign * effects + offset * (arms == 0), effects)
    rewards += 0.5 * rng.normal(size=n)
    chances = np.where(is_target, 0.25, 1 / K)
    rows = Rounds(x, arms, rewards, chances, np.ones(n))
    found = weigh_target_rounds(rows, is_target, K)
    shifts = found.rewards - rows.rewards
    np.testing.assert_array_equal(shifts[is_target], 0.0)
    np.testing.assert_allclose(shifts[arms != 0], 0.0, atol=0.02)
    if sign < 0:
        assert found == rows
        return
    assert shifts[~is_target & (arms == 0)] == pytest.approx(offset, abs=0.1)
    np.testing.assert_allclose(found.weights[is_target], (3.0 / 4.0) ** 2)


@pytest.mark.parametrize(
    ("limit", "gain", "chosen"), [(-0.1, 2.0, 1), (0.3, 0.05, 1), (0.3, 2.0, 5), (0.1, 2.0, 1)]
)
def test_trees_need_the_highest_limit_and_a_clear_lead(limit, gain, chosen):
    """The regression has the limit .2; standard errors of the gains are .1."""
    gains = np.zeros((100, 7))
    gains[:, 5] = gain + np.tile([-1.0, 1.0], 50)
    limits = [0.0, 0.2, -1.0, -1.0, -1.0, limit, -1.0]
    assert _choose_candidate(limits, limits, gains, TargetMix(np.full(100, 0.01))) == chosen


def draw_new_market(seed):
    """Return a log without effects of contexts, and the mask of its target rounds, in which arm 0
    has nearly all rounds and is worse.
    """
    rng = np.random.default_rng(seed)
    n = 10_900
    is_target = np.arange(n) >= 900
    arms = rng.integers(0, K, n)
    chances = np.full(n, 1 / K)
    arms[is_target] = rng.choice(K, 10_000, p=[0.98, 0.01, 0.01])
    chances[is_target] = np.where(arms[is_target] == 0, 0.98, 0.01)
    rewards = np.where(is_target & (arms == 0), -0.5, 0.0) + rng.normal(size=n)
    return Rounds(rng.normal(size=(n, 20)), arms, rewards, chances, np.ones(n)), is_target


def test_estimates_of_effects_that_are_0_do_not_reject_a_correction():
    """If they did, the target rounds of rare arms would count as much as all others."""
    for seed in range(8):
        log, is_target = draw_new_market(seed)
        found = weigh_target_rounds(log, is_target, K)
        shifts = (found.rewards - log.rewards)[~is_target]
        assert shifts[log.arms[~is_target] == 0] == pytest.approx(-0.5, abs=0.15)
        assert found.weights[is_target].max() < 0.1


@pytest.mark.parametrize(("n_rounds", "mean"), [(2, 0.14), (20, 0.005), (60, 0.001)])
def test_two_lucky_target_rounds_of_an_arm_do_not_correct_it(n_rounds, mean):
    """The arm has two purchases in the target. The worst of all arms once became the best one."""
    rng = np.random.default_rng(0)
    is_target = np.arange(10_000) >= 8_000
    arms = np.where(is_target, 0, rng.integers(0, 2, 10_000))
    arms[-n_rounds:] = 1
    rewards = (rng.random(10_000) < mean * np.where(arms == 0, 1.5, 1.0)) * 1.0
    rewards[-n_rounds:] = np.arange(n_rounds) < 2
    log = Rounds(rng.normal(size=(10_000, 2)), arms, rewards, *np.ones((2, 10_000)))
    shifts = weigh_target_rounds(log, is_target, 2).rewards - log.rewards
    assert np.abs(shifts).max() < 0.05 * (2 / n_rounds - mean)


def test_few_target_clusters_of_an_arm_do_not_correct_it():
    """If rounds of a cluster counted as independent, every fifth arm would be corrected."""
    n_corrected = 0
    is_target = np.arange(6_000) >= 4_000
    clusters = np.arange(6_000) // 20
    for seed in range(40):
        rng = np.random.default_rng(seed)
        arms = np.where(is_target, 0, rng.integers(0, 2, 6_000))
        arms[-200:] = 1
        rewards = rng.normal(size=300)[clusters] + rng.normal(size=6_000)
        log = Rounds(
            rng.normal(size=(6_000, 2)), arms, rewards, *np.ones((2, 6_000)), clusters=clusters
        )
        shifts = weigh_target_rounds(log, is_target, 2).rewards - log.rewards
        n_corrected += np.abs(shifts[arms == 1]).max() > 0.2
    assert n_corrected <= 1


def test_many_target_rounds_correct_a_small_change():
    """Of 3,000 rounds of an arm, 2,000 are of the target, where its mean reward is lower by 1.5
    standard errors.
    """
    rng = np.random.default_rng(0)
    is_target = np.arange(3_000) >= 1_000
    arms = np.zeros(3_000, np.int64)
    noise = rng.normal(size=3_000)
    for rows in (is_target, ~is_target):
        noise[rows] -= noise[rows].mean()
    change = -1.5 * np.sqrt(1 / 1_000 + 1 / 2_000)
    log = Rounds(
        rng.normal(size=(3_000, 1)), arms, noise + change * is_target, *np.ones((2, 3_000))
    )
    shifts = weigh_target_rounds(log, is_target, 1).rewards - log.rewards
    np.testing.assert_allclose(shifts[~is_target], 2 / 3 * change, rtol=0.1)


@pytest.mark.parametrize(("slope", "low", "high"), [(0.03, 0.0, 0.04), (0.1, 0.6, 1.0)])
def test_the_target_changes_the_best_arm_only_by_proof(slope, low, high):
    """Arm 1 is worse by 0.02 or 0.03 in the log, and in the target worse by 0.01 or better by 0.05."""
    changed = []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        contexts, target = rng.normal(size=(3000, 2)), rng.normal([0.7, 0.0], 1.0, (1000, 2))
        arms = rng.integers(0, 2, 3000)
        effects = slope * contexts[:, 0] - max(0.02, 0.05 - slope)
        rewards = (rng.random(3000) < 0.8 + arms * effects) * 1.0
        log = Rounds(contexts, arms, rewards, np.full(3000, 0.5), np.ones(3000))
        scored = score_log(log, 2, target=target, offered=None, seed=0)
        changed.append(scored.best_arm != scored.make_values(np.empty((0, 3))).source_arm)
    assert low <= np.mean(changed) <= high
