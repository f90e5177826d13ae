"""The numbers of an assessment: rewards that are needed, and how numbers are written."""

import math

import pytest

from daband.logs._mean_estimates import MeanEstimate
from daband.trust._assessment import Assessment, count_rewards_needed, format_number


def assess_source(advantage=2.0, low=1.0, **fields):
    """Return an assessment without target rewards, which says deploy."""
    numbers = ["source_advantage", "source_error", "source_value", "source_rounds"]
    numbers += ["shifts", "median_kept", "tenth_percentile_kept", "lost_fraction"]
    numbers += ["classifier_accuracy", "outside_support", "rewards", "incumbent_arm"]
    return Assessment(
        **dict.fromkeys(numbers, 0),
        advantage=advantage,
        low=low,
        high=None,
        verdict="deploy",
        incumbent="always arm 0",
        target_contexts=2000,
        disagreement=0.5,
        kind="experiments",
        doubts=[],
        source_arms=[0.5, 0.5],
        target_arms=[0.5, 0.5],
        **fields,
    )


def test_a_precise_target_log_decides():
    """Before: no verdict used the rewards that a policy had learned."""
    worse = assess_source().with_learned_rounds(MeanEstimate(-1.0, 0.5), version=1, log_rounds=900)
    assert worse.verdict == "keep the incumbent"
    assert worse.sentence.startswith("900 target rewards: -1.00 over always arm 0")
    assert worse.low == pytest.approx(-1.0 - 1.2816 * 0.5)
    better = assess_source().with_learned_rounds(MeanEstimate(1.0, 0.5), log_rounds=900)
    unclear = assess_source().with_learned_rounds(MeanEstimate(0.5, 0.5), log_rounds=900)
    assert (better.verdict, unclear.verdict) == ("deploy", "collect rewards")
    assert unclear.rewards_needed > 900 * (1.2816**2 - 1.0)


def test_logs_are_averaged_and_do_not_decide_before_they_are_precise():
    first = assess_source().with_learned_rounds(MeanEstimate(-1.0, 1.0), log_rounds=500)
    assert (first.advantage, first.low, first.rewards, first.verdict) == (2.0, 1.0, 0, "deploy")
    assert "logs give -1.00 over always arm 0 (standard error 1.00)" in " ".join(
        first.with_learned_rounds(MeanEstimate(0.0, math.inf), version=1).reasons
    )
    second = first.with_learned_rounds(MeanEstimate(-3.0, 1.0), log_rounds=1000)
    assert second.advantage == pytest.approx(-2.0)
    assert second.high - second.low == pytest.approx(2 * 1.2816 * math.sqrt(0.5))
    assert (second.rewards, second.verdict) == (1000, "keep the incumbent")


def test_a_version_that_learned_to_be_the_incumbent_is_not_deployed():
    same = assess_source().with_learned_rounds(MeanEstimate(0.0, math.inf), disagreement=0.0)
    assert same.verdict == "keep the incumbent"
    assert "the same choices" in same.sentence
    assert "The verdict is for version 0" not in " ".join(same.reasons)
    other = same.with_learned_rounds(MeanEstimate(0.0, 9.0), version=2, disagreement=0.3)
    assert (other.verdict, other.advantage) == ("deploy", 2.0)
    assert "always chooses the same arm" in " ".join(
        assess_source().with_learned_rounds(MeanEstimate(0.0, 1.0), target_arms=[0.0, 1.0]).reasons
    )


def test_rewards_needed_grow_as_the_advantage_shrinks():
    needed = [count_rewards_needed(gain, 0.5, 0.6) for gain in (1000.0, 0.3, 0.1, 0.001)]
    assert needed == [50, 50, 240, 2_400_000]


def test_numbers_are_short():
    assert [format_number(value) for value in (0.31, 12.3456, 1234.5, 0.0)] == [
        "0.310",
        "12.3",
        "1,234",
        "0.000",
    ]
    assert format_number(0.31, with_sign=True) == "+0.310"
    small = (0.0784, 0.00042, -0.0000316, 1e-17)  # rewards may be rare
    assert [format_number(value) for value in small] == ["0.078", "0.00042", "-0.000032", "0.000"]


@pytest.mark.parametrize(("rows", "says"), [(0, False), (200, True), (5000, False)])
def test_more_rewards_than_the_target_has_rows_are_named(rows, says):
    collect = assess_source(low=-0.1, rewards_needed=900, target_rows=rows).with_verdict()
    assert collect.sentence.startswith("Collect 900 target rewards")
    assert ("more than the target's 200 rows" in collect.sentence) == says
