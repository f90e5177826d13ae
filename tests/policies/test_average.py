"""``daband.policies.Average``: the mean of trained policies, its files, its learning, and what cannot be averaged."""

import numpy as np
import pytest
import torch

import daband
from daband.domain_names import DomainNames
from daband.policies import Average

SIZES = {"context_shape": (4,), "n_arms": 3, "seed": 1}


def members(*, reward_range=(0.0, 1.0), n=400, **recipe):
    """LinUCB, trees and DABand that have learned from the same contexts; rewards are in units of the range."""
    draw = np.random.default_rng(0)
    x, unit = 2.0 * draw.normal(size=(n, 4)) + 1.0, draw.random((n, 3))
    low, high = (0.0, 50.0) if reward_range == "auto" else reward_range
    made = []
    for at, kind in enumerate((daband.LinUCB, daband.Trees, daband.DABand)):
        own = {"recipe": {"base": "small", **recipe}, "device": "cpu"} if kind is daband.DABand else {}
        policy = kind(**SIZES, transform=daband.Standardise(), reward_range=reward_range, **own)
        policy.prepare(x)
        arms = draw.integers(0, 3, n)
        policy.update(x[at:], arms[at:], (low + (high - low) * unit[np.arange(n), arms])[at:])
        policy.adapt(1)
        made.append(policy)
    return made, x


@pytest.mark.parametrize("reward_range", [(0.0, 1.0), (-2.0, 5.0), "auto"])
def test_it_predicts_the_mean_and_its_files_do_too(reward_range, tmp_path):
    """With "auto" every member has estimated a range of its own."""
    parts, x = members(reward_range=reward_range)
    policy = Average(parts)
    policy.deploy("target")
    told = policy.decide(x[:50])
    each = [part.decide(x[:50], "target") for part in parts]
    np.testing.assert_allclose(told.mean, np.mean([one.mean for one in each], axis=0), atol=1e-9)
    bonus = np.mean([part.alpha * one.width for part, one in zip(parts, each, strict=True)], axis=0)
    np.testing.assert_allclose(told.width, bonus, atol=1e-9)
    np.testing.assert_array_equal(told.arm, (told.mean + told.width).argmax(axis=1))
    policy.save(tmp_path / "policy.safetensors")
    again = daband.load(tmp_path / "policy.safetensors", device="cpu").decide(x[:50])
    np.testing.assert_array_equal(again.mean, told.mean)
    daband.export(policy, tmp_path / "policy.daband")
    served = daband.load_deployed(tmp_path / "policy.daband").decide(x[:50])
    np.testing.assert_allclose(served.mean, told.mean, atol=1e-4)
    np.testing.assert_array_equal(served.arm, told.arm)


def test_all_members_learn_and_go_on_from_a_file_to_the_last_bit(tmp_path):
    parts, x = members()
    policy = Average(parts)
    before = [part.rounds_learned for part in parts]
    policy.save(tmp_path / "policy.safetensors")
    again = daband.load(tmp_path / "policy.safetensors", device="cpu")
    for one in (policy, again):
        one.update(x[:30], np.arange(30) % 3, np.arange(30) % 2 * 1.0, domain="target", ids=list(range(30)))
        one.observe_target(x[:40])
        one.adapt(1)
    assert [part.rounds_learned for part in parts] == [n + 30 for n in before]
    np.testing.assert_array_equal(again.decide(x, "target").mean, policy.decide(x, "target").mean)
    assert policy.add_arm() == 3
    assert policy.decide(x[:2]).mean.shape == (2, 4)


def test_what_cannot_be_averaged_is_refused():
    parts, _ = members()
    with pytest.raises(daband.InvalidInput, match="members has 1 policies; an average needs two"):
        Average(parts[:1])
    with pytest.raises(daband.InvalidInput, match=r"members\[1\] sees contexts behind another transform"):
        Average([parts[0], daband.LinUCB(**SIZES)])
    with pytest.raises(daband.InvalidInput, match=r"members\[1\] has n_arms=5, members\[0\] has 3"):
        Average([parts[0], daband.LinUCB(context_shape=(4,), n_arms=5)])
    with pytest.raises(daband.InvalidInput, match=r"members\[1\] \(random\) has no width"):
        Average([daband.LinUCB(**SIZES), daband.Random(**SIZES)])


def test_its_members_explain_the_target_for_it():
    """An average agrees with itself; what tells is whether its members agree."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(600, 4))
    pair = daband.domains.from_arrays(source=(x, (x[:, 0] > 0).astype(int)), target=x + 0.1, n_arms=2, source_test=0.3)
    parts = [daband.LinUCB.for_pair(pair, seed=0), daband.Trees.for_pair(pair, seed=0)]
    for part in parts:
        daband.train(part, source=pair.source, target=pair.target, episodes=6, episode_length=64)
    found = daband.assess(Average(parts), source=pair.source_test, target=pair.target)
    assert {name.split(":")[0] for name in found.explanations} == {"policy 0 (linucb)", "policy 0 (trees)"}
    beside = daband.assess([Average(parts), *parts], source=pair.source_test, target=pair.target)
    assert beside.value == found.value
    assert beside.low > 0


def test_contexts_lie_outside_where_they_do_for_one_of_the_members():
    """An average would else be handed over where its network has seen nothing like half of the target."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(600, 4))
    pair = daband.domains.from_arrays(
        source=(x, (x[:, 0] > 0).astype(int)), target=1.6 * x, n_arms=2, source_test=0.3, shift="covariate"
    )
    small = {"recipe": {"base": "small", "learning": {"steps": 2}}, "device": "cpu"}
    parts = [daband.LinUCB.for_pair(pair, seed=0), daband.DABand.for_pair(pair, seed=0, **small)]
    for part in parts:
        daband.train(part, source=pair.source, target=pair.target, episodes=6, episode_length=64)
    found = [daband.assess(one, source=pair.source_test, target=pair.target) for one in (*parts, Average(parts))]
    outside = [one.outside_support for one in found]
    assert outside[0] != outside[1]
    assert outside[2] == max(outside[:2])
    assert found[2].shift == found[outside.index(outside[2])].shift


def test_a_member_with_an_encoder_of_the_users_is_loaded_with_it(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    parts = [daband.LinUCB(**SIZES), daband.DABand(**SIZES, encoder=module, device="cpu")]
    draw = np.random.default_rng(3)
    x = draw.normal(size=(60, 4))
    for part in parts:
        part.update(x, np.arange(60) % 3, draw.random(60))
    Average(parts).save(tmp_path / "policy.safetensors")
    with pytest.raises(daband.InvalidInput, match="pass the module"):
        daband.load(tmp_path / "policy.safetensors")
    again = daband.load(tmp_path / "policy.safetensors", encoder=module, device="cpu")
    np.testing.assert_array_equal(again.decide(x).mean, Average(parts).decide(x).mean)


def test_members_that_know_no_range_yet_take_that_of_the_average():
    parts = [daband.LinUCB(**SIZES, reward_range="auto", alpha=alpha) for alpha in (0.1, 0.2)]
    policy, draw = Average(parts), np.random.default_rng(4)
    x, rewards = draw.normal(size=(300, 4)), 50.0 + 100.0 * draw.random(300)
    alone = daband.LinUCB(**SIZES, reward_range="auto")
    for one in (policy, alone):
        one.update(x, np.arange(300) % 3, rewards)
    np.testing.assert_allclose(policy.decide(x).mean, alone.decide(x).mean)


def test_what_forgets_is_not_averaged():
    with pytest.raises(daband.InvalidInput, match=r"members\[1\] has half_life=10"):
        Average([daband.LinUCB(**SIZES), daband.LinUCB(**SIZES, half_life=10.0)])


def test_its_members_act_in_the_target_it_is_deployed_to():
    names = DomainNames(("de",), ("pl", "cz"))
    parts = [kind(**SIZES) for kind in (daband.LinUCB, daband.Trees)]
    for part in parts:
        part.domains = names
    policy = Average(parts)
    policy.deploy("cz")
    assert [part.domain for part in (policy, *parts)] == ["cz"] * 3


def test_an_arm_that_one_member_refuses_is_added_to_none():
    parts = [kind(context_shape=(4,), n_arms=128, seed=0) for kind in (daband.LinUCB, daband.Trees)]
    policy = Average(parts)
    with pytest.raises(daband.InvalidInput, match="at most 128 arms"):
        policy.add_arm()
    assert {part.n_arms for part in parts} == {128}
    assert policy.decide(np.ones((2, 4))).mean.shape == (2, 128)
