"""Closed-form maths on arrays: ridge statistics, confidence bonuses, blocked episodes, dual form, transforms."""

from daband.linear._exploration import Decision, Exploration
from daband.linear._pca import PCA
from daband.linear._piecewise import Piecewise
from daband.linear._standardise import OutlierWarning, Standardise

__all__ = ["PCA", "Decision", "Exploration", "OutlierWarning", "Piecewise", "Standardise"]
