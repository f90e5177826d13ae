import numpy as np
import pytest

from daband.domains import load
from daband.errors import InvalidInput


def everything(domain):
    indices = np.arange(len(domain))
    return domain.read(indices), *domain.read_rewards(indices)


def test_linear_rewards_are_linear_in_the_context():
    pair = load("synthetic", n_contexts=2000)
    contexts, _, expected = everything(pair.source)
    theta, *_ = np.linalg.lstsq(contexts, expected, rcond=None)
    np.testing.assert_allclose(contexts @ theta, expected, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(theta, axis=0), 1.0)
    np.testing.assert_allclose(np.linalg.norm(contexts, axis=1), 1.0)


def test_labels_pay_one_arm():
    pair = load("synthetic", n_contexts=500, rewards="labels")
    assert pair.feedback == "one_hot"
    _, rewards, expected = everything(pair.source)
    np.testing.assert_array_equal(rewards, expected)
    np.testing.assert_array_equal(np.sort(rewards, axis=1)[:, -2:], np.tile([0.0, 1.0], (500, 1)))


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0])
def test_realised_rewards_have_the_expected_mean(noise):
    pair = load("synthetic", n_contexts=20_000, noise=noise)
    _, rewards, expected = everything(pair.source)
    difference = rewards - expected
    standard_error = difference.std(axis=0) / np.sqrt(len(difference))
    assert (np.abs(difference.mean(axis=0)) <= 4 * standard_error + 1e-12).all()
    unsure = expected > 0  # an arm that never pays has no noise
    assert np.mean(difference[unsure] != 0) == pytest.approx(noise, abs=0.02)


def test_each_dial_does_what_it_says():
    def target(**shift):
        fields = {"rotation": 0, "translation": 0, "frequency": 0} | shift
        return load("synthetic", n_contexts=4000, **fields).target.read(np.arange(4000))

    still = target()
    turned = target(rotation=60)
    # cos 60 in every plane
    np.testing.assert_allclose(np.sum(still * turned, axis=1), 0.5, atol=1e-9)
    np.testing.assert_allclose(target(scale=3.0), 3.0 * still, atol=1e-12)
    moved = target(translation=0.7) - still
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 0.7)
    np.testing.assert_allclose(moved, np.tile(moved[0], (4000, 1)), atol=1e-12)


def test_frequency_makes_arms_uneven_on_the_target_only():
    pair = load("synthetic", n_contexts=20_000, frequency=2.0)
    best = pair.target_test.read_expected(0, len(pair.target_test)).argmax(axis=1)
    counts = np.bincount(best, minlength=5)
    assert counts[4] / counts[0] == pytest.approx(np.exp(-2.0), rel=0.2)
    source = np.bincount(everything(pair.source)[2].argmax(axis=1), minlength=5)
    assert source.min() / source.max() > 0.9


@pytest.mark.parametrize("rewards", ["linear", "labels"])
def test_the_default_shift_costs_a_source_trained_policy_much_but_not_all(rewards):
    pair = load("synthetic", rewards=rewards, n_contexts=5000)
    contexts, _, expected = everything(pair.source)
    theta, *_ = np.linalg.lstsq(contexts, expected, rcond=None)
    n = len(pair.target_test)
    truth = pair.target_test.read_expected(0, n)
    chosen = (pair.target_test.read(0, n) @ theta).argmax(axis=1)
    accuracy = 1 - (truth.max(axis=1) - truth[np.arange(n), chosen]).mean()
    chance = 1 - (truth.max(axis=1) - truth.mean(axis=1)).mean()
    on_source = ((contexts @ theta).argmax(axis=1) == expected.argmax(axis=1)).mean()
    assert on_source > 0.98
    assert chance + 0.15 < accuracy < 0.9


def test_shared_arms_have_a_context_each_and_one_theta():
    pair = load("synthetic", arms="shared", n_contexts=1000)
    contexts, _, expected = everything(pair.source)
    assert contexts.shape == (1000, 5, 16)
    assert pair.context_shape == (16,)
    theta, *_ = np.linalg.lstsq(contexts.reshape(-1, 16), expected.reshape(-1), rcond=None)
    np.testing.assert_allclose(contexts @ theta, expected, atol=1e-12)


def test_source_and_target_of_equal_length_are_not_shown_in_lockstep():
    pair = load("synthetic", tiny=True)
    assert len(pair.source) == len(pair.target)
    together = pair.source.order(0, 160, seed=0) == pair.target.order(0, 160, seed=0)
    assert together.mean() < 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rewards": "cubic"}, "'linear' or 'labels'"),
        ({"arms": "some"}, "'disjoint' or 'shared'"),
        ({"n_arms": 1}, "n_arms .*>= 2"),
        ({"n_arms": "x"}, "n_arms .*'x'"),
        ({"n_arms": 2.5}, r"n_arms .*2\.5"),
        ({"dimension": "x"}, "dimension .*'x'"),
        ({"n_contexts": 99.5}, r"n_contexts .*99\.5"),
        ({"data_seed": "x"}, "data_seed .*'x'"),
        ({"data_seed": -1}, "data_seed .*>= 0"),
        ({"dimension": 3}, "dimension .*>= 5"),
        ({"noise": "x"}, "noise .*'x'"),
        ({"noise": 1.5}, r"noise .*1\.5"),
        ({"scale": 0}, "scale .*0"),
        ({"rotation": float("nan")}, "rotation .*nan"),
        ({"rotation": "x"}, "rotation .*'x'"),
        ({"scale": None}, "scale .*None"),
        ({"colour": 1}, "'colour'"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(InvalidInput, match=message):
        load("synthetic", **options)
