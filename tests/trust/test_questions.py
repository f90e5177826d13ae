"""Questions and answers: probabilities, unbiased estimates, intervals and the choice."""

from __future__ import annotations

import numpy as np
import pytest

from daband.trust._questions import Questions


def problem(seed=0, n_contexts=400, n_arms=3, accuracies=(0.8, 0.4, 0.6, 0.7)):
    """Return choices of candidates (C, L), predictions (L, K) and rewards (L, K); one arm of each
    context pays 1.
    """
    draw = np.random.default_rng(seed)
    best = draw.integers(0, n_arms, n_contexts)
    rewards = np.eye(n_arms)[best]
    arms = np.stack(
        [
            np.where(draw.random(n_contexts) < right, best, draw.integers(0, n_arms, n_contexts))
            for right in accuracies
        ]
    )
    predicted = 0.5 * rewards + 0.25 + 0.1 * draw.standard_normal(rewards.shape)
    return arms, predicted, rewards


def values_of(arms, rewards):
    return rewards[np.arange(rewards.shape[0]), arms].mean(axis=1)


def answered(questions, rewards, n):
    return questions.compute_evidence(
        {question: rewards[question] for question in questions.draw_first(n)}
    )


def test_questions_are_about_proposed_arms_and_do_not_depend_on_how_many_are_asked():
    arms, predicted, _ = problem()
    few, many = (
        Questions(arms, predicted, reward_deviation=0.5, seed=3).draw_first(n) for n in (20, 300)
    )
    assert many[:20] == few
    assert len(set(many)) == 300
    assert all(arm in arms[:, context] for context, arm in many)


def test_probabilities_are_those_of_the_draws():
    arms, predicted, _ = problem(n_contexts=6)
    questions = Questions(arms, predicted, reward_deviation=0.5)
    assert (
        questions.probabilities * [len(set(column)) for column in arms.T]
    ).sum() == pytest.approx(1.0)
    for _ in range(200):
        questions._draw_chunk()
    rows, often = np.unique([context for context, _ in questions._draws], return_counts=True)
    proposed = np.array([len(set(column)) for column in arms.T])
    assert often / len(questions._draws) == pytest.approx(
        (questions.probabilities * proposed)[rows], abs=0.01
    )


@pytest.mark.parametrize("shift", [0.0, 0.7])
def test_estimates_have_the_right_mean_whatever_the_predictions_are(shift):
    arms, predicted, rewards = problem(n_contexts=100)
    values = values_of(arms, rewards)
    estimates = []
    for seed in range(300):
        evidence = answered(
            Questions(arms, predicted + shift, reward_deviation=0.5, seed=seed), rewards, 60
        )
        estimates.append(
            [evidence.estimate_advantages(1)[0], evidence.estimate_advantages(None)[0]]
        )
    advantage, value = np.mean(estimates, axis=0)
    assert advantage == pytest.approx(values - values[1], abs=0.02)
    assert value == pytest.approx(values, abs=0.02)


def test_intervals_hold_for_all_candidates_at_once():
    arms, predicted, rewards = problem()
    values = values_of(arms, rewards)
    held = []
    for seed in range(200):
        intervals = answered(
            Questions(arms, predicted, reward_deviation=0.5, seed=seed), rewards, 50
        ).compute_intervals(1)
        held.append(
            all(
                one.low <= v - values[1] <= one.high
                for one, v in zip(intervals, values, strict=True)
            )
        )
    assert np.mean(held) >= 0.93


@pytest.mark.parametrize("n", [50, 200, 1000])
def test_limits_are_those_of_the_market_of_which_the_contexts_are_a_sample(n):
    """With all answers (n = 1000), only the sample of contexts is uncertain."""
    arms, predicted, rewards = problem(n_contexts=20_000, accuracies=(0.8, 0.6))
    advantage = np.subtract(*values_of(arms, rewards))
    draw = np.random.default_rng(0)
    held = []
    for seed in range(300):
        rows = draw.integers(0, 20_000, 300)
        questions = Questions(arms[:, rows], predicted[rows], reward_deviation=0.5, seed=seed)
        evidence = answered(questions, rewards[rows], n)
        interval = evidence.compute_intervals(1, confidence=0.8, budget=n)[0]
        held.append((interval.low <= advantage, advantage <= interval.high))
    assert (np.mean(held, axis=0) >= 0.87).all()
    assert (np.mean(held, axis=0) <= 0.98).all()


def test_an_early_look_is_wider_and_more_answers_are_narrower():
    arms, predicted, rewards = problem(n_contexts=20_000)
    questions = Questions(arms, predicted, reward_deviation=0.5)
    early, final, planned = (
        answered(questions, rewards, n).compute_intervals(1, budget=budget)[0]
        for n, budget in ((50, 200), (200, 200), (50, 50))
    )
    assert 2.2 < (early.high - early.low) / (planned.high - planned.low) < 2.6
    assert final.high - final.low < planned.high - planned.low


def null_answers(kind, seed, n_contexts=1000):
    """Return questions about two candidates of equal expected rewards, and the rewards (L, 2)."""
    draw = np.random.default_rng(seed)
    if kind == "normal":
        rewards = draw.normal(size=(n_contexts, 2))
        source = {"reward_deviation": 1.0}
    else:
        rewards = (draw.random((n_contexts, 2)) < kind) * 1.0
        deviation = np.sqrt(kind * (1 - kind))
        source = {
            "reward_deviation": deviation,
            "reward_skewness": (1 - 2 * kind) / deviation,
        }
    arms = np.zeros((2, n_contexts), int)
    arms[0, draw.random(n_contexts) < 0.6] = 1
    predicted = np.full(rewards.shape, 0.0 if kind == "normal" else kind)
    return Questions(arms, predicted, seed=seed, **source), rewards


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", 0.2, 0.05])
def test_an_interval_that_is_checked_after_every_answer_seldom_misses(kind):
    """Before: 8 to 10% of null audits excluded the advantage at some look. The truth is the mean
    over the contexts, which differs from 0 by chance.
    """
    budget = 60
    missed = []
    for seed in range(500):
        questions, rewards = null_answers(kind, seed)
        values = values_of(questions.candidate_arms, rewards)
        answers = {}
        for question in questions.draw_first(budget):
            answers[question] = rewards[question]
            interval = questions.compute_evidence(answers).compute_intervals(1, budget=budget)[0]
            if not interval.low <= values[0] - values[1] <= interval.high:
                missed.append(seed)
                break
    assert len(missed) / 500 <= 0.055


@pytest.mark.slow
@pytest.mark.parametrize("frequency", [0.05, 0.01, 0.003])
@pytest.mark.parametrize("budget", [100, 400])
def test_intervals_hold_for_rare_rewards(frequency, budget):
    """Before: the interval of the advantage missed in 29% (0.3% buyers, 400 answers), and the
    interval of the value in 45%.
    """
    held = []
    for seed in range(300):
        questions, rewards = null_answers(frequency, seed, n_contexts=2000)
        values = values_of(questions.candidate_arms, rewards)
        evidence = answered(questions, rewards, budget)
        advantage = evidence.compute_intervals(1, budget=budget)[0]
        value = evidence.compute_intervals(None, budget=budget)[0]
        held.append(
            (
                advantage.low <= values[0] - values[1] <= advantage.high,
                value.low <= values[0] <= value.high,
            )
        )
    assert (np.mean(held, axis=0) >= (0.93, 0.9)).all()


def test_a_candidate_that_equals_the_incumbent_has_no_advantage():
    arms, predicted, rewards = problem()
    arms = np.concatenate([arms, arms[[1]]])
    for n in (0, 30):
        twin = answered(
            Questions(arms, predicted, reward_deviation=0.5), rewards, n
        ).compute_intervals(1)[-1]
        assert (twin.value, twin.low, twin.high) == (0.0, 0.0, 0.0)


def test_values_are_exact_once_every_question_is_answered():
    arms, predicted, rewards = problem(n_contexts=15)
    evidence = answered(Questions(arms, predicted, reward_deviation=0.5), rewards, 1000)
    assert evidence.is_complete
    values = values_of(arms, rewards)
    for one, value in zip(evidence.compute_intervals(1), values - values[1], strict=True):
        assert one.value == pytest.approx(value)
    assert evidence.choose_candidate(1, np.full(4, np.nan)) == values.argmax()


def test_answers_count_up_to_the_first_open_question():
    arms, predicted, rewards = problem()
    questions = Questions(arms, predicted, reward_deviation=0.5)
    asked = questions.draw_first(40)
    answers = {question: rewards[question] for question in asked if question != asked[25]}
    assert questions.compute_evidence(answers).n_answered == 25


def test_rewards_that_are_all_alike_do_not_make_an_interval_of_no_width():
    arms, predicted, rewards = problem()
    interval = answered(
        Questions(arms, np.zeros_like(predicted), reward_deviation=0.1), np.zeros_like(rewards), 30
    ).compute_intervals(1)[0]
    assert interval.high - interval.low > 0.01


def test_few_answers_leave_the_default_and_many_replace_a_bad_one():
    arms, predicted, rewards = problem()
    source = np.full(4, 0.7)
    chosen = {n: [] for n in (5, 200)}
    for seed in range(40):
        questions = Questions(arms, predicted, reward_deviation=0.5, seed=seed)
        for n, counted in chosen.items():
            counted.append(answered(questions, rewards, n).choose_candidate(3, source))
    values = values_of(arms, rewards)
    assert np.mean(values[chosen[200]]) > values[3] + 0.02
    assert np.mean(values[chosen[5]]) > values[3] - 0.05
    assert (
        answered(Questions(arms, predicted, reward_deviation=0.5), rewards, 0).choose_candidate(
            3, source
        )
        == 3
    )
