"""A run on disk: a folder that is never half-written and can always be resumed, by one process at a time.

``config.json`` says what runs, ``rounds.npz`` and ``episodes.jsonl`` what happened, ``policy.safetensors`` holds the
policy after the last saved episode. The policy is written last and names its episode, so a crash between two writes
leaves files that are at most longer than needed: rounds that are played again are the same rounds. It also holds a
digest of the rounds and episodes up to its own, and ``done`` the digests of a finished folder's files: a changed bit is
an error. Where contexts are made of tables, ``table.json`` has what turns a raw row into a context
(``daband.domains.TableTransform.load``).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray
from daband.errors import CheckpointError, DataError, InvalidInput
from daband.files import (
    locked,
    make_folder,
    read_bytes,
    read_json,
    read_npz,
    remove_orphans,
    write_bytes,
    write_text,
)
from daband.policies import Policy, read_checkpoint

__all__ = ["History", "RunFolder"]

_COLUMNS = ("arm", "reward", "regret", "propensity")


@dataclass
class History:
    """What happened so far: a row per round, a record per episode, and the seconds it took."""

    arm: list[IntArray] = field(default_factory=list)
    reward: list[FloatArray] = field(default_factory=list)
    regret: list[FloatArray] = field(default_factory=list)
    propensity: list[FloatArray] = field(default_factory=list)
    episodes: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0

    def column(self, name: str) -> AnyArray:
        """One column of all rounds."""
        pieces: list[AnyArray] = getattr(self, name)
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int64 if name == "arm" else np.float64)

    def lines(self) -> str:
        """The records as ``episodes.jsonl`` has them."""
        return "".join(json.dumps(record, sort_keys=True) + "\n" for record in self.episodes)

    def digest(self) -> str:
        """A digest of all rounds and records."""
        mark = hashlib.sha256(self.lines().encode())
        for name in _COLUMNS:
            mark.update(np.ascontiguousarray(self.column(name)).tobytes())
        return mark.hexdigest()


class RunFolder:
    """The files of one run. A folder at work is locked: ``release`` it, or let it go with the process."""

    def __init__(self, path: str | Path) -> None:
        self.path = make_folder(path)
        self._lock = ExitStack()
        self._lock.enter_context(locked(self.path, wait=False))
        remove_orphans(self.path)

    def release(self) -> None:
        """Let others work in the folder."""
        self._lock.close()

    @property
    def policy_file(self) -> Path:
        """Where the policy is saved."""
        return self.path / "policy.safetensors"

    def claim(self, config_of: Callable[[int], dict[str, Any]], episodes: int) -> None:
        """Write ``config.json``, or see that the folder holds a run of the same settings.

        ``config_of`` gives the settings of a run of so many episodes. A folder of fewer episodes is extended to
        ``episodes``; one of more is refused.
        """
        path = self.path / "config.json"
        if os.path.lexists(path):
            try:
                found = read_json(path)
            except DataError as error:
                raise InvalidInput(f"{error}; remove the folder to start anew") from None
            self._compare(found, config_of, episodes)
            if found["training"]["episodes"] == episodes:
                return
        write_text(path, json.dumps(_as_json(config_of(episodes)), indent=2, sort_keys=True) + "\n")

    def _compare(self, found: Any, config_of: Callable[[int], dict[str, Any]], episodes: int) -> None:
        """Refuse a folder whose run cannot be resumed as one of ``episodes`` episodes."""
        training = found.get("training") if isinstance(found, dict) else None
        training = training if isinstance(training, dict) else {}
        before = training.get("episodes")
        known = before if isinstance(before, int) and before >= 1 else episodes
        wanted = _as_json(config_of(min(known, episodes)))
        if known > episodes:  # refused in any case: of its data there may be too few here to compare them
            wanted["training"].update({name: training[name] for name in ("episodes", "data") if name in training})
        different = _difference(found, wanted)
        if different:
            raise InvalidInput(f"{self.path} holds a run with other settings ({different}); choose another directory")
        if known > episodes:
            raise InvalidInput(
                f"{self.path} holds a run of {known} episodes, and {episodes} were asked for: a run can be extended, "
                f"not shortened; ask for at least {known}, or choose another directory"
            )

    def save(self, policy: Policy, history: History) -> None:
        """Write what happened, then the policy."""
        table = io.BytesIO()
        columns: dict[str, Any] = {name: history.column(name) for name in _COLUMNS}
        np.savez(table, **columns)
        write_bytes(self.path / "rounds.npz", table.getvalue())
        write_text(self.path / "episodes.jsonl", history.lines())
        notes = {
            "episodes": str(len(history.episodes)),
            "rounds": str(len(columns["arm"])),
            "seconds": repr(history.seconds),
            "digest": history.digest(),
        }
        policy.save(self.policy_file, notes=notes)

    def resume(self, policy: Policy) -> History:
        """Bring ``policy`` to the last saved episode and return what happened up to it.

        A fresh folder saves the policy as it is, so that a run always resumes from a known state: also for a caller
        who was interrupted and tries again with a policy that has learned in the meantime.
        """
        if policy.table is not None:
            policy.table.save(self.path / "table.json")
        history = History()
        if not os.path.lexists(self.policy_file):
            self.save(policy, history)
            return history
        try:
            saved = read_checkpoint(self.policy_file)
            rounds = int(saved.notes["rounds"])
            table = read_npz(self.path / "rounds.npz")
            for name in _COLUMNS:
                if len(table[name]) < rounds:
                    raise ValueError(f"rounds.npz has {len(table[name])} of {rounds} rounds")
                getattr(history, name).append(table[name][:rounds])
            episodes = int(saved.notes["episodes"])
            lines = read_bytes(self.path / "episodes.jsonl").decode().splitlines()[:episodes]
            if len(lines) < episodes:
                raise ValueError(f"episodes.jsonl has {len(lines)} of {episodes} episodes")
            history.episodes = [json.loads(line) for line in lines]
            history.seconds = float(saved.notes["seconds"])
            if saved.notes.get("digest", history.digest()) != history.digest():  # an older version wrote none
                raise ValueError(
                    "rounds.npz or episodes.jsonl does not match the digest that was saved with the policy"
                )
            policy.restore(saved.arrays)
        except (OSError, KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
            raise CheckpointError(f"{self.path} is damaged ({error}); remove the folder to start anew") from error
        return history


def _as_json(config: dict[str, Any]) -> Any:
    """What comes back when this is written to a file and read."""
    return json.loads(json.dumps(config))


def _difference(found: Any, wanted: Any, path: str = "") -> str:
    """The first place where two JSON values differ, in words; empty when they are the same."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        # A mark of the data depends on other settings too: it is named where nothing else is different.
        for key in sorted(found.keys() | wanted.keys(), key=lambda key: (key == "data", key)):
            different = _difference(found.get(key), wanted.get(key), f"{path}.{key}" if path else key)
            if different:
                return different
        return ""
    return "" if found == wanted else f"{path}: there {found!r}, here {wanted!r}"
