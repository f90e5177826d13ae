"""Define registries of policies, terms, pairs and encoders.

A registry belongs to a package. The first lookup of a name imports every module of that package,
and each module registers its members with a decorator. So a new policy, term or pair needs only one
new file.

The modules of other packages register with the same decorators. An installed package declares such
a module in its ``pyproject.toml``:

    [project.entry-points."daband.plugins"]
    mine = "my_package.daband_plugin"

The first lookup imports these modules too, so the registered names are available in the library, on
the command line and in the processes it starts.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from daband.errors import InvalidInput, did_you_mean

#: The group of entry points of plugins.
_ENTRY_POINT_GROUP = "daband.plugins"
#: Functions that import packages of daband which register members of packages below them.
neural_importers: list[Callable[[], None]] = []


def import_neural() -> None:
    """Import the packages with neural policies and encoders, if torch is installed."""
    for import_packages in neural_importers:
        import_packages()


@functools.cache
def _import_plugins() -> None:
    """Import the plugins of installed packages."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=_ENTRY_POINT_GROUP):
        try:
            importlib.import_module(entry.module)
        except Exception as error:  # code of another package may raise anything
            raise InvalidInput(
                f"plugin {entry.value!r} cannot be imported: {type(error).__name__}: {error};"
                " repair or uninstall the package that declares it"
            ) from error


def make_unknown_name_error(
    kind: str, name: str, known_names: list[str], *, with_neural: bool
) -> InvalidInput:
    """Return the error for a name that is not registered.

    ``kind`` is the kind of member, e.g. "policy". If ``with_neural`` is True and torch is not
    installed, the message says that some names need torch.
    """
    known_list = ", ".join(known_names) or "none"
    if with_neural and importlib.util.find_spec("torch") is None:
        remedy = f"pip install 'daband[deep]' (known without torch: {known_list})"
        return InvalidInput(f"{kind} {name!r} is unknown or needs torch: {remedy}")
    return InvalidInput(
        f"unknown {kind} {name!r}{did_you_mean(name, known_names)} (known: {known_list})"
    )


Member = TypeVar("Member")


class Registry(Generic[Member]):
    """A mapping from names to members of one kind, e.g.

    ``Registry[type[Policy]]("policy", "daband.policies")``.

    Args:
        kind: the name of this kind of member in errors.
        package: the package whose modules register members.
        with_neural: if True, the first lookup also calls ``import_neural``.
    """

    def __init__(self, kind: str, package: str, *, with_neural: bool = False) -> None:
        self.kind = kind
        self.package = package
        self._with_neural = with_neural
        self._members: dict[str, Member] = {}
        self._is_discovered = False

    def register(self, name: str) -> Callable[[Member], Member]:
        """Return a decorator that registers an object under ``name``."""

        def register_member(member: Member) -> Member:
            self.add(name, member)
            return member

        return register_member

    def add(self, name: str, member: Member) -> None:
        """Register ``member`` under ``name``. Raise an error if another member has this name."""
        registered_member = self._members.get(name)
        if registered_member is not None and registered_member is not member:
            raise InvalidInput(
                f"a {self.kind} named {name!r} is already registered: {registered_member!r}"
            )
        self._members[name] = member

    def names(self) -> list[str]:
        """Return all registered names, sorted."""
        self._discover()
        return sorted(self._members)

    def is_registered(self, name: str) -> bool:
        """Return True if a module that is already imported has registered ``name``.

        No module is imported.
        """
        return name in self._members

    def get(self, name: str) -> Member:
        """Return the member with this name.

        For an unknown name raise an error that suggests the nearest name.
        """
        if not isinstance(name, str):
            raise InvalidInput(f"the name of a {self.kind} must be a string, got {name!r}")
        if name not in self._members:
            self._discover()
        try:
            return self._members[name]
        except KeyError:
            known_names = sorted(self._members)
            raise make_unknown_name_error(
                self.kind, name, known_names, with_neural=self._with_neural
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        self._discover()
        return name in self._members

    def _discover(self) -> None:
        """Import all modules that register members. Do nothing after the first call."""
        if self._is_discovered:
            return
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__, prefix=f"{self.package}."):
            importlib.import_module(module.name)
        self._is_discovered = True  # before plugins, which may use the registry themselves
        if self._with_neural:
            import_neural()
        _import_plugins()


Check = TypeVar("Check", bound=Callable[..., None])


class Checks(list[Callable[..., None]]):
    """An ordered list of checks; each check is a function whose docstring states its rule."""

    def add(self, check: Check) -> Check:
        """Append the check to the list; used as a decorator."""
        self.append(check)
        return check

    def run(self, *arguments: Any) -> None:
        """Call every check with these arguments.

        The first error is raised, with the rule of its check as a note.
        """
        for check in self:
            try:
                check(*arguments)
            except Exception as error:
                rule = (inspect.getdoc(check) or "").partition("\n\n")[0].replace("\n", " ")
                error.add_note(f"daband.checks, {getattr(check, '__name__', check)}: {rule}")
                raise
