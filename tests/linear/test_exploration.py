"""Random draws and choices: a batch decides as its rows, with ties, masks and epsilon."""

import numpy as np
import pytest

from daband.linear import Exploration
from daband.linear._draws import make_draw_key, make_seeded_draw
from daband.linear._reward_moments import Scaling

KEY = np.uint64(12345678901234567890)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_a_batch_chooses_as_its_rows(epsilon, masked):
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 3, (500, 5)).astype(float)  # many ties
    available = rng.random((500, 5)) < 0.6 if masked else np.ones((500, 5), bool)
    available[np.arange(500), rng.integers(0, 5, 500)] = True
    draws = rng.random((500, 1))
    greedy = Exploration("greedy", epsilon=epsilon)
    nothing = np.zeros_like(scores)
    batch = greedy.decide(scores, nothing, lambda *_: draws, available if masked else None)
    for i in range(500):
        one = slice(i, i + 1)
        single = greedy.decide(
            scores[one], nothing[one], lambda *_, one=one: draws[one], available[one]
        )
        assert single.arm[0] == batch.arm[i]
        assert single.propensity[0] == pytest.approx(batch.propensity[i])
    shares = greedy.probabilities(scores, nothing, available=available)
    np.testing.assert_allclose(shares[np.arange(500), batch.arm], batch.propensity)


def test_ties_are_measured_in_the_unit_of_rewards():
    scores = np.tile([5.0 + 1e-9, 5.0, 4.0], (10, 1))
    drawn = lambda *_: np.full((10, 1), 0.9)  # noqa: E731
    greedy = Exploration("greedy")
    assert greedy.decide(scores, 0 * scores, drawn).arm.tolist() == [0] * 10
    assert (
        greedy.decide(scores, 0 * scores, drawn, scaling=Scaling(scale=1e4)).arm.tolist()
        == [1] * 10
    )
    assert (
        greedy.decide(
            scores[:2], 0 * scores[:2], lambda *_: np.full((2, 1), 0.9), scaling=Scaling(scale=1e4)
        ).arm.tolist()
        == [1] * 2
    )
    with pytest.raises(ValueError, match="NaN"):
        greedy.decide(np.full((10, 3), np.nan), 0 * scores, drawn)


def test_even_choices_are_even_among_the_available():
    available = np.tile([True, False, True, True], (6_000, 1))
    even = Exploration("greedy", epsilon=1.0)
    means = np.full((6_000, 4), 0.5)
    decision = even.decide(means, means, make_seeded_draw(make_draw_key(0), 5), available)
    np.testing.assert_allclose(decision.propensity, np.full(6_000, 1 / 3))
    np.testing.assert_allclose(
        np.bincount(decision.arm, minlength=4) / 6_000, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.03
    )
    single = even.decide(
        means[:1], means[:1], make_seeded_draw(make_draw_key(0), 5 + 17), available[:1]
    )
    assert single.arm[0] == decision.arm[17]


def test_inverse_gap_weighting_draws_arms_by_their_gap():
    rule = Exploration("igw", alpha=2.0, gamma=3.0)
    mean = np.array([[1.0, 0.8, 0.0, 2.0]])
    bonus = np.array([[0.1, 0.1, 0.2, 0.1]])
    available = np.array([[True, True, True, False]])
    scaling = Scaling(certainty=5.0)
    (found,) = rule.probabilities(mean, bonus, available=available, scaling=scaling)
    others = [1 / (3 + 15 * 0.2), 1 / (3 + 15 * 0.8)]  # scores are 1.2, 1.0 and 0.4
    np.testing.assert_allclose(found, [1 - sum(others), *others, 0.0])
    # before the first reward, and for equal scores, all arms are equally likely
    for equal in (
        rule.probabilities(mean, bonus, available=available),
        rule.probabilities(0 * mean, 0 * bonus, available=available, scaling=scaling),
    ):
        np.testing.assert_allclose(equal, [[1 / 3, 1 / 3, 1 / 3, 0.0]])
    # an epsilon is drawn uniformly in addition
    mixed = Exploration("igw", alpha=2.0, gamma=3.0, epsilon=0.25).probabilities(
        mean, bonus, available=available, scaling=scaling
    )
    np.testing.assert_allclose(mixed[0], 0.75 * found + 0.25 * available[0] / 3)


def test_propensities_of_inverse_gap_weighting_equal_the_frequencies_of_arms():
    rule = Exploration("igw", alpha=0.0, gamma=1.0)
    means = np.tile([0.5, 0.5, 0.3, 0.0], (40_000, 1))
    available = np.tile([True, True, True, False], (40_000, 1))
    scaling = Scaling(certainty=20.0)
    chances = rule.probabilities(means[:1], means[:1], available=available[:1], scaling=scaling)[0]
    draw = make_seeded_draw(make_draw_key(0), 0)
    decision = rule.decide(means, means, draw, available, scaling)
    np.testing.assert_allclose(chances, [3 / 7, 3 / 7, 1 / 7, 0.0])
    np.testing.assert_array_equal(decision.propensity, chances[decision.arm])
    frequencies = np.bincount(decision.arm, minlength=4) / 40_000
    np.testing.assert_allclose(frequencies, chances, atol=0.008)
