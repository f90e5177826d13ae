"""Shift, support, collapse and verdict, on cases whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest

from daband.linear._arm_frequencies import calibrated_scale
from daband.trust._assessment import rewards_to_ask, verdict_of
from daband.trust._diagnostics import (
    DomainShift,
    classifier_two_sample,
    collapse_signs,
    doubts_of,
    outside_support,
    projected,
)
from tests.trust.conftest import made_up_scores


def draws(n, *, moved=0.0, stretched=1.0, seed=0, d=6):
    return moved + stretched * np.random.default_rng(seed).standard_normal((n, d))


def test_one_domain_cannot_be_told_from_itself():
    accuracy, p_value = classifier_two_sample(draws(400, seed=1), draws(400, seed=2))
    assert abs(accuracy - 0.5) < 0.08
    assert p_value > 0.01


@pytest.mark.parametrize("change", [{"moved": 1.0}, {"stretched": 3.0}])
def test_a_domain_that_moved_or_was_stretched_is_told_apart(change):
    accuracy, p_value = classifier_two_sample(draws(400, seed=1), draws(400, seed=2, **change))
    assert accuracy > 0.7
    assert p_value < 1e-6


def test_long_contexts_are_projected_alike_in_both_domains():
    rows = np.random.default_rng(0).random((5, 3, 20, 20))
    assert projected(rows).shape == (5, 48)
    np.testing.assert_array_equal(projected(rows)[:2], projected(rows[:2]))


def test_support_counts_what_lies_far_away():
    source = draws(600, seed=3)
    assert outside_support(source, draws(600, seed=4)) < 0.05
    half = np.concatenate([draws(300, seed=4), draws(300, seed=5, moved=8.0)])
    assert outside_support(source, half) == pytest.approx(0.5, abs=0.05)


def test_the_scale_is_higher_where_choices_are_right_more_often():
    good, poor = (made_up_scores(members=1, right=right, seed=7) for right in (0.95, 0.5))
    scales = [
        calibrated_scale(one.source_mean[0], one.source_arm[0], one.reward[0], one.weight[0]) for one in (good, poor)
    ]
    assert scales[0] > scales[1]


def test_a_policy_that_uses_one_arm_in_the_target_shows_signs_of_collapse():
    scores = made_up_scores(members=2, right=0.9, seed=9)
    assert collapse_signs(scores) == []
    flat = np.full_like(scores.target_mean, 0.25)
    fallen = replace(scores, target_arm=np.ones_like(scores.target_arm), target_mean=flat)
    told = " ".join(collapse_signs(fallen))
    assert "100% of target contexts go to arm 1" in told
    assert "hardly differ" in told


def test_arms_that_vanish_in_the_target_are_a_sign():
    scores = made_up_scores(members=1, right=0.9, seed=9)
    kept = np.unique(scores.source_arm)[: scores.n_arms // 2]
    fewer = replace(scores, target_arm=kept[scores.target_arm % len(kept)])
    assert any("are not used in the target" in sign for sign in collapse_signs(fewer))


def test_each_doubt_forbids_a_hand_over():
    near = DomainShift(before=1.0, before_p_value=0.0, after=0.6, after_p_value=0.2)
    assert doubts_of([], 0.1, near) == []
    assert doubts_of(["all go to arm 1"], 0.1, near) == ["all go to arm 1"]
    assert "60% of target contexts lie outside" in doubts_of([], 0.6, near)[0]
    for apart in (replace(near, after=1.0), replace(near, after=None)):  # by latents, by contexts where there are none
        assert "tells the domains apart" in doubts_of([], 0.1, apart)[0]


def test_predictions_far_outside_the_range_of_rewards_are_a_sign():
    scores = made_up_scores(members=1, right=0.9, seed=9)
    wild = replace(scores, target_mean=scores.target_mean * 5.0)
    assert any("outside the range" in sign for sign in collapse_signs(wild))


def test_the_verdict_follows_from_bound_estimate_and_doubts():
    def verdict(value, low, required, doubts=(), disagreement=0.0):
        given = {"value": value, "low": low, "required": required, "disagreement": disagreement, "contexts": 90}
        return verdict_of(**given, doubts=list(doubts))

    assert verdict(0.9, 0.8, 0.5).text == "hand over"
    assert verdict(0.9, 0.8, 0.76).text == "ask"  # a constant arm's value in the target is an estimate too
    doubted = verdict(0.9, 0.8, 0.5, doubts=["all go to arm 1"])
    assert (doubted.text, doubted.why) == ("ask", "all go to arm 1")
    assert doubted.rewards >= 50
    asked = verdict(0.6, 0.2, 0.5, disagreement=0.74)
    assert asked.text == "ask"
    assert asked.why == "two explanations of the target disagree on 74% of contexts"
    assert verdict(0.6, 0.2, 0.5, disagreement=0.1).why.startswith("too much of the reward")
    assert verdict(0.45, 0.4, 0.5).text == "do not"
    assert verdict(0.501, 0.2, 0.5).rewards == 90  # one for each context of the target


def test_rewards_to_ask_grow_as_the_gap_closes_and_stay_bounded():
    assert 1000 >= rewards_to_ask(0.55, 0.5) > rewards_to_ask(0.8, 0.5) >= 50
    assert rewards_to_ask(0.501, 0.5) == 1000
    assert [rewards_to_ask(0.501, 0.5, contexts) for contexts in (5000, 800, 20)] == [1000, 800, 20]
