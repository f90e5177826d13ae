"""The examples in the package: their files, their rewards, and what is true in the simulation."""

import io
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from daband.domains._examples import fill_rewards, list_examples, read_example
from daband.errors import InvalidInput

sys.path.insert(0, str(Path(__file__).parents[2] / "packaging"))

import make_examples


@pytest.mark.parametrize("name", list_examples())
def test_an_example_has_files_and_commands_on_them(name):
    example = read_example(name)
    assert example.summary
    commands = [line for line in example.commands.splitlines() if line.startswith("daband ")]
    assert commands
    for folder in {file.partition("/")[0] for file in example.files} - {"offers.csv"}:
        assert folder in example.commands
    assert sum(map(len, example.files.values())) < 1_000_000


def test_an_unknown_example_names_the_known_ones():
    with pytest.raises(InvalidInput, match="ab-test"):
        read_example("ab-tst")


def test_the_test_draws_offers_with_the_stated_probabilities():
    norway = pl.read_csv(io.BytesIO(read_example("ab-test").files["norway.csv"]))
    counts = norway.group_by("offer", "p").len().sort("offer")
    assert counts["p"].to_list() == make_examples.PROPENSITIES.tolist()
    assert np.allclose(counts["len"] / len(norway), counts["p"], atol=0.02)


def test_customers_of_the_target_are_older_and_no_offer_is_best_for_all():
    files = read_example("ab-test").files
    ages = {
        market: pl.read_csv(io.BytesIO(files[f"{market}.csv"]))["age"].to_numpy()
        for market in ("norway", "sweden")
    }
    assert ages["sweden"].mean() > ages["norway"].mean() + 5
    chances = make_examples.compute_buy_probabilities(ages["sweden"])
    best = np.bincount(chances.argmax(axis=1), minlength=3) / len(chances)
    assert best[1] == 0.0
    assert min(best[0], best[2]) > 0.2


def test_rewards_are_filled_in_by_id_and_arm():
    rows = pl.DataFrame({"customer": [20_002, 20_001], "arm": ["visit", "letter"], "age": [1, 2]})
    filled = fill_rewards("ab-test", rows)
    reversed_rows = fill_rewards("ab-test", rows.reverse().with_columns(reward=None))
    assert filled["customer"].to_list() == [20_002, 20_001]
    assert filled["reward"].to_list() == reversed_rows["reward"].to_list()[::-1]
    assert filled["reward"].null_count() == 0


@pytest.mark.parametrize(
    ("name", "column"), [("labels", "customer"), ("ab-test", "customr"), ("ab-test", "arm")]
)
def test_files_of_other_data_are_not_filled_in(name, column):
    rows = pl.DataFrame({column: [1], "reward": [None]})
    with pytest.raises(InvalidInput):
        fill_rewards(name, rows)
