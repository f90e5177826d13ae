"""Registered pairs pass the public checks: tiny versions without any file, the others if their data
are there.
"""

import numpy as np
import pytest

from daband.domains import load
from tests.leaks import check_pair


@pytest.mark.parametrize("name", ["digit", "synthetic"])
def test_a_tiny_version_needs_no_file_is_repeatable_and_conforms(name, tmp_path, monkeypatch):
    monkeypatch.setenv("DABAND_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DABAND_CACHE", str(tmp_path))
    first = load(name, tiny=True)
    second = load(name, tiny=True)
    for part in ("source", "target"):
        one, other = (getattr(pair, part).batch(0, 64, seed=0) for pair in (first, second))
        np.testing.assert_array_equal(one, other)
    one, other = (pair.target_test.read_expected(0, 64) for pair in (first, second))
    np.testing.assert_array_equal(one, other)
    assert len(first.source) <= 2000
    check_pair(first)


@pytest.mark.parametrize("options", [{"arms": "shared"}, {"rewards": "labels", "arms": "shared"}])
def test_other_kinds_of_the_synthetic_pair_conform(options):
    check_pair(load("synthetic", tiny=True, **options))


def test_the_real_digits_conform(shared_data):
    check_pair(load("digit"))
