"""Scores, bonuses and choices equal dense algebra to 1e-9, over a thousand random problems."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daband.linear._reward_moments import RewardMoments
from daband.linear._ridge import Ridge
from daband.linear._ridge_head import RidgeHead

from .dense import DenseReference, play

ALPHA = 0.6


def make_head(problem, arms, form, ridge):
    return RidgeHead(
        n_arms=problem["n_arms"], dim=problem["dim"], arms=arms, ridge=ridge, form=form
    )


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


def unit_of(moments):
    return {"centre": moments.centre, "scale": moments.scale}


@pytest.mark.parametrize("ridge", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("form", ["primal", "dual"])
@pytest.mark.parametrize("arms", ["disjoint", "shared"])
class TestAgainstDenseAlgebra:
    @staticmethod
    def both(problem, arms, form, ridge):
        standardise = problem["standardise"]
        dense = DenseReference(
            problem["n_arms"], problem["dim"], arms, ridge, standardise=standardise
        )
        return make_head(problem, arms, form, ridge), dense, RewardMoments(standardise=standardise)

    @settings(max_examples=30)
    @given(problem=problems())
    def test_one_by_one(self, arms, form, ridge, problem):
        head, dense, moments = self.both(problem, arms, form, ridge)
        contexts, rewards = data(problem, arms)
        for i, context in enumerate(contexts):
            mean, bonus = head.score(contexts[i : i + 1], **unit_of(moments))
            assert_equals((mean[0], bonus[0]), dense, context)
            arm = np.array([(mean + ALPHA * bonus).argmax()])
            head.learn(contexts[i : i + 1], arm, rewards[i, arm])
            moments.add(rewards[i, arm])
            dense.learn(context, arm[0], rewards[i, arm[0]])

    @settings(max_examples=30)
    @given(problem=problems())
    def test_blocked_episodes(self, arms, form, ridge, problem):
        head, dense, moments = self.both(problem, arms, form, ridge)
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
        mean, bonus = head.score(contexts, **unit_of(moments))
        for i, context in enumerate(contexts):
            assert_equals((mean[i], bonus[i]), dense, context)

    @settings(max_examples=30)
    @given(problem=problems(), repeats=st.integers(1, 6))
    def test_batch_updates(self, arms, form, ridge, problem, repeats):
        """Batches large and small take Woodbury's identity and a fresh inverse in turn."""
        contexts, rewards = data({**problem, "rounds": problem["rounds"] * repeats}, arms)
        pulled = np.random.default_rng(problem["seed"] + 1).integers(
            0, problem["n_arms"], len(contexts)
        )
        paid = rewards[np.arange(len(contexts)), pulled]
        together, dense, moments = self.both(problem, arms, form, ridge)
        for context, arm, reward in zip(contexts, pulled, paid, strict=True):
            dense.learn(context, arm, reward)
        moments.add(paid)
        together.learn(contexts, pulled, paid)
        mean, bonus = together.score(contexts[:4], **unit_of(moments))
        for i in range(len(mean)):
            assert_equals((mean[i], bonus[i]), dense, contexts[i])
        assert together.statistics.counts.sum() == len(contexts)


@pytest.mark.parametrize("form", ["primal", "dual"])
@pytest.mark.parametrize("dim", [97, 130])
def test_wide_contexts_take_woodbury(dim, form):
    rng = np.random.default_rng(dim)
    head = make_head({"n_arms": 3, "dim": dim, "seed": 0}, "disjoint", form, 0.5)
    dense = DenseReference(3, dim, "disjoint", 0.5)
    for size in (1, 5, 40, 200, 3, 64):
        contexts = rng.uniform(-1, 1, (size, dim))
        arms = rng.integers(0, 3, size)
        rewards = rng.random(size)
        head.learn(contexts, arms, rewards)
        for row in zip(contexts, arms, rewards, strict=True):
            dense.learn(*row)
        probe = rng.uniform(-1, 1, (2, dim))
        mean, bonus = head.score(probe)
        for i in range(2):
            expected = dense.score(probe[i])
            np.testing.assert_allclose(mean[i], expected[0], rtol=1e-9, atol=1e-10)
            np.testing.assert_allclose(bonus[i], expected[1], rtol=1e-9)


@settings(max_examples=60)
@given(problem=problems(), arms=st.sampled_from(["disjoint", "shared"]))
def test_bonuses_never_grow_with_data(problem, arms):
    head = make_head(problem, arms, "primal", 1.0)
    contexts, rewards = data(problem, arms)
    before = head.score(contexts)[1]
    for i in range(len(contexts)):
        arm = np.array([i % problem["n_arms"]])
        head.learn(contexts[i : i + 1], arm, rewards[i, arm])
        after = head.score(contexts)[1]
        assert (after <= before * (1 + 1e-9)).all()
        before = after


def test_dual_on_images_equals_primal_on_scaled_floats():
    """uint8 contexts are the numbers 0..1, exactly, however they are stored."""
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (90, 700), dtype=np.uint8)
    rewards = rng.random((90, 4))
    sizes = {"n_arms": 4, "dim": 700, "seed": 1}
    dual = make_head(sizes, "disjoint", "dual", 1.0)
    primal = make_head(sizes, "disjoint", "primal", 1.0)
    first = play(dual, images, rewards)
    second = play(primal, images / 255.0, rewards)
    np.testing.assert_array_equal(first.arm, second.arm)
    np.testing.assert_allclose(first.bonus, second.bonus, rtol=1e-9)
    # A float batch after uint8 ones is welcome too.
    more = rng.random((3, 700))
    for head in (dual, primal):
        head.learn(more, np.array([0, 1, 1]), np.array([0.2, 0.4, 0.6]))
    np.testing.assert_allclose(
        dual.score(images[:5])[0],
        primal.score(images[:5])[0],
        rtol=1e-8,
        atol=1e-10,
    )


def test_auto_starts_dual_and_moves_to_primal_when_that_is_cheaper():
    rng = np.random.default_rng(4)
    dim = 1024
    sizes = {"n_arms": 1, "dim": dim, "seed": 0}
    auto = make_head(sizes, "disjoint", "auto", 1.0)
    dual = make_head(sizes, "disjoint", "dual", 1.0)
    assert type(auto.statistics).__name__ == "DualRidge"
    rounds = dim + 128
    contexts = rng.uniform(-1, 1, (rounds, dim)) / 16
    rewards = rng.random((rounds, 1))
    for start in range(0, rounds, 128):
        assert start < dim or type(auto.statistics).__name__ == "DualRidge"
        part = slice(start, start + 128)
        play(auto, contexts[part], rewards[part], first_round=start)
        play(dual, contexts[part], rewards[part], first_round=start)
    assert type(auto.statistics).__name__ == "Ridge"
    probe = rng.uniform(-1, 1, (3, dim)) / 16
    for ours, other in zip(auto.score(probe), dual.score(probe), strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-9, atol=1e-11)


def test_a_dimension_too_large_for_memory_stays_dual():
    head = make_head({"n_arms": 12, "dim": 150_528, "seed": 0}, "disjoint", "auto", 1.0)
    images = np.random.default_rng(0).integers(0, 256, (4, 150_528), dtype=np.uint8)
    play(head, images, np.ones((4, 12)))
    assert type(head.statistics).__name__ == "DualRidge"


@pytest.mark.parametrize("dim", [1, 16, 200])
def test_a_large_batch_is_scored_as_its_rows(dim):
    rng = np.random.default_rng(1)
    contexts = rng.normal(size=(1100, dim))
    ridge = Ridge(4, dim, 1.0)
    # the last head has no round
    ridge.update(contexts[:300], rng.integers(0, 3, 300), rng.random(300))
    for together, *parts in zip(
        ridge.score(contexts), *(ridge.score(row[None]) for row in contexts), strict=True
    ):
        np.testing.assert_allclose(together, np.concatenate(parts), rtol=1e-10, atol=1e-12)


def test_the_dual_form_stores_images_as_bytes_until_other_contexts_come():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (1300, 12), np.uint8)
    dual = make_head({"n_arms": 2, "dim": 12}, "disjoint", "dual", 1.0)
    primal = make_head({"n_arms": 2, "dim": 12}, "disjoint", "primal", 1.0)
    for start, stop in ((0, 500), (500, 501), (501, 1300)):
        arms = rng.integers(0, 2, stop - start)
        rewards = rng.random(stop - start)
        dual.learn(images[start:stop], arms, rewards)
        primal.learn(images[start:stop], arms, rewards)
    assert dual.state()["dual.x"].dtype == np.uint8
    np.testing.assert_array_equal(dual.state()["dual.x"], images)
    more = rng.random((3, 12))
    for head in (dual, primal):
        head.learn(more, np.array([0, 1, 1]), np.array([0.2, 0.4, 0.6]))
    np.testing.assert_array_equal(dual.state()["dual.x"], np.concatenate([images / 255.0, more]))
    again = make_head({"n_arms": 2, "dim": 12}, "disjoint", "dual", 1.0)
    again.restore(dual.state())
    for ours, loaded, expected in zip(
        dual.score(images), again.score(images), primal.score(images), strict=True
    ):
        np.testing.assert_array_equal(ours, loaded)
        np.testing.assert_allclose(ours, expected, rtol=1e-7, atol=1e-9)
