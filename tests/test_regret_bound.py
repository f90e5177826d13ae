import itertools

import numpy as np
import pytest
from benchmarks.regret_bound import (
    accumulate_bound_terms,
    compute_bound_terms,
    estimate_divergence,
    train_with_bound,
)

import daband
from daband.linear import Decision


def decisions(rng, n, arms, alpha):
    mean = rng.uniform(-0.2, 1, (n, arms))
    width = rng.uniform(0, 0.3, (n, arms))
    return decision(mean, width, alpha)


def hypothesis_divergence(source, target):
    """The divergence d of the paper over a finite class, exactly, from predictions (H, n) and (H,
    m) in the domains.

    Twice the largest difference, over pairs of hypotheses, between how far they are apart in the
    two domains."""
    apart = [np.abs(own[:, None] - own[None]).mean(axis=2) for own in (source, target)]
    return 2 * float(np.abs(apart[0] - apart[1]).max())


def decision(mean, width, alpha):
    return Decision((mean + alpha * width).argmax(axis=1), np.ones(len(mean)), mean, width)


def test_observable_terms_against_a_loop():
    rng = np.random.default_rng(0)
    alpha = 0.3
    source = decisions(rng, 8, 3, alpha)
    target = decisions(rng, 4, 3, alpha)
    reward = rng.integers(0, 2, 8).astype(float)
    terms = compute_bound_terms(
        source_decisions=source,
        rewards=reward,
        choice_errors=reward < 1,
        target_decisions=target,
        alpha=alpha,
        divergence=0.5,
        source_regret=3.0,
    )
    eps = sum(abs(reward[i] - source.mean[i, source.arm[i]]) for i in range(8))
    promised = sum(abs(target.mean[i, target.arm[i]]) for i in range(4)) * 2
    mistaken = sum(abs(source.mean[i, source.arm[i]]) for i in range(8) if reward[i] < 1)
    widths = sum(2 * max(target.bonus[i]) for i in range(4)) * 2
    widths += sum(2 * max(source.bonus[i]) for i in range(8) if reward[i] < 1)
    assert terms.regression_error == pytest.approx(2 * eps)
    assert terms.divergence == pytest.approx(4.0)
    assert terms.predicted_reward_target == pytest.approx(promised)
    assert terms.predicted_reward_source == pytest.approx(mistaken)
    assert terms.exploration == pytest.approx(alpha * widths)
    expected = 3.0 + 2 * eps + 4.0 + promised + mistaken + alpha * widths
    assert terms.total == pytest.approx(expected)
    assert terms.as_dict()["total"] == pytest.approx(expected)


def small_problems():
    """One round, two arms of which one pays 1, predictions on a grid: every such problem, with each
    term of its bound.

    The class holds the player and the truth, so that psi is 0 and the divergence is exact. Yields
    the target regret and the terms."""
    grid = [np.array([pair]) for pair in itertools.product((0.0, 0.25, 0.5, 0.75, 1.0), repeat=2)]
    widths = [np.array([pair]) for pair in ((0.0, 0.0), (0.5, 0.0), (0.0, 0.5))]
    truth_s = np.array([[0.0, 1.0]])
    row = np.arange(1)
    alpha = 1.0
    for truth_t in (np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])):
        for mean_s, mean_t, width in itertools.product(grid, grid, widths):
            source = decision(mean_s, np.zeros((1, 2)), alpha)
            target = decision(mean_t, width, alpha)
            reward = truth_s[row, source.arm]
            best_s = truth_s.argmax(axis=1)
            best_t = truth_t.argmax(axis=1)
            divergence = max(
                hypothesis_divergence(
                    np.stack([mean_s[row, arm_s], truth_s[row, arm_s]]),
                    np.stack([mean_t[row, arm_t], truth_t[row, arm_t]]),
                )
                for arm_s, arm_t in ((source.arm, target.arm), (best_s, best_t))
            )
            terms = compute_bound_terms(
                source_decisions=source,
                rewards=reward,
                choice_errors=source.arm != best_s,
                target_decisions=target,
                alpha=alpha,
                divergence=divergence,
                source_regret=float(1.0 - reward.sum()),
            )
            yield float(1.0 - truth_t[row, target.arm].sum()), terms


def test_the_bound_holds_for_every_small_problem_and_fails_for_some_without_its_terms():
    """Four terms cannot be left out, and the target's predicted reward must not be subtracted.

    Both predicted rewards are slack in all of these problems; that they are computed as stated is
    tested above."""
    least = dict.fromkeys(("source_regret", "regression_error", "divergence", "exploration"), 1.0)
    least |= {"predicted_reward_target": 2.0}
    broken = dict.fromkeys(least, 0)
    tight = 0
    for regret, terms in small_problems():
        assert regret <= terms.total + 1e-9
        tight += regret > 0 and terms.total <= regret + 1e-9
        for name, times in least.items():
            broken[name] += regret > terms.total - times * getattr(terms, name) + 1e-9
    assert tight > 0
    assert all(broken.values()), broken


def test_discriminator_divergence_at_its_ends():
    assert [estimate_divergence(a) for a in (0.3, 0.5, 0.75, 1.0)] == [0.0, 0.0, 1.0, 2.0]


def test_the_sums_add_episodes_up():
    rng = np.random.default_rng(0)
    episodes = [
        {
            "source_decisions": decisions(rng, 6, 3, 0.2),
            "rewards": rng.integers(0, 2, 6).astype(float),
            "regrets": rng.random(6),
            "target_decisions": decisions(rng, 5, 3, 0.2),
            "discriminator_accuracy": 0.75,
        }
        for _ in range(3)
    ]
    record = None
    for episode in episodes:
        record = accumulate_bound_terms(record, alpha=0.2, **episode)
    parts = [
        compute_bound_terms(
            source_decisions=e["source_decisions"],
            rewards=e["rewards"],
            choice_errors=e["rewards"] < 1,
            target_decisions=e["target_decisions"],
            alpha=0.2,
            divergence=1.0,
            source_regret=float(e["regrets"].sum()),
        )
        for e in episodes
    ]
    assert record["bound_total"] == pytest.approx(sum(part.total for part in parts))
    assert record["bound_rounds"] == 18


SHIFT = -4.0
SCALE = 8.0


def train_small(kind, *, low=0.0, high=1.0, bound=True):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype(np.float32)
    rewards = low + (high - low) * np.eye(3)[rng.integers(0, 3, 64)]
    pair = daband.domains.from_arrays(
        source=(x, rewards), target=x + 1.0, target_test=(x, rewards), feedback="bandit"
    )
    policy = kind(context_shape=(4,), n_arms=3, standardise_rewards=True, shift="style", seed=0)
    if bound:
        return train_with_bound(policy, pair, episodes=2, episode_length=16)
    settings = {"episodes": 2, "episode_length": 16}
    return daband.train(policy, source=pair.source, target=pair.target, **settings)


def test_the_bound_does_not_depend_on_the_unit_of_rewards():
    unit = train_small(daband.DABand).episodes
    euros = train_small(daband.DABand, low=SHIFT, high=SHIFT + SCALE).episodes
    names = [name for name in unit[-1] if name.startswith("bound_")]
    assert {"bound_total", "bound_source_regret", "bound_exploration"} <= set(names)
    # before the first reward a policy knows no unit, so the second episode is compared
    for name in names:
        expected = unit[1][name] - unit[0][name]
        assert euros[1][name] - euros[0][name] == pytest.approx(expected, rel=1e-6), name
