"""Files: written completely or not at all, locked against concurrent writers, named in errors."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import os
import re
import stat
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from daband.errors import DataError, FolderInUse, InvalidInput

_POLL_SECONDS = 0.1
_LOCK_FILE = ".lock"
_DONE = "done"
_TEMPORARY = re.compile(r"\..+\.\d+\.\d+\.tmp")
_swept: set[str] = set()
#: A younger temporary file may belong to a writer that has not locked it yet.
_ORPHAN_SECONDS = 60.0
#: Maximum expanded size of an archive in bytes, or twice its own size if that is more: ours are small or uncompressed.
_LARGEST_EXPANSION = 64 << 20


#: Environment variables by which libraries set their number of threads.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@contextlib.contextmanager
def environment_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables to these values within this block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


#: Maximum path length in bytes on Linux.
_MAX_PATH = 4095
#: Maximum length in bytes of one name in a path, on most file systems.
_MAX_NAME = 255


def checked_path(path: str | Path, name: str = "path") -> Path:
    """Return ``path`` as a ``Path``; raise an error if it is empty, contains a NUL character or is not a path."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise InvalidInput(f"{name} must be a file name (str or Path), got {path!r}")
    if not text:
        raise InvalidInput(f"{name} is empty; give the name of a file")
    if "\0" in text:
        raise InvalidInput(f"{name} {text!r} has a NUL character, which no file name can have")
    if len(os.fsencode(text)) > _MAX_PATH or any(len(os.fsencode(part)) > _MAX_NAME for part in Path(text).parts):
        raise InvalidInput(f"{name} {text[:40]!r}... has {len(text):,} characters, more than a file name can have")
    return Path(text)


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a file, after comparing it with its digest in the folder's ``done``, if there is one."""
    path = checked_path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    expected = _digests(path.parent).get(path.name)
    if expected is not None and _sha256(content) != expected:
        raise DataError(
            f"{path} is damaged: its content does not match its digest, so at least one bit differs from what was "
            "written; restore it from a copy"
        )
    return content


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def finish_folder(folder: str | Path, files: Sequence[str]) -> None:
    """Write ``done``, the last file of a folder, with the digests of those ``files`` that exist."""
    paths = {name: Path(folder) / name for name in files}
    digests = {name: _sha256(path.read_bytes()) for name, path in paths.items() if path.is_file()}
    write_json(Path(folder) / _DONE, {"sha256": digests}, sort_keys=True)


def _digests(folder: Path) -> dict[str, str]:
    """Return the digests in a folder's ``done``; empty if it is unfinished or was written by an older version."""
    path = folder / _DONE
    try:
        text = path.read_text(encoding="utf-8")
        return dict(json.loads(text)["sha256"]) if text.strip() else {}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise DataError(f"{path} is damaged ({error}); remove the folder and run it again") from None


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file; raise an error that names the file if it is damaged or unreadable."""
    try:
        return json.loads(read_bytes(path).decode())
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise DataError(f"{path} is not JSON: {error}") from None


def read_npz(path: str | Path, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the arrays of an ``.npz`` file, or those in ``names``; raise an error that names a damaged file."""
    import zipfile  # takes 5% of the import time of serving, which reads no archives

    content = io.BytesIO(read_bytes(path))  # np.load leaves a damaged file open
    try:
        with zipfile.ZipFile(content) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > max(_LARGEST_EXPANSION, 2 * len(content.getbuffer())):
            raise DataError(
                f"{path} is refused: its {len(content.getbuffer()):,} bytes would expand to {size:,}, which nothing "
                "that daband writes does; remove it"
            )
        with np.load(content, allow_pickle=False) as table:
            return {name: table[name] for name in table.files if not names or name in names}
    except (
        EOFError, KeyError, ValueError, TypeError, AttributeError, OverflowError, MemoryError, NotImplementedError,
        RuntimeError, SyntaxError, OSError, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is damaged: {error}") from None


def write_bytes(path: str | Path, content: bytes | bytearray) -> None:
    """Write a complete file or nothing: to a temporary name next to it, flushed to disk, then renamed.

    An existing file keeps its mode. A symbolic link is kept, and its target is written. Folders, devices, pipes and
    sockets raise an error.
    """
    named = checked_path(path)
    target, mode = _target_of(named)
    remove_orphans(target.parent)
    temporary = _temporary(target)
    try:
        with open(temporary, "wb") as file:
            _lock(file.fileno())  # so that no other process treats it as an orphan
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        os.replace(temporary, target)
    except OSError as error:
        _remove(temporary)
        raise _not_written(named, error) from None
    except BaseException:
        _remove(temporary)
        raise


def write_text(path: str | Path, content: str) -> None:
    """Write text in UTF-8 by ``write_bytes``."""
    write_bytes(path, content.encode())


def write_json(path: str | Path, content: Any, *, sort_keys: bool = False) -> None:
    """Write JSON content by ``write_text``."""
    write_text(path, json.dumps(content, indent=2, sort_keys=sort_keys) + "\n")


def write_npz(path: str | Path, arrays: Mapping[str, Any], *, compressed: bool = False) -> None:
    """Write named arrays by ``write_bytes``; ``read_npz`` reads them."""
    table = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(table, **arrays)
    write_bytes(path, table.getvalue())


def check_writable(path: str | Path) -> None:
    """Raise an error if ``write_bytes`` could not write this file, before work whose result would be lost."""
    named = checked_path(path)
    temporary = _temporary(_target_of(named)[0])
    try:
        temporary.touch()
    except OSError as error:
        raise _not_written(named, error) from None
    finally:
        _remove(temporary)


def _target_of(named: Path) -> tuple[Path, int | None]:
    """Return the actual file, after following symbolic links, and its mode if it exists."""
    try:
        target = Path(os.path.realpath(named))
        mode = _mode_of(target, named)
        if not target.parent.is_dir():
            what = f"the folder {target.parent} does not exist"
            raise DataError(f"{named} cannot be written: {what}; create it first")
    except OSError as error:
        if isinstance(error, DataError):
            raise
        raise _not_written(named, error) from None
    return target, mode


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")


def remove_orphans(folder: str | Path) -> None:
    """Remove temporary files of killed writers; once per process and folder.

    A writer holds a lock on its file while it runs. If the file system has no locks, no file is removed.
    """
    path = str(folder)
    if path in _swept:
        return
    _swept.add(path)
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if _TEMPORARY.fullmatch(entry.name) and time.time() - entry.stat().st_mtime > _ORPHAN_SECONDS:
                handle = os.open(entry.path, os.O_RDWR)
                try:
                    if _lock(handle, without_locks=False):
                        os.unlink(entry.path)
                finally:
                    os.close(handle)


def make_folder(path: str | Path, name: str = "directory") -> Path:
    """Return the folder at ``path``, after creating it if missing; if that fails, raise an error that names it."""
    folder = checked_path(path, name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        what = "a symbolic link to nowhere" if folder.is_symlink() else "a file"
        raise InvalidInput(f"{name} {folder} is {what}, not a folder; choose another") from None
    except OSError as error:
        raise DataError(f"{name} {folder} cannot be created: {error.strerror}{_remedy(error)}") from None
    return folder


@contextlib.contextmanager
def locked(folder: str | Path, *, wait: bool, file: str = _LOCK_FILE) -> Iterator[None]:
    """Lock ``folder`` for this block, against other processes and other threads of this process.

    The operating system holds the lock and releases it when the process dies, so no stale lock remains. With ``wait``
    the block waits for its turn. Without, a folder in use raises a ``FolderInUse`` that names it and the process. If
    the file system has no locks, nothing is locked.
    """
    path = Path(folder) / file
    while True:
        handle = _acquired(path)
        if handle is not None:
            break
        if not wait:
            remedy = "wait until that is over, or choose another folder"
            raise FolderInUse(f"{folder} is in use by process {_owner(path)}; {remedy}")
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        # Removed while still locked: a process that waits with the old file open then sees that it is gone.
        _remove(path)
        os.close(handle)


def _acquired(path: Path) -> int | None:
    """Return an open, locked file, or None while another process or thread holds the lock."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise _not_written(path.parent, error) from None
    try:
        if not _lock(handle) or not _is_still(handle, path):
            os.close(handle)
            return None
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.close(handle)
        if isinstance(error, OSError):
            raise _not_written(path.parent, error) from None
        raise
    return handle


def _lock(handle: int, *, without_locks: bool = True) -> bool:
    """Lock an open file, and return True if that worked; ``without_locks`` if the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Any other error means that this file system has no locks; the run continues without.
        return without_locks and error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
    return True


def _is_still(handle: int, path: Path) -> bool:
    """True if the open file is still the one at ``path``: the previous owner of the lock may have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _owner(path: Path) -> str:
    try:
        return path.read_text().strip() or "(unknown)"
    except OSError:
        return "(unknown)"


def _mode_of(target: Path, named: Path) -> int | None:
    """Return the permissions of the file that will be replaced, or None if there is none."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise DataError(f"{named} is a folder; give the name of a file")
    if not stat.S_ISREG(mode):
        raise DataError(f"{named} is a device, a pipe or a socket, not a file; give the name of a file")
    return stat.S_IMODE(mode)


def _not_written(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be written: {error.strerror or error}{_remedy(error)}")


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "; free some space and try again: what was written before is kept"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "; choose a folder that this user may write to"
    return ""


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def cache_directory() -> Path:
    """Return the folder for files that daband can rebuild: ``DABAND_CACHE``, else the user's cache folder."""
    given = os.environ.get("DABAND_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "daband"
