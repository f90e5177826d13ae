"""Write and read the ledger of a market: what was exported, what was decided, and what came of it.

The ledger is a database, in SQLite or in Postgres. When ``Store.append`` returns, its entries are
on disk. Only one process writes at a time (by SQLite's write lock, or an advisory lock in
Postgres), so the numbers ``seq`` increase in the order of commits. A reader that has read up to a
number has not missed any entry before it, and all readers see the same order.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from daband.base._files import lock_folder
from daband.errors import DabandError, DataError, FolderInUse, InvalidInput

#: The version of the tables, which is stored in the note "schema".
_SCHEMA = "1"
#: The number of the advisory lock of writers in Postgres.
_WRITE_LOCK_ID = 720_911
#: The number of the advisory lock of the worker in Postgres.
_WORKER_LOCK_ID = 720_912
#: Maximum number of event ids in one query.
_MAX_IDS_PER_QUERY = 500
#: Maximum number of learned models whose content is stored.
_MAX_STORED_MODELS = 10
#: Seconds to wait for another process that writes.
_WAIT_SECONDS = 30.0
#: The codes of Postgres for a shutdown, a crash and a start that has not ended.
_SHUTDOWN_STATES = ("57P01", "57P02", "57P03")
#: The tables. The words in braces depend on the database.
_TABLES = (
    "notes (name TEXT PRIMARY KEY, text TEXT)",
    "events (seq {serial}, event_id TEXT NOT NULL UNIQUE, time {float} NOT NULL, role TEXT NOT"
    " NULL, domain TEXT NOT NULL, model INTEGER NOT NULL, arm INTEGER NOT NULL, propensity {float}"
    " NOT NULL, context TEXT, eligible TEXT, digest TEXT, control {float}, log INTEGER)",
    "rewards (seq {serial}, event_id TEXT NOT NULL, reward {float} NOT NULL, time {float} NOT NULL,"
    " kind TEXT NOT NULL, guardrail {float})",
    "models (number INTEGER PRIMARY KEY, time {float} NOT NULL, origin TEXT NOT NULL, base TEXT NOT"
    " NULL, start_seq BIGINT NOT NULL, learned_seq BIGINT NOT NULL, rounds BIGINT NOT NULL, digest"
    " TEXT NOT NULL, version INTEGER NOT NULL, content {blob}, state {blob})",
    "versions (number INTEGER PRIMARY KEY, time {float} NOT NULL, reward_seq BIGINT NOT NULL,"
    " event_seq BIGINT NOT NULL, restarts INTEGER NOT NULL, digest TEXT NOT NULL)",
)
#: The indices of the tables.
_INDICES = (
    "events_time ON events (time)",
    "events_model ON events (model)",
    "rewards_event ON rewards (event_id)",
)
#: The types of columns in each database.
_TYPES = {
    "sqlite": {
        "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "float": "REAL",
        "blob": "BLOB",
    },
    "postgresql": {
        "serial": "BIGSERIAL PRIMARY KEY",
        "float": "DOUBLE PRECISION",
        "blob": "BYTEA",
    },
}


@dataclass(frozen=True, slots=True)
class Event:
    """One decision in the ledger.

    Attributes:
        event_id: the id of the decision.
        time: the time of the decision, in seconds since 1970.
        role: "policy" (the model's arm was played), "exploration" (another arm was drawn),
            "control" (the incumbent's arm was played for an event drawn at random), "pilot" (the
            model's arm was played in a pilot), "fallback" (the incumbent's arm was played because
            the policy is proven to be worse), or "external" (another system decided).
        domain: the domain that the policy acts in.
        model: the number of the model that decided; -1 for an external decision.
        arm: the arm that was played.
        propensity: the probability with which this arm was chosen.
        context: the raw row as JSON; None if contexts are not stored.
        eligible: the indices of the arms that could be chosen, as a JSON list; None for all.
        digest: a hash of the request, to detect a different request with the same id.
        control: the probability of the control group; None if the event is not in the comparison
            with that group.
        log: the number of the log that it was read from; None if it was decided online.
    """

    event_id: str
    time: float
    role: str
    domain: str
    model: int
    arm: int
    propensity: float
    context: str | None
    eligible: str | None
    digest: str | None
    control: float | None = None
    log: int | None = None


@dataclass(frozen=True, slots=True)
class Reward:
    """The reward of an event.

    ``kind`` is "default" if no reward arrived in time, "corrected" if it replaces another reward,
    otherwise "given". ``guardrail`` is the second outcome.
    """

    event_id: str
    reward: float
    time: float
    kind: Literal["given", "default", "corrected"] = "given"
    guardrail: float | None = None


#: An entry of the ledger.
Entry = Event | Reward


@dataclass(frozen=True, slots=True)
class LogAnswer:
    """The result of writing an entry.

    Attributes:
        status: "recorded", or "repeated" if the ledger already had the entry. For an event also
            "conflict" (a different request has this id) or "refused" (another event of its group is
            in conflict). For a reward also "refused" (the event has a different reward) or
            "unknown" (there is no such event).
        event: the event in the ledger, which is that of the first request if it was repeated.
        reward: the reward in the ledger.
        kind: the kind of this reward.
    """

    status: str
    event: Event | None = None
    reward: float | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class LoggedReward:
    """A reward in the ledger with its event.

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
    """A numbered model: an exported file, or a model that a service has learned.

    Attributes:
        origin: "file" or "learned".
        base: the digest of the policy file that learning started with, or of the exported file.
        start_seq: the number of the reward after which learning started.
        learned_seq: the number of the last reward that was learned.
        rounds: the number of rounds that the policy has learned.
        digest: the digest of the model's exported file.
        version: the version of the policy.
    """

    number: int
    time: float
    origin: str
    base: str
    start_seq: int
    learned_seq: int
    rounds: int
    digest: str
    version: int


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version of the market's policy, which has learned the rewards of the ledger up to a number.

    Attributes:
        number: the version; the chosen policy is version 0.
        time: the time at which it was learned.
        reward_seq: the number of the last reward that it has learned.
        event_seq: the number of the newest event at that time.
        restarts: True if it has learned all rewards again, because some were corrected.
        digest: a hash of the chosen policy and of all rewards that the version has learned.
    """

    number: int
    time: float
    reward_seq: int
    event_seq: int
    restarts: bool
    digest: str


def _list_columns(row_class: Any, prefix: str = "") -> str:
    """Return the columns of the fields of a dataclass, for a query."""
    return ", ".join(prefix + field.name for field in fields(row_class))


#: The columns of a ``LoggedReward`` and its event.
_REWARD_QUERY = (
    f"SELECT r.seq, e.seq, r.reward, r.kind, r.time, {_list_columns(Event, 'e.')} FROM rewards r"
    " JOIN events e ON e.event_id = r.event_id"
)


class LogFailed(DabandError, RuntimeError):
    """The ledger cannot be read or written. Nothing was acknowledged.

    ``was_dropped`` is True if the database ended the connection, or if it restarts.
    """

    was_dropped = False


class Store:
    """A ledger, which is opened by its address: ``sqlite:///ledger.db`` or
    ``postgresql://user@host/name``.

    With ``create=False``, an SQLite file that does not exist raises an error.
    """

    def __init__(self, address: str, *, create: bool = True) -> None:
        self.address = address
        scheme, separator, rest = address.partition("://")
        self.backend = {"postgres": "postgresql"}.get(scheme, scheme)
        if not separator or self.backend not in _TYPES:
            start = re.match(r"[\w.+-]*", address)
            raise InvalidInput(
                "log must be sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/NAME, got"
                f" {start and start[0]}..."
            )
        self._path = Path(rest[1:])
        if self.backend == "sqlite":
            if rest[:1] != "/" or rest[1:] in ("", ":memory:"):
                raise InvalidInput(
                    "log must be a file, e.g. sqlite:///events.db, because a log in memory would be"
                    " lost"
                )
            if not create and not self._path.is_file():
                raise DataError(
                    f"there is no log {self._path}; use the address that the service has as --log"
                )
            self._failure: type[Exception] = sqlite3.Error
        else:
            if rest.partition("/")[0].count("@") > 1:
                raise InvalidInput("log: write an @ in the user name or the password as %40")
            try:
                import psycopg
            except ImportError:  # also if it finds no library
                raise InvalidInput(
                    "a log in Postgres needs psycopg: pip install 'daband[serve]'"
                ) from None
            self._failure = psycopg.Error
        self._lock = threading.Lock()
        self._idle_connections: list[Any] = []
        self._is_closed = False
        try:
            schema = self._create_tables()
        except LogFailed as error:
            raise DataError(
                f"the log {hide_password(address)} cannot be opened: {error}"
            ) from error
        if schema != _SCHEMA:
            raise DataError(
                f"the log has tables of version {schema}, this daband reads version {_SCHEMA}; use"
                " another log"
            )

    def _create_tables(self) -> str:
        """Create the tables that do not exist, and return their version."""
        with self.transact() as transaction:
            for table in _TABLES:
                transaction.run(f"CREATE TABLE IF NOT EXISTS {table}".format(**self._types))
            for index in _INDICES:
                transaction.run(f"CREATE INDEX IF NOT EXISTS {index}")
            schema = transaction.read_note("schema")
            if schema is None:
                transaction.write_note("schema", _SCHEMA)
            return schema or _SCHEMA

    @property
    def _types(self) -> dict[str, str]:
        return _TYPES[self.backend]

    def close(self) -> None:
        """Close all connections.

        A connection that another thread uses is closed when it is returned.
        """
        with self._lock:
            self._is_closed = True
            connections, self._idle_connections = self._idle_connections, []
        for connection in connections:
            connection.close()

    # Events and rewards.

    def append(self, entries: Sequence[Entry]) -> list[LogAnswer]:
        """Write the entries of one request, and return their results; see ``append_groups``."""
        return self.append_groups([entries])[0]

    def append_groups(self, groups: Sequence[Sequence[Entry]]) -> list[list[LogAnswer]]:
        """Write the entries of several requests in one transaction, and return their results.

        Each group holds the entries of one request. Entries are on disk when this returns. Events
        are written first, then rewards. Ids that are in the ledger are not written again. If a
        different request has the id of an event, no event of its group is written.
        """
        event_groups = [[entry for entry in group if isinstance(entry, Event)] for group in groups]
        rewards = [entry for group in groups for entry in group if isinstance(entry, Reward)]
        with self.transact() as transaction:
            answers = _write_events(transaction, event_groups)
            answers.update(_write_rewards(transaction, rewards))
        return [[answers[id(entry)] for entry in group] for group in groups]

    def find_events(self, ids: Iterable[str]) -> dict[str, Event]:
        """Return the events with these ids, by id."""
        with self._connect() as connection:
            return Transaction(connection, self.backend).find_events(ids)

    def read_events(self, after_seq: int, limit: int | None = None) -> list[tuple[int, Event]]:
        """Return at most ``limit`` events with a number above ``after_seq``, in order, each with
        its number.
        """
        rows = self.read(
            f"SELECT seq, {_list_columns(Event)} FROM events WHERE seq > ? ORDER BY seq LIMIT ?",
            after_seq,
            _MAX_INTEGER if limit is None else limit,
        )
        return [(row[0], Event(*row[1:])) for row in rows]

    def read_rewards(
        self, after_seq: int, limit: int | None = None, until_seq: int | None = None
    ) -> list[LoggedReward]:
        """Return rewards with a number above ``after_seq``, in order.

        There are at most ``limit``, and their numbers are at most ``until_seq``.
        """
        rows = self.read(
            f"{_REWARD_QUERY} WHERE r.seq > ? AND r.seq <= ? ORDER BY r.seq LIMIT ?",
            after_seq,
            _MAX_INTEGER if until_seq is None else until_seq,
            _MAX_INTEGER if limit is None else limit,
        )
        return [
            LoggedReward(seq, event_seq, reward, kind, time, Event(*event))
            for seq, event_seq, reward, kind, time, *event in rows
        ]

    def find_last_seq(self, table: Literal["events", "rewards"]) -> int:
        """Return the number of the newest event or reward; 0 if there is none."""
        return self.read(f"SELECT MAX(seq) FROM {table}")[0][0] or 0

    def find_unrewarded(self, after_seq: int, until_seq: int, limit: int) -> list[tuple[int, str]]:
        """Return the numbers and ids of at most ``limit`` events without a reward, in order.

        Their numbers are in (after_seq, until_seq].
        """
        return self.read(
            "SELECT e.seq, e.event_id FROM events e LEFT JOIN rewards r ON r.event_id = e.event_id"
            " WHERE e.seq > ? AND e.seq <= ? AND r.seq IS NULL ORDER BY e.seq LIMIT ?",
            after_seq,
            until_seq,
            limit,
        )

    def read_rounds(self, start_time: float, end_time: float) -> list[tuple[Event, float]]:
        """Return the events with a time in [start_time, end_time), each with its newest reward."""
        rows = self.read(
            f"SELECT r.reward, {_list_columns(Event, 'e.')} FROM events e JOIN rewards r ON"
            " r.event_id = e.event_id WHERE e.time >= ? AND e.time < ? AND r.seq = (SELECT"
            " MAX(seq) FROM rewards WHERE event_id = e.event_id) ORDER BY e.seq",
            max(start_time, -1e300),
            min(end_time, 1e300),
        )
        return [(Event(*row[1:]), row[0]) for row in rows]

    # Models and notes.

    def add_model(
        self,
        content: bytes,
        *,
        time: float,
        origin: Literal["file", "learned"],
        base: str,
        version: int = 0,
        start_seq: int | None = None,
        learned_seq: int | None = None,
        rounds: int = 0,
        state: bytes | None = None,
        file_number: int | None = None,
    ) -> ModelRow:
        """Add a model with the next number, and return its row.

        Older contents and states are deleted. The ledger stores the content of exported files, of
        the newest 10 learned models and of the pinned model, and the state of the newest learned
        model.

        Args:
            content: the exported file.
            time: the time of publication, in seconds since 1970.
            origin: as in ``ModelRow``.
            base: as in ``ModelRow``.
            version: as in ``ModelRow``.
            start_seq: as in ``ModelRow``; by default the number of the newest reward.
            learned_seq: as in ``ModelRow``; by default the number of the newest reward.
            rounds: as in ``ModelRow``.
            state: the saved policy, from which the learner can continue.
            file_number: the number of the exported file that a learned model replaces. It must be
                the newest file.
        """
        with self.transact() as transaction:
            last_number = transaction.read("SELECT MAX(number) FROM models")[0][0]
            newest_file = _find_newest_file(transaction)
            if file_number not in (None, newest_file):
                raise InvalidInput(
                    "another file was published since, which this model does not belong to"
                )
            if start_seq is None or learned_seq is None:
                newest = transaction.read("SELECT MAX(seq) FROM rewards")[0][0] or 0
                start_seq = learned_seq = newest
            number = 0 if last_number is None else last_number + 1
            digest = hashlib.sha256(content).hexdigest()
            row = ModelRow(
                number, time, origin, base, start_seq, learned_seq, rounds, digest, version
            )
            if state is not None:
                transaction.run("UPDATE models SET state = NULL WHERE state IS NOT NULL")
            transaction.insert("models", [{**asdict(row), "content": content, "state": state}])
            pinned = transaction.read_note("pinned")
            transaction.run(
                "UPDATE models SET content = NULL WHERE number < ? AND number <> ? AND origin ="
                " 'learned'",
                row.number - _MAX_STORED_MODELS,
                int(pinned) if pinned else -1,
            )
        return row

    def list_models(self) -> list[tuple[ModelRow, bool]]:
        """Return all models, newest first, each with True if its content is stored."""
        rows = self.read(
            f"SELECT content IS NOT NULL, {_list_columns(ModelRow)} FROM models ORDER BY number DESC"
        )
        return [(ModelRow(*row[1:]), bool(row[0])) for row in rows]

    def publish_file(self, content: bytes, *, time: float, rounds: int, version: int) -> int:
        """Return the number of the model with this content.

        If it is not in the ledger, add it as the newest model.
        """
        digest = hashlib.sha256(content).hexdigest()
        for row, _ in self.list_models():
            if row.digest == digest and row.origin == "file":
                return row.number
        return self.add_model(
            content, time=time, origin="file", base=digest, rounds=rounds, version=version
        ).number

    def find_newest_file(self) -> int:
        """Return the model number of the newest exported file; -1 if there is none."""
        return _find_newest_file(self)

    def find_current_model(self) -> int | None:
        """Return the number of the model that decides: the pinned model, or the newest; None
        without models.
        """
        pinned = self.read_note("pinned")
        if pinned:
            return int(pinned)
        number: int | None = self.read("SELECT MAX(number) FROM models")[0][0]
        return number

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
        rows = self.read(f"SELECT {column} FROM models WHERE number = ?", number)
        return bytes(rows[0][0]) if rows and rows[0][0] is not None else None

    def pin(self, number: int | None) -> None:
        """Let the model with this number decide from now on. None lets the newest model decide."""
        if number is not None:
            self.read_content(number)
        self.write_note("pinned", "" if number is None else str(number))

    def list_versions(self) -> list[VersionRow]:
        """Return the learned versions of the policy, the oldest first."""
        rows = self.read(f"SELECT {_list_columns(VersionRow)} FROM versions ORDER BY number")
        return [
            VersionRow(number, time, reward_seq, event_seq, bool(restarts), digest)
            for number, time, reward_seq, event_seq, restarts, digest in rows
        ]

    def read_note(self, name: str) -> str | None:
        """Return a note, i.e. a text that all processes of the service can read and write; None if
        it is missing.
        """
        return _read_note(self, name)

    def change_note(self, name: str, change: Callable[[str | None], str]) -> str:
        """Replace the note with this name by ``change(note)`` in one transaction, and return the
        new text.
        """
        with self.transact() as transaction:
            text = change(transaction.read_note(name))
            transaction.write_note(name, text)
        return text

    def write_note(self, name: str, text: str) -> None:
        """Write the note with this name."""
        self.change_note(name, lambda _: text)

    def find_verdict_key(self, *, is_pilot: bool) -> str:
        """Return the first part of a service's note "verdict". A verdict with another is not valid.

        A reset ends a verdict, but not the decision of a pilot.
        """
        return "" if is_pilot else self.read_note("watch_from") or "0"

    @contextlib.contextmanager
    def try_worker_lock(self) -> Iterator[bool]:
        """Yield True if this process got the lock of the worker, else False.

        It is held while the context is open. Only the process with this lock may do the background
        work of the service.
        """
        if self.backend == "sqlite":
            with contextlib.ExitStack() as locks:
                name = f"{self._path.name}-worker"
                try:
                    locks.enter_context(lock_folder(self._path.parent, wait=False, lock_file=name))
                except FolderInUse:
                    yield False
                else:
                    yield True
            return
        with self._connect() as connection:
            query = f"SELECT pg_try_advisory_lock({_WORKER_LOCK_ID})"
            has_lock = bool(connection.execute(query).fetchone()[0])
            try:
                yield has_lock
            finally:
                if has_lock:
                    connection.execute(f"SELECT pg_advisory_unlock({_WORKER_LOCK_ID})")

    # Connections.

    @contextlib.contextmanager
    def transact(self) -> Iterator[Transaction]:
        """Yield a transaction that holds the lock of writers. An error undoes it."""
        with self._connect() as connection:
            is_sqlite = self.backend == "sqlite"
            connection.execute("BEGIN IMMEDIATE" if is_sqlite else "BEGIN")
            try:
                if not is_sqlite:
                    connection.execute(f"SELECT pg_advisory_xact_lock({_WRITE_LOCK_ID})")
                yield Transaction(connection, self.backend)
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(self._failure):
                    connection.execute("ROLLBACK")
                raise

    def read(self, query: str, *values: Any) -> list[Any]:
        """Return the rows of a query, in which a question mark stands for each of ``values``."""
        with self._connect() as connection:
            return Transaction(connection, self.backend).read(query, *values)

    @contextlib.contextmanager
    def _connect(self) -> Iterator[Any]:
        """Yield a connection that no other thread uses. Errors of the database are ``LogFailed``."""
        try:
            connection = self._take_connection()
        except self._failure as error:
            raise _make_failure(error) from error
        is_usable = False
        try:
            yield connection
            is_usable = True
        except self._failure as error:
            raise _make_failure(error, was_dropped=getattr(connection, "closed", False)) from error
        except DabandError:
            is_usable = True
            raise
        finally:
            with self._lock:
                is_kept = is_usable and not self._is_closed
                if is_kept:
                    self._idle_connections.append(connection)
            if not is_kept:
                connection.close()

    def _take_connection(self) -> Any:
        """Return an idle connection that still works, or a new one."""
        while True:
            with self._lock:
                connection = self._idle_connections.pop() if self._idle_connections else None
            if connection is None:
                break
            try:
                connection.execute("SELECT 1")
            except self._failure:  # the server has dropped it
                connection.close()
            else:
                return connection
        if self.backend == "sqlite":
            return _connect_to_sqlite(self._path)
        import psycopg

        connection = psycopg.connect(f"postgresql://{self.address.partition('://')[2]}")
        connection.autocommit = True
        connection.execute("SET synchronous_commit TO on")
        return connection


#: The largest integer of a column.
_MAX_INTEGER = (1 << 63) - 1


class Transaction:
    """Statements on one connection, in which a question mark stands for each value."""

    def __init__(self, connection: Any, backend: str) -> None:
        self._cursor = connection.cursor()
        self._mark = "?" if backend == "sqlite" else "%s"

    def run(self, statement: str, *values: Any) -> int:
        """Run a statement, and return the number of changed rows."""
        self._cursor.execute(statement.replace("?", self._mark), values)
        return int(self._cursor.rowcount)

    def read(self, query: str, *values: Any) -> list[Any]:
        """Return the rows of a query."""
        self._cursor.execute(query.replace("?", self._mark), values)
        return list(self._cursor.fetchall())

    def insert(self, table: str, rows: Sequence[dict[str, Any]]) -> None:
        """Insert rows with the same columns."""
        if rows:
            marks = ", ".join([self._mark] * len(rows[0]))
            statement = f"INSERT INTO {table} ({', '.join(rows[0])}) VALUES ({marks})"
            self._cursor.executemany(statement, [tuple(row.values()) for row in rows])

    def insert_entries(self, entries: Sequence[Entry]) -> None:
        """Insert events or rewards that are not in the ledger."""
        if entries:
            table = "events" if isinstance(entries[0], Event) else "rewards"
            self.insert(table, list(map(_to_row, entries)))

    def read_by_id(self, query: str, ids: Iterable[str]) -> list[Any]:
        """Return the rows of a query for many ids, whose list replaces ``{ids}``."""
        unique_ids = list(dict.fromkeys(ids))
        rows = []
        for start in range(0, len(unique_ids), _MAX_IDS_PER_QUERY):
            batch = unique_ids[start : start + _MAX_IDS_PER_QUERY]
            rows += self.read(query.format(ids=", ".join("?" * len(batch))), *batch)
        return rows

    def read_note(self, name: str) -> str | None:
        """Return a note, or None if it is missing."""
        return _read_note(self, name)

    def write_note(self, name: str, text: str) -> None:
        """Write a note."""
        if not self.run("UPDATE notes SET text = ? WHERE name = ?", text, name):
            self.insert("notes", [{"name": name, "text": text}])

    def find_events(self, ids: Iterable[str]) -> dict[str, Event]:
        """Return the events with these ids, by id."""
        query = f"SELECT {_list_columns(Event)} FROM events WHERE event_id IN ({{ids}})"
        return {row[0]: Event(*row) for row in self.read_by_id(query, ids)}

    def find_rewards(self, ids: Iterable[str]) -> dict[str, tuple[float, str]]:
        """Return the newest reward and its kind of the events with these ids, by id."""
        query = "SELECT event_id, reward, kind FROM rewards WHERE event_id IN ({ids}) ORDER BY seq"
        return {row[0]: (row[1], row[2]) for row in self.read_by_id(query, ids)}


def _to_row(entry: Entry) -> dict[str, Any]:
    """Return an entry as a row of its table."""
    return {name: getattr(entry, name) for name in entry.__dataclass_fields__}


def _find_newest_file(source: Store | Transaction) -> int:
    """Return the model number of the newest exported file; -1 if there is none."""
    number = source.read("SELECT MAX(number) FROM models WHERE origin = 'file'")[0][0]
    return -1 if number is None else int(number)


def _read_note(source: Store | Transaction, name: str) -> str | None:
    """Return a note, or None if it is missing."""
    rows = source.read("SELECT text FROM notes WHERE name = ?", name)
    return rows[0][0] if rows else None


def hide_password(address: str) -> str:
    """Return the address of a log for messages: without user, password and options, if it is not a
    file.
    """
    scheme, _, rest = address.partition("://")
    if scheme == "sqlite":
        return address
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


def _make_failure(error: Exception, *, was_dropped: bool = False) -> LogFailed:
    """Return the error for an error of the database, with its message on one line."""
    failure = LogFailed(" ".join(str(error).split()) or type(error).__name__)
    failure.was_dropped = was_dropped or getattr(error, "sqlstate", None) in _SHUTDOWN_STATES
    return failure


def _connect_to_sqlite(path: Path) -> sqlite3.Connection:
    """Return a new connection, configured so that commits are on disk."""
    connection = sqlite3.connect(
        path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    # a limit on the size of the log, for operators and tests
    if limit := os.environ.get("DABAND_SQLITE_MAX_PAGES"):
        connection.execute(f"PRAGMA max_page_count={int(limit)}")
    return connection


def _write_events(
    transaction: Transaction, groups: Sequence[Sequence[Event]]
) -> dict[int, LogAnswer]:
    """Write events, and return the result of each by ``id(event)``."""
    events_by_id = transaction.find_events(event.event_id for group in groups for event in group)
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
                new_rows.append(event)
                answers[id(event)] = LogAnswer("recorded", event)
    transaction.insert_entries(new_rows)
    return answers


def _write_rewards(transaction: Transaction, rewards: Sequence[Reward]) -> dict[int, LogAnswer]:
    """Write rewards, and return the result of each by ``id(reward)``."""
    ids = [entry.event_id for entry in rewards]
    query = "SELECT event_id FROM events WHERE event_id IN ({ids})"
    known_ids = {row[0] for row in transaction.read_by_id(query, ids)}
    rewards_by_id = transaction.find_rewards(ids)
    answers = {}
    new_rows = []
    for entry in rewards:
        old_reward, old_kind = rewards_by_id.get(entry.event_id, (None, None))
        if entry.event_id not in known_ids:
            answers[id(entry)] = LogAnswer("unknown")
        elif old_reward is None or (entry.kind == "corrected" and old_reward != entry.reward):
            rewards_by_id[entry.event_id] = entry.reward, entry.kind
            answers[id(entry)] = LogAnswer("recorded", None, entry.reward, entry.kind)
            new_rows.append(entry)
        else:
            is_repeated = old_reward == entry.reward or entry.kind == "default"
            status = "repeated" if is_repeated else "refused"
            answers[id(entry)] = LogAnswer(status, None, old_reward, old_kind)
    transaction.insert_entries(new_rows)
    return answers
