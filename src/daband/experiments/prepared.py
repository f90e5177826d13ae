"""A run of an experiment before its first round: the pair is loaded, the policy built, the folder named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daband.domains import Pair, load
from daband.experiments.methods import build_policy
from daband.experiments.settings import RunSpec
from daband.policies import Policy

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to be trained."""

    spec: RunSpec
    pair: Pair
    policy: Policy
    folder: Path

    def training(self) -> dict[str, Any]:
        """What ``train`` is told besides the policy."""
        spec, source = self.spec, self.pair.source
        whole = max(1, source.rounds_available // spec.episode_length)
        return {
            "source": source,
            "target": self.pair.target,
            "episodes": whole if spec.episodes == "all" else spec.episodes,
            "episode_length": spec.episode_length,
            "seed": spec.seed,
            "directory": self.folder,
            "config": {"run": spec.model_dump(mode="json")},
        }


def prepare(spec: RunSpec, out: Path, *, pair: Pair | None = None) -> Prepared:
    """Load the pair, unless it is given, and build the policy of a run."""
    pair = load(spec.pair, **spec.pair_options) if pair is None else pair
    policy = build_policy(spec.method, pair, seed=spec.seed, settings=spec.policy, components=spec.components)
    return Prepared(spec, pair, policy, out / spec.folder_name)
