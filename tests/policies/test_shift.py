"""What a stated shift makes every policy do."""

import numpy as np
import pytest

import daband
from daband._domain_names import DomainNames
from daband._shift import Shift
from daband.trust._choose import Candidate, default_candidates

KINDS = [daband.LinUCB, daband.NeuralLinUCB, daband.DABand]


def market(shift, units=None):
    """A market in euros, and one whose first column, the price, is in a currency of 4.3 to the euro."""
    draw = np.random.default_rng(0)
    contexts = draw.normal((3.0, 0.0, 0.0), 1.0, size=(1600, 3))
    labels = (contexts[:, 0] + contexts[:, 1] > 3.0).astype(int)
    contexts[800:, 0] *= 4.3
    return daband.domains.from_arrays(
        source=(contexts[:800], labels[:800]),
        target=contexts[800:1200],
        target_test=(contexts[1200:], labels[1200:]),
        shift=shift,
        units=units,
    )


def accuracy(kind, pair, **settings):
    settings = {} if kind is daband.LinUCB else {"recipe": "small", "device": "cpu"} | settings
    policy = kind.for_pair(pair, seed=0, **settings)
    daband.train(policy, source=pair.source, target=pair.target, episodes=11, episode_length=64)
    return policy, daband.evaluate(policy, pair.target_test).accuracy


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_in_other_units_is_standardised_by_domain(kind, tmp_path):
    policy, stated = accuracy(kind, market("units", [0]))
    assert stated > 0.85
    assert kind is daband.LinUCB or "own statistics" in policy.alignment
    assert stated > accuracy(kind, market("covariate"))[1] + 0.1
    policy.save(tmp_path / "p.safetensors")
    again = daband.load(tmp_path / "p.safetensors")
    assert again.shift == policy.shift
    contexts = np.random.default_rng(1).normal(size=(40, 3))
    for domain in ("source", "target"):
        np.testing.assert_array_equal(again.decide(contexts, domain).mean, policy.decide(contexts, domain).mean)
    assert not np.allclose(policy.decide(contexts, "source").mean, policy.decide(contexts, "target").mean)


@pytest.mark.parametrize("kind", KINDS)
def test_a_covariate_shift_means_one_map_for_both_domains(kind):
    policy, _ = accuracy(kind, market("covariate"))
    contexts = np.random.default_rng(1).normal(size=(40, 3))
    np.testing.assert_allclose(policy.decide(contexts, "source").mean, policy.decide(contexts, "target").mean)
    assert kind is daband.LinUCB or policy.alignment.startswith("nothing is aligned")


def test_only_a_difference_of_style_is_aligned():
    aligned = daband.DABand(context_shape=(3,), n_arms=2, recipe="small", shift="style", device="cpu")
    assert "adversarial" in aligned.alignment
    for kind in (daband.Constant, daband.Random):
        assert kind(context_shape=(3,), n_arms=2, shift="style").shift.aligns


def test_a_candidate_of_other_units_is_another_policy():
    pair = market(None)
    built = {one.name: one.build(pair, seed=0, device="cpu") for one in default_candidates(pair)}
    for name in ("linucb", "daband"):
        assert not built[name].transform.by_domain
        assert list(built[f"{name}, other units"].transform.by_domain) == [0, 1, 2]
    components = Candidate("p", "linucb-p", {"shift": "units"}, components=2).build(pair, seed=0)
    assert components.transform.components == 2
    assert list(components.transform.by_domain) == [0, 1, 2]


@pytest.mark.parametrize("components", [None, 11])
def test_with_the_units_of_a_market_named_a_linear_policy_comes_close_to_the_best(components):
    pytest.importorskip("polars")
    pair = daband.domains.load("market", kind="units", data_seed=1)
    names = list(pair.feature_names)
    amounts = [names.index(name) for name in ("basket", "spent_last_year", "last_order")]
    method = "linucb" if components is None else "linucb-p"
    value = {}
    for shift in (Shift.of("units", units=amounts), Shift(("covariate",))):
        policy = Candidate(method, method, {"shift": shift}, components=components or 64).build(pair, seed=0)
        daband.train(policy, source=pair.source, target=pair.target, episodes=56, episode_length=64)
        value[shift.kinds] = daband.evaluate(policy, pair.target_test, rule="greedy")
    assert value["units",].value > 0.95 * value["units",].best_value
    assert value["covariate",].value < 0.85 * value["covariate",].best_value


def rarer(shift):
    """Three classes that overlap: equally frequent in the source, one of them eight times the others in the target."""
    draw = np.random.default_rng(0)

    def rows(n, frequencies):
        label = draw.choice(3, n, p=frequencies)
        return 1.2 * np.eye(3, 4)[label] + draw.normal(size=(n, 4)), label

    source, (contexts, _), test = rows(1500, [1 / 3] * 3), rows(800, [0.8, 0.1, 0.1]), rows(1500, [0.8, 0.1, 0.1])
    return daband.domains.from_arrays(source=source, target=contexts, target_test=test, shift=shift)


def test_where_arms_are_differently_frequent_predictions_in_the_target_follow(tmp_path):
    (policy, stated), (_, unstated) = (accuracy(daband.DABand, rarer(shift)) for shift in ("labels", "covariate"))
    assert stated > unstated + 0.05
    assert "arms' frequencies estimated there" in policy.alignment
    contexts = np.random.default_rng(1).normal(size=(40, 4))
    in_source, in_target = (policy.decide(contexts, domain, rule="greedy").mean for domain in ("source", "target"))
    offset = in_target - in_source
    np.testing.assert_allclose(offset, np.broadcast_to(offset[0], offset.shape))
    assert offset[0].argmax() == 0
    policy.save(tmp_path / "p.safetensors")
    again = daband.load(tmp_path / "p.safetensors")
    np.testing.assert_array_equal(again.decide(contexts, "target", rule="greedy").mean, in_target)
    daband.export(policy, tmp_path / "p.daband", domain="target", explore="greedy")
    deployed = daband.load_deployed(tmp_path / "p.daband").decide(contexts)
    np.testing.assert_array_equal(deployed.arm, in_target.argmax(axis=1))
    policy.add_arm()  # of which nothing is known
    assert policy.decide(contexts, "target").mean.shape == (40, 4)


def test_frequencies_are_those_of_all_sources_and_of_all_targets():
    draw, domains = np.random.default_rng(0), DomainNames(sources=("a", "b"), targets=("c", "d"))
    policy = daband.DABand(
        context_shape=(4,), n_arms=3, recipe="small", feedback="one_hot", shift="labels", device="cpu", domains=domains
    )

    def rows(n, frequencies):
        label = draw.choice(3, n, p=frequencies)
        return 2.0 * np.eye(3, 4)[label] + 0.3 * draw.normal(size=(n, 4)), label

    contexts, label = rows(600, [1 / 3] * 3)
    policy.update(contexts, label, np.ones(600), domain="b")  # none of "a"
    policy.observe_target(rows(200, [0.1, 0.8, 0.1])[0], "c")
    policy.observe_target(rows(600, [0.1, 0.1, 0.8])[0], "d")
    policy.adapt()
    assert policy._prior == pytest.approx([0.1, 0.275, 0.625], abs=0.05)


@pytest.mark.parametrize("linear_weight", [0.0, 0.5])
def test_an_episode_in_the_target_is_played_by_the_frequencies_there(linear_weight):
    recipe = {"base": "small", "learning": {"linear_weight": linear_weight}}
    policy, _ = accuracy(daband.DABand, rarer("labels"), recipe=recipe)
    contexts, rewards = np.random.default_rng(1).normal(size=(2, 4)), np.zeros((2, 3))
    expected = policy.decide(contexts, "target").mean
    assert np.abs(expected - policy.decide(contexts, "source").mean).max() > 0.01
    np.testing.assert_allclose(policy.play(contexts, rewards, "target").mean[0], expected[0], atol=1e-6)
