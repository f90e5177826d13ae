"""Default settings of a policy for a pair of domains.

Policies never import domains: this module uses only the attributes of a pair.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from daband._shift import ShiftLike, as_shift
from daband.errors import InvalidInput, did_you_mean
from daband.linear._pca import PCA
from daband.linear._standardise import Standardise

_P = TypeVar("_P")
#: The factor of the bonus of a regression on products of context and arm features.
JOINT_ALPHA = 0.3
#: The largest number of such products; contexts with more numbers are reduced to principal components.
MAX_PRODUCTS = 1024
_OF_THE_PAIR = ("context_shape", "n_arms", "arms", "feedback")
#: Settings that only some policies have; other policies ignore them.
_OF_SOME = ("alpha", "device", "feedback")


def policy_for_pair(kind: type[_P], pair: Any, settings: Mapping[str, Any]) -> _P:
    """Return a policy of class ``kind`` for ``pair``; ``settings`` are keyword arguments of that class."""
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
    arguments["standardise_rewards"] = pair.feedback != "one_hot"  # one-hot rewards are 0 and 1
    arguments["domains"] = getattr(pair, "domains", None)
    catalogue = getattr(pair, "catalogue", None)
    joint = catalogue is not None and "catalogue" in offered and settings.get("catalogue", catalogue) is not None
    if "transform" not in settings:
        components = joint_components(pair.context_shape, catalogue) if joint else None
        arguments["transform"] = default_transform(kind, pair, shift=settings.get("shift"), components=components)
    arguments |= {"catalogue": catalogue, **settings}
    linear = "ridge" in offered and not getattr(kind, "learns_by_gradients", False)
    if joint and "alpha" not in settings:
        arguments["alpha"] = JOINT_ALPHA
    elif linear and isinstance(arguments["transform"], Standardise):
        n_features = arguments["transform"].n_features(tuple(pair.context_shape))
        if "alpha" not in settings:
            arguments["alpha"] = standardised_alpha(n_features)
            arguments.setdefault("ridge", standardised_ridge(n_features))
    policy = kind(**{name: value for name, value in arguments.items() if name in offered})
    if getattr(pair, "table", None) is not None:
        policy.table = pair.table  # type: ignore[attr-defined]
    policy.framing = getattr(pair.target, "framing", None)  # type: ignore[attr-defined]
    policy.arm_names = getattr(pair, "class_names", None)  # type: ignore[attr-defined]
    if "catalogue" not in offered and policy.arms == "disjoint":  # type: ignore[attr-defined]
        policy.catalogue = catalogue  # type: ignore[attr-defined]
    return policy


def joint_components(context_shape: Sequence[int], catalogue: Any) -> int | None:
    """Return the number of principal components of contexts for products with arm features; None if all are used."""
    most = max(1, MAX_PRODUCTS // catalogue.vectors.shape[1] - 2)
    return None if math.prod(context_shape) <= most else most


@functools.cache
def setting_defaults(kind: Any) -> dict[str, Any]:
    """Return the keyword arguments of a class's constructor, with their defaults or ``inspect.Parameter.empty``.

    If a constructor takes ``**kwargs``, the arguments of the next class in the method resolution order are included.
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
    """Return the default ``alpha`` of a linear policy on this many standardised features.

    A context of d standardised features has a bonus of about sqrt(d / n) after n rounds of an arm. So with more
    features a smaller factor is enough: 1 up to 16 features, 0.1 from 51 on. A smaller factor on few features leaves
    arms off the greedy path with so few rounds that the learned policy depends on the seed. On weather-city
    (development half, four seeds) results range from 0.44 to 0.63 with 0.3 and a ridge of 1, and from 0.55 to 0.58 with
    these defaults.
    """
    return min(1.0, max(0.1, (16 / n_features) ** 2))


def standardised_ridge(n_features: int) -> float:
    """Return the ``ridge`` for ``standardised_alpha``: 0.1 up to 16 features, 1 from 51 on."""
    return 0.1 / standardised_alpha(n_features)


def default_transform(kind: type, pair: Any, *, components: int | None = None, shift: ShiftLike = None) -> Any:
    """Return the default transform of a policy for a pair.

    A linear policy gets ``Standardise``, since its bonuses grow with the scale of contexts, unless contexts are images
    (``uint8``), whose scale is known. A network gets it for vectors, unless their style differs: it then normalises its
    input itself, by the statistics of each domain. With ``components`` contexts are reduced to at most this many
    principal components. ``shift`` is the pair's shift, unless another one is given.
    """
    reduced = None if components is None else min(components, math.prod(pair.context_shape))
    images = pair.target.read(np.zeros(1, np.int64)).dtype == np.uint8
    assumed = getattr(pair, "shift", None) if shift is None else as_shift(shift, context_shape=pair.context_shape)
    network = getattr(kind, "learns_by_gradients", False)
    wanted = getattr(kind, "scale_matters", False)
    if network:
        wanted = wanted and len(pair.context_shape) == 1 and assumed is not None and not assumed.aligns
    if wanted and not images:
        columns: list[int] = []
        if assumed is not None:
            columns = np.flatnonzero(assumed.own_statistics(math.prod(pair.context_shape))).tolist()
        return Standardise(components=reduced, by_domain=columns)
    return None if reduced is None else PCA(reduced)
