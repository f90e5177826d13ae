"""LinUCB through its public face: known defects of other libraries, propensities, odd but legal
input.
"""

import numpy as np
import pytest

import daband
from daband.errors import InvalidInput


def make(**settings):
    return daband.LinUCB(**{"context_shape": (3,), "n_arms": 4, **settings})


class TestDefectsSeenElsewhere:
    @pytest.mark.parametrize("ridge", [0.1, 1.0, 10.0])
    def test_the_inverse_starts_at_one_over_ridge(self, ridge):
        """One library starts it at ridge * I: then a stronger penalty means a wider interval."""
        context = np.array([[0.6, 0.0, 0.8]])
        np.testing.assert_allclose(
            make(ridge=ridge, intercept=False).select(context).bonus, 1 / np.sqrt(ridge)
        )

    @pytest.mark.parametrize("arms", ["disjoint", "shared"])
    def test_an_unpulled_arm_has_the_largest_width(self, arms):
        """One library gives an arm that was never pulled a width of zero, and so never pulls it."""
        rng = np.random.default_rng(0)
        policy = make(arms=arms)
        shape = (20, 3) if arms == "disjoint" else (20, 4, 3)
        contexts = rng.uniform(0.2, 1, shape)
        if arms == "shared":
            contexts[:, 3, :2] = 0  # only the last arm's contexts point along the third axis alone
            contexts[:, :3, 2] = 0
            contexts /= np.linalg.norm(contexts, axis=2, keepdims=True)
        policy.update(contexts, np.arange(20) % 3, np.full(20, 0.5))
        decision = policy.decide(contexts)
        assert (decision.bonus[:, 3:] > decision.bonus[:, :3]).all()

    def test_seed_zero_is_a_seed(self):
        """One library takes seed 0 for no seed."""
        contexts = np.random.default_rng(0).normal(size=(200, 3))
        first = make(seed=0, epsilon=0.5)
        second = make(seed=0, epsilon=0.5)
        np.testing.assert_array_equal(first.select(contexts).arm, second.select(contexts).arm)
        assert (make(seed=0).select(contexts).arm != make(seed=1).select(contexts).arm).any()

    def test_reloading_does_not_change_decisions(self, tmp_path):
        """One library's saved models decide otherwise once reloaded."""
        rng = np.random.default_rng(2)
        policy = make(alpha=0.3)
        policy.play(rng.normal(size=(700, 3)), rng.random((700, 4)))
        policy.save(tmp_path / "p.safetensors")
        loaded = daband.load(tmp_path / "p.safetensors")
        contexts = rng.normal(size=(500, 3))
        np.testing.assert_array_equal(loaded.select(contexts).arm, policy.select(contexts).arm)


class TestPropensities:
    @pytest.mark.parametrize("explore", ["ucb", "greedy"])
    @pytest.mark.parametrize("epsilon", [0.0, 0.25])
    def test_they_are_the_frequencies(self, explore, epsilon):
        """Over many seeds an arm is chosen as often as its propensity says, ties and masks
        included.
        """
        rng = np.random.default_rng(3)
        contexts = rng.normal(size=(12, 3))
        rewards = rng.random((12, 4))
        probe = np.repeat(rng.normal(size=(1, 3)), 4000, axis=0)
        mask = [True, True, False, True]
        policy = make(explore=explore, epsilon=epsilon, alpha=0.7, seed=5)
        policy.play(contexts, rewards)
        decision = policy.select(probe, available=mask)
        for arm in range(4):
            chosen = decision.arm == arm
            if not chosen.any():
                continue
            wanted = decision.propensity[chosen]
            np.testing.assert_allclose(wanted, wanted[0])
            assert (
                abs(chosen.mean() - wanted[0])
                < 4 * np.sqrt(wanted[0] * (1 - wanted[0]) / 4000) + 1e-9
            )
        shares = {int(arm): p for arm, p in zip(decision.arm, decision.propensity, strict=True)}
        if epsilon:
            assert sum(shares.values()) == pytest.approx(1.0, abs=1e-6)

    def test_ties_share_evenly(self):
        decision = make(seed=1).select(np.ones((3000, 3)))
        np.testing.assert_allclose(decision.propensity, 0.25)
        assert np.bincount(decision.arm, minlength=4).min() > 600

    def test_inverse_propensity_weighting_is_unbiased(self):
        """What the propensities are for: a log of an exploring policy values another policy
        rightly.
        """
        rng = np.random.default_rng(4)
        contexts = rng.normal(size=(6000, 3))
        truth = 1 / (1 + np.exp(-contexts @ rng.normal(size=(3, 4))))
        rewards = (rng.random((6000, 4)) < truth).astype(float)
        played = make(alpha=0.2, epsilon=0.3, seed=2).play(contexts, rewards)
        always = 2
        estimate = np.mean(played.reward * (played.arm == always) / played.propensity)
        assert estimate == pytest.approx(truth[:, always].mean(), abs=0.05)

    def test_played_rounds_count_as_decided(self):
        """Random draws go by a round's number: rounds after ``play`` must not repeat those of the
        rounds played.
        """
        contexts = np.random.default_rng(5).normal(size=(60, 3))
        rewards = np.full((60, 4), 0.5)
        played = make(epsilon=1.0, seed=3)
        whole = make(epsilon=1.0, seed=3)
        first = played.play(contexts[:20], rewards[:20]).arm
        assert played.rounds_decided == 20
        arms = np.concatenate([first, played.select(contexts[20:]).arm])
        np.testing.assert_array_equal(arms, whole.select(contexts).arm)


class TestSettings:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("ridge", 0),
            ("ridge", -1),
            ("ridge", np.nan),
            ("ridge", np.inf),
            ("alpha", -0.1),
            ("alpha", np.nan),
            ("explore", "softmax"),
            ("epsilon", 1.5),
            ("epsilon", -0.1),
            ("transform", "pca"),
        ],
    )
    def test_what_makes_no_sense_is_refused_by_name(self, name, value):
        with pytest.raises(InvalidInput, match=name):
            make(**{name: value})

    def test_arguments_are_keywords(self):
        with pytest.raises(TypeError):
            daband.LinUCB((3,), 4)


class TestWhatGoesIn:
    def test_torch_tensors(self):
        import torch

        contexts = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
        policy = make()
        same = make()
        decision = policy.select(contexts)
        assert isinstance(decision.arm, np.ndarray)
        np.testing.assert_array_equal(decision.arm, same.select(contexts.numpy()).arm)
        policy.update(contexts, torch.from_numpy(decision.arm), torch.rand(5))
        policy.select(contexts.requires_grad_())

    def test_lists_and_float32_and_noncontiguous(self):
        rng = np.random.default_rng(0)
        contexts = rng.normal(size=(6, 3)).astype(np.float32)
        wanted = make().play(contexts.astype(float), np.full((6, 4), 0.5)).arm
        for given in (
            contexts.tolist(),
            contexts,
            np.asfortranarray(contexts),
            np.repeat(contexts, 2, axis=0)[::2],
        ):
            np.testing.assert_array_equal(make().play(given, np.full((6, 4), 0.5)).arm, wanted)

    def test_images_of_bytes_are_zero_to_one(self):
        images = np.random.default_rng(0).integers(0, 256, (8, 3, 4, 4), dtype=np.uint8)
        bytes_policy = daband.LinUCB(context_shape=(3, 4, 4), n_arms=3)
        float_policy = daband.LinUCB(context_shape=(3, 4, 4), n_arms=3)
        rewards = np.random.default_rng(1).random((8, 3))
        a = bytes_policy.play(images, rewards)
        b = float_policy.play(images / 255.0, rewards)
        np.testing.assert_array_equal(a.arm, b.arm)
        np.testing.assert_allclose(a.bonus, b.bonus)

    def test_the_caller_may_reuse_its_array(self):
        """What was learned is a copy: a loop that overwrites one buffer must not change the
        past.
        """
        policy, same = make(), make()
        buffer = np.empty((1, 3))
        rng = np.random.default_rng(0)
        for _ in range(40):
            buffer[:] = rng.normal(size=3)
            policy.update(buffer, [1], [0.5])
            same.update(buffer.copy(), [1], [0.5])
        buffer[:] = 1.0
        np.testing.assert_array_equal(policy.decide(buffer).bonus, same.decide(buffer).bonus)


@pytest.mark.parametrize("dim", [3, 8, 32, 50])
def test_single_rounds_go_on_to_the_last_bit_after_loading(dim, tmp_path):
    rng = np.random.default_rng(dim)
    policy = daband.LinUCB(context_shape=(dim,), n_arms=3, alpha=0.5)

    def rounds(which, generator, n):
        out = []
        for _ in range(n):
            context = generator.normal(size=(1, dim))
            decision = which.select(context)
            which.update(context, decision.arm, generator.random(1))
            out.append((decision.arm[0], *decision.mean[0], *decision.bonus[0]))
        return out

    rounds(policy, rng, 60)
    policy.save(tmp_path / "p")
    loaded = daband.load(tmp_path / "p")
    assert rounds(policy, np.random.default_rng(1), 40) == rounds(
        loaded, np.random.default_rng(1), 40
    )


def test_contexts_too_large_for_the_ridge_change_nothing(tmp_path):
    policy = make(context_shape=(4,), n_arms=2, ridge=1e-6)
    rng = np.random.default_rng(0)
    policy.update(rng.normal(size=(300, 4)), [0, 1] * 150, rng.random(300))
    policy.save(tmp_path / "before")
    with pytest.raises(InvalidInput, match=r"contexts .*8e\+06 .*row 299"):
        policy.update(
            np.r_[rng.normal(size=(299, 4)), np.full((3, 4), 4e6)],
            [0] * 299 + [1] * 3,
            np.ones(302),
        )
    policy.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alpha", "abc"),
        ("alpha", None),
        ("ridge", None),
        ("epsilon", [1]),
        ("context_shape", "abc"),
        ("context_shape", (float("nan"),)),
        ("context_shape", (np.float32(2.5),)),
    ],
)
def test_settings_of_the_wrong_type_are_refused_by_name(name, value):
    with pytest.raises(InvalidInput, match=name):
        make(**{name: value})


def test_masked_arrays_and_odd_ids_are_refused():
    policy = make()
    with pytest.raises(InvalidInput, match=r"contexts .*masked"):
        policy.select(np.ma.masked_invalid(np.array([[np.nan, 1.0, 2.0]], np.float32)))
    for ids in (5, "abc", b"xyz"):
        with pytest.raises(InvalidInput, match="ids"):
            policy.update(np.ones((3, 3)), [0, 1, 2], [0, 0, 0], ids=ids)


def test_a_shared_transform_is_fitted_for_each_policy_alone():
    pca = daband.PCA(2)
    x = np.random.default_rng(0).normal(size=(20, 3))
    first = make(transform=pca)
    second = make(transform=pca)
    first.prepare(x[:10])
    second.prepare(x[10:])
    assert not pca.fitted
    assert not np.allclose(first.transform.axes, second.transform.axes)


def test_regret_is_sublinear_on_a_linear_problem():
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(3, 4))
    contexts = rng.normal(size=(4000, 3))
    contexts[:, 2] = 1.0  # the constant that makes expected rewards linear in contexts
    expected = np.array([0, 0, 0.5]) @ np.ones((3, 4)) + 0.05 * contexts @ theta
    rewards = np.clip(expected + 0.1 * rng.normal(size=expected.shape), 0, 1)
    arms = make(alpha=1.0).play(contexts, rewards).arm
    regret = expected.max(axis=1) - expected[np.arange(4000), arms]
    assert regret[2000:].sum() < 0.5 * regret[:2000].sum()


@pytest.mark.parametrize("seed", range(5))
def test_a_constant_finds_the_best_arm(seed):
    """The first arm with a reward is no better than the others: all are tried."""
    draw = np.random.default_rng(seed)
    policy = daband.Constant(context_shape=(1,), n_arms=4, seed=seed)
    rewards = (draw.random((2000, 4)) < [0.4, 0.6, 0.3, 0.5]).astype(float)
    policy.play(np.zeros((2000, 1)), rewards)
    assert policy.decide(np.zeros((1, 1)), rule="greedy").arm.tolist() == [1]
    assert policy.counts.min() > 3


def test_a_constant_with_an_arm_always_chooses_it(tmp_path):
    policy = daband.Constant(context_shape=(1,), n_arms=3, arm=2)
    contexts = np.zeros((300, 1))
    policy.update(contexts, np.arange(300) % 3, np.tile([900.0, 100.0, 50.0], 100))
    for again in (policy, daband.load(_saved(policy, tmp_path))):
        decision = again.decide(contexts[:2], rule="ucb")
        assert decision.arm.tolist() == [2, 2]
        assert decision.mean[0, 2] == pytest.approx(50.0, rel=0.1)
        assert (decision.mean[:, :2] < decision.mean[:, 2:]).all()
    daband.export(policy, tmp_path / "p.daband", epsilon=0.3)
    deployed = daband.load_deployed(tmp_path / "p.daband").decide(contexts)
    assert np.bincount(deployed.arm).argmax() == 2
    assert set(deployed.arm.tolist()) == {0, 1, 2}  # it explores
    np.testing.assert_allclose(deployed.mean[:2], decision.mean, rtol=1e-5)
    with pytest.raises(InvalidInput, match="arm"):
        daband.Constant(context_shape=(1,), n_arms=3, arm=3)


def _saved(policy, folder):
    policy.save(folder / "p.safetensors")
    return folder / "p.safetensors"
