"""Closed-form maths on arrays: ridge statistics, confidence widths, blocked episodes, the dual form, PCA. No torch."""

from daband.linear.dual import DualRidge
from daband.linear.head import ArmModel, Decision, Exploration, RidgeHead
from daband.linear.pca import PCA
from daband.linear.primal import PrimalRidge

__all__ = ["PCA", "ArmModel", "Decision", "DualRidge", "Exploration", "PrimalRidge", "RidgeHead"]
