"""Compare simple methods for tables with LinUCB: trees, CORAL and subspace alignment.

    python benchmarks/baselines.py --json benchmarks/records/baselines.json --commit $(git rev-parse --short HEAD)

The pairs are of the development half. Methods have their default settings and see no target rewards. Values are in the
unit of the rewards.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np

import daband
from daband.bench._methods import build_policy
from daband.policies._pair_defaults import compute_default_alpha, compute_default_ridge
from daband.policies._policy import Policy

PAIRS: dict[str, dict[str, Any]] = {
    "market/units": {"data_seed": 1}, "natural_tables/weather-city": {}, "natural_tables/diamonds-cut": {},
    "natural_tables/churn-contract": {}, "warfarin/white-asian": {}, "office_caltech/amazon-dslr": {},
}  # fmt: skip
METHODS: dict[str, tuple[str, dict[str, str]]] = {
    "constant": ("constant", {}), "linucb": ("linucb", {"shift": "covariate"}),
    "linucb, other units": ("linucb", {"shift": "units"}), "linucb-coral": ("coral", {}),
    "linucb-subspace": ("subspace", {}), "trees": ("trees", {"shift": "covariate"}),
    "daband": ("daband", {"shift": "covariate"}), "daband, other units": ("daband", {"shift": "units"}),
}  # fmt: skip
_EPISODE_LENGTH = 64


class Aligned(daband.LinUCB):
    """LinUCB on contexts that are standardised by domain, with the source aligned to the target.

    ``kind`` "coral" (Sun et al. 2016) gives the source the covariance of the target, with a ridge of 1. "subspace"
    (Fernando et al. 2013) maps the first half of its principal components to those of the target.
    """

    _play = Policy._play  # round by round, as the features depend on the domain
    _decide_row: Any = None

    def __init__(self, *, kind: str = "coral", **rest: Any) -> None:
        super().__init__(**rest)
        self._kind = kind

    def _prepare(self, contexts: Any) -> None:
        transform: Any = self.transform
        steps = [transform.frozen(domain) for domain in (0, 1)]
        rows = [batch[:, :-1] / step.scale for batch, step in zip(contexts, steps, strict=True)]
        source, target = (part.T @ part / len(part) for part in rows)
        dim = len(source)
        turns = [np.eye(dim), np.eye(dim)]
        if self._kind == "coral":
            turns[0] = matrix_power(source + np.eye(dim), -0.5) @ matrix_power(target + np.eye(dim), 0.5)
        else:
            kept = max(1, dim // 2)
            bases = [np.linalg.eigh(covariance)[1][:, ::-1][:, :kept] for covariance in (source, target)]
            turns = [np.pad(turn, ((0, 0), (0, dim - kept))) for turn in (bases[0] @ bases[0].T @ bases[1], bases[1])]
        self._turns = [np.pad(turn, ((0, 1), (0, 1))) for turn in turns]
        for turn in self._turns:
            turn[-1, -1] = 1.0

    def _score(self, contexts: Any, domain: int, with_bonuses: bool) -> Any:
        return super()._score(contexts @ self._turns[domain], domain, with_bonuses)

    def _learn(self, contexts: Any, arms: Any, rewards: Any, domain: int, weights: Any) -> None:
        super()._learn(contexts @ self._turns[domain], arms, rewards, domain, weights)


def matrix_power(matrix: Any, exponent: float) -> Any:
    """Return a power of a symmetric, positive matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, 1e-12) ** exponent) @ vectors.T


def build_aligned(pair: Any, kind: str, seed: int) -> Aligned:
    """Return an aligned policy with the settings of ``LinUCB.for_pair`` for its number of features."""
    n = 1 + (max(1, pair.context_shape[0] // 2) if kind == "subspace" else pair.context_shape[0])
    settings = {"alpha": compute_default_alpha(n), "ridge": compute_default_ridge(n), "seed": seed, "kind": kind}
    return Aligned.for_pair(pair, transform=daband.Standardise(by_domain=True), **settings)


def measure_value(pair: Any, method: str, seed: int, max_episodes: int, hashes: set[str]) -> float:
    """Return the target value after one pass over the source, or after ``max_episodes`` episodes if these are fewer.

    The hash of the policy's recipe is added to ``hashes``.
    """
    name, settings = METHODS[method]
    policy = (
        build_aligned(pair, name, seed)
        if name in ("coral", "subspace")
        else build_policy(name, pair, seed=seed, settings=settings, n_components=64)
    )
    if (recipe := getattr(policy, "recipe", None)) is not None:
        hashes.add(recipe.fingerprint())
    episodes = min(max(1, pair.source.rounds_available // _EPISODE_LENGTH), max_episodes)
    daband.train(policy, source=pair.source, target=pair.target, episodes=episodes, episode_length=_EPISODE_LENGTH)
    return float(daband.evaluate(policy, pair.target_test).value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="*", default=list(PAIRS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=80, help="maximum number of episodes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="")
    args = parser.parse_args()
    values: dict[str, dict[str, list[float]]] = {}
    hashes: set[str] = set()
    for name in args.pairs:
        pair = daband.domains.load(name, **PAIRS.get(name, {}))
        values[name] = {}
        for method in args.methods:
            seeds = range(args.seeds)
            values[name][method] = [measure_value(pair, method, seed, args.episodes, hashes) for seed in seeds]
            print(name, method, [round(one, 3) for one in values[name][method]], flush=True)
    record = {
        "commit": args.commit, "recipe_hash": sorted(hashes), "seeds": args.seeds, "episodes": args.episodes,
        "values": values, "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }  # fmt: skip
    if args.json is not None:
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
