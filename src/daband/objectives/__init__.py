"""Objectives: one term of the target-regret bound per file."""

from daband.objectives.contract import REVEALS, Batch, Term, TermShape, terms
from daband.objectives.objective import Objective
from daband.objectives.schedule import Weight

__all__ = ["REVEALS", "Batch", "Objective", "Term", "TermShape", "Weight", "terms"]
