"""Files: whole or not there whenever the writer dies, locked where two processes would write them, named in errors."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import stat
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from daband.errors import DataError, FolderInUse, InvalidInput

__all__ = [
    "check_writable",
    "checked_path",
    "locked",
    "make_folder",
    "read_json",
    "read_npz",
    "write_bytes",
    "write_text",
]

_POLL_SECONDS = 0.1
_LOCK_FILE = ".lock"


def checked_path(path: str | Path, name: str = "path") -> Path:
    """``path`` as a ``Path``; an empty one, one with a NUL character and what is no path are errors that say so."""
    if not isinstance(path, str | os.PathLike):
        raise InvalidInput(f"{name} must be a file name (str or Path), got {path!r}")
    text = os.fspath(path)
    if not isinstance(text, str):
        raise InvalidInput(f"{name} must be a file name (str or Path), got {path!r}")
    if not text:
        raise InvalidInput(f"{name} is empty; give the name of a file")
    if "\0" in text:
        raise InvalidInput(f"{name} {text!r} has a NUL character, which no file name can have")
    return Path(text)


def read_json(path: str | Path) -> Any:
    """What a JSON file holds; one that is damaged or cannot be read is an error that names it."""
    path = checked_path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def read_npz(path: str | Path) -> dict[str, Any]:
    """The arrays of an ``.npz`` file by name; one that is damaged or cannot be read is an error that names it."""
    path = checked_path(path)
    try:
        content = io.BytesIO(path.read_bytes())  # np.load leaves a damaged file open
        with np.load(content, allow_pickle=False) as table:
            return dict(table)
    except (EOFError, KeyError, ValueError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def write_bytes(path: str | Path, content: bytes | bytearray) -> None:
    """Write a whole file or nothing: to a temporary name beside it, flushed to disk, then renamed.

    A file that exists keeps its mode. A symbolic link stays one: its target is written. Folders, devices, pipes and
    sockets are refused.
    """
    named = checked_path(path)
    target, mode = _target_of(named)
    temporary = _temporary(target)
    try:
        with open(temporary, "wb") as file:
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
    """``write_bytes`` for text, in UTF-8."""
    write_bytes(path, content.encode())


def check_writable(path: str | Path) -> None:
    """Refuse a file that ``write_bytes`` could not write: before work whose result would be lost."""
    named = checked_path(path)
    temporary = _temporary(_target_of(named)[0])
    try:
        temporary.touch()
    except OSError as error:
        raise _not_written(named, error) from None
    finally:
        _remove(temporary)


def _target_of(named: Path) -> tuple[Path, int | None]:
    """The file that is meant, behind symbolic links, and its mode if it exists."""
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


def make_folder(path: str | Path, name: str = "directory") -> Path:
    """The folder at ``path``, created where it is missing; where it cannot be, an error that names it."""
    folder = checked_path(path, name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        what = "a symbolic link to nowhere" if folder.is_symlink() else "a file"
        raise InvalidInput(f"{name} {folder} is {what}, not a folder; choose another") from None
    except OSError as error:
        raise DataError(f"{name} {folder} cannot be created: {error.strerror}") from None
    return folder


@contextlib.contextmanager
def locked(folder: str | Path, *, wait: bool, file: str = _LOCK_FILE) -> Iterator[None]:
    """Hold ``folder`` for this block alone, against other processes and against other threads of this one.

    The operating system holds the lock and drops it when the process dies, so nothing stale is left behind. With
    ``wait`` the block waits for its turn; without, a folder in use is a ``FolderInUse`` that names it and the process.
    Where the file system has no locks, nothing is locked.
    """
    path = Path(folder) / file
    while True:
        handle = _acquired(path)
        if handle is not None:
            break
        if not wait:
            raise FolderInUse(
                f"{folder} is in use by process {_owner(path)}; wait until that is over, or choose another folder"
            )
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        # Removed while it is still held: whoever waits with the old file open sees that it is gone, and opens anew.
        _remove(path)
        os.close(handle)


def _acquired(path: Path) -> int | None:
    """An open, locked file; None while another holds the lock."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from None
    try:
        if not _lock(handle) or not _is_still(handle, path):
            os.close(handle)
            return None
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(handle)
        raise
    return handle


def _lock(handle: int) -> bool:
    """Whether the lock of an open file is ours now."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            # A byte far behind the text, so that others can read who holds the lock.
            os.lseek(handle, 1 << 20, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
            os.lseek(handle, 0, os.SEEK_SET)
        except OSError:
            return False
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Any other error says that this file system has no locks; a run there is no worse off than without them.
        return error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
    return True


def _is_still(handle: int, path: Path) -> bool:
    """Whether the open file is the one at ``path``: who held the lock before has removed it."""
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
    """The permissions of a file that will be replaced; None where there is none."""
    try:
        found = target.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found):
        raise DataError(f"{named} is a folder; give the name of a file")
    if not stat.S_ISREG(found):
        raise DataError(f"{named} is a device, a pipe or a socket, not a file; give the name of a file")
    return stat.S_IMODE(found)


def _not_written(path: Path, error: OSError) -> DataError:
    remedy = "; free some space and try again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return DataError(f"{path} cannot be written: {error.strerror or error}{remedy}")


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
