"""The errors a user of daband can meet, all under one roof.

Each also derives from the built-in error that an outsider would expect, so ``except ValueError`` keeps working.
"""

__all__ = [
    "CheckpointError",
    "DabandError",
    "DataError",
    "DeviceOutOfMemory",
    "FolderInUse",
    "InvalidInput",
    "NotFitted",
    "TrainingDiverged",
]


class DabandError(Exception):
    """The root of every error that daband raises on purpose."""


class InvalidInput(DabandError, ValueError):
    """An argument has the wrong shape or value. The message names the argument; nothing was changed."""


class NotFitted(DabandError, RuntimeError):
    """Something must be fitted before it can be used; the message says what to call."""


class CheckpointError(DabandError, OSError):
    """A saved file cannot be read: truncated, foreign, of a newer format, or a pickle."""


class DataError(DabandError, OSError):
    """Data on disk is missing or damaged; the message names the file and the remedy."""


class FolderInUse(DabandError, RuntimeError):
    """Another process, or another thread, is at work in the folder; the message names both."""


class TrainingDiverged(DabandError, ArithmeticError):
    """Several gradient steps in a row were not finite. What was learned before them is kept."""


class DeviceOutOfMemory(DabandError, MemoryError):
    """A gradient step needs more memory than the device has; the message says what to try."""
