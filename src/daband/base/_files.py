"""Read and write files.

A file is written completely or not at all. When a file is read, its digest is checked if the folder
has a file ``done`` with digests. A folder can be locked against other processes and threads. Every
error names the file or folder, and most errors suggest a remedy.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from daband.errors import DataError, FolderInUse, InvalidInput

#: The name of the lock file of a folder.
_LOCK_FILE = ".lock"
#: An archive may expand to this many bytes, or to twice its own size if that is more.
_MAX_EXPANDED_BYTES = 64 << 20


#: Environment variables by which libraries set their number of threads.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


@contextlib.contextmanager
def set_environment_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables to these values within this block, and restore them afterwards."""
    old_values = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in old_values.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


#: Maximum path length in bytes on Linux.
_MAX_PATH_BYTES = 4095
#: Maximum length in bytes of one name in a path, on most file systems.
_MAX_NAME_BYTES = 255


def check_path(path: str | Path, name: str = "path") -> Path:
    """Return ``path`` as a ``Path``.

    Raise an error if it is empty, too long, not a path, or has a NUL character.

    ``name`` is the name of the argument in errors.
    """
    path_text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(path_text, str):
        raise InvalidInput(f"{name} must be a file name (str or Path), got {path!r}")
    if not path_text:
        raise InvalidInput(f"{name} must not be empty")
    if "\0" in path_text:
        raise InvalidInput(f"{name} must not contain a NUL character, got {path_text!r}")
    has_long_name = any(len(os.fsencode(part)) > _MAX_NAME_BYTES for part in Path(path_text).parts)
    if has_long_name or len(os.fsencode(path_text)) > _MAX_PATH_BYTES:
        raise InvalidInput(
            f"{name} must be shorter, got {len(path_text):,} characters: {path_text[:40]!r}..."
        )
    return Path(path_text)


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a file."""
    path = check_path(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file.

    Raise an error that names the file if it cannot be read or is damaged.
    """
    content = read_bytes(path)
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None


def read_npz(path: str | Path) -> dict[str, Any]:
    """Return the arrays of an ``.npz`` file by name.

    Raise an error that names the file if it is damaged.
    """
    import zipfile  # takes 5% of the import time of serving, which reads no archives

    content = io.BytesIO(read_bytes(path))  # np.load leaves a damaged file open
    try:
        with zipfile.ZipFile(content) as archive:
            n_expanded_bytes = sum(member.file_size for member in archive.infolist())
        if n_expanded_bytes > max(_MAX_EXPANDED_BYTES, 2 * len(content.getbuffer())):
            raise DataError(
                f"{path} must be a file that daband wrote: its {len(content.getbuffer()):,} bytes"
                f" would expand to {n_expanded_bytes:,}; remove it"
            )
        with np.load(content, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:  # a damaged archive may raise anything
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is damaged: {error}") from None


def write_bytes(path: str | Path, content: bytes | bytearray) -> None:
    """Write a file completely or not at all.

    The content is written to a temporary file, which is then renamed. Temporary files of the same
    name that a killed process left are removed.

    An existing file keeps its mode. If the path is a symbolic link, its target is written. Folders,
    devices, pipes and sockets raise an error.
    """
    given_path = check_path(path)
    target, mode = _resolve_target(given_path)
    temporary_path = _make_temporary_path(target)
    _remove_abandoned_files(target)
    try:
        with open(temporary_path, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary_path.chmod(mode)
        os.replace(temporary_path, target)
        _sync_folder(target.parent)
    except OSError as error:
        _remove_file(temporary_path)
        raise _make_write_error(given_path, error) from None
    except BaseException:
        _remove_file(temporary_path)
        raise


def write_text(path: str | Path, content: str) -> None:
    """Write text in UTF-8, completely or not at all."""
    write_bytes(path, content.encode())


def write_json(path: str | Path, content: Any, *, sort_keys: bool = False) -> None:
    """Write an object as JSON, completely or not at all."""
    write_text(path, json.dumps(content, indent=2, sort_keys=sort_keys) + "\n")


def write_npz(path: str | Path, arrays: Mapping[str, Any], *, compressed: bool = False) -> None:
    """Write named arrays to an ``.npz`` file, completely or not at all."""
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)
    write_bytes(path, buffer.getvalue())


def check_writable(path: str | Path) -> None:
    """Raise an error if ``write_bytes`` could not write this file.

    Call this before work whose result would be lost.
    """
    given_path = check_path(path)
    temporary_path = _make_temporary_path(_resolve_target(given_path)[0])
    try:
        temporary_path.touch()
    except OSError as error:
        raise _make_write_error(given_path, error) from None
    finally:
        _remove_file(temporary_path)


def _resolve_target(given_path: Path) -> tuple[Path, int | None]:
    """Return the file that a path leads to by symbolic links, and its mode, or None if it does not
    exist yet.
    """
    try:
        target = Path(os.path.realpath(given_path))
        mode = _get_file_mode(target, given_path)
        if not target.parent.is_dir():
            problem = f"the folder {target.parent} does not exist"
            raise DataError(f"{given_path} cannot be written: {problem}; create it first")
    except OSError as error:
        if isinstance(error, DataError):
            raise
        raise _make_write_error(given_path, error) from None
    return target, mode


def _make_temporary_path(target: Path) -> Path:
    """Return a path next to ``target`` that only this process and thread uses."""
    return target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")


def _remove_abandoned_files(target: Path) -> None:
    """Remove the temporary files of ``target`` whose processes no longer run."""
    prefix, suffix = f".{target.name}.", ".tmp"
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            numbers = entry.name.removeprefix(prefix).removesuffix(suffix)
            if entry.name == f"{prefix}{numbers}{suffix}" and not _is_running(numbers):
                _remove_file(Path(entry.path))


def _is_running(numbers: str) -> bool:
    """Return False if ``numbers`` are "process.thread" of a process that no longer runs."""
    process, _, thread = numbers.partition(".")
    # on Windows, signal 0 would end the process
    if os.name == "nt" or not (process.isdecimal() and thread.isdecimal()):
        return True
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # a process of another user
        return True
    return True


def _sync_folder(folder: Path) -> None:
    """Make a renamed file in this folder survive a power failure, if the system can."""
    with contextlib.suppress(OSError):  # Windows cannot open a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_folder(path: str | Path, name: str = "directory") -> Path:
    """Return the folder at ``path``, which is created if needed.

    ``name`` is the name of the argument in errors.
    """
    folder = check_path(path, name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        file_type = "a symbolic link to nowhere" if folder.is_symlink() else "a file"
        raise InvalidInput(
            f"{name} {folder} is {file_type}, not a folder; choose another"
        ) from None
    except OSError as error:
        raise DataError(
            f"{name} {folder} cannot be created: {error.strerror}{_describe_remedy(error)}"
        ) from None
    return folder


@contextlib.contextmanager
def lock_folder(folder: str | Path, *, wait: bool, lock_file: str = _LOCK_FILE) -> Iterator[None]:
    """Lock ``folder`` within this block, against other processes and against other threads of this
    process.

    If the folder is already locked, wait for it, or without ``wait`` raise ``FolderInUse``, which
    names the folder and the process. The operating system releases the lock when the process dies,
    so no stale lock remains. If the file system has no locks, ``filelock`` warns, and the existence
    of the lock file is the lock. ``lock_file`` is the name of the lock file in the folder.
    """
    from filelock import FileLock, Timeout  # not a dependency of daband-serving

    path = Path(folder) / lock_file
    if not path.parent.is_dir():  # FileLock would create it
        raise DataError(f"{folder} is not a folder")
    owner_path = path.with_name(f"{lock_file}-process")  # Windows cannot read a locked file
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        owner = "(unknown)"
        with contextlib.suppress(OSError):
            owner = owner_path.read_text("utf-8") or owner
        raise FolderInUse(
            f"{folder} is in use by process {owner}; wait until that process has finished, or"
            " choose another folder"
        ) from None
    except OSError as error:
        raise _make_write_error(path.parent, error) from None
    try:
        with contextlib.suppress(OSError):
            owner_path.write_text(str(os.getpid()), "utf-8")
        yield
    finally:
        _remove_file(owner_path)
        # The file is removed while it is locked. A process that waits with the old file open sees
        # that it is gone.
        _remove_file(path)
        lock.release()


def _get_file_mode(target: Path, given_path: Path) -> int | None:
    """Return the permissions of the file that will be replaced, or None if it does not exist.

    Raise an error that names ``given_path`` if it is not a regular file.
    """
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise DataError(f"{given_path} is a folder; give the name of a file")
    if not stat.S_ISREG(mode):
        raise DataError(
            f"{given_path} is a device, a pipe or a socket, not a file; give the name of a file"
        )
    return stat.S_IMODE(mode)


def _make_write_error(path: Path, error: OSError) -> DataError:
    """Return the error for a file that cannot be written."""
    return DataError(
        f"{path} cannot be written: {error.strerror or error}{_describe_remedy(error)}"
    )


def _describe_remedy(error: OSError) -> str:
    """Return what to do about an error of the operating system, as the end of a message, or an
    empty string.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "; free some space and try again; files written before are kept"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "; choose a folder that this user may write to"
    return ""


def _remove_file(path: Path) -> None:
    """Remove a file if it exists and can be removed."""
    with contextlib.suppress(OSError):
        path.unlink()


def get_cache_directory() -> Path:
    """Return the folder for files that daband can rebuild: ``DABAND_CACHE``, else the user's cache
    folder on this operating system.
    """
    folder = os.environ.get("DABAND_CACHE")
    if folder:
        return Path(folder).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("daband", appauthor=False)
