"""Which source to trust: a poisoned or unrelated one counts for nothing, others are pooled, and users may say."""

import numpy as np
import pytest

import daband
from daband.domains._contract import LoggedRounds
from daband.domains.readers._arrays import from_arrays
from daband.errors import InvalidInput
from daband.training._source_weights import measured_source_weights

COEFFICIENTS = np.random.default_rng(9).normal(size=(6, 4))


def market(shift, seed, n=600):
    rng = np.random.default_rng(seed)
    contexts = rng.normal(shift, 1.0, (n, 6))
    return contexts, (contexts @ COEFFICIENTS + 0.3 * rng.gumbel(size=(n, 4))).argmax(axis=1)


def shuffled(seed, n=600):
    contexts, labels = market(0.3, seed, n)
    return contexts, np.random.default_rng(seed).permutation(labels)


def unrelated(seed, n=600):
    contexts, labels = market(0.3, seed, n)
    return 3.0 * contexts[:, ::-1] + 4.0, (labels + 1) % 4


def pair_of(**sources):
    target = market(0.2, 7)
    return from_arrays(sources=sources, targets={"pl": target[0]}, target_test={"pl": target})


def weights(pair):
    policy = daband.LinUCB.for_pair(pair, seed=0)
    return measured_source_weights(pair.source, pair.target, like=policy)


def value(pair, **given):
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episode_length=32, **given)
    return daband.evaluate(policy, pair.target_test).value, policy


def test_sources_that_agree_are_pooled():
    found = weights(pair_of(de=market(0.0, 0), fr=market(0.3, 1), it=market(-0.3, 2)))
    assert found.weights == {"de": 1.0, "fr": 1.0, "it": 1.0}
    assert min(found.skill.values()) > 0.2
    assert sum(found.similarity.values()) == pytest.approx(1.0)
    assert "fr 1.00" in str(found)


@pytest.mark.parametrize("poison", [shuffled, unrelated])
@pytest.mark.parametrize("healthy", [1, 2])
def test_a_poisoned_source_costs_little(poison, healthy):
    good = {name: market(shift, seed) for seed, (name, shift) in enumerate({"de": 0.0, "it": -0.3}.items())}
    good = dict(list(good.items())[:healthy])
    poisoned, policy = value(pair_of(**good, fr=poison(5, 1200)))
    without, _ = value(pair_of(**good))
    assert policy.source_weights == {**dict.fromkeys(good, 1.0), "fr": 0.0}
    assert poisoned >= without - 0.02


def test_two_halves_of_a_source_are_worth_the_whole():
    contexts, labels = market(0.0, 0, 1200)
    halves = pair_of(a=(contexts[::2], labels[::2]), b=(contexts[1::2], labels[1::2]))
    whole = pair_of(a=(contexts, labels))
    assert abs(value(halves)[0] - value(whole)[0]) < 0.03


def test_a_source_that_counts_for_nothing_is_not_played():
    pair = pair_of(de=market(0.0, 0), it=market(-0.3, 2), fr=shuffled(1))
    policy = daband.DABand.for_pair(pair, seed=0, recipe="small", device="cpu")
    run = daband.train(policy, source=pair.source, target=pair.target, episodes=25)
    assert run.rounds == 1600  # more than the two others have: they are shown again
    assert [part.n_seen > 0 for part in policy._buffers.rounds] == [True, True, False, False]


@pytest.mark.parametrize("kind", ["LinUCB", "DABand"])
@pytest.mark.parametrize("episodes", [None, 12])
def test_a_run_beside_a_bad_source_is_the_run_without_it(kind, episodes):
    """To the bit, and of as many rounds: nothing of a source that counts for nothing reaches the policy."""
    found = []
    for more in ({}, {"fr": shuffled(1)}):
        pair = pair_of(de=market(0.0, 0), it=market(-0.3, 2), **more)
        settings = {} if kind == "LinUCB" else {"recipe": "small", "device": "cpu"}
        policy = getattr(daband, kind).for_pair(pair, seed=0, **settings)
        given = {"source_weights": {**dict.fromkeys(pair.domains.sources, 1.0), **dict.fromkeys(more, 0.0)}}
        if kind == "LinUCB":
            given = {}  # measured
        run = daband.train(policy, source=pair.source, target=pair.target, episodes=episodes, **given)
        found.append((run.arm, run.reward, policy.decide(market(0.2, 8)[0], "pl").mean))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_rounds_of_a_log_are_not_counted_again_where_another_is_left_out():
    rng = np.random.default_rng(3)

    def log(contexts, labels):
        arms = rng.integers(0, 4, len(labels))
        return contexts, arms, (arms == labels).astype(float), np.full(len(labels), 0.25)

    sources = {name: log(*market(0.0, seed)) for seed, name in enumerate(("de", "it", "fr"))}
    pair = daband.domains.from_log(sources=sources, target=market(0.2, 7)[0], n_arms=4)
    policy = daband.LinUCB.for_pair(pair, seed=0)
    given = {"source_weights": {"de": 1, "it": 1, "fr": 0}, "episodes": 25}
    daband.train(policy, source=pair.source, target=pair.target, **given)
    assert policy.rounds_learned == 16 * 64  # of 1,080


def test_a_source_that_others_do_not_explain_may_explain_them():
    """A hard source, of which hardly anything can be said, counts where its own policy is good in another."""
    contexts, labels = market(0.0, 0, 1500)
    rare = np.flatnonzero((labels == labels[0]) | (np.arange(1500) % 12 == 0))
    pair = pair_of(hard=(contexts[rare], labels[rare]), easy=market(0.1, 1))
    assert weights(pair).weights["easy"] == 1.0
    assert weights(pair).weights["hard"] == 1.0


def test_users_may_say():
    pair = pair_of(de=market(0.0, 0), fr=market(0.3, 1))
    _, policy = value(pair, source_weights={"de": 1, "fr": 0.25})
    assert policy.source_weights == {"de": 1.0, "fr": 0.25}
    with pytest.raises(InvalidInput, match="no source"):
        value(pair, source_weights={"us": 1})
    with pytest.raises(InvalidInput, match="must lie in"):
        value(pair, source_weights={"de": 0, "fr": 0})


def test_a_weight_counts_as_so_many_rounds():
    """Rounds of a source with weight 1/2 count half each in the ridge sums."""
    x, y, r = np.random.default_rng(0).normal(size=(50, 6)), np.zeros(50, int), np.random.default_rng(1).random(50)
    half = daband.LinUCB(context_shape=(6,), n_arms=1)
    half.source_weights = {"source": 0.5}
    half.update(x, y, r)
    gram = np.eye(6) + 0.5 * x.T @ x
    np.testing.assert_allclose(half.decide(x).mean[:, 0], x @ np.linalg.solve(gram, 0.5 * x.T @ r), atol=1e-10)


def test_a_network_draws_nothing_from_a_source_of_weight_nought():
    pair = pair_of(de=market(0.0, 0), fr=shuffled(1))
    policy = daband.DABand.for_pair(pair, seed=0, recipe="small", device="cpu")
    daband.train(policy, source=pair.source, target=pair.target, episodes=3)
    contexts, labels = shuffled(1, 8)
    policy.update(contexts, labels, np.ones(8), "fr")  # training plays none
    assert [len(part) > 0 for part in policy.buffers.rounds] == [True, False, False]
    assert policy.buffers is policy.buffers


def test_logs_are_weighed_too():
    rng = np.random.default_rng(3)

    def log(contexts, labels):
        arms = rng.integers(0, 4, len(labels))
        return contexts, arms, (arms == labels).astype(float), np.full(len(labels), 0.25)

    joined = {
        name: daband.domains.from_log(source=log(*rounds), target=market(0.2, 7)[0], n_arms=4)
        for name, rounds in {"de": market(0.0, 0, 1500), "it": market(-0.3, 2, 1500), "fr": shuffled(1, 1500)}.items()
    }
    pair = daband.domains.join_pairs(joined, {"pl": joined["de"]}, name="logs")
    assert weights(pair).weights == {"de": 1.0, "it": 1.0, "fr": 0.0}
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=3)
    assert policy.rounds_learned == 192


def test_rewards_of_the_target_decide():
    """Most sources agree on what is wrong in the target: only its own rewards can tell, if they are enough."""
    moved = {name: (x, (y + 1) % 4) for name, (x, y) in {"fr": market(0.3, 1), "it": market(-0.3, 2)}.items()}
    pair = pair_of(de=market(0.0, 0), **moved)
    assert weights(pair).weights == {"de": 0.0, "fr": 1.0, "it": 1.0}
    contexts, labels = market(0.2, 11, 100)
    arms = np.random.default_rng(0).integers(0, 4, 100)
    rounds = LoggedRounds(contexts, arms, (arms == labels).astype(float), np.full(100, 0.25))
    policy = daband.LinUCB.for_pair(pair, seed=0)
    found = measured_source_weights(pair.source, pair.target, like=policy, target_rounds=rounds)
    assert found.weights == {"de": 1.0, "fr": 0.0, "it": 0.0}
    few = LoggedRounds(contexts[:2], arms[:2], rounds.rewards[:2], rounds.propensities[:2])
    found = measured_source_weights(pair.source, pair.target, like=policy, target_rounds=few)
    assert found.weights == weights(pair).weights


def test_shuffled_labels_have_a_skill_of_noise():
    """Whatever the others have learned: over draws it is within two deviations of 0 about 95 times of 100."""
    good = {"de": market(0.0, 0), "it": market(-0.3, 2)}
    skills = np.array([weights(pair_of(**good, fr=shuffled(seed))).skill["fr"] for seed in range(20, 32)])
    deviations = skills * np.sqrt(540)
    assert (np.abs(deviations) < 2).sum() >= 10
    assert abs(deviations.mean()) < 1
