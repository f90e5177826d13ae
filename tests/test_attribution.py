"""The attribution study trains NLinUCB-P, and its records have the bound's terms."""

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import daband
from daband.training._trainer import Run

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("attribution")


def test_principal_components_stand_before_the_network(study):
    pair = daband.domains.load("synthetic", tiny=True)
    (variant,) = [one for one in study.studies()["baselines"] if one.method == "nlinucb-p"]
    (record,) = study.run_variant("baselines", replace(variant, seeds=(0,)), pair, episodes=2, scores=None)
    assert record["rounds"] == 128
    assert record["target_contexts"] == len(pair.target_test)
    assert record["bound"]["rounds"] == [64.0, 128.0]
    assert record["bound"]["source_regret"][-1] == pytest.approx(record["source_regret"], abs=1e-3)
    assert "divergence" not in record["bound"], "there is no discriminator"


def test_terms_that_an_episode_lacks_are_left_out(study):
    episodes = [
        {"bound_rounds": 64.0 * i, "bound_exploration": float(i), "bound_informative": 0.0} for i in range(1, 46)
    ]
    for episode in episodes[5:]:
        episode["bound_divergence"] = 1.0
    run = Run(*(np.zeros(0, kind) for kind in (int, float, float, float)), episodes, 0.0)
    terms = study.bound_terms(run)
    assert set(terms) == {"rounds", "exploration"}
    assert terms["rounds"][-1] == 64 * 45
    assert len(terms["rounds"]) == 23
    assert np.all(np.diff(terms["rounds"]) == 128)
