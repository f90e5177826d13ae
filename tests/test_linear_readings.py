"""The readings of LinUCB on images run, and every unit's record says what it was."""

import importlib
from pathlib import Path

import pytest

import daband

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def readings(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("linear_readings")


def test_every_reading_is_tried_at_every_alpha(readings):
    pair = daband.domains.load("signs", tiny=True)
    names = [name for name, _ in readings.units("signs", pair, 1)]
    assert len(set(names)) == len(names) == 2 + len(readings.ALPHAS) * len(list(readings.readings("signs")))
    assert names[:2] == ["signs constant", "signs random"]


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("constant", {}),
        ("linucb", {"pixels": "imagenet", "ridge": 1.0, "components": 0, "alpha": 0.5}),
        ("linucb-p", {"pixels": "unit", "ridge": 10.0, "components": 4, "alpha": 0.05}),
    ],
)
def test_a_record_says_what_was_run(readings, method, settings):
    pair = daband.domains.load("signs", tiny=True)
    first, second = readings.one(pair, method, settings, 2, (0, 1))
    assert (first["seed"], second["seed"]) == (0, 1)
    assert first["method"] == method
    assert {name: first[name] for name in settings} == settings
    assert first["rounds"] == 128
    assert 0 < first["source_regret"] <= 128
    assert first["target_contexts"] == len(pair.target_test)
