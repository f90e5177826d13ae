"""Map the names of domains to indices.

Users and files refer to domains by name, arrays and loops by index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daband.errors import InvalidInput


@dataclass(frozen=True)
class DomainNames:
    """The names of a problem's domains, by default "source" and "target".

    Sources have the first indices.

    >>> names = daband.features._domain_names.DomainNames(sources=("de", "fr"), targets=("pl",))
    >>> names.names, names.index("pl"), names.is_target(2)
    (('de', 'fr', 'pl'), 2, True)
    """

    #: The names of the sources.
    sources: tuple[str, ...] = ("source",)
    #: The names of the targets.
    targets: tuple[str, ...] = ("target",)

    def __post_init__(self) -> None:
        for role in ("sources", "targets"):
            names = getattr(self, role)
            if (
                isinstance(names, str)
                or not names
                or not all(isinstance(name, str) and name for name in names)
            ):
                raise InvalidInput(f"{role} must be a list with a name per domain, got {names!r}")
            object.__setattr__(self, role, tuple(names))
        if len(set(self.names)) < len(self.names):
            raise InvalidInput(
                f"domains must have different names, got {', '.join(map(repr, self.names))}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order of the indices."""
        return self.sources + self.targets

    @property
    def first_target(self) -> int:
        """The index of the first target; sources have smaller indices."""
        return len(self.sources)

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: Any) -> int:
        """Return the index of the domain with this name.

        "source" also means the first source. "target" also means the target, if there is only one.
        """
        if isinstance(name, str) and name in self.names:
            return self.names.index(name)
        if not isinstance(name, str) or name not in ("source", "target"):
            *other_names, last_name = map(repr, self.names)
            raise InvalidInput(
                f"domain must be {', '.join(other_names)} or {last_name}, got {name!r}"
            )
        if name == "target" and len(self.targets) > 1:
            raise InvalidInput(
                f"domain must name one of the {len(self.targets)} targets"
                f" ({', '.join(self.targets)}), as in "
                f'policy.deploy("{self.targets[0]}") or restrict_pair(pair,'
                f' targets=["{self.targets[0]}"])'
            )
        return 0 if name == "source" else self.first_target

    def is_target(self, index: int) -> bool:
        """Return True if the domain with this index is a target."""
        return index >= len(self.sources)

    def settings(self) -> dict[str, list[str]]:
        """Return the constructor arguments as JSON types."""
        return {"sources": list(self.sources), "targets": list(self.targets)}
