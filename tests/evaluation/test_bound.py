import itertools
import math

import numpy as np
import pytest

from daband.errors import InvalidInput
from daband.evaluation.bound import (
    LiveBound,
    Seen,
    best_joint_error,
    discriminator_divergence,
    hypothesis_divergence,
    observable_bound,
)


def decisions(rng, n, arms, alpha):
    mean, width = rng.uniform(-0.2, 1, (n, arms)), rng.uniform(0, 0.3, (n, arms))
    return Seen((mean + alpha * width).argmax(axis=1), mean, width)


@pytest.mark.parametrize("seed", range(5))
def test_divergence_and_psi_against_brute_force(seed):
    rng = np.random.default_rng(seed)
    source, target = rng.random((6, 9)), rng.random((6, 7))
    gaps = [
        abs(
            sum(abs(source[a, i] - source[b, i]) for i in range(9)) / 9
            - sum(abs(target[a, i] - target[b, i]) for i in range(7)) / 7
        )
        for a, b in itertools.product(range(6), repeat=2)
    ]
    assert hypothesis_divergence(source, target) == pytest.approx(2 * max(gaps))
    truth_s, truth_t = rng.random(9), rng.random(7)
    joint = [sum(abs(source[h] - truth_s)) / 9 + sum(abs(target[h] - truth_t)) / 7 for h in range(6)]
    assert best_joint_error(source, truth_s, target, truth_t, rounds=100) == pytest.approx(100 * min(joint))


@pytest.mark.parametrize("seed", range(20))
def test_target_error_is_bounded_as_the_lemma_says(seed):
    rng = np.random.default_rng(seed)
    n, truth_s, truth_t = 12, rng.random(12), rng.random(12)
    source, target = rng.random((5, n)), rng.random((5, n))
    d = hypothesis_divergence(source, target)
    psi = best_joint_error(source, truth_s, target, truth_t, rounds=n)
    for h in range(5):
        error_s, error_t = abs(source[h] - truth_s).sum(), abs(target[h] - truth_t).sum()
        assert error_t <= error_s + n / 2 * d + psi + 1e-9


def test_observable_terms_against_a_loop():
    rng = np.random.default_rng(0)
    alpha = 0.3
    source, target = decisions(rng, 8, 3, alpha), decisions(rng, 4, 3, alpha)
    reward = rng.integers(0, 2, 8).astype(float)
    terms = observable_bound(
        source=source, reward=reward, wrong=reward < 1, target=target, alpha=alpha, divergence=0.5, source_regret=3.0
    )
    eps = sum(abs(reward[i] - source.mean[i, source.arm[i]]) for i in range(8))
    promised = sum(abs(target.mean[i, target.arm[i]]) for i in range(4)) * 2
    mistaken = sum(abs(source.mean[i, source.arm[i]]) for i in range(8) if reward[i] < 1)
    widths = sum(2 * max(target.width[i]) for i in range(4)) * 2
    widths += sum(2 * max(source.width[i]) for i in range(8) if reward[i] < 1)
    assert terms.regression_error == pytest.approx(2 * eps)
    assert terms.divergence == pytest.approx(4.0)
    assert terms.predicted_reward_target == pytest.approx(promised)
    assert terms.predicted_reward_source == pytest.approx(mistaken)
    assert terms.exploration == pytest.approx(alpha * widths)
    expected = 3.0 + 2 * eps + 4.0 + promised + mistaken + alpha * widths
    assert terms.total == pytest.approx(expected)
    assert terms.informative == (expected < 8)
    assert terms.as_dict()["total"] == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(30))
def test_with_every_term_known_the_bound_holds(seed):
    """One hypothesis plays; truth is in the class, so psi and d are exact, and the target regret must lie below."""
    rng = np.random.default_rng(seed)
    n, k, alpha = 10, 3, 0.1
    truth_s, truth_t = rng.random((n, k)), rng.random((n, k))
    mean_s = np.clip(truth_s + rng.normal(0, 0.1, (n, k)), -1, 1)
    mean_t = np.clip(truth_t + rng.normal(0, 0.1, (n, k)), -1, 1)
    width = rng.uniform(0, 0.2, (n, k))
    source = Seen((mean_s + alpha * width).argmax(1), mean_s, width)
    target = Seen((mean_t + alpha * width).argmax(1), mean_t, width)
    rows = np.arange(n)
    reward = truth_s[rows, source.arm]
    regret_s = (truth_s.max(1) - reward).sum()
    regret_t = (truth_t.max(1) - truth_t[rows, target.arm]).sum()
    # The class holds the player and the truth, each seen at the player's arms and at the best arms.
    at = lambda table, arms: table[rows, arms]  # noqa: E731
    best_s, best_t = truth_s.argmax(1), truth_t.argmax(1)
    d = max(
        hypothesis_divergence(
            np.stack([at(mean_s, arms_s), at(truth_s, arms_s)]), np.stack([at(mean_t, arms_t), at(truth_t, arms_t)])
        )
        for arms_s, arms_t in ((source.arm, target.arm), (best_s, best_t))
    )
    terms = observable_bound(
        source=source,
        reward=reward,
        wrong=source.arm != best_s,
        target=target,
        alpha=alpha,
        divergence=d,
        source_regret=float(regret_s),
    )
    assert regret_t <= terms.total + 1e-9


def test_discriminator_divergence_at_its_ends():
    assert [discriminator_divergence(a) for a in (0.3, 0.5, 0.75, 1.0)] == [0.0, 0.0, 1.0, 2.0]
    with pytest.raises(InvalidInput):
        discriminator_divergence(1.5)


def test_unknown_regret_is_left_out_and_bad_shapes_are_refused():
    rng = np.random.default_rng(0)
    seen = decisions(rng, 4, 2, 0.1)
    common = {"source": seen, "wrong": np.ones(4), "target": seen, "alpha": 0.1, "divergence": 0.0}
    terms = observable_bound(reward=np.ones(4), **common)
    assert math.isnan(terms.source_regret)
    assert math.isfinite(terms.total)
    with pytest.raises(InvalidInput, match="shape"):
        observable_bound(reward=np.ones(3), **common)
    with pytest.raises(InvalidInput, match="at least one"):
        observable_bound(reward=np.ones(4), **{**common, "target": decisions(rng, 0, 2, 0.1)})
    with pytest.raises(InvalidInput, match="same hypotheses"):
        hypothesis_divergence(np.ones((2, 3)), np.ones((3, 3)))


def test_the_live_bound_adds_episodes_up_and_goes_on_from_a_record():
    rng = np.random.default_rng(0)
    episodes = [
        {
            "source": decisions(rng, 6, 3, 0.2),
            "reward": rng.integers(0, 2, 6).astype(float),
            "regret": rng.random(6),
            "target": decisions(rng, 5, 3, 0.2),
            "accuracy": 0.75,
        }
        for _ in range(3)
    ]
    live = LiveBound(alpha=0.2)
    records = [live.add(**episode) for episode in episodes]
    parts = [
        observable_bound(
            source=e["source"],
            reward=e["reward"],
            wrong=e["reward"] < 1,
            target=e["target"],
            alpha=0.2,
            divergence=1.0,
            source_regret=float(e["regret"].sum()),
        )
        for e in episodes
    ]
    assert records[-1]["bound_total"] == pytest.approx(sum(part.total for part in parts))
    assert records[-1]["bound_rounds"] == 18
    resumed = LiveBound(alpha=0.2, last_record=records[1]).add(**episodes[2])
    assert resumed == records[2]
