"""Learning from the log: a policy, the log's rewards in their order, and numbered models that come of it.

A model is a function of the policy file and the log: rewards are learned in groups of a fixed number, in the order of
the log, so neither speed nor restarts nor the number of services change a bit of it. ``replay`` shows that.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from daband.errors import InvalidInput
from daband.policies import Policy, load
from daband.service.decider import model_from
from daband.service.store import LoggedReward, ModelRow, Store
from daband.serving import Deployed, export

__all__ = ["Learner", "replay"]


class Learner:
    """Learns where it stopped. ``deployed`` is the file that the policy was exported to.

    A policy file that the log has not met before begins with the rewards that come from now on; the first one of a log
    begins with its first reward.
    """

    def __init__(self, store: Store, file: str | Path, deployed: Deployed, *, every: int = 100) -> None:
        self._store, self._deployed, self._every = store, deployed, every
        content = Path(file).read_bytes()
        self.base = f"{hashlib.sha256(content).hexdigest()}/{every}"
        learned = [row for row, _ in store.models() if row.origin == "learned" and row.base == self.base]
        state = store.model_state(learned[0].number) if learned else None
        self.start_seq = self._start(first=not learned)
        self.seq = self.start_seq
        self.policy = _load(content if state is None else state, deployed)
        if state is not None:
            self.seq = learned[0].learned_seq
        self._published = self.seq

    def step(self) -> bool:
        """Learn the next group of rewards, once it is complete; whether it was."""
        rows = self._store.rewards_after(self.seq, self._every, first_only=True)
        if len(rows) < self._every:
            return False
        learn(self.policy, rows, self._deployed)
        self.seq = rows[-1].seq
        return True

    def publish(self, now: float) -> ModelRow | None:
        """The next model, with what was learned since the one before; None where that is nothing."""
        if self.seq == self._published:
            return None
        row = self._store.add_model(
            exported(self.policy, self._deployed),
            time=now,
            origin="learned",
            base=self.base,
            start_seq=self.start_seq,
            learned_seq=self.seq,
            rounds=self.policy.rounds_learned,
            state=_saved(self.policy),
        )
        self._published = self.seq
        return row

    def _start(self, *, first: bool) -> int:
        """After which reward this policy file learns, written down when the log first meets it."""
        name = f"base:{self.base}"
        found = self._store.note(name)
        if found is not None:
            return int(found)
        others = self._store.note("learner")
        start = self._store.last_reward() if first and others is not None else 0
        self._store.write_note(name, str(start))
        self._store.write_note("learner", self.base)
        return start


def learn(policy: Policy, rows: Sequence[LoggedReward], deployed: Deployed) -> None:
    """Learn from a group of rewards; those of rounds that an incumbent chose are weighted by their propensity."""
    rows = [row for row in rows if row.event.context is not None]
    for online in (True, False):
        group = [row for row in rows if (row.event.mode == "online") is online]
        if not group:
            continue
        given: Any = orjson.loads("[" + ",".join(str(row.event.context) for row in group) + "]")
        contexts = deployed.reader.read(given if isinstance(given[0], dict) else np.asarray(given, np.float64)).contexts
        policy.update(
            contexts,
            [row.event.arm for row in group],
            [row.reward for row in group],
            deployed.domain,
            propensity=None if online else [row.event.propensity for row in group],
        )
        if policy.learns_by_gradients and deployed.domain == "target":
            policy.observe_target(contexts)
    if rows and policy.learns_by_gradients:
        policy.adapt()


def replay(store: Store, file: str | Path, row: ModelRow) -> bytes:
    """A learned model anew, from the policy file and the log alone: the same bytes as ``store.model_content``."""
    base, _, every = row.base.partition("/")
    content = Path(file).read_bytes()
    if row.origin != "learned" or hashlib.sha256(content).hexdigest() != base:
        raise InvalidInput(f"model {row.number} was not learned from {file}")
    deployed = first_deployed(store)
    policy, seq = _load(content, deployed), row.start_seq
    while seq < row.learned_seq:
        rows = store.rewards_after(seq, int(every), first_only=True)
        learn(policy, rows, deployed)
        seq = rows[-1].seq
    return exported(policy, deployed)


def first_deployed(store: Store) -> Deployed:
    """The newest file that was given, as against learned."""
    number = next(row.number for row, _ in store.models() if row.origin == "file")
    return model_from(store.model_content(number), number).deployed


def exported(policy: Policy, deployed: Deployed) -> bytes:
    """The policy as an exported file like the one that is served."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.daband"
        export(
            policy,
            path,
            domain=deployed.domain,
            arm_names=deployed.arm_names,
            reference=deployed,
            assessment=deployed.assessment,
            epsilon=deployed.frozen.exploration.epsilon,
        )
        return path.read_bytes()


def _load(content: bytes, deployed: Deployed) -> Policy:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.safetensors"
        path.write_bytes(content)
        policy = load(path)
    if policy.n_arms != len(deployed.arm_names) or tuple(policy.context_shape) != tuple(deployed.context_shape):
        raise InvalidInput(
            f"the policy to learn with has {policy.n_arms} arms and contexts of shape {policy.context_shape}, the file "
            f"that is served {len(deployed.arm_names)} and {deployed.context_shape}; give the one it was exported from"
        )
    return policy


def _saved(policy: Policy) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.safetensors"
        policy.save(path)
        return path.read_bytes()
