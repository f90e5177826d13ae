"""Policies: one method per file, found by registration, all used in one way."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daband.errors import CheckpointError
from daband.linear import PCA, Decision
from daband.policies.checkpoint import read_checkpoint, read_notes
from daband.policies.constant import Constant
from daband.policies.contract import Policy, policies
from daband.policies.decisions import Played
from daband.policies.linucb import LinUCB
from daband.policies.random import Random
from daband.policies.reward_scale import RewardRange

if TYPE_CHECKING:
    from daband.learning.settings import Recipe
    from daband.policies.daband import DABand
    from daband.policies.neural_linucb import NeuralLinUCB
    from daband.policies.recipes import recipe_for, recipe_names

__all__ = [
    "Constant",
    "DABand",
    "Decision",
    "LinUCB",
    "NeuralLinUCB",
    "Played",
    "Policy",
    "Random",
    "Recipe",
    "RewardRange",
    "build",
    "load",
    "policies",
    "read_notes",
    "recipe_for",
    "recipe_names",
]


_NEED_TORCH = {
    "DABand": "daband",
    "NeuralLinUCB": "neural_linucb",
    "Recipe": "recipes",
    "recipe_for": "recipes",
    "recipe_names": "recipes",
}


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds, and the linear policies have no need of it.
    if name in _NEED_TORCH:
        return getattr(importlib.import_module(f"daband.policies.{_NEED_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def build(settings: dict[str, Any]) -> Policy:
    """A policy from what ``settings()`` returned, with its registered name under "policy"."""
    arguments = dict(settings)
    kind = policies.get(arguments.pop("policy"))
    arguments["context_shape"] = tuple(arguments["context_shape"])
    if arguments["reward_range"] != "auto":
        arguments["reward_range"] = tuple(arguments["reward_range"])
    if arguments.get("transform") is not None:
        arguments["transform"] = PCA(**arguments["transform"])
    return kind(**arguments)


def load(path: str | Path) -> Policy:
    """The policy that was saved at ``path``; it goes on where it stopped, to the last bit."""
    settings, arrays = read_checkpoint(path)
    try:
        policy = build(settings)
        policy.restore(arrays)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not hold what its header promises: {error}") from error
    return policy
