"""The ensemble of supervised learners: equal to the models of scikit-learn, weighted by
cross-validation.
"""

import warnings

import numpy as np
import pytest
import threadpoolctl
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.linear_model import LogisticRegression
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads

from daband.policies import _ensemble
from daband.policies._ensemble import fit_ensemble


def make_rows(n=400, n_arms=3, seed=0):
    """Sorted contexts with three labels that depend on a product, and their one-hot rewards."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, 4))
    labels = (x[:, 0] * x[:, 1] > 0).astype(int) + (x[:, 2] > 1)
    rewards = np.eye(n_arms)[labels]
    order = np.lexsort(np.column_stack([x, rewards]).T)
    return x[order], labels[order], rewards[order]


@pytest.mark.parametrize("n_labels", [2, 3])
def test_predictions_equal_those_of_scikit_learn_classifiers(n_labels):
    x, labels, _ = make_rows()
    labels = np.minimum(labels, n_labels - 1)
    network = fit_ensemble(x, np.eye(3)[labels], has_labels=True)
    new = make_rows(200, seed=1)[0]
    linear, boosted, forest = network.predict(new)
    features = network._ramps(x)[:, 1:]
    logistic = LogisticRegression(C=_ensemble._INVERSE_PENALTY, max_iter=200).fit(features, labels)
    models = [
        (logistic.predict_proba(network._ramps(new)[:, 1:]), linear),
        (HistGradientBoostingClassifier(**_ensemble._BOOSTING), boosted),
        (ExtraTreesClassifier(**_ensemble._FOREST), forest),
    ]
    for model, predictions in models:
        expected = (
            model if isinstance(model, np.ndarray) else model.fit(x, labels).predict_proba(new)
        )
        # thresholds are rounded, which may move a row to another leaf
        differences = np.abs(predictions[:, :n_labels] - expected).max(axis=1)
        assert np.median(differences) < 1e-6
        assert (differences < 1e-6).mean() > 0.98
        assert (predictions[:, n_labels:] < 1e-6).all()


def test_predictions_equal_those_of_scikit_learn_regressors():
    x, _, rewards = make_rows()
    rewards = 5.0 * rewards + np.random.default_rng(2).normal(size=rewards.shape)
    order = np.lexsort(np.column_stack([x, rewards]).T)
    x, rewards = x[order], rewards[order]
    network = fit_ensemble(x, rewards, has_labels=False)
    new = make_rows(200, seed=1)[0]
    _, boosted, forest = network.predict(new)
    for arm in range(3):
        model = HistGradientBoostingRegressor(**_ensemble._BOOSTING).fit(x, rewards[:, arm])
        assert np.median(np.abs(boosted[:, arm] - model.predict(new))) < 1e-6
    model = ExtraTreesRegressor(**_ensemble._FOREST).fit(x, rewards)
    assert np.median(np.abs(forest - model.predict(new))) < 1e-6


def test_weights_follow_cross_validation_and_never_leave_a_learner_out():
    x, _, rewards = make_rows(1200)
    weights = fit_ensemble(x, rewards, has_labels=True).arrays["weights"]
    assert weights[1] > weights[0]  # a product of two columns is not linear
    assert weights.min() > 1 / 6 - 1e-9
    assert weights.sum() == pytest.approx(1.0)


def test_likelihood_weights_are_those_of_the_best_mixture():
    draw = np.random.default_rng(0)
    predictions = draw.dirichlet(np.ones(3), (3, 500))
    rewards = np.eye(3)[draw.integers(0, 3, 500)]
    weights = _ensemble._fit_likelihood(predictions, rewards)

    def log_likelihood(candidate):
        return np.log(np.tensordot(candidate, predictions, 1)[rewards == 1.0]).mean()

    others = draw.dirichlet(np.ones(3), 200)
    assert log_likelihood(weights) >= max(map(log_likelihood, others)) - 1e-9


def test_least_squares_weights_are_those_of_the_best_mixture():
    draw = np.random.default_rng(0)
    rewards = draw.normal(size=(500, 3))
    predictions = rewards + draw.normal(size=(3, 500, 3)) * np.array([1.0, 2.0, 4.0])[:, None, None]
    weights = _ensemble._fit_least_squares(predictions, rewards)

    def squared_error(candidate):
        return np.square(np.tensordot(candidate, predictions, 1) - rewards).mean()

    assert squared_error(weights) <= min(map(squared_error, draw.dirichlet(np.ones(3), 200)))
    assert weights[0] > weights[1] > weights[2]


def test_each_fit_has_one_thread_and_the_limits_end_with_the_fits(monkeypatch):
    def count_threads():
        n_openmp = _openmp_effective_n_threads()
        infos = threadpoolctl.threadpool_info()
        return n_openmp, *(info["num_threads"] for info in infos if info["user_api"] == "blas")

    counts = []
    fit = _ensemble._fit_learners
    monkeypatch.setattr(_ensemble, "count_processors", lambda: 4)
    monkeypatch.setattr(
        _ensemble,
        "_fit_learners",
        lambda *arguments: counts.append(count_threads()) or fit(*arguments),
    )
    x, _, rewards = make_rows()
    with threadpoolctl.threadpool_limits(limits=2), warnings.catch_warnings():
        before = count_threads()
        filters = list(warnings.filters)
        fit_ensemble(x, rewards, has_labels=True)
        assert count_threads() == before
        assert warnings.filters == filters
    assert [set(count) for count in counts] == [{1}] * 4


def test_one_label_one_row_and_a_rare_label():
    x, _, _ = make_rows(50)
    labels = np.zeros(50, int)
    always = fit_ensemble(x, np.eye(3)[labels], has_labels=True)
    assert (always.mix(x)[:, 0] > 0.999).all()
    assert fit_ensemble(x[:1], np.eye(3)[:1], has_labels=True).mix(x).shape == (50, 3)
    labels[0] = 2
    rare = fit_ensemble(x, np.eye(3)[labels], has_labels=True)
    assert (rare.mix(x).argmax(axis=1) == 0).mean() > 0.9


@pytest.mark.parametrize("has_labels", [True, False])
@pytest.mark.parametrize("n_changed", [0, 1], ids=["constant", "constant in a fold"])
def test_constant_contexts_predict_mean_rewards(has_labels, n_changed):
    x = np.zeros((60, 2))
    x[:n_changed, 0] = 1.0
    rewards = np.eye(2)[np.arange(60) % 3 // 2]
    network = fit_ensemble(x, rewards, has_labels=has_labels)
    np.testing.assert_allclose(network.mix(x[1:]), np.tile([2 / 3, 1 / 3], (59, 1)), atol=0.02)


def test_many_columns_times_arms_leave_boosting_out():
    x = np.random.default_rng(0).normal(size=(60, 600))
    rewards = np.eye(2)[(x[:, 0] > 0).astype(int)]
    weights = fit_ensemble(x, rewards, has_labels=True).arrays["weights"]
    assert weights[1] == 0.0
    assert weights.sum() == pytest.approx(1.0)
