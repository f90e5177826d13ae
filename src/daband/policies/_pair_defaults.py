"""The settings of a policy that follow from a pair of domains.

A policy never imports a domain: a pair is known here by its attributes alone.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from daband._shift import ShiftLike, as_shift
from daband.errors import InvalidInput, did_you_mean
from daband.linear._pca import PCA
from daband.linear._standardise import Standardise

_P = TypeVar("_P")
_OF_THE_PAIR = ("context_shape", "n_arms", "arms", "feedback")
#: Settings that some policies have no use for; they are dropped there.
_OF_SOME = ("alpha", "device", "feedback")


def policy_for_pair(kind: type[_P], pair: Any, settings: Mapping[str, Any]) -> _P:
    """A policy of class ``kind`` for ``pair``; ``settings`` are keyword arguments of that class."""
    if not all(hasattr(pair, name) for name in (*_OF_THE_PAIR, "target")):
        raise InvalidInput(f"pair must be a daband.domains.Pair, got {type(pair).__name__}")
    offered: dict[str, Any] = setting_defaults(kind)  # type: ignore[arg-type]
    unknown = next((name for name in settings if name not in offered and name not in _OF_SOME), None)
    if unknown is not None:
        free = [name for name in offered if name not in _OF_THE_PAIR]
        hint = did_you_mean(unknown, free)
        raise InvalidInput(f"{kind.__name__} has no setting {unknown!r}{hint} (its settings: {', '.join(free)})")
    arguments = {name: getattr(pair, name) for name in _OF_THE_PAIR}
    arguments["shift"] = getattr(pair, "shift", None)
    arguments["standardise_rewards"] = pair.feedback != "one_hot"  # whose rewards are 0 and 1
    arguments["domains"] = getattr(pair, "domains", None)
    if "transform" not in settings:
        arguments["transform"] = default_transform(kind, pair, shift=settings.get("shift"))
    arguments |= settings
    linear = "ridge" in offered and not getattr(kind, "learns_by_gradients", False)
    if linear and isinstance(arguments["transform"], Standardise):
        n_features = arguments["transform"].n_features(tuple(pair.context_shape))
        if "alpha" not in settings:
            arguments["alpha"] = standardised_alpha(n_features)
            arguments.setdefault("ridge", standardised_ridge(n_features))
    policy = kind(**{name: value for name, value in arguments.items() if name in offered})
    if getattr(pair, "table", None) is not None:
        policy.table = pair.table  # type: ignore[attr-defined]
    policy.framing = getattr(pair.target, "framing", None)  # type: ignore[attr-defined]
    policy.arm_names = getattr(pair, "class_names", None)  # type: ignore[attr-defined]
    return policy


@functools.cache
def setting_defaults(kind: Any) -> dict[str, Any]:
    """The keyword arguments of a class's constructor, with their defaults (``inspect.Parameter.empty`` where none).

    Where a constructor takes ``**kwargs``, those of the next class in the method resolution order belong to it.
    """
    defaults: dict[str, Any] = {}
    for parent in kind.__mro__:
        if "__init__" not in vars(parent) or parent is object:
            continue
        parameters = list(inspect.signature(vars(parent)["__init__"]).parameters.values())[1:]
        named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        defaults = {one.name: one.default for one in parameters if one.kind in named} | defaults
        if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters):
            break
    return defaults


def standardised_alpha(n_features: int) -> float:
    """The ``alpha`` of a linear policy on standardised contexts of so many features, unless the caller gives one.

    A context of d standardised features has a width of about sqrt(d / n) after n rounds of an arm, so that with more
    features less of it is enough: 1 up to 16 of them, .1 from 51 on. Less on few features leaves arms with so few
    rounds off the greedy path that what a policy learns depends on the seed (weather-city of the development half, four
    seeds: .44 to .63 with .3 and a ridge of 1; .55 to .58 so).
    """
    return min(1.0, max(0.1, (16 / n_features) ** 2))


def standardised_ridge(n_features: int) -> float:
    """The ``ridge`` that goes with ``standardised_alpha``: .1 up to 16 features, 1 from 51 on."""
    return 0.1 / standardised_alpha(n_features)


def default_transform(
    kind: type, pair: Any, *, components: int | None = None, shift: ShiftLike = None, align: str | None = None
) -> Any:
    """What stands in front of a policy unless the caller says otherwise.

    A linear policy takes contexts as they are, and its widths grow with their scale: it gets ``Standardise``, unless
    contexts are images (``uint8``), whose scale is known. A network gets it for vectors, unless their style differs:
    then it normalises its input itself, each domain by its own statistics. With ``components`` contexts are reduced to
    so many principal components, or as many as there are; with ``align`` the source is turned towards the target as
    ``Standardise`` says. ``shift`` is that of the pair, unless another is given.
    """
    if align is not None:
        return Standardise(align=align)
    reduced = None if components is None else min(components, math.prod(pair.context_shape))
    images = pair.target.read(np.zeros(1, np.int64)).dtype == np.uint8
    assumed = getattr(pair, "shift", None) if shift is None else as_shift(shift, context_shape=pair.context_shape)
    network = getattr(kind, "learns_by_gradients", False)
    wanted = getattr(kind, "scale_matters", False)
    if network:
        wanted = wanted and len(pair.context_shape) == 1 and assumed is not None and not assumed.aligns
    if wanted and not images:
        places: list[int] = []
        if assumed is not None:
            places = np.flatnonzero(assumed.own_statistics(math.prod(pair.context_shape))).tolist()
        return Standardise(components=reduced, by_domain=places)
    return None if reduced is None else PCA(reduced)
