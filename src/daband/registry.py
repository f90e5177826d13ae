"""Registries that discover their members: a new policy, term or pair is one new file and nothing else.

A registry owns a package. The first look at its names imports every module of that package, and each module registers
what it defines with a decorator. Code outside daband registers with the same decorator; ``daband.plugins`` says how its
modules are found.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from daband.errors import InvalidInput
from daband.plugins import import_plugins
from daband.suggestions import did_you_mean

__all__ = ["Registry"]

Member = TypeVar("Member")


class Registry(Generic[Member]):
    """Named members of one kind, e.g. ``Registry[type[Policy]]("policy", "daband.policies")``."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._members: dict[str, Member] = {}
        self._discovered = False

    def register(self, name: str) -> Callable[[Member], Member]:
        """A decorator that enters what it decorates under ``name``."""

        def enter(member: Member) -> Member:
            self.add(name, member)
            return member

        return enter

    def add(self, name: str, member: Member) -> None:
        """Enter ``member`` under ``name``; a name already taken is an error."""
        known = self._members.get(name)
        if known is not None and known is not member:
            raise InvalidInput(f"a {self.kind} named {name!r} is already registered: {known!r}")
        self._members[name] = member

    @contextmanager
    def temporarily(self, name: str, member: Member) -> Iterator[Member]:
        """Enter ``member`` under ``name`` for the length of a ``with`` block, e.g. a test; a taken name is an error."""
        self._discover()
        if name in self._members:
            raise InvalidInput(f"a {self.kind} named {name!r} is already registered: {self._members[name]!r}")
        self.add(name, member)
        try:
            yield member
        finally:
            del self._members[name]

    def names(self) -> list[str]:
        """Every registered name, sorted."""
        self._discover()
        return sorted(self._members)

    def is_registered(self, name: str) -> bool:
        """Whether a module that was imported already has registered ``name``; nothing is imported to find out."""
        return name in self._members

    def get(self, name: str) -> Member:
        """The member called ``name``; an unknown name is an error that suggests the nearest."""
        if not isinstance(name, str):
            raise InvalidInput(f"a {self.kind} is chosen by its name, got {name!r}")
        if name not in self._members:
            self._discover()
        try:
            return self._members[name]
        except KeyError:
            hint, known = did_you_mean(name, self._members), ", ".join(sorted(self._members)) or "none"
            raise InvalidInput(f"unknown {self.kind} {name!r}{hint} (known: {known})") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        self._discover()
        return name in self._members

    def _discover(self) -> None:
        if self._discovered:
            return
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__, prefix=f"{self.package}."):
            importlib.import_module(module.name)
        self._discovered = True  # before plugins, which may look at the registry themselves
        import_plugins()
