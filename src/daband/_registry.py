"""Define registries of policies, terms, pairs and encoders, and import plugins that add to them.

A registry belongs to a package. The first lookup of a name imports every module of that package,
and each module registers its members with a decorator. So a new policy, term or pair needs only one
new file. Plugins outside daband register with the same decorators.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from daband.errors import InvalidInput, did_you_mean

# Plugins: modules of other packages that register policies, pairs, terms or encoders with daband.
#
# An installed package declares such a module in its ``pyproject.toml``:
#
#     [project.entry-points."daband.plugins"]
#     mine = "my_package.daband_plugin"
#
# ``daband --plugin my_package.daband_plugin ...`` does the same for a module that is only
# importable, also from the current folder, and ``--plugin path/to/mine.py`` for a file. Registries
# import plugins on their first lookup, so the registered names are available in the library, on the
# command line and in the processes it starts.


#: The group of entry points of plugins.
_ENTRY_POINT_GROUP = "daband.plugins"
#: The environment variable with the plugins of child processes.
_PLUGINS_VARIABLE = "DABAND_PLUGINS"
#: The names of the plugins that were imported.
_imported_plugins: set[str] = set()


def add_plugins(modules: Iterable[str]) -> None:
    """Import these modules, here and in every process that this process starts.

    A module is given by its import name, which may be in the current folder, or by the path of its
    file.
    """
    names = [
        *get_plugin_names(),
        *(str(Path(name).resolve()) if _is_file_path(name) else name for name in modules),
    ]
    if names:
        _add_to_import_path(Path.cwd())  # `python` searches there, scripts installed by pip do not
        for name in names:
            _import_plugin(name)
        os.environ[_PLUGINS_VARIABLE] = ",".join(dict.fromkeys(names))


def import_plugins() -> None:
    """Import the plugins of installed packages, and those given to ``add_plugins``, each once."""
    installed_names = [
        entry.value.partition(":")[0] for entry in entry_points(group=_ENTRY_POINT_GROUP)
    ]
    for name in [*installed_names, *get_plugin_names()]:
        _import_plugin(name)


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


def get_plugin_names() -> list[str]:
    """Return the plugins given by ``--plugin`` or DABAND_PLUGINS: import names, and paths
    of files.
    """
    return [
        name.strip() for name in os.environ.get(_PLUGINS_VARIABLE, "").split(",") if name.strip()
    ]


def _is_file_path(name: str) -> bool:
    """Return True if ``name`` is the path of a file, not the import name of a module."""
    return name.endswith(".py")


def _add_to_import_path(folder: Path) -> None:
    """Append a folder to the import path. Installed modules come first."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _import_plugin(name: str) -> None:
    """Import a plugin by its import name or the path of its file.

    Do nothing if it is already imported.
    """
    if name in _imported_plugins:
        return
    if _is_file_path(name) and not Path(name).is_file():
        raise InvalidInput(f"plugin {name!r} cannot be imported: this file does not exist")
    try:
        if _is_file_path(name):
            _import_file(Path(name))
        else:
            importlib.import_module(name)
    except Exception as error:  # code of another package may raise anything
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
            hint = (
                f"; it is neither installed nor in {Path.cwd()}. For a file, give its path:"
                " --plugin path/to/mine.py"
            )
        raise InvalidInput(
            f"plugin {name!r} cannot be imported: {type(error).__name__}: {error}{hint}"
        ) from error
    _imported_plugins.add(name)


def _import_file(path: Path) -> None:
    """Import a file as a module.

    It is named after the file, or differently if that name is already imported.
    """
    _add_to_import_path(path.parent)  # for the modules next to it
    module_name = path.stem if path.stem not in sys.modules else f"daband_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look modules up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise


Member = TypeVar("Member")


class Registry(Generic[Member]):
    """A mapping from names to members of one kind, e.g.

    ``Registry[type[Policy]]("policy", "daband.policies")``.

    Args:
        kind: the name of this kind of member in errors.
        package: the package whose modules register members.
        with_neural: if True, the first lookup also imports ``daband.PLUGINS``, if torch is
            installed.
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
        if self._with_neural and importlib.util.find_spec("torch"):
            for name in sys.modules["daband"].PLUGINS:
                _import_plugin(name)
        import_plugins()


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
