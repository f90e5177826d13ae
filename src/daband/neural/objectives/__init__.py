"""Objectives: one term of the target-regret bound per file."""

from daband.neural.objectives._objective import Objective, Weight
from daband.neural.objectives._term import FEEDBACKS, Batch, Term, TermShape, terms

__all__ = ["FEEDBACKS", "Batch", "Objective", "Term", "TermShape", "Weight", "terms"]
