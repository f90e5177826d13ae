"""Provide the registry of policies: ``@policies.register("mine")`` registers a class by name."""

from __future__ import annotations

from typing import Any

from daband.base._registry import Registry


class _PolicyRegistry(Registry[Any]):
    """A registry of policy classes that sets the attribute ``name`` of each class."""

    def add(self, name: str, member: Any) -> None:
        super().add(name, member)
        member.name = name


#: The policy classes by name.
policies: Registry[Any] = _PolicyRegistry("policy", "daband.policies", with_neural=True)
