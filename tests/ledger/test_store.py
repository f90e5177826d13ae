"""The ledger's database: addresses that cannot be one, and messages without passwords."""

import pytest

from daband.errors import DataError, InvalidInput
from daband.ledger._store import Store


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
