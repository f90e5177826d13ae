"""The estimate and its bound from readings of the target: on cases whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest

import daband
from daband._shift import Shift, default_shift
from daband.trust._estimate import ADAPTED, ALONE, MISSED, estimate_target
from daband.trust._explanations import Explanation, explanations_of, in_source_units
from tests.trust.conftest import made_up_scores


def readings(scores, policies=None):
    """Every policy of the scores, as trained."""
    fields = ("source_mean", "target_mean", "source_arm", "target_arm")
    chosen = range(scores.members) if policies is None else policies
    return [Explanation(m, "as trained", *(getattr(scores, name)[m] for name in fields)) for m in chosen]


def test_more_may_be_missed_and_no_reading_lies_below_the_bound():
    scores = made_up_scores(members=3, right=0.9, seed=0)
    found = estimate_target(scores, [replace(one, method=f"kind {one.policy}") for one in readings(scores)])
    lost = MISSED * (1.0 - found.value)
    assert found.low <= found.value - lost
    assert found.low == pytest.approx(
        min(found.value - lost, *found.by_explanation.values()) - 1.645 * found.source_error
    )
    assert found.low <= min(found.by_explanation.values())
    assert 0.0 <= found.low <= found.value <= 1.0
    assert found.by_context.mean() == pytest.approx(found.value, abs=1e-3)


def test_a_reading_that_disagrees_lowers_estimate_and_bound():
    scores = made_up_scores(members=2, right=0.9, seed=0)
    agreeing = estimate_target(scores, readings(scores))
    turned = np.roll(scores.target_mean[0], 1, axis=1)
    other = Explanation(0, "other units", scores.source_mean[0], turned, scores.source_arm[0], turned.argmax(axis=1))
    doubted = estimate_target(scores, [*readings(scores), other])
    assert doubted.value < agreeing.value - 0.1
    assert doubted.low < agreeing.low
    assert doubted.disagreement > 0.9
    assert "other units" in doubted.apart[1]


def test_readings_of_one_method_share_its_errors():
    """The fall from the source counts for more than where another method reads the target."""
    scores = made_up_scores(members=2, right=0.9, seed=0)
    alone = readings(scores)
    others = [alone[0], replace(alone[1], method="another")]
    in_source = float(scores.source_value()[0])
    one, both = estimate_target(scores, alone), estimate_target(scores, others)
    assert in_source - one.value == pytest.approx(ALONE * (in_source - both.value))
    assert both.value < in_source


def test_what_adapted_to_these_contexts_may_be_off_however_sure_it_is():
    """Seeds of one recipe that aligns agreed on 94% of digits of another hand, and were right on 72%."""
    scores = made_up_scores(members=2, right=0.99, seed=0)
    adapted = [replace(one, adapted=True) for one in readings(scores)]
    one, other = estimate_target(scores, adapted), estimate_target(scores, readings(scores))
    assert one.value == other.value > 0.9
    assert one.low == pytest.approx(one.value - ADAPTED - 1.645 * one.source_error)
    assert one.low < other.low
    kinds = [adapted[0], replace(adapted[1], method="another")]
    assert estimate_target(scores, kinds).low > one.low


def test_policies_that_rush_to_one_arm_agree_and_earn_what_the_arm_does():
    scores = made_up_scores(members=2, right=0.95, seed=0)
    rushed = np.full_like(scores.target_mean, 0.2)
    rushed[:, :, 1] = 0.9
    rushed += 1e-3 * np.arange(2)[:, None, None]
    scores = replace(scores, target_mean=rushed, target_arm=np.ones_like(scores.target_arm))
    found = estimate_target(scores, [replace(one, method=f"kind {one.policy}") for one in readings(scores)])
    assert found.agreement == 1.0
    by_agreement = (3.0 * found.value - min(found.by_explanation.values())) / 2.0
    assert by_agreement == pytest.approx(scores.arm_value[1])
    assert found.value < float(scores.source_value()[0]) - 0.3


def test_an_explanation_counts_by_its_agreement_in_the_source():
    """One that guesses in both domains shows no fall, and hardly moves the median of those that follow the policy."""
    scores = made_up_scores(members=4, right=0.9, seed=0)
    kinds = [replace(one, method=f"kind {one.policy}") for one in readings(scores)]
    moved = np.roll(kinds[1].target_mean, 1, axis=1)
    kinds[1] = replace(kinds[1], target_mean=moved, target_arm=moved.argmax(axis=1))
    guess = kinds[1].source_mean[:, [1, 2, 3, 0]]
    guessing = replace(kinds[1], source_mean=guess, source_arm=guess.argmax(axis=1), target_mean=moved)
    believed, doubted, guessed = (
        estimate_target(scores, which).value
        for which in ([kinds[0], *kinds[2:]], kinds[:3], [*kinds[:1], guessing, kinds[2]])
    )
    assert doubted < believed - 0.1
    assert guessed > doubted + 0.1


def test_other_units_are_a_what_if():
    """They count for less among the agreements than another policy does, and as much in the smallest value."""
    scores = made_up_scores(members=3, right=0.9, seed=0)
    kinds = [replace(one, method=f"kind {one.policy}") for one in readings(scores)]
    moved = kinds[1].target_mean.copy()
    moved[::2] = np.roll(moved[::2], 1, axis=1)
    other = replace(kinds[1], target_mean=moved, target_arm=moved.argmax(axis=1))
    what_if = replace(other, reading="other units")
    found = [estimate_target(scores, [kinds[0], one, kinds[2]]) for one in (other, what_if)]
    assert found[1].value > found[0].value + 0.05
    assert min(found[0].by_explanation.values()) == min(found[1].by_explanation.values())


def test_the_best_constant_is_one_arm_for_all_explanations():
    """Two explanations that praise different arms do not make a constant that has both."""
    scores = made_up_scores(members=2, right=0.9, seed=0)
    kinds = [replace(one, method=f"kind {one.policy}") for one in readings(scores)]
    praised = []
    for arm, one in enumerate(kinds):
        mean = one.target_mean.copy()
        mean[:, arm] += 0.4
        praised.append(replace(one, target_mean=mean, target_arm=mean.argmax(axis=1)))
    alone = min(estimate_target(scores, [one]).constant for one in praised)
    assert estimate_target(scores, praised).constant < alone - 0.1


def test_a_single_explanation_bounds_nothing_unless_the_shift_is_stated():
    scores = made_up_scores(members=1, right=0.9, seed=0)
    assert estimate_target(scores, readings(scores)).low == 0.0
    assert estimate_target(scores, readings(scores), stated=True).low > 0.5


def first_rounds(scores, n):
    names = ("source_mean", "source_arm", "reward", "weight")
    return replace(scores, **{name: getattr(scores, name)[:, :n] for name in names})


def test_contexts_outside_the_support_and_few_rounds_widen():
    scores = made_up_scores(members=2, right=0.9, seed=0)
    inside, outside = (estimate_target(scores, readings(scores), outside=share) for share in (0.0, 0.6))
    assert outside.low < 0.5 * inside.low
    assert outside.value == inside.value
    few = first_rounds(scores, 20)
    assert estimate_target(few, readings(few)).low < inside.low


def test_six_rounds_that_were_all_right_support_six_tenths():
    scores = made_up_scores(members=2, right=1.0, seed=0)
    six = first_rounds(scores, 6)
    kinds = [replace(one, method=f"kind {one.policy}") for one in readings(six)]
    found = estimate_target(six, kinds)
    assert found.value > 0.9
    assert found.low == pytest.approx(0.05 ** (1 / 6), abs=1e-6)


def test_units_are_taken_back_and_flags_stay():
    draw = np.random.default_rng(0)
    source = np.column_stack([draw.normal(10, 2, 500), draw.integers(0, 2, 500), np.ones(500)])
    target = np.column_stack([4.3 * draw.normal(10, 2, 400), draw.integers(0, 2, 400), np.ones(400)])
    moved = in_source_units(source, target, (True, True, True))
    assert moved[:, 0].mean() == pytest.approx(10, abs=0.3)
    assert moved[:, 0].std() == pytest.approx(2, abs=0.2)
    np.testing.assert_array_equal(moved[:, 1:], target[:, 1:])
    np.testing.assert_array_equal(in_source_units(source, target, (False, True, True)), target)


@pytest.fixture(scope="module")
def trained():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(600, 3))
    pair = daband.domains.from_arrays(
        source=(x, (x[:, 0] > 0).astype(int)), target=draw.normal(0.5, 1.0, (400, 3)), n_arms=2
    )
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=5)
    return policy, x[:100], draw.normal(0.5, 1.0, (120, 3))


@pytest.mark.parametrize(
    ("shift", "wanted"),
    [
        (default_shift((3,)), {"as trained", "other units"}),  # LinUCB reads both domains alike
        (Shift.of("covariate"), {"as trained"}),
        (Shift.of("units", units=[0]), {"as trained", "other units"}),
        (Shift.of("style"), {"as trained"}),
    ],
)
def test_what_is_stated_decides_which_readings_there_are(trained, shift, wanted):
    policy, source, target = trained
    found = explanations_of([policy], source, target, shift=shift, rule="greedy", reward_range=(0.0, 1.0))
    assert {one.reading for one in found} == wanted
    for one in found:
        assert one.source_mean.shape == (100, 2)
        assert one.target_mean.shape == (120, 2)
