"""What a stated shift makes every policy do."""

import numpy as np
import pytest

import daband
from daband.trust import Candidate, default_candidates

KINDS = [daband.LinUCB, daband.NeuralLinUCB, daband.DABand]


def market(shift, units=None):
    """A market in euros, and one whose first column, the price, is in a currency of 4.3 to the
    euro.
    """
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
    assert not policy.adapts_to_target
    assert stated > accuracy(kind, market("covariate"))[1] + 0.1
    policy.save(tmp_path / "p.safetensors")
    again = daband.load(tmp_path / "p.safetensors")
    assert again.shift == policy.shift
    contexts = np.random.default_rng(1).normal(size=(40, 3))
    for domain in ("source", "target"):
        np.testing.assert_array_equal(
            again.decide(contexts, domain).mean, policy.decide(contexts, domain).mean
        )
    assert not np.allclose(
        policy.decide(contexts, "source").mean, policy.decide(contexts, "target").mean
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_covariate_shift_means_one_map_for_both_domains(kind):
    policy, _ = accuracy(kind, market("covariate"))
    contexts = np.random.default_rng(1).normal(size=(40, 3))
    np.testing.assert_allclose(
        policy.decide(contexts, "source").mean, policy.decide(contexts, "target").mean
    )
    assert not policy.adapts_to_target


def test_only_a_difference_of_style_is_aligned():
    aligned = daband.DABand(
        context_shape=(3,), n_arms=2, recipe="small", shift="style", device="cpu"
    )
    assert "data_divergence" in aligned.recipe.weights
    for kind in (daband.Constant, daband.Random):
        assert kind(context_shape=(3,), n_arms=2, shift="style").shift.aligns_features


def test_a_candidate_of_other_units_is_another_policy():
    pair = market(None)
    built = {one.name: one.build(pair, seed=0, device="cpu") for one in default_candidates(pair)}
    assert not built["supervised"].transform.by_domain
    assert list(built["supervised, other units"].transform.by_domain) == [0, 1, 2]
    components = Candidate("p", "linucb-p", {"shift": "units"}, components=2).build(pair, seed=0)
    assert components.transform.components == 2
    assert list(components.transform.by_domain) == [0, 1, 2]
