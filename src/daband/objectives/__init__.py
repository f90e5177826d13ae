"""Objectives: one term of the target-regret bound per file."""

from daband.objectives.objective import Objective, Weight
from daband.objectives.term import FEEDBACKS, Batch, Term, TermShape, terms

__all__ = ["FEEDBACKS", "Batch", "Objective", "Term", "TermShape", "Weight", "terms"]
