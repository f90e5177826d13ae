"""Modules of other packages that register policies, pairs, terms or encoders with daband.

An installed package names such a module in its ``pyproject.toml``:

    [project.entry-points."daband.plugins"]
    mine = "my_package.daband_plugin"

``daband --plugin my_package.daband_plugin ...`` does the same for a module that is merely importable, from the current
folder as well, and ``--plugin path/to/mine.py`` for a file. Registries import plugins when they are first searched, so
a name registered by one is known to the library, to the command line and to the processes that it starts.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path

from daband.errors import InvalidInput

__all__ = ["import_plugins", "name_plugins", "named_plugins"]

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
    if asked:
        os.environ[_VARIABLE] = ",".join(dict.fromkeys(asked))


def import_plugins() -> None:
    """Import the plugins of installed packages and those that ``name_plugins`` named, each once."""
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
