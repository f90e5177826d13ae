"""The durable log of the service: events, their rewards and the models, in SQLite or Postgres.

Whatever ``append`` has returned for is on disk. All writers of one log take turns (SQLite's write lock, an advisory
lock in Postgres), so the numbers ``seq`` grow in the order of commits: who has read up to one of them has missed
nothing before it, and everybody who reads the log reads it in the same order.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
import sqlalchemy as sa

from daband._files import check_writable, write_bytes
from daband._lazy_polars import pl
from daband.errors import DabandError, DataError, InvalidInput
from daband.serving._deployed_policy import DeployedPolicy

_VERSION = "1"
_WRITERS, _WORKER = 720_911, 720_912
"""Names of the advisory locks in Postgres."""
_ATTEMPTS = 3
_MOST_IDS = 500
"""Event ids that one query asks for."""

_metadata = sa.MetaData()
_Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


@dataclass(frozen=True, slots=True)
class Event:
    """One decision as it is logged."""

    event_id: str
    time: float
    activated: float | None
    """When the event began to count: at once, or with ``activate``; None before."""
    mode: str
    domain: str
    model: int
    """The number of the model that decided."""
    arm: int
    """The arm that was played."""
    propensity: float
    """The probability with which whoever chose it did so."""
    own_arm: int | None
    """What the model chose; None where it was not asked."""
    incumbent_arm: int | None
    """What the incumbent chose, where the caller said so."""
    context: str | None
    """The raw row as JSON; None where the log leaves contexts out."""
    eligible: str | None
    """The arms that could be chosen, as a JSON list of numbers; None for all."""
    digest: str | None
    """A hash of what was asked, which tells a repeated request from another one of the same id."""


@dataclass(frozen=True, slots=True)
class Activation:
    """An event whose activation was deferred begins to count."""

    event_id: str
    time: float


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward as it arrives."""

    event_id: str
    reward: float
    time: float
    kind: Literal["given", "default"] = "given"
    may_correct: bool = False
    """Whether a reward that differs from the recorded one becomes its next version instead of being refused."""


Entry = Event | Activation | Reward


@dataclass(frozen=True, slots=True)
class LogAnswer:
    """What became of an entry, once it is on disk.

    ``status`` of an event is "recorded", "repeated", "conflict" (the id is taken by another request) or "refused" (an
    event beside it is in conflict); of an
    activation "recorded", "repeated" or "unknown"; of a reward "recorded", "repeated", "corrected", "refused" (another
    reward is recorded), "inactive" or "unknown".
    """

    status: str
    event: Event | None = None
    """The event as it is recorded, which for a repeated request is that of the first one."""
    reward: float | None = None
    version: int | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class LoggedReward:
    """A reward of the log with its event, and the reward that it corrects."""

    seq: int
    event_seq: int
    version: int
    reward: float
    kind: str
    time: float
    previous: float | None
    event: Event


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A numbered model: the file that was given, or what the learner made of it and of the log."""

    number: int
    time: float
    origin: str
    """"file" or "learned"."""
    base: str
    """The digest of the policy file that learning began with, or of the exported file."""
    start_seq: int
    """Learning began after this reward of the log."""
    learned_seq: int
    """The last reward it has learned."""
    rounds: int
    digest: str


_KINDS = {"str": sa.Text, "float": sa.Double, "int": sa.Integer}


def _columns(row: Any, **options: dict[str, Any]) -> list[sa.Column[Any]]:
    """A column for each field of a dataclass, with SQLAlchemy's ``options`` by its name; "| None" may be NULL."""
    columns = []
    for name, field in row.__dataclass_fields__.items():
        kind, _, optional = str(field.type).partition(" | ")
        settings: dict[str, Any] = {"type_": _KINDS[kind](), "nullable": bool(optional), **options.get(name, {})}
        columns.append(sa.Column(name, **settings))
    return columns


_events = sa.Table(
    "events",
    _metadata,
    sa.Column("seq", _Number, primary_key=True, autoincrement=True),
    *_columns(Event, event_id={"unique": True}, activated={"index": True}),
    sqlite_autoincrement=True,
)
_rewards = sa.Table(
    "rewards",
    _metadata,
    sa.Column("seq", _Number, primary_key=True, autoincrement=True),
    sa.Column("event_id", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("reward", sa.Double, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("time", sa.Double, nullable=False),
    sa.UniqueConstraint("event_id", "version"),
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
)
_notes = sa.Table("notes", _metadata, sa.Column("name", sa.Text, primary_key=True), sa.Column("text", sa.Text))
_REWARD_COLUMNS = [_rewards.c[name] for name in ("version", "reward", "kind", "time")]
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
                raise InvalidInput("log must be a file, e.g. sqlite:///events.db: what is in memory is lost")
            if not create and not Path(url.database).is_file():
                raise DataError(f"there is no log {url.database}; its address is what the service has as --log")
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
            place = url.render_as_string(hide_password=True)
            raise DataError(f"the log {place} cannot be opened: {error.orig}") from None
        if version not in (None, _VERSION):
            raise DataError(f"the log is of version {version}, this daband reads version {_VERSION}; update daband")

    def close(self) -> None:
        """Close all connections; one that another thread still uses, as soon as it is done."""
        sa.event.listen(self._engine.pool, "checkin", lambda connection, record: record.invalidate())  # noqa: ARG005
        self._engine.dispose()  # the pool in its place, for threads that come late, has the same listeners

    # Events and rewards.

    def append(self, entries: Sequence[Entry]) -> list[LogAnswer]:
        """Write one request's entries: see ``append_groups``."""
        return self.append_groups([entries])[0]

    def append_groups(self, groups: Sequence[Sequence[Entry]]) -> list[list[LogAnswer]]:
        """Write entries in one transaction, and say what became of each. They are on disk when this returns.

        Events come first, then activations, then rewards. An id that is there already is not written again. Where an
        event's id is taken by another request, no event of its group is written.
        """
        entries = [entry for group in groups for entry in group]
        decided = [[entry for entry in group if isinstance(entry, Event)] for group in groups]
        activated = [entry for entry in entries if isinstance(entry, Activation)]
        rewarded = [entry for entry in entries if isinstance(entry, Reward)]
        for attempt in range(_ATTEMPTS):
            try:
                with self._writing() as connection:
                    # An id is seldom there already, so the first attempt does not ask.
                    answers: dict[int, LogAnswer] = _write_events(connection, decided, ask=attempt > 0)
                    answers.update(_write_activations(connection, activated))
                    answers.update(_write_rewards(connection, rewarded))
                return [[answers[id(entry)] for entry in group] for group in groups]
            except sa.exc.IntegrityError:
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def events_after(self, seq: int, limit: int) -> list[tuple[int, Event]]:
        """The next events of the log with their numbers, in its order."""
        query = sa.select(_events.c.seq, *_EVENT_COLUMNS).where(_events.c.seq > seq).order_by(_events.c.seq)
        with self._reading() as connection:
            return [(row[0], Event(*row[1:])) for row in connection.execute(query.limit(limit))]

    def rewards_after(self, seq: int, limit: int, *, first_only: bool = False) -> list[LoggedReward]:
        """The next rewards of the log in its order; ``first_only`` leaves corrections out."""
        before = _rewards.alias("before")
        query = (
            sa.select(_rewards.c.seq, _events.c.seq, *_REWARD_COLUMNS, before.c.reward, *_EVENT_COLUMNS)
            .join(_events, _events.c.event_id == _rewards.c.event_id)
            .outerjoin(
                before, (before.c.event_id == _rewards.c.event_id) & (before.c.version == _rewards.c.version - 1)
            )
            .where(_rewards.c.seq > seq)
            .order_by(_rewards.c.seq)
            .limit(limit)
        )
        if first_only:
            query = query.where(_rewards.c.version == 1)
        with self._reading() as connection:
            rows: list[Any] = list(connection.execute(query))
        return [LoggedReward(*[*row[:7], Event(*row[7:])]) for row in rows]

    def last_reward(self) -> int:
        """The number of the newest reward; 0 without one."""
        return self._scalar(sa.select(sa.func.max(_rewards.c.seq))) or 0

    def newest_time(self) -> float:
        """When the newest entry was written; 0 without one."""
        newest = (sa.select(table.c.time).order_by(table.c.seq.desc()).limit(1) for table in (_events, _rewards))
        times = [self._scalar(query) for query in newest]
        return max((time for time in times if time is not None), default=0.0)

    def unrewarded(self, after: float, until: float, limit: int) -> list[tuple[float, str]]:
        """Events without a reward that were activated in (after, until]: when, and their ids, the oldest first."""
        query = (
            sa.select(_events.c.activated, _events.c.event_id)
            .outerjoin(_rewards, (_rewards.c.event_id == _events.c.event_id) & (_rewards.c.version == 1))
            .where(_events.c.activated > after, _events.c.activated <= until, _rewards.c.seq.is_(None))
            .order_by(_events.c.activated)
            .limit(limit)
        )
        with self._reading() as connection:
            return [(row[0], row[1]) for row in connection.execute(query)]

    def rounds(self, after: float, until: float) -> Iterator[list[tuple[Event, float, str]]]:
        """Events of a span of time with the latest version of their reward and its kind, some thousands at a time."""
        newer = _rewards.alias("newer")
        seq = 0
        while True:
            query = (
                sa.select(_events.c.seq, _rewards.c.reward, _rewards.c.kind, *_EVENT_COLUMNS)
                .join(_rewards, _rewards.c.event_id == _events.c.event_id)
                .outerjoin(
                    newer, (newer.c.event_id == _rewards.c.event_id) & (newer.c.version == _rewards.c.version + 1)
                )
                .where(_events.c.seq > seq, _events.c.time >= after, _events.c.time < until, newer.c.seq.is_(None))
                .order_by(_events.c.seq)
                .limit(4096)
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
        """Publish a model under the next number. Of learned ones the newest 50 stay, and one learner's state.

        ``start_seq`` and ``learned_seq`` are the newest reward's number by default. A learned model goes with ``file``,
        the newest file.
        """
        newest, last = sa.func.max(_models.c.number), sa.func.max(_rewards.c.seq)
        with self._writing() as connection:
            number = connection.execute(sa.select(newest)).scalar()
            if file is not None and connection.execute(sa.select(newest).where(_FROM_FILE)).scalar() != file:
                raise InvalidInput("somebody has published a file in place of the one that this model goes with")
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
            connection.execute(sa.insert(_models).values(**asdict(row), content=content, state=state))
            old = _models.c.number < row.number - 50
            pinned = connection.execute(sa.select(_notes.c.text).where(_notes.c.name == "pinned")).scalar()
            if pinned:
                old &= _models.c.number != int(pinned)
            connection.execute(sa.update(_models).values(content=None).where(old, _models.c.origin == "learned"))
        return row

    def models(self) -> list[tuple[ModelRow, bool]]:
        """All models, the newest first, each with whether its content is still there."""
        query = sa.select(_models.c.content.is_not(None), *_MODEL_COLUMNS).order_by(_models.c.number.desc())
        with self._reading() as connection:
            return [(ModelRow(*row[1:]), bool(row[0])) for row in connection.execute(query)]

    def newest_file(self, *, before: float = math.inf) -> int:
        """The number of the newest model that was given as a file, as against learned; -1 without one."""
        query = sa.select(sa.func.max(_models.c.number)).where(_FROM_FILE)
        number = self._scalar(query if before == math.inf else query.where(_models.c.number < before))
        return -1 if number is None else int(number)

    def current_model(self) -> int | None:
        """The number of the model that decides: the one pinned, else the newest; None without models."""
        pinned = self.note("pinned")
        if pinned:
            return int(pinned)
        return self._scalar(sa.select(sa.func.max(_models.c.number)))

    def model_content(self, number: int) -> bytes:
        """The exported file of a model."""
        content = self._scalar(sa.select(_models.c.content).where(_models.c.number == number))
        if content is None:
            raise InvalidInput(f"model {number} is not there: GET /models lists those that are kept")
        return bytes(content)

    def model_state(self, number: int) -> bytes | None:
        """The learner's state when it published this model, where it is kept."""
        state = self._scalar(sa.select(_models.c.state).where(_models.c.number == number))
        return None if state is None else bytes(state)

    def pin(self, number: int | None) -> None:
        """Let one model decide until further notice; None goes back to the newest."""
        if number is not None:
            self.model_content(number)
        self.write_note("pinned", "" if number is None else str(number))

    def note(self, name: str) -> str | None:
        """A text that the processes of the service share."""
        return self._scalar(sa.select(_notes.c.text).where(_notes.c.name == name))

    def write_note(self, name: str, text: str) -> None:
        """Write one."""
        with self._writing() as connection:
            done = connection.execute(sa.update(_notes).values(text=text).where(_notes.c.name == name))
            if not done.rowcount:
                connection.execute(sa.insert(_notes).values(name=name, text=text))

    @contextlib.contextmanager
    def leading(self) -> Iterator[bool]:
        """Whether this process may work on the log in the background: of all that ask, one at a time."""
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
    connection.isolation_level = None  # transactions begin where _begin_sqlite says so
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
    for start in range(0, len(listed), _MOST_IDS):
        yield listed[start : start + _MOST_IDS]


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


def _write_activations(connection: sa.Connection, given: Sequence[Activation]) -> dict[int, LogAnswer]:
    if not given:
        return {}
    recorded = _recorded_events(connection, (entry.event_id for entry in given))
    answers = {}
    for entry in given:
        event = recorded.get(entry.event_id)
        if event is None:
            answers[id(entry)] = LogAnswer("unknown")
        elif event.activated is not None:
            answers[id(entry)] = LogAnswer("repeated", event)
        else:
            connection.execute(
                sa.update(_events).values(activated=entry.time).where(_events.c.event_id == entry.event_id)
            )
            recorded[entry.event_id] = replace(event, activated=entry.time)
            answers[id(entry)] = LogAnswer("recorded", recorded[entry.event_id])
    return answers


def _write_rewards(connection: sa.Connection, given: Sequence[Reward]) -> dict[int, LogAnswer]:
    if not given:
        return {}
    active: dict[str, bool] = {}
    latest: dict[str, tuple[int, float, str]] = {}
    for group in _in_groups(entry.event_id for entry in given):
        query = (
            sa.select(_events.c.event_id, _events.c.activated, _rewards.c.version, _rewards.c.reward, _rewards.c.kind)
            .outerjoin(_rewards, _rewards.c.event_id == _events.c.event_id)
            .where(_events.c.event_id.in_(group))
        )
        for event_id, activated, version, reward, kind in connection.execute(query):
            active[event_id] = activated is not None
            if version is not None and version > latest.get(event_id, (0,))[0]:
                latest[event_id] = (version, reward, kind)
    answers, new = {}, []
    for entry in given:
        version, reward, kind = latest.get(entry.event_id, (0, 0.0, ""))
        if entry.event_id not in active:
            answers[id(entry)] = LogAnswer("unknown")
        elif not active[entry.event_id]:
            answers[id(entry)] = LogAnswer("inactive")
        elif version and (reward == entry.reward or entry.kind == "default" or not entry.may_correct):
            repeated = reward == entry.reward or entry.kind == "default"
            answers[id(entry)] = LogAnswer("repeated" if repeated else "refused", None, reward, version, kind)
        else:
            latest[entry.event_id] = (version + 1, entry.reward, entry.kind)
            row: dict[str, Any] = dict(zip(("version", "reward", "kind"), latest[entry.event_id], strict=True))
            answers[id(entry)] = LogAnswer("corrected" if version else "recorded", **row)
            new.append({"event_id": entry.event_id, "time": entry.time, **row})
    if new:
        connection.execute(sa.insert(_rewards), new)
    return answers


def read_rows(contexts: Iterable[str]) -> Any:
    """Contexts of the log, for ``RowReader.read``: mappings, or an array."""
    rows: list[Any] = orjson.loads(f"[{','.join(contexts)}]")
    return rows if isinstance(rows[0], dict) else np.asarray(rows, np.float64)


def can_read(context: str | None, deployed: DeployedPolicy) -> bool:
    """Whether a context of the log is a row of this file: one that is not must not hold up all that come after it."""
    if context is None or context.startswith("{") is (deployed.columns is None):
        return False
    try:
        return len(deployed.reader.read(read_rows([context])).contexts) == 1
    except (InvalidInput, ValueError):
        return False


# Group commit: what requests want written is collected while the disk is busy, and written in one transaction.


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
        self._groups: list[tuple[Sequence[Entry], asyncio.Future[list[LogAnswer]]]] = []
        self._waiting = 0
        self._running: asyncio.Task[None] | None = None
        self.failure = ""
        """Why the latest group was not written; empty where it was."""
        self.written = self.transactions = 0
        self.seconds = 0.0

    async def write(self, entries: Sequence[Entry]) -> list[LogAnswer]:
        """Write entries, and return what became of them once they are on disk."""
        if self._waiting + len(entries) > self._most:
            raise LogBusy(f"{self._waiting:,} entries wait for the log; try again later")
        future: asyncio.Future[list[LogAnswer]] = asyncio.get_running_loop().create_future()
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

    def _append(self, groups: list[Sequence[Entry]]) -> list[list[LogAnswer] | Exception]:
        """In the thread: all groups in one transaction; where that fails for one's sake, each by itself."""
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


# The log as a Parquet file, with the columns that ``fit_log``, ``learn_log`` and ``evaluate_log`` read.


_ROUND = ("arm", "reward", "propensity")


def export_events(
    log: str | Store,
    path: str | Path,
    *,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    defaults: bool = True,
    ids: bool = False,
) -> int:
    """Write the events that have a reward, in the order of the log, to a Parquet file; returns how many.

    Columns of raw rows keep their names; a context that came as an array is one column ``context`` of lists. ``arm`` is
    the arm that was played, ``propensity`` its probability, ``reward`` the latest version.

    Args:
        log: the log's address.
        path: the file to write, whole or not at all. It is made in memory: take a span of a log that is larger.
        since: events from this moment on (ISO 8601; local time where no zone is given).
        until: events before this moment.
        defaults: whether events with a default reward are taken.
        ids: whether columns ``event_id``, ``time``, ``model`` and ``mode`` are added; readers that take all other
            columns for the context must then be told which are.
    """
    check_writable(path)
    store = Store(log, create=False) if isinstance(log, str) else log
    frames = []
    try:
        for rows in store.rounds(_moment(since, -math.inf), _moment(until, math.inf)):
            kept = [(event, reward) for event, reward, kind in rows if defaults or kind != "default"]
            if kept:
                frames.append(pl.DataFrame([_row(*one, ids=ids) for one in kept], infer_schema_length=None))
    finally:
        if isinstance(log, str):
            store.close()
    if not frames:
        raise DataError("the log has no event with a reward in that span")
    frame = pl.concat(frames, how="diagonal_relaxed")
    content = io.BytesIO()
    frame.write_parquet(content)
    write_bytes(path, content.getvalue())
    return len(frame)


def _row(event: Event, reward: float, *, ids: bool) -> dict[str, Any]:
    if event.context is None:
        raise DataError(
            "the log was written without contexts, so there is nothing to learn from or to value policies by"
        )
    context = orjson.loads(event.context)
    if isinstance(context, list):
        context = {"context": np.asarray(context, np.float64).reshape(-1).tolist()}
    taken = [name for name in _ROUND if name in context]
    if taken:
        raise DataError(f"the context has a column {taken[0]!r}, which the log's own column would hide; rename it")
    row = {**context, "arm": event.arm, "reward": reward, "propensity": event.propensity}
    if ids:
        row |= {"event_id": event.event_id, "time": event.time, "model": event.model, "mode": event.mode}
    return row


def _moment(given: str | datetime | None, otherwise: float) -> float:
    if given is None:
        return otherwise
    try:
        return (datetime.fromisoformat(given) if isinstance(given, str) else given).timestamp()
    except ValueError:
        raise InvalidInput(f"a moment is written 2026-11-02 or 2026-11-02T12:00:00+01:00, got {given!r}") from None
