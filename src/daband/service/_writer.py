"""Write the entries of many requests to the ledger in one transaction (``Writer``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from daband.ledger._store import Entry, LogAnswer, LogFailed, Store


class Writer:
    """Writes the entries of many requests in one transaction, because the rate is limited by
    flushes to disk.

    While the entries of some requests are written in a thread, the entries of the next requests are
    collected. A request is answered when its entries are on disk.

    Attributes:
        failure: the reason why the last transaction failed, or empty.
        n_written: the number of entries that were written.
        n_transactions: the number of transactions.
        transaction_seconds: the time that transactions took.
    """

    def __init__(self, store: Store, *, max_waiting_entries: int) -> None:
        self._store = store
        self._max_waiting_entries = max_waiting_entries
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="daband-log")
        self._waiting_requests: list[tuple[Sequence[Entry], asyncio.Future[list[LogAnswer]]]] = []
        self._n_waiting_entries = 0
        self._writing_task: asyncio.Task[None] | None = None
        self.failure = ""
        self.n_written = self.n_transactions = 0
        self.transaction_seconds = 0.0

    async def write(self, entries: Sequence[Entry]) -> list[LogAnswer]:
        """Write the entries of a request, and return their results when they are on disk."""
        if self._n_waiting_entries + len(entries) > self._max_waiting_entries:
            raise LogFailed(
                f"{self._n_waiting_entries:,} entries wait for the log; try again later"
            )
        future: asyncio.Future[list[LogAnswer]] = asyncio.get_running_loop().create_future()
        self._waiting_requests.append((entries, future))
        self._n_waiting_entries += len(entries)
        if self._writing_task is None:
            self._writing_task = asyncio.create_task(self._write_groups())
        return await future

    async def close(self) -> None:
        """Write the waiting entries, and stop the thread."""
        if self._writing_task is not None:
            await self._writing_task
        self._thread.shutdown()

    async def _write_groups(self) -> None:
        """Write the entries of waiting requests until none is left."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting_requests:
                requests = self._waiting_requests
                self._waiting_requests = []
                entry_groups = [entries for entries, _ in requests]
                outcomes = await loop.run_in_executor(self._thread, self._write_once, entry_groups)
                for (entries, future), outcome in zip(requests, outcomes, strict=True):
                    self._n_waiting_entries -= len(entries)
                    if future.done():  # the client has disconnected, but its entries are in the log
                        continue
                    if isinstance(outcome, Exception):
                        future.set_exception(outcome)
                    else:
                        future.set_result(outcome)
        finally:
            self._writing_task = None

    def _write_once(self, groups: list[Sequence[Entry]]) -> list[list[LogAnswer] | Exception]:
        """Write all groups in one transaction, and return their results.

        If that fails, write each group separately.
        """
        started_at = time.perf_counter()
        try:
            outcomes: list[list[LogAnswer] | Exception] = [*self._store.append_groups(groups)]
            self.failure = ""
        except Exception as error:  # for example a full disk, or an entry that cannot be stored
            self.failure = str(error) if isinstance(error, LogFailed) else type(error).__name__
            if len(groups) > 1:
                return [self._write_once([entries])[0] for entries in groups]
            return [LogFailed(f"the log cannot be written: {self.failure}")]
        self.n_transactions += 1
        self.n_written += sum(map(len, groups))
        self.transaction_seconds += time.perf_counter() - started_at
        return outcomes
