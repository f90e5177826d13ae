"""The record of what happened: every column is checked where rounds are made, and moves with its
rows.
"""

import numpy as np
import pytest

from daband.errors import InvalidInput
from daband.rounds._rounds import Guardrail, Rounds, make_rounds

N = 6
CONTEXTS = np.arange(2.0 * N).reshape(N, 2)
COLUMNS = {
    "arms": np.arange(N) % 3,
    "rewards": np.arange(N) / 10,
    "propensities": np.full(N, 0.5),
    "weights": np.arange(1.0, N + 1),
    "offered": np.ones((N, 3), bool),
    "clusters": np.arange(N) + 1,
    "guardrail": Guardrail(np.arange(N), name="-returns"),
}


def change(name, row, value):
    column = np.array(COLUMNS[name])
    column[row] = value
    return {**COLUMNS, name: column}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (change("arms", 4, 3), ("arm 3", "row 104")),
        (change("rewards", 2, np.nan), ("reward", "row 102")),
        (change("propensities", 1, 0.0), ("propensity", "row 101", "0")),
        (change("weights", 5, -1.0), ("weights", "row 105", "-1")),
        (change("offered", 3, [False, True, True]), ("row 103", "arm 0", "not offered")),
        ({**COLUMNS, "clusters": np.full(N, 0.5)}, ("clusters",)),
        ({**COLUMNS, "clusters": [1]}, ("clusters", f"({N},)")),
        ({**COLUMNS, "guardrail": Guardrail([0.0])}, ("guardrail", str(N))),
    ],
)
def test_an_invalid_column_is_named_with_its_row(columns, words):
    with pytest.raises(InvalidInput) as error:
        make_rounds(CONTEXTS, **columns, n_arms=3, to_row=lambda index: 100 + index)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("rows", [np.array([4, 1]), slice(1, 3), np.arange(N) > 3])
def test_every_column_moves_with_its_rows(rows):
    rounds = make_rounds(CONTEXTS, **COLUMNS, n_arms=3)
    names = np.array(["de", "fr"] * 3)
    rounds = Rounds(**{**vars(rounds), "domains": names, "ids": np.arange(N)})
    chosen = rounds.select(rows)
    indices = np.arange(N)[rows]
    assert len(chosen) == len(indices)
    np.testing.assert_array_equal(chosen.contexts, CONTEXTS[indices])
    for name in ("arms", "rewards", "propensities", "weights", "offered", "clusters"):
        np.testing.assert_array_equal(vars(chosen)[name], COLUMNS[name][indices])
    np.testing.assert_array_equal(chosen.ids, indices)
    np.testing.assert_array_equal(chosen.domains, names[indices])
    np.testing.assert_array_equal(chosen.guardrail.values, indices)
    assert chosen.guardrail.name == "-returns"


def test_joined_parts_are_the_rounds_again():
    rounds = make_rounds(CONTEXTS, **COLUMNS, n_arms=3)
    joined = Rounds.join([rounds.select(slice(0, 2)), rounds.select(slice(2, N))])
    for name, column in vars(rounds).items():
        if name == "guardrail":
            np.testing.assert_array_equal(joined.guardrail.values, column.values)
        else:
            np.testing.assert_array_equal(vars(joined)[name], column)


def test_a_part_without_weights_counts_once_and_without_a_mask_offers_all_arms():
    rounds = make_rounds(
        CONTEXTS, **{**COLUMNS, "offered": np.eye(3, dtype=bool)[[0, 1, 2] * 2]}, n_arms=3
    )
    plain = Rounds(rounds.contexts, rounds.arms, rounds.rewards)
    joined = Rounds.join([plain, rounds])
    np.testing.assert_array_equal(joined.weights, [*np.ones(N), *COLUMNS["weights"]])
    np.testing.assert_array_equal(joined.offered, [*np.ones((N, 3), bool), *rounds.offered])
    assert joined.propensities is None
    assert joined.clusters is None


def test_a_sample_has_different_rounds_and_depends_on_the_seed_only():
    rounds = make_rounds(CONTEXTS, **COLUMNS, n_arms=3)
    sample = rounds.sample(4, seed=1)
    assert len(np.unique(sample.contexts, axis=0)) == 4
    np.testing.assert_array_equal(sample.contexts, rounds.sample(4, seed=1).contexts)
    assert rounds.sample(N, seed=0) is rounds
