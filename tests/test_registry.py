import pytest

from daband.domains.registry import pairs
from daband.errors import InvalidInput
from daband.policies import policies
from daband.registry import Registry


def test_members_are_discovered():
    assert {"linucb", "random"} <= set(policies.names())
    assert "synthetic" in pairs


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(InvalidInput, match=r"unknown policy 'linucbb'; did you mean 'linucb'\? \(known: .*random"):
        policies.get("linucbb")


def test_a_name_is_taken_once():
    registry: Registry[object] = Registry("thing", "daband.policies")
    registry.add("one", first := object())
    registry.add("one", first)
    with pytest.raises(InvalidInput, match="already registered"):
        registry.add("one", object())
