"""Compare policies with the incumbent in the target: without target rewards, or with a few."""

from daband.policies._default_members import Candidate, default_candidates
from daband.trust._assess import assess
from daband.trust._assessment import Assessment, read_assessment
from daband.trust._audit import Audit, answer_audit, audit
from daband.trust._choose import Choice, choose

__all__ = [
    "Assessment",
    "Audit",
    "Candidate",
    "Choice",
    "answer_audit",
    "assess",
    "audit",
    "choose",
    "default_candidates",
    "read_assessment",
]
