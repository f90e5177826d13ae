"""Objectives: one term of the target-regret bound per file."""

from daband.objectives.contract import FEEDBACKS, Batch, Term, TermShape, terms
from daband.objectives.objective import Objective, Weight

__all__ = ["FEEDBACKS", "Batch", "Objective", "Term", "TermShape", "Weight", "terms"]
