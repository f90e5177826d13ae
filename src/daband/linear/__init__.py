"""Closed-form maths on arrays: ridge statistics, widths, blocked episodes, dual form, transforms. No torch."""

from daband.linear.dual import DualRidge
from daband.linear.exploration import Decision, Exploration
from daband.linear.head import ArmModel, RidgeHead
from daband.linear.mixture import EpisodeScores, HeadMixture
from daband.linear.pca import PCA
from daband.linear.primal import PrimalRidge
from daband.linear.ridge_sums import RidgeSums
from daband.linear.standardise import OutlierWarning, Standardise
from daband.linear.transforms import (
    Transform,
    UnsavedPartWarning,
    apply_transform,
    as_transform,
    build_transform,
    frozen_step,
    shift_transform,
    transform_settings,
)

__all__ = [
    "PCA",
    "ArmModel",
    "Decision",
    "DualRidge",
    "EpisodeScores",
    "Exploration",
    "HeadMixture",
    "OutlierWarning",
    "PrimalRidge",
    "RidgeHead",
    "RidgeSums",
    "Standardise",
    "Transform",
    "UnsavedPartWarning",
    "apply_transform",
    "as_transform",
    "build_transform",
    "frozen_step",
    "shift_transform",
    "transform_settings",
]
