import pytest

from daband.errors import InvalidInput
from daband.features._domain_names import DomainNames


def test_one_source_and_one_target_are_the_default():
    names = DomainNames()
    assert names.names == ("source", "target")
    assert [names.index(name) for name in names.names] == [0, 1]
    assert [names.is_target(index) for index in (0, 1)] == [False, True]
    assert names.first_target == 1
    assert len(names) == 2


def test_sources_come_before_targets():
    names = DomainNames(sources=["de", "fr"], targets=["pl", "cz"])
    assert [names.index(name) for name in ("de", "fr", "pl", "cz")] == [0, 1, 2, 3]
    assert [names.is_target(index) for index in range(4)] == [False, False, True, True]
    assert DomainNames(**names.settings()) == names


@pytest.mark.parametrize("name", ["es", None, 0, ["de"]])
def test_an_unknown_name_is_refused_with_the_names_there_are(name):
    with pytest.raises(InvalidInput, match=r"domain .*'de', 'fr' .*'pl', "):
        DomainNames(sources=("de", "fr"), targets=("pl",)).index(name)


@pytest.mark.parametrize(
    "names",
    [
        {"sources": "de"},
        {"sources": ()},
        {"targets": ("",)},
        {"sources": ("a", "b"), "targets": ("a",)},
    ],
)
def test_names_that_name_nothing_are_refused(names):
    with pytest.raises(InvalidInput):
        DomainNames(**names)


def test_one_of_several_targets_must_be_named():
    with pytest.raises(InvalidInput, match=r'domain .*2 .*policy\.deploy\("pl"\)'):
        DomainNames(targets=("pl", "cz")).index("target")
