"""Register pairs of a source and a target domain by name, load them, and find the data files that
they need.

``register_pair`` registers a function, and ``load`` calls it. The functions after them find
files in the data directory.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daband.base._files import get_cache_directory
from daband.base._registry import Registry
from daband.domains._contract import About, Pair
from daband.errors import DataError, InvalidInput, did_you_mean

#: A function that builds a pair from keyword options.
BuildFunction = Callable[..., Pair]
#: A function from options to options. It replaces options whose value depends on the files on this
#: machine.
ResolveFunction = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Resource:
    """A file or folder below the data directory, and instructions to get it."""

    #: The content of the file, in a few words.
    description: str
    #: Possible paths below the data directory.
    paths: tuple[str, ...]
    #: Licence of the data.
    licence: str
    #: Instructions to get the file, as a phrase in the imperative.
    instructions: str
    #: True if the pair can be built without the file.
    optional: bool = False
    #: The domain whose pairs need the file; empty if every pair of the data set does.
    domain: str = ""


@dataclass(frozen=True)
class PairEntry:
    """A registered pair: the function that builds it, and its description."""

    #: Name of the pair.
    name: str
    #: The function that builds the pair from its options.
    build: BuildFunction
    #: Summary, licence and citation.
    about: About
    #: Replaces options whose value depends on the files on this machine; None if there are none.
    resolve: ResolveFunction | None = None
    #: The files that the pair reads.
    resources: tuple[Resource, ...] = ()

    def resolve_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Check the options, and return them.

        Options that depend on local files get their values on this machine.
        """
        self.check_options(options)
        return dict(options) if self.resolve is None else self.resolve(dict(options))

    @property
    def is_ready(self) -> bool:
        """True if all files that the pair needs exist."""
        return all(
            find_data(resource.paths) is not None
            for resource in self.resources
            if not resource.optional
        )

    def list_options(self) -> list[str]:
        """Return the names of the pair's options, which are keyword arguments of ``load``."""
        return list(inspect.signature(self.build).parameters)

    def check_options(self, names: Iterable[str]) -> None:
        """Raise an error if one of these names is not an option of the pair."""
        option_names = self.list_options()
        for name in sorted(set(names) - set(option_names)):
            hint = did_you_mean(name, option_names)
            options_text = ", ".join(option_names) or "none"
            raise InvalidInput(
                f"pair {self.name!r} has no option {name!r}{hint} (its options: {options_text})"
            )


#: The registered pairs by name.
pairs: Registry[PairEntry] = Registry("pair", "daband.domains.datasets")


def register_pair(
    name: str,
    *,
    about: About,
    resolve: ResolveFunction | None = None,
    resources: Sequence[Resource] = (),
) -> Callable[[BuildFunction], BuildFunction]:
    """Register a function that builds a pair.

    The function takes the pair's options as keyword arguments, every one with a default.

    Args:
        name: the pair's name, e.g. for ``daband.domains.load``.
        about: its summary, licence and citation.
        resolve: a function from options to options. It replaces options that depend on the
            available files by their values, so that experiments can record the values. By default
            options are unchanged.
        resources: the files that the function reads.
    """

    def register(build: BuildFunction) -> BuildFunction:
        pairs.add(name, PairEntry(name, build, about, resolve, tuple(resources)))
        return build

    return register


def load(name: str, **options: Any) -> Pair:
    """Return the pair that is registered as ``name``.

    ``options`` are the pair's options. Any other keyword raises an error that lists them. The pairs
    "digit" and "synthetic" have an option ``tiny=True`` for a small version that needs no data
    files.

    >>> pair = daband.domains.load("digit", tiny=True)
    >>> pair.context_shape, pair.n_arms
    ((3, 28, 28), 10)
    """
    entry = pairs.get(name)
    entry.check_options(options)
    return entry.build(**options)


# The data directory is filled by the user, and may be shared and read-only. daband writes only to
# the cache folder.


def get_data_directory() -> Path:
    """Return the folder with downloaded data, which need not exist.

    It is the value of the environment variable ``DABAND_DATA``, or else ``data`` in the cache
    folder.
    """
    folder = os.environ.get("DABAND_DATA")
    return Path(folder).expanduser() if folder else get_cache_directory() / "data"


def find_data(candidates: Sequence[str], *, directory: Path | None = None) -> Path | None:
    """Return the first of these paths that exists below ``directory``, by default the data
    directory, or None.
    """
    root = get_data_directory() if directory is None else directory
    return next((root / candidate for candidate in candidates if (root / candidate).exists()), None)


def require_data(candidates: Sequence[str], *, pair: str) -> Path:
    """Return the first of these paths that exists.

    If there is none, raise an error that explains how to get it.
    """
    path = find_data(candidates)
    if path is None:
        resources = pairs.get(pair).resources
        hint = next(
            (
                f"To get it, {resource.instructions}. "
                for resource in resources
                if any(known_path.startswith(tuple(candidates)) for known_path in resource.paths)
            ),
            "",
        )
        raise DataError(
            f"{pair} needs {' or '.join(candidates)} below the data directory"
            f" {get_data_directory()}. {hint}`daband data check {pair}` lists the files it needs;"
            " set DABAND_DATA to use another directory"
        )
    return path


def check_data(name: str) -> Iterator[tuple[Resource, Path | None]]:
    """Yield every resource of a pair with its path; the path is None if the resource is missing."""
    for resource in pairs.get(name).resources:
        yield resource, find_data(resource.paths)
