"""Rewards that decide between candidates: what is asked, who is left out, and intervals that hold."""

import numpy as np
import pytest

from daband.trust._candidate_selection import Proposals, Selection


def made_up(seed, accuracies=(0.8, 0.6, 0.5), contexts=300, n_arms=4):
    """Candidates that are right so often, and what every arm pays: (C, L) and (L, K)."""
    draw = np.random.default_rng(seed)
    best = draw.integers(0, n_arms, contexts)
    arms = np.stack(
        [np.where(draw.random(contexts) < own, best, draw.integers(0, n_arms, contexts)) for own in accuracies]
    )
    return arms, np.eye(n_arms)[best]


def select(seed, budget, *, one_hot=False, tolerance=0.01, **problem):
    arms, rewards = made_up(seed, **problem)
    proposals = Proposals(arms, np.full((1, *rewards.shape), 0.5))
    selection = Selection(proposals, one_hot=one_hot, tolerance=tolerance, seed=seed)
    while selection.asked < budget and not selection.finished and (questions := selection.draw()):
        selection.answer(rewards[questions[0]])
    truth = rewards[np.arange(rewards.shape[0]), arms].mean(axis=1)
    return selection, truth


def test_questions_tell_two_candidates_apart_and_one_in_six_is_for_the_leader():
    arms, rewards = made_up(0)
    proposals = Proposals(arms, np.full((1, *rewards.shape), 0.5))
    differ = (arms != arms[0]).any(axis=0)
    assert differ.mean() == pytest.approx(proposals.disagreement)
    selection = Selection(proposals, tolerance=-1.0)
    asked = []
    for number in range(1, 41):
        leader = selection.leader
        ((context, arm),) = selection.draw()
        if number % 6:
            assert 0 < (arms[:, context] == arm).sum() < 3
            asked.append((context, arm))
        else:
            assert arm == arms[leader, context]
        selection.answer(rewards[context, arm])
    assert len(set(asked)) == len(asked)  # without replacement


def test_a_candidate_out_of_the_running_is_not_asked_about():
    """Where the third agrees with one of two good candidates, no question tells those apart: few are asked there."""
    draw = np.random.default_rng(0)
    best = draw.integers(0, 2, 1000)
    good = np.where(draw.random((2, 1000)) < 0.9, best, 1 - best)
    arms = np.stack([*good, np.zeros(1000, np.int64)])
    selection = Selection(Proposals(arms, np.full((1, 1000, 2), 0.5)), tolerance=-1.0)
    late = []
    for number in range(1, 101):
        ((context, arm),) = selection.draw()
        if number > 50 and number % 6:
            late.append(good[0, context] != good[1, context])
        selection.answer(float(best[context] == arm))
    assert np.mean(good[0] != good[1]) < 0.25
    assert np.mean(late) > 0.6


def test_a_one_answers_the_other_questions_of_its_context():
    arms, rewards = made_up(1)
    selection = Selection(Proposals(arms, np.full((1, *rewards.shape), 0.5)), one_hot=True, tolerance=-1.0)
    known = set()
    while (questions := selection.draw()) and selection.asked < 150:
        if (selection.asked + 1) % 6:
            assert questions[0][0] not in known
        if rewards[questions[0]] == 1.0:
            known.add(questions[0][0])
        selection.answer(rewards[questions[0]])
    assert len(known) > 30


def test_questions_may_be_drawn_before_their_answers():
    arms, rewards = made_up(2)
    selection = Selection(Proposals(arms, np.full((1, *rewards.shape), 0.5)), seed=2)
    questions = selection.draw(25)
    assert len(set(questions)) == 25
    assert selection.draw(10) == questions[:10]
    for question in questions:
        selection.answer(rewards[question])
    assert selection.asked == 25
    assert selection.leader == 0


def test_the_best_candidate_wins_and_is_never_left_out():
    lost = kept = 0
    for seed in range(40):
        selection, truth = select(seed, 60)
        lost += truth.max() - truth[selection.leader] > 0.03
        kept += selection.remaining[truth.argmax()]
    assert lost <= 2
    assert kept == 40


def test_half_of_the_rewards_of_an_even_draw_are_enough():
    """Five candidates close together: within .03 of the best as often with 60 rewards as evenly with 120."""
    close = (0.8, 0.77, 0.74, 0.71, 0.3)
    asked, even = [], []
    for seed in range(60):
        selection, truth = select(seed, 60, accuracies=close, tolerance=-1.0)
        asked.append(truth.max() - truth[selection.leader] <= 0.03)
        arms, rewards = made_up(seed, accuracies=close)
        draw = np.random.default_rng(seed)
        total = np.zeros(len(close))
        for context in draw.integers(0, arms.shape[1], 120):
            proposed = np.unique(arms[:, context])
            arm = draw.choice(proposed)
            total += np.where(arms[:, context] == arm, (rewards[context, arm] - 0.5) * len(proposed), 0.0)
        even.append(truth.max() - truth[total.argmax()] <= 0.03)
    assert np.mean(asked) >= np.mean(even)


def test_a_dozen_answers_do_not_change_the_choice_unless_it_is_beaten():
    few, _ = select(3, 12, tolerance=-1.0)
    assert [few.choice(preferred) for preferred in range(3)] == [0, 1, 2]
    beaten = next(place for place in range(3) if place != few.leader)
    few.remaining[beaten] = False
    assert few.choice(beaten) == few.leader
    more, _ = select(3, 20, tolerance=-1.0)
    assert {more.choice(preferred) for preferred in range(3)} == {more.leader}


def test_candidates_that_are_equally_good_are_left_out_with_a_small_probability_only():
    left_out = sum(not select(seed, 150, accuracies=(0.6, 0.6))[0].remaining.all() for seed in range(60))
    assert left_out <= 3  # 5% at any time


def test_questions_that_are_drawn_unevenly_leave_out_as_rarely():
    """Two candidates of one value, and predictions by which a few questions are drawn much more often than others."""
    left_out, unevenness = 0, []
    for seed in range(40):
        arms, rewards = made_up(seed, accuracies=(0.6, 0.6))
        draw = np.random.default_rng(seed)
        means = draw.beta(0.2, 0.2, (2, *rewards.shape))
        selection = Selection(Proposals(arms, means), tolerance=-1.0, seed=seed)
        probabilities = []
        while selection.asked < 100 and (questions := selection.draw()):
            probabilities.append(selection._queue[0].probability)
            selection.answer(rewards[questions[0]])
        truth = rewards[np.arange(300), arms].mean(axis=1)
        left_out += not selection.remaining[truth.argmax()]
        unevenness.append(max(probabilities[:5]) / min(probabilities[:5]))
    assert np.mean(unevenness) > 1.5
    assert left_out <= 2


def test_the_estimated_difference_of_two_candidates_has_no_bias():
    """Over many first questions its mean is the true difference, however unevenly they are drawn."""
    arms, rewards = made_up(5, accuracies=(0.7, 0.5))
    means = np.random.default_rng(5).beta(0.2, 0.2, (2, *rewards.shape))
    proposals = Proposals(arms, means)
    differences = []
    for seed in range(1500):
        selection = Selection(proposals, seed=seed)
        (question,) = selection.draw()
        selection.answer(rewards[question])
        differences.append(selection._sum[0, 1])
    truth = rewards[np.arange(300), arms].mean(axis=1)
    error = np.std(differences) / np.sqrt(len(differences))
    assert np.mean(differences) == pytest.approx(truth[0] - truth[1], abs=4 * error)
    assert error < 0.015


def test_predictions_that_prove_right_count_where_nobody_asked():
    """Two candidates that differ everywhere; one of two predictors knows the rewards."""
    draw = np.random.default_rng(0)
    best = draw.integers(0, 2, 1000)
    knows = np.eye(2)[best] * 0.8 + 0.1
    means = np.stack([knows, 1.0 - knows])
    selection = Selection(Proposals(np.stack([best, 1 - best]), means), tolerance=-1.0)
    assert selection.values()[0] == pytest.approx(selection.values()[1])
    for _ in range(10):
        (question,) = selection.draw()
        selection.answer(float(best[question[0]] == question[1]))
    values = selection.values()
    assert values[0] > values[1] + 0.5
    flat = Selection(Proposals(np.stack([best, 1 - best]), np.full((1, 1000, 2), 0.5)), tolerance=-1.0)
    for _ in range(10):
        (question,) = flat.draw()
        flat.answer(float(best[question[0]] == question[1]))
    assert flat.values()[0] - flat.values()[1] < values[0] - values[1]


def test_a_much_worse_candidate_is_left_out():
    selection, _ = select(1, 150, accuracies=(0.95, 0.1), tolerance=-1.0)
    assert selection.remaining.tolist() == [True, False]


def test_a_clear_winner_ends_the_asking_early():
    selection, truth = select(1, 300, accuracies=(0.95, 0.2))
    assert selection.finished
    assert selection.asked < 60
    assert truth[selection.leader] == truth.max()


@pytest.mark.parametrize("one_hot", [False, True])
def test_all_questions_answered_end_the_asking_with_the_values_in_order(one_hot):
    arms, rewards = made_up(3, contexts=60)
    selection = Selection(
        Proposals(arms, np.full((1, *rewards.shape), 0.3)), one_hot=one_hot, tolerance=-1.0, confidence=1 - 1e-12
    )
    while questions := selection.draw():
        selection.answer(rewards[questions[0]])
    assert selection.finished
    truth = rewards[np.arange(60), arms].mean(axis=1)
    assert (selection.values().argsort() == truth.argsort()).all()
    for candidate in range(3):
        limits = selection.interval(candidate)
        assert limits.low - 1e-9 <= truth[candidate] <= limits.high + 1e-9


def test_intervals_hold_for_the_one_that_was_chosen():
    for seed in range(30):
        selection, truth = select(seed, 60, accuracies=(0.62, 0.6, 0.58, 0.6), one_hot=seed % 2 == 0)
        limits = selection.interval(selection.leader)
        assert limits.low - 1e-9 <= truth[selection.leader] <= limits.high + 1e-9
        assert limits.low <= limits.value <= limits.high


def test_predictions_count_until_rewards_outweigh_them():
    arms, rewards = made_up(0, accuracies=(0.8, 0.5))
    predicted = np.full(rewards.shape, 0.4)
    predicted[np.arange(len(predicted)), arms[1]] = 0.6
    selection = Selection(Proposals(arms, predicted[None]))
    assert selection.leader == 1
    while selection.asked < 60 and (questions := selection.draw()):
        selection.answer(rewards[questions[0]])
    assert selection.leader == 0


def test_candidates_that_agree_everywhere_need_no_reward():
    selection = Selection(Proposals(np.zeros((3, 50), int), np.full((1, 50, 2), 0.5)))
    assert selection.finished
    assert selection.proposals.disagreement == 0.0
