"""Conformance checks that any policy, term or pair must pass; public, so that a user's own can use them."""

from daband.checks.policies import POLICY_CHECKS, MakePolicy, check_policy

__all__ = ["POLICY_CHECKS", "MakePolicy", "check_policy"]
