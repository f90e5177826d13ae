"""What can be known of the target without rewards, or with a few: estimated value, shift, support, audit, choice."""

from daband.trust.assess import assess, assess_each
from daband.trust.assessment import ArmAssessment, Assessment, read_assessment
from daband.trust.audit import Audit, answer_audit, audit, read_audit

__all__ = [
    "ArmAssessment",
    "Assessment",
    "Audit",
    "answer_audit",
    "assess",
    "assess_each",
    "audit",
    "read_assessment",
    "read_audit",
]
