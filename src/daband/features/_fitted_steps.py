"""What all transforms of contexts share: a *step* for each domain after the fit.

A step is a frozen dataclass of arrays that maps flat contexts (n, d) of one domain to features
(n, m). Policies save the steps of all domains, and exported files have the step of one domain.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from daband.base._arrays import (
    AnyArray,
    Arrays,
    FloatArray,
    Shape,
    drop_prefix,
    read_array,
    to_floats,
)
from daband.errors import NotFitted


class Step:
    """A fitted transform for one domain."""

    #: The name of the transform in files.
    kind: ClassVar[str]
    #: The number of dimensions of a context.
    n_inputs: int

    def __call__(self, rows: FloatArray) -> FloatArray:
        """Return the features (n, m) of rows (n, d)."""
        raise NotImplementedError

    def arrays(self) -> Arrays:
        """Return the arrays for a file, which are the arguments of the class."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {name: np.asarray(value) for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class InterceptStep(Step):
    """A step that appends a constant 1 to rows (n, d)."""

    kind: ClassVar[str] = "intercept"
    #: The number of dimensions of a context.
    n_inputs: int

    def __call__(self, rows: FloatArray) -> FloatArray:
        features = np.empty((len(rows), self.n_inputs + 1))
        features[:, -1] = 1.0
        features[:, :-1] = rows
        return features


StepT = TypeVar("StepT", bound=Step)


class StepTransform(Generic[StepT]):
    """A transform of contexts with one step for each domain, or one for all domains."""

    #: The class of steps.
    step_class: type[StepT]

    def __init__(self) -> None:
        #: The step of each domain, or one step for all domains; empty before the fit.
        self._steps: list[StepT] = []

    @property
    def fitted(self) -> bool:
        """True if ``fit`` has been called."""
        return bool(self._steps)

    def n_features(self, context_shape: Shape) -> int:
        """Return the number of features of a context of this shape."""
        raise NotImplementedError

    def __call__(self, contexts: AnyArray, domain: int = 0) -> FloatArray:
        """Return the features (n, m) of contexts (n, *C) of a domain."""
        step = self.get_step(domain)
        return step(to_floats(contexts.reshape(-1, step.n_inputs)))

    def get_step(self, domain: int = 0) -> StepT:
        """Return the step for contexts of a domain."""
        if not self._steps:
            raise NotFitted(
                f"{self!r} is not fitted: train the policy, or give unlabelled contexts to"
                " policy.prepare(...)"
            )
        return self._steps[min(domain, len(self._steps) - 1)]

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments for an unfitted copy, as JSON types."""
        raise NotImplementedError

    def state(self) -> Arrays:
        """Return the arrays of all steps; empty before ``fit``."""
        return {
            f"{domain}.{name}": array
            for domain, step in enumerate(self._steps)
            for name, array in step.arrays().items()
        }

    def restore(self, state: Arrays) -> None:
        """Restore the arrays that ``state`` returned."""
        steps: list[StepT] = []
        while own := drop_prefix(f"{len(steps)}.", state):
            arrays = {name: read_array(own, name, array) for name, array in own.items()}
            try:
                step = self.step_class(**arrays)
            except TypeError as error:
                raise ValueError(f"the arrays of a transform are others: {error}") from None
            n_features = step(np.zeros((1, step.n_inputs))).shape[1]
            if n_features != self.n_features((step.n_inputs,)):
                raise ValueError(f"the arrays of a transform have {n_features} features")
            steps.append(step)
        self._steps = steps
