"""The policies that ``choose`` tries, from the simplest to the most complex."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from daband.domains import Pair
from daband.policies import Policy, policies
from daband.policies.for_pair import default_transform

__all__ = ["Candidate", "default_candidates"]

_PCA_SUFFIX = "-p"
_COMPONENTS = 64
_IMAGE_DIMENSIONS = 3


@dataclass(frozen=True)
class Candidate:
    """A method with settings: ``method`` as on the command line, ``settings`` as keyword arguments of its policy."""

    name: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    components: int = _COMPONENTS
    """Principal components in front of a method whose name ends in "-p"."""

    def __post_init__(self) -> None:
        policies.get(self.method.removesuffix(_PCA_SUFFIX))  # a misspelt name is an error at once

    def build(self, pair: Pair, *, seed: int, device: str = "auto") -> Policy:
        """The policy for a pair."""
        kind = policies.get(self.method.removesuffix(_PCA_SUFFIX))
        settings: dict[str, Any] = {"device": device, **self.settings}
        if self.method.endswith(_PCA_SUFFIX):
            settings["transform"] = default_transform(kind, pair, components=self.components)
        policy: Policy = kind.for_pair(pair, seed=seed, **settings)
        return policy

    @property
    def uses_contexts(self) -> bool:
        """Whether choices depend on contexts."""
        return self.method not in ("constant", "random")


def default_candidates(pair: Pair, *, recipe: str = "default") -> Sequence[Candidate]:
    """The candidates unless the caller has others, the simplest first.

    A constant arm, LinUCB on few and on many principal components and on contexts as they are with two penalties,
    Neural-LinUCB, DABand, and a setting of DABand. For vectors that is DABand without the LinUCB beside its network,
    for images with a larger weight of the discriminator.
    """
    image = len(pair.context_shape) == _IMAGE_DIMENSIONS
    other = (
        Candidate("daband, more alignment", "daband", {"recipe": {"base": recipe, "weights": {"adversarial": 1.0}}})
        if image
        else Candidate(
            "daband, network alone", "daband", {"recipe": {"base": recipe, "learning": {"linear_weight": 0.0}}}
        )
    )
    return (
        # The default alpha of .15 may stay with an arm whose first reward was luck.
        Candidate("constant", "constant", {"alpha": 1.0}),
        Candidate("linucb-p, 16 components", "linucb-p", components=16),
        Candidate("linucb-p", "linucb-p"),
        Candidate("linucb, ridge 10", "linucb", {"ridge": 10.0, "alpha": 0.5}),
        Candidate("linucb", "linucb"),
        Candidate("nlinucb", "nlinucb", {"recipe": recipe}),
        Candidate("daband", "daband", {"recipe": recipe}),
        other,
    )
