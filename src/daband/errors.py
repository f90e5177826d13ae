"""Define the errors that daband raises on purpose. All derive from ``DabandError``.

Each also derives from the built-in error that a caller would expect, so ``except ValueError`` keeps
working.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "DabandError",
    "DataError",
    "DeviceOutOfMemory",
    "FolderInUse",
    "InvalidInput",
    "NotFitted",
    "TrainingDiverged",
    "WorkerDied",
]


class DabandError(Exception):
    """The base class of every error that daband raises on purpose.

    >>> try:
    ...     daband.load("no-such-file.safetensors")
    ... except daband.DabandError as error:
    ...     print(type(error).__name__)
    CheckpointError
    """


class InvalidInput(DabandError, ValueError):
    """An argument has an invalid type, shape or value. The message names the argument.

    Nothing was changed.

    >>> daband.LinUCB(context_shape=(2,), n_arms=0)
    Traceback (most recent call last):
    daband.errors.InvalidInput: n_arms must be an integer >= 1, got 0
    """


class NotFitted(DabandError, RuntimeError):
    """An object must be fitted before it can be used. The message names the method to call.

    >>> policy = daband.LinUCB(context_shape=(4,), n_arms=2, transform=daband.PCA(2))
    >>> policy.select([[0.0, 1.0, 0.0, 1.0]])
    Traceback (most recent call last):
    daband.errors.NotFitted: ...
    """


class CheckpointError(DabandError, OSError):
    """A saved file cannot be read.

    It may be truncated or damaged, in another or newer format, or a pickle.

    >>> with open("broken.safetensors", "wb") as file:
    ...     written = file.write(b"not a policy")
    >>> daband.load("broken.safetensors")
    Traceback (most recent call last):
    daband.errors.CheckpointError: ...broken.safetensors...
    """


class DataError(DabandError, OSError):
    """Data on disk is missing or damaged. The message names the file and the remedy.

    >>> columns = daband.domains.Columns(context=["age"], label="offer")
    >>> daband.domains.from_table(source="no-such.csv", target="new.csv", columns=columns)
    Traceback (most recent call last):
    daband.errors.DataError: ...no-such.csv...
    """


class FolderInUse(DabandError, RuntimeError):
    """Another process or thread is using a folder. The message names the folder and the process."""


class WorkerDied(DabandError, RuntimeError):
    """A worker process has died. The files that it wrote before are kept."""


class TrainingDiverged(DabandError, ArithmeticError):
    """A loss or parameter was not finite after gradient steps, which are undone.

    >>> issubclass(daband.TrainingDiverged, ArithmeticError)
    True
    """


class DeviceOutOfMemory(DabandError, MemoryError):
    """A gradient step needs more memory than the device has. The message suggests what to try."""


def did_you_mean(name: str, known_names: Iterable[str]) -> str:
    """Return the end of an error message that suggests the most similar known name; empty if none
    is similar.

    An example is ``"; did you mean 'episodes'?"``.
    """
    matches = difflib.get_close_matches(name, list(known_names), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""
