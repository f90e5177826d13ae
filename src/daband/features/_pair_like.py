"""Define the attributes of a pair of domains that policies and exports read.

``daband.domains.Pair`` has them. The packages below ``domains`` take any object with these
attributes.
"""

from __future__ import annotations

from typing import Protocol

from daband.base._arrays import AnyArray, IntArray, Shape
from daband.features._catalogue import Catalogue
from daband.features._costs import ArmCosts
from daband.features._domain_names import DomainNames
from daband.features._shift import Shift
from daband.features._table_transform import TableTransform


class ContextsLike(Protocol):
    """Contexts of a domain."""

    def __len__(self) -> int:
        """Return the number of contexts."""

    def read(self, indices: IntArray, /) -> AnyArray:
        """Return the contexts at these indices, (B, *C)."""


class PairLike(Protocol):
    """A source and a target; see ``daband.domains.Pair`` for the attributes."""

    @property
    def context_shape(self) -> Shape: ...
    @property
    def n_arms(self) -> int: ...
    @property
    def class_names(self) -> tuple[str, ...]: ...
    @property
    def arms(self) -> str: ...
    @property
    def feedback(self) -> str: ...
    @property
    def full_feedback(self) -> bool: ...
    @property
    def source(self) -> ContextsLike: ...
    @property
    def target(self) -> ContextsLike: ...
    @property
    def shift(self) -> Shift: ...
    @property
    def domains(self) -> DomainNames: ...
    @property
    def table(self) -> TableTransform | None: ...
    @property
    def catalogue(self) -> Catalogue | None: ...
    @property
    def costs(self) -> ArmCosts | None: ...
