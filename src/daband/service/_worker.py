"""Run the worker process, which learns from the log, sets default rewards, and computes the
service's statistics.

``main`` is the entry point of the process, ``Worker`` does the work, and ``LogLearner`` is its part
that learns. Only one worker per log is active. When it exits, a worker of another process takes
over. Decisions never wait for it.
"""

from __future__ import annotations

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

from daband.errors import DabandError, InvalidInput
from daband.ledger._store import LogFailed, LoggedReward, ModelRow, Reward, Store
from daband.ledger._versions import learn_rounds, read_rounds
from daband.policies._checkpoints import load_policy
from daband.policies._policy import Policy
from daband.service._decider import Model, load_model, with_added_arms
from daband.service._log_readers import Statistics
from daband.service._settings import Settings, Tokens
from daband.serving._deployed_policy import DeployedPolicy
from daband.serving._export import export

_logger = logging.getLogger("daband.service")
#: Seconds between two reads of a log without new entries.
_PAUSE_SECONDS = 0.5
#: The largest mean difference between the predictions of a policy and of its exported file, as a
#: fraction of the largest prediction. Machines round differently.
_MAX_RELATIVE_ERROR = 1e-3
#: Errors of a policy that cannot learn a reward. Other errors are those of the log or the machine.
_LEARNING_ERRORS = (DabandError, ArithmeticError, ValueError)
#: The number of entries of the log that are read at a time.
_BATCH_ENTRIES = 500
#: Seconds between two published models of a linear policy.
_LINEAR_PUBLISH_SECONDS = 5.0
#: Seconds between two published models of a policy that learns by gradients.
_GRADIENT_PUBLISH_SECONDS = 60.0
#: The worker sets no default rewards for this number of seconds after its start, or for
#: ``Settings.wait`` if that is less, because clients may have waited for the service to report
#: rewards.
_MAX_GRACE_SECONDS = 60.0
#: The worker notes the number of the newest event at intervals of this fraction of
#: ``Settings.wait``. Default rewards are late by at most this fraction.
_MARK_SPACING = 0.01
#: Seconds after which the statistics are written even if they are unchanged.
_HEARTBEAT_SECONDS = 10.0
#: The fields of the lift with its estimate and limits.
_LIMITS = ("value", "low", "high")
#: Seconds between two snapshots of the statistics, which the page of the service shows.
_SNAPSHOT_SECONDS = 1.0


class LogLearner:
    """A policy that learns the rewards of a log in groups of fixed size, and is published as
    numbered models.

    A model depends only on the policy file and the log, because groups have a fixed size and are
    learned in the log's order. The first policy file of a log learns from the first reward on. A
    later file learns from the next reward that arrives after it.

    Args:
        store: the log.
        policy_file: the saved policy.
        exported_model: the model of the log that was exported from this policy.
        group_size: the number of rewards in a group.
    """

    def __init__(
        self, store: Store, policy_file: str | Path, exported_model: Model, *, group_size: int = 100
    ) -> None:
        self._store = store
        self._exported_model = exported_model
        self._group_size = group_size
        self._deployed = exported_model.deployed
        self._file_content = Path(policy_file).read_bytes()
        #: The digest of the policy file and the size of groups, which identify the sequence of
        #: learned models.
        self.sequence_id = f"{hashlib.sha256(self._file_content).hexdigest()}/{group_size}"
        policy = _load_policy(self._file_content, self._deployed)
        if not _was_exported_from(self._deployed, policy):
            raise InvalidInput(
                f"model {exported_model.number} was exported from another policy, which had learned"
                f" {self._deployed.rounds_learned:,} rounds (this one has learned"
                f" {policy.rounds_learned:,}). Start the service with --learn and the policy that"
                " the file was exported from"
            )
        #: The number of the reward after which learning started.
        self.start_seq = self._find_start()
        self._return_to_published()

    def _return_to_published(self) -> None:
        """Set the policy to the newest published model, or to the policy file if there is none."""
        learned_models = [
            row
            for row, _ in self._store.list_models()
            if row.origin == "learned" and row.base == self.sequence_id
        ]
        state = self._store.read_state(learned_models[0].number) if learned_models else None
        self.policy = _load_policy(self._file_content if state is None else state, self._deployed)
        #: The number of the last reward that was read.
        self.learned_seq = self.start_seq if state is None else learned_models[0].learned_seq
        self._published_seq = self.learned_seq
        #: The events whose rewards the policy cannot learn: the number and the id of the event, by
        #: the number of the reward.
        self.set_aside: dict[str, tuple[int, str]] = orjson.loads(
            self._store.read_note(f"aside:{self.sequence_id}") or "{}"
        )

    def learn_group(self) -> bool:
        """Learn the next complete group of rewards. Return True if there was one."""
        entries = self._read_group()
        if entries is None:
            return False
        try:
            learn_rewards(self.policy, entries, self._deployed)
        except _LEARNING_ERRORS as error:
            self._set_bad_rewards_aside(error)
        return True

    def _read_group(self) -> list[LoggedReward] | None:
        """Return the next complete group of rewards without those that are set aside, or None.

        Arms of the group that the policy does not have are added.
        """
        entries = self._store.read_rewards(self.learned_seq, self._group_size)
        if len(entries) < self._group_size:
            return None
        self.learned_seq = entries[-1].seq
        group = [entry for entry in entries if str(entry.seq) not in self.set_aside]
        self._add_arms(1 + max((entry.event.arm for entry in group), default=0))
        return group

    def _set_bad_rewards_aside(self, error: Exception) -> None:
        """Learn the groups after the newest published model again, without the rewards that cannot
        be learned.

        The log stores which these are, so that a model remains a function of the log. Raise
        ``error``, which was raised first, if all rewards can be learned now.
        """
        last_seq = self.learned_seq
        self._return_to_published()
        bad_entries: list[LoggedReward] = []
        while self.learned_seq < last_seq and (group := self._read_group()) is not None:
            state = _write_to_bytes(self.policy.save)
            bad_in_group = self._find_bad_rewards(group)
            if bad_in_group:
                self.policy = _load_policy(state, self._deployed)
                if not self._can_learn([entry for entry in group if entry not in bad_in_group]):
                    bad_in_group = group
            bad_entries += bad_in_group
        if not bad_entries:
            raise error
        for entry in bad_entries:
            self.set_aside[str(entry.seq)] = entry.event_seq, entry.event.event_id
        self._store.write_note(f"aside:{self.sequence_id}", orjson.dumps(self.set_aside).decode())
        _logger.error(
            "the policy cannot learn %d rewards, which are set aside; the first is that of event %s",
            len(bad_entries),
            bad_entries[0].event.event_id,
        )

    def _find_bad_rewards(self, entries: list[LoggedReward]) -> list[LoggedReward]:
        """Learn rewards in halves, and return those that cannot be learned."""
        if self._can_learn(entries):
            return []
        if len(entries) <= 1:
            return entries
        middle = len(entries) // 2
        return self._find_bad_rewards(entries[:middle]) + self._find_bad_rewards(entries[middle:])

    def _can_learn(self, entries: list[LoggedReward]) -> bool:
        """Learn rewards. If this fails, return False and leave the policy as it was."""
        state = _write_to_bytes(self.policy.save)
        try:
            learn_rewards(self.policy, entries, self._deployed)
            export_to_bytes(self.policy, self._deployed)
        except _LEARNING_ERRORS:
            self.policy = _load_policy(state, self._deployed)
            return False
        return True

    def _add_arms(self, n_arms: int) -> None:
        """Add arms of the log until the policy has ``n_arms`` arms.

        Arms that no learned reward needs are not added, because the size of the regression affects
        rounding, and a model must depend only on the rewards that it has learned.
        """
        catalogue = self.policy.catalogue
        arms_note = self._store.read_note("arms")
        if catalogue is not None and arms_note is not None:
            for arm in orjson.loads(arms_note)["arms"]:
                if arm["id"] not in catalogue.index_by_name and self.policy.n_arms < n_arms:
                    columns = {name: value for name, value in arm.items() if name != "id"}
                    self.policy.add_arm(
                        arm["id"], columns if catalogue.table is not None else columns["features"]
                    )

    def publish(self, now: float) -> ModelRow | None:
        """Publish a model if rewards were learned since the last model.

        Return its row, or None without new rewards.
        """
        if self.learned_seq == self._published_seq:
            return None
        try:
            content = export_to_bytes(self.policy, self._deployed)
            state = _write_to_bytes(self.policy.save)
        except _LEARNING_ERRORS as error:
            self._set_bad_rewards_aside(error)
            return None
        row = self._store.add_model(
            content,
            time=now,
            origin="learned",
            base=self.sequence_id,
            start_seq=self.start_seq,
            learned_seq=self.learned_seq,
            rounds=self.policy.rounds_learned,
            state=state,
            file_number=self._exported_model.number,
        )
        self._published_seq = self.learned_seq
        return row

    def _find_start(self) -> int:
        """Return the number of the reward after which this policy file learns, and write it as a
        note of the log.
        """
        note_name = f"base:{self.sequence_id}"
        saved_start = self._store.read_note(note_name)
        if saved_start is not None:
            return int(saved_start)
        has_learner = self._store.read_note("learner") is not None
        start = self._store.find_last_seq("rewards") if has_learner else 0
        self._store.write_note(note_name, str(start))
        self._store.write_note("learner", self.sequence_id)
        return start


def learn_rewards(
    policy: Policy, logged_rewards: Sequence[LoggedReward], deployed: DeployedPolicy
) -> None:
    """Update a policy with a group of rewards, as ``daband learn`` does."""
    entries = [entry for entry in logged_rewards if entry.event.context is not None]
    if entries:
        learn_rounds(policy, read_rounds(policy, entries), deployed.domain)


def export_to_bytes(policy: Policy, deployed: DeployedPolicy) -> bytes:
    """Export the policy with the settings of the served file, and return the content of the
    exported file.
    """
    return _write_to_bytes(
        lambda path: export(
            policy,
            path,
            domain=deployed.domain,
            arm_names=deployed.arm_names if policy.catalogue is None else policy.catalogue.names,
            assessment=deployed.assessment,
            incumbent=deployed.incumbent,
            epsilon=deployed.frozen.exploration.epsilon,
            explore=deployed.frozen.exploration.rule,
            at_most=None if deployed.limiter is None else deployed.limiter.limits,
            pilot=deployed.pilot,
        )
    )


def _write_to_bytes(write: Callable[[Path], object]) -> bytes:
    """Return the content of the file that ``write(path)`` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        write(path)
        return path.read_bytes()


def _load_policy(content: bytes, deployed: DeployedPolicy) -> Policy:
    """Return the policy with this content of a saved file.

    Raise an error if its arms or contexts differ from those of the served file.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy"
        path.write_bytes(content)
        policy = load_policy(path)
    has_new_arms = policy.catalogue is not None and policy.n_arms > len(deployed.arm_names)
    has_same_shape = tuple(policy.context_shape) == tuple(deployed.context_shape)
    if (policy.n_arms != len(deployed.arm_names) and not has_new_arms) or not has_same_shape:
        raise InvalidInput(
            f"the policy has {policy.n_arms} arms and contexts {policy.context_shape}, the served"
            f" file {len(deployed.arm_names)} and {deployed.context_shape}; use the policy that it"
            " was exported from"
        )
    return policy


def _was_exported_from(deployed: DeployedPolicy, policy: Policy) -> bool:
    """Return True if file and policy have the same predictions, up to rounding, and the same number
    of rounds.
    """
    if policy.rounds_learned != deployed.rounds_learned:
        return False
    contexts = np.random.default_rng(0).normal(size=(64, *deployed.frozen.row_shape))
    predictions = policy.frozen(deployed.domain).score(contexts)[0]
    file_predictions = deployed.frozen.score(contexts)[0]
    return bool(
        np.abs(predictions - file_predictions).mean()
        <= _MAX_RELATIVE_ERROR * np.abs(predictions).max()
    )


class Worker:
    """The background work on one log: learning, default rewards and statistics.

    Args:
        store: the log.
        settings: the settings of the service.
        policy_file: the saved policy to continue learning with; None to learn nothing.
        learn_every: the number of rewards that are learned at a time.
        publish_seconds: the seconds between two published models; None for a default that depends
            on the policy.
        snapshot_seconds: the seconds between two writes of the statistics.
        get_seconds: returns the seconds of a clock that is never set.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        policy_file: str | Path | None = None,
        learn_every: int = 100,
        publish_seconds: float | None = None,
        snapshot_seconds: float = 0.0,
        get_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.settings = settings
        self._get_seconds = get_seconds
        file_number = store.find_newest_file()
        self._model = load_model(store.read_content(file_number), file_number)
        self._learner: LogLearner | None = None
        if policy_file is not None and settings.contexts == "keep":
            try:
                self._learner = LogLearner(store, policy_file, self._model, group_size=learn_every)
            except (DabandError, OSError) as error:  # other work continues
                _logger.warning("%s cannot learn from the log: %s", policy_file, error)
        if publish_seconds is None:
            has_gradients = self._learner is not None and self._learner.policy.learns_by_gradients
            publish_seconds = (
                _GRADIENT_PUBLISH_SECONDS if has_gradients else _LINEAR_PUBLISH_SECONDS
            )
        self._publish_seconds = publish_seconds
        self._snapshot_seconds = snapshot_seconds
        self._published_at = -publish_seconds
        self._started_at = get_seconds()
        #: Events up to this number have a reward or a default reward.
        self._defaulted_seq = 0
        # The time of day may be wrong, and no reward can arrive while the service does not run. So
        # default rewards depend on the seconds in which workers of this log have run.
        snapshot = orjson.loads(store.read_note("snapshot") or "{}")
        #: The seconds in which earlier workers have run, and marks: the number of an event, and the
        #: seconds in which workers had run when it was read.
        self._earlier_seconds: float
        self._marks: list[list[float]]
        self._earlier_seconds, self._marks = snapshot.get("waiting", (0.0, []))
        self._reset_note = self._lift_verdict = ""
        self._control: float | None = None
        self._arms_note: str | None
        self._snapshot_json = b""
        self._snapshot_written_at = 0.0
        self._restart_statistics()

    @property
    def is_outdated(self) -> bool:
        """True if a newer file was published, so that a new worker must be created."""
        return self.store.find_newest_file() != self._model.number

    def run_once(self) -> bool:
        """Process the next entries of the log. Return True if there are more."""
        has_more = self._read_log() | self._write_default_rewards()
        if self._learner is not None:
            has_more |= self._learner.learn_group()
            is_due = self._get_seconds() - self._published_at >= self._publish_seconds
            if is_due and self._learner.publish(time.time()):
                self._published_at = self._get_seconds()
        return has_more

    def write_snapshot(self) -> None:
        """Write the statistics if they have changed, and at least every ten seconds."""
        seconds = self._get_seconds()
        if seconds - self._snapshot_written_at < self._snapshot_seconds:
            return
        control = self._statistics.choose_control()
        snapshot = self._statistics.build_snapshot(0.0)
        verdict = self._statistics.verdict
        if verdict != self._lift_verdict and verdict:
            lift = snapshot["lift"]
            limits = (lift[name] if lift[name] is not None else math.nan for name in _LIMITS)
            _logger.warning(
                (
                    "the pilot is over without proof: lift %.3g [%.3g, %.3g]"
                    if verdict == "over"
                    else f"the policy is {verdict} than the incumbent: lift %.3g [%.3g, %.3g]"
                ),
                *limits,
            )
        if (verdict, control) != (self._lift_verdict, self._control):
            self._lift_verdict, self._control = verdict, control
            fraction = "" if control is None else repr(control)
            self.store.write_note(
                "verdict", f"{self._verdict_key}/{self._model.number}/{verdict}/{fraction}"
            )
        snapshot["learning"] = self._learner is not None
        snapshot["unlearned"] = self._count_unlearned()
        set_aside = {} if self._learner is None else self._learner.set_aside
        reset_seq = int(self._reset_note)
        snapshot["set_aside"] = [
            event_id for event_seq, event_id in set_aside.values() if event_seq > reset_seq
        ]
        snapshot_json = orjson.dumps(snapshot, option=orjson.OPT_NON_STR_KEYS)
        if (
            snapshot_json != self._snapshot_json
            or seconds - self._snapshot_written_at >= _HEARTBEAT_SECONDS
        ):
            self._snapshot_json = snapshot_json
            self._snapshot_written_at = seconds
            snapshot["time"] = time.time()
            snapshot["waiting"] = self._count_seconds(), self._marks
            self.store.write_note(
                "snapshot", orjson.dumps(snapshot, option=orjson.OPT_NON_STR_KEYS).decode()
            )

    def _restart_statistics(self) -> None:
        """Start the statistics again, with the events after the last reset.

        The trial of a pilot has all its events, because a reset must not grant its cost again.
        """
        self._reset_note = self.store.read_note("watch_from") or "0"
        is_pilot = self._model.deployed.pilot is not None
        self._verdict_key = self.store.find_verdict_key(is_pilot=is_pilot)
        self._statistics = Statistics(
            self._model.deployed, self.settings, first_model=self._model.number
        )
        self._event_seq = 0 if is_pilot else int(self._reset_note)
        self._reward_seq = 0
        self._arms_note = None  # so that the next ``_read_log`` adds the arms of the log again
        self._lift_verdict, self._control = "", None
        note = (self.store.read_note("verdict") or "///").split("/")
        if note[:2] == [self._verdict_key, str(self._model.number)]:
            self._statistics.verdict = note[2]  # a verdict is final
        elif is_pilot:
            self._statistics.verdict = self._find_pilot_decision()

    def _find_pilot_decision(self) -> str:
        """Return the decision of the market's pilot as a verdict; "" if it is not decided."""
        pilot = orjson.loads(self.store.read_note("pilot") or "null")
        decisions = [point["decision"] for point in (pilot or {}).get("course", ())]
        decision = next((decision for decision in decisions if decision != "go on"), "")
        return decision and ("better" if decision == "deploy" else "over")

    def _read_log(self) -> bool:
        """Add the next events and rewards to the statistics. Return True if there are more."""
        if (self.store.read_note("watch_from") or "0") != self._reset_note:
            self._restart_statistics()
        reset_seq = int(self._reset_note)
        arms_note = self.store.read_note("arms")
        if arms_note != self._arms_note:
            self._arms_note, self._statistics.deployed = (
                arms_note,
                with_added_arms(self._model, arms_note).deployed,
            )
        events = self.store.read_events(self._event_seq, _BATCH_ENTRIES)
        if events:
            self._event_seq = events[-1][0]
            old, new = ([e for seq, e in events if (seq > reset_seq) is x] for x in (False, True))
            self._statistics.add_events(old, only_trial=True)
            self._statistics.add_events(new)
        # A reward is counted after its event, and after the rewards before it.
        rewards = self.store.read_rewards(self._reward_seq, _BATCH_ENTRIES)
        rewards = list(takewhile(lambda entry: entry.event_seq <= self._event_seq, rewards))
        if rewards:
            self._reward_seq = rewards[-1].seq
            if self._model.deployed.pilot is not None:
                earlier = [entry for entry in rewards if entry.event_seq <= reset_seq]
                self._statistics.add_rewards(earlier, only_trial=True)
            self._statistics.add_rewards(
                [entry for entry in rewards if entry.event_seq > reset_seq]
            )
        return len(events) == _BATCH_ENTRIES or len(rewards) == _BATCH_ENTRIES

    def _count_unlearned(self) -> int:
        """Return the number of rewards that wait to be learned, by this service or by `daband
        learn`.
        """
        versions = self.store.list_versions()
        seq = versions[-1].reward_seq if versions else 0
        if self._learner is not None:
            seq = self._learner.learned_seq
        return int(self.store.read("SELECT COUNT(*) FROM rewards WHERE seq > ?", seq)[0][0])

    def _count_seconds(self) -> float:
        """Return the seconds in which workers of this log have run."""
        return self._earlier_seconds + self._get_seconds() - self._started_at

    def _write_default_rewards(self) -> bool:
        """Write the default rewards of events that have waited long enough.

        Return True if there are more.
        """
        wait_seconds = self.settings.wait
        if wait_seconds is None:
            return False
        seconds = self._count_seconds()
        last_seq, marked_at = self._marks[-1] if self._marks else (self._defaulted_seq, -math.inf)
        if self._event_seq > last_seq and seconds - marked_at >= _MARK_SPACING * wait_seconds:
            self._marks.append([self._event_seq, seconds])
        due_seqs = [
            int(seq) for seq, marked_at in self._marks if seconds - marked_at >= wait_seconds
        ]
        is_early = seconds - self._earlier_seconds < min(wait_seconds, _MAX_GRACE_SECONDS)
        if not due_seqs or is_early:
            return False
        due_events = self.store.find_unrewarded(self._defaulted_seq, due_seqs[-1], _BATCH_ENTRIES)
        if due_events:
            now = time.time()
            reward = self.settings.default_reward
            self.store.append(
                [Reward(event_id, reward, now, kind="default") for _, event_id in due_events]
            )
        if len(due_events) == _BATCH_ENTRIES:
            self._defaulted_seq = due_events[-1][0]
            return True
        self._defaulted_seq = due_seqs[-1]
        del self._marks[: len(due_seqs)]
        return False


def run_worker(store: Store, make_worker: Callable[[], Worker], parent_pid: int) -> None:
    """Run a worker until the parent process ends. Wait while another process runs one.

    Try again after an error.
    """
    while os.getppid() == parent_pid:
        try:
            with store.try_worker_lock() as has_lock:
                worker = make_worker() if has_lock else None
                while worker is not None and os.getppid() == parent_pid and not worker.is_outdated:
                    has_more = worker.run_once()
                    worker.write_snapshot()
                    if not has_more:
                        time.sleep(_PAUSE_SECONDS)
        except LogFailed as error:  # for example a full disk or a lost connection
            _logger.warning("the log is not available: %s", error)
        except DabandError as error:
            _logger.error("the worker cannot continue: %s", error)
        except Exception as error:  # its text may contain parts of a context
            _logger.error("the worker failed: %s", type(error).__name__)
        time.sleep(_PAUSE_SECONDS)


def main() -> None:
    """Run the worker process. Its task is read as JSON from the standard input."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    task = orjson.loads(sys.stdin.buffer.read())
    settings = Settings(**{**task["settings"], "tokens": Tokens()})
    store = Store(task["log"])

    def make_worker() -> Worker:
        learning_options = {"policy_file": task["policy_file"], "learn_every": task["learn_every"]}
        return Worker(store, settings, **learning_options, snapshot_seconds=_SNAPSHOT_SECONDS)

    run_worker(store, make_worker, task["parent_pid"])
