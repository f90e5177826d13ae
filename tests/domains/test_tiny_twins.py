"""Registered pairs pass the public checks: tiny versions without any file, the others if their data
are there.
"""

import numpy as np
import pytest

from daband.domains._registry import load, pairs
from daband.errors import InvalidInput
from tests.leaks import check_pair


@pytest.mark.parametrize("name", ["digit", "synthetic", "warfarin", "warfarin/asian-black"])
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


def test_a_pair_that_reads_files_has_no_tiny_version():
    with pytest.raises(InvalidInput, match="pair 'amazon' has no option 'tiny'"):
        load("amazon", tiny=True)


@pytest.mark.parametrize("options", [{"arms": "shared"}, {"rewards": "labels", "arms": "shared"}])
def test_other_kinds_of_the_synthetic_pair_conform(options):
    check_pair(load("synthetic", tiny=True, **options))


#: The first pair of every family with real data that tests may have.
REAL = {name.partition("/")[0]: name for name in reversed(pairs.names())}


@pytest.mark.parametrize(
    "name",
    [
        name
        for family, name in REAL.items()
        if family not in ("synthetic", "visda17", "s2rda49", "emoji")
    ],
)
def test_the_real_pairs_conform(shared_data, name):
    check_pair(load(name))


@pytest.mark.parametrize("name", ["digit", "warfarin"])
def test_passes_is_passed_on(name):
    pair = load(name, tiny=True, passes=3)
    assert pair.source.rounds_available == 3 * len(pair.source)
    assert pair.target.rounds_available == 3 * len(pair.target)


@pytest.mark.parametrize(
    ("family", "count"),
    [
        ("amazon", 12),
        ("emoji", 6),
        ("handwritten", 6),
        ("office_caltech", 12),
        ("warfarin", 6),
        ("office31_features", 6),
        ("sat12", 2),
    ],
)
def test_ordered_pairs_are_those_of_the_family(family, count):
    ordered = [name for name in pairs if name.startswith(f"{family}/")]
    assert len(ordered) == count
    for name in ordered:
        source, _, target = name.partition("/")[2].partition("-")
        entry = pairs.get(name)
        assert {"passes", "target_passes", "source_test"} <= set(entry.list_options())
        assert f"{source} to {target}" in entry.about.summary
        if family == "warfarin":
            named = load(name, tiny=True)
            asked = load(family, tiny=True, source=source, target=target)
            assert named.name == asked.name == name
            np.testing.assert_array_equal(
                named.source.batch(0, 99, seed=0), asked.source.batch(0, 99, seed=0)
            )
