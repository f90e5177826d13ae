"""Conformance checks that any policy, term, encoder or pair must pass; public, for a user's own too."""

from daband.checks._encoders import ENCODER_CHECKS, check_encoder
from daband.checks._pairs import PAIR_CHECKS, check_pair
from daband.checks._policies import POLICY_CHECKS, MakePolicy, check_policy
from daband.checks._terms import TERM_CHECKS, check_term

__all__ = [
    "ENCODER_CHECKS", "PAIR_CHECKS", "POLICY_CHECKS", "TERM_CHECKS", "MakePolicy", "check_encoder",
    "check_pair", "check_policy", "check_term",
]  # fmt: skip
