"""The costs of arms, which are subtracted from rewards when rewards are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from daband.base._arrays import FloatArray, IntArray
from daband.errors import InvalidInput, did_you_mean

#: A function that returns a column of the rows as numbers, (n,).
ReadColumn = Callable[[str], FloatArray]


@dataclass(frozen=True)
class ArmCosts:
    """The cost of each arm, in the unit of the rewards.

    It is a fixed number, or it is in a column of the rows.
    """

    #: The cost of each arm, (K,). For a cost in a column, the mean over the arm's source rows.
    means: tuple[float, ...]
    #: The column with the cost of each arm, (K,); "" for a fixed cost.
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, costs: Any, arm_names: Sequence[str]) -> ArmCosts | None:
        """Return the costs in a mapping from arm names to numbers or columns; None if it is
        empty.

        The cost of other arms is 0.
        """
        if isinstance(costs, cls) or not costs:
            return costs or None
        if not isinstance(costs, Mapping):
            raise InvalidInput(f"costs must be a mapping from arms to costs, got {costs!r}")
        for name, cost in costs.items():
            if name not in arm_names:
                hint = did_you_mean(name, arm_names)
                raise InvalidInput(
                    f"costs has {name!r}, which is not an arm{hint} ({', '.join(arm_names)})"
                )
            if not isinstance(cost, str) and not (
                isinstance(cost, int | float | np.number) and math.isfinite(cost)
            ):
                raise InvalidInput(f"costs: {name} costs {cost!r}; give a number or a column")
        values = [costs.get(name, 0.0) for name in arm_names]
        return cls(
            tuple(0.0 if isinstance(cost, str) else float(cost) for cost in values),
            tuple(cost if isinstance(cost, str) else "" for cost in values),
        )

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ArmCosts:
        """Return the costs whose fields are in a JSON object."""
        return cls(tuple(map(float, state["means"])), tuple(map(str, state["columns"])))

    @property
    def column_names(self) -> list[str]:
        """The columns that rows must have."""
        return sorted({*self.columns} - {""})

    def with_means(self, read_column: ReadColumn, arms: IntArray | None) -> ArmCosts:
        """Return the costs with the mean of each column over the rows of its arm.

        ``arms`` (n,) are the arms of the rows; None if every row counts for each arm.
        """
        means = list(self.means)
        for arm, column in enumerate(self.columns):
            if column:
                values = read_column(column)[slice(None) if arms is None else arms == arm]
                means[arm] = float(values.mean()) if len(values) else 0.0
        return replace(self, means=tuple(means))

    def compute(self, arms: IntArray, read_column: ReadColumn) -> FloatArray:
        """Return the cost of the arm (n,) of each row, (n,).

        A missing value (NaN) is replaced by the mean. Arms that were added later cost nothing.
        """
        n_arms = max(len(self.means), int(arms.max(initial=0)) + 1)
        costs = np.zeros(n_arms)
        costs[: len(self.means)] = self.means
        costs = costs[arms]
        for name in self.column_names:
            rows = np.isin(arms, [arm for arm, column in enumerate(self.columns) if column == name])
            if rows.any():
                values = read_column(name)[rows]
                costs[rows] = np.where(np.isnan(values), costs[rows], values)
        return costs

    def compute_table(self, n_rows: int, read_column: ReadColumn) -> FloatArray:
        """Return the cost of every arm in each row, (n_rows, K)."""
        arms = range(len(self.means))
        return np.stack([self.compute(np.full(n_rows, arm), read_column) for arm in arms], axis=1)
