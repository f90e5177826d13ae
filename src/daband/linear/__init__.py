"""Closed-form maths on arrays: ridge statistics, widths, blocked episodes, dual form, transforms. No torch."""

from daband.linear._arm_frequencies import arm_probabilities, calibrated_scale, label_shift
from daband.linear._doubly_robust import RewardModel, RewardSums, fold_numbers
from daband.linear._dual_ridge import DualRidge
from daband.linear._expert_shares import ExpertShares, revealed_predictions
from daband.linear._exploration import Decision, Exploration, UniformDraws, fresh_draws, join_decisions, seeded_draws
from daband.linear._kernels import draw_key, kernels, uniforms
from daband.linear._pca import PCA
from daband.linear._piecewise import Piecewise, PiecewiseStep
from daband.linear._primal_ridge import LARGEST_SQUARE, PrimalRidge, RidgeSums, mixed_scores, ridge_scores
from daband.linear._pseudo_labels import PseudoLabelRegression, count_numbers, fit_pseudo_labels
from daband.linear._reward_moments import RewardMoments
from daband.linear._ridge_head import ArmModel, EpisodeScores, RidgeHead, check_head_memory
from daband.linear._standardise import OutlierWarning, Standardise, StandardiseStep, feature_scale
from daband.linear._toom_cook import TILE, tile_sums, toom_cook
from daband.linear._transforms import (
    Transform,
    TransformStep,
    UnsavedPartWarning,
    as_transform,
    build_transform,
    shift_transform,
    step_from,
    transform_settings,
)

__all__ = [
    "LARGEST_SQUARE", "PCA", "TILE", "ArmModel", "Decision", "DualRidge", "EpisodeScores", "ExpertShares",
    "Exploration", "OutlierWarning", "Piecewise", "PiecewiseStep", "PrimalRidge", "PseudoLabelRegression",
    "RewardModel", "RewardMoments", "RewardSums", "RidgeHead", "RidgeSums", "Standardise", "StandardiseStep",
    "Transform", "TransformStep", "UniformDraws", "UnsavedPartWarning", "arm_probabilities", "as_transform",
    "build_transform", "calibrated_scale", "check_head_memory", "count_numbers", "draw_key", "feature_scale",
    "fit_pseudo_labels", "fold_numbers", "fresh_draws", "join_decisions", "kernels", "label_shift", "mixed_scores",
    "revealed_predictions", "ridge_scores", "seeded_draws", "shift_transform", "step_from", "tile_sums", "toom_cook",
    "transform_settings", "uniforms",
]  # fmt: skip
