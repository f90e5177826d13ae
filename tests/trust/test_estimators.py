"""Estimators of target accuracy: every one passes the checks, and each against a calculation by hand."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from daband.checks import check_estimator, made_up_scores
from daband.trust.agreement import (
    agreement,
    agreement_by_context,
    conditional_agreement,
    corrected_agreement,
    pairwise_agreement,
    target_agreement,
)
from daband.trust.calibration import COMMITTEE, SINGLE, spread
from daband.trust.committee_confidence import committee_probabilities
from daband.trust.estimate import estimate_target
from daband.trust.features import COMMITTEE_FEATURES, SINGLE_FEATURES, features_of, source_accuracy
from daband.trust.single_policy import (
    average_thresholded_confidence,
    confidence,
    difference_of_confidences,
    neighbours,
    optimal_transport,
)

ALONE = {
    "confidence": confidence,
    "doc": difference_of_confidences,
    "atc-max": partial(average_thresholded_confidence, by="max"),
    "atc-entropy": partial(average_thresholded_confidence, by="entropy"),
    "atc-margin": partial(average_thresholded_confidence, by="margin"),
    "cot": optimal_transport,
    "neighbours": neighbours,
}
TOGETHER = {"agreement": target_agreement, "corrected": corrected_agreement, "conditional": conditional_agreement}


def shipped(scores):
    members = range(scores.members)
    orders = ([one, *(other for other in members if other != one)] for one in members)
    return np.array([estimate_target(scores.of(order)).accuracy for order in orders])


@pytest.mark.parametrize("name", sorted(ALONE.keys() - {"confidence", "neighbours"}))
def test_every_estimator_of_one_policy_passes_the_checks(name):
    check_estimator(ALONE[name], members=1)


@pytest.mark.parametrize("name", sorted(TOGETHER.keys() - {"conditional"}))
def test_every_estimator_by_agreement_passes_the_checks(name):
    check_estimator(TOGETHER[name], members=3)


@pytest.mark.parametrize("members", [1, 2, 3])
def test_what_assess_reports_passes_the_checks(members):
    check_estimator(shipped, members=members)


def test_the_checks_find_an_estimator_that_looks_at_the_names_of_arms():
    with pytest.raises(AssertionError, match="names of arms"):
        check_estimator(lambda scores: (scores.target_arm == 0).mean(axis=1))


def test_the_checks_find_an_estimator_that_looks_at_the_source_alone():
    with pytest.raises(AssertionError, match="no lower"):
        check_estimator(lambda scores: scores.source_value())


def test_agreement_is_what_a_loop_counts():
    arms = np.random.default_rng(0).integers(3, size=(4, 50))
    table = pairwise_agreement(arms)
    for one in range(4):
        for other in range(4):
            assert table[one, other] == pytest.approx(
                np.mean([a == b for a, b in zip(arms[one], arms[other], strict=True)])
            )
    others = [[table[one, other] for other in range(4) if other != one] for one in range(4)]
    np.testing.assert_allclose(agreement(arms), np.mean(others, axis=1))
    np.testing.assert_allclose(agreement_by_context(arms, 2).mean(), agreement(arms)[2])


def test_the_correction_is_source_accuracy_over_source_agreement():
    scores = made_up_scores(members=2, right=0.7, seed=5)
    ratio = scores.source_value() / agreement(scores.source_arm)
    np.testing.assert_allclose(corrected_agreement(scores), np.clip(ratio * agreement(scores.target_arm), 0, 1))


def test_weights_of_a_log_count():
    scores = made_up_scores(members=2, right=0.7, seed=6)
    weight = np.where(scores.reward > 0, 2.0, 0.0)
    assert (replace(scores, weight=weight).source_value() == 1.0).all()
    uneven = replace(scores, weight=np.where(np.arange(400) < 4, 1.0, 0.0) * np.ones((2, 1)))
    np.testing.assert_allclose(uneven.effective_rounds(), 4.0)


def test_the_share_above_the_threshold_is_the_source_accuracy_where_nothing_changed():
    scores = made_up_scores(members=1, right=0.8, seed=7)
    same = replace(scores, target_mean=scores.source_mean, target_arm=scores.source_arm)
    for estimator in (ALONE["atc-max"], ALONE["atc-entropy"], ALONE["doc"]):
        np.testing.assert_allclose(estimator(same), scores.source_value(), atol=0.01)


def test_more_agreement_in_the_target_is_a_higher_estimate():
    scores = made_up_scores(members=3, right=0.9, seed=8)
    apart = made_up_scores(members=3, right=0.5, seed=8)
    worse = replace(scores, target_arm=apart.target_arm, target_mean=apart.target_mean)
    assert estimate_target(worse).accuracy < estimate_target(scores).accuracy - 0.1


def test_fewer_source_rounds_widen_the_interval():
    scores = made_up_scores(members=3, right=0.9, seed=9)
    few = scores.rows(source=np.arange(20))
    wide, narrow = (estimate_target(one) for one in (few, scores))
    assert wide.accuracy - wide.accuracy_low > narrow.accuracy - narrow.accuracy_low


def test_the_estimate_by_context_averages_to_the_value():
    scores = made_up_scores(members=3, right=0.8, seed=10)
    found = estimate_target(scores)
    assert found.by_context.mean() == pytest.approx(found.value, abs=1e-3)
    agreed = agreement_by_context(scores.target_arm)
    assert found.by_context[agreed == 1].mean() > found.by_context[agreed == 0].mean()


def test_every_fitted_weight_has_its_feature():
    scores = made_up_scores(members=2, right=0.8, seed=11)
    assert COMMITTEE.features == COMMITTEE_FEATURES
    assert SINGLE.features == SINGLE_FEATURES
    assert features_of(scores).values.shape == (2, len(COMMITTEE.weights))
    assert features_of(scores.of([1])).values.shape == (1, len(SINGLE.weights))


def test_a_few_held_out_rounds_promise_less_than_many():
    scores = made_up_scores(members=2, right=0.9, seed=12)
    few = scores.rows(source=np.arange(20))
    assert (scores.source_value() - source_accuracy(scores) < 0.03).all()
    np.testing.assert_allclose(source_accuracy(few), (20 * few.source_value() + 10 / 4) / 30)


def test_the_accuracy_of_real_valued_rewards_is_that_of_the_committee_s_mean():
    scores = made_up_scores(members=3, right=0.9, seed=13)
    real = replace(scores, reward=0.4 + 0.3 * scores.reward)
    best = real.source_mean.mean(axis=0).argmax(axis=1)
    share = (real.source_arm == best).mean(axis=1)
    np.testing.assert_allclose(source_accuracy(real), (400 * share + 10 / 4) / 410)
    alone = source_accuracy(real.of([0]))
    assert alone.shape == (1,) and 0.0 < alone[0] < 1.0


def test_the_spread_grows_with_what_was_lost():
    kept, lost = spread(np.array([0.6]), np.array([0.6])), spread(np.array([0.6]), np.array([0.9]))
    assert lost > 2 * kept
    assert spread(np.array([0.95]), np.array([0.95])) < kept
    np.testing.assert_allclose(spread(np.array([0.6]), np.array([0.3])), kept)  # above the source: nothing lost


def test_probabilities_of_a_committee_are_calibrated_on_the_rewards_of_its_choices():
    scores = made_up_scores(members=3, right=0.7, seed=14)
    found = committee_probabilities(scores)
    np.testing.assert_allclose(found.source.sum(axis=1), 1.0)
    here, there = found.of_choices(scores)
    assert here.shape == scores.source_arm.shape and there.shape == scores.target_arm.shape
    assert abs(here.mean() - scores.source_value().mean()) < 0.1
    np.testing.assert_array_equal(here[1], found.source[np.arange(400), scores.source_arm[1]])
