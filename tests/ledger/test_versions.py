"""Versions are functions of the chosen policy and of the ledger."""

import shutil

import numpy as np
import polars as pl
import pytest

import daband
from daband.policies._checkpoints import read_checkpoint
from tests.ledger.conftest import run_week


def read_states(folder):
    return [read_checkpoint(path) for path in sorted((folder / "learned").glob("policy-*"))]


def assert_equal(states, others):
    assert len(states) == len(others)
    for state, other in zip(states, others, strict=True):
        assert state.notes == other.notes
        assert state.arrays.keys() == other.arrays.keys()
        for name, array in state.arrays.items():
            assert np.array_equal(array, other.arrays[name]), name


@pytest.mark.parametrize("name", ["folder", "quick_folder"])
def test_deleted_versions_are_learned_again_to_the_last_digit(request, name):
    folder = request.getfixturevalue(name)
    for week in range(3):
        path, frame = run_week(folder, week, n=200)
        with daband.open_market(folder) as market:
            if week == 2:  # a corrected reward is learned again from the start
                market.learn(path)
                changed = frame.with_columns(reward=1.0 - pl.col("reward"))
                market.learn(changed, correct=True)
            else:
                market.learn(path)
    states = read_states(folder)
    assert len(states) == 4
    with daband.open_market(folder) as market:
        assessment, recommended = market.assess(), market.recommended
    shutil.rmtree(folder / "learned")
    with daband.open_market(folder) as market:
        for version in range(1, 5):
            assert market.versions.load(version).version == version
        assert (market.assess(), market.recommended) == (assessment, recommended)
        with pytest.raises(daband.InvalidInput, match="versions 0 to 4"):
            market.versions.load(5)
    assert_equal(read_states(folder), states)


def test_a_file_of_another_ledger_is_not_used(quick_folder):
    path, _ = run_week(quick_folder, 0)
    with daband.open_market(quick_folder) as market:
        market.learn(path)
    states = read_states(quick_folder)
    wrong = quick_folder / "learned/policy-1.safetensors"
    daband.load(quick_folder / "policy.safetensors").save(wrong, notes={"ledger": "other"})
    with daband.open_market(quick_folder) as market:
        market.versions.load()
    assert_equal(read_states(quick_folder), states)


def test_the_ledger_of_another_policy_is_refused(quick_folder):
    path, _ = run_week(quick_folder, 0)
    with daband.open_market(quick_folder) as market:
        market.learn(path)
        market.versions.load().save(quick_folder / "policy.safetensors")
    with pytest.raises(daband.InvalidInput, match=r"policy\.safetensors"):
        daband.open_market(quick_folder)
