"""Learning from a log uses its propensities: weights, pseudo-rewards, and what is refused."""

import numpy as np
import pytest

import daband
from daband.neural.learning._batches import _by_weight
from daband.neural.learning._replay_buffer import RoundBuffer
from daband.policies._incoming_rounds import LARGEST_WEIGHT, pseudo_rewards, round_weights

K, D = 3, 4


def logged(n=400, seed=0):
    """Contexts, arms, rewards and propensities of a log that prefers arm 0 where the first feature is large."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, D))
    logits = np.stack([2 * x[:, 0], np.zeros(n), -x[:, 0]], axis=1)
    share = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    arm = (rng.random(n)[:, None] > share.cumsum(axis=1)).sum(axis=1).clip(max=K - 1)
    mean = 0.5 + 0.4 * np.stack([np.tanh(x[:, 0]), np.cos(2 * x[:, 0]) / 2, np.sin(x[:, 1])], axis=1)
    reward = (rng.random(n) < mean[np.arange(n), arm]).astype(float)
    return x, arm, reward, share[np.arange(n), arm], mean


def linucb(**settings):
    return daband.LinUCB(context_shape=(D,), n_arms=K, **settings)


def test_weights_are_those_of_multi_task_regression():
    chances = np.array([0.25, 0.5, 1.0, 1 / 64])
    np.testing.assert_allclose(round_weights(chances, 4, weighting="importance"), [1.0, 0.5, 0.25, LARGEST_WEIGHT])
    np.testing.assert_allclose(round_weights(chances, 4, weighting="flattened"), [1.0, 0.5**0.25, 0.25**0.25, 2.0])
    assert round_weights(chances, 4, weighting="none") is None


def test_pseudo_rewards_average_to_the_truth_by_either_part():
    """Right propensities repair a wrong model; a right model needs no propensities."""
    _, arm, reward, p, mean = logged(40_000)
    for predicted, chance in ((np.full((len(arm), K), 0.3), p), (mean, np.full(len(arm), 0.7))):
        filled = pseudo_rewards(predicted, arm, reward, chance, largest=1e9)
        np.testing.assert_allclose(filled.mean(axis=0), mean.mean(axis=0), atol=0.03)


@pytest.mark.parametrize("weighting", ["importance", "flattened"])
@pytest.mark.parametrize("form", ["primal", "dual"])
@pytest.mark.parametrize("arms", ["disjoint", "shared"])
def test_weights_make_a_weighted_ridge_regression(form, arms, weighting):
    """Against the closed form, with the batch in parts and one round alone."""
    x, arm, reward, p, _ = logged(60)
    if arms == "shared":
        x = np.random.default_rng(1).normal(size=(60, K, D))
    policy = linucb(arms=arms, form=form)
    for part in (slice(0, 40), slice(40, 41), slice(41, 60)):
        policy.update(x[part], arm[part], reward[part], propensity=p[part], propensity_weighting=weighting)
    w = round_weights(p, K, weighting=weighting)
    probe = np.random.default_rng(2).normal(size=(5, K, D) if arms == "shared" else (5, D))
    got = policy.decide(probe)
    for k in range(K):
        rows = np.ones(60, bool) if arms == "shared" else arm == k
        z = x[rows, arm[rows]] if arms == "shared" else x[rows]
        gram = np.eye(D) + (z.T * w[rows]) @ z
        theta = np.linalg.solve(gram, (z.T * w[rows]) @ reward[rows])
        at = probe[:, k] if arms == "shared" else probe
        np.testing.assert_allclose(got.mean[:, k], at @ theta, atol=1e-5)
        np.testing.assert_allclose(got.width[:, k] ** 2, np.einsum("bd,bd->b", at @ np.linalg.inv(gram), at), atol=1e-5)


def test_even_propensities_change_nothing():
    x, arm, reward, _, _ = logged(100)
    plain, weighted = linucb(), linucb()
    plain.update(x, arm, reward)
    weighted.update(x, arm, reward, propensity=np.full(100, 1 / K))
    np.testing.assert_allclose(plain.decide(x).mean, weighted.decide(x).mean, atol=1e-10)


def test_none_leaves_propensities_unused():
    x, arm, reward, p, _ = logged(50)
    plain, told = linucb(), linucb()
    plain.update(x, arm, reward)
    told.update(x, arm, reward, propensity=p, propensity_weighting="none")
    np.testing.assert_array_equal(plain.decide(x).mean, told.decide(x).mean)


def test_the_best_constant_arm_of_a_confounded_log():
    """Arm 0 was pulled where it pays; its mean over the log is too high unless propensities are used."""
    x, arm, reward, p, mean = logged(20_000)
    error = {}
    for weighting in ("none", "importance", "doubly_robust"):
        policy = daband.Constant(context_shape=(D,), n_arms=K)
        policy.update(x, arm, reward, propensity=p, propensity_weighting=weighting)
        error[weighting] = abs(policy.decide(x[:1]).mean[0] - mean.mean(axis=0)).max()
    assert error["none"] > 0.1
    assert error["importance"] < 0.04
    assert error["doubly_robust"] < 0.04


@pytest.mark.parametrize("arms", ["disjoint", "shared"])
def test_doubly_robust_learns_every_arm_of_every_round(arms):
    x, arm, reward, p, _ = logged(80)
    if arms == "shared":
        x = np.random.default_rng(1).normal(size=(80, K, D))
    policy = linucb(arms=arms)
    policy.update(x[:60], arm[:60], reward[:60], propensity=p[:60], propensity_weighting="doubly_robust")
    assert policy.rounds_learned == 60
    before = policy.decide(x).mean
    policy.update(x[60:], arm[60:], reward[60:], propensity=p[60:], propensity_weighting="doubly_robust")
    after = policy.decide(x).mean
    assert np.isfinite(after).all()
    assert (np.abs(after - before).max(axis=0) > 1e-6).all()


def test_rounds_kept_back_keep_their_weights(tmp_path):
    """With reward_range="auto" the first rounds wait, also through a file."""
    x, arm, reward, p, _ = logged(40)
    known = linucb(reward_range=(0.0, 1.0))
    known.update(x, arm, reward, propensity=p)
    auto = linucb(reward_range="auto")
    auto.update(x[:1], arm[:1], reward[:1], propensity=p[:1])
    assert auto.rounds_learned == 0
    auto.save(tmp_path / "p.safetensors")
    auto = daband.load(tmp_path / "p.safetensors")
    auto.update(x[1:], arm[1:], reward[1:], propensity=p[1:])
    low, high = auto.reward_range
    by_hand = linucb(reward_range=(low, high))
    by_hand.update(x, arm, reward, propensity=p)
    np.testing.assert_allclose(auto.decide(x).mean, by_hand.decide(x).mean, atol=1e-10)
    with pytest.raises(daband.InvalidInput, match="reward_range"):
        linucb(reward_range="auto").update(
            x[:1], arm[:1], reward[:1], propensity=p[:1], propensity_weighting="doubly_robust"
        )


def test_skipped_duplicates_take_their_propensities_along():
    x, arm, reward, p, _ = logged(6)
    policy, other = linucb(), linucb()
    policy.update(x[:2], arm[:2], reward[:2], ids=[0, 1], propensity=p[:2])
    policy.update(x, arm, reward, ids=range(6), propensity=p, on_duplicate="skip")
    other.update(x, arm, reward, propensity=p)
    np.testing.assert_allclose(policy.decide(x).mean, other.decide(x).mean, atol=1e-10)


@pytest.mark.parametrize("bad", [0.0, 1.5, -0.1, np.nan, np.inf])
def test_a_bad_propensity_is_named_by_row(bad):
    x, arm, reward, p, _ = logged(8)
    policy = linucb()
    policy.update(x, arm, reward)
    before = policy.decide(x).mean
    p[5] = bad
    with pytest.raises(daband.InvalidInput, match=r"propensity must lie in \(0, 1\].*row 5"):
        policy.update(x, arm, reward, propensity=p)
    np.testing.assert_array_equal(policy.decide(x).mean, before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"propensity": np.full(7, 0.5)}, r"propensity must have shape \(8,\)"),
        ({"propensity": ["a"] * 8}, "propensity must hold numbers"),
        ({"propensity_weighting": "importance"}, "needs the rounds' propensity"),
        ({"propensity": np.full(8, 0.5), "propensity_weighting": "ips"}, "propensity_weighting must be one of"),
    ],
)
def test_bad_arguments(settings, message):
    x, arm, reward, _, _ = logged(8)
    with pytest.raises(daband.InvalidInput, match=message):
        linucb().update(x, arm, reward, **settings)


class TestNeural:
    """Policies that learn by gradients: rounds are drawn, and the head is fitted, by weight."""

    def policy(self, **settings):
        return daband.NeuralLinUCB(context_shape=(D,), n_arms=K, recipe="small", device="cpu", **settings)

    def test_rows_are_drawn_in_proportion_to_weights(self):
        import torch

        buffer = RoundBuffer(context_shape=(1,), capacity=8, seed=0, device=torch.device("cpu"))
        buffer.add_rounds(np.zeros((4, 1)), np.arange(4), np.zeros(4), np.array([1.0, 0.5, 4.5, 2.0]))
        rows = _by_weight(buffer, torch.linspace(0, 1, 801)[:-1])
        np.testing.assert_allclose(np.bincount(rows.numpy()) / 800, [0.125, 0.0625, 0.5625, 0.25], atol=0.005)

    def test_the_head_weighs_rounds(self):
        x, arm, reward, p, _ = logged(64)
        policy = self.policy()
        policy.update(x, arm, reward, propensity=p, propensity_weighting="importance")
        z, w = policy.latent(x), round_weights(p, K, weighting="importance")
        for k in range(K):
            rows = arm == k
            gram = np.eye(z.shape[1]) + (z[rows].T * w[rows]) @ z[rows]
            theta = np.linalg.solve(gram, (z[rows].T * w[rows]) @ reward[rows])
            np.testing.assert_allclose(policy.decide(x).mean[:, k], z @ theta, atol=1e-6)

    def test_weights_survive_a_file_and_a_refit(self, tmp_path):
        x, arm, reward, p, _ = logged(300)
        policy = self.policy()
        policy.update(x[:200], arm[:200], reward[:200])
        policy.update(x[200:], arm[200:], reward[200:], propensity=p[200:], propensity_weighting="importance")
        policy.save(tmp_path / "p.safetensors")
        loaded = daband.load(tmp_path / "p.safetensors")
        for one in (policy, loaded):
            assert one.adapt(steps=2)["refitted"] == 1.0
        np.testing.assert_array_equal(policy.decide(x).mean, loaded.decide(x).mean)
        source = loaded.buffers.rounds[0]
        wanted = np.concatenate([np.ones(200), round_weights(p[200:], K, weighting="importance")])
        np.testing.assert_allclose(source.weights[: len(source)].numpy(), wanted)

    def test_a_file_without_weights_is_as_before(self):
        x, arm, reward, _, _ = logged(10)
        policy = self.policy()
        policy.update(x, arm, reward)
        assert not any("weights" in name for name in policy.buffers.state())

    def test_what_is_not_offered_is_refused_by_name(self):
        x, arm, reward, p, _ = logged(8)
        with pytest.raises(daband.InvalidInput, match="'doubly_robust' is not offered by nlinucb"):
            self.policy().update(x, arm, reward, propensity=p, propensity_weighting="doubly_robust")
        latest = self.policy()
        latest = daband.NeuralLinUCB(context_shape=(D,), n_arms=K, recipe="paper", device="cpu")
        latest.update(x, arm, reward, propensity=p)  # the default is what the policy offers
        with pytest.raises(daband.InvalidInput, match="'importance' is not offered"):
            latest.update(x, arm, reward, propensity=p, propensity_weighting="importance")


class TestTraining:
    def pair(self):
        x, arm, reward, p, _ = logged(256)
        return daband.domains.from_log(source=(x, arm, reward, p), source_test=None, target=x, n_arms=K), p

    def test_train_uses_the_propensities_of_a_log(self):
        pair, _ = self.pair()
        policies = [linucb() for _ in range(3)]
        for policy, weighting in zip(policies, (None, "flattened", "none"), strict=True):
            daband.train(policy, source=pair.source, episodes=4, propensity_weighting=weighting)
        probe = np.eye(D)
        default, flattened, none = (policy.decide(probe).mean for policy in policies)
        np.testing.assert_array_equal(default, flattened)
        assert np.abs(default - none).max() > 1e-3

    def test_a_source_that_is_no_log_has_none(self):
        pair = daband.domains.load("synthetic", tiny=True)
        policy = daband.LinUCB.for_pair(pair)
        with pytest.raises(daband.InvalidInput, match="propensity_weighting is for a source that is a log"):
            daband.train(policy, source=pair.source, episodes=1, episode_length=8, propensity_weighting="importance")


class TestProbabilities:
    """``probabilities`` says of every arm what ``select`` says of the chosen one."""

    @pytest.mark.parametrize(
        "settings", [{}, {"epsilon": 0.3}, {"explore": "greedy"}, {"explore": "thompson", "epsilon": 0.1}]
    )
    def test_linucb(self, settings):
        x, arm, reward, _, _ = logged(120)
        policy = linucb(**settings)
        for _ in range(2):  # without rounds all arms are tied
            mask = np.random.default_rng(3).random((120, K)) < 0.7
            mask[:, 1] = True
            chosen, all_of_them = policy.decide(x, available=mask), policy.probabilities(x, available=mask)
            np.testing.assert_allclose(all_of_them.sum(axis=1), 1.0)
            assert (all_of_them[~mask] == 0).all()
            np.testing.assert_allclose(all_of_them[np.arange(120), chosen.arm], chosen.propensity, atol=1e-6)
            policy.update(x, arm, reward)

    def test_a_rule_stands_in(self):
        policy = linucb(epsilon=0.5)
        x, arm, reward, _, _ = logged(30)
        policy.update(x, arm, reward)
        greedy = policy.probabilities(x, rule="greedy")
        assert set(np.unique(greedy)) == {0.0, 1.0}
        with pytest.raises(daband.InvalidInput, match="rule must be"):
            policy.probabilities(x, rule="softmax")
