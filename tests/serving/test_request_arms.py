"""Decisions among the arms of a request: by id, with features, and new ones."""

import numpy as np
import polars as pl
import pytest

import daband
from daband.features._catalogue import Catalogue

N_ARMS = 20


def mixture_of(catalogue, seed):
    shape = {"context_shape": (4,), "n_arms": N_ARMS, "seed": seed}
    joint = daband.LinUCB(**shape, catalogue=catalogue, transform=daband.Standardise(), alpha=0.3)
    members = {
        "joint": joint,
        "own": daband.LinUCB(**shape, transform=daband.PCA(2)),
        "mean": daband.Constant(**shape),
    }
    members["network"] = daband.DABand(
        **shape, recipe={"base": "small", "learning": {"steps": 2, "batch": 8}}, device="cpu"
    )
    return daband.Mixture(**shape, members=members)


def trained(kind, seed=0, rounds=300):
    draw = np.random.default_rng(seed)
    catalogue = Catalogue.fit([f"a{at}" for at in range(N_ARMS)], draw.normal(size=(N_ARMS, 3)))
    shape = {"context_shape": (4,), "n_arms": N_ARMS, "catalogue": catalogue, "seed": seed}
    if kind == "linucb":
        policy = daband.LinUCB(**shape)
    elif kind == "nlinucb":
        policy = daband.NeuralLinUCB(
            **shape, recipe={"base": "small", "learning": {"steps": 2}}, device="cpu"
        )
    else:
        policy = mixture_of(catalogue, seed)
    contexts = draw.normal(size=(rounds, 4))
    policy.prepare(contexts)
    arms = draw.integers(0, N_ARMS - 5, rounds)  # five arms have no rounds
    policy.update(
        contexts,
        arms,
        3.0 + contexts[:, 0] * catalogue.vectors[arms, 0] + 0.1 * draw.normal(size=rounds),
    )
    policy.adapt()
    policy.arm_names = catalogue.names
    return policy, contexts[:30]


@pytest.fixture(scope="module", params=["linucb", "nlinucb", "mixture"])
def deployed(request, tmp_path_factory):
    policy, contexts = trained(request.param)
    path = tmp_path_factory.mktemp("file") / "p.daband"
    daband.export(policy, path, reference=contexts)
    return policy, contexts, daband.load_deployed(path)


def test_a_request_by_id_scores_as_the_whole_catalogue(deployed):
    _, contexts, file = deployed
    every = file.decide(contexts)
    some = file.decide(contexts, arms=["a7", "a19", "a2"])
    np.testing.assert_allclose(some.mean, every.mean[:, [7, 19, 2]])
    assert set(some.arm_name) <= {"a7", "a19", "a2"}
    assert [("a7", "a19", "a2")[arm] for arm in some.arm] == list(some.arm_name)
    for row in range(5):
        one = file.decide(contexts[row], arms=["a7", "a19", "a2"], round_number=row)
        batch = file.decide(contexts[row : row + 1], arms=["a7", "a19", "a2"], round_number=row)
        assert (one.arm, one.arm_name, one.propensity) == (
            batch.arm[0],
            batch.arm_name[0],
            batch.propensity[0],
        )
        np.testing.assert_allclose(one.mean, batch.mean[0], rtol=1e-6)
        np.testing.assert_allclose(one.bonus, batch.bonus[0], rtol=1e-6)
    assert file.decide(contexts[0], arms=["a3"]).arm_name == "a3"


def test_a_row_is_scored_by_arm_features_as_in_its_batch(tmp_path):
    draw = np.random.default_rng(1)
    catalogue = Catalogue.fit([f"a{at}" for at in range(N_ARMS)], draw.normal(size=(N_ARMS, 3)))
    policy = daband.LinUCB(
        context_shape=(4,),
        n_arms=N_ARMS,
        catalogue=catalogue,
        transform=daband.Standardise(),
        seed=1,
    )
    contexts = draw.normal(5.0, 3.0, size=(300, 4))
    policy.prepare(contexts)
    policy.update(contexts, draw.integers(0, N_ARMS, 300), 7.0 + draw.normal(size=300))
    daband.export(policy, tmp_path / "p")
    file = daband.load_deployed(tmp_path / "p")
    for row in (*contexts[:20], np.full(4, 99.0)):
        one = file.decide(row)
        batch = file.decide(row[None])
        np.testing.assert_allclose(one.mean, batch.mean[0], rtol=1e-9)
        np.testing.assert_allclose(one.bonus, batch.bonus[0], rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 12])
def test_a_new_arm_is_scored_as_if_the_policy_had_added_it(deployed, rows, tmp_path):
    policy, contexts, file = deployed
    features = [0.5, -1.0, 2.0]
    policy.save(tmp_path / "p")
    grown = daband.load(tmp_path / "p")
    grown.add_arm("new", features)
    expected = grown.decide(contexts[:rows])
    found = file.decide(contexts[:rows], arms=["a3", {"id": "new", "features": features}])
    np.testing.assert_allclose(found.mean, expected.mean[:, [3, N_ARMS]], rtol=1e-6)
    np.testing.assert_allclose(found.bonus, expected.bonus[:, [3, N_ARMS]], rtol=1e-6)
    reloaded = file.with_arms(["a1", {"id": "new", "features": features}])
    later = reloaded.decide(contexts[:rows])
    np.testing.assert_allclose(later.mean, expected.mean, rtol=1e-6)
    assert set(later.arm_name) <= {"a1", "new"}
    assert reloaded.arm_names[-1] == "new"
    assert file.n_arms == N_ARMS


def test_mistakes_in_a_request_have_clear_errors(deployed):
    _, contexts, file = deployed
    for arms, message in (
        (["a1", "b9"], "'b9' .*catalogue.*features"),
        (["a1", "a1"], "arms .*twice"),
        ("a1", "arms .*1,000 .*'a1'"),
        ([], r"arms .*1,000 .*\[\]"),
        ([{"price": 3}], '"id" .*price'),
        ([{"id": "n", "features": [1.0]}], r"features .*3 .*\(1,\)"),
        ([{"id": "n", "features": "low"}], "features"),
        ([{"id": "n", "features": [1.0, 2.0, np.inf]}], "features .*3 "),
    ):
        with pytest.raises(daband.InvalidInput, match=message):
            file.decide(contexts[0], arms=arms)
    assert file.decide(contexts[0], arms=[7, "a2"]).arm_name in ("a7", "a2")


def test_the_control_group_keeps_the_incumbent_of_the_request(tmp_path):
    policy, contexts = trained("linucb")
    daband.export(policy, tmp_path / "p", incumbent="a4", explore="greedy")
    file = daband.load_deployed(tmp_path / "p")
    kept = file.decide(contexts[0], arms=["a1", "a4"], control=1.0)
    assert kept.arm_name == "a4"
    assert kept.in_control
    assert not file.decide(contexts[0], arms=["a1", "a2"], control=1.0).in_control


def test_without_a_catalogue_ids_select_and_features_are_rejected(tmp_path):
    policy = daband.LinUCB(context_shape=(2,), n_arms=3, seed=0)
    daband.export(policy, tmp_path / "p", arm_names=["a", "b", "c"])
    file = daband.load_deployed(tmp_path / "p")
    assert file.decide([1.0, 2.0], arms=["c"]).arm_name == "c"
    for arms, message in (
        ([{"id": "c", "price": 2}], "catalogue"),
        (["c", "a", 2], "arms .*once"),
        ([{"name": "c"}], "None .*arm"),
    ):
        with pytest.raises(daband.InvalidInput, match=message):
            file.decide([1.0, 2.0], arms=arms)


def test_a_table_of_arms_is_in_the_file(tmp_path):
    offers = pl.DataFrame(
        {"id": list("abcdef"), "price": [1, 2, 3, 4, 5, 6], "kind": ["x", "y"] * 3}
    )
    rows = pl.DataFrame(
        {"age": [20.0, 60.0] * 40, "arm": list("abcd") * 20, "reward": [0.0, 1.0, 2.0, 3.0] * 20}
    )
    columns = daband.domains.Columns(context=["age"], arm="arm", reward="reward", propensity="p")
    source = rows.with_columns(p=pl.lit(0.25))
    pair = daband.domains.from_table(source=source, target=rows, columns=columns, arms=offers)
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=16)
    daband.export(policy, tmp_path / "p", pair=pair, domain="target")
    file = daband.load_deployed(tmp_path / "p")
    decision = file.decide({"age": 41}, arms=["a", {"id": "new", "price": 9, "kind": "y"}])
    assert decision.arm_name in ("a", "new")
    with pytest.raises(daband.InvalidInput, match="no 'kind'"):
        file.decide({"age": 41}, arms=[{"id": "new", "price": 9}])


def test_a_policy_without_arm_features_warns_of_arms_without_rewards(tmp_path):
    policy = daband.Trees(context_shape=(4,), n_arms=N_ARMS)
    policy.catalogue = trained("linucb")[0].catalogue
    contexts = np.random.default_rng(0).normal(size=(60, 4))
    policy.update(contexts, np.arange(60) % (N_ARMS - 5), contexts[:, 0])
    with pytest.warns(
        daband.serving.ExportWarning,
        match="^5 .*'trees'",
    ):
        daband.export(policy, tmp_path / "p")
