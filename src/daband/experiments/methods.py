"""Methods as the command line names them: a registered policy, or one with PCA in front ("-p")."""

from __future__ import annotations

import inspect
import math
from typing import Any

from daband.domains import Pair
from daband.errors import InvalidInput
from daband.linear import PCA
from daband.policies import Policy, policies

__all__ = ["build_policy", "method_names"]

_PCA_SUFFIX = "-p"


def method_names() -> list[str]:
    """Every method: each policy, and each policy that learns with PCA in front."""
    names = policies.names()
    return sorted([*names, *(f"{name}{_PCA_SUFFIX}" for name in names if name != "random")])


def build_policy(method: str, pair: Pair, *, seed: int, settings: dict[str, Any], components: int) -> Policy:
    """The policy of a method for a pair. Settings that its class does not know are an error, ``alpha`` excepted.

    ``alpha`` is a setting of every method that explores, so a comparison may give it once for all of them. What a
    reward reveals is the pair's to say, and is passed on to the policies that ask.
    """
    if method not in method_names():
        raise InvalidInput(f"unknown method {method!r} (known: {', '.join(method_names())})")
    with_pca = method.endswith(_PCA_SUFFIX)
    kind = policies.get(method.removesuffix(_PCA_SUFFIX) if with_pca else method)
    known = inspect.signature(kind).parameters
    arguments = {name: value for name, value in settings.items() if name in known or name != "alpha"}
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise InvalidInput(f"method {method!r} has no setting {unknown[0]!r} (its settings: {', '.join(known)})")
    transform = None
    if with_pca:
        transform = PCA(min(components, math.prod(pair.context_shape)))
    shape: dict[str, Any] = {"context_shape": pair.context_shape, "n_arms": pair.n_arms, "arms": pair.arms}
    if "reveal" in known and "reveal" not in arguments:
        arguments["reveal"] = "one_correct_arm" if pair.one_correct_arm else "chosen_arm"
    return kind(**shape, transform=transform, seed=seed, **arguments)
