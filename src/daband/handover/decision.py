"""What a deployed policy returns."""

from __future__ import annotations

from typing import Any, NamedTuple

from daband.arrays import FloatArray, IntArray
from daband.handover.table_rows import RowWarning

__all__ = ["DeployedDecision"]


class DeployedDecision(NamedTuple):
    """What ``decide`` returns. For a batch of n rows every field has a leading n, and ``warnings`` one tuple a row."""

    arm: int | IntArray
    """The chosen arm, 0..K-1."""
    arm_name: str | tuple[str, ...]
    """Its name."""
    propensity: float | FloatArray
    """The probability with which that arm was chosen."""
    mean: FloatArray
    """Predicted rewards of all arms, (K,), in the user's units."""
    width: FloatArray
    """Their uncertainty, (K,), before ``alpha`` scales it."""
    warnings: tuple[Any, ...]
    """What was odd about the row: a ``RowWarning`` each."""

    def as_dict(self) -> dict[str, Any]:
        """The decision on one row as JSON can hold it."""
        return {
            "arm": self.arm,
            "arm_name": self.arm_name,
            "propensity": self.propensity,
            "mean": self.mean.tolist(),
            "width": self.width.tolist(),
            "warnings": [
                {"kind": odd.kind, "column": odd.column, "message": odd.message}
                for odd in self.warnings
                if isinstance(odd, RowWarning)
            ],
        }
