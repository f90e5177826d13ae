"""What ``choose`` chooses from: a name, a method, and settings other than its defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from daband.domains import Pair
from daband.policies import Policy, default_transform, policies, setting_defaults

__all__ = ["Candidate", "default_candidates"]

_PCA_SUFFIX = "-p"
_COMPONENTS = 64
_IMAGE_DIMENSIONS = 3


@dataclass(frozen=True)
class Candidate:
    """A policy to be trained: ``method`` as on the command line, ``settings`` as keyword arguments of its policy."""

    name: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    components: int = _COMPONENTS
    """Principal components in front of a method whose name ends in "-p"."""
    preferred: bool = False
    """Whether this one is chosen as long as no target reward says otherwise."""

    def __post_init__(self) -> None:
        policies.get(self.method.removesuffix(_PCA_SUFFIX))  # a misspelt name is an error at once

    def build(self, pair: Pair, *, seed: int, device: str = "auto") -> Policy:
        """The policy for a pair."""
        kind = policies.get(self.method.removesuffix(_PCA_SUFFIX))
        settings: dict[str, Any] = {"device": device, **self.settings}
        if self.method.endswith(_PCA_SUFFIX):
            settings["transform"] = default_transform(
                kind, pair, components=self.components, shift=self.settings.get("shift")
            )
        policy: Policy = kind.for_pair(pair, seed=seed, **settings)
        return policy

    @property
    def uses_contexts(self) -> bool:
        """Whether choices depend on contexts."""
        return self.method not in ("constant", "random")


def default_candidates(pair: Pair, *, recipe: str = "default") -> Sequence[Candidate]:
    """The candidates unless the caller has others, the simplest first: methods times what the new domain may mean.

    A constant arm; LinUCB, gradient-boosted trees and DABand as the pair's ``shift`` says. Where the user did not state
    it, DABand also with each domain's own statistics and with alignment, and LinUCB with own statistics: only rewards
    of the target tell which of them is right.
    """
    image = len(pair.context_shape) == _IMAGE_DIMENSIONS
    found = [Candidate("constant", "constant")]
    if image:
        found += [
            Candidate("linucb-p", "linucb-p"),
            Candidate("nlinucb", "nlinucb", {"recipe": recipe}),
            Candidate("daband", "daband", {"recipe": recipe}, preferred=True),
        ]
        return found
    found.append(Candidate("linucb", "linucb"))
    if "trees" in policies.names():
        found.append(Candidate("trees", "trees"))
    found.append(Candidate("daband", "daband", {"recipe": recipe}, preferred=True))
    if not pair.shift.stated and "shift" in setting_defaults(policies.get("daband")):
        found += [
            Candidate("linucb, other units", "linucb", {"shift": "units"}),
            Candidate("daband, other units", "daband", {"recipe": recipe, "shift": "units"}),
            Candidate("daband, other style", "daband", {"recipe": recipe, "shift": "style"}),
        ]
    return found
