"""Which names are public, read from the packages themselves: every package of daband says so in
``__all__``.

A thing is documented once, under its shortest public name, on the page of the package that it comes
from.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import dataclass
from typing import Any

import daband

__all__ = ["Public", "public_names", "rooms"]

FIRST = {
    "policies": ["Policy", "LogPolicy", "LinUCB", "Constant", "Random", "load_policy"],
    "domains": [
        "load",
        "from_arrays",
        "from_table",
        "from_images",
        "from_log",
        "Columns",
        "Pair",
    ],
    "training": ["train", "evaluate", "continue_on_target", "learn_log", "fit_log", "Run"],
    "logs": ["evaluate_log"],
    "trust": ["choose", "assess", "audit", "Choice", "Assessment", "Audit", "Candidate"],
    "serving": ["export", "load_deployed", "DeployedPolicy"],
    "bench": ["bench", "load_experiment", "Experiment"],
    "neural": ["DABand", "NeuralLinUCB", "Recipe"],
    "checks": ["check_policy", "check_pair"],
}
"""What stands first on its page; the rest follows by name."""
ORDER = [
    "policies",
    "domains",
    "training",
    "logs",
    "trust",
    "serving",
    "service",
    "sklearn",
    "neural",
    "features",
    "linear",
    "bench",
    "checks",
    "errors",
]


@dataclass(frozen=True)
class Public:
    """A public thing: the name to use, the page that has it, and the thing itself."""

    name: str
    room: str
    value: Any

    @property
    def directive(self) -> str:
        """The autodoc directive that documents it."""
        if inspect.isclass(self.value):
            return "autoexception" if issubclass(self.value, BaseException) else "autoclass"
        return "autofunction" if inspect.isroutine(self.value) else "autodata"

    @property
    def summary(self) -> str:
        """The first sentence of its docstring."""
        if self.directive == "autodata":
            return ""
        return " ".join((inspect.getdoc(self.value) or "").split("\n\n")[0].split())


def rooms() -> list[str]:
    """The packages that offer something, assumptions, names and errors, in the order of the
    reference.
    """
    found = {item.name for item in pkgutil.iter_modules(daband.__path__) if item.ispkg} - {"cli"}
    found |= {"errors", "sklearn"}
    offering = {
        name
        for name in found
        if getattr(importlib.import_module(f"daband.{name}"), "__all__", None)
    }
    return [name for name in ORDER if name in offering] + sorted(offering - set(ORDER))


def public_names() -> list[Public]:
    """Every public thing once, by page and then in the page's order."""
    found: dict[int, Public] = {}
    for room in rooms():
        module = importlib.import_module(f"daband.{room}")
        first = FIRST.get(room, [])
        for name in [*first, *sorted(set(module.__all__) - set(first))]:
            if name not in module.__all__:
                continue
            value = getattr(module, name)
            short = next(
                (f"daband.{one}" for one in daband.__all__ if getattr(daband, one) is value), None
            )
            key = (
                id(value)
                if inspect.isclass(value) or inspect.isroutine(value)
                else hash((room, name))
            )
            if key in found and found[key].room != _home(value):
                found[key] = Public(short or f"daband.{room}.{name}", room, value)
            found.setdefault(key, Public(short or f"daband.{room}.{name}", room, value))
    return sorted(found.values(), key=lambda public: rooms().index(public.room))


def _home(value: Any) -> str:
    parts = str(getattr(value, "__module__", "")).split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "daband" else ""
