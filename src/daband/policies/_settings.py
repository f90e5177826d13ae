"""Define the settings that all policies share, and read the settings of a class.

``PolicySettings`` lists and checks the arguments of ``Policy``. A class with further arguments
takes the others as ``**settings``. ``build_signature`` joins both, so that ``help`` and editors show
all of them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from daband.base._arguments import check_finite, check_int, check_one_of
from daband.base._arrays import check_memory
from daband.errors import InvalidInput
from daband.features._domain_names import DomainNames
from daband.features._shift import ShiftLike
from daband.linear._exploration import Exploration
from daband.policies._incoming_rounds import check_seed, check_shape


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """The settings of every policy; ``Policy`` describes them.

    Values are checked and converted when the settings are created.
    """

    context_shape: Sequence[int]
    n_arms: int
    arms: str = "disjoint"
    explore: str = Exploration.rule
    alpha: float = Exploration.alpha
    epsilon: float = 0.0
    gamma: float = Exploration.gamma
    standardise_rewards: bool = True
    transform: Any = None
    shift: ShiftLike = None
    source_worth: float | None = None
    seed: int = 0
    domains: DomainNames | None = None

    def __post_init__(self) -> None:
        check_shape(self.context_shape)
        check_int("n_arms", self.n_arms, minimum=1)
        check_one_of("arms", self.arms, ("disjoint", "shared"))
        check_one_of("standardise_rewards", self.standardise_rewards, (True, False))
        check_seed(self.seed)
        if self.source_worth is not None and check_finite("source_worth", self.source_worth) < 0.0:
            raise InvalidInput(f"source_worth must be a number >= 0, got {self.source_worth!r}")
        n_contexts = self.n_arms if self.arms == "shared" else 1
        round_values = 8 * int(self.n_arms) + math.prod(self.context_shape) * n_contexts
        cause = f"one round of n_arms={self.n_arms} and context_shape={tuple(self.context_shape)}"
        check_memory(8.0 * round_values, cause)


def build_signature(policy_class: type) -> inspect.Signature:
    """Return the arguments of a class's constructor, with those of its bases if it takes
    ``**settings``.
    """
    parameters: dict[str, inspect.Parameter] = {}
    default_settings: dict[str, Any] = {}
    for base in policy_class.__mro__[:-1]:  # without object
        default_settings = {**vars(base).get("default_settings", {}), **default_settings}
        if "__init__" in vars(base):
            own = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
            named = {p.name: p for p in own if p.kind is not inspect.Parameter.VAR_KEYWORD}
            parameters = {**named, **parameters}
            if len(named) == len(own):
                break
    else:
        shared = inspect.signature(PolicySettings).parameters.items()
        parameters = {
            **{
                name: parameter.replace(default=default_settings.get(name, parameter.default))
                for name, parameter in shared
            },
            **parameters,
        }
    return inspect.Signature(list(parameters.values()))


def get_setting_defaults(policy_class: Any) -> dict[str, Any]:
    """Return the keyword arguments of a class's constructor, with their defaults or
    ``inspect.Parameter.empty``.
    """
    parameters = inspect.signature(policy_class).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters}
