"""A policy made of policies: predictions, weights, episodes, files, exports, and what it is
composed of for a pair.
"""

import copy
from threading import Thread

import numpy as np
import polars as pl
import pytest

import daband
from daband.domains import from_arrays
from daband.errors import InvalidInput
from daband.linear._reward_moments import RewardMoments

SHAPE = {"context_shape": (3,), "n_arms": 3}
KINDS = {
    "linucb": lambda: daband.LinUCB(**SHAPE, alpha=0.4, seed=1),
    "strong": lambda: daband.LinUCB(**SHAPE, ridge=3.0),
    "pca": lambda: daband.LinUCB(**SHAPE, transform=daband.PCA(2)),
    "constant": lambda: daband.Constant(**SHAPE),
    "random": lambda: daband.Random(**SHAPE),
    "trees": lambda: daband.Trees(**SHAPE, epsilon=0.0),
    "nlinucb": lambda: daband.NeuralLinUCB(**SHAPE, recipe="small", device="cpu"),
    "daband": lambda: daband.DABand(
        **SHAPE, recipe="small", device="cpu", transform=daband.Standardise()
    ),
    "labels": lambda: daband.LinUCB(**SHAPE, standardise_rewards=False),
}


def rounds(n, seed=0, factor=10.0):
    rng = np.random.default_rng(seed)
    contexts = rng.normal(size=(n, 3))
    arms = rng.integers(0, 3, n)
    return (
        contexts,
        arms,
        factor * (np.tanh(contexts[np.arange(n), arms]) + 0.1 * rng.normal(size=n)) + 5.0,
    )


def mixed(*names, learn=True, **settings):
    policy = daband.Mixture(**SHAPE, members={name: KINDS[name]() for name in names}, **settings)
    if learn:
        contexts, arms, rewards = rounds(150)
        policy.prepare(contexts, contexts)
        policy.observe_target(contexts[:50])
        policy.update(contexts, arms, rewards)
        policy.adapt(2)
        policy.update(*rounds(60, seed=1))
    return policy


PAIRS = [("linucb", other) for other in KINDS if other != "linucb"] + [("trees", "daband")]


@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_any_two_policies_can_be_mixed_saved_and_exported(names, tmp_path):
    policy = mixed(*names)
    contexts, _, _ = rounds(40, seed=2)
    decision = policy.decide(contexts, "target")
    members = policy.members.values()
    parts = [member.decide(contexts, "target", rule="ucb") for member in members]
    weights = list(policy.weights.values())
    assert sum(weights) == pytest.approx(1.0)
    np.testing.assert_allclose(
        decision.mean, sum(w * part.mean for w, part in zip(weights, parts, strict=True))
    )
    bonus = sum(
        0.5 * member.exploration.alpha * part.bonus
        for member, part in zip(members, parts, strict=True)
    )
    np.testing.assert_allclose(decision.bonus, bonus)
    policy.save(tmp_path / "p.safetensors")
    again = daband.load(tmp_path / "p.safetensors")
    np.testing.assert_array_equal(again.decide(contexts, "target").mean, decision.mean)
    daband.export(policy, tmp_path / "p.daband", domain="target")
    deployed = daband.load_deployed(tmp_path / "p.daband").decide(
        contexts, round_number=policy.rounds_decided
    )
    np.testing.assert_allclose(deployed.mean, decision.mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(deployed.bonus, decision.bonus, rtol=1e-3, atol=1e-4)
    assert deployed.arm.tolist() == decision.arm.tolist()


def test_the_member_that_predicts_better_gets_the_weight():
    policy = mixed("linucb", "constant")
    assert policy.weights["linucb"] > 0.5 > policy.weights["constant"]
    for seed in range(5):
        policy.update(*rounds(200, seed=10 + seed))
    assert policy.weights["linucb"] > 0.9
    assert daband.Mixture(**SHAPE, prior={"linucb": 3, "constant": 1, "trees": 0}).weights == {
        "constant": 0.25,
        "linucb": 0.75,
        "trees": 0.0,
    }


def test_a_context_that_is_shown_again_counts_once():
    once = mixed("linucb", "constant", learn=False)
    twice = mixed("linucb", "constant", learn=False)
    contexts, arms, rewards = rounds(100)
    for policy in (once, twice):
        policy.update(contexts, arms, rewards)
    before = twice.weights
    twice.update(contexts, arms, rewards)
    assert twice.weights == before == once.weights


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (("linucb", "nlinucb", "constant"), {}),
        (("linucb", "strong"), {}),
        (("trees", "linucb"), {}),
        # without a bonus, trees are played in blocks
        (("trees", "linucb"), {"bonus_weights": {"trees": 0.0, "linucb": 1.0}}),
    ],
)
@pytest.mark.parametrize("feedback", ["bandit", "one_hot"])
def test_episodes_are_their_rounds_in_turn(names, settings, feedback):
    played = mixed(*names, feedback=feedback, **settings)
    if "trees" in names and feedback == "bandit":  # else trees predict the arms' means
        played.adapt()
        assert played.members["trees"]._has_trees.all()
    told = copy.deepcopy(played)
    rng = np.random.default_rng(3)
    contexts = rng.normal(size=(100, 3))
    rewards = np.eye(3)[rng.integers(0, 3, 100)]  # more than one block
    contexts[90:] = contexts[:10]
    mask = rng.random((100, 3)) < 0.8
    weights = rng.choice([0.5, 1.0, 3.0], 100)
    mask[~mask.any(axis=1)] = True
    decision = played.play(contexts, rewards, available=mask, weights=weights)
    for row in range(100):
        one = slice(row, row + 1)
        arm = told.select(contexts[one], available=mask[row]).arm
        assert arm[0] == decision.arm[row], row
        told.update(contexts[one], arm, rewards[row, arm], weights=weights[one])
    assert played.weights == pytest.approx(told.weights, rel=1e-5, abs=1e-9)
    probe = rng.normal(size=(20, 3))
    np.testing.assert_allclose(played.decide(probe).mean, told.decide(probe).mean, atol=1e-6)
    np.testing.assert_allclose(played.decide(probe).bonus, told.decide(probe).bonus, atol=1e-6)


def test_members_that_learned_before_keep_what_they_know():
    """Their rewards may have had another mean and deviation than those of the mixture."""
    taught = KINDS["linucb"]()
    taught.update(*rounds(300, factor=100.0))
    policy = daband.Mixture(**SHAPE, members={"taught": taught, "constant": KINDS["constant"]()})
    contexts, arms, rewards = rounds(50, seed=4)
    np.testing.assert_allclose(policy.decide(contexts).mean, 0.5 * taught.decide(contexts).mean)
    policy.update(contexts, arms, rewards)
    assert taught.rounds_learned == 300  # the mixture has a copy
    assert policy.members["taught"].rounds_learned == 350


@pytest.mark.parametrize("names", [("linucb", "constant"), ("linucb", "daband")])
def test_exports_of_members_in_other_units(names, tmp_path):
    members = {name: KINDS[name]() for name in names}
    contexts, arms, rewards = rounds(200, factor=100.0)
    for member in members.values():
        member.prepare(contexts)
        member.update(contexts, arms, rewards)
    policy = daband.Mixture(**SHAPE, members=members)
    policy.update(*rounds(100, seed=5))
    daband.export(policy, tmp_path / "p.daband")
    found = daband.load_deployed(tmp_path / "p.daband").decide(
        contexts, round_number=policy.rounds_decided
    )
    expected = policy.decide(contexts)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-4, atol=1e-3)
    assert (found.arm == expected.arm).mean() > 0.99


def test_adding_an_arm_is_all_or_none():
    shape = {"context_shape": (2,), "n_arms": 128}
    policy = daband.Mixture(
        **shape, members={"a": daband.LinUCB(**shape), "trees": daband.Trees(**shape)}
    )
    with pytest.raises(InvalidInput, match=r"n_arms .*128"):
        policy.add_arm()
    assert policy.n_arms == policy.members["a"].n_arms == 128
    assert policy.select(np.ones((2, 2))).mean.shape == (2, 128)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"members": {}}, "1 to 12"),
        ({"members": [daband.Constant(**SHAPE)]}, "mapping"),
        ({"members": {"a": 3}}, r"members .*'a': 3"),
        ({"members": {1: daband.Constant(**SHAPE)}}, "members"),
        ({"members": {"a": daband.Constant(context_shape=(2,), n_arms=3)}}, "context_shape"),
        ({"members": {"a": daband.Constant(context_shape=(3,), n_arms=2)}}, "n_arms"),
        ({"members": {"a": daband.Constant(**SHAPE, arms="shared")}}, "arms"),
        ({"prior": {"linucb": 1.0}}, "prior"),
        ({"prior": {"linucb": -1.0, "constant": 2.0, "trees": 0.0}}, "negative"),
        ({"bonus_weights": {"linucb": 0.0, "constant": 0.0}}, "bonus_weights"),
        ({"feedback": "all"}, "feedback"),
        ({"learn_weights": "no"}, "learn_weights .*'no'"),
    ],
)
def test_bad_settings_are_rejected_by_name(settings, message):
    with pytest.raises(InvalidInput, match=message):
        daband.Mixture(**SHAPE, **settings)


def labelled(dim, n=300, arms=3, **settings):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, dim))
    pairs = x, x[:, :arms].argmax(axis=1)
    return from_arrays(source=pairs, target=x + 0.2, target_test=pairs, **settings)


@pytest.mark.parametrize(
    ("dim", "names"),
    [
        (8, {"network", "ridge", "piecewise", "constant"}),
        (90, {"network", "ridge", "components", "shrunk", "constant"}),
    ],
)
def test_the_members_for_a_pair_follow_from_its_contexts(dim, names, tmp_path):
    pair = labelled(dim)
    policy = daband.Mixture.for_pair(pair, seed=3, recipe="small", device="cpu")
    assert set(policy.members) == names
    assert not any(member.standardise_rewards for member in (policy, *policy.members.values()))
    assert {member.seed for member in policy.members.values()} == {3}
    assert policy.members["network"].recipe.encoder.options["normalise_input"] is False
    daband.train(policy, source=pair.source, target=pair.target, episodes=8, episode_length=32)
    assert daband.evaluate(policy, pair.target_test).accuracy > 0.6
    policy.deploy("target")
    daband.export(policy, tmp_path / "p.daband", pair=pair)
    contexts = pair.target.read(np.arange(50))
    deployed = daband.load_deployed(tmp_path / "p.daband")
    singles = [
        deployed.decide(row, round_number=policy.rounds_decided + i).arm
        for i, row in enumerate(contexts)
    ]
    assert singles == policy.decide(contexts).arm.tolist()


@pytest.mark.parametrize(("categorical", "kind"), [([], "self-training"), (["c0"], "linucb")])
def test_on_categorical_columns_it_does_not_learn_its_own_choices(categorical, kind):
    """On fuel-years its own choices lowered accuracy by 0.06."""
    rng = np.random.default_rng(0)
    columns = {f"c{i}": rng.normal(size=40) for i in range(70)}
    columns["c0"] = np.repeat(["a", "b"], 20) if categorical else columns["c0"]
    roles = daband.domains.Columns(context=list(columns), label="arm", categorical=categorical)
    source = pl.DataFrame({**columns, "arm": rng.integers(0, 3, 40)})
    pair = daband.domains.from_table(source=source, target=pl.DataFrame(columns), columns=roles)
    assert daband.Mixture.for_pair(pair, network=False).members["shrunk"].name == kind


@pytest.mark.parametrize(("feedback", "kind"), [("one_hot", "self-training"), ("bandit", "linucb")])
def test_on_many_numbers_it_learns_its_own_choices_in_the_target(feedback, kind, tmp_path):
    """Without them, accuracy on office_caltech fell by 0.06."""
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(60, 70))
    labels = rng.integers(0, 3, 60)
    contexts[np.arange(60), labels] += 3.0
    source = (
        contexts,
        labels if feedback == "one_hot" else np.eye(3)[labels] + rng.normal(size=(60, 3)),
    )
    pair = from_arrays(source=source, target=contexts + 1.0)
    policy = daband.Mixture.for_pair(pair, recipe="small", seed=0)
    assert policy.members["shrunk"].name == kind
    daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=16)
    policy.deploy("target")
    policy.save(tmp_path / "p.safetensors")
    daband.export(policy, tmp_path / "p.daband")
    expected = policy.decide(contexts + 1.0)
    for found in (
        daband.load(tmp_path / "p.safetensors").decide(contexts + 1.0),
        daband.load_deployed(tmp_path / "p.daband").decide(
            contexts + 1.0, round_number=policy.rounds_decided
        ),
    ):
        np.testing.assert_allclose(found.mean, expected.mean, atol=1e-5)
        np.testing.assert_array_equal(found.arm, expected.arm)


def test_without_torch_the_network_is_missing(monkeypatch):
    monkeypatch.setattr(daband.DABand, "is_default_network", False)
    policy = daband.Mixture.for_pair(labelled(8))
    assert policy.weights == pytest.approx({"ridge": 2 / 3, "piecewise": 1 / 3, "constant": 0.0})


def test_a_shift_of_style_is_aligned_by_the_network_and_standardised_by_the_others():
    policy = daband.Mixture.for_pair(labelled(8, shift="style"), recipe="small", device="cpu")
    assert policy.transform is None
    assert policy.adapts_to_target
    assert policy.members["ridge"].transform.by_domain is True
    units = daband.Mixture.for_pair(
        labelled(8, shift=daband.Shift(("units",), units=(2,))), recipe="small", device="cpu"
    )
    assert units.transform.by_domain == (2,)
    assert not units.adapts_to_target


@pytest.mark.parametrize("domain", ["source", "target"])
def test_members_learn_full_rewards_as_they_would_alone(domain):
    contexts = np.random.default_rng(0).normal(size=(96, 3))
    rewards = np.eye(3)[contexts.argmax(axis=1)]
    settings = {**SHAPE, "feedback": "one_hot", "standardise_rewards": False}
    alone = {
        "network": daband.NeuralLinUCB(**settings, recipe="small", device="cpu"),
        "linear": daband.LinUCB(**SHAPE, standardise_rewards=False),
    }
    policy = daband.Mixture(**settings, members=alone)
    for learner in (policy, *alone.values()):
        learner.learn_full(contexts[:64], rewards[:64], domain)
        learner.adapt(4)
        learner.learn_full(contexts[64:], rewards[64:], domain)
    assert policy.rounds_learned == alone["network"].rounds_learned == 288
    for name, member in policy.members.items():
        expected = alone[name].decide(contexts, "target").mean
        np.testing.assert_allclose(member.decide(contexts, "target").mean, expected, atol=1e-6)


def test_full_rewards_determine_the_weights():
    contexts = np.random.default_rng(0).normal(size=(400, 3))
    members = {"linear": daband.LinUCB(**SHAPE), "constant": daband.Constant(**SHAPE)}
    policy = daband.Mixture(**SHAPE, members=members)
    for start in range(0, 400, 50):
        rows = contexts[start : start + 50]
        policy.learn_full(rows, rows)
    assert policy.weights["linear"] > 0.9


@pytest.mark.parametrize("policy_class", [daband.LinUCB, daband.Mixture])
def test_rewards_are_not_added_while_another_thread_reads_their_moments(monkeypatch, policy_class):
    policy = policy_class(context_shape=(1,), n_arms=2, seed=0)
    contexts, arms = np.array([[1.0], [2.0]]), np.array([0, 1])
    policy.update(contexts, arms, [0.0, 1.0])
    make_scaling, add = RewardMoments.make_scaling, RewardMoments.add
    threads, added = [], []

    def make_scaling_during_update(moments, units):
        if not threads:
            threads.append(Thread(target=policy.update, args=(contexts, arms, [0.0, 9.0])))
            threads[0].start()
            threads[0].join(0.3)
            added.append(moments.high > 1.0)
        return make_scaling(moments, units)

    monkeypatch.setattr(RewardMoments, "make_scaling", make_scaling_during_update)
    policy.decide(contexts)
    threads[0].join()
    assert added == [False]
    assert policy.reward_moments.high == 9.0

    monkeypatch.setattr(RewardMoments, "make_scaling", make_scaling)
    decided = []

    def add_during_decision(moments, *rewards):
        if moments is policy.reward_moments:
            threads.append(Thread(target=policy.decide, args=(contexts,)))
            threads[-1].start()
            threads[-1].join(0.3)
            decided.append(not threads[-1].is_alive())
        add(moments, *rewards)

    monkeypatch.setattr(RewardMoments, "add", add_during_decision)
    policy.update(contexts, arms, [0.0, 1.0])
    policy.play(contexts[:1], [[0.0, 1.0]])
    policy.learn_full(contexts, [[0.0, 1.0], [1.0, 0.0]])
    threads[-1].join()
    assert len(decided) >= 2
    assert not any(decided)


def test_an_offset_of_rewards_changes_no_decision_of_a_mixture():
    rng = np.random.default_rng(0)
    contexts, rewards = rng.normal(size=(100, 3)), rng.normal(size=(100, 3)).cumsum(axis=1)
    offset = 2.0**20
    decisions = [
        daband.Mixture(**SHAPE, seed=0).play(contexts, rewards + added) for added in (0.0, offset)
    ]
    assert decisions[0].arm.tolist() == decisions[1].arm.tolist()
    np.testing.assert_allclose(decisions[0].propensity, decisions[1].propensity, rtol=1e-4)
