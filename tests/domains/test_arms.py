"""Catalogues of arms: tables, logs, files, and what each domain offers."""

import tracemalloc

import numpy as np
import polars as pl
import pytest

import daband
from daband.domains import Columns, from_log, from_table
from daband.features._catalogue import Catalogue

COLUMNS = Columns(
    context=["age", "city"], categorical=["city"], arm="offer", reward="euros", propensity="p"
)


def offers(n=12):
    draw = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "offer": [f"o{at}" for at in range(n)],
            "price": [None if at == 3 else float(at) for at in range(n)],
            "kind": [["card", "loan", "fund"][at % 3] for at in range(n)],
            "tags": [["new|cheap", "old;cheap", "new|old|dear"][at % 3] for at in range(n)],
            "title": [f"offer {at}" for at in range(n)],
            "code": draw.permutation(n) * 1000 + 7,
        }
    )


def log(n, arms, seed):
    draw = np.random.default_rng(seed)
    age = draw.normal(40, 9, n)
    arm = draw.choice(arms, n)
    euros = (age - 40) / 9 * (arm % 3 - 1) + 0.1 * arm + 0.1 * draw.normal(size=n)
    names = {
        "age": age,
        "city": draw.choice(["Oslo", "Rome"], n),
        "offer": [f"o{at}" for at in arm],
        "euros": euros,
    }
    return pl.DataFrame(names).with_columns(p=1.0 / len(arms))


def pair_of(arms=None):
    arms = {"source": offers()[:9], "target": offers()[3:]} if arms is None else arms
    return from_table(
        source=log(600, np.arange(9), 1),
        target=log(200, np.arange(3, 12), 2),
        columns=COLUMNS,
        arms=arms,
    )


def test_columns_of_arms_are_read_as_they_come():
    catalogue = pair_of(offers()).catalogue
    names = catalogue.table.feature_names
    assert {"price", "price (missing)", "kind = card", "tags: cheap", "code"} <= set(names)
    assert not any("title" in name for name in names)
    assert catalogue.offered.all()


def test_the_target_may_have_other_arms_and_no_arm_is_chosen_where_it_is_not_offered():
    pair = pair_of()
    assert pair.class_names == tuple(f"o{at}" for at in range(12))
    assert pair.catalogue.offered.tolist() == [[True] * 9 + [False] * 3, [False] * 3 + [True] * 9]
    for kind in (daband.LinUCB, daband.Constant, daband.Random):
        policy = kind.for_pair(pair, seed=0)
        daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=64)
        contexts = pair.target.read(np.arange(100))
        assert policy.select(contexts, "target").arm.min() >= 3
        assert policy.select(contexts, "source").arm.max() < 9
        with pytest.raises(daband.InvalidInput, match=r"available .*target"):
            policy.select(contexts, "target", available=np.arange(12) < 3)


def test_a_policy_chooses_arms_that_the_source_never_had():
    pair = pair_of()
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target)
    rows = pair.table.contexts([{"age": 70, "city": "Oslo"}, {"age": 20, "city": "Oslo"}])
    best = policy.decide(rows, "target", rule="greedy").arm
    assert best[0] == 11
    assert best[1] % 3 == 0


SMALL = {"recipe": {"base": "small", "learning": {"steps": 2}}, "device": "cpu"}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (daband.LinUCB, {}),
        (daband.NeuralLinUCB, SMALL),
        (daband.DABand, {**SMALL, "members": 2, "shift": "style"}),
    ],
)
def test_a_saved_policy_keeps_its_catalogue_and_learns_a_new_arm(kind, settings, tmp_path):
    pair = pair_of()
    policy = kind.for_pair(pair, seed=0, **settings)
    daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=64)
    features = {"price": 4.5, "kind": "loan", "tags": "new", "code": 5007}
    with pytest.raises(daband.InvalidInput, match=r"features .*given"):
        policy.add_arm("o99")
    with pytest.raises(daband.InvalidInput, match="no 'price'"):
        policy.add_arm("o99", {"kind": "loan"})
    assert policy.n_arms == 12
    assert policy.add_arm("o99", features) == 12
    policy.save(tmp_path / "p")
    again = daband.load(tmp_path / "p")
    contexts = pair.target.read(np.arange(20))
    for one in (policy, again):
        one.update(contexts, np.full(20, 12), np.ones(20), "target")
        one.adapt()
    np.testing.assert_array_equal(policy.decide(contexts).mean, again.decide(contexts).mean)
    assert again.arm_names[-1] == "o99"
    assert again.counts[-1] == 20


def test_a_log_is_learned_by_sums_as_round_by_round(tmp_path):
    rounds = log(500, np.arange(9), 5)
    pair = pair_of()
    streamed, summed = (daband.LinUCB.for_pair(pair, seed=0) for _ in range(2))
    for policy in (streamed, summed):
        policy.prepare(pair.source.read(np.arange(200)), pair.target.read(np.arange(100)))
    rounds.rename({"offer": "arm", "euros": "reward", "p": "propensity"}).write_parquet(
        tmp_path / "log.parquet"
    )
    daband.fit_log(summed, tmp_path / "log.parquet")
    arms = [int(name[1:]) for name in rounds["offer"]]
    streamed.update(
        pair.table.contexts(rounds),
        arms,
        rounds["euros"].to_numpy(),
        propensities=np.full(500, 1 / 9),
    )
    streamed.adapt()  # fits penalties, as learning a log does
    contexts = pair.target.read(np.arange(20))
    np.testing.assert_allclose(
        summed.decide(contexts).mean, streamed.decide(contexts).mean, rtol=1e-6
    )


def test_arrays_of_features_and_a_log_of_arrays():
    draw = np.random.default_rng(3)
    features = draw.normal(size=(6, 2))
    contexts = draw.normal(size=(100, 3))
    source = (contexts, draw.integers(0, 6, 100), draw.random(100), np.full(100, 1 / 6))
    pair = from_log(source=source, target=contexts, arms=features)
    assert (pair.n_arms, len(pair.catalogue.names)) == (6, 6)
    with pytest.raises(daband.InvalidInput, match="needs n_arms"):
        from_log(source=source, target=contexts)
    with pytest.raises(daband.InvalidInput, match=r"arms .*6 .*n_arms .*5"):
        from_log(source=source, target=contexts, arms=features, n_arms=5)


def test_mistakes_in_a_catalogue_have_clear_errors():
    table = offers()
    with pytest.raises(daband.errors.DataError, match=r"arms: .*'offer'"):
        pair_of(pl.concat([table, table[:1]]))
    with pytest.raises(daband.InvalidInput, match=r"arms .*title: 12 "):
        pair_of(table.select("offer", "title"))
    with pytest.raises(daband.errors.DataError, match=r"'o5' .*'offer', .*\(o0, o1, o2, o3\)"):
        pair_of(table[:4])


def test_files_and_rewards_of_every_arm(tmp_path):
    log(300, np.arange(9), 1).write_csv(tmp_path / "old.csv")
    log(100, np.arange(9), 2).write_csv(tmp_path / "new.csv")
    offers().write_csv(tmp_path / "offers.csv")
    named = {
        "arm": "offer",
        "reward": "euros",
        "propensity": "p",
        "arms": str(tmp_path / "offers.csv"),
    }
    pair = daband.domains.DataOptions(
        source=str(tmp_path / "old.csv"), target=str(tmp_path / "new.csv"), **named
    ).read()
    assert len(pair.catalogue.names) == 12
    frame = log(100, np.arange(9), 3).with_columns(o0=pl.lit(1.0), o5=pl.lit(2.0))
    columns = Columns(context=["age"], rewards=["o5", "o0"])
    pair = from_table(source=frame, target=frame, columns=columns, arms=offers())
    expected = pair.target_test.read_expected(0, 1)
    assert expected.shape == (1, 12)
    assert expected[0, [0, 5, 7]].tolist() == [1.0, 2.0, 1.0]


def test_an_assessment_names_the_arms_without_rewards():
    pair = pair_of()
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target)
    assessment = daband.assess(policy, source=pair.source_test, target=pair.target)
    assert {"o9", "o10", "o11"} <= set(assessment.new_arms)
    assert all(0 < distance < 100 for distance in assessment.new_arms.values())
    assert any("no reward anywhere" in reason for reason in assessment.reasons)
    assert assessment.incumbent in [f"always o{at}" for at in range(3, 9)]
    other = from_table(
        source=log(200, np.arange(6), 1),
        target=log(100, np.arange(6, 12), 2),
        columns=COLUMNS,
        arms={"source": offers()[:6], "target": offers()[6:]},
    )
    policy = daband.LinUCB.for_pair(other, seed=0)
    daband.train(policy, source=other.source, target=other.target, episodes=2, episode_length=64)
    with pytest.raises(daband.InvalidInput, match="incumbent="):
        daband.assess(policy, source=other.source_test, target=other.target)


@pytest.mark.slow
def test_choose_compares_policies_that_know_the_features():
    choice = daband.choose(pair_of(), episodes=4, episode_length=32)
    assert [row["candidate"] for row in choice.table] == ["best arm", "log", "linucb", "mixture"]
    assert choice.policy.catalogue is not None
    assert np.argmax(choice.table[3]["target_fractions"]) >= 3


def feature_log(effect, new=0, n=3000):
    """Rewards depend on the product of a context and an arm feature, by ``effect``; the last
    ``new`` arms are new.
    """
    draw = np.random.default_rng(7)
    features = np.linspace(-1.0, 1.0, 15)[:, None]
    x = draw.normal(size=(n, 2))
    arms = draw.integers(0, 15 - new, n)
    rewards = effect * x[:, 0] * features[arms, 0] + 0.2 * (arms == 4) + draw.normal(size=n)
    offered = np.arange(15) < 15 - new
    tables = [
        pl.DataFrame({"id": np.arange(15).astype(str), "size": features[:, 0]}).filter(
            pl.Series(offered | every)
        )
        for every in (False, True)
    ]
    return from_log(
        source=(x, arms, rewards, np.full(n, 1 / (15 - new))),
        target=draw.normal(size=(300, 2)),
        arms={"source": tables[0], "target": tables[1]},
    )


def test_choose_on_a_log_personalises_only_if_the_log_proves_it_with_a_catalogue_too():
    choice = daband.choose(feature_log(0.0), quick=True)
    # before: LinUCB or a mixture, which chose by context without proof
    assert choice.candidate == "log"
    assert choice.rule.endswith("is chosen")
    assert len(set(choice.policy.select(np.random.default_rng(0).normal(size=(50, 2))).arm)) == 1
    # proven, and all arms have rewards
    assert daband.choose(feature_log(1.5), quick=True).candidate == "log"


def test_new_arms_are_chosen_if_the_log_proves_that_features_predict_arms_left_out():
    choice = daband.choose(feature_log(1.5, new=3), quick=True)
    assert choice.candidate == "linucb"
    assert choice.rule.startswith("target arms without any reward are chosen by their features: ")
    assert sum(choice.table[1]["target_fractions"][12:]) > 0.05
    assert not any("without any reward" in doubt for doubt in choice.assessment.doubts)


def test_new_arms_are_not_chosen_without_proof_and_an_assessment_doubts_them():
    pair = feature_log(0.0, new=3)
    choice = daband.choose(pair, quick=True)
    assert choice.candidate == "log"
    assert "; target arms without any reward are not chosen by their features: " in choice.rule
    assert choice.rule.endswith(", which is not proven")
    assert sum(choice.assessment.target_arms[12:]) == 0.0
    assert set(choice.assessment.new_arms) == {"12", "13", "14"}
    other = feature_log(1.5, new=3)  # the features predict there, so the policy chooses new arms
    policy = daband.LinUCB.for_pair(other, seed=0)
    daband.train(policy, source=other.source, target=other.target, episodes=10)
    doubts = daband.assess(policy, source=pair.source_test, target=pair.target).doubts
    assert any("arms without any reward are chosen" in doubt for doubt in doubts)


def test_a_log_policy_compares_with_the_best_arm_that_both_domains_have():
    draw = np.random.default_rng(2)
    x = draw.normal(size=(900, 2))
    arms = draw.integers(0, 3, 900)
    table = pl.DataFrame({"id": ["a", "b", "c"], "size": [1.0, 2.0, 4.0]})
    pair = from_log(
        source=(x, arms, 1.0 * arms + draw.normal(size=900), np.full(900, 1 / 3)),
        target=x,
        arms={"source": table, "target": table[:2]},
    )
    policy = daband.LogPolicy.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target)
    assert policy.evidence.arm == 1  # c is better, and is not offered in the target
    assert set(policy.select(x[:20], "target").arm) == {1}


def test_the_order_of_the_two_tables_of_arms_does_not_matter():
    tables = {"target": offers()[3:], "source": offers()[:9]}
    assert pair_of(tables).catalogue.offered.tolist() == pair_of().catalogue.offered.tolist()


def test_an_exported_policy_leaves_out_the_same_arms_as_the_policy(tmp_path):
    pair = pair_of()
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=64)
    daband.export(policy, tmp_path / "p.daband", domain="target", pair=pair)
    deployed = daband.load_deployed(tmp_path / "p.daband")
    contexts = pair.target.read(np.arange(9))
    some = np.tile(np.arange(12) < 4, (9, 1))
    assert policy.decide(contexts, "target", available=some).arm.tolist() == [3] * 9
    assert deployed.decide(contexts, arms=some).arm.tolist() == [3] * 9
    with pytest.raises(daband.InvalidInput, match=r"arms .*domain"):
        deployed.decide(contexts, arms=np.arange(12) < 2)


def test_members_that_all_use_arm_features_decide_by_their_mean(tmp_path):
    pytest.importorskip("torch")
    pair = pair_of()
    policy = daband.DABand.for_pair(pair, members=2, device="cpu")
    daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=32)
    contexts = pair.target.read(np.arange(20))
    means = policy.decide(contexts, "target").mean
    parts = [member.decide(contexts, "target").mean for member in policy.members.values()]
    np.testing.assert_allclose(means, np.mean(parts, axis=0), atol=1e-12)
    policy.save(tmp_path / "p")
    np.testing.assert_array_equal(
        daband.load(tmp_path / "p").decide(contexts, "target").mean, means
    )
    daband.export(policy, tmp_path / "p.daband", domain="target")
    deployed = daband.load_deployed(tmp_path / "p.daband").decide(contexts, arms=["o4", "o11"])
    np.testing.assert_allclose(deployed.mean, means[:, [4, 11]], atol=1e-4)


def test_arm_features_are_used_by_one_member_or_by_all():
    pair = pair_of()
    with_features = [
        daband.LinUCB.for_pair(pair, transform=None),
        daband.NeuralLinUCB.for_pair(pair, **SMALL),
    ]
    per_arm = daband.Constant.for_pair(pair)
    per_arm.catalogue = None
    for members in (with_features, with_features[:1], [with_features[1], per_arm]):
        named = {str(index): member for index, member in enumerate(members)}
        policy = daband.Mixture.for_pair(pair, members=named, transform=None)
        assert policy.joint_member is policy.members["0"]
    with pytest.raises(daband.InvalidInput, match="members: "):
        daband.Mixture.for_pair(
            pair,
            members={"a": with_features[0], "b": with_features[1], "c": per_arm},
            transform=None,
        )


@pytest.mark.parametrize("network", [True, False])
def test_a_mixture_for_images_uses_arm_features(network):
    draw = np.random.default_rng(4)
    images = draw.integers(0, 256, (80, 1, 16, 16), np.uint8)
    source = (images, draw.integers(0, 6, 80), draw.random(80), np.full(80, 1 / 6))
    pair = from_log(source=source, target=images, arms=draw.normal(size=(8, 2)))
    policy = daband.Mixture.for_pair(pair, network=network, **(SMALL if network else {}))
    assert policy.joint_member is not None
    daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=16)
    policy.add_arm("new", [0.5, 0.5])
    assert policy.decide(images[:3], "target").mean.shape == (3, 9)


def test_a_named_arm_of_a_policy_without_names_keeps_its_name():
    policy = daband.LinUCB(context_shape=(2,), n_arms=2)
    policy.add_arm()
    assert policy.arm_names is None
    policy.add_arm("x")
    assert policy.arm_names == ("0", "1", "2", "x")


@pytest.mark.parametrize("prior", [0.0, 1.0])
def test_the_bonus_of_a_greedy_member_is_the_same_after_export(prior):
    pair = pair_of()
    shape = {"context_shape": pair.context_shape, "n_arms": pair.n_arms}
    members = {
        "joint": daband.LinUCB(**shape, catalogue=pair.catalogue),
        "greedy": daband.LinUCB(**shape, alpha=0.0),
    }
    policy = daband.Mixture(
        **shape,
        members=members,
        prior={"joint": 1.0, "greedy": prior},
        learn_weights=False,
        bonus_weights={"joint": 1.0, "greedy": 1.0},
    )
    daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=64)
    contexts = pair.target.read(np.arange(20))
    mean, bonus = policy.frozen("target").score(contexts)[:2]
    decision = policy.decide(contexts, "target")
    np.testing.assert_allclose(mean, decision.mean, rtol=1e-6)
    np.testing.assert_allclose(bonus, decision.bonus, rtol=1e-6)


def test_distances_of_many_arms_need_little_memory():
    features = np.random.default_rng(0).normal(size=(800, 30))
    catalogue = Catalogue.fit([str(at) for at in range(800)], features)
    known = np.arange(800) < 700
    tracemalloc.start()
    found = catalogue.compute_distances(known)
    assert tracemalloc.get_traced_memory()[1] < 16e6
    tracemalloc.stop()
    apart = np.linalg.norm(catalogue.vectors[:, None] - catalogue.vectors[known], axis=2)
    unit = np.median(np.sort(apart[known], axis=1)[:, 1])
    np.testing.assert_allclose(found, apart.min(axis=1) / unit, atol=1e-6)
