"""The worker process: it reads the log, learns from it, sets default rewards, and counts the page's numbers.

Only one worker per log is active; another takes over when it exits. Decisions never wait for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np
import orjson
import sqlalchemy as sa

from daband.errors import DabandError, InvalidInput
from daband.policies._checkpoints import load_policy
from daband.policies._incoming_rounds import log_weights
from daband.policies._policy import Policy
from daband.service._decider import model_from, with_listed
from daband.service._event_log import LoggedReward, ModelRow, Reward, Store
from daband.service._log_readers import Watch, can_read, read_rows
from daband.service._settings import Clock, Limits, Settings, Tokens
from daband.serving._deployed_policy import DeployedPolicy
from daband.serving._export import export

_log = logging.getLogger("daband.service")
_PAUSE = 0.5  # seconds between two reads of a log without new entries
_ROUNDING = 1e-3  # difference of predictions between two machines, as a fraction of the largest one
_ROWS = 500  # rows that are read at a time
_LINEAR_SECONDS = 5.0  # seconds between two models of a linear policy
_GRADIENT_SECONDS = 60.0  # seconds between two models of a policy that learns by gradients
_MAX_GRACE = 60.0  # seconds after a start without default rewards, or ``wait`` if that is less: callers may have waited
_CLOCKS_APART = 60.0  # seconds by which the clocks of machines on one log may differ
_HEARTBEAT = 10.0  # seconds after which the page's numbers are written even if they are the same
_SNAPSHOT_SECONDS = 1.0  # seconds between two snapshots of the page's numbers


class LogLearner:
    """Learns the rewards of a log in groups of ``every``, and publishes numbered models.

    A model is a function of the policy file and the log: groups have a fixed size and the order of the log, so neither
    speed nor restarts change a bit of it. ``deployed`` is the file that the policy was exported to, model
    ``number`` of the log. The first policy file of a log starts with the first reward, others with the next one.
    """

    def __init__(
        self, store: Store, file: str | Path, deployed: DeployedPolicy, number: int, *, every: int = 100
    ) -> None:
        self._store, self._deployed, self._number, self._every = store, deployed, number, every
        content = Path(file).read_bytes()
        self.base = f"{hashlib.sha256(content).hexdigest()}/{every}"
        learned = [row for row, _ in store.models() if row.origin == "learned" and row.base == self.base]
        state = store.model_state(learned[0].number) if learned else None
        self.policy = _load(file, deployed)
        if not _was_exported_to(deployed, self.policy):
            raise InvalidInput(
                f"model {number} was exported from another policy, which had learned {deployed.rounds_learned:,} "
                f"rounds (this one has learned {self.policy.rounds_learned:,}). To go on, start the service "
                "with --learn and the policy that the file was exported from"
            )
        self.start_seq = self._start(first=not learned)
        self.seq = self.start_seq
        if state is not None:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "state of the learner"
                path.write_bytes(state)
                self.policy, self.seq = _load(path, deployed), learned[0].learned_seq
        self._published = self.seq

    def step(self) -> bool:
        """Learn the next complete group of rewards. Return True if there was one."""
        rows = self._store.rewards_after(self.seq, self._every)
        if len(rows) < self._every:
            return False
        self._add_arms()
        learn(self.policy, rows, self._deployed)
        self.seq = rows[-1].seq
        return True

    def _add_arms(self) -> None:
        """Add the arms that the log lists in addition to the policy's."""
        catalogue, text = self.policy.catalogue, self._store.note("arms")
        if catalogue is not None and text is not None:
            for arm in orjson.loads(text)["arms"]:
                if arm["id"] not in catalogue.index:
                    row = {name: value for name, value in arm.items() if name != "id"}
                    self.policy.add_arm(arm["id"], row if catalogue.table is not None else row["features"])

    def publish(self, now: float) -> ModelRow | None:
        """Publish a model with the rewards learned since the last one; None if there are none."""
        if self.seq == self._published:
            return None
        row = self._store.add_model(
            export_bytes(self.policy, self._deployed),
            time=now,
            origin="learned",
            base=self.base,
            start_seq=self.start_seq,
            learned_seq=self.seq,
            rounds=self.policy.rounds_learned,
            state=_written_by(self.policy.save),
            file=self._number,
        )
        self._published = self.seq
        return row

    def _start(self, *, first: bool) -> int:
        """Return the reward after which this policy file learns. The log keeps that number."""
        name = f"base:{self.base}"
        number = self._store.note(name)
        if number is not None:
            return int(number)
        start = self._store.last_reward() if first and self._store.note("learner") is not None else 0
        self._store.write_note(name, str(start))
        self._store.write_note("learner", self.base)
        return start


def learn(policy: Policy, rows: Sequence[LoggedReward], deployed: DeployedPolicy) -> None:
    """Learn a group of rewards. Rounds that an incumbent chose are weighted by their propensity."""
    rows = [row for row in rows if can_read(row.event.context, deployed)]
    for online in (True, False):
        group = [row for row in rows if (row.event.mode == "online") is online]
        if not group:
            continue
        contexts = deployed.reader.read(read_rows(str(row.event.context) for row in group)).contexts
        chances = [row.event.propensity for row in group]
        policy.update(
            contexts,
            [row.event.arm for row in group],
            [row.reward for row in group],
            deployed.domain,
            weights=None if online else log_weights(policy, chances),
        )
        if policy.learns_by_gradients and deployed.domain == "target":
            policy.observe_target(contexts)
    if rows and (policy.learns_by_gradients or policy.catalogue is not None):
        policy.adapt()


def export_bytes(policy: Policy, deployed: DeployedPolicy) -> bytes:
    """Return the policy as an exported file with the settings of the one that is served."""
    return _written_by(
        lambda path: export(
            policy,
            path,
            domain=deployed.domain,
            arm_names=deployed.arm_names if policy.catalogue is None else policy.catalogue.names,
            reference=deployed,
            assessment=deployed.assessment,
            incumbent=deployed.incumbent,
            epsilon=deployed.frozen.exploration.epsilon,
            explore=deployed.frozen.exploration.rule,
            new_arms=deployed.frozen.new_arms,
        )
    )


def _written_by(write: Callable[[Path], object]) -> bytes:
    """Return the content of the file that a function writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        write(path)
        return path.read_bytes()


def _load(file: str | Path, deployed: DeployedPolicy) -> Policy:
    policy = load_policy(file)
    grown = policy.catalogue is not None and policy.n_arms > len(deployed.arm_names)
    if (policy.n_arms != len(deployed.arm_names) and not grown) or tuple(policy.context_shape) != tuple(
        deployed.context_shape
    ):
        raise InvalidInput(
            f"the policy has {policy.n_arms} arms and contexts {policy.context_shape}, the served file "
            f"{len(deployed.arm_names)} and {deployed.context_shape}; give the one it was exported from"
        )
    return policy


def _was_exported_to(deployed: DeployedPolicy, policy: Policy) -> bool:
    """True if the file has this policy's rounds and predicts as it does, except for rounding on another machine."""
    if policy.rounds_learned != deployed.rounds_learned:
        return False
    contexts = np.random.default_rng(0).normal(size=(64, *deployed.frozen.row_shape))
    mine, served = (frozen.score(contexts)[0] for frozen in (policy.frozen(deployed.domain), deployed.frozen))
    return bool(np.abs(mine - served).mean() <= _ROUNDING * np.abs(mine).max())


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
        snapshot_seconds: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self.store, self.settings = store, settings
        self._clock = clock or Clock(store.newest_time())
        self._file = model_from(store.model_content(number := store.newest_file()), number)
        self._learner: LogLearner | None = None
        if learn is not None and settings.contexts == "keep":
            try:
                self._learner = LogLearner(store, learn, self._file.deployed, number, every=learn_every)
            except (DabandError, OSError) as error:  # the rest of the work continues
                _log.warning("nothing is learned with %s: %s", learn, error)
        if publish_seconds is None:
            gradients = self._learner is not None and self._learner.policy.learns_by_gradients
            publish_seconds = _GRADIENT_SECONDS if gradients else _LINEAR_SECONDS
        self._publish_seconds, self._snapshot_seconds = publish_seconds, snapshot_seconds
        self._published = -publish_seconds
        self._started = self._clock.now()
        self._defaulted_until = 0.0
        self._watch_from = self._verdict = ""
        self._listed: str | None = None
        self._snapshot, self._snapshot_at = b"", 0.0
        self._restart_watch()

    @property
    def outdated(self) -> bool:
        """True if a newer file was published: another worker has to watch and learn with it."""
        return self.store.newest_file() != self._file.number

    def run_once(self) -> bool:
        """Work on one portion of the new entries. Return True if there are more."""
        more = self._read_log() | self._set_defaults()
        if self._learner is not None:
            more |= self._learner.step()
            now = self._clock.now()
            if now - self._published >= self._publish_seconds and self._learner.publish(now):
                self._published = self._clock.now()
        return more

    def write_snapshot(self) -> None:
        """Write the page's numbers if they have changed, and every ten seconds as a sign of life."""
        if self._clock.now() - self._snapshot_at < self._snapshot_seconds:
            return
        snapshot = self._watch.snapshot(0.0)
        if snapshot["lift"]["verdict"] != self._verdict:
            self._verdict = snapshot["lift"]["verdict"]
            _log.warning("the policy is %s than the incumbent: lift %s", self._verdict, snapshot["lift"])
            self.store.write_note("verdict", f"{self._watch_from}/{self._file.number}/{self._verdict}")
        snapshot["learning"] = self._learner is not None
        text = orjson.dumps(snapshot, option=orjson.OPT_NON_STR_KEYS)
        now = self._clock.now()
        if text != self._snapshot or now - self._snapshot_at >= _HEARTBEAT:
            self._snapshot, self._snapshot_at = text, now
            snapshot["time"] = now
            self.store.write_note("snapshot", orjson.dumps(snapshot, option=orjson.OPT_NON_STR_KEYS).decode())

    def _restart_watch(self) -> None:
        self._watch_from = self.store.note("watch_from") or "0"
        self._watch = Watch(self._file.deployed, self.settings, first_model=self._file.number)
        self._event_seq = self._reward_seq = 0
        self._verdict = ""

    def _read_log(self) -> bool:
        """Count the next events and rewards. Return True if there are more."""
        if (self.store.note("watch_from") or "0") != self._watch_from:
            self._restart_watch()
        since = float(self._watch_from)
        listed = self.store.note("arms")
        if listed != self._listed:
            self._listed, self._watch.deployed = listed, with_listed(self._file, listed).deployed
        events = self.store.events_after(self._event_seq, _ROWS)
        if events:
            self._event_seq = events[-1][0]
            self._watch.see_events([event for _, event in events if event.time >= since])
        # A reward is counted after its event, and after the rewards before it.
        rewards = self.store.rewards_after(self._reward_seq, _ROWS)
        rewards = list(takewhile(lambda row: row.event_seq <= self._event_seq, rewards))
        if rewards:
            self._reward_seq = rewards[-1].seq
            self._watch.see_rewards([row for row in rewards if row.event.time >= since])
        return len(events) == _ROWS or len(rewards) == _ROWS

    def _set_defaults(self) -> bool:
        """Set the default rewards that are due. Return True if there may be more."""
        wait, now = self.settings.wait, self._clock.now()
        if wait is None or now - self._started < min(wait, _MAX_GRACE):
            return False
        due = self.store.unrewarded(self._defaulted_until, now - wait, _ROWS)
        if due:
            reward = self.settings.default_reward
            self.store.append([Reward(event_id, reward, now, kind="default") for _, event_id in due])
        # More events may have the time of the last one. Clocks of other machines may be a little late, so the last
        # minute is read again.
        more = len(due) == _ROWS
        until = math.nextafter(due[-1][0], 0.0) if more else now - wait - _CLOCKS_APART
        self._defaulted_until = max(self._defaulted_until, until)
        return more


def work(store: Store, make: Callable[[], Worker], parent: int) -> None:
    """Work when no other process does, until the parent process is gone. Failures are tried again later."""
    while os.getppid() == parent:
        try:
            with store.leading() as mine:
                worker = make() if mine else None
                while worker is not None and os.getppid() == parent and not worker.outdated:
                    more = worker.run_once()
                    worker.write_snapshot()
                    if not more:
                        time.sleep(_PAUSE)
        except sa.exc.OperationalError as error:  # a full disk, a lost connection
            _log.warning("the log is not available: %s", error.orig)
        except DabandError as error:
            _log.error("the worker cannot continue: %s", error)
        except Exception as error:  # its text might hold parts of a context
            _log.error("the worker failed: %s", type(error).__name__)
        time.sleep(_PAUSE)


def main() -> None:
    """Run the process with the task in its standard input."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    task = orjson.loads(sys.stdin.buffer.read())
    plain = task["settings"]
    settings = Settings(**{**plain, "tokens": Tokens(), "limits": Limits(**plain["limits"])})
    store = Store(task["log"])

    def make() -> Worker:
        return Worker(
            store, settings, learn=task["learn"], learn_every=task["learn_every"], snapshot_seconds=_SNAPSHOT_SECONDS
        )

    with contextlib.suppress(KeyboardInterrupt):  # the terminal stops both processes
        work(store, make, task["parent"])
