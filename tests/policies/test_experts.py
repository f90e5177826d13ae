"""Experts beside the network: predictions are mixed by shares; they learn, grow, are saved and exported with it."""

import numpy as np
import pytest

import daband

DIM = 6


def _rounds(n, seed=0, dim=DIM):
    draw = np.random.default_rng(seed)
    return draw.standard_normal((n, dim)).astype(np.float32), draw.integers(2, size=n), draw.random(n)


def _policy(kind=daband.NeuralLinUCB, dim=DIM, **learning):
    recipe = {"base": "small", "learning": {"steps": 2, **learning}}
    return kind(context_shape=(dim,), n_arms=2, recipe=recipe, device="cpu", seed=0)


def _taught(policy, n=80):
    contexts, arms, rewards = _rounds(n)
    policy.prepare(contexts)
    policy.update(contexts, arms, rewards)
    return contexts, arms, rewards


@pytest.mark.parametrize("dim", [DIM, 1100])  # wide contexts begin in the dual form
def test_playing_is_deciding_and_learning_round_by_round(dim):
    played, told = _policy(linear_weight=0.5, dim=dim), _policy(linear_weight=0.5, dim=dim)
    contexts, _, _ = _rounds(100, dim=dim)  # more than are played together
    contexts[80:] = contexts[:20]
    draw = np.random.default_rng(5)
    every_reward, available = draw.random((100, 2)), draw.random((100, 2)) < 0.9
    available[~available.any(axis=1)] = True
    for policy in (played, told):
        policy.prepare(contexts)
    decision = played.play(contexts, every_reward, available=available)
    arms = []
    for row, rewards, mask in zip(contexts, every_reward, available, strict=True):
        arms.append(int(told.select(row[None], available=mask).arm[0]))
        told.update(row[None], arms[-1:], rewards[arms[-1:]])
    assert decision.arm.tolist() == arms
    assert played.expert_shares == pytest.approx(told.expert_shares, rel=1e-4)
    np.testing.assert_allclose(played.decide(contexts).mean, told.decide(contexts).mean, atol=1e-7)
    np.testing.assert_allclose(played.decide(contexts).bonus, told.decide(contexts).bonus, atol=1e-7)


@pytest.mark.parametrize("explore", ["ucb", "greedy", "thompson"])
def test_probabilities_are_those_of_its_choices(explore):
    recipe = {"base": "small", "learning": {"steps": 2, "linear_weight": 0.5}}
    policy = daband.NeuralLinUCB(
        context_shape=(DIM,), n_arms=2, recipe=recipe, explore=explore, epsilon=0.1, device="cpu", seed=0
    )
    contexts, *_ = _taught(policy)
    probabilities, decision = policy.probabilities(contexts), policy.decide(contexts)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-9)
    np.testing.assert_allclose(probabilities[np.arange(80), decision.arm], decision.propensity, atol=1e-6)


def test_shares_follow_what_predicted_new_contexts_well():
    draw = np.random.default_rng(3)
    contexts = draw.standard_normal((1200, DIM))
    arms = draw.integers(2, size=1200)
    rewards = (0.5 + 0.3 * np.where(arms == 1, contexts[:, 0], contexts[:, 1])).clip(0, 1)  # ridge knows lines
    policy = _policy(linear_weight=0.5)
    policy.prepare(contexts)
    for start in range(0, 1200, 40):
        part = slice(start, start + 40)
        policy.update(contexts[part], arms[part], rewards[part])
    shares = policy.expert_shares  # no step was taken: the network's latent is that of random weights
    assert shares["ridge"] > 1 / 2
    assert shares["network"] < 1 / 4


@pytest.mark.parametrize("transform", [daband.PCA(4), daband.Standardise(components=4)])
def test_principal_components_are_not_cut_into_pieces(transform):
    policy = daband.DABand(context_shape=(DIM,), n_arms=2, transform=transform, seed=0)
    policy.prepare(np.random.default_rng(0).standard_normal((50, DIM)))
    assert list(policy.expert_shares) == ["network", "ridge", "constant"]


def test_pieces_count_where_a_reward_is_not_linear_in_a_number():
    draw = np.random.default_rng(4)
    contexts = draw.standard_normal((2000, DIM))
    arms = draw.integers(2, size=2000)
    rewards = np.where(arms == 1, np.abs(contexts[:, 0]) < 0.7, np.abs(contexts[:, 0]) >= 0.7).astype(float)
    policy = _policy(linear_weight=0.5)
    policy.prepare(contexts)
    for start in range(0, 2000, 40):
        part = slice(start, start + 40)
        policy.update(contexts[part], arms[part], rewards[part])
    assert policy.expert_shares["piecewise"] > 0.8
    chosen = policy.decide(contexts, rule="greedy").arm
    assert (chosen == (np.abs(contexts[:, 0]) < 0.7)).mean() > 0.95


@pytest.mark.parametrize(("dim", "rows"), [(DIM, 100 + 2 * 60), (80, 100)])
def test_where_one_arm_pays_a_reward_of_1_tells_of_every_experts_predictions_of_all_arms(dim, rows):
    draw = np.random.default_rng(2)
    contexts, arms = draw.standard_normal((100, dim)), draw.integers(3, size=100)
    best = np.where(np.arange(100) < 60, arms, (arms + 1) % 3)
    told, played = (
        daband.NeuralLinUCB(
            context_shape=(dim,), n_arms=3, recipe="small", feedback="one_hot", shift="covariate", device="cpu", seed=0
        )
        for _ in range(2)
    )
    for policy in (told, played):
        policy.prepare(contexts)
    told.update(contexts, arms, (best == arms).astype(float))
    assert told._shares.n == rows  # on many numbers the chosen arm alone counts
    available = np.eye(3, dtype=bool)[arms]
    played.play(contexts, np.eye(3)[best], available=available)
    assert played._shares.n == rows


def test_a_context_that_comes_again_says_nothing_of_the_experts():
    policy = _policy(linear_weight=0.5)
    contexts, arms, rewards = _taught(policy)
    before, n = policy.expert_shares, policy._shares.n
    assert n == 80
    policy.update(contexts, arms, rewards)
    assert policy.expert_shares == before
    policy.update(*_rounds(2000, seed=1))
    assert policy._shares.n == 2080


def test_refits_are_told_with_experts_and_without():
    for weight in (0.0, 0.5):
        policy = _policy(linear_weight=weight)
        policy.update(*_rounds(120))
        assert policy.adapt()["refitted"] == 1.0
        assert "refitted" not in policy.adapt()


def test_without_prepare_it_starts_with_the_first_refit():
    policy = _policy(linear_weight=0.5)
    contexts, arms, rewards = _rounds(120)
    policy.update(contexts, arms, rewards)
    assert policy.expert_shares == {"network": 1.0, "constant": 0.0}
    policy.adapt()
    late = policy._acting.experts[1].head.statistics
    early = _policy(linear_weight=0.5)
    early.prepare(contexts)
    early.update(contexts, arms, rewards)
    assert late.counts.sum() == 120
    np.testing.assert_allclose(late.theta, early._acting.experts[1].head.statistics.theta, atol=1e-6)


def test_a_file_without_replay_keeps_the_shares_and_no_checksum(tmp_path):
    policy = _policy(linear_weight=0.5)
    _taught(policy)
    policy.adapt()
    policy.save(tmp_path / "p.safetensors", replay=False)
    restored = daband.load(tmp_path / "p.safetensors")
    assert restored.expert_shares == policy.expert_shares
    assert len(policy._distinct.state(rounds=True)) == 80
    assert len(restored._distinct.state(rounds=True)) == 0


def test_on_a_table_of_lines_it_is_about_as_good_as_the_better_of_its_experts():
    draw = np.random.default_rng(2)
    lines = draw.standard_normal((12, 3))
    contexts = draw.standard_normal((1500, 12))
    labels = (contexts @ lines + 0.5 * draw.standard_normal((1500, 3))).argmax(axis=1)
    pair = daband.domains.from_arrays(
        source=(contexts[:300], labels[:300]),
        target=contexts[300:500],
        target_test=(contexts[500:], labels[500:]),
        n_arms=3,
        passes=3,
    )
    found = []
    for weight in (0.0, 0.5):
        recipe = {"base": "small", "learning": {"linear_weight": weight}}
        policy = daband.DABand.for_pair(pair, recipe=recipe, device="cpu", seed=2)
        daband.train(policy, source=pair.source, target=pair.target, episodes=12, episode_length=64)
        found.append(daband.evaluate(policy, pair.target_test).accuracy)
    linear = daband.LinUCB.for_pair(pair, seed=2)
    daband.train(linear, source=pair.source, target=pair.target, episodes=12, episode_length=64)
    assert found[1] > max(found[0], daband.evaluate(linear, pair.target_test).accuracy) - 0.02, found


def test_a_file_of_before_there_were_pieces_goes_on_without(tmp_path):
    policy = _policy(linear_weight=0.5)
    contexts, arms, rewards = _taught(policy)
    state = policy._state()
    old = {name: array for name, array in state.items() if not name.startswith("piecewise.")}
    kept = [0, 1, 3]
    old["shares.gram"], old["shares.moment"] = state["shares.gram"][np.ix_(kept, kept)], state["shares.moment"][kept]
    old["shares.shares"] = np.array([0.25, 0.75, 0.0])
    restored = _policy(linear_weight=0.5)
    restored._restore(old)
    assert restored.expert_shares == {"network": 0.25, "ridge": 0.75, "constant": 0.0}
    restored.update(contexts + 1.0, arms, rewards)
    assert sum(restored.expert_shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("dim", [DIM, 140])
def test_saved_and_restored_it_continues_alike(tmp_path, dim):
    policy = _policy(dim=dim, linear_weight=0.3)
    contexts, arms, rewards = _rounds(160, dim=dim)
    policy.prepare(contexts)
    policy.update(contexts[:80], arms[:80], rewards[:80])
    policy.adapt()
    policy.save(tmp_path / "p.safetensors")
    restored = daband.load(tmp_path / "p.safetensors")
    for one in (policy, restored):
        one.update(contexts[80:], arms[80:], rewards[80:])
        one.adapt()
    np.testing.assert_array_equal(policy.select(contexts).mean, restored.select(contexts).mean)


@pytest.mark.parametrize("arms", ["disjoint", "shared"])
def test_arms_can_be_added(arms):
    recipe = {"base": "small", "learning": {"steps": 2, "linear_weight": 0.3}}
    policy = daband.NeuralLinUCB(context_shape=(DIM,), n_arms=2, recipe=recipe, arms=arms, device="cpu", seed=0)

    def contexts(n_arms):
        shape = (64, n_arms, DIM) if arms == "shared" else (64, DIM)
        return np.random.default_rng(n_arms).standard_normal(shape)

    policy.prepare(contexts(2))
    policy.update(contexts(2), [0, 1] * 32, np.linspace(0, 1, 64))
    policy.add_arm()
    assert policy.select(contexts(3)).mean.shape == (64, 3)
    policy.update(contexts(3)[:1], [2], [1.0])
    policy.adapt()
    assert np.isfinite(policy.select(contexts(3)).bonus).all()


def test_without_a_weight_the_network_acts_alone():
    policy = _policy(linear_weight=0.0)
    contexts, arms, rewards = _rounds(64)
    policy.update(contexts, arms, rewards)
    assert policy.prepared
    assert policy.expert_shares == {"network": 1.0}
    with pytest.raises(daband.InvalidInput, match="linear_weight"):
        _policy(linear_weight=1.0)


def _self_trained(kind=daband.DABand, *, dim=80, numbers=80, feedback="one_hot", shift="covariate"):
    """A policy after one pass over a source whose arms are clusters, and the target; other columns are indicators."""
    draw = np.random.default_rng(0)
    centres, best = 0.5 * draw.standard_normal((3, dim)), draw.integers(3, size=(2, 300))
    source, target = (centres[own] + draw.standard_normal((300, dim)) for own in best)
    for rows in (source, target):
        rows[:, numbers:] = rows[:, numbers:] > 0
    recipe = {"base": "small", "learning": {"steps": 2}}
    policy = kind(context_shape=(dim,), n_arms=3, recipe=recipe, feedback=feedback, shift=shift, device="cpu", seed=0)
    policy.prepare(source, target)
    policy.observe_target(target)
    policy.play(source, np.eye(3)[best[0]])
    policy.adapt()
    return policy, target, best[1]


def test_on_many_features_half_of_a_prediction_in_the_target_is_a_regression_on_the_policys_own_choices(tmp_path):
    policy, target, best = _self_trained()
    shares, means = policy.expert_shares, policy.expert_means(target, "target")
    mixed = sum(share * means[name] for name, share in shares.items())
    rows = daband.Standardise().fit(policy.buffers.rounds[0].contexts[:300].numpy(), target)(target)
    labels = np.eye(3)[mixed.argmax(axis=1)]
    ridge = next(expert.head.ridge for expert in policy._experts if expert.name == "shrunk")
    fitted = rows @ np.linalg.solve(rows.T @ rows + ridge * np.eye(81), rows.T @ labels)
    decision = policy.decide(target, "target", rule="greedy")
    share = policy._pseudo.share
    assert 0.2 < share < 0.6
    np.testing.assert_allclose(decision.mean, share * (mixed + fitted), atol=1e-5)
    assert not np.allclose(policy.decide(target, "source", rule="greedy").mean, decision.mean)
    assert "its own choices" in policy.alignment
    policy.save(tmp_path / "p.safetensors")
    loaded = daband.load(tmp_path / "p.safetensors", device="cpu")
    np.testing.assert_array_equal(loaded.decide(target, "target", rule="greedy").mean, decision.mean)
    policy.deploy("target")
    daband.export(policy, tmp_path / "p.daband")
    exported = daband.load_deployed(tmp_path / "p.daband")
    assert [exported.decide(row).arm for row in target[:40]] == policy.select(target[:40]).arm.tolist()
    assert (decision.arm == best).mean() >= (mixed.argmax(axis=1) == best).mean()


def test_an_episode_in_the_target_begins_with_its_pseudo_labels():
    policy, target, _ = _self_trained()
    expected = policy.decide(target[:2], "target").mean[0]
    played = policy.play(target[:2], np.zeros((2, policy.n_arms)), "target")
    np.testing.assert_allclose(played.mean[0], expected, atol=1e-6)
    assert policy._pseudo is None


def test_rewards_of_the_target_take_the_place_of_its_pseudo_labels():
    policy, target, _ = _self_trained()
    policy.update(target[:1], [0], [1.0], domain="target")
    shares, means = policy.expert_shares, policy.expert_means(target, "target")
    mixed = sum(share * means[name] for name, share in shares.items())
    np.testing.assert_allclose(policy.decide(target, "target", rule="greedy").mean, mixed, atol=1e-6)
    policy.adapt()
    assert policy._pseudo is None


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (daband.NeuralLinUCB, {}),
        (daband.DABand, {"feedback": "bandit"}),
        (daband.DABand, {"dim": 64}),
        (daband.DABand, {"numbers": 64}),
    ],
)
def test_pseudo_labels_need_one_best_arm_many_numbers_and_a_policy_that_looks_at_the_target(kind, settings):
    policy, target, _ = _self_trained(kind, **settings)
    shares, means = policy.expert_shares, policy.expert_means(target, "target")
    mixed = sum(share * means[name] for name, share in shares.items())
    np.testing.assert_allclose(policy.decide(target, "target", rule="greedy").mean, mixed, atol=1e-6)


def test_indicators_of_several_targets_are_no_numbers():
    """Before: in units of each target's own an indicator took two values in each, and counted as a number."""
    draw = np.random.default_rng(0)
    contexts = (draw.random((3, 200, 80)) < np.array([0.5, 0.3, 0.7])[:, None, None]).astype(np.float64)
    pair = daband.domains.from_arrays(
        source=(contexts[0], contexts[0, :, :2].sum(axis=1).astype(np.int64)),
        targets={"a": contexts[1], "b": contexts[2]},
        n_arms=3,
        shift="units",
    )
    policy = daband.DABand.for_pair(pair, recipe={"base": "small", "learning": {"steps": 2}}, device="cpu", seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=2)
    assert not policy.adapts_to_target


@pytest.mark.parametrize("kind", [daband.LinUCB, daband.NeuralLinUCB])
@pytest.mark.parametrize("rows", [1, 30])
def test_greedy_decisions_calculate_no_width(kind, rows):
    """With 800 numbers and 31 arms the widths of 512 contexts, which nobody had asked for, took 2.5 s."""
    policy = kind(context_shape=(DIM,), n_arms=2, seed=0) if kind is daband.LinUCB else _policy(linear_weight=0.5)
    contexts, _, _ = _taught(policy)
    expected = policy.decide(contexts[:rows])
    heads = [policy._head] if kind is daband.LinUCB else [expert.head for expert in policy._experts]
    for head in heads:
        head.statistics.inverse[...] = np.nan  # the matrices that widths alone are made of
    greedy = policy.decide(contexts[:rows], rule="greedy")
    np.testing.assert_allclose(greedy.mean, expected.mean, atol=1e-12)
    np.testing.assert_array_equal(greedy.arm, expected.mean.argmax(axis=1))
    assert not greedy.bonus.any()
    assert set(policy.probabilities(contexts[:rows], rule="greedy").ravel()) == {0.0, 1.0}
