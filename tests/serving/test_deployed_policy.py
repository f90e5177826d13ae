"""A deployed policy decides as the policy that was exported."""

import copy
import pickle
import threading

import numpy as np
import pytest
import torch

import daband
from daband.errors import InvalidInput
from daband.linear._predictor import ContextStep, MixturePredictor, RidgePredictor
from daband.policies import policies
from daband.serving import ExportWarning
from tests.serving.kinds import KINDS, contexts_of, trained


@pytest.fixture(scope="module", params=sorted(KINDS))
def pair_of(request, tmp_path_factory):
    """A policy, what is loaded of its file, and new contexts."""
    policy, *_ = trained(request.param)
    path = tmp_path_factory.mktemp("exported") / "policy.daband"
    daband.export(policy, path)
    return policy, daband.load_deployed(path), contexts_of(KINDS[request.param][1], 24, seed=9)


def test_every_registered_policy_is_among_the_kinds():
    names = {getattr(kind, "name", "mixture") for kind, _ in KINDS.values()}
    assert names >= {name for name in policies.names() if "." not in name}


def agree(expected, found):
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.bonus, expected.bonus, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.propensity, expected.propensity, atol=1e-4)
    np.testing.assert_array_equal(found.arm, expected.arm)


def test_the_domain_that_was_asked_for(tmp_path):
    policy, *_ = trained("daband-images")
    new = contexts_of(KINDS["daband-images"][1], 8, seed=9)
    for domain in ("source", "target"):
        daband.export(policy, tmp_path / "p", domain=domain)
        deployed = daband.load_deployed(tmp_path / "p")
        assert deployed.domain == domain
        agree(
            policy.decide(new, domain=domain),
            deployed.decide(new, round_number=policy.rounds_decided),
        )
    policy.deploy("source")
    with pytest.warns(ExportWarning, match="domain='target'"):
        daband.export(policy, tmp_path / "p")


def test_nothing_can_be_changed(pair_of):
    _, deployed, contexts = pair_of
    with pytest.raises(AttributeError):
        deployed.domain = "source"
    before = deployed.decide(contexts[0], round_number=0)
    before.mean[:] = 7.0  # what was returned is the caller's own
    assert not np.array_equal(deployed.decide(contexts[0], round_number=0).mean, before.mean)


def test_threads_copies_and_processes_agree(pair_of):
    _, deployed, contexts = pair_of
    expected = [deployed.decide(one, round_number=at) for at, one in enumerate(contexts)]
    found = {}

    def work(name, own):
        found[name] = [own.decide(one, round_number=at) for at, one in enumerate(contexts)]

    own = {
        0: deployed,
        1: deployed,
        2: copy.deepcopy(deployed),
        3: pickle.loads(pickle.dumps(deployed)),
    }
    threads = [threading.Thread(target=work, args=item) for item in own.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for decisions in found.values():
        assert [one.arm for one in decisions] == [one.arm for one in expected]
        assert [one.propensity for one in decisions] == pytest.approx(
            [one.propensity for one in expected]
        )


def test_exploration_without_a_round_number_is_drawn_anew(tmp_path):
    """Two processes that serve one file must not explore in the same rounds."""
    policy = daband.LinUCB(context_shape=(2,), n_arms=4, epsilon=1.0)
    daband.export(policy, tmp_path / "p")
    deployed = daband.load_deployed(tmp_path / "p")
    row = np.ones(2)
    first, second = ([deployed.decide(row).arm for _ in range(60)] for _ in range(2))
    assert first != second
    assert set(first) == {0, 1, 2, 3}
    rows = np.ones((60, 2))
    assert deployed.decide(rows).arm.tolist() != deployed.decide(rows).arm.tolist()
    assert (
        deployed.decide(rows, round_number=5).arm.tolist()
        == deployed.decide(rows, round_number=5).arm.tolist()
    )


def test_propensities_are_frequencies(tmp_path):
    policy = daband.LinUCB(context_shape=(2,), n_arms=3, epsilon=0.3)
    policy.update(np.ones((30, 2)), [1] * 30, [1.0] * 30)
    daband.export(policy, tmp_path / "p", arm_names=["a", "b", "c"])
    deployed = daband.load_deployed(tmp_path / "p")
    decisions = [deployed.decide([1.0, 1.0], round_number=at) for at in range(2000)]
    for arm in range(3):
        chances = {one.propensity for one in decisions if one.arm == arm}
        assert len(chances) == 1
        assert abs(np.mean([one.arm == arm for one in decisions]) - chances.pop()) < 0.05


class TestRefused:
    def test_a_policy_that_decides_by_code_of_its_own(self, tmp_path):
        class Mine(daband.LinUCB):
            def _predictor(self, domain):
                return super()._predictor(domain).after(ContextStep((2,), np.sign))

        with pytest.raises(daband.InvalidInput, match="sign"):
            daband.export(Mine(context_shape=(2,), n_arms=2), tmp_path / "p")
        with pytest.raises(daband.InvalidInput, match=r"policy .*str"):
            daband.export("policy", tmp_path / "p")

    def test_an_unfitted_transform(self, tmp_path):
        with pytest.raises(daband.NotFitted, match="prepare"):
            daband.export(
                daband.LinUCB(context_shape=(2,), n_arms=2, transform=daband.PCA(1)), tmp_path / "p"
            )

    @pytest.mark.parametrize(
        "wrong",
        [
            {"arm_names": ["a"]},
            {"arm_names": ["a", "a"]},
            {"arm_names": "ab"},
            {"domain": "mars"},
            {"pair": 3},
            {"reference": np.ones((9, 3))},
            {"reference": np.full((9, 2), np.nan)},
            {"reference": np.ones((0, 2))},
            {"reference": 3.0},
            {"epsilon": 7},
            {"epsilon": "half"},
            {"assessment": 3},
            {"assessment": {"model": object()}},
        ],
        ids=lambda wrong: next(iter(wrong)),
    )
    def test_arguments(self, wrong, tmp_path):
        policy = daband.LinUCB(context_shape=(2,), n_arms=2)
        with pytest.raises(daband.InvalidInput, match=next(iter(wrong))):
            daband.export(policy, tmp_path / "p", **wrong)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arms", "told"),
    [
        (["x"], "'x' .*arm"),
        ([], "list .*1,000"),
        ([3], r"3 .*\(0\.\.2, or offer"),
        ("ab", "list"),
        (5, "list"),
        ([0.5], r"0\.5 .*arm"),
        (["call", True], "True .*arm"),
        (["call", 1], "arms .*once"),
        (["ofer"], "'ofer' .*'offer'"),
    ],
    ids=str,
)
def test_wrong_arms_are_named(arms, told, tmp_path):
    policy = daband.LinUCB(context_shape=(2,), n_arms=3)
    daband.export(policy, tmp_path / "p", arm_names=["offer", "call", "nothing"])
    deployed = daband.load_deployed(tmp_path / "p")
    with pytest.raises(daband.InvalidInput, match=told):
        deployed.decide([0.0, 1.0], arms=arms)
    assert deployed.decide([0.0, 1.0], arms=["call"]).arm_name == "call"
    assert deployed.decide([0.0, 1.0], arms=[2]).arm_name == "nothing"
    assert deployed.decide([[0.0, 1.0]] * 2, arms=[np.int64(2)]).arm_name == ("nothing",) * 2


@pytest.mark.parametrize(
    "available", [[1, 0, 0], [0.5], [True, False], [False] * 3, "ab", [[True] * 3] * 2]
)
def test_booleans_are_a_mask_for_select_and_decide(available, tmp_path):
    policy = daband.LinUCB(context_shape=(2,), n_arms=3)
    daband.export(policy, tmp_path / "p")
    deployed = daband.load_deployed(tmp_path / "p")
    with pytest.raises(daband.InvalidInput, match="available"):
        policy.select([[0.0, 1.0]], available=available)
    with pytest.raises(daband.InvalidInput, match="arms"):
        deployed.decide([0.0, 1.0], arms=available)
    assert policy.select([[0.0, 1.0]], available=[False, True, False]).arm.tolist() == [1]
    assert deployed.decide([0.0, 1.0], arms=[False, True, False]).arm == 1
    assert deployed.decide([[0.0, 1.0]] * 2, arms=np.eye(3, dtype=bool)[:2]).arm.tolist() == [0, 1]
    assert deployed.decide([[0.0, 1.0]] * 2, arms=[[False, False, True]] * 2).arm.tolist() == [2, 2]


def test_epsilon_of_a_file(tmp_path):
    """Propensities of exported decisions were all 1: nothing else could be learned from
    their log.
    """
    policy = daband.LinUCB(context_shape=(2,), n_arms=4, alpha=0.0, explore="ucb")
    policy.update(np.ones((8, 2)), [0, 1, 2, 3] * 2, [0.0, 0.2, 0.9, 0.1] * 2)
    daband.export(policy, tmp_path / "p", epsilon=0.4, reference=np.ones((20, 2)))
    deployed = daband.load_deployed(tmp_path / "p")
    decisions = deployed.decide(np.ones((4000, 2)), round_number=0)
    frequency = np.bincount(decisions.arm, minlength=4) / 4000
    np.testing.assert_allclose(frequency, [0.1, 0.1, 0.7, 0.1], atol=0.03)
    np.testing.assert_allclose(decisions.propensity, np.array([0.1, 0.1, 0.7, 0.1])[decisions.arm])
    assert policy.select(np.ones((1, 2))).propensity.tolist() == [1.0]
    fraction, error = deployed.exploration
    assert fraction == pytest.approx(0.3)
    deviation = np.std([0.0, 0.2, 0.9, 0.1])
    assert error == pytest.approx(deviation / np.sqrt(0.1))
    assert "30.0% of rows" in deployed.describe_exploration(100)
    assert f"at most {error / 10:.2g}" in deployed.describe_exploration(100)
    daband.export(policy, tmp_path / "p", reference=np.ones((20, 2)))
    assert "No rows are explored" in daband.load_deployed(tmp_path / "p").describe_exploration()


def test_a_file_draws_arms_by_their_gaps(tmp_path):
    rng = np.random.default_rng(0)
    policy = daband.LinUCB(context_shape=(2,), n_arms=3, seed=0)
    contexts = rng.normal(size=(300, 2))
    policy.update(contexts, np.arange(300) % 3, 50 + 10 * rng.random(300) + 5 * contexts[:, 0])
    daband.export(policy, tmp_path / "p", reference=contexts)
    deployed = daband.load_deployed(tmp_path / "p")
    expected = policy.probabilities(contexts)
    assert 0 < expected.min() < 0.2
    decision = deployed.decide(contexts, round_number=policy.rounds_decided)
    chosen = expected[np.arange(300), decision.arm]
    np.testing.assert_allclose(decision.propensity, chosen, rtol=1e-6)
    assert decision.arm.tolist() == policy.decide(contexts).arm.tolist()
    assert deployed.exploration[0] == pytest.approx(1 - expected.max(axis=1).mean(), rel=1e-6)


def test_a_file_may_explore_otherwise_than_its_policy(tmp_path):
    """After 377 rounds of a target its widths sent every third round of the next week to the least
    known arm.
    """
    policy = daband.LinUCB(context_shape=(2,), n_arms=2, alpha=50.0)
    policy.arm_names = ["known", "rare"]
    policy.update(np.ones((41, 2)), [0] * 40 + [1], [0.9] * 40 + [0.1])
    for explore, arm in ((None, "rare"), ("greedy", "known")):
        daband.export(policy, tmp_path / "p", explore=explore)
        assert daband.load_deployed(tmp_path / "p").decide([1.0, 1.0]).arm_name == arm
    daband.export(policy, tmp_path / "p", epsilon=1e-9)  # greedy besides, as on the command line
    assert daband.load_deployed(tmp_path / "p").decide([1.0, 1.0]).arm_name == "known"
    with pytest.raises(InvalidInput, match=r"explore .*'softmax'"):
        daband.export(policy, tmp_path / "p", explore="softmax")


def test_a_policy_that_changes_predictions_is_exported(tmp_path):
    class Optimist(daband.LinUCB):
        """Adds half a reward to the last arm."""

        def _predictor(self, domain):
            added = RidgePredictor.constant(np.eye(self.n_arms)[-1] / 2, np.zeros(self.n_arms))
            weights = np.ones((2, self.n_arms))
            return MixturePredictor(
                members=(super()._predictor(domain), added),
                weights=weights,
                bonus_weights=weights,
                new_weights=np.ones((2, 2)),
            )

    policy = Optimist(context_shape=(2,), n_arms=3, seed=1)
    draw = np.random.default_rng(0)
    policy.update(draw.normal(size=(60, 2)), np.arange(60) % 3, draw.random(60))
    contexts = draw.normal(size=(50, 2))
    daband.export(policy, tmp_path / "p")
    agree(
        policy.decide(contexts),
        daband.load_deployed(tmp_path / "p").decide(contexts, round_number=0),
    )


def test_a_tensor_without_numbers_is_refused(tmp_path):
    policy = daband.LinUCB(context_shape=(2,), n_arms=2)
    daband.export(policy, tmp_path / "p")
    empty = torch.zeros(3, 2, device="meta")
    for ask in (policy.select, daband.load_deployed(tmp_path / "p").decide):
        with pytest.raises(daband.InvalidInput, match="meta "):
            ask(empty)


@pytest.mark.parametrize("number", [10**30, 1 << 63, -1, 1.5, True, "1"])
def test_a_round_number_that_cannot_be(number, tmp_path):
    daband.export(daband.LinUCB(context_shape=(2,), n_arms=2, epsilon=0.5), tmp_path / "p")
    deployed = daband.load_deployed(tmp_path / "p")
    with pytest.raises(daband.InvalidInput, match="round_number"):
        deployed.decide([0.0, 0.0], round_number=number)
    assert deployed.decide([0.0, 0.0], round_number=(1 << 63) - 1).arm in (0, 1)
