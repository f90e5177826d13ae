import pytest

from daband.domains._registry import check_data, get_cache_directory, get_data_directory, pairs
from daband.errors import InvalidInput


def test_every_pair_is_listed_and_says_what_it_needs():
    records = {name: pairs.get(name) for name in ("digit", "synthetic", "visda17", "s2rda49")}
    assert {"digit", "synthetic"} == {name for name, entry in records.items() if entry.is_ready}
    for entry in records.values():
        assert entry.about.summary
        assert entry.about.licence
        assert entry.name == "synthetic" or entry.about.citation


def test_every_resource_can_be_got_somehow():
    for name in pairs:
        for resource in pairs.get(name).resources:
            assert resource.licence
            assert resource.instructions


def test_real_files_are_found(shared_data):
    assert None not in dict(check_data("digit")).values()


def test_an_unknown_pair_is_an_error():
    with pytest.raises(InvalidInput, match=r"'digits'.*'digit'"):
        list(check_data("digits"))


def test_directories_follow_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("DABAND_DATA")
    assert get_data_directory() == tmp_path / "cache" / "data"
    monkeypatch.delenv("DABAND_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert get_cache_directory() == tmp_path / "daband"
