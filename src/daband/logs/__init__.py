"""Learn and evaluate from logged rounds: doubly robust scores and advantages.

Start with ``_scores.py``, which computes the scores that all others use. ``_off_policy.py``
(``evaluate_log``) estimates the value of a policy from them, and ``_advantages.py`` learns a policy.
``_target_mix.py`` weights rounds for the target's contexts,
``_experiments.py`` has the movement of effects between domains, ``_mean_estimates.py`` has the
intervals of means, and ``_check_log.py`` finds mistakes in a log. The advantage of a
policy over an incumbent is estimated in ``trust/_assess.py``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daband.logs._check_log import LogCheck, check_log
    from daband.logs._off_policy import LogEstimate, evaluate_log

__all__ = ["LogCheck", "LogEstimate", "check_log", "evaluate_log"]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: policies use modules that need no domains."""
    if name in __all__:
        module_name = "_check_log" if name in ("LogCheck", "check_log") else "_off_policy"
        return getattr(importlib.import_module(f"daband.logs.{module_name}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
