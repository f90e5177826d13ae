"""What can be known of the target without rewards, or with a few: estimated value, shift, support, audit, choice."""

from daband.trust.audit import Audit, answer_audit, audit, read_audit

__all__ = ["Audit", "answer_audit", "audit", "read_audit"]
