"""How much a term of the objective counts, and how that changes while training goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from daband.errors import InvalidInput

__all__ = ["Weight"]

_SHAPES = ("constant", "linear", "sigmoid", "step")


@dataclass(frozen=True)
class Weight:
    """A weight with its schedule over gradient steps.

    ``shape`` "constant" is ``value`` from ``start`` on; "linear" grows from 0 to ``value`` over ``steps`` steps after
    ``start``; "sigmoid" does so as the ramp of domain-adversarial training does, ``2 / (1 + exp(-10 p)) - 1``; "step"
    is another word for a constant that starts late. Before ``start`` the weight is 0.

    A ``value`` of 0 removes the term: nothing of it is computed, and no random number is drawn for it.
    """

    value: float = 0.0
    shape: str = "constant"
    start: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise InvalidInput(f"a weight must be a finite number >= 0, got {self.value}")
        if self.shape not in _SHAPES:
            raise InvalidInput(f"the shape of a weight must be one of {', '.join(_SHAPES)}, got {self.shape!r}")
        if self.start < 0 or self.steps < 0:
            raise InvalidInput(f"start and steps of a weight must be >= 0, got {self.start} and {self.steps}")

    def __bool__(self) -> bool:
        return self.value > 0

    def at(self, step: int) -> float:
        """The weight at gradient step ``step``."""
        if step < self.start:
            return 0.0
        if self.steps == 0 or self.shape in ("constant", "step"):
            return self.value
        progress = min(1.0, (step - self.start) / self.steps)
        if self.shape == "sigmoid":
            progress = 2 / (1 + math.exp(-10 * progress)) - 1
        return self.value * progress
