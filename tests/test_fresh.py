"""Tables inside packages become pairs as they are declared: rows, arms, what is left out, rewards of near guesses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import fresh


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Declare one data set of a package of npm that lies in ``tmp_path``."""
    monkeypatch.setenv("NODE_PATH", str(tmp_path))

    def declared(**entry):
        monkeypatch.setattr(fresh, "declared", lambda: {"third_tables": {"one": entry}})
        return fresh.load("third_tables", "one")

    return declared


def _people(n: int) -> list[dict[str, object]]:
    draw = np.random.default_rng(0)
    ages, pays = draw.integers(20, 60, n).tolist(), draw.normal(size=n).tolist()
    towns = [("a", "b")[i % 2] for i in range(n)]
    return [
        {"age": age, "the town": town, "pay": pay, "net": pay} for age, town, pay in zip(ages, towns, pays, strict=True)
    ]


def test_columns_of_the_split_the_arm_and_those_named_are_no_features(declare, tmp_path):
    (tmp_path / "people.json").write_text(json.dumps(_people(400)))
    pair = declare(
        table="npm:people.json",
        source="`the town` == 'a'",
        target="`the town` == 'b'",
        arm="pay",
        arms=4,
        drop="net file",
    )
    assert pair.context_shape == (1,)  # the age
    assert pair.n_arms == 4
    assert len(pair.source) + len(pair.source_test) == len(pair.target) + len(pair.target_test) == 200


def test_a_guess_next_to_the_right_arm_pays_part(declare, tmp_path):
    (tmp_path / "people.json").write_text(json.dumps(_people(400)))
    pair = declare(
        table="npm:people.json",
        with_={},
        source="age < 40",
        target="age >= 40",
        arm="pay",
        arms=3,
        near=True,
        drop="net",
    )
    rewards = pair.target_test.read_expected(0, len(pair.target_test))
    assert set(np.unique(rewards)) == {0.0, 0.5, 1.0}
    np.testing.assert_array_equal(rewards[:, 1] == 1.0, rewards[:, 0] == rewards[:, 2])


def test_each_file_is_a_row_and_a_column_may_be_added(declare, tmp_path):
    for group, words in (("ham-1", "meet me"), ("spam-1", "buy now"), ("ham-2", "see me"), ("spam-2", "buy this")):
        (tmp_path / group).mkdir()
        for number in range(20):
            text = {"group": group, "text": f"{words} word{number}"}
            (tmp_path / group / f"{number}.json").write_text(json.dumps(text))
    pair = declare(
        **{"table": "npm:*/*.json", "with": {"spam": "group.str.startswith('spam')"}, "arm": "spam", "text": "text"},
        source="group in ['ham-1', 'spam-1']",
        target="group in ['ham-2', 'spam-2']",
    )
    assert pair.n_arms == 2
    contexts, rewards = pair.target_test.read(0, 20), pair.target_test.read_expected(0, 20)
    assert (contexts == rewards[:, [1]]).all(axis=0).any()  # "buy": spam alone has it
    assert rewards.sum(axis=0).tolist() == [10, 10]


def test_windows_of_signals_are_means_of_eight_samples(tmp_path):
    signal = np.arange(300 * 6, dtype=float).reshape(300, 6)
    np.save(tmp_path / "watch.npy", {"X": [signal], "y": [3], "subject": [1], "side": [0]}, allow_pickle=True)
    frame = fresh._motions(tmp_path / "watch.npy")
    assert frame.shape == (2, 96 + 3)
    assert frame["mean 0"].tolist() == [signal[:8, 0].mean(), signal[128:136, 0].mean()]
    assert frame["exercise"].tolist() == [3, 3]
