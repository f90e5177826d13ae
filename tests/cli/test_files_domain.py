"""``--domain COLUMN``: one table with a column of markets; the target is a value of it, every other
one a source.
"""

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from daband import Choice
from daband.cli._main import app


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    n = 600
    country = rng.choice(["de", "fr", "pl", "cz"], n)
    age = rng.uniform(20, 70, n)
    columns = {"country": country, "age": age, "offer": np.where(age > 45, "card", "loan")}
    pl.DataFrame(columns).write_csv(tmp_path / "markets.csv")
    return tmp_path / "markets.csv"


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_choice_has_the_sources_of_the_column(table, tmp_path):
    out = tmp_path / "out"
    files = ["--source", table, "--domain", "country", "--target", "pl", "--label", "offer"]
    found = run("choose", *files, "--quick", "--episodes", "2", "--out", out)
    assert found.exit_code == 0, found.output
    choice = Choice.load(out)
    assert choice.options.domain == "country"
    assert choice.options.read().domains == choice.policy.domains
    assert choice.policy.domains.sources == ("cz", "de", "fr")


def test_a_choice_is_for_one_target_which_is_said_before_training(table, tmp_path):
    files = ["--source", table, "--domain", "country", "--target", "pl,cz", "--label", "offer"]
    found = run("choose", *files, "--out", tmp_path / "o")
    assert found.exit_code != 0
    told = " ".join((found.output + str(found.exception)).split())
    assert "│ country │ ignored │ it names the domain, as stated" in told
    assert "a choice is for one target, and the pair has pl, cz" in told
    assert "training" not in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--domain", "nation", "--target", "pl"], "no column 'nation'"),
        (["--domain", "country", "--target", "us"], "must have the value 'us'"),
    ],
)
def test_what_splits_nothing_is_refused(table, tmp_path, words, message):
    found = run(
        "choose",
        "--source",
        table,
        *words,
        "--label",
        "offer",
        "--out",
        tmp_path / "o",
    )
    assert found.exit_code != 0
    assert message in " ".join((found.output + str(found.exception)).split())
