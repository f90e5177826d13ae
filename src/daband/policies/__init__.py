"""Policies: one method per file, found by registration, all used in one way."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daband.errors import CheckpointError, DataError, InvalidInput
from daband.linear import Decision, build_transform
from daband.policies.checkpoint import read_checkpoint, read_notes
from daband.policies.constant import Constant
from daband.policies.contract import Policy, policies
from daband.policies.decisions import Played
from daband.policies.linucb import LinUCB
from daband.policies.random import Random
from daband.policies.reward_scale import RewardRange
from daband.table_transform import TableTransform

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


def build(settings: dict[str, Any], *, encoder: Any = None, transform: Any = None) -> Policy:
    """A policy from what ``settings()`` returned, with its registered name under "policy" and its table under "table".

    ``encoder`` is the module where the policy has a custom one, ``transform`` the object where that is of another
    library.
    """
    arguments = dict(settings) if encoder is None else {**settings, "encoder": encoder}
    kind, table = policies.get(arguments.pop("policy")), arguments.pop("table", None)
    arguments["context_shape"] = tuple(arguments["context_shape"])
    if arguments["reward_range"] != "auto":
        arguments["reward_range"] = tuple(arguments["reward_range"])
    if "transform" in arguments:
        arguments["transform"] = build_transform(arguments["transform"], transform)
    policy = kind(**arguments)
    if table is not None:
        policy.table = TableTransform.from_state(table)
    return policy


def load(path: str | Path, *, encoder: Any = None, transform: Any = None, device: str | None = None) -> Policy:
    """The policy that was saved at ``path``; it continues where it stopped, to the last bit.

    A file that is damaged, truncated, of another format or no policy at all is a ``CheckpointError`` that names it. A
    policy with a custom encoder needs the ``torch.nn.Module`` again, as ``encoder``; its weights are in the file. One
    whose transform is an object of another library needs that object, as ``transform``: fitted, unless it offers
    ``state`` and ``restore``. ``device`` is where it computes from now on, by default where it did.

    >>> policy = daband.LinUCB(context_shape=(2,), n_arms=2, seed=0)
    >>> policy.save("policy.safetensors")
    >>> again = daband.load("policy.safetensors")
    >>> again.select([[1.0, 2.0]]).arm.tolist() == policy.select([[1.0, 2.0]]).arm.tolist()
    True
    """
    saved = read_checkpoint(path)
    network = saved.settings.get("recipe", {}).get("encoder", {})
    if encoder is None and network.get("name") == "custom":
        raise InvalidInput(
            f"{path} was saved with a custom encoder ({network['options'].get('module')}), of which a file holds the "
            "weights alone; pass the module: daband.load(path, encoder=module)"
        )
    try:
        if device is not None and "device" in saved.settings:
            saved.settings["device"] = device
        policy = build(saved.settings, encoder=encoder, transform=transform)
        policy.restore(saved.arrays)
    except (InvalidInput, DataError) as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError, AttributeError, MemoryError) as error:
        raise CheckpointError(f"{path} does not hold what its header promises: {error}") from error
    return policy
