"""Read the log of a service: export it for training, and compute the statistics of the service's
web page.

``export_events`` writes a Parquet file. ``Statistics`` counts events and rewards, estimates mean
rewards, and decides the pilot of a served file by ``TrialRule.decide_next``.
"""

from __future__ import annotations

import io
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from daband.base._arrays import FloatArray
from daband.base._files import check_writable, write_bytes
from daband.base._lazy_polars import pl
from daband.errors import DataError, InvalidInput
from daband.features._costs import ArmCosts
from daband.ledger._store import Event, LoggedReward, Store
from daband.linear._reward_moments import RewardMoments
from daband.logs._controlled_trial import TrialCounts, TrialRule, estimate_cost, estimate_effect
from daband.logs._mean_estimates import MeanEstimate
from daband.service._decider import load_model, with_added_arms
from daband.service._settings import Settings
from daband.serving._deployed_policy import DeployedPolicy
from daband.serving._monitor import Monitor

#: The confidence level of intervals.
_CONFIDENCE = 0.95
#: Maximum number of contexts that are monitored each time the log is read, at equal distances in
#: the log.
_MAX_MONITORED_CONTEXTS = 100
#: The number of contexts per call of the monitor.
_CONTEXTS_PER_CALL = 20
#: Maximum number of the monitor's scores on the page.
_MAX_SCORES = 8
#: Maximum number of points of the curve of the lift.
_MAX_POINTS = 200
#: In a pilot, the policy's rounds are limited for this fraction of a week ahead.
_AHEAD_WEEKS = 1.0 / 7.0
#: The columns of an exported log in addition to the context.
_LOG_COLUMNS = ("arm", "reward", "propensity", "offered")
#: Further columns of an exported log with ids.
_ID_COLUMNS = ("event_id", "time", "model", "role")
#: Bits of the largest integer that a column of a file holds; larger ones are written as text.
_MAX_BITS = 63


def read_rows(contexts: Iterable[str]) -> Any:
    """Return n contexts of the log, which are JSON texts, as a list of mappings or as an array (n,
    *C).
    """
    rows: list[Any] = orjson.loads(f"[{','.join(contexts)}]")
    return rows if isinstance(rows[0], dict) else np.asarray(rows, np.float64)


def can_policy_read(context: str | None, deployed: DeployedPolicy) -> bool:
    """Return True if a policy can read a context of the log, which may be the context of another
    policy.
    """
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
    ids: bool = False,
) -> int:
    """Write the events with rewards to a Parquet file, in the order of the log, and return their
    number.

    Columns of raw rows keep their names, except that a column ``reward`` of a row is written as
    ``context_reward``; likewise for the names of other columns of the log. Nested values are
    written as JSON, and columns with numbers and texts as texts. Contexts that are arrays are
    written as a column ``context`` of lists. ``arm`` is the name of the arm that was played, or its
    index if arms have no names. ``propensity`` is its probability, and ``reward`` its reward. The
    column ``offered`` lists the eligible arms, if not all arms were eligible for some event. Events
    whose context was not stored are left out, with a warning.

    Args:
        log: the address of the log, as in ``serve``, or an open ``Store``.
        path: the file to write. It is built in memory, so a large log should be exported in several
            parts.
        since: events before this time are dropped. It is a ``datetime`` or a text in ISO 8601, in
            local time if it has no time zone.
        until: events from this time on are dropped.
        ids: True to add the columns ``event_id``, ``time``, ``model`` and ``role``. The reader of
            the file must then be told which columns are the context.
    """
    check_writable(path)
    store = Store(log, create=False) if isinstance(log, str) else log
    try:
        arms = _read_arms(store)
        rounds = store.read_rounds(_to_seconds(since, -math.inf), _to_seconds(until, math.inf))
        rows = [
            _to_row(event, reward, arms, with_ids=ids)
            for event, reward in rounds
            if event.context is not None
        ]
    finally:
        if isinstance(log, str):
            store.close()
    n_without_context = len(rounds) - len(rows)
    if n_without_context:
        message = f"{n_without_context:,} events have no context (--contexts drop)"
        if not rows:
            raise DataError(f"{message}, so policies cannot be trained or evaluated on them")
        warnings.warn(f"{message} and are left out", stacklevel=2)
    if not rows:
        raise DataError("the log has no event with a reward in this period")
    frame = pl.DataFrame(rows, infer_schema_length=None, strict=False)
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    write_bytes(path, buffer.getvalue())
    return len(frame)


def _read_arms(store: Store) -> Sequence[str | int]:
    """Return the names of all arms of a log, or their indices if they have no names."""
    number = store.find_newest_file()
    model = load_model(store.read_content(number), number)
    names = list(with_added_arms(model, store.read_note("arms")).deployed.arm_names)
    indices = range(len(names))
    return indices if names == [str(index) for index in indices] else names


def _to_row(
    event: Event, reward: float, arms: Sequence[str | int], *, with_ids: bool
) -> dict[str, Any]:
    """Return an event with a context and its reward as a row of the exported file, by column name.

    ``with_ids`` adds the columns ``event_id``, ``time``, ``model`` and ``role``.
    """
    context = orjson.loads(str(event.context))
    row: dict[str, Any] = {}
    reserved_names = (*_LOG_COLUMNS, *_ID_COLUMNS) if with_ids else _LOG_COLUMNS
    if isinstance(context, list):
        row["context"] = np.asarray(context, np.float64).reshape(-1).tolist()
    else:
        for name, value in context.items():
            is_text = isinstance(value, dict | list) or (
                isinstance(value, int) and value.bit_length() > _MAX_BITS
            )
            row[f"context_{name}" if name in reserved_names else name] = (
                orjson.dumps(value).decode() if is_text else value
            )
    row |= {"arm": arms[event.arm], "reward": reward, "propensity": event.propensity}
    if event.eligible is not None:
        row["offered"] = [arms[index] for index in orjson.loads(event.eligible)]
    if with_ids:
        row |= {name: getattr(event, name) for name in _ID_COLUMNS}
    return row


def _to_seconds(time: str | datetime | None, default: float) -> float:
    """Return a time in seconds since 1970, or ``default`` for None."""
    if time is None:
        return default
    try:
        return (datetime.fromisoformat(time) if isinstance(time, str) else time).timestamp()
    except ValueError:
        raise InvalidInput(
            f"since and until must look like 2026-11-02 or 2026-11-02T12:00:00+01:00, got {time!r}"
        ) from None


def subtract_costs(
    entries: Sequence[LoggedReward], costs: ArmCosts | None
) -> Sequence[LoggedReward]:
    """Return rewards of the log without the costs of their arms.

    A cost that is missing in the stored row, or whose row was not stored, is the mean cost.
    """
    if costs is None or not entries:
        return entries
    rows = [orjson.loads(entry.event.context or "{}") for entry in entries]

    def read_column(name: str) -> FloatArray:
        """Return the values of a column, NaN for missing ones."""
        values = [row.get(name) if isinstance(row, dict) else None for row in rows]
        return np.array(values, np.float64)

    arm_costs = costs.compute(np.array([entry.event.arm for entry in entries]), read_column)
    return [
        replace(entry, reward=entry.reward - cost)
        for entry, cost in zip(entries, arm_costs.tolist(), strict=True)
    ]


def estimate_mean_reward(moments: RewardMoments) -> MeanEstimate:
    """Return the mean of rewards with its standard error, which is infinite for fewer than two."""
    n = moments.total_weight
    if n < 2.0:
        return MeanEstimate(moments.mean if n else math.nan, math.inf)
    return MeanEstimate(moments.mean, math.sqrt(moments.squared_differences / (n - 1.0) / n))


class Statistics:
    """Statistics of events and rewards for the service's page.

    Entries must be added in the order of the log.

    ``deployed`` is the newest exported file, which is model ``first_model`` of the log. Decisions
    of earlier models are counted, but they are not in the lift, and their contexts are not
    monitored.
    """

    def __init__(
        self, deployed: DeployedPolicy, settings: Settings, *, first_model: int = 0
    ) -> None:
        self.deployed = deployed
        self.settings = settings
        self._first_model = first_model
        self._monitor: Monitor | None = None
        if deployed.reference is not None and settings.contexts == "keep":
            self._monitor = Monitor(deployed, false_alarms=settings.false_alarms, seed=0)
        #: The numbers of events and rewards of each kind, by the names in the snapshot.
        self._counts: Counter[str] = Counter()
        self._min_propensity: float | None = None
        self._arm_counts: Counter[int] = Counter()
        self._played_rewards = RewardMoments(standardise=False)
        #: The mean reward of the events of each model, by its number.
        self._model_rewards: dict[int, RewardMoments] = {}
        #: The number of events at which the monitor raised its first alarm; None without an alarm.
        self._alarm_event: int | None = None
        pilot = deployed.pilot
        #: The rule by which the policy is compared with the control group. Each side of the
        #: interval has half of the error, except in a pilot.
        self._rule = TrialRule(error=0.5 * (1.0 - _CONFIDENCE))
        if pilot is not None:
            self._rule = TrialRule(**pilot["rule"])
        self._trial = TrialCounts()
        #: "better" or "worse" once that is proven, and in a pilot "over" once it has ended without
        #: proof; "" before.
        self.verdict = ""
        #: Points (rounds, lift, low, high) of the lift so far.
        self._curve: list[tuple[float, float, float | None, float | None]] = []
        #: The rewards of events that are not yet in the lift, by event id in the order of the log;
        #: None if the reward has not arrived.
        self._pending_rewards: dict[str, LoggedReward | None] = {}

    def add_events(self, events: Sequence[Event], *, only_trial: bool = False) -> None:
        """Add the next events of the log. With ``only_trial``, they are not counted otherwise."""
        monitored_contexts: list[tuple[int, str]] = []
        stride = -(-len(events) // _MAX_MONITORED_CONTEXTS)
        for index, event in enumerate(events):
            if not only_trial:
                self._counts["events"] += 1
                self._arm_counts[event.arm] += 1
                self._min_propensity = min(event.propensity, self._min_propensity or 1.0)
            if self._is_in_lift_test(event):
                assert event.control is not None
                self._trial.add_round(
                    1.0 - event.control,
                    is_policy=event.role != "control",
                    differs=event.propensity < 1.0,
                    period=_find_day(event),
                )
                if self.settings.wait is not None:
                    self._pending_rewards[event.event_id] = None
            is_monitored = self._monitor is not None and not only_trial
            if not is_monitored or event.model < self._first_model or index % stride:
                continue
            if event.context is not None and can_policy_read(event.context, self.deployed):
                monitored_contexts.append((self._counts["events"], event.context))
        for start in range(0, len(monitored_contexts), _CONTEXTS_PER_CALL):
            assert self._monitor is not None
            batch = monitored_contexts[start : start + _CONTEXTS_PER_CALL]
            self._monitor.observe(read_rows(context for _, context in batch))
            if self._monitor.alarm and self._alarm_event is None:
                self._alarm_event = batch[-1][0]

    def add_rewards(
        self, logged_rewards: Sequence[LoggedReward], *, only_trial: bool = False
    ) -> None:
        """Add the next rewards of the log. With ``only_trial``, they are not counted otherwise."""
        for entry in subtract_costs(logged_rewards, self.deployed.costs):
            if not only_trial:
                self._counts["defaulted" if entry.kind == "default" else "given"] += 1
                own_rewards = self._model_rewards.setdefault(
                    entry.event.model, RewardMoments(standardise=False)
                )
                for moments in (self._played_rewards, own_rewards):
                    moments.add(np.array([entry.reward]))
            if self._is_in_lift_test(entry.event):
                self._pending_rewards[entry.event.event_id] = entry
                self._update_lift()
        self._update_verdict()

    def _is_in_lift_test(self, event: Event) -> bool:
        """Return True if an event is used in the lift of the newest file over the control group."""
        return event.control is not None and event.model >= self._first_model

    def _update_lift(self) -> None:
        """Add rewards to the lift in the order of their events, up to the first event without a
        reward.

        Rewards of purchases arrive sooner than the default rewards of visitors who buy nothing, so
        the rewards that have arrived are not representative. Without ``Settings.wait``, some
        rewards never arrive. Events are then added to ``_pending_rewards`` only with their rewards,
        so rewards are added as they arrive.
        """
        while (
            self._pending_rewards
            and (entry := next(iter(self._pending_rewards.values()))) is not None
        ):
            event = entry.event
            del self._pending_rewards[event.event_id]
            assert event.control is not None
            if event.propensity < 1.0:
                self._trial.add_reward(
                    1.0 - event.control,
                    entry.reward,
                    is_policy=event.role != "control",
                    period=_find_day(event),
                )

    def _update_verdict(self) -> None:
        """Compare the policy with the control group, and add a point to the curve."""
        moments = self._trial.moments
        is_better, is_worse = self._rule.decide(moments)
        self.verdict = self.verdict or ("better" if is_better else "worse" if is_worse else "")
        if not math.isfinite(estimate_effect(moments).error):
            return
        n_rounds = self._trial.n_rounds
        if self._curve and self._curve[-1][0] == n_rounds:
            self._curve.pop()  # further rewards of the same rounds
        self._curve.append((n_rounds, *self._compute_lift()))
        if len(self._curve) > _MAX_POINTS:
            del self._curve[1:-1:2]

    def choose_control(self) -> float | None:
        """Return the probability of the incumbent in a pilot, and end the pilot if it is over.

        It is None without a pilot.
        """
        pilot = self.deployed.pilot
        if pilot is None:
            return None
        if not self.verdict:
            n_left = max(self._rule.reference_rounds - self._trial.n_differing, 0.0)
            self.verdict, fraction = self._rule.decide_next(
                self._trial, _AHEAD_WEEKS * pilot["rounds"], n_left
            )
        if self.verdict:
            return 0.0 if self.verdict == "better" else 1.0
        # two digits, so that there are few groups of rounds
        digits = 1 - math.floor(math.log10(fraction)) if fraction else 0
        return 1.0 - math.floor(fraction * 10**digits) / 10**digits

    def _compute_lift(self) -> tuple[float, float | None, float | None]:
        """Return the lift per round and its limits, which are None if they are infinite."""
        effect = estimate_effect(self._trial.moments)
        share = self._trial.n_differing / max(self._trial.n_rounds, 1)
        low, high = (
            share * limit if math.isfinite(limit) else None
            for limit in self._rule.compute_interval(effect)
        )
        return share * float(effect.value), low, high

    def describe_lift(self) -> dict[str, Any]:
        """Return the lift per round, its interval, and the mean rewards of policy and incumbent.

        Means are those of rounds in which the two differ. The verdict is "better" or "worse" once
        that is proven, otherwise "". For a pilot, there are also the estimated ``cost``, its
        upper limit ``cost_limit``, and ``max_cost``.
        """
        moments = self._trial.moments
        effect = estimate_effect(moments)
        value, low, high = self._compute_lift()
        n_policy, n_control = (int(count) for count in effect.counts)
        means = [
            _to_limits(MeanEstimate(float(mean) + (self._trial.offset or 0.0), float(error)))
            for mean, error in zip(effect.means, effect.mean_errors, strict=True)
        ]
        costs: dict[str, Any] = {}
        if self.deployed.pilot is not None:
            costs = {
                "cost": float(estimate_cost(moments)[0]),
                "cost_limit": float(self._rule.limit_cost(moments)),
                "max_cost": self._rule.max_cost,
            }
        return {
            "value": value if n_policy and n_control else None,
            "low": low,
            "high": high,
            "policy": n_policy,
            "control": n_control,
            "policy_mean": means[0] if n_policy else None,
            "control_mean": means[1] if n_control else None,
            "differing": self._trial.n_differing / max(self._trial.n_rounds, 1),
            "curve": self._curve,
            "unit": (self.deployed.assessment or {}).get("unit", ""),
            "verdict": self.verdict,
            **costs,
        }

    def build_snapshot(self, now: float) -> dict[str, Any]:
        """Return all statistics at the time ``now``, as a dictionary of JSON types."""
        counts = self._counts
        n_rewarded = counts["given"] + counts["defaulted"]
        return {
            "time": now,
            **{name: counts[name] for name in ("events", "given", "defaulted")},
            "rewarded": n_rewarded,
            "join_rate": counts["given"] / counts["events"] if counts["events"] else None,
            "defaulted_fraction": counts["defaulted"] / n_rewarded if n_rewarded else None,
            "min_propensity": self._min_propensity,
            "played": _to_limits(estimate_mean_reward(self._played_rewards)),
            "lift": self.describe_lift(),
            "shift": self._describe_shift(),
            "arms": [
                [name, self._arm_counts[arm]] for arm, name in enumerate(self.deployed.arm_names)
            ],
            "models": {
                number: {
                    "n": int(moments.total_weight),
                    **_to_limits(estimate_mean_reward(moments)),
                }
                for number, moments in self._model_rewards.items()
            },
        }

    def _describe_shift(self) -> dict[str, Any] | None:
        """Return the results of the monitor in JSON types; None if contexts are not monitored."""
        if self._monitor is None:
            return None
        report = self._monitor.report()
        scores = sorted(report.scores, key=lambda score: (not score.changed, -score.evidence))[
            :_MAX_SCORES
        ]
        return {
            "rounds": report.rounds,
            "contexts_changed": report.contexts_changed,
            "arms_changed": report.arms_changed,
            "at_event": self._alarm_event,
            "scores": list(map(asdict, scores)),
        }


def _find_day(event: Event) -> int:
    """Return the number of the day of an event."""
    return int(event.time // 86_400.0)


def _to_limits(estimate: MeanEstimate) -> dict[str, float | None]:
    """Return the value, lower and upper limit of an estimate, in JSON types.

    Numbers that are not finite are None.
    """
    if not (math.isfinite(estimate.value) and math.isfinite(estimate.standard_error)):
        return {
            "value": estimate.value if math.isfinite(estimate.value) else None,
            "low": None,
            "high": None,
        }
    low, high = estimate.compute_interval(_CONFIDENCE)
    return {"value": estimate.value, "low": low, "high": high}
