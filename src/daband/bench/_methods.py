"""Build methods from their command-line names.

A method has the name of its policy, such as "linucb". With the suffix "-p", the policy uses
principal components ("linucb-p").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daband.base._registry import make_unknown_name_error
from daband.domains._contract import Pair
from daband.errors import InvalidInput, did_you_mean
from daband.policies._default_members import PCA_SUFFIX, Candidate
from daband.policies._policy import Policy
from daband.policies._registered import policies
from daband.policies._settings import get_setting_defaults

#: Methods whose policies ignore contexts, so that PCA has no effect on them.
CONTEXT_FREE_METHODS = ("constant", "random")
#: Policy arguments that are set by the pair, the method's name and the run's seed.
_NON_SETTING_ARGUMENTS = ("context_shape", "n_arms", "arms", "transform", "seed")


def list_methods() -> list[str]:
    """Return the sorted names of all methods: each policy, and with the suffix "-p" each policy
    that uses contexts.
    """
    names = policies.names()
    pca_names = [f"{name}{PCA_SUFFIX}" for name in names if name not in CONTEXT_FREE_METHODS]
    return sorted([*names, *pca_names])


def check_method(method: str) -> str:
    """Return the name of the method.

    If there is no such method, raise an error that suggests the nearest name.
    """
    # Listing all names imports every policy and torch, which a comparison of linear methods does
    # not need.
    policy_name = method.removesuffix(PCA_SUFFIX)
    if not policies.is_registered(policy_name) or (
        policy_name != method and policy_name in CONTEXT_FREE_METHODS
    ):
        known_names = list_methods()
        if method not in known_names:
            raise make_unknown_name_error("method", method, known_names, with_neural=True)
    return method


def check_policy_arguments(method: str, settings: Mapping[str, Any]) -> None:
    """Raise an error if a method's policy does not have one of these settings.

    ``context_shape``, ``n_arms``, ``arms``, ``transform`` and ``seed`` are not settings, because
    the pair, the method's name and the run determine them.
    """
    setting_names = list_settings(method)
    unknown_names = sorted(set(settings) - set(setting_names))
    if unknown_names:
        hint = did_you_mean(unknown_names[0], setting_names)
        known = ", ".join(setting_names)
        raise InvalidInput(
            f"method {method!r} has no setting {unknown_names[0]!r}{hint} (it has {known})"
        )


def build_policy(
    method: str, pair: Pair, *, seed: int, settings: Mapping[str, Any], n_components: int
) -> Policy:
    """Return the untrained policy of a method for a pair.

    ``Policy.for_pair`` chooses the arguments that are not in ``settings``. ``n_components`` is the
    number of principal components if the method's name ends in "-p".
    """
    check_policy_arguments(check_method(method), settings)
    return Candidate(method, method, dict(settings), n_components).build(pair, seed=seed)


def list_settings(method: str) -> list[str]:
    """Return the names of the policy arguments that a user may set: all that the run does not set
    itself.
    """
    policy_class = policies.get(method.removesuffix(PCA_SUFFIX))
    return [
        name for name in get_setting_defaults(policy_class) if name not in _NON_SETTING_ARGUMENTS
    ]
