"""The process beside the service: it reads the log, learns, sets default rewards, and counts what the page shows.

Of several on one log one works at a time; another takes over when it ends. It never stands in the way of a decision.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import sqlalchemy as sa

from daband.errors import DabandError
from daband.service.learner import Learner, first_deployed
from daband.service.settings import Clock, Limits, Settings, Tokens
from daband.service.store import Reward, Store
from daband.service.watch import Watch

__all__ = ["Worker", "main"]

_log = logging.getLogger("daband.service")
_PAUSE = 0.5
_ROWS = 500
"""Rows that are read at a time."""
_LINEAR_SECONDS, _GRADIENT_SECONDS = 5.0, 60.0
"""Between two models, at least."""
_LONGEST_GRACE = 60.0
"""After a start no default reward is set for this long, or for one wait: callers may have waited for the service."""
_CLOCKS_APART = 60.0
_HEARTBEAT, _SHOWN_EVERY = 10.0, 1.0
"""Between two writings of the page's numbers: at most, and at least."""


class Worker:
    """All background work on one log."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        learn: str | Path | None = None,
        learn_every: int = 100,
        publish_seconds: float | None = None,
        show_seconds: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self.store, self.settings = store, settings
        self._clock = clock or Clock(store.newest_time())
        self._deployed = first_deployed(store)
        self._learner: Learner | None = None
        if learn is not None and settings.mode != "log-only" and settings.contexts == "keep":
            self._learner = Learner(store, learn, self._deployed, every=learn_every)
        if publish_seconds is None:
            gradients = self._learner is not None and self._learner.policy.learns_by_gradients
            publish_seconds = _GRADIENT_SECONDS if gradients else _LINEAR_SECONDS
        self._publish_seconds, self._show_seconds = publish_seconds, show_seconds
        self._published = -publish_seconds
        self._begun = self._clock.now()
        self._defaulted_until = 0.0
        self._watch_from = ""
        self._shown, self._shown_at = b"", 0.0
        self._begin_watch()

    def tick(self) -> bool:
        """Work once on what is new; whether there was more than one portion of it."""
        more = self._look()
        self._set_defaults()
        if self._learner is not None:
            learned = self._learner.step()
            if self._clock.now() - self._published >= self._publish_seconds and self._learner.publish(
                self._clock.now()
            ):
                self._published = self._clock.now()
            more |= learned
        return more

    def show(self) -> None:
        """Write the numbers of the page where they have changed, and now and then as a sign of life."""
        if self._clock.now() - self._shown_at < self._show_seconds:
            return
        snapshot = self._watch.snapshot(0.0)
        snapshot["learning"] = self._learner is not None
        text = orjson.dumps(snapshot, option=orjson.OPT_NON_STR_KEYS)
        now = self._clock.now()
        if text != self._shown or now - self._shown_at >= _HEARTBEAT:
            self._shown, self._shown_at = text, now
            snapshot["time"] = now
            self.store.write_note("snapshot", orjson.dumps(snapshot, option=orjson.OPT_NON_STR_KEYS).decode())

    def _begin_watch(self) -> None:
        self._watch_from = self.store.note("watch_from") or "0"
        self._watch = Watch(self._deployed, self.settings)
        self._event_seq = self._reward_seq = 0

    def _look(self) -> bool:
        if (self.store.note("watch_from") or "0") != self._watch_from:
            self._begin_watch()
        since = float(self._watch_from)
        events = self.store.events_after(self._event_seq, _ROWS)
        if events:
            self._event_seq = events[-1][0]
            self._watch.see_events([(seq, event) for seq, event in events if event.time >= since])
        rewards = self.store.rewards_after(self._reward_seq, _ROWS)
        # A reward is counted after its event.
        rewards = [row for row in rewards if row.event_seq <= self._event_seq]
        if rewards:
            self._reward_seq = rewards[-1].seq
            self._watch.see_rewards([row for row in rewards if row.event.time >= since])
        return len(events) == _ROWS or len(rewards) == _ROWS

    def _set_defaults(self) -> None:
        wait, now = self.settings.wait, self._clock.now()
        if wait is None or now - self._begun < min(wait, _LONGEST_GRACE):
            return
        due = self.store.unrewarded(self._defaulted_until, now - wait, _ROWS)
        if due:
            reward = self.settings.default_reward
            self.store.append([Reward(event_id, reward, now, kind="default") for _, event_id in due])
        # Other machines' clocks may be a little behind, so the last minute is looked at again.
        last = due[-1][0] if len(due) == _ROWS else now - wait
        self._defaulted_until = max(self._defaulted_until, last - (0.0 if len(due) == _ROWS else _CLOCKS_APART))


def work(store: Store, make: Callable[[], Worker], parent: int) -> None:
    """Work whenever no other process does, until the parent process is gone; what goes wrong is tried again later."""
    while os.getppid() == parent:
        try:
            with store.leading() as mine:
                worker = make() if mine else None
                while worker is not None and os.getppid() == parent:
                    more = worker.tick()
                    worker.show()
                    if not more:
                        time.sleep(_PAUSE)
        except sa.exc.OperationalError as error:  # a full disk, a lost connection
            _log.warning("the log is not available: %s", error.orig)
        except DabandError as error:
            _log.error("the worker cannot go on: %s", error)
        except Exception as error:  # its text might hold parts of a context
            _log.error("the worker failed: %s", type(error).__name__)
        time.sleep(_PAUSE)


def main() -> None:
    """The process: its task stands in its standard input."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    task = orjson.loads(sys.stdin.buffer.read())
    plain = task["settings"]
    settings = Settings(**{**plain, "tokens": Tokens(), "limits": Limits(**plain["limits"])})
    store = Store(task["log"])

    def make() -> Worker:
        return Worker(store, settings, learn=task["learn"], learn_every=task["learn_every"], show_seconds=_SHOWN_EVERY)

    with contextlib.suppress(KeyboardInterrupt):  # the terminal stops both processes
        work(store, make, task["parent"])
