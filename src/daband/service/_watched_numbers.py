"""What the page shows, counted from the log: rates, joins, values with intervals, shift, alarms."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from daband._arguments import between_0_and_1
from daband._arrays import FloatArray
from daband.errors import InvalidInput
from daband.evaluation._off_policy_estimators import MeanEstimate, normal_interval
from daband.service._event_log import Event, LoggedReward, can_read, read_rows
from daband.service._settings import Settings
from daband.serving._deployed_policy import DeployedPolicy
from daband.serving._monitor import Monitor

# A test that rewards have fallen below a promise; it may be looked at after every reward.
#
# Rewards lie in [0, 1] and are promised to have a mean of at least m. Gamblers bet on less: one who stakes the share
# s of the wealth that a single reward can cost multiplies it by 1 + s (m - y) / (1 - m) for a reward y. As long as
# the promise holds, given all that came before, that factor is at most 1 on average. So the wealth of any mixture of
# gamblers is a supermartingale, and it ever exceeds 1 / level with probability at most ``level`` (Ville's inequality;
# Waudby-Smith and Ramdas, 2024, for this kind of bet). Gamblers who start later, for whom a part of the wealth is
# kept back, find a change that comes late.


_STAKES = np.array([0.02, 0.05, 0.1, 0.2, 0.4])
_FIRST_START = 64
_START_FACTOR = 1.15
"""A gambler starts when this many times as many rewards have come as at the start before."""
_LEAST_GAP = 1e-9


class PromiseTest:
    """Whether the mean of rewards (in [0, 1]) has fallen below ``promise``."""

    def __init__(self, promise: float, *, level: float = 0.01) -> None:
        if not 0.0 <= promise <= 1.0:
            raise InvalidInput(f"promise must lie within the range of rewards, got {promise} on a scale of 0 to 1")
        between_0_and_1("level", level)
        self.promise, self.level = promise, level
        self.n = 0
        self.broken_at: int | None = None
        """After how many rewards the test said that the promise is broken; None before."""
        self._stakes = _STAKES / max(1.0 - promise, _LEAST_GAP)
        self._wealth: FloatArray = np.zeros((1, len(_STAKES)))  # logarithms
        self._next_start = _FIRST_START

    @property
    def evidence(self) -> float:
        """The logarithm of the wealth, in units of the threshold: 1 or more breaks the promise."""
        started = np.arange(1.0, len(self._wealth) + 1.0)
        shares = (1.0 / (started * (started + 1.0)))[:, None] / len(_STAKES)
        largest = max(float(self._wealth.max()), 0.0)
        mixed = float((shares * np.exp(self._wealth - largest)).sum()) + math.exp(-largest) / (len(started) + 1.0)
        return (math.log(mixed) + largest) / -math.log(self.level)

    def add(self, reward: float) -> None:
        """One more reward, in [0, 1]."""
        self._wealth += np.log1p(self._stakes * (self.promise - reward))
        self.n += 1
        if self.n >= self._next_start:
            self._wealth = np.concatenate([self._wealth, np.zeros((1, len(_STAKES)))])
            self._next_start = max(self.n + _FIRST_START, math.ceil(self.n * _START_FACTOR))
        # No mixture has more than its richest gambler, so most of the time one look at that one is enough.
        if self.broken_at is None and self._wealth.max() >= -math.log(self.level) and self.evidence >= 1.0:
            self.broken_at = self.n


_MINUTES = 120
"""Minutes of which the rates are kept."""
_BLOCKS = 80
"""Points of the curve of rewards, at most; where they are more, two become one."""
_FIRST_BLOCK = 100
_CONFIDENCE = 0.95
_MOST_WATCHED, _WATCHED_AT_ONCE = 100, 20
"""Contexts of one portion of the log that the monitor sees: all where traffic is slow, every fifth of 500."""


class ValueSums:
    """The mean reward of what was played, and the self-normalised estimate for another policy, from sums alone.

    With w the weight of the other policy, ``powers[a, b]`` is the sum of w^a r^b. Errors are those of the delta method.
    """

    def __init__(self) -> None:
        self._sums = [[0.0] * 3 for _ in range(3)]

    def add(self, weight: float, reward: float, *, sign: float = 1.0) -> None:
        """Count a round; with sign -1 take it back."""
        by = sign
        for row in self._sums:  # plain numbers: for nine of them numpy is slower
            row[0] += by
            row[1] += by * reward
            row[2] += by * reward * reward
            by *= weight

    def merged(self, other: ValueSums) -> ValueSums:
        """The sums of both."""
        both = ValueSums()
        both._sums = (self.powers + other.powers).tolist()
        return both

    @property
    def powers(self) -> FloatArray:
        """The sums, (3, 3)."""
        return np.array(self._sums)

    @property
    def n(self) -> int:
        """Rounds."""
        return round(self._sums[0][0])

    @property
    def effective_sample_size(self) -> float:
        """(sum of w)^2 / sum of w^2."""
        total, squares = self._sums[1][0], self._sums[2][0]
        return total**2 / squares if squares > 0 else 0.0

    def played(self) -> MeanEstimate:
        """The mean reward."""
        return self._ratio(0)

    def other(self) -> MeanEstimate:
        """The other policy's value."""
        return self._ratio(1)

    def _ratio(self, power: int) -> MeanEstimate:
        """The mean reward with weights w^power."""
        p, n = self.powers, self.n
        total = float(p[power, 0])
        if total <= 0.0:
            return MeanEstimate(math.nan, math.inf)
        value = float(p[power, 1]) / total
        squares = float(np.array([value * value, -2.0 * value, 1.0]) @ p[2 * power])
        return MeanEstimate(value, math.sqrt(max(squares, 0.0) * n / (n - 1)) / total if n > 1 else math.inf)

    def difference(self) -> MeanEstimate:
        """What was played less the other policy, on the same rounds."""
        p, n, played, other = self.powers, self.n, self.played(), self.other()
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

    ``deployed`` is the newest file, model ``first_model`` of the log. What earlier models decided is counted, but says
    nothing of this file's promise and its contexts.
    """

    def __init__(self, deployed: DeployedPolicy, settings: Settings, *, first_model: int = 0) -> None:
        self.deployed, self.settings, self._first_model = deployed, settings, first_model
        self._monitor: Monitor | None = None
        if deployed.reference is not None and settings.contexts == "keep":
            self._monitor = Monitor(deployed, false_alarms=settings.false_alarms, seed=0)
        low, high = deployed.reward_range
        self._low, self._scale = low, high - low
        promise = promised_value(deployed, settings)
        self._promise: PromiseTest | None = None
        if promise is not None and settings.mode == "online":
            self._promise = PromiseTest(min(max((promise - low) / self._scale, 0.0), 1.0), level=settings.false_alarms)
        self._n: Counter[str] = Counter()
        self._smallest: float | None = None
        self._arms: Counter[int] = Counter()
        self._own_arms: Counter[int] = Counter()
        self._minutes: dict[int, list[int]] = {}
        self._sums, self._all = ValueSums(), ValueSums()
        self._models: dict[int, ValueSums] = {}
        self._blocks: list[ValueSums] = []
        self._block_size = _FIRST_BLOCK
        self._order: deque[int] = deque()
        self._arrived: dict[int, float] = {}
        self._drift_at: int | None = None

    def see_events(self, rows: Sequence[tuple[int, Event]]) -> None:
        """The next events of the log with their numbers."""
        watched: list[tuple[int, str]] = []
        every = -(-len(rows) // _MOST_WATCHED)
        for place, (seq, event) in enumerate(rows):
            self._n["events"] += 1
            self._minute(event.time)[0] += 1
            self._arms[event.arm] += 1
            if event.own_arm is not None:
                self._own_arms[event.own_arm] += 1
            if event.own_arm is not None and event.incumbent_arm is not None:
                self._n["compared"] += 1
                self._n["equal"] += event.own_arm == event.incumbent_arm
            self._smallest = event.propensity if self._smallest is None else min(self._smallest, event.propensity)
            if event.activated is None or event.activated > event.time:
                self._n["deferred"] += 1
            elif self._promise is not None and self.settings.wait is not None and self._is_promised(event):
                self._order.append(seq)
            if self._monitor is None or event.model < self._first_model or place % every:
                continue
            if can_read(event.context, self.deployed):
                assert event.context is not None
                watched.append((self._n["events"], event.context))
        for start in range(0, len(watched), _WATCHED_AT_ONCE):
            self._watch_contexts(watched[start : start + _WATCHED_AT_ONCE])

    def _watch_contexts(self, watched: Sequence[tuple[int, str]]) -> None:
        """Show some contexts to the monitor, each with the number of its event."""
        assert self._monitor is not None
        self._monitor.see(read_rows(text for _, text in watched))
        if self._monitor.alarm and self._drift_at is None:
            self._drift_at = watched[-1][0]

    def see_rewards(self, rows: Sequence[LoggedReward]) -> None:
        """The next rewards of the log."""
        for row in rows:
            event = row.event
            sums = self._models.setdefault(event.model, ValueSums())
            weight = self._weight(event)
            counted = [(sums, 1.0), (self._all, 1.0), *([] if weight is None else [(self._sums, weight)])]
            if row.version > 1:
                self._n["corrected"] += 1
                for each, by in counted if row.previous is not None else ():
                    each.add(by, float(row.previous or 0.0), sign=-1.0)
            else:
                self._minute(row.time)[1] += 1
                self._n["given" if row.kind == "given" else "defaulted"] += 1
                self._test(row)
                self._curve(row.reward)
            for each, by in counted:
                each.add(by, row.reward)

    def snapshot(self, now: float) -> dict[str, Any]:
        """All numbers as JSON can hold them."""
        n, uplift, test = self._n, self._sums.difference(), self._promise
        rewarded = n["given"] + n["defaulted"]
        if self.settings.mode == "apprentice":
            uplift = MeanEstimate(-uplift.value, uplift.error)
        report = None if self._monitor is None else self._monitor.report()
        return {
            "time": now,
            "mode": self.settings.mode,
            **{name: n[name] for name in ("events", "deferred", "given", "defaulted", "corrected")},
            "rewarded": rewarded,
            "join_rate": n["given"] / n["events"] if n["events"] else None,
            "defaulted_share": n["defaulted"] / rewarded if rewarded else None,
            "smallest_propensity": self._smallest,
            "equal_share": n["equal"] / n["compared"] if n["compared"] else None,
            "minutes": [[minute * 60, *counts] for minute, counts in sorted(self._minutes.items())],
            "played": _interval(self._all.played()),
            "other": _interval(self._sums.other()),
            "uplift": _interval(uplift),
            "compared_rounds": self._sums.n,
            "effective_sample_size": self._sums.effective_sample_size,
            "promise": promised_value(self.deployed, self.settings),
            "assessed": None if self.deployed.assessment is None else self.deployed.assessment.get("value"),
            "promise_evidence": None if test is None else test.evidence,
            "promise_tested": None if test is None else test.n,
            "promise_broken_at": None if test is None else test.broken_at,
            "shift": None
            if report is None
            else {
                "rounds": report.rounds,
                "contexts_left": report.contexts_left,
                "arms_left": report.arms_left,
                "told_at_event": self._drift_at,
                "scores": [
                    {"name": score.name, "left": score.left, "since": score.since, "evidence": score.evidence}
                    for score in sorted(report.scores, key=lambda one: (not one.left, -one.evidence))[:8]
                ],
            },
            "arms": [[name, self._arms[arm], self._own_arms[arm]] for arm, name in enumerate(self.deployed.arm_names)],
            "curve": self._points(),
            "models": {number: {"n": sums.n, **_interval(sums.played())} for number, sums in self._models.items()},
        }

    def _weight(self, event: Event) -> float | None:
        """The weight of the policy that is compared with what was played; None where nothing is compared."""
        other = event.incumbent_arm if event.mode == "online" else event.own_arm
        if other is None or event.mode != self.settings.mode:
            return None
        return 1.0 / event.propensity if other == event.arm else 0.0

    def _test(self, row: LoggedReward) -> None:
        """Rewards are tested in the order of decisions where a default ends every wait: quick ones may be better."""
        if self._promise is None or not self._is_promised(row.event):
            return
        reward = min(max((row.reward - self._low) / self._scale, 0.0), 1.0)  # outside a range that was estimated
        if self.settings.wait is None:
            self._promise.add(reward)
            return
        if row.event.activated == row.event.time:  # deferred events have no place in that order
            self._arrived[row.event_seq] = reward
        while self._order and self._order[0] in self._arrived:
            self._promise.add(self._arrived.pop(self._order.popleft()))

    def _is_promised(self, event: Event) -> bool:
        return event.mode == "online" and event.model >= self._first_model

    def _minute(self, time: float) -> list[int]:
        minute = int(time // 60)
        counts = self._minutes.get(minute)
        if counts is None:
            counts = self._minutes[minute] = [0, 0]
            while len(self._minutes) > _MINUTES:
                del self._minutes[min(self._minutes)]
        return counts

    def _curve(self, reward: float) -> None:
        if not self._blocks or self._blocks[-1].n >= self._block_size:
            if len(self._blocks) >= _BLOCKS:
                pairs = zip(self._blocks[::2], self._blocks[1::2], strict=True)
                self._blocks = [first.merged(second) for first, second in pairs]
                self._block_size *= 2
            self._blocks.append(ValueSums())
        self._blocks[-1].add(1.0, reward)

    def _points(self) -> list[dict[str, float | None]]:
        points: list[dict[str, float | None]] = []
        n_rewards = 0
        for block in self._blocks:
            n_rewards += block.n
            if block.n >= 20:
                points.append({"rewards": n_rewards, **_interval(block.played())})
        return points


def promised_value(deployed: DeployedPolicy, settings: Settings) -> float | None:
    """The mean reward that is promised: what the settings say, else the lower bound of the file's assessment."""
    if settings.promise is not None:
        return settings.promise
    low = None if deployed.assessment is None else deployed.assessment.get("low")
    return float(low) if isinstance(low, int | float) and math.isfinite(low) else None


def _interval(estimate: MeanEstimate) -> dict[str, float | None]:
    if not (math.isfinite(estimate.value) and math.isfinite(estimate.error)):
        return {"value": estimate.value if math.isfinite(estimate.value) else None, "low": None, "high": None}
    low, high = normal_interval(estimate, _CONFIDENCE)
    return {"value": estimate.value, "low": low, "high": high}
