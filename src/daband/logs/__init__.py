"""Learn and evaluate from logged rounds: doubly robust scores, advantages, weights of rounds.

Start with ``_off_policy.py`` (``evaluate_log``). ``_doubly_robust.py`` computes scores in numpy,
``_advantages.py`` learns from them, and ``_mean_estimates.py`` has the intervals of means.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daband.logs import weights as weights
    from daband.logs._off_policy import LogEstimate, evaluate_log

__all__ = ["LogEstimate", "evaluate_log"]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: policies use modules that need no domains."""
    if name == "weights":
        return importlib.import_module("daband.logs.weights")
    if name in __all__:
        return getattr(importlib.import_module("daband.logs._off_policy"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
