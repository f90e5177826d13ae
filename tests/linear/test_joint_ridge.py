"""Hybrid LinUCB against dense algebra, and catalogues of arms."""

import numpy as np
import pytest

from daband.errors import InvalidInput
from daband.features._catalogue import Catalogue
from daband.linear._joint_ridge import JointHead
from daband.linear._reward_moments import RewardMoments

K = 5
D = 3
N = 60
RIDGE = 0.7
CENTRE = 0.3


@pytest.fixture
def rounds():
    draw = np.random.default_rng(0)
    catalogue = Catalogue.fit([f"a{at}" for at in range(K)], draw.normal(size=(K, 2)))
    contexts = draw.normal(size=(N, D))
    arms = draw.integers(0, K - 1, N)
    return catalogue.vectors, contexts, arms, draw.normal(size=N), draw.random(N)


def features(vectors, contexts, arms):
    """All products of [x / sqrt(d), 1] and the arm's vector, and .3 at the arm's index, written
    out.
    """
    rows = []
    for context, arm in zip(contexts, arms, strict=True):
        both = np.outer(np.append(context / np.sqrt(D), 1.0), vectors[arm]).ravel()
        rows.append(np.concatenate([both, 0.3 * np.eye(len(vectors))[arm]]))
    return np.array(rows)


@pytest.mark.parametrize("rows", [2, 30])
def test_scores_equal_dense_ridge_regression(rounds, rows):
    vectors, contexts, arms, rewards, weights = rounds
    head = JointHead(vectors=vectors, dim=D, ridge=RIDGE)
    head.learn(contexts, arms, rewards, weights)
    z = features(vectors, contexts, arms)
    a = RIDGE * np.eye(z.shape[1]) + z.T @ (weights[:, None] * z)
    theta = np.linalg.solve(a, z.T @ (weights * (rewards - CENTRE)))
    mean, bonus = head.score(contexts[:rows], centre=CENTRE, scale=2.0)
    for arm in range(K):
        own = features(vectors, contexts[:rows], np.full(rows, arm))
        np.testing.assert_allclose(mean[:, arm], CENTRE + own @ theta)
        np.testing.assert_allclose(
            bonus[:, arm], 2.0 * np.sqrt(np.einsum("nd,nd->n", own @ np.linalg.inv(a), own))
        )


def test_arms_that_share_an_effect_have_their_own_counts():
    """Before, an arm without rounds had those of the arm 1,024 places before it, and counted as one
    with rewards.
    """
    draw = np.random.default_rng(0)
    vectors = Catalogue.fit(
        [f"a{index}" for index in range(1030)], draw.normal(size=(1030, 2))
    ).vectors
    head = JointHead(vectors=vectors, dim=1, ridge=RIDGE)
    head.learn(draw.normal(size=(6, 1)), np.array([3, 3, 3, 1028, 1028, 5]), draw.normal(size=6))
    assert head.counts[[3, 4, 5, 1027, 1028, 1029]].tolist() == [3, 0, 1, 0, 2, 0]
    again = JointHead(vectors=vectors, dim=1, ridge=RIDGE)
    again.restore(head.state())
    np.testing.assert_array_equal(again.counts, head.counts)


def test_a_new_arm_changes_no_prediction_and_counts_stay(rounds):
    vectors, contexts, arms, rewards, _ = rounds
    head = JointHead(vectors=vectors, dim=D, ridge=RIDGE)
    head.learn(contexts, arms, rewards)
    before = head.score(contexts)
    head.add_arm(vectors[0] + 0.5)
    after = head.score(contexts)
    np.testing.assert_allclose(after[0][:, :K], before[0])
    np.testing.assert_allclose(after[1][:, :K], before[1])
    assert head.counts.tolist() == [*np.bincount(arms, minlength=K).tolist(), 0]
    other = JointHead(vectors=head.vectors, dim=D, ridge=RIDGE)
    other.learn(contexts, arms, rewards)
    np.testing.assert_allclose(other.score(contexts)[1], after[1])


def test_a_catalogue_survives_json_and_reads_new_arms():
    draw = np.random.default_rng(1)
    many = Catalogue.fit([str(at) for at in range(60)], draw.normal(size=(60, 40)))
    again = Catalogue.from_state(many.state())
    assert many.vectors.shape == (60, 33)
    np.testing.assert_array_equal(again.vectors, many.vectors)
    features = draw.normal(size=40)
    grown = many.with_arms(["new"], [features])
    np.testing.assert_array_equal(grown.vectors[-1], again.compute_arm_vectors([features])[0])
    with pytest.raises(InvalidInput, match="'new'"):
        grown.with_arms(["new"], [features])
    with pytest.raises(InvalidInput, match=" 40 "):
        many.compute_arm_vectors([[1.0, np.nan]])


def test_distances_are_in_units_of_the_usual_neighbour():
    catalogue = Catalogue.fit(list("abcd"), np.array([[0.0], [1.0], [2.0], [6.0]]))
    distances = catalogue.compute_distances(np.array([True, True, True, False]))
    np.testing.assert_allclose(distances, [0, 0, 0, 4])


def test_a_category_that_no_known_arm_has_is_infinitely_far():
    # many arms have equal features, so the usual distance was 0
    kinds = np.eye(4)[[0, 0, 1, 1, 2, 2, 3]]
    catalogue = Catalogue.fit(list("abcdefg"), np.column_stack([kinds, [1.0, 1, 1, 1, 1, 2, 1]]))
    distances = catalogue.compute_distances(np.array([True, False, True, True, True, False, False]))
    np.testing.assert_allclose(distances, [0, 0, 0, 0, 0, np.inf, np.inf])


def informative(effect, noise, seed=1):
    """Rewards that depend on arm features by ``effect`` and on effects of each arm that no feature
    has.
    """
    draw = np.random.default_rng(seed)
    vectors = Catalogue.fit([f"a{at}" for at in range(20)], draw.normal(size=(20, 2))).vectors
    contexts = draw.normal(size=(1500, D))
    arms = draw.integers(0, 20, 1500)
    rewards = (
        effect * contexts[:, 0] * vectors[arms, 0]
        + draw.normal(size=20)[arms]
        + noise * draw.normal(size=1500)
    )
    moments = RewardMoments(standardise=True)
    moments.add(rewards)
    head = JointHead(vectors=vectors, dim=D, ridge=RIDGE)
    head.learn(contexts, arms, rewards)
    return head, moments, (vectors, contexts, arms, rewards)


def log_evidence(z, targets, penalties, noise):
    """The log density of the targets, by the covariance of all rounds."""
    covariance = noise * (np.eye(len(z)) + z / penalties @ z.T)
    return -0.5 * (
        np.linalg.slogdet(covariance)[1] + targets @ np.linalg.solve(covariance, targets)
    )


def test_fitted_penalties_maximise_the_marginal_likelihood():
    head, moments, (vectors, contexts, arms, rewards) = informative(2.0, 0.5)
    for _ in range(5):
        head.fit_penalties(moments)
        head._n_fitted_rounds = 0.0
    z = features(vectors, contexts, arms)
    blocks = np.concatenate([np.tile([1, 1, 0], D + 1), np.full(20, 2)])
    targets = (rewards - moments.centre) / moments.scale
    best = log_evidence(z, targets, head.penalties[blocks], head.noise_variance)
    # the data say nothing about the first, which has a coefficient per context number
    for block in (1, 2):
        for factor in (0.5, 2.0):
            other = np.where(np.arange(3) == block, factor, 1.0) * head.penalties
            assert log_evidence(z, targets, other[blocks], head.noise_variance) < best
    assert head.noise_variance == pytest.approx(0.25 / moments.scale**2, rel=0.2)


def test_penalties_shrink_features_that_do_not_predict_and_change_nothing_else():
    useful, useless = (informative(effect, 0.5) for effect in (2.0, 0.0))
    for head, moments, _ in (useful, useless):
        counts = head.counts.tolist()
        head.fit_penalties(moments)
        assert head.counts.tolist() == counts
    assert useless[0].penalties[1] > 30 * useful[0].penalties[1]
    head, moments, (vectors, contexts, arms, rewards) = useful
    a = (
        np.diag(head.penalties[head._get_penalty_groups()])
        + (z := features(vectors, contexts, arms)).T @ z
    )
    theta = np.linalg.solve(a, z.T @ (rewards - CENTRE))
    own = features(vectors, contexts[:9], np.full(9, 3))
    mean, bonus = head.score(contexts[:9], centre=CENTRE, scale=2.0)
    np.testing.assert_allclose(mean[:, 3], CENTRE + own @ theta)
    variance = head.noise_variance * np.einsum("nd,nd->n", own @ np.linalg.inv(a), own)
    np.testing.assert_allclose(bonus[:, 3], 2.0 * np.sqrt(variance))
    # rank-one updates continue from the fitted penalties
    head.learn(contexts[:70], arms[:70], rewards[:70])
    a += features(vectors, contexts[:70], arms[:70]).T @ features(vectors, contexts[:70], arms[:70])
    np.testing.assert_allclose(head.statistics.A_inv[0], np.linalg.inv(a), rtol=1e-6, atol=1e-12)
    again = JointHead(vectors=vectors, dim=D, ridge=RIDGE)
    again.restore(head.state())
    head.add_arm(vectors[0])
    again.add_arm(vectors[0])
    np.testing.assert_array_equal(head.score(contexts[:9])[1], again.score(contexts[:9])[1])
    blank = again.without_rounds()
    prior = (
        blank.noise_variance
        * np.square(features(head.vectors, contexts[:9], np.full(9, 20)))
        @ (1 / blank.penalties[blank._get_penalty_groups()])
    )
    np.testing.assert_allclose(np.square(blank.score(contexts[:9])[1][:, 20]), prior)
