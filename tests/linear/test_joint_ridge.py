"""Hybrid LinUCB against dense algebra, and catalogues of arms."""

import numpy as np
import pytest

from daband.errors import InvalidInput
from daband.linear._catalogue import Catalogue
from daband.linear._joint_ridge import JointHead

K, D, N, RIDGE, CENTRE = 5, 3, 60, 0.7, 0.3


@pytest.fixture
def rounds():
    draw = np.random.default_rng(0)
    catalogue = Catalogue.fit([f"a{at}" for at in range(K)], draw.normal(size=(K, 2)))
    contexts, arms = draw.normal(size=(N, D)), draw.integers(0, K - 1, N)
    return catalogue.vectors, contexts, arms, draw.normal(size=N), draw.random(N)


def features(vectors, contexts, arms):
    """All products of [x / sqrt(d), 1] and the arm's vector, and .3 at the arm's index, written out."""
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
        np.testing.assert_allclose(bonus[:, arm], 2.0 * np.sqrt(np.einsum("nd,nd->n", own @ np.linalg.inv(a), own)))


def test_sums_of_each_arm_teach_the_same_as_rounds(rounds):
    vectors, contexts, arms, rewards, weights = rounds
    by_rounds, by_sums = (JointHead(vectors=vectors, dim=D, ridge=RIDGE) for _ in range(2))
    by_rounds.learn(contexts, arms, rewards, weights)
    sums = by_sums.empty_sums()
    sums.add(*by_sums.of_chosen(contexts, arms), rewards, weights)
    learned = by_sums.with_sums(sums)
    np.testing.assert_allclose(learned.inverse, by_rounds.statistics.inverse, atol=1e-10)
    np.testing.assert_allclose(learned.theta, by_rounds.statistics.theta, atol=1e-10)


def test_a_new_arm_changes_no_prediction_and_counts_stay(rounds):
    vectors, contexts, arms, rewards, _ = rounds
    head = JointHead(vectors=vectors, dim=D, ridge=RIDGE)
    head.learn(contexts, arms, rewards)
    before = head.score(contexts)
    head.add_vectors(vectors[:1] + 0.5)
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
    np.testing.assert_array_equal(grown.vectors[-1], again.vectors_of([features])[0])
    with pytest.raises(InvalidInput, match="is an arm already"):
        grown.with_arms(["new"], [features])
    with pytest.raises(InvalidInput, match="40 finite numbers"):
        many.vectors_of([[1.0, np.nan]])


def test_distances_are_in_units_of_the_usual_neighbour():
    catalogue = Catalogue.fit(list("abcd"), np.array([[0.0], [1.0], [2.0], [6.0]]))
    distances = catalogue.distances(np.array([True, True, True, False]))
    np.testing.assert_allclose(distances, [0, 0, 0, 4])
