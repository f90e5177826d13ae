"""The data of every pair: what there is, whether it is whole, and how to get it."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import lzma
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from daband.domains._registry import Resource, data_directory, find, pairs
from daband.errors import DataError, InvalidInput


@dataclass(frozen=True)
class ResourceStatus:
    """One resource of one pair.

    ``state`` is "there", "missing" or "damaged"; or what ``get_data`` did about it: "there already", "downloaded", or
    nothing where it must be got "by hand".
    """

    pair: str
    resource: Resource
    state: str
    path: Path

    @property
    def remedy(self) -> str:
        """What to do about it; empty when nothing is wrong."""
        if self.state in ("there", "there already", "downloaded"):
            return ""
        again = "delete it and " if self.state == "damaged" and self.resource.url else ""
        return again + self.resource.remedy(self.pair)


def data_of(name: str) -> tuple[Resource, ...]:
    """What a pair reads from the data directory; nothing for one that needs nothing from outside."""
    return pairs.get(name).resources


def check_data(name: str) -> Iterator[ResourceStatus]:
    """Look at every resource of a pair; those with a known checksum are read and compared."""
    root = data_directory()
    for resource in data_of(name):
        path = find(resource.places)
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


#: Called with what is being downloaded, the bytes so far, and the bytes in all (0 when not known).
DownloadProgress = Callable[[str, int, int], None]

_PATIENCE = 10.0  # seconds without a byte
_CHUNK = 1 << 20
#: Bytes unpacked per byte of the archive. Images do not compress; tables and text do by ten or twenty.
_LARGEST_RATIO = 100
#: Bytes that any archive may unpack to, whatever its own size.
_ALWAYS_ALLOWED = 64 << 20


def get_data(name: str, *, progress: DownloadProgress | None = None) -> Iterator[ResourceStatus]:
    """Download what a pair needs and is not there; yields a record per resource as it is done."""
    root = data_directory()
    for resource in data_of(name):
        place = find(resource.places)
        if place is not None and is_whole(place, resource):
            yield ResourceStatus(name, resource, "there already", place)
        elif not resource.url:
            yield ResourceStatus(name, resource, "by hand", root / resource.places[0])
        else:
            yield ResourceStatus(name, resource, "downloaded", _fetch(resource, root, progress))


def _fetch(resource: Resource, root: Path, progress: DownloadProgress | None) -> Path:
    target = root / (resource.archive or resource.places[0])
    download(resource.url, target, md5=resource.md5, what=resource.what, progress=progress)
    if not resource.unpack_into:
        return target
    unpack(target, root / resource.unpack_into)
    place = find(resource.places)
    if place is None:
        raise DataError(
            f"{target} was unpacked, but {root / resource.places[0]} is not in it; is {resource.url} right?"
        )
    target.unlink()
    return place


def download(
    url: str, target: Path, *, md5: str = "", what: str = "", progress: DownloadProgress | None = None
) -> Path:
    """Download ``url`` to ``target``, which appears only when it is complete and its md5 is right."""
    if not url.startswith(("http://", "https://")):
        raise InvalidInput(f"only http and https addresses can be downloaded, got {url!r}")
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        file = open(part, "wb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise DataError(f"{target.parent} cannot be written ({error}); set DABAND_DATA to a folder of yours") from None
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "daband"})  # noqa: S310 - checked above
        with file, urllib.request.urlopen(request, timeout=_PATIENCE) as response:  # noqa: S310
            total = int(response.headers.get("Content-Length") or 0)
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                if progress is not None:
                    progress(what or target.name, file.tell(), total)
        if total and part.stat().st_size != total:
            raise DataError(f"{url} ended after {part.stat().st_size} of {total} bytes; run the same command again")
        if md5 and (digest := md5_of(part)) != md5:
            raise DataError(f"{url} has the wrong checksum: md5 {digest}, expected {md5}; try again later")
        return part.replace(target)
    except DataError:
        raise
    except urllib.error.HTTPError as error:
        raise DataError(f"{url} answers {error.code} {error.reason}; the address may have moved") from None
    except (OSError, http.client.HTTPException) as error:  # urllib's are OSErrors; a broken answer is not
        reason = getattr(error, "reason", error)
        raise DataError(
            f"{url} cannot be reached ({reason}). Is there a network? You can also get the file by hand and put it at "
            f"{target}"
        ) from None
    finally:
        part.unlink(missing_ok=True)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive into a folder: all of it or nothing, and nothing outside the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=folder, prefix=".unpacking-"))
    try:
        with tarfile.open(archive) as opened:
            limit = min(max(_ALWAYS_ALLOWED, _LARGEST_RATIO * archive.stat().st_size), shutil.disk_usage(aside).free)
            size = 0
            for member in opened:
                if not (member.isfile() or member.isdir()):
                    raise DataError(f"{archive} has {member.name!r}, a link or a device: it is not unpacked")
                size += member.size
                if size > limit:
                    raise DataError(
                        f"{archive} would unpack to more than {limit:,} bytes, which is more than the disk has free "
                        "or an honest archive of its size holds: it is not unpacked"
                    )
            opened.extractall(aside, filter="data")  # refuses names that point outside
            # The checksum of a compressed archive is at its end, behind what the last member needs.
            while opened.fileobj is not None and opened.fileobj.read(_CHUNK):
                pass
        for entry in aside.iterdir():
            _merge(entry, folder / entry.name)
    except DataError:
        raise
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, ValueError) as error:
        raise DataError(f"{archive} cannot be unpacked ({error}); delete it and download it again") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _merge(entry: Path, target: Path) -> None:
    """Move what was unpacked into place; folders that are there already are filled."""
    if entry.is_dir() and target.is_dir():
        for below in entry.iterdir():
            _merge(below, target / below.name)
    else:
        entry.replace(target)
