"""Scores, bonuses and choices equal dense algebra to 1e-9, over a thousand random problems and in
threads.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daband.linear._reward_moments import RewardMoments
from daband.linear._ridge_head import RidgeHead

from .dense import DenseReference, play

ALPHA = 0.6


def make_head(problem, arms, ridge):
    return RidgeHead(n_arms=problem["n_arms"], dim=problem["dim"], arms=arms, ridge=ridge)


@st.composite
def problems(draw):
    return {
        "n_arms": draw(st.integers(1, 6)),
        "dim": draw(st.integers(1, 9)),
        "rounds": draw(st.integers(1, 24)),
        "seed": draw(st.integers(0, 2**31)),
        "standardise": draw(st.booleans()),
        "unit": draw(st.sampled_from([(1.0, 0.0), (1e-3, 5.0), (1000.0, -7.0)])),
    }


def data(problem, arms):
    rng = np.random.default_rng(problem["seed"])
    lead = (problem["rounds"],) if arms == "disjoint" else (problem["rounds"], problem["n_arms"])
    contexts = rng.uniform(-1, 1, (*lead, problem["dim"]))
    factor, offset = problem["unit"]
    return contexts, factor * rng.random((problem["rounds"], problem["n_arms"])) + offset


def assert_same_choice(arm, mean, bonus):
    score = mean + ALPHA * bonus
    assert score[arm] >= score.max() - 1e-9 * (
        np.abs(score).max() + np.abs(score - score.mean()).max()
    )


def assert_equals(scored, dense, context):
    """Mean and bonus (K,) of a context are those of dense algebra, up to rounding in the unit of
    rewards.
    """
    for ours, expected in zip(scored, dense.score(context), strict=True):
        np.testing.assert_allclose(
            ours, expected, rtol=1e-9, atol=1e-11 * max(1.0, np.abs(expected).max())
        )


def unit_of(moments, head):
    return {"centre": moments.centre, "scale": moments.compute_units(head.n_units)}


@pytest.mark.parametrize("ridge", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("arms", ["disjoint", "shared"])
class TestAgainstDenseAlgebra:
    @staticmethod
    def both(problem, arms, ridge):
        standardise = problem["standardise"]
        dense = DenseReference(
            problem["n_arms"], problem["dim"], arms, ridge, standardise=standardise
        )
        return make_head(problem, arms, ridge), dense, RewardMoments(standardise=standardise)

    @settings(max_examples=30)
    @given(problem=problems())
    def test_one_by_one(self, arms, ridge, problem):
        head, dense, moments = self.both(problem, arms, ridge)
        contexts, rewards = data(problem, arms)
        for i, context in enumerate(contexts):
            mean, bonus = head.score(contexts[i : i + 1], **unit_of(moments, head))
            assert_equals((mean[0], bonus[0]), dense, context)
            arm = np.array([(mean + ALPHA * bonus).argmax()])
            head.learn(contexts[i : i + 1], arm, rewards[i, arm])
            moments.add(rewards[i, arm], arm if arms == "disjoint" else 0 * arm)
            dense.learn(context, arm[0], rewards[i, arm[0]])

    @settings(max_examples=30)
    @given(problem=problems())
    def test_blocked_episodes(self, arms, ridge, problem):
        head, dense, moments = self.both(problem, arms, ridge)
        contexts, rewards = data(problem, arms)
        cut = problem["rounds"] // 2
        for start, stop in ((0, cut), (cut, problem["rounds"])):
            if start == stop:
                continue
            decision = play(
                head, contexts[start:stop], rewards[start:stop], first_round=start, moments=moments
            )
            for i in range(start, stop):
                assert_equals(
                    (decision.mean[i - start], decision.bonus[i - start]), dense, contexts[i]
                )
                arm = int(decision.arm[i - start])
                assert_same_choice(arm, *dense.score(contexts[i]))
                dense.learn(contexts[i], arm, rewards[i, arm])
        mean, bonus = head.score(contexts, **unit_of(moments, head))
        for i, context in enumerate(contexts):
            assert_equals((mean[i], bonus[i]), dense, context)

    @settings(max_examples=30)
    @given(problem=problems(), repeats=st.integers(1, 6))
    def test_batch_updates(self, arms, ridge, problem, repeats):
        """Batches large and small take Woodbury's identity and a fresh inverse in turn."""
        contexts, rewards = data({**problem, "rounds": problem["rounds"] * repeats}, arms)
        pulled = np.random.default_rng(problem["seed"] + 1).integers(
            0, problem["n_arms"], len(contexts)
        )
        paid = rewards[np.arange(len(contexts)), pulled]
        together, dense, moments = self.both(problem, arms, ridge)
        for context, arm, reward in zip(contexts, pulled, paid, strict=True):
            dense.learn(context, arm, reward)
        moments.add(paid, pulled if arms == "disjoint" else 0 * pulled)
        together.learn(contexts, pulled, paid)
        mean, bonus = together.score(contexts[:4], **unit_of(moments, together))
        for i in range(len(mean)):
            assert_equals((mean[i], bonus[i]), dense, contexts[i])
        assert together.statistics.counts.sum() == len(contexts)


@settings(max_examples=60)
@given(problem=problems(), arms=st.sampled_from(["disjoint", "shared"]))
def test_bonuses_never_grow_with_data(problem, arms):
    head = make_head(problem, arms, 1.0)
    contexts, rewards = data(problem, arms)
    before = head.score(contexts)[1]
    for i in range(len(contexts)):
        arm = np.array([i % problem["n_arms"]])
        head.learn(contexts[i : i + 1], arm, rewards[i, arm])
        after = head.score(contexts)[1]
        assert (after <= before * (1 + 1e-9)).all()
        before = after
