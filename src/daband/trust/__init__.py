"""What can be known of a policy in the target without rewards there, or with a few."""

from daband.trust.assess import assess, assess_each
from daband.trust.assessment import ArmAssessment, Assessment, read_assessment
from daband.trust.candidates import Candidate, default_candidates
from daband.trust.choose import Choice, choose

__all__ = [
    "ArmAssessment",
    "Assessment",
    "Candidate",
    "Choice",
    "assess",
    "assess_each",
    "choose",
    "default_candidates",
    "read_assessment",
]
