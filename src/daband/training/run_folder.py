"""A run on disk: a folder that is never half-written and can always be gone on from.

``config.json`` says what runs, ``rounds.npz`` and ``episodes.jsonl`` what happened, ``policy.safetensors`` holds the
policy after the last saved episode. The policy is written last and names its episode, so a crash between two writes
leaves files that are at most longer than needed: what happened twice happened the same way.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray
from daband.errors import CheckpointError, InvalidInput
from daband.files import write_bytes, write_text
from daband.policies import Policy, read_notes
from daband.policies.checkpoint import read_checkpoint

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


class RunFolder:
    """The files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise InvalidInput(f"directory {self.path} is a file")
        self.path.mkdir(parents=True, exist_ok=True)

    @property
    def policy_file(self) -> Path:
        """Where the policy is saved."""
        return self.path / "policy.safetensors"

    def claim(self, config: dict[str, Any]) -> None:
        """Write ``config.json``, or see that the folder holds a run of the same settings."""
        path = self.path / "config.json"
        wanted = json.loads(json.dumps(config))
        if not path.exists():
            write_text(path, json.dumps(wanted, indent=2, sort_keys=True) + "\n")
            return
        try:
            found = json.loads(path.read_text())
        except ValueError as error:
            raise InvalidInput(f"{path} is not JSON: {error}; remove the folder to start anew") from error
        different = _difference(found, wanted)
        if different:
            raise InvalidInput(f"{self.path} holds a run with other settings ({different}); choose another directory")

    def save(self, policy: Policy, history: History) -> None:
        """Write what happened, then the policy."""
        table = io.BytesIO()
        columns: dict[str, Any] = {name: history.column(name) for name in _COLUMNS}
        np.savez(table, **columns)
        write_bytes(self.path / "rounds.npz", table.getvalue())
        lines = "".join(json.dumps(record, sort_keys=True) + "\n" for record in history.episodes)
        write_text(self.path / "episodes.jsonl", lines)
        notes = {"episodes": str(len(history.episodes)), "seconds": repr(history.seconds)}
        policy.save(self.policy_file, notes={**notes, "rounds": str(len(history.column("arm")))})

    def resume(self, policy: Policy) -> History:
        """Bring ``policy`` to the last saved episode and return what happened up to it.

        A fresh folder saves the policy as it is, so that going on always starts from a known state: also for a caller
        who was interrupted and tries again with a policy that has learned in the meantime.
        """
        history = History()
        if not self.policy_file.exists():
            self.save(policy, history)
            return history
        _, arrays = read_checkpoint(self.policy_file)
        try:
            notes = read_notes(self.policy_file)
            rounds = int(notes["rounds"])
            with np.load(self.path / "rounds.npz", allow_pickle=False) as table:
                for name in _COLUMNS:
                    getattr(history, name).append(table[name][:rounds])
            lines = (self.path / "episodes.jsonl").read_text().splitlines()[: int(notes["episodes"])]
            history.episodes = [json.loads(line) for line in lines]
            history.seconds = float(notes["seconds"])
            policy.restore(arrays)
        except (OSError, KeyError, ValueError, RuntimeError, BadZipFile) as error:
            raise CheckpointError(f"{self.path} is damaged ({error}); remove the folder to start anew") from error
        return history


def _difference(found: Any, wanted: Any, path: str = "") -> str:
    """The first place where two JSON values differ, in words; empty when they are the same."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted(found.keys() | wanted.keys()):
            different = _difference(found.get(key), wanted.get(key), f"{path}.{key}" if path else key)
            if different:
                return different
        return ""
    return "" if found == wanted else f"{path}: there {found!r}, here {wanted!r}"
