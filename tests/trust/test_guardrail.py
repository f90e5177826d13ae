"""A second outcome of a log can prevent that a policy is deployed."""

import numpy as np
import polars as pl
import pytest

import daband
from daband.domains import Columns, DataOptions, Guardrail
from daband.errors import InvalidInput

ARMS = np.array(["coupon", "mail"])


def make_log(*, harm, n=2000, seed=0):
    """Return a log in which coupons gain 1 euro, and change returns by ``harm``."""
    rng = np.random.default_rng(seed)
    arms = rng.integers(0, 2, n)
    returns = rng.random(n) < 0.2 + harm * (arms == 0)
    return pl.DataFrame(
        {
            "age": rng.uniform(20, 80, n),
            "offer": ARMS[arms],
            "euros": rng.normal(5.0 + (arms == 0)),
            "p": np.full(n, 0.5),
            "returns": returns.astype(float),
        }
    )


def choose(log, **options):
    columns = Columns(["age"], arm="offer", reward="euros", propensity="p", **options)
    pair = daband.domains.from_table(source=log, target=log, columns=columns, shift="covariate")
    candidates = [daband.trust.Candidate("log", "log")]
    return daband.choose(pair, candidates=candidates, incumbent="mail").assessment


@pytest.mark.parametrize(
    ("harm", "name", "margin", "verdict"),
    [
        (0.2, "-returns", 0.05, "keep the incumbent"),  # more returns, and less is better
        (0.2, "returns", 0.05, "deploy"),
        (-0.2, "-returns", 0.0, "deploy"),
        (0.0, "-returns", 0.1, "deploy"),
        (0.0, "-returns", 0.0, "keep the incumbent"),  # not proven
    ],
)
def test_the_verdict_needs_the_guardrail(harm, name, margin, verdict):
    log = make_log(harm=harm)
    assessment = choose(log, guardrail=name, guardrail_margin=margin)
    assert assessment.low > 0.0
    assert assessment.verdict == verdict
    sign = -1.0 if name.startswith("-") else 1.0
    assert assessment.guardrail["advantage"] == pytest.approx(sign * harm, abs=0.05)
    assert assessment.guardrail["low"] < assessment.guardrail["advantage"]
    assert f"returns {'holds' if verdict == 'deploy' else 'fails'}" in assessment.sentence


@pytest.mark.slow
def test_the_estimate_is_that_of_the_exported_policy_by_context():
    """Coupons are for the young only, and each gains 1 euro and costs 0.3 returns."""
    rng = np.random.default_rng(0)
    log = make_log(harm=0.3, n=6000)
    is_young = log["age"].to_numpy() < 40
    euros = np.where((log["offer"] == "coupon").to_numpy() & ~is_young, 3.0, log["euros"])
    log = log.with_columns(euros=pl.Series(euros + rng.normal(size=len(log))))
    assessment = choose(log, guardrail="-returns", guardrail_margin=0.2)
    coupons = assessment.target_arms[0]
    assert 0.2 < coupons < 0.5
    assert assessment.guardrail["advantage"] == pytest.approx(-0.3 * coupons, abs=0.03)


def test_held_out_rounds_have_the_guardrail():
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(1000, 2))
    arms = rng.integers(0, 2, 1000)
    outcome = Guardrail(rng.normal(size=1000) - 0.5 * arms, margin=0.1, name="speed")
    log = (contexts, arms, rng.normal(arms), np.full(1000, 0.5), None, outcome)
    pair = daband.domains.from_log(source=log, target=contexts, n_arms=2, source_test=0.5)
    candidates = [daband.trust.Candidate("linucb", "linucb")]
    choice = daband.choose(pair, candidates=candidates, incumbent=0, episodes=4)
    found = choice.assessment.guardrail
    assert (found["name"], found["margin"]) == ("speed", 0.1)
    assert found["advantage"] == pytest.approx(-0.5, abs=0.15)
    assert choice.assessment.verdict == "keep the incumbent"


def test_options_of_files(tmp_path):
    make_log(harm=0.2).write_csv(tmp_path / "old.csv")
    path = str(tmp_path / "old.csv")
    roles = {"arm": "offer", "reward": "euros", "propensity": "p"}
    data = DataOptions(source=path, target=path, **roles, guardrail="-returns", margin=0.01)
    tables = data.read_tables()
    assert {column.name: column.role for column in tables.column_roles}["returns"] == "guardrail"
    choice = daband.choose(data.read(), incumbent="mail")
    choice.save(tmp_path / "market")
    loaded = daband.Choice.load(tmp_path / "market").assessment
    assert loaded.guardrail == choice.assessment.guardrail
    assert loaded.verdict == "keep the incumbent"


def test_invalid_guardrails():
    with pytest.raises(InvalidInput, match="margin"):
        Guardrail([0.0], margin=-1.0)
    with pytest.raises(InvalidInput, match="finite"):
        Guardrail([np.nan])
    with pytest.raises(InvalidInput, match="returns"):
        Columns(["age", "returns"], arm="a", reward="r", guardrail="-returns")
