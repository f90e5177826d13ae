"""What can be known of the target without rewards, or with a few: estimated value, shift, support, audit, choice."""

from daband.trust._assess import assess, assess_each
from daband.trust._assessment import ArmAssessment, Assessment, read_assessment
from daband.trust._audit import Audit, answer_audit, audit, read_audit
from daband.trust._choose import Candidate, Choice, choose, default_candidates

__all__ = [
    "ArmAssessment", "Assessment", "Audit", "Candidate", "Choice", "answer_audit", "assess",
    "assess_each", "audit", "choose", "default_candidates", "read_assessment", "read_audit",
]  # fmt: skip
