"""Check that a policy, a term of the training objective or a pair satisfies the requirements of its
interface.

All policies, terms and pairs of daband pass these checks, and custom ones must pass them as well.
``check_term`` needs torch, and is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from daband.checks._pairs import check_pair
from daband.checks._policies import POLICY_CHECKS, check_policy

if TYPE_CHECKING:
    from daband.neural._checks import check_term

__all__ = ["POLICY_CHECKS", "check_pair", "check_policy", "check_term"]


def __getattr__(name: str) -> Any:
    if name != "check_term":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("daband.neural._checks"), name)
