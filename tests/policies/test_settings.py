"""Settings and arguments that cannot work are refused with a message that says so; those that can
be changed, work.
"""

import numpy as np
import pytest
import torch

import daband
from daband.errors import InvalidInput

KINDS = [daband.LinUCB, daband.Constant, daband.Random, daband.NeuralLinUCB, daband.DABand]


def make(kind, **settings):
    recipe = {"recipe": "small", "device": "cpu"} if issubclass(kind, daband.NeuralLinUCB) else {}
    return kind(context_shape=(2,), n_arms=2, **recipe, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_setting_is_an_error_of_python(kind):
    with pytest.raises(TypeError, match="'sed'"):
        make(kind, sed=1)


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_standardise_rewards_is_true_or_false(value):
    with pytest.raises(InvalidInput, match="standardise_rewards"):
        make(daband.LinUCB, standardise_rewards=value)


@pytest.mark.parametrize("kind", [daband.LinUCB, daband.NeuralLinUCB, daband.DABand])
def test_exploration_may_be_changed_at_any_time(kind, tmp_path):
    policy = make(kind)
    contexts = np.random.default_rng(0).normal(size=(64, 2))
    policy.update(contexts, [0, 1] * 32, [0.0, 1.0] * 32)
    policy.epsilon = 0.3
    policy.alpha = 0.0
    policy.explore = "greedy"
    assert (policy.epsilon, policy.alpha, policy.explore) == (0.3, 0.0, "greedy")
    assert set(policy.select(contexts).propensity.round(9)) <= {0.15, 0.85}
    policy.save(tmp_path / "p.safetensors")
    assert daband.load(tmp_path / "p.safetensors").epsilon == 0.3
    with pytest.raises(InvalidInput, match=r"epsilon .*7"):
        policy.epsilon = 7
    assert policy.epsilon == 0.3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": 2**70}, "seed"),
        ({"n_arms": 10**13}, "n_arms=10000000000000"),
    ],
)
def test_numbers_that_no_machine_can_take(kind, settings, message):
    recipe = {"recipe": "small", "device": "cpu"} if issubclass(kind, daband.NeuralLinUCB) else {}
    with pytest.raises(InvalidInput, match=message):
        kind(**{"context_shape": (2,), "n_arms": 2, **recipe, **settings})


@pytest.mark.parametrize("kind", [daband.LinUCB, daband.Constant, daband.DABand])
def test_an_alpha_whose_scores_would_overflow(kind):
    with pytest.raises(InvalidInput, match=r"alpha .*1e\+100\], .*1e\+308"):
        make(kind, alpha=1e308)


@pytest.mark.parametrize("kind", KINDS)
def test_meta_tensors_hold_no_numbers(kind):
    with pytest.raises(InvalidInput, match=r"contexts .*meta "):
        make(kind).select(torch.zeros(1, 2, device="meta"))


@pytest.mark.parametrize("kind", [daband.LinUCB, daband.NeuralLinUCB, daband.DABand])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32])
def test_integers_are_checked_like_any_number(kind, dtype):
    policy = make(kind)
    with pytest.raises(InvalidInput, match="norm"):
        policy.update(np.full((1, 2), np.iinfo(dtype).max // 2, dtype), [0], [1.0])
    assert policy.rounds_learned == 0
    policy.update(np.full((1, 2), 3, dtype), [0], [1.0])
    assert policy.rounds_learned == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_in_dollars_is_taken_by_every_policy_of_a_pair(kind):
    draw = np.random.default_rng(0)
    contexts = np.stack([draw.normal(size=400), 1e9 * (3 + draw.normal(size=400))], axis=1)
    labels = (contexts[:, 1] > 3e9).astype(int)
    pair = daband.domains.from_arrays(
        source=(contexts[:200], labels[:200]),
        target=contexts[200:300],
        target_test=(contexts[300:], labels[300:]),
    )
    policy = kind.for_pair(
        pair, seed=0, **({"recipe": "small"} if issubclass(kind, daband.NeuralLinUCB) else {})
    )
    daband.train(policy, source=pair.source, target=pair.target, episodes=3, episode_length=64)
    accuracy = daband.evaluate(policy, pair.target_test).accuracy
    if kind not in (daband.Random, daband.Constant):
        assert accuracy > 0.8
