"""The predictor by which a policy, a file and a service decide."""

import json

import numpy as np
import pytest

import daband
from daband.linear._joint_ridge import MAX_SINGLE_ROWS, JointHead
from daband.linear._predictor import (
    LARGE_INVERSE_BYTES,
    ContextStep,
    MixturePredictor,
    RidgePredictor,
    describe,
    freeze,
)
from daband.linear._ridge_head import RidgeHead
from daband.serving._numpy_networks import load_part

N_ARMS = 3


def learned_head(kind, *, dim=4, seed=0):
    """A head that learned 60 rounds."""
    rng = np.random.default_rng(seed)
    head = (
        RidgeHead(n_arms=N_ARMS, dim=dim, arms="disjoint", ridge=1.0)
        if kind == "ridge"
        else JointHead(vectors=rng.normal(size=(N_ARMS, 2)), dim=dim, ridge=1.0)
    )
    head.learn(rng.normal(size=(60, dim)), rng.integers(0, N_ARMS, 60), rng.normal(size=60))
    return head


def mixture(*members):
    weights = np.array([[0.2] * N_ARMS, [0.8] * N_ARMS])
    return MixturePredictor(
        members=members, weights=weights, bonus_weights=weights, new_weights=np.full((2, 2), 0.5)
    )


@pytest.fixture(params=["ridge", "joint", "mixture"])
def predictor(request):
    if request.param != "mixture":
        return learned_head(request.param).predictor(0.5, 2.0)
    return mixture(*(learned_head(kind).predictor(0.5, 2.0) for kind in ("ridge", "joint")))


def assert_equal_scores(first, second, contexts, rtol=1e-9):
    for own, other in zip(first(contexts), second(contexts), strict=True):
        np.testing.assert_allclose(own, other, rtol=rtol)


def test_a_predictor_that_was_written_predicts_the_same(predictor):
    contexts = np.random.default_rng(1).normal(size=(9, 4))
    transform = daband.PCA(4)
    transform.fit(np.random.default_rng(2).normal(size=(50, 4)))
    predictor = predictor.after(ContextStep((4,), transform.get_step()))
    settings, arrays = describe(predictor)
    read = load_part(json.loads(json.dumps(settings)), arrays)
    for n_rows in (1, MAX_SINGLE_ROWS + 1, 1):
        assert_equal_scores(predictor, read, contexts[:n_rows])


@pytest.mark.parametrize("kind", ["ridge", "joint"])
def test_a_predictor_has_views_until_it_is_frozen(kind):
    head = learned_head(kind)
    view = head.predictor(0.0, 1.0)
    assert np.shares_memory(view.theta, head.statistics.theta)
    assert np.shares_memory(view.inverse, head.statistics.A_inv)
    frozen = freeze(view)
    contexts = np.ones((1, 4))
    before = frozen(contexts)
    head.learn(contexts, np.array([0]), np.array([5.0]))
    np.testing.assert_array_equal(frozen(contexts), before)
    assert view(contexts)[1][0, 0] < before[1][0, 0]


def test_arms_of_a_request_have_their_scores_and_new_arms_have_the_prior(predictor):
    contexts = np.random.default_rng(1).normal(size=(6, 4))
    vectors = np.ones((3, 2))
    if hasattr(predictor, "vectors"):
        vectors[:2] = predictor.vectors[[2, 0]]
    elif isinstance(predictor, MixturePredictor):
        vectors[:2] = predictor.members[1].vectors[[2, 0]]
    mean, bonus = predictor(contexts)
    chosen = predictor.for_arms(np.array([2, 0, -1]), vectors)
    chosen_mean, chosen_bonus = chosen(contexts)
    np.testing.assert_allclose(chosen_mean[:, :2], mean[:, [2, 0]])
    np.testing.assert_allclose(chosen_bonus[:, :2], bonus[:, [2, 0]])
    if isinstance(predictor, RidgePredictor):
        np.testing.assert_array_equal(chosen_mean[:, 2], predictor.centre)
    again = chosen.for_arms(np.array([2, 1]), vectors[[2, 1]])
    np.testing.assert_allclose(again(contexts)[0], chosen_mean[:, [2, 1]])


def test_a_mixture_without_large_matrices_keeps_the_sum_of_bonus_weights():
    large = np.zeros((N_ARMS, 600, 600))
    assert large.nbytes > LARGE_INVERSE_BYTES
    wide = RidgePredictor(theta=np.zeros((N_ARMS, 600)), inverse=large)
    small = RidgePredictor.constant(np.arange(3.0), np.ones(3))
    contexts = np.ones((2, 600))
    mean, bonus = mixture(wide, small).without_large_inverses()(contexts)
    np.testing.assert_allclose(mean, [[0.0, 0.8, 1.6]] * 2)
    np.testing.assert_allclose(bonus, 1.0)
    assert not wide.without_large_inverses().has_bonuses


def test_contexts_per_arm_are_scored_by_one_regression():
    head = RidgeHead(n_arms=N_ARMS, dim=2, arms="shared", ridge=1.0)
    transform = daband.PCA(2)
    transform.fit(np.random.default_rng(2).normal(size=(50, 2)))
    predictor = head.predictor(0.0, 1.0).after(ContextStep((2,), transform.get_step()))
    mean, bonus = predictor(np.random.default_rng(0).normal(size=(5, N_ARMS, 2)))
    assert mean.shape == bonus.shape == (5, N_ARMS)
