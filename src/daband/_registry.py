"""Registries that discover their members: a new policy, term or pair is one new file and nothing else. And checks.

A registry owns a package. The first look at its names imports every module of that package, and each module registers
what it defines with a decorator. Code outside daband registers with the same decorator, from plugins.
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

# Modules of other packages that register policies, pairs, terms or encoders with daband.
#
# An installed package names such a module in its ``pyproject.toml``:
#
#     [project.entry-points."daband.plugins"]
#     mine = "my_package.daband_plugin"
#
# ``daband --plugin my_package.daband_plugin ...`` does the same for a module that is merely importable, from the
# current folder as well, and ``--plugin path/to/mine.py`` for a file. Registries import plugins when they are first
# searched, so a name registered by one is known to the library, to the command line and to the processes it starts.


_GROUP = "daband.plugins"
_VARIABLE = "DABAND_PLUGINS"
_imported: set[str] = set()


def name_plugins(modules: Iterable[str]) -> None:
    """Import these modules, and let every process that this one starts import them too.

    A module is named as in an import statement, also one of the current folder, or by the path of its file.
    """
    asked = [*named_plugins(), *(str(Path(name).resolve()) if _is_file(name) else name for name in modules)]
    if asked:
        _search(Path.cwd())  # a script that pip installed does not look there, `python` does
        for name in asked:
            _import(name)
        os.environ[_VARIABLE] = ",".join(dict.fromkeys(asked))


def import_plugins() -> None:
    """Import the plugins of installed packages, and those that ``name_plugins`` named, each once."""
    for name in [*(entry.value.partition(":")[0] for entry in entry_points(group=_GROUP)), *named_plugins()]:
        _import(name)


def named_plugins() -> list[str]:
    """The modules that ``--plugin`` or DABAND_PLUGINS names: what a process on another machine must be told."""
    return [name.strip() for name in os.environ.get(_VARIABLE, "").split(",") if name.strip()]


def _is_file(name: str) -> bool:
    return name.endswith(".py")


def _search(folder: Path) -> None:
    """Let imports look into a folder after everything else, so that it hides no installed module."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _import(name: str) -> None:
    if name in _imported:
        return
    if _is_file(name) and not Path(name).is_file():
        raise InvalidInput(f"plugin {name!r} cannot be imported: there is no such file")
    try:
        if _is_file(name):
            _import_file(Path(name))
        else:
            importlib.import_module(name)
    except Exception as error:  # whatever the code of another package may raise
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
            hint = f"; it is neither installed nor in {Path.cwd()}. A file goes by its path: --plugin path/to/mine.py"
        raise InvalidInput(f"plugin {name!r} cannot be imported: {type(error).__name__}: {error}{hint}") from error
    _imported.add(name)


def _import_file(path: Path) -> None:
    """Import the file as a module of its own name, or of another where a module of that name is imported already."""
    _search(path.parent)  # for the modules beside it
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
    """Named members of one kind, e.g. ``Registry[type[Policy]]("policy", "daband.policies")``.

    Args:
        kind: what a member is called in errors.
        package: the package whose modules register members.
        with_neural: if torch is installed, import ``daband.PLUGINS`` too. Other registries import no torch.
    """

    def __init__(self, kind: str, package: str, *, with_neural: bool = False) -> None:
        self.kind = kind
        self.package = package
        self._with_neural = with_neural
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
        present = self._members.get(name)
        if present is not None and present is not member:
            raise InvalidInput(f"a {self.kind} named {name!r} is already registered: {present!r}")
        self._members[name] = member

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
            hint, names = did_you_mean(name, self._members), ", ".join(sorted(self._members)) or "none"
            torch = "" if importlib.util.find_spec("torch") else "; neural ones need torch: pip install 'daband[deep]'"
            raise InvalidInput(f"unknown {self.kind} {name!r}{hint} (known: {names}){torch}") from None

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
        if self._with_neural and importlib.util.find_spec("torch"):
            for name in sys.modules["daband"].PLUGINS:
                _import(name)
        import_plugins()


CheckT = TypeVar("CheckT", bound=Callable[..., None])


class Checks(list[Callable[..., None]]):
    """Checks in their order; each is a function whose docstring is its rule."""

    def add(self, check: CheckT) -> CheckT:
        """A decorator: the check joins the list."""
        self.append(check)
        return check

    def run(self, *what: Any) -> None:
        """Call every check with ``what``; the error of the first that fails carries the check's rule as a note."""
        for check in self:
            try:
                check(*what)
            except Exception as error:
                rule = (inspect.getdoc(check) or "").partition("\n\n")[0].replace("\n", " ")
                error.add_note(f"daband.checks, {getattr(check, '__name__', check)}: {rule}")
                raise
