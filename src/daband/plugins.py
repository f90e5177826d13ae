"""Modules of other packages that register policies, pairs, terms or encoders with daband.

An installed package names such a module in its ``pyproject.toml``:

    [project.entry-points."daband.plugins"]
    mine = "my_package.daband_plugin"

``daband --plugin my_package.daband_plugin ...`` does the same for a module that is merely importable. Registries import
plugins when they are first searched, so a name registered by one is known to the library, to the command line and to
the processes that it starts.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from importlib.metadata import entry_points

from daband.errors import InvalidInput

__all__ = ["import_plugins", "name_plugins", "named_plugins"]

_GROUP = "daband.plugins"
_VARIABLE = "DABAND_PLUGINS"
_imported: set[str] = set()


def name_plugins(modules: Iterable[str]) -> None:
    """Import these modules, and let every process that this one starts import them too."""
    asked = [*named_plugins(), *modules]
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


def _import(name: str) -> None:
    if name in _imported:
        return
    try:
        importlib.import_module(name)
    except Exception as error:  # whatever the code of another package may raise
        raise InvalidInput(f"plugin {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    _imported.add(name)
