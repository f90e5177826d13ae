"""The estimators for scikit-learn: its own checks, domains, pipelines, routing, and bandit logs."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from daband.errors import InvalidInput
from daband.sklearn import TransferClassifier


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


@pytest.mark.parametrize("method", ["linucb", pytest.param("supervised", marks=pytest.mark.slow)])
def test_scikit_learn_accepts_the_estimator(method):
    check_estimator(TransferClassifier(method), on_skip=None)


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
    with pytest.raises(InvalidInput, match=r"sample_domain .*-7"):
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
    with pytest.raises(InvalidInput, match=r"^y .*label"):
        classifier.score(features[~source], labels[~source].astype(kind))


def test_minus_one_may_be_a_class_unless_it_may_be_a_mask(shifted):
    features, _, domain, truth = shifted
    signs = 2 * truth - 1
    classifier = TransferClassifier(shift="units").fit(features, signs, sample_domain=domain)
    expected = (classifier.predict(features, sample_domain=domain) == signs).mean()
    assert classifier.score(features, signs, sample_domain=domain) == expected > 0.9
    masked = np.where(domain < 0, -1, signs)
    with pytest.raises(InvalidInput, match=r"-1 .*class"):
        classifier.score(features, masked, sample_domain=domain)
    masked = np.where(domain < 0, np.nan, signs)
    source_score = classifier.score(features[:200], signs[:200], sample_domain=domain[:200])
    assert classifier.score(features, masked, sample_domain=domain) == source_score


def test_a_search_scores_labelled_rows_only(shifted, routing):
    """Before, masked rows were errors: the best score was 0.5, and of the wrong shift."""
    features, labels, domain, truth = shifted
    grid = {"shift": ["covariate", "units"]}
    search = GridSearchCV(TransferClassifier(), grid, cv=3, refit=False, error_score="raise")
    search.fit(features, labels, sample_domain=domain)
    assert search.cv_results_["mean_test_score"].min() > 0.9  # the source does not tell them apart
    search.fit(features, truth, sample_domain=domain)  # target labels do
    assert search.best_params_ == {"shift": "units"}
    with pytest.raises(InvalidInput, match=r"^y .*label"):
        cross_val_score(
            TransferClassifier(),
            features,
            labels,
            params={"sample_domain": domain},
            cv=KFold(4),  # two folds have target rows only
            error_score="raise",
        )


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        ([-1] * 4, "sample_domain .*source"),
        ([0.5] * 4, "sample_domain .*integer"),
        (["source", "source", "target", "target"], "sample_domain .*integer"),
        ([0, 0, np.inf, np.nan], "sample_domain .*integer"),
        ([1, 1], r"samples: \[4, 2\]"),
    ],
)
def test_bad_input_names_the_argument(domains, message):
    with pytest.raises(ValueError, match=message):
        TransferClassifier().fit([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], sample_domain=domains)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_may_have_gaps_texts_categories_and_dates(library):
    """Before: could not convert string to float."""
    rng = np.random.default_rng(0)
    n = 300
    city = rng.choice(["Oslo", "Rome"], n)
    age = np.where(rng.random(n) < 0.1, np.nan, rng.normal(40, 9, n))
    frame = pd.DataFrame(
        {
            "age": age,
            "city": pd.Categorical(city),
            "member": rng.random(n) < 0.5,
            "channel": rng.choice(["web", "shop"], n),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), "D"),
        }
    )
    frame = frame if library == "pandas" else pl.from_pandas(frame)
    labels = np.where(city == "Oslo", "a", "b")
    domains = np.where(np.arange(n) < 200, 1, -2)
    classifier = TransferClassifier().fit(frame, labels, sample_domain=domains)
    assert classifier.score(frame, labels, sample_domain=domains) == 1.0
    assert list(classifier.feature_names_in_) == list(frame.columns)
    assert classifier.predict(frame[:5]).tolist() == labels[:5].tolist()
    with pytest.raises(InvalidInput, match="frame"):
        classifier.predict(np.zeros((2, 5)))
