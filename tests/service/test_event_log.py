"""The log: what cannot be one, and groups of entries with one that fails."""

import asyncio

import pytest

from daband.errors import DataError, InvalidInput
from daband.service._event_log import Event, LogFailed, Store, Writer


def test_a_group_that_fails_for_ones_sake_is_written_one_by_one(sqlite_log):
    store = Store(sqlite_log)

    def event(name, arm):
        return Event(name, 1.0, "online", "source", 0, arm, 1.0, None, None, None)

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


@pytest.mark.parametrize("address", ["events.db", "mysql://x/y", "sqlite://", "sqlite:///:memory:"])
def test_a_log_that_cannot_be_is_refused(address):
    with pytest.raises(InvalidInput, match=r"^log"):
        Store(address)


@pytest.mark.parametrize(
    "address",
    [
        "mysql://u:hunter2@db/x",
        "host=db password=hunter2",
        "postgresql://u:hunter2@db:port/x",
        "postgresql://u:hun@hunter2@127.0.0.1:1/x",
        "postgresql://u:hunter2@127.0.0.1:1/x",
        "postgresql://127.0.0.1:1/x?user=u&password=hunter2",
    ],
)
def test_no_message_has_the_password_of_a_log(address):
    with pytest.raises((InvalidInput, DataError), match="log") as raised:
        Store(address)
    assert "hunter2" not in str(raised.value)


def test_a_log_that_cannot_be_opened_says_why(tmp_path):
    with pytest.raises(DataError, match=f"{tmp_path}.*opened"):
        Store(f"sqlite:///{tmp_path}/no/such/folder/events.db")
    (tmp_path / "text.db").write_text(
        "this is no database, and long enough to be seen as none" * 50
    )
    with pytest.raises(DataError, match=f"{tmp_path}.*opened"):
        Store(f"sqlite:///{tmp_path}/text.db")
