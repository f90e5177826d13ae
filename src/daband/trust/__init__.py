"""What can be known of a policy in the target without rewards there, or with a few."""

from daband.trust.assess import assess, assess_each
from daband.trust.assessment import ArmAssessment, Assessment, read_assessment

__all__ = ["ArmAssessment", "Assessment", "assess", "assess_each", "read_assessment"]
