"""Rewards that decide between candidates: what is asked, who is left out, and intervals that hold."""

import numpy as np
import pytest

from daband.trust.selection import Proposals, Selection


def made_up(seed, accuracies=(0.8, 0.6, 0.5), contexts=300, n_arms=4):
    """Candidates that are right so often, and what every arm pays: (C, L) and (L, K)."""
    draw = np.random.default_rng(seed)
    best = draw.integers(0, n_arms, contexts)
    arms = np.stack(
        [np.where(draw.random(contexts) < own, best, draw.integers(0, n_arms, contexts)) for own in accuracies]
    )
    return arms, np.eye(n_arms)[best]


def select(seed, budget, *, estimates=None, **problem):
    arms, rewards = made_up(seed, **problem)
    proposals = Proposals(arms, np.full(rewards.shape, 0.5), seed)
    known = np.full(len(arms), 0.5) if estimates is None else np.array(estimates)
    selection = Selection(proposals, known)
    while selection.asked < budget and not selection.finished and (question := selection.question()) is not None:
        selection.answer(rewards[question])
    truth = rewards[np.arange(rewards.shape[0]), arms].mean(axis=1)
    return selection, truth


def test_questions_are_where_candidates_differ_and_one_in_five_where_they_agree():
    arms, rewards = made_up(0)
    proposals = Proposals(arms, np.full(rewards.shape, 0.5))
    asked = proposals.order()
    differ = (arms != arms[0]).any(axis=0)
    assert differ.mean() == pytest.approx(proposals.disagreement)
    assert [bool(differ[context]) for context, _ in asked[:10]] == [True] * 4 + [False] + [True] * 4 + [False]
    for context, arm in asked:
        assert arm in arms[:, context]
    assert len({tuple(question) for question in asked.tolist()}) == len(asked)  # without replacement
    selection = Selection(proposals, np.zeros(3))
    for question in asked[:12]:  # as the file of questions has them, as long as nobody is left out
        assert selection.question() == tuple(question)
        selection.answer(float(rewards[tuple(question)]))


def test_the_best_candidate_wins_and_is_never_left_out():
    lost = kept = 0
    for seed in range(40):
        selection, truth = select(seed, 100)
        lost += truth.max() - truth[selection.leader] > 0.03
        kept += selection.remaining[truth.argmax()]
    assert lost <= 2
    assert kept == 40


def test_candidates_that_are_equally_good_are_left_out_with_a_small_probability_only():
    left_out = sum(not select(seed, 150, accuracies=(0.6, 0.6))[0].remaining.all() for seed in range(60))
    assert left_out <= 3  # 5% at any time


def test_a_clear_winner_ends_the_asking_early():
    selection, truth = select(1, 300, accuracies=(0.95, 0.2))
    assert selection.finished
    assert selection.asked < 80
    assert truth[selection.leader] == truth.max()


def test_all_questions_answered_give_the_values_themselves():
    arms, rewards = made_up(3, contexts=60)
    selection = Selection(
        Proposals(arms, np.full(rewards.shape, 0.3)), np.zeros(3), tolerance=-1.0, confidence=1 - 1e-12
    )
    while (question := selection.question()) is not None:
        selection.answer(rewards[question])
    truth = rewards[np.arange(60), arms].mean(axis=1)
    assert (selection.values().argsort() == truth.argsort()).all()
    for candidate in range(3):
        limits = selection.interval(candidate)
        assert limits.low - 1e-9 <= truth[candidate] <= limits.high + 1e-9


def test_intervals_hold_for_the_one_that_was_chosen():
    for seed in range(30):
        selection, truth = select(seed, 60, accuracies=(0.62, 0.6, 0.58, 0.6))
        limits = selection.interval(selection.leader)
        assert limits.low - 1e-9 <= truth[selection.leader] <= limits.high + 1e-9


def test_estimates_count_until_rewards_outweigh_them():
    arms, rewards = made_up(0, accuracies=(0.8, 0.5))
    selection = Selection(Proposals(arms, np.full(rewards.shape, 0.5)), np.array([0.4, 0.6]))
    assert selection.leader == 1
    while selection.asked < 60 and (question := selection.question()) is not None:
        selection.answer(rewards[question])
    assert selection.leader == 0


def test_candidates_that_agree_everywhere_need_no_reward():
    arms = np.zeros((3, 50), int)
    selection = Selection(Proposals(arms, np.full((50, 2), 0.5)), np.array([0.1, 0.3, 0.2]))
    assert selection.finished
    assert selection.leader == 1
    assert selection.proposals.disagreement == 0.0
