"""Conformance checks that every policy, term, encoder or pair must pass, including custom ones.

``check_encoder`` and ``check_term`` need torch, and are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from daband.checks._pairs import check_pair
from daband.checks._policies import POLICY_CHECKS, check_policy

if TYPE_CHECKING:
    from daband.neural._checks import check_encoder, check_term

__all__ = ["POLICY_CHECKS", "check_encoder", "check_pair", "check_policy", "check_term"]

_NEURAL = ("ENCODER_CHECKS", "TERM_CHECKS", "check_encoder", "check_term")


def __getattr__(name: str) -> Any:
    if name not in _NEURAL:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("daband.neural._checks"), name)
