"""Readers of the log: contexts as rows, a Parquet file for training, and the page's numbers."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from daband._arrays import FloatArray
from daband._files import check_writable, write_bytes
from daband._lazy_polars import pl
from daband.errors import DataError, InvalidInput
from daband.linear._mean_estimates import LiftSequence, MeanEstimate
from daband.service._event_log import Event, LoggedReward, Store
from daband.service._settings import Settings
from daband.serving._deployed_policy import DeployedPolicy
from daband.serving._monitor import Monitor

_CONFIDENCE = 0.95
_MAX_WATCHED = 100  # contexts of one portion of the log that the monitor sees: all of a short one, every fifth of 500
_WATCHED_AT_ONCE = 20
_MAX_SCORES = 8  # summary scores of the monitor on the page
_ROUND = ("arm", "reward", "propensity")


def read_rows(contexts: Iterable[str]) -> Any:
    """Return contexts of the log for ``RowReader.read``: mappings, or an array."""
    rows: list[Any] = orjson.loads(f"[{','.join(contexts)}]")
    return rows if isinstance(rows[0], dict) else np.asarray(rows, np.float64)


def can_read(context: str | None, deployed: DeployedPolicy) -> bool:
    """True if a context of the log is a row for this file. A row of another file must not stop later rows."""
    if context is None or context.startswith("{") is (deployed.columns is None):
        return False
    try:
        return len(deployed.reader.read(read_rows([context])).contexts) == 1
    except (InvalidInput, ValueError):
        return False


def export_events(
    log: str | Store,
    path: str | Path,
    *,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    defaults: bool = True,
    ids: bool = False,
) -> int:
    """Write the events that have a reward, in the order of the log, to a Parquet file, and return their number.

    Columns of raw rows keep their names. A context that was an array is one column ``context`` of lists. ``arm`` is
    the arm that was played, ``propensity`` its probability, ``reward`` the latest version.

    Args:
        log: the log's address.
        path: the file to write, all or nothing. It is built in memory: export a larger log in several spans.
        since: events from this moment on (ISO 8601; local time if it has no zone).
        until: events before this moment.
        defaults: False to drop events with a default reward.
        ids: True to add columns ``event_id``, ``time``, ``model`` and ``mode``. Readers then need the names of the
            context columns.
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
        raise DataError("the log has no contexts (--contexts), so it cannot be used to learn or to value policies")
    context = orjson.loads(event.context)
    if isinstance(context, list):
        context = {"context": np.asarray(context, np.float64).reshape(-1).tolist()}
    taken = [name for name in _ROUND if name in context]
    if taken:
        raise DataError(f"the context has a column {taken[0]!r}, which is also a column of the log; rename it")
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


class ValueSums:
    """The mean reward of the arms that were played, and the self-normalised estimate for another policy, from sums.

    With w the weight of the other policy, ``powers[a, b]`` is the sum of w^a r^b. Standard errors use the delta method.
    """

    def __init__(self) -> None:
        self._sums = [[0.0] * 3 for _ in range(3)]

    def add(self, weight: float, reward: float) -> None:
        """Count a round."""
        by = 1.0
        for row in self._sums:  # plain numbers: for nine of them numpy is slower
            row[0] += by
            row[1] += by * reward
            row[2] += by * reward * reward
            by *= weight

    @property
    def powers(self) -> FloatArray:
        """The sums, (3, 3)."""
        return np.array(self._sums)

    @property
    def n(self) -> int:
        """The number of rounds."""
        return round(self._sums[0][0])

    @property
    def effective_sample_size(self) -> float:
        """(sum of w)^2 / sum of w^2."""
        total, squares = self._sums[1][0], self._sums[2][0]
        return total**2 / squares if squares > 0 else 0.0

    def mean(self, power: int = 0) -> MeanEstimate:
        """Return the mean reward with weights w^power: 0 for the arms played, 1 for the other policy."""
        p, n = self.powers, self.n
        total = float(p[power, 0])
        if total <= 0.0:
            return MeanEstimate(math.nan, math.inf)
        value = float(p[power, 1]) / total
        squares = float(np.array([value * value, -2.0 * value, 1.0]) @ p[2 * power])
        return MeanEstimate(value, math.sqrt(max(squares, 0.0) * n / (n - 1)) / total if n > 1 else math.inf)

    def difference(self) -> MeanEstimate:
        """Return the mean reward of the arms played minus the other policy's, on the same rounds."""
        p, n, played, other = self.powers, self.n, self.mean(0), self.mean(1)
        if not math.isfinite(other.error):
            return MeanEstimate(math.nan, math.inf)
        v, u, scale = played.value, other.value, n / float(p[1, 0])
        square = float(p[0, 2] - 2 * v * p[0, 1] + v * v * p[0, 0])
        both = float(p[1, 2] - (v + u) * p[1, 1] + v * u * p[1, 0])
        others = float(p[2, 2] - 2 * u * p[2, 1] + u * u * p[2, 0])
        squares = square - 2.0 * scale * both + scale * scale * others
        return MeanEstimate(v - u, math.sqrt(max(squares, 0.0) / (n - 1) / n))


class Watch:
    """Counts events and rewards in the order of the log.

    ``deployed`` is the newest file, model ``first_model`` of the log. Decisions of earlier models are counted, but
    their contexts are not compared with the reference contexts of this file.
    """

    def __init__(self, deployed: DeployedPolicy, settings: Settings, *, first_model: int = 0) -> None:
        self.deployed, self.settings, self._first_model = deployed, settings, first_model
        self._monitor: Monitor | None = None
        if deployed.reference is not None and settings.contexts == "keep":
            self._monitor = Monitor(deployed, false_alarms=settings.false_alarms, seed=0)
        self._n: Counter[str] = Counter()
        self._min_propensity: float | None = None
        self._arms: Counter[int] = Counter()
        self._own_arms: Counter[int] = Counter()
        self._compared, self._all = ValueSums(), ValueSums()
        self._models: dict[int, ValueSums] = {}
        self._shifted_at: int | None = None
        #: The policy compared with the control group.
        self.lift = LiftSequence(_CONFIDENCE)
        self._open: dict[str, LoggedReward | None] = {}  # events of that comparison in their order, with their reward

    def see_events(self, events: Sequence[Event]) -> None:
        """Count the next events of the log."""
        watched: list[tuple[int, str]] = []
        every = -(-len(events) // _MAX_WATCHED)
        for index, event in enumerate(events):
            self._n["events"] += 1
            self._arms[event.arm] += 1
            if event.own_arm is not None:
                self._own_arms[event.own_arm] += 1
                if event.incumbent_arm is not None:
                    self._n["compared"] += 1
                    self._n["equal"] += event.own_arm == event.incumbent_arm
            self._min_propensity = min(event.propensity, self._min_propensity or 1.0)
            if self.settings.wait is not None and self._is_compared(event):
                self._open[event.event_id] = None
            if self._monitor is None or event.model < self._first_model or index % every:
                continue
            if event.context is not None and can_read(event.context, self.deployed):
                watched.append((self._n["events"], event.context))
        for start in range(0, len(watched), _WATCHED_AT_ONCE):
            self._watch_contexts(watched[start : start + _WATCHED_AT_ONCE])

    def _watch_contexts(self, watched: Sequence[tuple[int, str]]) -> None:
        """Pass some contexts to the monitor, each with the number of its event."""
        assert self._monitor is not None
        self._monitor.see(read_rows(text for _, text in watched))
        if self._monitor.alarm and self._shifted_at is None:
            self._shifted_at = watched[-1][0]

    def see_rewards(self, rows: Sequence[LoggedReward]) -> None:
        """Count the next rewards of the log."""
        for row in rows:
            self._n["given" if row.kind == "given" else "defaulted"] += 1
            self._all.add(1.0, row.reward)
            self._models.setdefault(row.event.model, ValueSums()).add(1.0, row.reward)
            weight = self._weight(row.event)
            if weight is not None:
                self._compared.add(weight, row.reward)
            if self._is_compared(row.event):
                self._open[row.event.event_id] = row
                self._count_lift()

    def _is_compared(self, event: Event) -> bool:
        """True if an event is part of the comparison of the newest file with the control group."""
        return event.control is not None and event.model >= self._first_model

    def _count_lift(self) -> None:
        """Count rewards in the order of their events, up to the first event whose reward has not arrived.

        Purchases arrive sooner than the default reward of visitors who buy nothing, so the rewards that have arrived
        are not representative. Without ``wait`` some never arrive; rewards are then counted as they arrive.
        """
        while self._open and (row := self._open[first := next(iter(self._open))]) is not None:
            del self._open[first]
            assert row.event.control is not None
            self.lift.add(row.reward, row.event.control, in_control=row.event.mode == "control")

    def lift_numbers(self) -> dict[str, Any]:
        """Return the lift with its interval and the proven verdict: "worse", "better" or ""."""
        value, low, high = (number if math.isfinite(number) else None for number in self.lift.interval())
        verdict = "worse" if self.lift.worse else "better" if self.lift.better else ""
        policy, control = self.lift.counts
        return {"value": value, "low": low, "high": high, "policy": policy, "control": control, "verdict": verdict}

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return all numbers as JSON can hold them."""
        n, uplift = self._n, self._compared.difference()
        rewarded = n["given"] + n["defaulted"]
        if self.settings.mode == "apprentice":
            uplift = MeanEstimate(-uplift.value, uplift.error)
        return {
            "time": now,
            "mode": self.settings.mode,
            **{name: n[name] for name in ("events", "given", "defaulted")},
            "rewarded": rewarded,
            "join_rate": n["given"] / n["events"] if n["events"] else None,
            "defaulted_fraction": n["defaulted"] / rewarded if rewarded else None,
            "min_propensity": self._min_propensity,
            "equal_fraction": n["equal"] / n["compared"] if n["compared"] else None,
            "played": _interval(self._all.mean()),
            "other": _interval(self._compared.mean(1)),
            "uplift": _interval(uplift),
            "lift": self.lift_numbers(),
            "compared_rounds": self._compared.n,
            "effective_sample_size": self._compared.effective_sample_size,
            "assessed": None if self.deployed.assessment is None else self.deployed.assessment.get("value"),
            "shift": self._shift(),
            "arms": [[name, self._arms[arm], self._own_arms[arm]] for arm, name in enumerate(self.deployed.arm_names)],
            "new_arms": self.deployed.new_arms,
            "models": {number: {"n": sums.n, **_interval(sums.mean())} for number, sums in self._models.items()},
        }

    def _shift(self) -> dict[str, Any] | None:
        """Return the monitor's results; None if contexts are not watched."""
        if self._monitor is None:
            return None
        report = self._monitor.report()
        scores = sorted(report.scores, key=lambda one: (not one.left, -one.evidence))[:_MAX_SCORES]
        names = ("name", "left", "since", "evidence")
        return {
            "rounds": report.rounds,
            "contexts_left": report.contexts_left,
            "arms_left": report.arms_left,
            "at_event": self._shifted_at,
            "scores": [{name: getattr(score, name) for name in names} for score in scores],
        }

    def _weight(self, event: Event) -> float | None:
        """Return the weight of the policy that is compared with the arms played; None if there is no other policy."""
        other = event.incumbent_arm if event.mode == "online" else event.own_arm
        if other is None or event.mode != self.settings.mode or event.control is not None:
            return None
        return 1.0 / event.propensity if other == event.arm else 0.0


def _interval(estimate: MeanEstimate) -> dict[str, float | None]:
    if not (math.isfinite(estimate.value) and math.isfinite(estimate.error)):
        return {"value": estimate.value if math.isfinite(estimate.value) else None, "low": None, "high": None}
    low, high = estimate.interval(_CONFIDENCE)
    return {"value": estimate.value, "low": low, "high": high}
