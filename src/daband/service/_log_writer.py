"""Group commit: requests that arrive while the disk is busy are written in one transaction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from daband.errors import DabandError
from daband.service._event_log import Entry, LogAnswer, Store


class LogFailed(DabandError, RuntimeError):
    """The log could not be written; nothing was acknowledged."""


class LogBusy(LogFailed):
    """Too many entries wait for the disk."""


class Writer:
    """The writer of a process. Many requests share one flush to disk, which limits the rate.

    While a group is written in a thread, the next one collects. A request is answered when its group is on disk.
    ``failure`` is the reason why the latest group was not written, or empty.
    """

    def __init__(self, store: Store, *, most_waiting: int) -> None:
        self._store = store
        self._most = most_waiting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="daband-log")
        self._groups: list[tuple[Sequence[Entry], asyncio.Future[list[LogAnswer]]]] = []
        self._waiting = 0
        self._running: asyncio.Task[None] | None = None
        self.failure = ""
        self.written = self.transactions = 0
        self.seconds = 0.0

    async def write(self, entries: Sequence[Entry]) -> list[LogAnswer]:
        """Write entries, and return their results once they are on disk."""
        if self._waiting + len(entries) > self._most:
            raise LogBusy(f"{self._waiting:,} entries wait for the log; try again later")
        future: asyncio.Future[list[LogAnswer]] = asyncio.get_running_loop().create_future()
        self._groups.append((entries, future))
        self._waiting += len(entries)
        if self._running is None:
            self._running = asyncio.create_task(self._write_groups())
        return await future

    async def close(self) -> None:
        """Write what waits, and stop the thread."""
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

    def _append(self, groups: list[Sequence[Entry]]) -> list[list[LogAnswer] | Exception]:
        """Write all groups in one transaction, in the thread. If one of them fails, write each by itself."""
        started = time.perf_counter()
        try:
            outcomes: list[list[LogAnswer] | Exception] = [*self._store.append_groups(groups)]
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
        self.seconds += time.perf_counter() - started
        return outcomes
