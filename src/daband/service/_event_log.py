"""The durable log of the service: events, their rewards and the models, in SQLite or Postgres, and its writer.

When ``append`` returns, its entries are on disk. All writers of one log take turns (SQLite's write lock, an advisory
lock in Postgres), so the numbers ``seq`` grow in the order of commits. A reader that has read up to one of them has
missed nothing before it, and all readers see the same order.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sqlalchemy as sa

from daband.errors import DabandError, DataError, InvalidInput

_VERSION = "3"
_WRITERS, _WORKER = 720_911, 720_912  # advisory locks in Postgres
_ATTEMPTS = 3
_MAX_IDS = 500  # event ids in one query
_MAX_LEARNED = 50  # learned models whose content is kept
_ROUNDS_AT_ONCE = 4096

_metadata = sa.MetaData()
_Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


@dataclass(frozen=True, slots=True)
class Event:
    """One decision in the log.

    Attributes:
        mode: "online", "apprentice", "control" (the incumbent's arm was played, drawn at random), or "fallback" (it was
            played because the policy is proven to be worse).
        model: the number of the model that decided.
        arm: the arm that was played.
        propensity: the probability with which this arm was chosen, by the model or by the incumbent.
        own_arm: the model's choice; None if the incumbent was played in its place.
        incumbent_arm: the incumbent's choice, if the caller gave it.
        context: the raw row as JSON; None if the log does not keep contexts.
        eligible: the arms that could be chosen, as a JSON list of numbers; None for all.
        digest: a hash of the request, to detect a different request with the same id.
        control: the probability of the control group; None if the event is not part of that comparison.
    """

    event_id: str
    time: float
    mode: str
    domain: str
    model: int
    arm: int
    propensity: float
    own_arm: int | None
    incumbent_arm: int | None
    context: str | None
    eligible: str | None
    digest: str | None
    control: float | None = None


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward as it arrives."""

    event_id: str
    reward: float
    time: float
    kind: Literal["given", "default"] = "given"


Entry = Event | Reward


@dataclass(frozen=True, slots=True)
class LogAnswer:
    """The result of an entry, once it is on disk.

    ``status`` is "recorded" or "repeated"; or for an event "conflict" (another request has this id) or "refused"
    (another event of its group is in conflict); or for a reward "refused" (another reward is recorded) or "unknown".
    ``event`` is the recorded event; for a repeated request it is the event of the first one.
    """

    status: str
    event: Event | None = None
    reward: float | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class LoggedReward:
    """A reward of the log with its event."""

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
        rounds: the rounds that the policy has learned.
    """

    number: int
    time: float
    origin: str
    base: str
    start_seq: int
    learned_seq: int
    rounds: int
    digest: str


_KINDS = {"str": sa.Text, "float": sa.Double, "int": sa.Integer}


def _columns(row: Any, **options: dict[str, Any]) -> list[sa.Column[Any]]:
    """Return a column for each field of a dataclass, with SQLAlchemy's ``options`` by name; "| None" may be NULL."""
    columns = []
    for name, field in row.__dataclass_fields__.items():
        kind, _, optional = str(field.type).partition(" | ")
        settings: dict[str, Any] = {"type_": _KINDS.get(kind, sa.Text)(), "nullable": bool(optional)}
        settings |= options.get(name, {})
        columns.append(sa.Column(name, **settings))
    return columns


_events = sa.Table(
    "events",
    _metadata,
    sa.Column("seq", _Number, primary_key=True, autoincrement=True),
    *_columns(Event, event_id={"unique": True}, time={"index": True}),
    sqlite_autoincrement=True,
)
_rewards = sa.Table(
    "rewards",
    _metadata,
    sa.Column("seq", _Number, primary_key=True, autoincrement=True),
    *_columns(Reward, event_id={"unique": True}),
    sqlite_autoincrement=True,
)
_models = sa.Table(
    "models",
    _metadata,
    *_columns(
        ModelRow,
        number={"primary_key": True, "autoincrement": False},
        **{name: {"type_": _Number} for name in ("start_seq", "learned_seq", "rounds")},
    ),
    sa.Column("content", sa.LargeBinary),
    sa.Column("state", sa.LargeBinary),
    # The last bytes of content and state are equal to those of this file, and not stored again: an encoder.
    sa.Column("file", sa.Integer),
    sa.Column("content_shared", _Number),
    sa.Column("state_shared", _Number),
)
_notes = sa.Table("notes", _metadata, sa.Column("name", sa.Text, primary_key=True), sa.Column("text", sa.Text))
_REWARD_COLUMNS = [_rewards.c[name] for name in ("reward", "kind", "time")]
_EVENT_COLUMNS = [_events.c[name] for name in Event.__dataclass_fields__]
_FROM_FILE = _models.c.origin == "file"
_MODEL_COLUMNS = [_models.c[name] for name in ModelRow.__dataclass_fields__]


class Store:
    """A log by its address: ``sqlite:///events.db`` or ``postgresql://user@host/name``."""

    def __init__(self, address: str, *, create: bool = True) -> None:
        self.address = address
        url = None
        with contextlib.suppress(sa.exc.ArgumentError):
            url = sa.make_url(address)
        if url is None or url.get_backend_name() not in ("sqlite", "postgresql"):
            raise InvalidInput(f"log must be sqlite:///FILE or postgresql://..., got {address!r}")
        self.backend = url.get_backend_name()
        if self.backend == "sqlite":
            if url.database in (None, "", ":memory:"):
                raise InvalidInput("log must be a file, e.g. sqlite:///events.db: a log in memory would be lost")
            if not create and not Path(url.database).is_file():
                raise DataError(f"there is no log {url.database}; give the address that the service has as --log")
            self._engine = sa.create_engine(url, connect_args={"timeout": 30.0, "check_same_thread": False})
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
        else:
            try:
                self._engine = sa.create_engine(url.set(drivername="postgresql+psycopg"), pool_pre_ping=True)
            except ModuleNotFoundError:
                raise InvalidInput("a log in Postgres needs psycopg: pip install 'daband[serve]'") from None
            sa.event.listen(self._engine, "connect", _prepare_postgres)
        try:
            with self._writing() as connection:
                _metadata.create_all(connection)
                version = connection.execute(sa.select(_notes.c.text).where(_notes.c.name == "version")).scalar()
                if version is None:
                    connection.execute(sa.insert(_notes).values(name="version", text=_VERSION))
        except sa.exc.DBAPIError as error:
            address = url.render_as_string(hide_password=True)
            raise DataError(f"the log {address} cannot be opened: {error.orig}") from None
        if version not in (None, _VERSION):
            raise DataError(f"the log is of version {version}, this daband reads version {_VERSION}; update daband")

    def close(self) -> None:
        """Close all connections. One that another thread still uses is closed when it is returned."""
        sa.event.listen(self._engine.pool, "checkin", lambda connection, record: record.invalidate())  # noqa: ARG005
        self._engine.dispose()  # the new pool, for late threads, has the same listeners

    # Events and rewards.

    def append(self, entries: Sequence[Entry]) -> list[LogAnswer]:
        """Write the entries of one request: see ``append_groups``."""
        return self.append_groups([entries])[0]

    def append_groups(self, groups: Sequence[Sequence[Entry]]) -> list[list[LogAnswer]]:
        """Write entries in one transaction. They are on disk when this returns.

        Events are written first, then rewards. An existing id is not written again. If another request has the id of
        an event, no event of its group is written.
        """
        entries = [entry for group in groups for entry in group]
        decided = [[entry for entry in group if isinstance(entry, Event)] for group in groups]
        rewarded = [entry for entry in entries if isinstance(entry, Reward)]
        for attempt in range(_ATTEMPTS):
            try:
                with self._writing() as connection:
                    # An id seldom exists already, so the first attempt does not check for it.
                    answers: dict[int, LogAnswer] = _write_events(connection, decided, ask=attempt > 0)
                    answers.update(_write_rewards(connection, rewarded))
                return [[answers[id(entry)] for entry in group] for group in groups]
            except sa.exc.IntegrityError:
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def events_after(self, seq: int, limit: int) -> list[tuple[int, Event]]:
        """Return the next events of the log with their numbers."""
        query = sa.select(_events.c.seq, *_EVENT_COLUMNS).where(_events.c.seq > seq).order_by(_events.c.seq)
        with self._reading() as connection:
            return [(row[0], Event(*row[1:])) for row in connection.execute(query.limit(limit))]

    def rewards_after(self, seq: int, limit: int) -> list[LoggedReward]:
        """Return the next rewards of the log."""
        query = (
            sa.select(_rewards.c.seq, _events.c.seq, *_REWARD_COLUMNS, *_EVENT_COLUMNS)
            .join(_events, _events.c.event_id == _rewards.c.event_id)
            .where(_rewards.c.seq > seq)
            .order_by(_rewards.c.seq)
            .limit(limit)
        )
        with self._reading() as connection:
            rows: list[Any] = list(connection.execute(query))
        return [LoggedReward(*[*row[:5], Event(*row[5:])]) for row in rows]

    def last_reward(self) -> int:
        """Return the number of the newest reward; 0 without one."""
        return self._scalar(sa.select(sa.func.max(_rewards.c.seq))) or 0

    def newest_time(self) -> float:
        """Return the time of the newest entry; 0 without one."""
        newest = (sa.select(table.c.time).order_by(table.c.seq.desc()).limit(1) for table in (_events, _rewards))
        times = [self._scalar(query) for query in newest]
        return max((time for time in times if time is not None), default=0.0)

    def unrewarded(self, after: float, until: float, limit: int) -> list[tuple[float, str]]:
        """Return time and id of events without a reward that were decided in (after, until], oldest first."""
        query = (
            sa.select(_events.c.time, _events.c.event_id)
            .outerjoin(_rewards, _rewards.c.event_id == _events.c.event_id)
            .where(_events.c.time > after, _events.c.time <= until, _rewards.c.seq.is_(None))
            .order_by(_events.c.time)
            .limit(limit)
        )
        with self._reading() as connection:
            return [(row[0], row[1]) for row in connection.execute(query)]

    def rounds(self, after: float, until: float) -> Iterator[list[tuple[Event, float, str]]]:
        """Yield events of a span of time with their reward and its kind, in groups."""
        seq = 0
        while True:
            query = (
                sa.select(_events.c.seq, _rewards.c.reward, _rewards.c.kind, *_EVENT_COLUMNS)
                .join(_rewards, _rewards.c.event_id == _events.c.event_id)
                .where(_events.c.seq > seq, _events.c.time >= after, _events.c.time < until)
                .order_by(_events.c.seq)
                .limit(_ROUNDS_AT_ONCE)
            )
            with self._reading() as connection:
                rows = connection.execute(query).all()
            if not rows:
                return
            yield [(Event(*row[3:]), row[1], row[2]) for row in rows]
            seq = rows[-1][0]

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
        file: int | None = None,
    ) -> ModelRow:
        """Publish a model under the next number. The newest 50 learned models and one learner's state are kept.

        ``start_seq`` and ``learned_seq`` are the newest reward's number by default. A learned model names the newest
        ``file``, which it replaces.
        """
        newest, last = sa.func.max(_models.c.number), sa.func.max(_rewards.c.seq)
        with self._writing() as connection:
            number = connection.execute(sa.select(newest)).scalar()
            if file is not None and connection.execute(sa.select(newest).where(_FROM_FILE)).scalar() != file:
                raise InvalidInput("another file was published, which this model does not belong to")
            stored = sa.select(_models.c.content).where(_models.c.number == file)
            start = b"" if file is None else bytes(connection.execute(stored).scalar_one())
            shared = [_common_end(part or b"", start) for part in (content, state)]
            if start_seq is None or learned_seq is None:
                start_seq = learned_seq = connection.execute(sa.select(last)).scalar() or 0
            row = ModelRow(
                number=0 if number is None else number + 1,
                time=time,
                origin=origin,
                base=base,
                start_seq=start_seq,
                learned_seq=learned_seq,
                rounds=rounds,
                digest=hashlib.sha256(content).hexdigest(),
            )
            if state is not None:
                connection.execute(sa.update(_models).values(state=None).where(_models.c.state.is_not(None)))
            kept, kept_state = content[: len(content) - shared[0]], state and state[: len(state) - shared[1]]
            more = {"file": file, "content_shared": shared[0], "state_shared": shared[1]}
            connection.execute(sa.insert(_models).values(**asdict(row), content=kept, state=kept_state, **more))
            old = _models.c.number < row.number - _MAX_LEARNED
            pinned = connection.execute(sa.select(_notes.c.text).where(_notes.c.name == "pinned")).scalar()
            if pinned:
                old &= _models.c.number != int(pinned)
            connection.execute(sa.update(_models).values(content=None).where(old, _models.c.origin == "learned"))
        return row

    def models(self) -> list[tuple[ModelRow, bool]]:
        """Return all models, newest first, each with True if its content is kept."""
        query = sa.select(_models.c.content.is_not(None), *_MODEL_COLUMNS).order_by(_models.c.number.desc())
        with self._reading() as connection:
            return [(ModelRow(*row[1:]), bool(row[0])) for row in connection.execute(query)]

    def newest_file(self, *, before: float = math.inf) -> int:
        """Return the number of the newest model with origin "file"; -1 without one."""
        query = sa.select(sa.func.max(_models.c.number)).where(_FROM_FILE)
        number = self._scalar(query if before == math.inf else query.where(_models.c.number < before))
        return -1 if number is None else int(number)

    def current_model(self) -> int | None:
        """Return the number of the model that decides: the pinned one, or else the newest; None without models."""
        pinned = self.note("pinned")
        if pinned:
            return int(pinned)
        return self._scalar(sa.select(sa.func.max(_models.c.number)))

    def model_content(self, number: int) -> bytes:
        """Return the exported file of a model."""
        content = self._blob(number, "content")
        if content is None:
            raise InvalidInput(f"there is no model {number}: GET /models lists those that are kept")
        return content

    def model_state(self, number: int) -> bytes | None:
        """Return the learner's state when it published this model; None if it is not kept."""
        return self._blob(number, "state")

    def _blob(self, number: int, name: str) -> bytes | None:
        """Return the content or state of a model, with the bytes that it shares with its file."""
        columns = _models.c[name], _models.c.file, _models.c[f"{name}_shared"]
        with self._reading() as connection:
            row = connection.execute(sa.select(*columns).where(_models.c.number == number)).one_or_none()
        if row is None or row[0] is None:
            return None
        return bytes(row[0]) + (self.model_content(row[1])[-row[2] :] if row[2] else b"")

    def pin(self, number: int | None) -> None:
        """Let one model decide until further notice; None returns to the newest."""
        if number is not None:
            self.model_content(number)
        self.write_note("pinned", "" if number is None else str(number))

    def note(self, name: str) -> str | None:
        """Return a text that the processes of the service share."""
        return self._scalar(sa.select(_notes.c.text).where(_notes.c.name == name))

    def change_note(self, name: str, change: Callable[[str | None], str]) -> str:
        """Change a shared text by a function of the present one, and return the new text. No other change is lost."""
        with self._writing() as connection:
            text = change(connection.execute(sa.select(_notes.c.text).where(_notes.c.name == name)).scalar())
            done = connection.execute(sa.update(_notes).values(text=text).where(_notes.c.name == name))
            if not done.rowcount:
                connection.execute(sa.insert(_notes).values(name=name, text=text))
        return text

    def write_note(self, name: str, text: str) -> None:
        """Write a text that the processes of the service share."""
        self.change_note(name, lambda _: text)

    @contextlib.contextmanager
    def leading(self) -> Iterator[bool]:
        """Yield True if this process may do the background work. Only one process at a time may."""
        if self.backend == "sqlite":
            import fcntl

            path = Path(str(self._engine.url.database) + "-worker")
            with path.open("a") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    yield False
                else:
                    yield True
            return
        with self._engine.connect() as connection:
            got = bool(connection.execute(sa.select(sa.func.pg_try_advisory_lock(_WORKER))).scalar())
            connection.commit()
            try:
                yield got
            finally:
                if got:
                    connection.execute(sa.select(sa.func.pg_advisory_unlock(_WORKER)))

    # Connections.

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with self._engine.connect() as plain:
            connection = plain.execution_options(daband_writes=True)
            with connection.begin():
                if self.backend == "postgresql":
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_WRITERS)))
                yield connection

    def _reading(self) -> sa.Connection:
        return self._engine.connect()

    def _scalar(self, query: sa.Select[Any]) -> Any:
        with self._reading() as connection:
            return connection.execute(query).scalar()


def _prepare_sqlite(connection: Any, record: Any) -> None:  # noqa: ARG001
    connection.isolation_level = None  # _begin_sqlite starts transactions
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    if limit := os.environ.get("DABAND_SQLITE_MAX_PAGES"):  # lets operators, and the tests, bound the log's size
        cursor.execute(f"PRAGMA max_page_count={int(limit)}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("daband_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _prepare_postgres(connection: Any, record: Any) -> None:  # noqa: ARG001
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit TO on")
    connection.commit()


def _in_groups(ids: Iterable[str]) -> Iterator[list[str]]:
    listed = list(dict.fromkeys(ids))
    for start in range(0, len(listed), _MAX_IDS):
        yield listed[start : start + _MAX_IDS]


def _recorded_events(connection: sa.Connection, ids: Iterable[str]) -> dict[str, Event]:
    recorded = {}
    for group in _in_groups(ids):
        for row in connection.execute(sa.select(*_EVENT_COLUMNS).where(_events.c.event_id.in_(group))):
            recorded[row[0]] = Event(*row)
    return recorded


def _write_events(connection: sa.Connection, groups: Sequence[Sequence[Event]], *, ask: bool) -> dict[int, LogAnswer]:
    recorded = _recorded_events(connection, (event.event_id for group in groups for event in group)) if ask else {}
    answers, new = {}, []
    for group in groups:
        conflict = any(recorded.get(event.event_id, event).digest != event.digest for event in group)
        for event in group:
            first = recorded.get(event.event_id)
            if first is not None:
                answers[id(event)] = LogAnswer("repeated" if first.digest == event.digest else "conflict", first)
            elif conflict:
                answers[id(event)] = LogAnswer("refused")
            else:
                recorded[event.event_id] = event
                new.append({name: getattr(event, name) for name in Event.__dataclass_fields__})
                answers[id(event)] = LogAnswer("recorded", event)
    if new:
        connection.execute(sa.insert(_events), new)
    return answers


def _write_rewards(connection: sa.Connection, given: Sequence[Reward]) -> dict[int, LogAnswer]:
    if not given:
        return {}
    recorded: dict[str, tuple[float | None, str | None]] = {}
    for group in _in_groups(entry.event_id for entry in given):
        query = (
            sa.select(_events.c.event_id, _rewards.c.reward, _rewards.c.kind)
            .outerjoin(_rewards, _rewards.c.event_id == _events.c.event_id)
            .where(_events.c.event_id.in_(group))
        )
        recorded.update({row[0]: (row[1], row[2]) for row in connection.execute(query)})
    answers, new = {}, []
    for entry in given:
        reward, kind = recorded.get(entry.event_id, (None, None))
        if entry.event_id not in recorded:
            answers[id(entry)] = LogAnswer("unknown")
        elif reward is not None:
            repeated = reward == entry.reward or entry.kind == "default"
            answers[id(entry)] = LogAnswer("repeated" if repeated else "refused", None, reward, kind)
        else:
            recorded[entry.event_id] = entry.reward, entry.kind
            answers[id(entry)] = LogAnswer("recorded", None, entry.reward, entry.kind)
            new.append({name: getattr(entry, name) for name in Reward.__dataclass_fields__})
    if new:
        connection.execute(sa.insert(_rewards), new)
    return answers


class LogFailed(DabandError, RuntimeError):
    """The log could not be written; nothing was acknowledged."""


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
            raise LogFailed(f"{self._waiting:,} entries wait for the log; try again later")
        future: asyncio.Future[list[LogAnswer]] = asyncio.get_running_loop().create_future()
        self._groups.append((entries, future))
        self._waiting += len(entries)
        if self._running is None:
            self._running = asyncio.create_task(self._write_groups())
        return await future

    async def close(self) -> None:
        """Write the waiting entries, and stop the thread."""
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


def _common_end(one: bytes, other: bytes) -> int:
    """Return the number of bytes at the end that are equal."""
    size = min(len(one), len(other))
    ends = (np.frombuffer(part, np.uint8, size, len(part) - size) for part in (one, other))
    differ = np.flatnonzero(np.not_equal(*ends))
    return size if not len(differ) else size - 1 - int(differ[-1])
