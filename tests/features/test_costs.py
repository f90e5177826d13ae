"""Costs are subtracted when rewards are read, everywhere in the same way."""

import numpy as np
import polars as pl
import pytest

import daband
from daband.domains import Columns, DataOptions
from daband.errors import InvalidInput
from daband.features._costs import ArmCosts
from daband.ledger._store import Event, LoggedReward
from daband.service._log_readers import subtract_costs

ARMS = np.array(["coupon", "mail"])


def make_log(n=400, seed=0):
    rng = np.random.default_rng(seed)
    arms = rng.integers(0, 2, n)
    return pl.DataFrame(
        {
            "age": rng.uniform(20, 80, n),
            "offer": ARMS[arms],
            "euros": rng.normal(5.0 + (arms == 0)),
            "p": np.full(n, 0.5),
            "paid": np.where(arms == 0, rng.uniform(1, 3, n), 0.1),
        }
    )


def make_pair(log, costs, **options):
    columns = Columns(["age"], arm="offer", reward="euros", propensity="p", costs=costs)
    return daband.domains.from_table(source=log, target=log, columns=columns, **options)


def read_rewards(pair):
    return pair.source.read_log(np.arange(len(pair.source)))[1]


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ({"coupon": 2.0}, lambda log: np.where(log["offer"] == "coupon", 2.0, 0.0)),
        ({"coupon": "paid"}, lambda log: np.where(log["offer"] == "coupon", log["paid"], 0.0)),
        ("paid", lambda log: log["paid"].to_numpy()),
    ],
)
def test_rewards_of_a_table_are_net(costs, expected):
    log = make_log()
    pair = make_pair(log, costs)
    cost = expected(log)
    np.testing.assert_allclose(read_rewards(pair), log["euros"].to_numpy() - cost)
    means = [cost[(log["offer"] == arm).to_numpy()].mean() for arm in ARMS]
    np.testing.assert_allclose(pair.costs.means, means)


def test_the_table_of_arms_may_have_the_costs():
    log = make_log()
    arms = pl.DataFrame({"id": ARMS, "price": [2.0, 0.5], "size": [1.0, 3.0]})
    pair = make_pair(log, "price", arms=arms, source_test=None)
    expected = log["euros"].to_numpy() - np.where(log["offer"] == "coupon", 2.0, 0.5)
    np.testing.assert_allclose(read_rewards(pair), expected)


def test_rewards_of_all_arms_and_labels_are_net():
    rng = np.random.default_rng(0)
    rows = pl.DataFrame({name: rng.random(60) for name in ("x", "a", "b", "price")})
    columns = Columns(["x"], rewards=["a", "b"], costs={"b": "price"})
    pair = daband.domains.from_table(source=rows, target=rows, columns=columns, source_test=None)
    net = pair.source.read_rewards(np.arange(60))[0]
    np.testing.assert_allclose(net, rows.select("a", pl.col("b") - pl.col("price")).to_numpy())
    rows = rows.with_columns(best=pl.Series(np.where(rows["a"] > rows["b"], "a", "b")))
    columns = Columns(["x"], label="best", costs={"a": 0.25})
    pair = daband.domains.from_table(source=rows, target=rows, columns=columns)
    assert set(pair.target_test.read_expected(0, 9).ravel()) == {0.75, -0.25, 0.0, 1.0}
    assert pair.feedback == "bandit"


def test_arrays_and_files_are_read_alike(tmp_path):
    log = make_log()
    arms = (log["offer"] == "mail").cast(pl.Int64)
    arrays = [log["age"].to_numpy()[:, None], arms.to_numpy(), log["euros"], log["p"]]
    options = {"n_arms": 2, "class_names": ARMS, "target": arrays[0], "costs": {"coupon": 2.0}}
    by_arrays = daband.domains.from_log(source=tuple(map(np.asarray, arrays)), **options)
    frame = pl.DataFrame({"age": log["age"], "arm": arms, "reward": log["euros"]})
    frame.with_columns(propensity=0.5).write_parquet(tmp_path / "log.parquet")
    by_files = daband.domains.from_log(source=str(tmp_path / "log.parquet"), **options)
    np.testing.assert_allclose(read_rewards(by_files), read_rewards(by_arrays))
    with pytest.raises(InvalidInput, match="cupon"):
        daband.domains.from_log(
            source=tuple(map(np.asarray, arrays)), **options | {"costs": {"cupon": 2.0}}
        )


def test_a_target_log_is_learned_and_evaluated_net(tmp_path):
    log = make_log(seed=1)
    pair = make_pair(make_log(), {"coupon": "paid"})
    policy = daband.LinUCB.for_pair(pair, seed=0)
    policy.prepare(pair.source.read(np.arange(400)))
    policy.update(**pair.source.read_rounds(np.arange(400)).to_arguments())
    policy.save(tmp_path / "p.safetensors")
    policy, by_hand = (daband.load(tmp_path / "p.safetensors") for _ in range(2))
    names = {"offer": "arm", "euros": "reward", "p": "propensity"}
    log.rename(names).write_parquet(tmp_path / "log.parquet")
    daband.learn_log(policy, tmp_path / "log.parquet")
    net = log["euros"].to_numpy() - np.where(log["offer"] == "coupon", log["paid"], 0.0)
    rounds = (pair.table.contexts(log), (log["offer"] == "mail").cast(pl.Int64), net, log["p"])
    contexts, arms, rewards, propensities = map(np.asarray, rounds)
    by_hand.deploy("target")
    by_hand.update(contexts, arms, rewards, propensities=propensities)
    np.testing.assert_allclose(
        policy.decide(contexts, "target").mean, by_hand.decide(contexts, "target").mean, atol=1e-6
    )
    before = daband.load(tmp_path / "p.safetensors")
    before.deploy("target")
    daband.export(before, tmp_path / "p.daband")
    deployed = daband.load_deployed(tmp_path / "p.daband")
    assert deployed.costs == pair.costs
    values = [
        daband.evaluate_log(one, tmp_path / "log.parquet").value for one in (deployed, before)
    ]
    rounds = (contexts, arms, rewards, propensities)
    expected = daband.evaluate_log(before, rounds).value
    assert values == pytest.approx([expected, expected])


def test_a_service_subtracts_costs_of_gross_rewards():
    costs = ArmCosts((2.0, 0.5), ("", "price"))
    events = [
        Event("a", 0.0, "policy", "target", 0, 0, 0.5, None, None, None),
        Event("b", 0.0, "policy", "target", 0, 1, 0.5, '{"price": 0.75}', None, None),
        Event("c", 0.0, "policy", "target", 0, 1, 0.5, None, None, None),
    ]
    entries = [LoggedReward(1, 1, 3.0, "given", 0.0, event) for event in events]
    assert [entry.reward for entry in subtract_costs(entries, costs)] == [1.0, 2.25, 2.5]
    assert subtract_costs(entries, None) is entries


def test_options_of_files(tmp_path):
    make_log().write_csv(tmp_path / "old.csv")
    options = {"source": str(tmp_path / "old.csv"), "target": str(tmp_path / "old.csv")}
    options |= {"arm": "offer", "reward": "euros"}
    data = DataOptions(**options, cost=("coupon=2", "mail=paid"))
    tables = data.read_tables()
    assert tables.columns.costs == {"coupon": 2.0, "mail": "paid"}
    assert {column.name: column.role for column in tables.column_roles}["paid"] == "cost"
    data.save(tmp_path / "data.json")
    assert DataOptions.load(tmp_path / "data.json").parse_costs() == tables.columns.costs
    with pytest.raises(InvalidInput):
        DataOptions(**options, cost=("paid", "coupon=2"))
    with pytest.raises(InvalidInput, match="paid"):
        Columns(["age", "paid"], arm="offer", reward="euros", costs={"coupon": "paid"})


def test_the_verdict_is_net_and_shows_both(tmp_path):
    make_log(2000).drop("paid").write_csv(tmp_path / "old.csv")
    path = str(tmp_path / "old.csv")
    roles = {"arm": "offer", "reward": "euros", "propensity": "p"}
    data = DataOptions(source=path, target=path, **roles, cost=("coupon=2",))
    choice = daband.choose(data.read())
    assert choice.assessment.incumbent == "always mail"
    assert choice.assessment.costs == [2.0, 0.0]
    by_mail = daband.choose(data.read(), incumbent="coupon").assessment
    assert by_mail.incumbent_cost == 2.0
    assert by_mail.advantage == pytest.approx(1.0, abs=0.2)
    assert any("net of costs" in reason for reason in by_mail.reasons)
    choice.save(tmp_path / "market")
    page = daband.open_market(tmp_path / "market").report().read_text()
    assert "gross" in page


def test_answers_of_a_survey_are_gross():
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(300, 2))
    arms = rng.integers(0, 2, 300)
    log = (contexts, arms, rng.normal(size=300), np.full(300, 0.5))
    pair = daband.domains.from_log(source=log, target=contexts, n_arms=2, costs={"1": 2.0})
    policy = daband.LogPolicy.for_pair(pair)
    daband.train(policy, source=pair.source, target=pair.target)
    asked = daband.audit(policy, target=pair.target, budget=30, incumbent=1, ask=lambda x, arm: 3.0)
    assert asked.advantage == pytest.approx(2.0, abs=0.2)
