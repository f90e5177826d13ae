"""The estimators for scikit-learn: its own checks, domains, pipelines, routing, and bandit logs."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import daband
from daband.errors import InvalidInput
from daband.sklearn import TransferClassifier, TransferPolicy


@pytest.fixture
def wine():
    """Return features (a target in other units), labels (-1 in the target), domains, and the true
    labels.
    """
    features, labels = load_wine(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(features))
    features = features[rows]
    labels = labels[rows]
    domain = np.where(np.arange(len(features)) < 90, 1, -2)
    features[domain < 0] = 3.0 * features[domain < 0] + 5.0
    return features, np.where(domain < 0, -1, labels), domain, labels


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.parametrize(
    "estimator", [TransferClassifier(), TransferPolicy()], ids=lambda one: type(one).__name__
)
def test_scikit_learn_accepts_the_estimators(estimator):
    check_estimator(estimator, on_skip=None)


def test_target_rows_are_used_and_their_labels_are_not(wine):
    features, labels, domain, truth = wine
    classifier = TransferClassifier(shift="units").fit(features, labels, sample_domain=domain)
    other = TransferClassifier(shift="units").fit(
        features, np.where(domain < 0, 1, labels), sample_domain=domain
    )
    target = domain < 0
    assert classifier.score(features[target], truth[target]) > 0.9
    np.testing.assert_array_equal(
        classifier.predict_proba(features[target]), other.predict_proba(features[target])
    )
    alone = TransferClassifier(shift="units").fit(features[~target], labels[~target])
    assert alone.score(features[target], truth[target]) < 0.6
    assert alone.score(features[~target], truth[~target]) > 0.9


def test_probabilities_are_distributions_in_the_order_of_predictions(wine):
    features, labels, domain, _ = wine
    classifier = TransferClassifier(shift="units").fit(features, labels, sample_domain=domain)
    probabilities = classifier.predict_proba(features, sample_domain=domain)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    assert probabilities.min() >= 0.0
    np.testing.assert_array_equal(
        classifier.classes_[probabilities.argmax(axis=1)],
        classifier.predict(features, sample_domain=domain),
    )
    # skada's default
    as_target = classifier.predict_proba(features, sample_domain=np.full(len(features), -1))
    np.testing.assert_array_equal(as_target, classifier.predict_proba(features))


def test_several_sources_and_targets_have_domains_of_their_own(wine):
    features, labels, domain, truth = wine
    domain = np.where(domain < 0, -1 - np.arange(len(domain)) % 2, np.arange(len(domain)) % 2)
    classifier = TransferClassifier(shift="units").fit(features, labels, sample_domain=domain)
    assert classifier.policy_.domains.names == ("0", "1", "-2", "-1")
    assert classifier.score(features, truth, sample_domain=domain) > 0.9
    with pytest.raises(InvalidInput, match=r"sample_domain must be one of .*got -7"):
        classifier.predict(features, sample_domain=np.full(len(features), -7))


def test_pipelines_searches_and_frames_pass_the_domain_on(wine, routing):
    features, labels, domain, truth = wine
    frame = pd.DataFrame(features, columns=[f"x{i}" for i in range(features.shape[1])])
    pipeline = make_pipeline(StandardScaler(), TransferClassifier(shift="units")).set_output(
        transform="pandas"
    )
    pipeline.fit(frame, labels, sample_domain=domain)
    assert pipeline[-1].feature_names_in_[0] == "x0"
    assert (pipeline.predict(frame[domain < 0]) == truth[domain < 0]).mean() > 0.9
    search = GridSearchCV(
        TransferClassifier(), {"shift": ["covariate", "units"]}, cv=2, error_score="raise"
    )
    assert search.fit(features, truth, sample_domain=domain).best_params_ == {"shift": "units"}
    silent = TransferClassifier().set_fit_request(sample_domain=False)
    with pytest.raises(TypeError, match="sample_domain"):
        make_pipeline(StandardScaler(), silent).fit(features, labels, sample_domain=domain)


@pytest.fixture
def shifted():
    """Return features with a target in other units, labels, domains and the true labels."""
    rng = np.random.default_rng(0)
    source = rng.normal(size=(200, 3))
    features = np.concatenate([source, 3.0 * rng.normal(size=(200, 3)) + 2.0])
    truth = (features[:, 0] > np.repeat([0.0, 2.0], 200)).astype(int)
    domain = np.repeat([1, -2], 200)
    return features, np.where(domain < 0, -1, truth), domain, truth


@pytest.mark.parametrize("kind", [int, float, str])
def test_rows_without_a_label_do_not_count_in_a_score(shifted, kind):
    features, labels, domain, truth = shifted
    source = domain > 0
    classifier = TransferClassifier(shift="units")
    classifier.fit(features, labels.astype(kind), sample_domain=domain)
    some = np.where(source | (np.arange(400) < 300), truth, -1).astype(kind)  # 100 target labels
    predicted = classifier.predict(features, sample_domain=domain)
    for given in (labels.astype(kind), some):
        counted = given.astype(float) >= 0.0
        expected = (predicted == given)[counted].mean()
        assert classifier.score(features, given, sample_domain=domain) == expected
        assert expected > 0.9
    weights = np.arange(400.0)
    assert classifier.score(features, some, weights, domain) == pytest.approx(
        np.average((predicted == some)[:300], weights=weights[:300])
    )
    if kind is float:
        assert (
            classifier.score(features, np.where(some < 0, np.nan, some), None, domain) == expected
        )
    with pytest.raises(InvalidInput, match="y must have a label"):
        classifier.score(features[~source], labels[~source].astype(kind))


def test_minus_one_may_be_a_class_unless_it_may_be_a_mask(shifted):
    features, _, domain, truth = shifted
    signs = 2 * truth - 1
    classifier = TransferClassifier(shift="units").fit(features, signs, sample_domain=domain)
    expected = (classifier.predict(features, sample_domain=domain) == signs).mean()
    assert classifier.score(features, signs, sample_domain=domain) == expected > 0.9
    masked = np.where(domain < 0, -1, signs)
    with pytest.raises(InvalidInput, match="-1 is also a class"):
        classifier.score(features, masked, sample_domain=domain)
    masked = np.where(domain < 0, np.nan, signs)
    source_score = classifier.score(features[:200], signs[:200], sample_domain=domain[:200])
    assert classifier.score(features, masked, sample_domain=domain) == source_score


def test_a_search_scores_labelled_rows_only(shifted, routing):
    """Before, masked rows were errors: the best score was 0.5, and of the wrong shift."""
    features, labels, domain, truth = shifted
    grid = {"shift": ["covariate", "units"]}
    search = GridSearchCV(TransferClassifier(), grid, cv=5, error_score="raise")
    search.fit(features, labels, sample_domain=domain)
    assert search.cv_results_["mean_test_score"].min() > 0.9  # the source does not tell them apart
    search.fit(features, truth, sample_domain=domain)  # target labels do
    assert search.best_params_ == {"shift": "units"}
    with pytest.raises(InvalidInput, match="y must have a label"):
        cross_val_score(
            TransferClassifier(),
            features,
            labels,
            params={"sample_domain": domain},
            cv=KFold(4),  # two folds have target rows only
            error_score="raise",
        )


def logged(n, seed):
    rng = np.random.default_rng(seed)
    features = rng.uniform(size=(n, 2))
    action = rng.choice(["call", "mail"], n)
    reward = rng.normal(np.where((features[:, 0] > 0.5) == (action == "mail"), 5.0, 1.0))
    return features, reward, action, np.full(n, 0.5)


@pytest.mark.parametrize("method", ["mixture", "log"])
def test_a_policy_is_learned_from_a_log_and_scored_on_another(method):
    features, reward, action, propensity = logged(800, 0)
    domain, reward[600:] = np.repeat([1, -1], [600, 200]), np.nan
    policy = TransferPolicy(method).fit(
        features, reward, action=action, propensity=propensity, sample_domain=domain
    )
    assert policy.predict([[0.9, 0.5], [0.1, 0.5]]).tolist() == ["mail", "call"]
    test, rewards, actions, chances = logged(800, 1)
    assert policy.score(test, rewards, action=actions, propensity=chances) == pytest.approx(
        5.0, abs=0.4
    )
    assert policy.policy_.arm_names == ("call", "mail")
    score = policy.score(test, rewards, action=actions, propensity=chances)
    masked = np.concatenate([rewards, np.full(800, np.nan)])  # the next 800 rows are unlabelled
    more = [np.concatenate([column, column]) for column in (test, actions, chances)]
    assert policy.score(more[0], masked, action=more[1], propensity=more[2]) == score
    with pytest.raises(InvalidInput, match="y must have a label or reward"):
        policy.score(test, masked[800:], action=actions, propensity=chances)
    with pytest.raises(InvalidInput, match="pass action="):
        policy.score(test, rewards)
    with pytest.raises(InvalidInput, match="'text'"):
        policy.score(test[:1], rewards[:1], action=["text"], propensity=chances[:1])


def test_a_policy_is_learned_from_a_table_of_rewards():
    rng = np.random.default_rng(0)
    features = rng.uniform(size=(200, 1))
    rewards = pd.DataFrame({"low": 1.0 - features[:, 0], "high": features[:, 0]})
    policy = clone(TransferPolicy(random_state=np.random.RandomState(1))).fit(features, rewards)
    assert policy.predict([[0.1], [0.9]]).tolist() == ["low", "high"]
    best = rewards.max(axis=1)
    assert policy.score(features, rewards) == pytest.approx(best.mean(), abs=0.01)
    rewards[:50] = np.nan
    assert policy.score(features, rewards) == pytest.approx(best[50:].mean(), abs=0.01)
    with pytest.raises(InvalidInput, match="column for every action"):
        policy.score(features, rewards[["low"]])


@pytest.mark.parametrize(
    ("estimator", "given", "message"),
    [
        (TransferClassifier(), {"sample_domain": [-1] * 4}, "must have source rows"),
        (TransferClassifier(), {"sample_domain": [0.5] * 4}, "one integer per row"),
        (
            TransferClassifier(),
            {"sample_domain": ["source", "source", "target", "target"]},
            "one integer per row",
        ),
        (TransferClassifier(), {"sample_domain": [0, 0, np.inf, np.nan]}, "one integer per row"),
        (TransferClassifier(), {"sample_domain": [1, 1]}, "inconsistent numbers of samples"),
        (TransferPolicy(), {}, "action must be given"),
        (
            TransferPolicy("log"),
            {"action": [0, 1, 0, 1], "propensity": [2.0] * 4},
            "propensity must be in",
        ),
    ],
)
def test_bad_input_names_the_argument(estimator, given, message):
    with pytest.raises(ValueError, match=message):
        estimator.fit([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], **given)


def test_a_policy_says_what_fit_and_predict_are_called():
    policy = daband.LinUCB(context_shape=(1,), n_arms=2)
    for name, instead in {
        "fit": "daband.train",
        "predict": "policy.select",
        "partial_fit": "policy.update",
    }.items():
        with pytest.raises(AttributeError, match=f"LinUCB has no {name}: use {instead}"):
            getattr(policy, name)
    assert not hasattr(policy, "score")


def test_columns_of_rewards_may_have_any_order():
    X = np.array([[0.0], [1.0]] * 20)
    rewards = pd.DataFrame({"mail": 1.0 - X[:, 0], "call": X[:, 0]})
    policy = TransferPolicy().fit(X, rewards)
    best = np.where(X[:, 0] < 0.5, "mail", "call")
    assert policy.score(X, np.ones(40), action=best, propensity=np.full(40, 0.5)) > 0.9
