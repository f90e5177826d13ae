"""Write and read the durable log of the service in SQLite or Postgres: events, rewards, models and
notes.

When ``Store.append`` returns, its entries are on disk. Only one process writes at a time (by
SQLite's write lock, or an advisory lock in Postgres), so the numbers ``seq`` increase in the order
of commits. A reader that has read up to a number has not missed any entry before it, and all
readers see the same order. ``Writer`` collects the entries of many requests in one transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa

from daband.base._files import lock_folder
from daband.errors import DabandError, DataError, FolderInUse, InvalidInput

#: The version of the tables, which is stored in the note "version".
_VERSION = "6"
#: The number of the advisory lock of writers in Postgres.
_WRITE_LOCK_ID = 720_911
#: The number of the advisory lock of the worker in Postgres.
_WORKER_LOCK_ID = 720_912
#: Maximum number of attempts to write entries.
_MAX_ATTEMPTS = 3
#: Maximum number of event ids in one query.
_MAX_IDS_PER_QUERY = 500
#: Maximum number of learned models whose content is stored.
_MAX_STORED_MODELS = 10
#: Maximum number of rounds in a batch of ``read_rounds``.
_BATCH_ROUNDS = 4096

#: The tables of the log.
_metadata = sa.MetaData()
#: The column type of the numbers ``seq``. In SQLite, only an INTEGER column increments
#: automatically.
_BigInt = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


@dataclass(frozen=True, slots=True)
class Event:
    """One decision in the log.

    Attributes:
        event_id: the id of the event.
        time: the time of the decision, in seconds since 1970.
        mode: "online" (the model's arm was played), "control" (the incumbent's arm was played for
            an event drawn at random), or "fallback" (the incumbent's arm was played because the policy is proven
            to be worse).
        domain: the domain that the policy acts in.
        model: the number of the model that decided.
        arm: the arm that was played.
        propensity: the probability with which this arm was chosen.
        context: the raw row as JSON; None if the log does not store contexts.
        eligible: the indices of the arms that could be chosen, as a JSON list; None for all.
        digest: a hash of the request, to detect a different request with the same id.
        control: the probability of the control group; None if the event is not in the comparison
            with that group.
    """

    event_id: str
    time: float
    mode: str
    domain: str
    model: int
    arm: int
    propensity: float
    context: str | None
    eligible: str | None
    digest: str | None
    control: float | None = None


@dataclass(frozen=True, slots=True)
class Reward:
    """The reward of an event.

    ``kind`` is "default" if no reward arrived in time, otherwise "given".
    """

    event_id: str
    reward: float
    time: float
    kind: Literal["given", "default"] = "given"


#: An entry of the log.
Entry = Event | Reward


@dataclass(frozen=True, slots=True)
class LogAnswer:
    """The result of writing an entry.

    Attributes:
        status: "recorded", or "repeated" if the log already had the entry. For an event also
            "conflict" (a different request has this id) or "refused" (another event of its group is
            in conflict). For a reward also "refused" (the event has a different reward) or
            "unknown" (there is no such event).
        event: the event in the log, which is that of the first request if it was repeated.
        reward: the reward in the log.
        kind: the kind of this reward.
    """

    status: str
    event: Event | None = None
    reward: float | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class LoggedReward:
    """A reward in the log with its event.

    ``seq`` is the number of the reward, ``event_seq`` that of the event.
    """

    seq: int
    event_seq: int
    reward: float
    kind: str
    time: float
    event: Event


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A numbered model: an exported file, or a model learned from the log.

    Attributes:
        origin: "file" or "learned".
        base: the digest of the policy file that learning started with, or of the exported file.
        start_seq: the number of the reward after which learning started.
        learned_seq: the number of the last reward that was learned.
        rounds: the number of rounds that the policy has learned.
        digest: the digest of the model's exported file.
    """

    number: int
    time: float
    origin: str
    base: str
    start_seq: int
    learned_seq: int
    rounds: int
    digest: str


#: The type of a column, by the type of a field.
_COLUMN_TYPES = {"str": sa.Text, "float": sa.Double, "int": sa.Integer}


def _build_columns(row_class: Any, **options: dict[str, Any]) -> list[sa.Column[Any]]:
    """Return a column for each field of a dataclass.

    ``options`` has arguments of ``sa.Column`` by field name.
    """
    columns = []
    for name, field in row_class.__dataclass_fields__.items():
        type_name, _, none_type = str(field.type).partition(" | ")
        arguments: dict[str, Any] = {
            "type_": _COLUMN_TYPES.get(type_name, sa.Text)(),
            "nullable": bool(none_type),
        }
        arguments |= options.get(name, {})
        columns.append(sa.Column(name, **arguments))
    return columns


_events = sa.Table(
    "events",
    _metadata,
    sa.Column("seq", _BigInt, primary_key=True, autoincrement=True),
    *_build_columns(Event, event_id={"unique": True}, time={"index": True}),
    sqlite_autoincrement=True,
)
_rewards = sa.Table(
    "rewards",
    _metadata,
    sa.Column("seq", _BigInt, primary_key=True, autoincrement=True),
    *_build_columns(Reward, event_id={"unique": True}),
    sqlite_autoincrement=True,
)
_models = sa.Table(
    "models",
    _metadata,
    *_build_columns(
        ModelRow,
        number={"primary_key": True, "autoincrement": False},
        **{name: {"type_": _BigInt} for name in ("start_seq", "learned_seq", "rounds")},
    ),
    sa.Column("content", sa.LargeBinary),
    sa.Column("state", sa.LargeBinary),
)
_notes = sa.Table(
    "notes", _metadata, sa.Column("name", sa.Text, primary_key=True), sa.Column("text", sa.Text)
)
#: The columns of a ``LoggedReward`` after its two numbers, of an ``Event`` and of a ``ModelRow``.
_REWARD_COLUMNS = [_rewards.c[name] for name in ("reward", "kind", "time")]
_EVENT_COLUMNS = [_events.c[name] for name in Event.__dataclass_fields__]
_MODEL_COLUMNS = [_models.c[name] for name in ModelRow.__dataclass_fields__]
#: The condition that a model is an exported file.
_IS_EXPORTED_FILE = _models.c.origin == "file"


class Store:
    """A log, which is opened by its address: ``sqlite:///events.db`` or
    ``postgresql://user@host/name``.

    With ``create=False``, an SQLite file that does not exist raises an error.
    """

    def __init__(self, address: str, *, create: bool = True) -> None:
        self.address = address
        url = None
        with contextlib.suppress(sa.exc.ArgumentError, ValueError):
            url = sa.make_url(address)
        if url is None or url.get_backend_name() not in ("sqlite", "postgresql"):
            start = re.match(r"[\w.+-]*", address)
            raise InvalidInput(
                "log must be sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/NAME, got"
                f" {start and start[0]}..."
            )
        if "@" in (url.host or ""):
            raise InvalidInput("log: write an @ in the user name or the password as %40")
        self.backend = url.get_backend_name()
        if self.backend == "sqlite":
            if url.database in (None, "", ":memory:"):
                raise InvalidInput(
                    "log must be a file, e.g. sqlite:///events.db, because a log in memory would be"
                    " lost"
                )
            if not create and not Path(url.database).is_file():
                raise DataError(
                    f"there is no log {url.database}; use the address that the service has as --log"
                )
            self._engine = sa.create_engine(
                url, connect_args={"timeout": 30.0, "check_same_thread": False}
            )
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
        else:
            try:
                self._engine = sa.create_engine(
                    url.set(drivername="postgresql+psycopg"), pool_pre_ping=True
                )
            except ModuleNotFoundError:
                raise InvalidInput(
                    "a log in Postgres needs psycopg: pip install 'daband[serve]'"
                ) from None
            sa.event.listen(self._engine, "connect", _prepare_postgres)
        try:
            with self._connect_to_write() as connection:
                _metadata.create_all(connection)
                version = connection.scalar(_select_note("version"))
                if version is None:
                    connection.execute(sa.insert(_notes).values(name="version", text=_VERSION))
        except sa.exc.DBAPIError as error:
            raise DataError(
                f"the log {hide_password(address)} cannot be opened: {error.orig}"
            ) from error
        if version not in (None, _VERSION):
            raise DataError(
                f"the log is of version {version}, this daband reads version {_VERSION}; use another"
                " log"
            )

    def close(self) -> None:
        """Close all connections.

        A connection that another thread uses is closed when it is returned.
        """
        sa.event.listen(
            self._engine.pool,
            "checkin",
            lambda connection, record: record.invalidate(),  # noqa: ARG005
        )
        # threads that still run get connections of a new pool, with the same listeners
        self._engine.dispose()

    # Events and rewards.

    def append(self, entries: Sequence[Entry]) -> list[LogAnswer]:
        """Write the entries of one request, and return their results; see ``append_groups``."""
        return self.append_groups([entries])[0]

    def append_groups(self, groups: Sequence[Sequence[Entry]]) -> list[list[LogAnswer]]:
        """Write the entries of several requests in one transaction, and return their results.

        Each group holds the entries of one request. Entries are on disk when this returns. Events
        are written first, then rewards. Ids that are in the log are not written again. If a
        different request has the id of an event, no event of its group is written.
        """
        entries = [entry for group in groups for entry in group]
        event_groups = [[entry for entry in group if isinstance(entry, Event)] for group in groups]
        rewards = [entry for entry in entries if isinstance(entry, Reward)]
        for attempt in range(_MAX_ATTEMPTS):
            try:
                with self._connect_to_write() as connection:
                    # Ids are rarely repeated, so the first attempt does not check them.
                    answers: dict[int, LogAnswer] = _write_events(
                        connection, event_groups, check_ids=attempt > 0
                    )
                    answers.update(_write_rewards(connection, rewards))
                return [[answers[id(entry)] for entry in group] for group in groups]
            except sa.exc.IntegrityError:
                if attempt == _MAX_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def read_events(self, after_seq: int, limit: int) -> list[tuple[int, Event]]:
        """Return at most ``limit`` events with a number above ``after_seq``, in order, each with
        its number.
        """
        query = (
            sa.select(_events.c.seq, *_EVENT_COLUMNS)
            .where(_events.c.seq > after_seq)
            .order_by(_events.c.seq)
        )
        return [(row[0], Event(*row[1:])) for row in self._fetch_rows(query.limit(limit))]

    def read_rewards(self, after_seq: int, limit: int) -> list[LoggedReward]:
        """Return at most ``limit`` rewards with a number above ``after_seq``, in order."""
        query = (
            sa.select(_rewards.c.seq, _events.c.seq, *_REWARD_COLUMNS, *_EVENT_COLUMNS)
            .join(_events, _events.c.event_id == _rewards.c.event_id)
            .where(_rewards.c.seq > after_seq)
            .order_by(_rewards.c.seq)
            .limit(limit)
        )
        return [LoggedReward(*[*row[:5], Event(*row[5:])]) for row in self._fetch_rows(query)]

    def find_last_seq(self, table: Literal["events", "rewards"]) -> int:
        """Return the number of the newest event or reward; 0 if there is none."""
        return self._fetch_value(sa.select(sa.func.max(_metadata.tables[table].c.seq))) or 0

    def find_unrewarded(self, after_seq: int, until_seq: int, limit: int) -> list[tuple[int, str]]:
        """Return the numbers and ids of at most ``limit`` events without a reward, in order.

        Their numbers are in (after_seq, until_seq].
        """
        query = (
            sa.select(_events.c.seq, _events.c.event_id)
            .outerjoin(_rewards, _rewards.c.event_id == _events.c.event_id)
            .where(_events.c.seq > after_seq, _events.c.seq <= until_seq, _rewards.c.seq.is_(None))
            .order_by(_events.c.seq)
            .limit(limit)
        )
        return [(row[0], row[1]) for row in self._fetch_rows(query)]

    def read_rounds(
        self, start_time: float, end_time: float
    ) -> Iterator[list[tuple[Event, float]]]:
        """Yield batches of events with a time in [start_time, end_time), each with its reward."""
        last_seq = 0
        while True:
            query = (
                sa.select(_events.c.seq, _rewards.c.reward, *_EVENT_COLUMNS)
                .join(_rewards, _rewards.c.event_id == _events.c.event_id)
                .where(
                    _events.c.seq > last_seq,
                    _events.c.time >= start_time,
                    _events.c.time < end_time,
                )
                .order_by(_events.c.seq)
                .limit(_BATCH_ROUNDS)
            )
            rows = self._fetch_rows(query)
            if not rows:
                return
            yield [(Event(*row[2:]), row[1]) for row in rows]
            last_seq = rows[-1][0]

    # Models and notes.

    def add_model(
        self,
        content: bytes,
        *,
        time: float,
        origin: Literal["file", "learned"],
        base: str,
        start_seq: int | None = None,
        learned_seq: int | None = None,
        rounds: int = 0,
        state: bytes | None = None,
        file_number: int | None = None,
    ) -> ModelRow:
        """Add a model with the next number, and return its row.

        Older contents and states are deleted. The log stores the content of exported files, of the
        newest 10 learned models and of the pinned model, and the state of the newest learned model.

        Args:
            content: the exported file.
            time: the time of publication, in seconds since 1970.
            origin: as in ``ModelRow``.
            base: as in ``ModelRow``.
            start_seq: as in ``ModelRow``; by default the number of the newest reward.
            learned_seq: as in ``ModelRow``; by default the number of the newest reward.
            rounds: as in ``ModelRow``.
            state: the saved policy, from which the learner can continue.
            file_number: the number of the exported file that a learned model replaces. It must be
                the newest file.
        """
        max_number = sa.func.max(_models.c.number)
        max_seq = sa.func.max(_rewards.c.seq)
        with self._connect_to_write() as connection:
            last_number = connection.scalar(sa.select(max_number))
            newest_file_number = connection.scalar(sa.select(max_number).where(_IS_EXPORTED_FILE))
            if file_number not in (None, newest_file_number):
                raise InvalidInput(
                    "another file was published since, which this model does not belong to"
                )
            if start_seq is None or learned_seq is None:
                start_seq = learned_seq = connection.scalar(sa.select(max_seq)) or 0
            row = ModelRow(
                number=0 if last_number is None else last_number + 1,
                time=time,
                origin=origin,
                base=base,
                start_seq=start_seq,
                learned_seq=learned_seq,
                rounds=rounds,
                digest=hashlib.sha256(content).hexdigest(),
            )
            if state is not None:
                connection.execute(
                    sa.update(_models).values(state=None).where(_models.c.state.is_not(None))
                )
            connection.execute(
                sa.insert(_models).values(**asdict(row), content=content, state=state)
            )
            is_old = _models.c.number < row.number - _MAX_STORED_MODELS
            pinned = connection.scalar(_select_note("pinned"))
            if pinned:
                is_old &= _models.c.number != int(pinned)
            connection.execute(
                sa.update(_models).values(content=None).where(is_old, _models.c.origin == "learned")
            )
        return row

    def list_models(self) -> list[tuple[ModelRow, bool]]:
        """Return all models, newest first, each with True if its content is stored."""
        query = sa.select(_models.c.content.is_not(None), *_MODEL_COLUMNS).order_by(
            _models.c.number.desc()
        )
        return [(ModelRow(*row[1:]), bool(row[0])) for row in self._fetch_rows(query)]

    def find_newest_file(self) -> int:
        """Return the model number of the newest exported file; -1 if there is none."""
        number = self._fetch_value(
            sa.select(sa.func.max(_models.c.number)).where(_IS_EXPORTED_FILE)
        )
        return -1 if number is None else int(number)

    def find_current_model(self) -> int | None:
        """Return the number of the model that decides: the pinned model, or the newest; None
        without models.
        """
        pinned = self.read_note("pinned")
        if pinned:
            return int(pinned)
        return self._fetch_value(sa.select(sa.func.max(_models.c.number)))

    def read_content(self, number: int) -> bytes:
        """Return the exported file of a model."""
        content = self._read_bytes(number, "content")
        if content is None:
            raise InvalidInput(f"there is no model {number}; GET /models lists the stored ones")
        return content

    def read_state(self, number: int) -> bytes | None:
        """Return the state of the learner when it published this model; None if it is not
        stored.
        """
        return self._read_bytes(number, "state")

    def _read_bytes(self, number: int, column: str) -> bytes | None:
        """Return the "content" or "state" of a model, or None if it is not stored."""
        content = self._fetch_value(sa.select(_models.c[column]).where(_models.c.number == number))
        return None if content is None else bytes(content)

    def pin(self, number: int | None) -> None:
        """Let the model with this number decide from now on. None lets the newest model decide."""
        if number is not None:
            self.read_content(number)
        self.write_note("pinned", "" if number is None else str(number))

    def read_note(self, name: str) -> str | None:
        """Return a note, i.e. a text that all processes of the service can read and write; None if
        it is missing.
        """
        return self._fetch_value(_select_note(name))

    def change_note(self, name: str, change: Callable[[str | None], str]) -> str:
        """Replace the note with this name by ``change(note)`` in one transaction, and return the
        new text.
        """
        with self._connect_to_write() as connection:
            text = change(connection.scalar(_select_note(name)))
            update_result = connection.execute(
                sa.update(_notes).values(text=text).where(_notes.c.name == name)
            )
            if not update_result.rowcount:
                connection.execute(sa.insert(_notes).values(name=name, text=text))
        return text

    def write_note(self, name: str, text: str) -> None:
        """Write the note with this name."""
        self.change_note(name, lambda _: text)

    @contextlib.contextmanager
    def try_worker_lock(self) -> Iterator[bool]:
        """Yield True if this process got the lock of the worker, else False.

        It is held while the context is open.

        Only the process with this lock may do the background work of the log.
        """
        if self.backend == "sqlite":
            path = Path(f"{self._engine.url.database}-worker")
            with contextlib.ExitStack() as locks:
                try:
                    locks.enter_context(lock_folder(path.parent, wait=False, lock_file=path.name))
                except FolderInUse:
                    yield False
                else:
                    yield True
            return
        with self._engine.connect() as connection:
            has_lock = bool(
                connection.scalar(sa.select(sa.func.pg_try_advisory_lock(_WORKER_LOCK_ID)))
            )
            connection.commit()
            try:
                yield has_lock
            finally:
                if has_lock:
                    connection.execute(sa.select(sa.func.pg_advisory_unlock(_WORKER_LOCK_ID)))

    # Connections.

    @contextlib.contextmanager
    def _connect_to_write(self) -> Iterator[sa.Connection]:
        """Yield a connection with a transaction that holds the lock of writers."""
        with self._engine.connect() as base_connection:
            connection = base_connection.execution_options(daband_writes=True)
            with connection.begin():
                if self.backend == "postgresql":
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_WRITE_LOCK_ID)))
                yield connection

    def _connect_to_read(self) -> sa.Connection:
        """Return a connection for queries."""
        return self._engine.connect()

    def _fetch_rows(self, query: sa.Select[Any]) -> list[Any]:
        """Return the rows of a query."""
        with self._connect_to_read() as connection:
            return list(connection.execute(query))

    def _fetch_value(self, query: sa.Select[Any]) -> Any:
        """Return the first value of a query's first row; None if it has no row."""
        with self._connect_to_read() as connection:
            return connection.scalar(query)


def _select_note(name: str) -> sa.Select[Any]:
    """Return the query of the text of a note."""
    return sa.select(_notes.c.text).where(_notes.c.name == name)


def hide_password(address: str) -> str:
    """Return the address of a log for messages: without user, password and options, if it is not a
    file.
    """
    scheme, _, rest = address.partition("://")
    if scheme == "sqlite":
        return address
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


def _prepare_sqlite(connection: Any, record: Any) -> None:  # noqa: ARG001
    """Configure a new connection so that commits are on disk."""
    connection.isolation_level = None  # _begin_sqlite starts transactions
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    # a limit on the size of the log, for operators and tests
    if limit := os.environ.get("DABAND_SQLITE_MAX_PAGES"):
        cursor.execute(f"PRAGMA max_page_count={int(limit)}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    """Start a transaction, with the write lock if it writes."""
    is_writing = connection.get_execution_options().get("daband_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")


def _prepare_postgres(connection: Any, record: Any) -> None:  # noqa: ARG001
    """Configure a new connection so that commits are on disk."""
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit TO on")
    connection.commit()


def _split_ids(ids: Iterable[str]) -> Iterator[list[str]]:
    """Yield the distinct ids in batches of at most 500."""
    unique_ids = list(dict.fromkeys(ids))
    for start in range(0, len(unique_ids), _MAX_IDS_PER_QUERY):
        yield unique_ids[start : start + _MAX_IDS_PER_QUERY]


def _find_events(connection: sa.Connection, ids: Iterable[str]) -> dict[str, Event]:
    """Return the events in the log with these ids, by id."""
    events_by_id = {}
    for id_batch in _split_ids(ids):
        for row in connection.execute(
            sa.select(*_EVENT_COLUMNS).where(_events.c.event_id.in_(id_batch))
        ):
            events_by_id[row[0]] = Event(*row)
    return events_by_id


def _write_events(
    connection: sa.Connection, groups: Sequence[Sequence[Event]], *, check_ids: bool
) -> dict[int, LogAnswer]:
    """Write events, and return the result of each by ``id(event)``.

    ``check_ids`` looks for events with their ids.
    """
    ids = (event.event_id for group in groups for event in group)
    events_by_id = _find_events(connection, ids) if check_ids else {}
    answers = {}
    new_rows = []
    for group in groups:
        has_conflict = any(
            events_by_id.get(event.event_id, event).digest != event.digest for event in group
        )
        for event in group:
            old_event = events_by_id.get(event.event_id)
            if old_event is not None:
                status = "repeated" if old_event.digest == event.digest else "conflict"
                answers[id(event)] = LogAnswer(status, old_event)
            elif has_conflict:
                answers[id(event)] = LogAnswer("refused")
            else:
                events_by_id[event.event_id] = event
                new_rows.append({name: getattr(event, name) for name in Event.__dataclass_fields__})
                answers[id(event)] = LogAnswer("recorded", event)
    if new_rows:
        connection.execute(sa.insert(_events), new_rows)
    return answers


def _write_rewards(connection: sa.Connection, rewards: Sequence[Reward]) -> dict[int, LogAnswer]:
    """Write rewards, and return the result of each by ``id(reward)``."""
    if not rewards:
        return {}
    #: The reward and its kind of each event in the log, by id; (None, None) if it has no reward.
    rewards_by_id: dict[str, tuple[float | None, str | None]] = {}
    for id_batch in _split_ids(entry.event_id for entry in rewards):
        query = (
            sa.select(_events.c.event_id, _rewards.c.reward, _rewards.c.kind)
            .outerjoin(_rewards, _rewards.c.event_id == _events.c.event_id)
            .where(_events.c.event_id.in_(id_batch))
        )
        rewards_by_id.update({row[0]: (row[1], row[2]) for row in connection.execute(query)})
    answers = {}
    new_rows = []
    for entry in rewards:
        old_reward, old_kind = rewards_by_id.get(entry.event_id, (None, None))
        if entry.event_id not in rewards_by_id:
            answers[id(entry)] = LogAnswer("unknown")
        elif old_reward is not None:
            is_repeated = old_reward == entry.reward or entry.kind == "default"
            answers[id(entry)] = LogAnswer(
                "repeated" if is_repeated else "refused", None, old_reward, old_kind
            )
        else:
            rewards_by_id[entry.event_id] = entry.reward, entry.kind
            answers[id(entry)] = LogAnswer("recorded", None, entry.reward, entry.kind)
            new_rows.append({name: getattr(entry, name) for name in Reward.__dataclass_fields__})
    if new_rows:
        connection.execute(sa.insert(_rewards), new_rows)
    return answers


class LogFailed(DabandError, RuntimeError):
    """The log cannot be written. Nothing was acknowledged to the client."""


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
        except sa.exc.OperationalError as error:  # for example a full disk or a lost connection
            self.failure = str(error.orig)
            return [LogFailed(f"the log cannot be written: {error.orig}")] * len(groups)
        except Exception as error:
            self.failure = f"{type(error).__name__}"
            if len(groups) > 1:
                return [self._write_once([entries])[0] for entries in groups]
            return [LogFailed(f"the entry cannot be written: {type(error).__name__}")]
        self.n_transactions += 1
        self.n_written += sum(map(len, groups))
        self.transaction_seconds += time.perf_counter() - started_at
        return outcomes
