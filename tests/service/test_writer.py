"""Groups of entries with one that fails."""

import asyncio

import pytest

from daband.ledger._store import Event, LogFailed, Store
from daband.service._writer import Writer


def test_a_group_that_fails_for_ones_sake_is_written_one_by_one(sqlite_log):
    store = Store(sqlite_log)

    def event(name, arm):
        return Event(name, 1.0, "policy", "source", 0, arm, 1.0, None, None, None)

    async def write():
        writer = Writer(store, max_waiting_entries=10)
        outcomes = await asyncio.gather(
            writer.write([event("a", 0)]),
            writer.write([event("b", "x" * 3)]),
            writer.write([event("c", 10**30)]),
            writer.write([event("d", 1)]),
            return_exceptions=True,
        )
        with pytest.raises(LogFailed, match="wait"):
            await writer.write([event(f"n{i}", 0) for i in range(11)])
        await writer.close()
        return outcomes

    outcomes = asyncio.run(write())
    assert isinstance(outcomes[2], LogFailed)
    assert outcomes[0][0].status == outcomes[3][0].status == "recorded"
    assert {"a", "d"} <= {one.event_id for _, one in store.read_events(0, 9)}
    store.close()
