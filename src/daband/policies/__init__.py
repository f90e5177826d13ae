"""Policies: one method per file, found by registration, all used in one way."""

from daband.policies._incoming_rounds import (
    check_arms,
    check_prior_trust,
    check_propensities,
    check_rewards,
    resolve_weighting,
)
from daband.policies._pair_defaults import default_transform, setting_defaults
from daband.policies._policy import Policy, RewardedDecision, build, load_policy, policies, read_checkpoint, read_notes
from daband.policies._random import Random
from daband.policies._ridge import Constant, LinUCB, RidgePolicy
from daband.policies._trees import Trees

__all__ = [
    "Constant", "LinUCB", "Policy", "Random", "RewardedDecision", "RidgePolicy", "Trees", "build",
    "check_arms", "check_prior_trust", "check_propensities", "check_rewards", "default_transform", "load_policy",
    "policies", "read_checkpoint", "read_notes", "resolve_weighting", "setting_defaults",
]  # fmt: skip
