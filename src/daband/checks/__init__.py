"""Conformance checks that any policy, term or pair must pass; public, so that a user's own can use them."""

from daband.checks.pairs import PAIR_CHECKS, check_pair
from daband.checks.policies import POLICY_CHECKS, MakePolicy, check_policy
from daband.checks.terms import TERM_CHECKS, check_term

__all__ = [
    "PAIR_CHECKS",
    "POLICY_CHECKS",
    "TERM_CHECKS",
    "MakePolicy",
    "check_pair",
    "check_policy",
    "check_term",
]
