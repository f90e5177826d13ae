"""Check that a policy or a pair satisfies the requirements of its interface.

All policies and pairs of daband pass these checks, and custom ones must pass them as well.
"""

from daband.checks._pairs import check_pair
from daband.checks._policies import POLICY_CHECKS, check_policy
from daband.checks._worlds import check_keeps_exploring as _check_keeps_exploring  # noqa: F401

__all__ = ["POLICY_CHECKS", "check_pair", "check_policy"]
