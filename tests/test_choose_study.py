"""The study of ``choose``: baselines of the table of methods are in its records and have no part in the choice."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SEEDS, CONTEXTS = 3, 60


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("choose_study")


def dump(folder, candidate, share):
    """What ``choose.py`` writes of a candidate whose choices are right for a share of the contexts, in both domains."""
    best = np.arange(CONTEXTS) % 2
    arms = np.where(np.arange(CONTEXTS) < share * CONTEXTS, best, 1 - best)
    arms = np.stack([arms] * SEEDS).astype(np.uint8)
    about = {
        "pair": "made/a-b", "data": "made up", "candidate": candidate, "method": candidate, "settings": {},
        "seeds": list(range(SEEDS)), "episodes": 2, "episode_length": 64, "rounds": [128] * SEEDS,
        "source_regret": [10.0 * (1 - share)] * SEEDS, "linear_acts": [False] * SEEDS, "accuracy": [share] * SEEDS,
        "reward_range": [0.0, 1.0], "device": "cpu", "commit": "04bee45",
    }  # fmt: skip
    expected = np.eye(2, dtype=np.float32)[best]
    arrays = {f"{name}_arm": arms for name in ("source", "target", "test")}
    np.savez(
        folder / f"made--{candidate}.npz",
        about=json.dumps(about),
        source_expected=expected,
        test_expected=expected,
        **arrays,
    )


def test_a_baseline_is_in_the_record_and_not_chosen(study, tmp_path):
    for candidate, share in (("constant", 0.5), ("linucb", 0.8), ("nlinucb-p", 1.0)):
        dump(tmp_path, candidate, share)
    records = study.study(study.read(tmp_path), study.read(tmp_path, study.BASELINES))
    assert len(records) == SEEDS
    for record in records:
        assert record["chosen"] == "linucb"
        assert record["target_accuracy"] == {"constant": 0.5, "linucb": 0.8}
        assert record["baselines"] == {"nlinucb-p": 1.0}
        assert record["source_regret"] == pytest.approx({"constant": 5.0, "linucb": 2.0, "nlinucb-p": 0.0})
        assert record["rounds"] == 128
        assert record["commit"] == "04bee45"
