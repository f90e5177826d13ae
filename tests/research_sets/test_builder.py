"""Research sets pass the public checks, and ordered pairs are registered with common options."""

import numpy as np
import pytest
from research_sets.builder import PairData, declare, load_catalogue

from daband.domains import load
from daband.domains._registry import PairEntry, check_data, pairs
from daband.errors import InvalidInput
from tests.leaks import check_pair


@pytest.mark.parametrize("name", ["warfarin", "warfarin/asian-black"])
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
    with pytest.raises(InvalidInput, match=r"'amazon' .*'tiny'"):
        load("amazon", tiny=True)


#: The first pair of every family with real data that tests may have.
REAL = {name.partition("/")[0]: name for name in reversed(pairs.names()) if "/" in name}


@pytest.mark.parametrize(
    "name",
    [name for family, name in REAL.items() if family != "emoji"],
)
def test_the_real_pairs_conform(shared_data, name):
    check_pair(load(name))


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
        assert {"shift", "source_test"} <= set(entry.list_options())
        assert f"{source} to {target}" in entry.about.summary
        if family == "warfarin":
            named = load(name, tiny=True)
            asked = load(family, tiny=True, source=source, target=target)
            assert named.name == asked.name == name
            np.testing.assert_array_equal(
                named.source.batch(0, 99, seed=0), asked.source.batch(0, 99, seed=0)
            )


def test_a_declared_pair_has_the_options_of_its_reader(monkeypatch):
    x = np.zeros((8, 2))

    def read(*, labels=2):
        y = np.arange(8) % labels
        return PairData({"source": (x, y), "target": x, "target_test": (x, y)})

    monkeypatch.setitem(
        load_catalogue(), "declared here", {"summary": "of a test", "class_names": ["a", "b", "c"]}
    )
    declare("declared here", read=read)
    try:
        assert len(load("declared here", labels=3, source_test=None).source) == 8
        assert isinstance(pairs.get("declared here"), PairEntry)
        assert load("declared here").n_arms == 3
    finally:
        del pairs._members["declared here"]


@pytest.mark.parametrize(
    "name",
    ["handwritten", "signs", "amazon", "office_caltech", "warfarin", "natural_tables", "sat12"],
)
def test_real_files_are_found(shared_data, name):
    assert None not in dict(check_data(name)).values()
    assert pairs.get(name).is_ready


def test_one_ordered_pair_needs_only_its_own_files(places):
    (places / "amazon_reviews_400").mkdir(parents=True)
    for domain in ("books", "dvd"):
        (places / f"amazon_reviews_400/{domain}_400.mat").write_bytes(b"x")
    states = {name: "ready" if pairs.get(name).is_ready else "missing" for name in pairs.names()}
    assert states["amazon/books-dvd"] == "ready"
    assert states["amazon/books-elec"] == states["amazon"] == "missing"
