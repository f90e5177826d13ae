"""Pairs by name: how to register one, which data it needs, where the data is, and how to download it."""

from __future__ import annotations

import gzip
import hashlib
import inspect
import os
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband._arrays import AnyArray
from daband._registry import Registry
from daband.domains._contract import About, Pair
from daband.errors import DataError, InvalidInput, did_you_mean

_IN_MEMORY = 1 << 30  # bytes
Build = Callable[..., Pair]
Resolve = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Resource:
    """A file or folder below the data directory, and how to get it.

    ``places`` are the paths where it may be; a download goes to the first. ``url`` is empty if a user must get it
    ``by_hand``. ``md5`` is the checksum of the file as downloaded, ``content_md5`` that of its content, unpacked if it
    is gzipped. ``of`` is the domain whose pairs need it; it is empty if every pair of the data set does.
    """

    what: str
    places: tuple[str, ...]
    licence: str
    url: str = ""
    md5: str = ""
    content_md5: str = ""
    by_hand: str = ""
    optional: bool = False
    of: str = ""

    def remedy(self, pair: str) -> str:
        """How to get it for this pair, in words."""
        return f"run `daband data get {pair}` (from {self.url})" if self.url else self.by_hand


@dataclass(frozen=True)
class PairEntry:
    """A registered pair: how to build it, and what to know about it."""

    name: str
    build: Build
    about: About
    resolve: Resolve | None = None
    resources: tuple[Resource, ...] = ()

    def resolved(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options with those filled in that depend on this machine's data, so that they name what is loaded."""
        self.check_options(options)
        given = dict(options)
        return given if self.resolve is None else self.resolve(given)

    @property
    def ready(self) -> bool:
        """Whether the data that it needs are there."""
        return all(find(resource.places) is not None for resource in self.resources if not resource.optional)

    def options(self) -> list[str]:
        """The names of the keyword arguments that ``load`` passes on."""
        return [name for name in inspect.signature(self.build).parameters if name != "tiny"]

    def check_options(self, names: Iterable[str]) -> None:
        """Raise where one of these is no option of the pair."""
        options = self.options()
        for name in sorted(set(names) - {*options, "tiny"}):  # every pair has a tiny twin
            hint, listed = did_you_mean(name, options), ", ".join(options) or "none"
            raise InvalidInput(f"pair {self.name!r} has no option {name!r}{hint} (its options: {listed})")


pairs: Registry[PairEntry] = Registry("pair", "daband.domains.datasets")


def register_pair(
    name: str, *, about: About, resolve: Resolve | None = None, resources: Sequence[Resource] = ()
) -> Callable[[Build], Build]:
    """Register a function that builds a pair.

    The function takes ``tiny: bool`` (build a small twin that needs no file, for tests) and keyword options, every one
    with a default. Where it loads one thing or another by what it finds, ``resolve`` takes options and returns them
    with the choice made: experiments record that, and never mix the two. ``resources`` are the files that it reads.
    """

    def enter(build: Build) -> Build:
        pairs.add(name, PairEntry(name, build, about, resolve, tuple(resources)))
        return build

    return enter


def pair_names() -> list[str]:
    """The name of every registered pair.

    >>> "warfarin/white-asian" in daband.domains.pair_names()
    True
    """
    return pairs.names()


def load(name: str, *, tiny: bool = False, **options: Any) -> Pair:
    """Build the pair registered as ``name``.

    ``tiny=True`` builds its small twin, which needs no data files. The other keywords are the pair's own; a wrong one
    is an error that lists them.

    >>> pair = daband.domains.load("digit", tiny=True)
    >>> pair.context_shape, pair.n_arms
    ((3, 28, 28), 10)
    """
    entry = pairs.get(name)
    entry.check_options(options)
    if not isinstance(tiny, bool):
        raise InvalidInput(f"tiny must be True or False, got {tiny!r}")
    return entry.build(tiny=tiny, **options)


# Where data lies: the data directory that a user fills, and the cache that daband fills.
#
# They are two folders because the first may be shared and read-only.


def data_directory() -> Path:
    """The folder with downloaded data: ``DABAND_DATA``, else ``data`` in the cache folder. It need not exist."""
    given = os.environ.get("DABAND_DATA")
    return Path(given).expanduser() if given else cache_directory() / "data"


def cache_directory() -> Path:
    """The folder for what daband can make again: ``DABAND_CACHE``, else the user's cache folder."""
    given = os.environ.get("DABAND_CACHE")
    if given:
        return Path(given).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local")).expanduser() / "daband"
    if sys.platform == "darwin":
        return Path("~/Library/Caches/daband").expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "daband"


def allocate(shape: tuple[int, ...], dtype: Any) -> AnyArray:
    """An array to be filled; one of more than a gigabyte is in a mapped file without a name, which goes with it."""
    if int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize <= _IN_MEMORY:
        return np.empty(shape, dtype=dtype)
    root = cache_directory() / "arrays"
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=root) as file:
        return np.memmap(file, dtype=dtype, mode="w+", shape=shape)


def find(candidates: Sequence[str], *, directory: Path | None = None) -> Path | None:
    """The first of these paths below the data directory that exists."""
    root = data_directory() if directory is None else directory
    for candidate in candidates:
        if (root / candidate).exists():
            return root / candidate
    return None


def need(candidates: Sequence[str], *, pair: str) -> Path:
    """Return what ``find`` returns; if nothing is there, raise an error that says how to get it."""
    place = find(candidates)
    if place is None:
        inside = tuple(f"{candidate}/" for candidate in candidates)  # MNIST's folder has several files
        files = [(f"{place}/", resource) for resource in pairs.get(pair).resources for place in resource.places]
        how = next((f"To get it, {one.remedy(pair)}. " for place, one in files if place.startswith(inside)), "")
        raise DataError(
            f"{pair} needs {' or '.join(candidates)} below the data directory {data_directory()}. {how}"
            f"`daband data check {pair}` lists what it needs; set DABAND_DATA to use another directory"
        )
    return place


# Files: whether they are complete, and how to download them.

#: Called with what is being downloaded, the bytes so far, and the bytes in all (0 when not known).
DownloadProgress = Callable[[str, int, int], None]
_PATIENCE = 10.0  # seconds without a byte
_CHUNK = 1 << 20  # bytes


@dataclass(frozen=True)
class ResourceStatus:
    """One resource of one pair.

    ``state`` is "there", "missing" or "damaged"; or what ``get_data`` did: "there already", "downloaded", or nothing if
    the resource must be got "by hand".
    """

    pair: str
    resource: Resource
    state: str
    path: Path

    @property
    def remedy(self) -> str:
        """How to repair it; empty when nothing is wrong."""
        if self.state in ("there", "there already", "downloaded"):
            return ""
        again = "delete it and " if self.state == "damaged" and self.resource.url else ""
        return again + self.resource.remedy(self.pair)


def check_data(name: str) -> Iterator[ResourceStatus]:
    """Yield the status of every resource of a pair; those with a known checksum are read and compared."""
    for resource in pairs.get(name).resources:
        path = find(resource.places)
        if path is None:
            yield ResourceStatus(name, resource, "missing", data_directory() / resource.places[0])
        else:
            yield ResourceStatus(name, resource, "there" if _is_complete(path, resource) else "damaged", path)


def get_data(name: str, *, progress: DownloadProgress | None = None) -> Iterator[ResourceStatus]:
    """Download the files of a pair that are missing or damaged; yield a record per resource as it is done."""
    for status in check_data(name):
        resource, target = status.resource, data_directory() / status.resource.places[0]
        if status.state == "there":
            yield ResourceStatus(name, resource, "there already", status.path)
        elif not resource.url:
            yield ResourceStatus(name, resource, "by hand", target)
        else:
            download(resource.url, target, md5=resource.md5, what=resource.what, progress=progress)
            yield ResourceStatus(name, resource, "downloaded", target)


def download(
    url: str, target: Path, *, md5: str = "", what: str = "", progress: DownloadProgress | None = None
) -> None:
    """Download ``url`` to ``target``, which appears only when it is complete and its md5 is right."""
    import urllib.request
    from http.client import HTTPException

    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    except OSError as error:
        raise DataError(f"{target.parent} cannot be written ({error}); set DABAND_DATA to a folder of yours") from None
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "daband"})  # noqa: S310 - of the catalogue
        with urllib.request.urlopen(request, timeout=_PATIENCE) as response, open(part, "wb") as file:  # noqa: S310
            total = int(response.headers.get("Content-Length") or 0)
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                if progress is not None:
                    progress(what or target.name, file.tell(), total)
        if total and part.stat().st_size != total:
            raise DataError(f"{url} ended after {part.stat().st_size} of {total} bytes; run the same command again")
        with open(part, "rb") as file:
            digest = hashlib.file_digest(file, _md5).hexdigest()
        if md5 and digest != md5:
            raise DataError(f"{url} has the wrong checksum: md5 {digest}, expected {md5}; try again later")
        part.replace(target)
    except (OSError, HTTPException) as error:  # urllib's errors are OSErrors; a broken answer is not
        raise DataError(
            f"{url} cannot be downloaded ({error}). Is there a network? You can also get the file by hand and put it "
            f"at {target}"
        ) from None
    finally:
        part.unlink(missing_ok=True)


def _is_complete(path: Path, resource: Resource) -> bool:
    """True if a file has the published checksum; a folder only has to be there and not be empty."""
    if path.is_dir():
        return any(path.iterdir())
    if not resource.content_md5:
        return path.stat().st_size > 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as content:
            return hashlib.file_digest(content, _md5).hexdigest() == resource.content_md5
    except (OSError, EOFError, zlib.error):
        return False


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)  # publishers of data give it to tell damage, not malice
