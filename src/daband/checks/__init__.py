"""Conformance checks that every policy, term, encoder or pair must pass, including custom ones.

``check_encoder`` and ``check_term`` need torch, and are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from daband.checks._pairs import check_pair
from daband.checks._policies import POLICY_CHECKS, check_policy

if TYPE_CHECKING:
    from daband.neural._encoder_checks import check_encoder
    from daband.neural._term_checks import check_term

__all__ = ["POLICY_CHECKS", "check_encoder", "check_pair", "check_policy", "check_term"]

_MODULES = {
    "ENCODER_CHECKS": "_encoder_checks", "check_encoder": "_encoder_checks",
    "TERM_CHECKS": "_term_checks", "check_term": "_term_checks",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"daband.neural.{_MODULES[name]}"), name)
