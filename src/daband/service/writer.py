"""Group commit: what requests want written is collected while the disk is busy, and written in one transaction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from daband.errors import DabandError
from daband.service.store import Answer, Entry, Store

__all__ = ["LogBusy", "LogFailed", "Writer"]


class LogFailed(DabandError, RuntimeError):
    """The log could not be written; nothing was acknowledged."""


class LogBusy(LogFailed):
    """Too much waits for the disk."""


class Writer:
    """The one writer of a process. Many requests share one flush to disk, which is what bounds the rate.

    While a group is being written in a thread, the next one collects. A request is answered after its group is on disk.
    """

    def __init__(self, store: Store, *, most_waiting: int) -> None:
        self._store = store
        self._most = most_waiting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="daband-log")
        self._groups: list[tuple[Sequence[Entry], asyncio.Future[list[Answer]]]] = []
        self._waiting = 0
        self._running: asyncio.Task[None] | None = None
        self.failure = ""
        """Why the latest group was not written; empty where it was."""
        self.written = self.transactions = 0
        self.seconds = 0.0

    async def write(self, entries: Sequence[Entry]) -> list[Answer]:
        """Write entries, and return what became of them once they are on disk."""
        if self._waiting + len(entries) > self._most:
            raise LogBusy(f"{self._waiting:,} entries wait for the log; try again later")
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self._groups.append((entries, future))
        self._waiting += len(entries)
        if self._running is None:
            self._running = asyncio.create_task(self._write_groups())
        return await future

    async def close(self) -> None:
        """Write what waits, and end."""
        if self._running is not None:
            await self._running
        self._thread.shutdown()

    async def _write_groups(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._groups:
                groups, self._groups = self._groups, []
                outcomes = await loop.run_in_executor(self._thread, self._append, [entries for entries, _ in groups])
                for (entries, future), outcome in zip(groups, outcomes, strict=True):
                    self._waiting -= len(entries)
                    if future.done():  # the client has left; its entries are in the log
                        continue
                    if isinstance(outcome, Exception):
                        future.set_exception(outcome)
                    else:
                        future.set_result(outcome)
        finally:
            self._running = None

    def _append(self, groups: list[Sequence[Entry]]) -> list[list[Answer] | Exception]:
        """In the thread: all groups in one transaction; where that fails for one's sake, each by itself."""
        begun = time.perf_counter()
        try:
            answers = iter(self._store.append([entry for entries in groups for entry in entries]))
            outcomes: list[list[Answer] | Exception] = [[next(answers) for _ in entries] for entries in groups]
            self.failure = ""
        except sa.exc.OperationalError as error:  # the disk, or the connection
            self.failure = str(error.orig)
            return [LogFailed(f"the log cannot be written: {error.orig}")] * len(groups)
        except Exception as error:
            self.failure = f"{type(error).__name__}"
            if len(groups) > 1:
                return [self._append([entries])[0] for entries in groups]
            return [LogFailed(f"the log refuses the entry: {type(error).__name__}")]
        self.transactions += 1
        self.written += sum(map(len, groups))
        self.seconds += time.perf_counter() - begun
        return outcomes
