"""Policies: one method per file, found by registration, all used in one way."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from daband.policies.budget_pacing import Paced
from daband.policies.incoming_rounds import (
    check_arms,
    check_prior_trust,
    check_propensities,
    check_rewards,
    resolve_weighting,
)
from daband.policies.pair_defaults import default_transform, setting_defaults
from daband.policies.policy import Policy, RewardedDecision, build, load_policy, policies, read_checkpoint, read_notes
from daband.policies.random import Random
from daband.policies.ridge import Constant, LinUCB, RidgePolicy
from daband.policies.trees import Trees

if TYPE_CHECKING:
    from daband.policies.neural import DABand, NeuralLinUCB, adapt_stacked, can_stack, device_named, encode_expected
    from daband.policies.recipes import recipe_for, recipe_names, resolve_recipe

__all__ = [
    "Constant", "DABand", "LinUCB", "NeuralLinUCB",
    "Paced", "Policy", "Random", "RewardedDecision", "RidgePolicy", "Trees",
    "adapt_stacked", "build", "can_stack", "check_arms", "check_prior_trust", "check_propensities",
    "check_rewards", "default_transform", "device_named", "encode_expected", "load_policy", "policies",
    "read_checkpoint", "read_notes", "recipe_for", "recipe_names", "resolve_recipe", "resolve_weighting",
    "setting_defaults",
]  # fmt: skip


_NEED_TORCH = {
    "DABand": "neural", "NeuralLinUCB": "neural", "adapt_stacked": "neural", "can_stack": "neural",
    "device_named": "neural", "encode_expected": "neural", "recipe_for": "recipes", "recipe_names": "recipes",
    "resolve_recipe": "recipes",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds, and the linear policies have no need of it.
    if name in _NEED_TORCH:
        return getattr(importlib.import_module(f"daband.policies.{_NEED_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
