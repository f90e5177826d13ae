"""What data there are, where they lie, whether they are whole, and where to get them."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from daband.domains.data_paths import data_directory, find
from daband.domains.registry import Resource, pairs

__all__ = ["PairRecord", "Resource", "ResourceStatus", "check", "listing", "resources"]


@dataclass(frozen=True)
class ResourceStatus:
    """One resource of one pair: ``state`` is "there", "missing" or "damaged"."""

    pair: str
    resource: Resource
    state: str
    path: Path

    @property
    def remedy(self) -> str:
        """What to do about it; empty when nothing is wrong."""
        if self.state == "there":
            return ""
        if self.resource.url:
            again = "delete it and run" if self.state == "damaged" else "run"
            return f"{again} `daband data get {self.pair}` (from {self.resource.url})"
        return self.resource.by_hand


@dataclass(frozen=True)
class PairRecord:
    """One line of the list of pairs: ``state`` is "ready" or "missing"."""

    name: str
    summary: str
    state: str
    licence: str
    citation: str
    options: tuple[str, ...]


def resources(name: str) -> tuple[Resource, ...]:
    """What a pair reads from the data directory; nothing for one that needs nothing from outside."""
    return pairs.get(name).resources


def listing() -> Iterator[PairRecord]:
    """Every registered pair, and whether its data are there."""
    for name in pairs.names():
        entry = pairs.get(name)
        ready = all(find(resource.places) is not None for resource in entry.resources if not resource.optional)
        about = entry.about
        yield PairRecord(
            name, about.summary, "ready" if ready else "missing", about.licence, about.citation, tuple(entry.options())
        )


def check(name: str, *, directory: Path | None = None) -> Iterator[ResourceStatus]:
    """Look at every resource of a pair; those with a known checksum are read and compared."""
    root = data_directory() if directory is None else directory
    for resource in resources(name):
        path = find(resource.places, directory=root)
        if path is None:
            yield ResourceStatus(name, resource, "missing", root / resource.places[0])
        else:
            yield ResourceStatus(name, resource, "there" if is_whole(path, resource) else "damaged", path)


def is_whole(path: Path, resource: Resource) -> bool:
    """Whether a file has the published checksum, packed or unpacked; a folder only has to be there and not be empty."""
    if path.is_dir():
        return any(path.iterdir())
    if not resource.content_md5:
        return path.stat().st_size > 0
    digest = md5_of(path)
    if digest in (resource.md5, resource.content_md5):
        return True
    try:
        with gzip.open(path) as inside:
            return hashlib.file_digest(inside, _md5).hexdigest() == resource.content_md5
    except (OSError, EOFError, zlib.error):
        return False


def md5_of(path: Path) -> str:
    """The md5 of a file, in hexadecimal: publishers of data give it to tell damage, not malice."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, _md5).hexdigest()


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)
