"""Folders with one trained policy in them: a finished run, or what ``daband choose`` wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daband.domains import Pair, load
from daband.errors import DataError, InvalidInput
from daband.experiments.continued import finished_runs
from daband.experiments.run import read_spec
from daband.files import read_json

__all__ = ["CHOICE_FILE", "PolicyFolder", "policy_folder"]

CHOICE_FILE = "choice.json"
"""What ``daband choose`` writes beside the policy: the table of candidates, and the pair."""


@dataclass(frozen=True)
class PolicyFolder:
    """A policy on disk, and the pair that it was trained on."""

    path: Path
    pair: str
    pair_options: dict[str, Any]
    rule: str
    """How the policy acts in the target: "ucb" or "greedy"."""

    @property
    def policy_file(self) -> Path:
        """The saved policy."""
        return self.path / "policy.safetensors"

    def load_pair(self) -> Pair:
        """The pair, read anew."""
        return load(self.pair, **self.pair_options)

    @property
    def assessment_file(self) -> Path | None:
        """What is estimated of its quality in the target; None where nobody assessed it."""
        path = self.path / "assessment.json"
        return path if path.is_file() else None


def policy_folder(folder: str | Path) -> PolicyFolder:
    """The one policy in a folder: of a finished run, of a folder that holds one such run, or of ``daband choose``."""
    folder = Path(folder)
    if (folder / CHOICE_FILE).is_file():
        found = _of_choice(folder)
    else:
        runs = [folder] if (folder / "policy.safetensors").is_file() else finished_runs(folder)
        if len(runs) > 1:
            raise InvalidInput(f"{folder} has {len(runs)} finished runs, e.g. {runs[0]}; name the folder of one")
        spec = read_spec(runs[0])
        found = PolicyFolder(runs[0], spec.pair, spec.pair_options, spec.rule)
    if not found.policy_file.is_file():
        raise InvalidInput(f"{folder} holds no policy.safetensors; give the folder of one run")
    return found


def _of_choice(folder: Path) -> PolicyFolder:
    known = read_json(folder / CHOICE_FILE)
    try:
        return PolicyFolder(folder, str(known["pair"]), dict(known["pair_options"]), "ucb")
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{folder / CHOICE_FILE} does not name its pair; run `daband choose` again") from None
