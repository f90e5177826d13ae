"""``daband rules``, and what takes the rules."""

import json
import shutil

import numpy as np
import polars as pl
import pytest

import daband as library
from tests.ledger.test_report import make_choice
from tests.rule_engines import decide_in_json


@pytest.fixture(scope="module")
def choice_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("choice")
    make_choice(folder, has_effect=True)
    return folder


@pytest.fixture
def market(choice_folder, tmp_path):
    """A copy of the folder of a choice, which a test may change."""
    shutil.copytree(choice_folder, tmp_path, dirs_exist_ok=True)
    return tmp_path / "market"


def test_from_rules_to_decisions_and_back(daband, market):
    options = ["--depth", "1", "--sql", "--table", "people", "--out", "r.sql"]
    printed = daband("rules", "market", *options)
    assert printed.returncode == 0, printed.stderr
    folder = market.parent
    assert 'FROM "people"' in (folder / "r.sql").read_text()
    tree = json.loads((market / "rules.json").read_text())["rule"]
    assert {tree["yes"], tree["no"]} == {"coupon", "letter"}
    rows = pl.read_csv(folder / "new.csv").with_row_index("customer")
    rows.write_csv(folder / "week.csv")
    assert daband("decide", "market/rules.json", "week.csv", "--out", "log.csv").returncode == 0
    log = pl.read_csv(folder / "log.csv")
    assert log["propensity"].unique().to_list() == [1.0]
    assert log["arm"].to_list() == decide_in_json(library.load(market / "rules.json").rule, rows)
    exported = daband("export", "market/rules.json", "rules.daband", "--epsilon", "0.2")
    assert exported.returncode == 0, exported.stderr
    assert library.load_deployed("rules.daband").policy == "rules"
    assert daband("decide", "rules.daband", "week.csv", "--out", "next.csv").returncode == 0
    log = pl.read_csv(folder / "next.csv")
    assert sorted(log["propensity"].unique()) == pytest.approx([0.1, 0.9])
    rewards = np.random.default_rng(0).random(len(log))
    log.with_columns(reward=rewards).write_csv(folder / "log.csv")
    learned = daband("learn", "market/rules.json", "log.csv", "--id", "customer")
    assert learned.returncode == 0, learned.stderr
    assert library.load(market / "rules.json").rounds_learned == len(log)
    refused = daband("rules", "market")
    assert refused.returncode == 2
    assert "has learned" in refused.stderr


def test_a_rule_under_a_limit(daband, market):
    assert daband("rules", "market", "--depth", "1").returncode == 0
    limit = ["--at-most", "coupon=0.1"]
    exported = daband("export", "market/rules.json", "limited.daband", *limit)
    assert exported.returncode == 0, exported.stderr
    rows = market.parent / "new.csv"
    arms = library.load_deployed(market.parent / "limited.daband").decide(pl.read_csv(rows))
    fraction = np.mean(np.array(arms.arm_name) == "coupon")
    assert 0.05 < fraction <= 0.1 + 1 / len(arms.arm_name)


def test_a_choice_under_a_limit_is_assessed_with_it(daband, market):
    exported = daband("export", "market", "limited.daband", "--at-most", "letter=0.1")
    assert exported.returncode == 0, exported.stderr
    deployed = library.load_deployed(market.parent / "limited.daband")
    choice = library.trust.Choice.load(market)
    assert 0.0 < deployed.assessment["advantage"] < choice.assessment.advantage / 2.0
    assert deployed.assessment["target_arms"][1] == pytest.approx(0.1, abs=0.02)
    assert "With the limits: Deploy: +0." in exported.stdout
    assert deployed.limiter.limits[0].rate == 0.1
    with_pilot = daband("pilot", "plan", "market", "--per-week", "500")
    assert with_pilot.returncode == 0, with_pilot.stderr
    refused = daband("export", "market", "p.daband", "--pilot", "--at-most", "letter=0.1")
    assert "cannot be combined with pilot" in refused.stderr


def test_a_log_without_the_incumbent_leaves_the_verdict(daband, market):
    """The policy that has learned gets no verdict by the rewards of the source only."""
    assert "Version 1" not in daband("assess", "market").stdout
    rows = pl.read_csv(market.parent / "new.csv")
    rewards = np.random.default_rng(0).random(len(rows))
    log = rows.with_columns(
        arm=pl.lit("letter"), propensity=0.5, reward=rewards, n=pl.int_range(len(rows))
    )
    log.write_csv(market.parent / "log.csv")
    learned = daband("learn", "market", "log.csv", "--external", "--id", "n")
    assert learned.returncode == 0, learned.stderr
    exported = daband("export", "market", "limited.daband", "--at-most", "letter=0.1")
    assert "With the limits" not in exported.stdout
    verdict = library.open_market(market).assess()
    deployed = library.load_deployed(market.parent / "limited.daband")
    assert deployed.assessment["advantage"] == verdict.advantage
    assert "Version 1 has learned" in daband("assess", "market").stdout
    assert "Version 1 has learned" in library.open_market(market).report().read_text()


@pytest.mark.parametrize(
    ("option", "start"),
    [("--text", "if age"), ("--json", "{"), ("--growthbook", "[")],
)
def test_languages(daband, market, option, start):
    printed = daband("rules", "market", "--depth", "1", option)
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout.startswith(start)
    # the verdict is not in a program
    assert "is expected in the target" in (printed.stdout if option == "--text" else printed.stderr)


def test_a_json_file_has_the_policy(daband, market):
    assert daband("rules", "market", "--depth", "1", "--json", "--out", "x.json").returncode == 0
    assert daband("decide", "x.json", "new.csv").returncode == 0
    assert daband("rules", "market", "--json", "--out", "x.txt").returncode == 2


def test_one_language_at_a_time(daband, market):
    assert daband("rules", "market", "--sql", "--json").returncode == 2
