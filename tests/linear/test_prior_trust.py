"""Discounts of the source: each candidate is the regression it claims to be, and the best predictor acts."""

import numpy as np
import pytest

from daband.linear._exploration import Exploration
from daband.linear._primal_ridge import DISCOUNTS, PrimalRidge, PriorTrust
from daband.linear._ridge_head import RidgeHead

DIM, HEADS = 3, 2


def rounds(n, *, seed=0, sign=1.0):
    rng = np.random.default_rng(seed)
    z, heads = rng.normal(size=(n, DIM)), rng.integers(0, HEADS, n)
    return z, heads, sign * 0.5 * z[np.arange(n), heads]


def fitted(*parts):
    statistics = PrimalRidge(HEADS, DIM, 0.5)
    for part in parts:
        statistics.update(*part)
    return statistics


def test_candidates_are_regressions_on_weighted_rounds():
    source, target = rounds(200), rounds(60, seed=1, sign=-1.0)
    trust = PriorTrust(fitted(source))
    trust.update(*target)
    for discount, candidate in zip(DISCOUNTS, trust.candidates, strict=True):
        for head in range(HEADS):
            (z, s, r), (x, t, y) = source, target
            gram = 0.5 * np.eye(DIM) + discount * z[s == head].T @ z[s == head] + x[t == head].T @ x[t == head]
            moment = discount * r[s == head] @ z[s == head] + y[t == head] @ x[t == head]
            np.testing.assert_allclose(candidate.theta[head], np.linalg.solve(gram, moment), rtol=0, atol=1e-9)
            np.testing.assert_allclose(candidate.inverse[head], np.linalg.inv(gram), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("sign", "kept"), [(1.0, True), (-1.0, False)])
def test_a_good_prior_is_kept_and_a_wrong_one_is_dropped(sign, kept):
    trust = PriorTrust(fitted(rounds(2000)))
    assert trust.discount == 1.0
    trust.update(*rounds(400, seed=1, sign=sign))
    assert (trust.discount == 1.0) is kept
    assert kept or trust.discount <= 0.1
    assert trust.statistics is trust.candidates[trust.acting]


def test_a_batch_equals_its_singles_and_a_restored_one_goes_on():
    target = rounds(80, seed=1, sign=-1.0)
    batch, singles = PriorTrust(fitted(rounds(300))), PriorTrust(fitted(rounds(300)))
    batch.update(*target)
    for i in range(80):
        if i == 40:
            singles = PriorTrust.restored(singles.state(), PrimalRidge(HEADS, DIM, 0.5))
        singles.update(*(column[i : i + 1] for column in target))
    assert batch.acting == singles.acting
    np.testing.assert_array_equal(batch.losses, singles.losses)
    np.testing.assert_array_equal(batch.statistics.theta, singles.statistics.theta)


def test_a_refit_starts_from_new_features_and_keeps_the_errors():
    source, target = rounds(300), rounds(50, seed=1, sign=-1.0)
    trust = PriorTrust(fitted(source))
    trust.update(*target)
    losses = trust.losses.copy()
    by_refit = PriorTrust(fitted(rounds(10, seed=5)))
    by_refit.losses = losses
    by_refit.refit(fitted(source), fitted(target))
    for ours, theirs in zip(by_refit.candidates, trust.candidates, strict=True):
        np.testing.assert_allclose(ours.theta, theirs.theta, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(by_refit.losses, losses)


def head():
    return RidgeHead(
        n_arms=HEADS, dim=DIM, arms="disjoint", ridge=1.0, exploration=Exploration(), seed=0, form="primal"
    )


def test_a_head_plays_as_it_decides_and_learns():
    z, _, _ = rounds(90, seed=3)
    paid = -0.5 * z[:, :2]
    played, single = head(), head()
    for own in (played, single):
        own.learn(*rounds(500))
        own.trust_prior(DISCOUNTS)
    together = played.play(z, paid, first_round=0)
    arms = []
    for i in range(90):
        decision = single.decide(z[i : i + 1], first_round=i)
        single.learn(z[i : i + 1], decision.arm, paid[i, decision.arm])
        arms.append(int(decision.arm[0]))
    assert together.arm.tolist() == arms
    assert played.trust.discount == single.trust.discount < 1.0
    again = head()
    again.restore(played.state())
    np.testing.assert_array_equal(again.statistics.theta, played.statistics.theta)
    assert again.trust.acting == played.trust.acting
    again.add_arm()
    assert again.decide(z[:5], first_round=0).mean.shape == (5, 3)
