"""Small trees over raw columns: proof, leaves, and the policy."""

import numpy as np
import polars as pl
import pytest

import daband
from daband.errors import InvalidInput
from daband.trust import Candidate
from tests.ledger.test_report import make_choice
from tests.rule_engines import decide_in_json

LOG = [Candidate("log", "log", preferred=True)]


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    folder = tmp_path_factory.mktemp("market")
    return folder, make_choice(folder, has_effect=True)


@pytest.fixture(scope="module")
def result(market):
    return daband.rules(market[1], max_depth=1)


def test_the_true_cut_is_found_and_proven(result):
    assert result.proven
    split = result.policy.node
    assert split.column == "age"
    assert 47 <= split.value <= 53
    assert [leaf.arm for leaf in result.leaves] == ["coupon", "letter"]
    assert 0 < result.low < result.gain
    assert result.loss_low < 0.1
    assert result.assessment.verdict == "deploy"


def test_leaves_have_fractions_rounds_and_gains(result):
    young, old = result.leaves
    assert young.source_fraction + old.source_fraction == pytest.approx(1.0)
    assert young.source_fraction > young.target_fraction  # the target is older
    assert sum(young.rounds.values()) + sum(old.rounds.values()) == 4000
    best = result.best_arm
    for leaf in result.leaves:
        assert leaf.gain == 0.0 if leaf.arm == best else leaf.low < 1.0 < leaf.high + 0.2
    assert all(leaf.path in result.to_text() for leaf in result.leaves)


def test_without_an_effect_of_context_the_rule_is_one_arm(tmp_path):
    result = daband.rules(make_choice(tmp_path, has_effect=False), max_depth=2)
    assert not result.proven
    assert [leaf.arm for leaf in result.leaves] == ["letter"]
    assert result.rule.to_sql() == "'letter'"
    assert result.loss == 0.0
    assert "no proof" in result.sentence


def test_the_policy_agrees_with_its_sql_and_learns(market, result, tmp_path):
    _, choice = market
    pair = choice.options.read()
    frame = pl.DataFrame({"age": [20.0, 49.0, 75.0], "city": ["A", "B", "A"]})
    contexts = pair.table.contexts(frame)
    decision = result.policy.decide(contexts)
    names = [result.policy.arm_names[arm] for arm in decision.arm]
    assert names == decide_in_json(result.rule, frame)
    result.save(tmp_path)
    policy = daband.load(tmp_path / "rules.json")
    # so many good rewards of the other arm for the young that it is chosen there
    young = np.repeat(contexts[:1], 50_000, axis=0)
    arm = 1 - decision.arm[0]
    policy.update(young, np.full(50_000, arm), np.full(50_000, 9.0))
    assert policy.decide(contexts[:1]).arm[0] == arm
    assert policy.rule.leaf_arms[0] == policy.arm_names[arm]


def test_an_arm_with_too_few_rounds_is_not_chosen(market):
    result = daband.rules(market[1], max_depth=2, min_rounds=600)
    assert all(leaf.rounds[leaf.arm] >= 600 for leaf in result.leaves)


def test_a_source_with_all_rewards():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 10, (3000, 3)).astype(float)
    rewards = np.stack([x[:, 0] < 4, x[:, 0] >= 4], axis=1) + rng.normal(0, 0.1, (3000, 2))
    pair = daband.domains.from_arrays(source=(x[:2500], rewards[:2500]), target=x[2500:])
    candidates = [Candidate("linucb", "linucb")]
    choice = daband.choose(pair, candidates=candidates, episodes=10, episode_length=64)
    result = daband.rules(choice, pair=pair, max_depth=1)
    assert result.proven
    assert (result.policy.node.value, result.policy.node.feature) == (4.0, 0)
    assert result.gain == pytest.approx(0.4, abs=0.05)


@pytest.mark.parametrize(("effect", "proven"), [(0.01, False), (0.5, True)])
def test_a_gain_that_is_certain_in_the_source_may_be_lost_in_the_target(effect, proven):
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(3000, 2))
    gain = np.where(x[:, 0] < 0.5, effect, -effect)
    rewards = np.stack([gain, 0.0 * gain], axis=1) + rng.normal(size=(3000, 1))
    pair = daband.domains.from_arrays(source=(x[:2500], rewards[:2500]), target=x[2500:])
    choice = daband.choose(pair, candidates=[Candidate("supervised", "supervised")])
    result = daband.rules(choice, pair=pair, max_depth=1)
    assert result.gain == pytest.approx(effect / 2, rel=0.2)
    assert result.gain > 5 * result.error
    assert result.proven is proven
    assert (result.low > 0) is proven


def test_a_tree_is_not_used_far_from_all_source_contexts():
    rng = np.random.default_rng(0)
    x, arms = rng.uniform(size=(3000, 2)), rng.integers(0, 2, 3000)
    rewards = rng.normal(arms * np.where(x[:, 0] < 0.5, 1.0, -1.0))
    log = x, arms, rewards, np.full(3000, 0.5)
    for move, proven in ((0.0, True), (5.0, False)):
        target = rng.uniform(size=(500, 2)) + np.array([0.0, move])
        pair = daband.domains.from_log(source=log, target=target, n_arms=2)
        result = daband.rules(daband.choose(pair, candidates=LOG), pair=pair, max_depth=1)
        assert result.proven is proven
        assert result.low > 0
        assert len(result.doubts) == (not proven)
        assert all(doubt in result.sentence for doubt in result.doubts)


def test_a_column_in_another_unit_does_not_separate_the_domains():
    rng = np.random.default_rng(0)
    age, income = rng.uniform(20, 80, 2000), rng.uniform(1, 2, 2000)
    offers = np.where((age < 50) ^ (rng.random(2000) < 0.1), "card", "fund")
    rows = pl.DataFrame({"age": age, "income": income, "offer": offers})
    target = rows[1000:].with_columns(income=10 * pl.col("income")).drop("offer")
    pair = daband.domains.from_table(
        source=rows[:1000],
        target=target,
        columns=daband.domains.Columns(["age", "income"], label="offer"),
        units=["income"],
    )
    choice = daband.choose(pair, candidates=[Candidate("supervised", "supervised")])
    result = daband.rules(choice, pair=pair, max_depth=1)
    assert result.proven
    assert result.assessment.outside_support == choice.assessment.outside_support < 0.1
    assert result.gain == pytest.approx(0.4, abs=0.06)
    assert result.error < 0.05


def test_a_choice_that_has_learned_target_rewards(market, tmp_path):
    pair = market[1].options.read()
    choice = daband.choose(
        pair, candidates=LOG, budget=20, ask=lambda contexts, arms: np.ones(len(arms))
    )
    assert choice.rewards == 20
    result = daband.rules(choice, pair=pair, max_depth=1)
    assert result.proven
    assert [leaf.arm for leaf in result.leaves] == ["coupon", "letter"]


def test_the_report_has_the_figure(market, result):
    folder, _ = market
    assert "<svg" not in daband.open_market(folder / "market").report().read_text()
    result.save(folder / "market")
    page = daband.open_market(folder / "market").report().read_text()
    assert page.count("<rect") == 3
    assert "age &lt; " in page


@pytest.mark.parametrize("options", [{"max_depth": 0}, {"max_depth": 4}, {"min_rounds": 0}])
def test_wrong_options(market, options):
    with pytest.raises(InvalidInput, match=next(iter(options))):
        daband.rules(market[1], **options)


def test_a_choice_without_files_needs_its_pair():
    pair = daband.domains.load("synthetic", tiny=True)
    candidates = [Candidate("linucb", "linucb")]
    choice = daband.choose(pair, candidates=candidates, episodes=2, episode_length=16)
    with pytest.raises(InvalidInput, match="pair"):
        daband.rules(choice)


def test_a_rule_that_has_learned_is_not_overwritten(result, tmp_path):
    result.save(tmp_path)
    result.save(tmp_path)
    policy = daband.load(tmp_path / "rules.json")
    policy.version = 1
    policy.save(tmp_path / "rules.json")
    with pytest.raises(InvalidInput, match="has learned"):
        result.save(tmp_path)
