"""Read the log of a service: export it for training, and compute the statistics of the service's
web page.

``export_events`` writes a Parquet file. ``Statistics`` counts events and rewards, ``RewardSums``
estimates mean rewards.
"""

from __future__ import annotations

import io
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from daband.base._files import check_writable, write_bytes
from daband.base._lazy_polars import pl
from daband.errors import DataError, InvalidInput
from daband.logs._mean_estimates import LiftSequence, MeanEstimate
from daband.service._decider import load_model, with_added_arms
from daband.service._event_log import Event, LoggedReward, Store
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
#: The columns of an exported log in addition to the context.
_LOG_COLUMNS = ("arm", "reward", "propensity", "offered")
#: Further columns of an exported log with ids.
_ID_COLUMNS = ("event_id", "time", "model", "mode")
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
    defaults: bool = True,
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
        defaults: False to drop events with a default reward.
        ids: True to add the columns ``event_id``, ``time``, ``model`` and ``mode``. The reader of
            the file must then be told which columns are the context.
    """
    check_writable(path)
    store = Store(log, create=False) if isinstance(log, str) else log
    frames = []
    n_without_context = 0
    try:
        arms = _read_arms(store)
        for rounds in store.read_rounds(
            _to_seconds(since, -math.inf), _to_seconds(until, math.inf)
        ):
            used_rounds = [
                (event, reward) for event, reward, kind in rounds if defaults or kind != "default"
            ]
            rows = [
                _to_row(event, reward, arms, with_ids=ids)
                for event, reward in used_rounds
                if event.context is not None
            ]
            n_without_context += len(used_rounds) - len(rows)
            if rows:
                frames.append(pl.DataFrame(rows, infer_schema_length=None, strict=False))
    finally:
        if isinstance(log, str):
            store.close()
    if n_without_context:
        message = f"{n_without_context:,} events have no context (--contexts drop)"
        if not frames:
            raise DataError(f"{message}, so policies cannot be trained or evaluated on them")
        warnings.warn(f"{message} and are left out", stacklevel=2)
    if not frames:
        raise DataError("the log has no event with a reward in this period")
    frame = pl.concat(frames, how="diagonal_relaxed")
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

    ``with_ids`` adds the columns ``event_id``, ``time``, ``model`` and ``mode``.
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


class RewardSums:
    """Running sums for the mean reward of the played arms, and for the self-normalised estimate of
    another policy.

    The policy that was not played is called the other policy. A round is the vector v = (1, r, w, w
    r), where r is its reward and w the importance weight of the other policy. ``gram`` is the sum
    of v v'. Standard errors are computed by the delta method.
    """

    def __init__(self) -> None:
        self.gram = np.zeros((4, 4))

    def add(self, weight: float, reward: float) -> None:
        """Add a round with this importance weight and reward."""
        row = np.array([1.0, reward, weight, weight * reward])
        self.gram += np.outer(row, row)

    @property
    def n(self) -> int:
        """The number of rounds."""
        return round(self.gram[0, 0])

    @property
    def effective_sample_size(self) -> float:
        """The effective sample size, (sum of w)^2 / sum of w^2."""
        _, _, weight_sum, _ = self.gram[0].tolist()
        return weight_sum**2 / float(self.gram[2, 2]) if weight_sum > 0 else 0.0

    def estimate(self, played: float, other: float) -> MeanEstimate:
        """Return ``played`` times the mean reward of the played arms plus ``other`` times the mean
        reward of the other policy, on the same rounds.
        """
        n, reward_sum, weight_sum, weighted_reward_sum = self.gram[0].tolist()
        if n < 1 or (other and weight_sum <= 0.0):
            return MeanEstimate(math.nan, math.inf)
        played_mean = reward_sum / n
        other_mean = weighted_reward_sum / weight_sum if other else 0.0
        # the influence of a round on the estimate is the product of these coefficients and v
        coefficients = played / n * np.array([-played_mean, 1.0, 0.0, 0.0])
        if other:
            coefficients += other / weight_sum * np.array([0.0, 0.0, -other_mean, 1.0])
        squares = max(float(coefficients @ self.gram @ coefficients), 0.0)
        return MeanEstimate(
            played * played_mean + other * other_mean,
            math.sqrt(squares * n / (n - 1)) if n > 1 else math.inf,
        )


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
        self._own_arm_counts: Counter[int] = Counter()
        #: Sums over the rounds in which the choice of the policy that was not played is known.
        self._weighted_sums = RewardSums()
        #: Sums over all rounds, with weight 1.
        self._all_sums = RewardSums()
        #: Sums over the rounds of each model, by its number.
        self._model_sums: dict[int, RewardSums] = {}
        #: The number of events at which the monitor raised its first alarm; None without an alarm.
        self._alarm_event: int | None = None
        #: The estimated lift of the policy over the control group.
        self.lift = LiftSequence(_CONFIDENCE)
        #: The rewards of events that are not yet in the lift, by event id in the order of the log;
        #: None if the reward has not arrived.
        self._pending_rewards: dict[str, LoggedReward | None] = {}

    def add_events(self, events: Sequence[Event]) -> None:
        """Add the next events of the log."""
        monitored_contexts: list[tuple[int, str]] = []
        stride = -(-len(events) // _MAX_MONITORED_CONTEXTS)
        for index, event in enumerate(events):
            self._counts["events"] += 1
            self._arm_counts[event.arm] += 1
            if event.own_arm is not None:
                self._own_arm_counts[event.own_arm] += 1
                if event.incumbent_arm is not None:
                    self._counts["both_known"] += 1
                    self._counts["equal"] += event.own_arm == event.incumbent_arm
            self._min_propensity = min(event.propensity, self._min_propensity or 1.0)
            if self.settings.wait is not None and self._is_in_lift_test(event):
                self._pending_rewards[event.event_id] = None
            if self._monitor is None or event.model < self._first_model or index % stride:
                continue
            if event.context is not None and can_policy_read(event.context, self.deployed):
                monitored_contexts.append((self._counts["events"], event.context))
        for start in range(0, len(monitored_contexts), _CONTEXTS_PER_CALL):
            self._check_contexts(monitored_contexts[start : start + _CONTEXTS_PER_CALL])

    def _check_contexts(self, monitored_contexts: Sequence[tuple[int, str]]) -> None:
        """Update the monitor with contexts, given as pairs of the event's number and the
        JSON text.
        """
        assert self._monitor is not None
        self._monitor.observe(read_rows(context for _, context in monitored_contexts))
        if self._monitor.alarm and self._alarm_event is None:
            self._alarm_event = monitored_contexts[-1][0]

    def add_rewards(self, logged_rewards: Sequence[LoggedReward]) -> None:
        """Add the next rewards of the log."""
        for entry in logged_rewards:
            self._counts["given" if entry.kind == "given" else "defaulted"] += 1
            self._all_sums.add(1.0, entry.reward)
            self._model_sums.setdefault(entry.event.model, RewardSums()).add(1.0, entry.reward)
            weight = self._weigh_other_policy(entry.event)
            if weight is not None:
                self._weighted_sums.add(weight, entry.reward)
            if self._is_in_lift_test(entry.event):
                self._pending_rewards[entry.event.event_id] = entry
                self._update_lift()

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
            del self._pending_rewards[entry.event.event_id]
            assert entry.event.control is not None
            self.lift.add(
                entry.reward, entry.event.control, in_control=entry.event.mode == "control"
            )

    def describe_lift(self) -> dict[str, Any]:
        """Return the lift, its interval, the number of rewards of both groups, and the verdict.

        The verdict is "worse" or "better" once that is proven, otherwise "".
        """
        value, low, high = (
            number if math.isfinite(number) else None for number in self.lift.compute_lift()
        )
        verdict = "worse" if self.lift.is_worse else "better" if self.lift.is_better else ""
        n_policy, n_control = self.lift.counts
        return {
            "value": value,
            "low": low,
            "high": high,
            "policy": n_policy,
            "control": n_control,
            "verdict": verdict,
        }

    def build_snapshot(self, now: float) -> dict[str, Any]:
        """Return all statistics at the time ``now``, as a dictionary of JSON types."""
        counts = self._counts
        arm_names = self.deployed.arm_names
        n_rewarded = counts["given"] + counts["defaulted"]
        sign = -1.0 if self.settings.mode == "apprentice" else 1.0
        return {
            "time": now,
            "mode": self.settings.mode,
            **{name: counts[name] for name in ("events", "given", "defaulted")},
            "rewarded": n_rewarded,
            "join_rate": counts["given"] / counts["events"] if counts["events"] else None,
            "defaulted_fraction": counts["defaulted"] / n_rewarded if n_rewarded else None,
            "min_propensity": self._min_propensity,
            "equal_fraction": (
                counts["equal"] / counts["both_known"] if counts["both_known"] else None
            ),
            "played": _to_limits(self._all_sums.estimate(1.0, 0.0)),
            "other": _to_limits(self._weighted_sums.estimate(0.0, 1.0)),
            "uplift": _to_limits(self._weighted_sums.estimate(sign, -sign)),
            "lift": self.describe_lift(),
            "compared_rounds": self._weighted_sums.n,
            "effective_sample_size": self._weighted_sums.effective_sample_size,
            "shift": self._describe_shift(),
            "arms": [
                [name, self._arm_counts[arm], self._own_arm_counts[arm]]
                for arm, name in enumerate(arm_names)
            ],
            "new_arms": self.deployed.new_arms,
            "models": {
                number: {"n": sums.n, **_to_limits(sums.estimate(1.0, 0.0))}
                for number, sums in self._model_sums.items()
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
        field_names = ("name", "changed", "since", "evidence")
        return {
            "rounds": report.rounds,
            "contexts_changed": report.contexts_changed,
            "arms_changed": report.arms_changed,
            "at_event": self._alarm_event,
            "scores": [{name: getattr(score, name) for name in field_names} for score in scores],
        }

    def _weigh_other_policy(self, event: Event) -> float | None:
        """Return the importance weight of the policy that was not played; None if its choice is not
        known.
        """
        other_arm = event.incumbent_arm if event.mode == "online" else event.own_arm
        if other_arm is None or event.mode != self.settings.mode or event.control is not None:
            return None
        return 1.0 / event.propensity if other_arm == event.arm else 0.0


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
