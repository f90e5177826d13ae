"""A policy from a log: the best arm, or choices by context where they are proven to gain."""

import copy

import numpy as np
import pytest

import daband
from daband.base._arrays import take_chosen
from daband.errors import NotFitted
from daband.features._catalogue import Catalogue

K = 3
D = 4


def rounds(n=2_000, effect=2.0, seed=0):
    """Arm 0 gains 0.8 everywhere, arm 2 ``effect`` where the first number is above 0.7."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, D))
    chances = np.array([0.5, 0.3, 0.2])
    arms = rng.choice(K, n, p=chances)
    means = np.stack([np.full(n, 0.8), np.zeros(n), effect * (x[:, 0] > 0.7)], axis=1)
    return x, arms, means[np.arange(n), arms] + rng.normal(size=n), chances[arms]


def pair_of(log, **options):
    target = np.random.default_rng(8).normal(size=(300, D)) + 0.2
    return daband.domains.from_log(source=log, target=target, n_arms=K, **options)


@pytest.fixture(scope="module")
def trained():
    pair = pair_of(rounds())
    policy = daband.LogPolicy.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source)
    return pair, policy


def test_a_log_is_learned_whole_and_greedily(trained):
    pair, policy = trained
    assert policy.evidence.rounds == policy.rounds_learned == len(pair.source)
    assert policy.evidence.personalises
    decision = policy.select([[2.0, 0, 0, 0], [-2.0, 0, 0, 0]], "target")
    assert decision.arm.tolist() == [2, 0]
    assert decision.propensity.tolist() == [1.0, 1.0]
    assert decision.mean[0, 2] > 1.0 > decision.mean[1, 2]


def test_without_evidence_one_arm_is_chosen():
    pair = pair_of(rounds(effect=0.0))
    policy = daband.LogPolicy.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target)
    assert set(policy.select(pair.target.read(np.arange(300)), "target").arm) == {0}


def test_the_exported_file_and_the_saved_one_decide_alike(trained, tmp_path):
    pair, policy = trained
    contexts = pair.target.read(np.arange(200))
    policy.save(tmp_path / "p.safetensors", replay=False)
    loaded = daband.load(tmp_path / "p.safetensors")
    assert loaded.evidence == policy.evidence
    expected = policy.decide(contexts, "target")
    np.testing.assert_array_equal(loaded.decide(contexts, "target").arm, expected.arm)
    np.testing.assert_allclose(loaded.decide(contexts, "target").mean, expected.mean)
    daband.export(policy, tmp_path / "p.daband")
    deployed = daband.load_deployed(tmp_path / "p.daband")
    assert [deployed.decide(row).arm for row in contexts] == policy.decide(contexts).arm.tolist()


def test_files_give_the_same_policy_as_memory(trained, tmp_path):
    pl = pytest.importorskip("polars")
    pair, policy = trained
    x, arms, rewards, chances = (np.asarray(column) for column in _read(pair.source))
    columns = {f"x{i}": x[:, i] for i in range(D)} | {
        "arm": arms,
        "reward": rewards,
        "propensity": chances,
    }
    pl.DataFrame(columns).write_parquet(tmp_path / "log.parquet")
    other = daband.LogPolicy(context_shape=(D,), n_arms=K, seed=0)
    daband.fit_log(other, tmp_path / "log.parquet")
    assert other.evidence.personalises
    assert other.evidence.gain == pytest.approx(policy.evidence.gain, abs=0.05)
    assert np.mean(other.decide(x).arm == policy.decide(x).arm) > 0.95


def _read(source):
    rows = np.arange(len(source))
    return source.read(rows), *source.read_log(rows)


def test_propensities_that_are_not_given_are_estimated():
    x, arms, rewards, chances = rounds()
    known, unknown = (daband.LogPolicy(context_shape=(D,), n_arms=K) for _ in range(2))
    known.update(x, arms, rewards, propensities=chances)
    unknown.update(x, arms, rewards)
    assert unknown.evidence.gain == pytest.approx(known.evidence.gain, abs=0.05)
    assert unknown.evidence.arm == known.evidence.arm == 0


def test_no_rounds_and_long_contexts():
    policy = daband.LogPolicy(context_shape=(D,), n_arms=K)
    assert set(policy.select(np.zeros((200, D))).arm) <= {0, 1, 2}
    with pytest.raises(NotFitted, match=r"LogPolicy .*evidence"):
        _ = policy.evidence
    with pytest.raises(daband.InvalidInput, match=r"transform=daband\.PCA"):
        daband.LogPolicy(context_shape=(40, 40), n_arms=K)


@pytest.mark.parametrize("n", [60, 2_000])
def test_an_arm_without_rewards_is_chosen_only_if_no_other_arm_is_offered(n, tmp_path):
    x, arms, rewards, _ = rounds(n)
    policy = daband.LogPolicy(context_shape=(D,), n_arms=5)
    policy.catalogue = Catalogue.fit(list("abcde"), np.eye(5))
    policy.update(x, arms, rewards)
    policy.update(x[:3], [3] * 3, [9.0] * 3)  # too few to be chosen by context
    assert n == 60 or policy.evidence.personalises
    contexts = np.concatenate([x[:40], 20.0 * x[:40]])
    for offered, chosen in (
        ([1, 4], {1}),
        ([2, 4], {2}),
        ([3, 4], {3}),
        ([4], {4}),
        ([1, 2, 4], {1, 2}),
    ):
        mask = np.isin(np.arange(5), offered)
        assert set(policy.decide(contexts, available=np.tile(mask, (80, 1))).arm) <= chosen
    with pytest.warns(daband.serving.ExportWarning, match="^1 "):
        daband.export(policy, tmp_path / "p", arm_names=list("abcde"))
    deployed = daband.load_deployed(tmp_path / "p")
    new = {"id": "new", "features": [9.0] * 5}
    for row in contexts:
        assert deployed.decide(row, arms=["c", "e"]).arm_name == "c"
        assert deployed.decide(row, arms=["d", "e", new]).arm_name == "d"
        assert deployed.decide(row, arms=["e", new]).arm_name in ("e", "new")
        assert deployed.with_arms(["c", "e", new]).decide(row).arm_name == "c"
    policy.add_arm("new", [9.0] * 5)
    assert set(
        policy.decide(
            contexts, available=np.tile([False, False, True, False, False, True], (80, 1))
        ).arm
    ) == {2}


def test_a_weighted_log_has_the_standard_error_of_its_effective_size(tmp_path):
    """Standard errors must include the variance of weights, also in a loaded policy."""
    x, arms, rewards, chances = rounds(4_000, seed=1)
    weights = 0.5 ** (np.arange(4_000)[::-1] / 300)
    n_effective = weights.sum() ** 2 / (weights @ weights)
    plain, weighted = (daband.LogPolicy(context_shape=(D,), n_arms=K) for _ in range(2))
    plain.update(x, arms, rewards, propensities=chances)
    weighted.update(x, arms, rewards, weights=weights, propensities=chances)
    assert weighted.evidence.error > 0.8 * plain.evidence.error * np.sqrt(4_000 / n_effective)
    weighted.save(tmp_path / "p")
    loaded = daband.load(tmp_path / "p")
    for policy in (loaded, weighted):
        policy.update(x, arms, rewards, weights=weights, propensities=chances)
    assert loaded.evidence == weighted.evidence


def test_recent_rounds_decide_if_older_ones_have_small_weights():
    x, arms, rewards, chances = rounds(3_000, effect=0.0)
    rewards[:2_000] += 3.0 * (arms[:2_000] == 1)  # arm 1 was the best one for a long time
    plain, weighted = (daband.LogPolicy(context_shape=(D,), n_arms=K) for _ in range(2))
    weights = 0.5 ** (np.arange(3_000)[::-1] / 200)
    plain.update(x, arms, rewards, propensities=chances)
    weighted.update(x, arms, rewards, weights=weights, propensities=chances)
    assert (plain.evidence.arm, weighted.evidence.arm) == (1, 0)
    assert weighted.evidence.value == pytest.approx(0.8, abs=0.3)


@pytest.mark.slow
def test_recency_weights_do_not_personalise_null_logs():
    """Weights were once read as propensities, and 2 of these 12 logs were personalised."""
    personalised = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x, arms = rng.normal(size=(1_500, 8)), rng.integers(0, 2, 1_500)
        rewards = rng.normal(size=1_500) + x[:, 0]
        policy = daband.LogPolicy(context_shape=(8,), n_arms=2)
        weights = 0.5 ** (np.arange(1_500)[::-1] / 150)
        policy.update(x, arms, rewards, weights=weights, propensities=np.full(1_500, 0.5))
        personalised.append(policy.evidence.personalises)
    assert not any(personalised)


def test_rare_arms_keep_their_propensities():
    """Training cut weights off at 10, so that an arm chosen in 1 of 100 rounds counted as one of
    20.
    """
    x, _, _, _ = rounds(4_000)
    rng = np.random.default_rng(3)
    arms = rng.choice(2, 4_000, p=[0.99, 0.01])
    rewards = np.where(arms == 1, 1.0, 0.0) + 3.0 * (x[:, 0] > 0) + 0.1 * rng.normal(size=4_000)
    chances = np.array([0.99, 0.01])[arms]
    pair = daband.domains.from_log(
        source=(x, arms, rewards, chances), target=x, n_arms=2, source_test=None
    )
    trained = daband.LogPolicy.for_pair(pair)
    exact = daband.LogPolicy.for_pair(pair)
    daband.train(trained, source=pair.source, episodes=1, episode_length=4_000)
    exact.prepare(x, x)
    exact.update(x, arms, rewards, propensities=chances)
    assert trained.evidence.value == pytest.approx(exact.evidence.value, rel=1e-9)


def test_folds_do_not_share_the_noise_of_equal_contexts():
    """Without an effect of the context, a policy by context is worse than the best arm."""
    ratios = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        contexts = rng.integers(0, 6, (4_000, 3)).astype(float)
        arms = rng.integers(0, 4, 4_000)
        rewards = (rng.random(4_000) < 0.3).astype(float)
        policy = daband.LogPolicy(context_shape=(3,), n_arms=4)
        policy.update(contexts, arms, rewards, propensities=np.full(4_000, 0.25))
        ratios.append(policy.evidence.gain / (policy.evidence.error or 1.0))
    assert np.mean(ratios) < 1.0  # 2.6 with folds of sorted rounds


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["same", "reversed"])
def test_rare_arms_of_the_target_do_not_outvote_the_source(sign):
    """Rounds with propensities of 0.05 add noise. Arms with other rewards in the target are
    corrected.
    """
    source = rounds(150)
    x = rounds(150, seed=1)[0]
    usual = np.where(x[:, 0] > 0.7, 2, 0)
    rng = np.random.default_rng(2)
    arms = np.where(rng.random(150) < 0.15, rng.integers(K, size=150), usual)
    means = np.stack([np.full(150, 0.8), np.zeros(150), 2.0 * (x[:, 0] > 0.7)], axis=1)
    rewards = sign * means[np.arange(150), arms] + rng.normal(size=150)
    propensities = np.where(arms == usual, 0.9, 0.05)
    policy = daband.LogPolicy(context_shape=(D,), n_arms=K, seed=0)
    policy.update(*source[:3], propensities=source[3], domain="source")
    policy.update(x, arms, rewards, propensities=propensities, domain="target")
    weights = policy.values.mix.weights
    variances = [np.square(1 / p).mean() for p in (source[3], propensities)]
    assert policy.evidence.rounds == 300
    assert weights.min() / weights.max() == pytest.approx(variances[0] / variances[1])
    if sign < 0:
        assert policy.evidence.arm == 1  # the best arm of the target


def draw_families(rng, n):
    """Return rounds whose contexts have at most one of four numbers. Arm 2 is best with the first
    number. Arm 1 is never best, and a sum over several numbers would be.
    """
    x = np.eye(5)[rng.integers(0, 5, n)][:, :4]
    means = np.stack([np.full(n, 0.6), 0.4 * x.any(axis=1), 1.2 * x[:, 0]], axis=1)
    arms = rng.integers(0, 3, n)
    rewards = means[np.arange(n), arms] + 0.5 * rng.normal(size=n)
    return x, arms, rewards, np.full(n, 1 / 3)


@pytest.mark.parametrize("shift", [None, "covariate"])
def test_regressions_do_not_extrapolate_to_target_contexts(shift):
    """Before, a linear regression chose arm 1 for target contexts with all four numbers."""
    target = np.ones((400, 4))
    log = draw_families(np.random.default_rng(0), 4000)
    pair = daband.domains.from_log(
        source=log, target=target, n_arms=3, source_test=None, shift=shift
    )
    policy = daband.LogPolicy.for_pair(pair)
    daband.train(policy, source=pair.source, target=pair.target)
    assert policy.evidence.personalises
    assert set(policy.decide(target, "target").arm) == {2}


def test_a_gain_of_few_rounds_is_no_evidence():
    """A mean of few rounds is not approximately normal. Here the context matters in one of 80
    rounds.
    """
    rng = np.random.default_rng(0)
    for n, personalises in ((4000, False), (24_000, True)):
        x = (rng.random((n, 1)) < 1 / 80).astype(float)
        arms = rng.integers(0, 2, n)
        rewards = np.where(x[:, 0] == arms, 1.0, 0.0) + 0.1 * rng.normal(size=n)
        policy = daband.LogPolicy(context_shape=(1,), n_arms=2)
        policy.update(x, arms, rewards, propensities=np.full(n, 0.5))
        assert policy.evidence.gain == pytest.approx(1 / 80, abs=0.005)
        assert policy.evidence.personalises == personalises


def test_the_target_decides_by_context_again_after_it_rejects_the_source(tmp_path):
    """In the target, the opposite arm is better in each context."""
    rng = np.random.default_rng(0)

    def draw(n, sign):
        contexts = rng.normal(size=(n, 2))
        arms = rng.integers(0, 2, n)
        means = 0.3 * sign * np.where(arms == 0, 1.0, -1.0) * np.tanh(contexts[:, 0])
        return contexts, arms, means + rng.normal(size=n)

    policy = daband.LogPolicy(context_shape=(2,), n_arms=2, seed=0)
    policy.update(*draw(3000, 1.0), "source", propensities=np.full(3000, 0.5))
    probes = np.array([[2.0, 0.0], [-2.0, 0.0]])
    assert policy.decide(probes, "target").arm.tolist() == [0, 1]
    log = draw(1200, -1.0)
    other = copy.deepcopy(policy)
    policy.update(*log, "target", propensities=np.full(1200, 0.5))
    for start in range(0, 1200, 100):  # as a service does
        group = (array[start : start + 100] for array in log)
        other.update(*group, "target", propensities=np.full(100, 0.5))
    assert policy.personalises
    assert policy.decide(probes, "target", rule="greedy").arm.tolist() == [1, 0]
    assert policy.source_worth.worth < 0.1
    policy.save(tmp_path / "policy.safetensors")
    loaded = daband.load(tmp_path / "policy.safetensors")
    daband.export(policy, tmp_path / "market.daband", epsilon=0.1)
    deployed = daband.load_deployed(tmp_path / "market.daband")
    mean = policy.decide(log[0], "target").mean
    np.testing.assert_array_equal(loaded.decide(log[0], "target").mean, mean)
    np.testing.assert_allclose(other.decide(log[0], "target").mean, mean, rtol=1e-10)
    deployed_mean = deployed.frozen.score(log[0])[0]
    np.testing.assert_allclose(deployed_mean, mean, rtol=1e-10)
    loaded.update(*log, "target", propensities=np.full(1200, 0.5))
    policy.update(*log, "target", propensities=np.full(1200, 0.5))
    np.testing.assert_array_equal(
        loaded.decide(log[0], "target").mean, policy.decide(log[0], "target").mean
    )


def test_a_proven_gain_is_used_until_it_is_not_positive_any_more(tmp_path):
    """Before, arms were chosen by context in one week and not in the next one."""
    loop, fresh = (daband.LogPolicy(context_shape=(D,), n_arms=K, seed=0) for _ in range(2))

    def learn(policies, effect, seed):
        x, arms, rewards, chances = rounds(2_000, effect, seed)
        for policy in policies:
            policy.update(x, arms, rewards, propensities=chances)

    learn((loop, fresh), 1.4, 0)
    assert loop.evidence.personalises
    assert loop.evidence.low > 0.0
    learn((loop, fresh), 0.1, 1)
    assert not fresh.evidence.personalises
    assert fresh.evidence.gain > 0.0 > fresh.evidence.low
    loop.save(tmp_path / "p.safetensors")
    loaded = daband.load(tmp_path / "p.safetensors")
    daband.export(loop, tmp_path / "p.daband")
    contexts = rounds(500, seed=2)[0]
    decisions = loop.decide(contexts).arm
    assert loop.personalises
    assert set(decisions) == {0, 2}
    assert loaded.evidence == loop.evidence
    np.testing.assert_array_equal(loaded.decide(contexts).arm, decisions)
    deployed = daband.load_deployed(tmp_path / "p.daband")
    np.testing.assert_array_equal(deployed.decide(contexts).arm, decisions)
    learn((loop, loaded), -4.0, 3)
    assert loop.evidence == loaded.evidence
    assert not loaded.personalises
    assert loaded.evidence.gain <= 0.0


def draw_markets(seed=0):
    """Return a function that draws rounds with uniform arms, whose effects of contexts have this
    size.
    """
    rng = np.random.default_rng(seed)

    def draw(n, effect, best=0.0, product=0.0):
        x = rng.normal(size=(n, 2))
        arms = rng.integers(0, 2, n)
        means = effect * x[:, 0] + product * np.sign(x[:, 0] * x[:, 1])
        rewards = np.where(arms == 0, best + means, -means) + rng.normal(size=n)
        return x, arms, rewards

    return draw


def learn_market(policy, log, domain):
    policy.update(*log, domain, propensities=np.full(len(log[1]), 0.5))


@pytest.mark.parametrize("effect", [0.4, 0.0])
def test_regressions_decide_only_if_the_best_arm_depends_on_contexts(effect, tmp_path):
    draw = draw_markets()
    policy = daband.LogPolicy(context_shape=(2,), n_arms=2, seed=0, epsilon=0.1)
    learn_market(policy, draw(3000, effect, best=0.3), "source")
    assert policy.evidence.personalises == (effect > 0)
    for _ in range(3):
        learn_market(policy, draw(1000, effect, best=0.3), "target")
        policy.save(tmp_path / "policy.safetensors")
        loaded = daband.load(tmp_path / "policy.safetensors")
        contexts = draw(50, 0.0)[0]
        decision = policy.decide(contexts, "target")
        again = loaded.decide(contexts, "target")
        np.testing.assert_array_equal(again.mean, decision.mean)
        policy = loaded
        probes = np.array([[2.0, 0.0], [-2.0, 0.0]])
        greedy = policy.decide(probes, "target", rule="greedy")
        assert greedy.arm.tolist() == ([0, 1] if effect else [0, 0])
        # bonuses of regressions depend on the context
        assert effect or (np.ptp(decision.bonus, axis=0) == 0.0).all()


@pytest.mark.parametrize(("effect", "product"), [(0.35, 0.0), (0.0, 0.8)])
def test_trees_are_chosen_if_they_clearly_gain_more_than_a_regression(effect, product):
    """With an additive effect, the gain of trees was the largest of all by chance for these seeds."""
    for seed in (9, 13, 16):
        x, arms, rewards = draw_markets(seed)(600, 0.0)
        signs = np.where(arms == 0, 1.0, -1.0)
        rewards += signs * (effect * np.sign(x[:, 0]) + product * np.sign(x[:, 0] * x[:, 1]))
        policy = daband.LogPolicy(context_shape=(2,), n_arms=2, seed=0)
        policy.update(x, arms, rewards, propensities=np.full(600, 0.5))
        assert policy.evidence.personalises
        assert policy.evidence.candidate.endswith("trees") == (product > 0)


def test_regressions_replace_trees_only_if_they_predict_better():
    """The best arm depends on the product of two numbers, which a linear regression cannot learn."""
    draw = draw_markets()
    policy = daband.LogPolicy(context_shape=(2,), n_arms=2, seed=0)
    learn_market(policy, draw(4000, 0.5, product=0.8), "source")
    contexts = draw(1000, 0.0)[0]
    right = (0.5 * contexts[:, 0] + 0.8 * np.sign(contexts.prod(axis=1)) < 0).astype(int)
    assert np.mean(policy.decide(contexts).arm == right) > 0.9
    learn_market(policy, draw(400, 0.5, product=0.8), "target")
    assert np.mean(policy.decide(contexts, "target", rule="greedy").arm == right) > 0.9
    learn_market(policy, draw(4000, -0.8), "target")
    reversed_arms = (contexts[:, 0] > 0).astype(int)
    assert np.mean(policy.decide(contexts, "target", rule="greedy").arm == reversed_arms) > 0.9


@pytest.mark.slow
def test_few_rewards_that_agree_with_the_source_do_not_replace_the_policy():
    probes = np.random.default_rng(9).normal(size=(4000, 8))

    def draw_effects(contexts):
        free = np.where(contexts[:, 0] > 0.3, 5.0, -4.0)
        return np.column_stack([np.zeros(len(contexts)), np.full(len(contexts), -1.0), free])

    def measure_gain(seed):
        rng = np.random.default_rng(seed)
        policy = daband.LogPolicy(context_shape=(8,), n_arms=3, seed=0)
        for domain, n_rounds in (("source", 3000), ("target", 400)):
            contexts = rng.normal(size=(n_rounds, 8))
            arms = rng.choice(3, n_rounds, p=[0.5, 0.25, 0.25])
            rewards = take_chosen(draw_effects(contexts), arms) + rng.normal(0, 8, n_rounds)
            propensities = np.where(arms == 0, 0.5, 0.25)
            policy.update(contexts, arms, rewards, domain, propensities=propensities)
        decision = policy.decide(probes, "target", rule="greedy")
        return take_chosen(draw_effects(probes), decision.arm).mean()

    gains = [measure_gain(seed) for seed in range(6)]
    assert np.mean(gains) > 0.8 * draw_effects(probes).max(axis=1).mean()


@pytest.mark.parametrize("worth", [1.0, 0.1])
def test_bonuses_count_source_rounds_by_their_worth(worth, tmp_path):
    draw = draw_markets()
    policy = daband.LogPolicy(context_shape=(2,), n_arms=2, seed=0, source_worth=worth)
    learn_market(policy, draw(1000, 0.0, best=0.5), "source")
    source_counts = policy.counts.copy()
    learn_market(policy, draw(400, 0.0, best=0.5), "target")
    rounds = policy.counts - (1 - worth) * source_counts
    bonus = policy.decide(np.zeros((1, 2)), "target").bonus[0]
    np.testing.assert_allclose(bonus, policy.reward_moments.scale / np.sqrt(1 + rounds))
    daband.export(policy, tmp_path / "policy.daband")
    deployed = daband.load_deployed(tmp_path / "policy.daband").decide([0.0, 0.0])
    np.testing.assert_allclose(deployed.bonus, bonus)
