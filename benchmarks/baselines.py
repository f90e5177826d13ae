"""Compare simple methods for tables with LinUCB: trees, CORAL and subspace alignment.

    python benchmarks/baselines.py --json benchmarks/records/baselines.json --commit $(git rev-parse --short HEAD)

The pairs are of the development half. Methods have their default settings and see no target
rewards. Values are in the unit of the rewards.
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
    "market/units": {"data_seed": 1},
    "natural_tables/weather-city": {},
    "natural_tables/diamonds-cut": {},
    "natural_tables/churn-contract": {},
    "warfarin/white-asian": {},
    "office_caltech/amazon-dslr": {},
}
METHODS: dict[str, tuple[str, dict[str, str]]] = {
    "constant": ("constant", {}),
    "linucb": ("linucb", {"shift": "covariate"}),
    "linucb, other units": ("linucb", {"shift": "units"}),
    "linucb-coral": ("coral", {}),
    "linucb-subspace": ("subspace", {}),
    "trees": ("trees", {"shift": "covariate"}),
    "daband": ("daband", {"shift": "covariate"}),
    "daband, other units": ("daband", {"shift": "units"}),
}
_EPISODE_LENGTH = 64


class AlignedLinUCB(daband.LinUCB):
    """LinUCB on contexts that are standardised by domain, with the source aligned to the target.

    ``kind`` "coral" (Sun et al. 2016) gives the source the covariance of the target, with a ridge
    of 1. "subspace" (Fernando et al. 2013) maps the first half of its principal components to those
    of the target.
    """

    _play = Policy._play  # round by round, as the features depend on the domain
    _decide_row: Any = None

    def __init__(self, *, kind: str = "coral", **settings: Any) -> None:
        super().__init__(**settings)
        self._kind = kind

    def _prepare(self, contexts: Any) -> None:
        transform: Any = self.transform
        scales = [transform.get_step(domain).scale for domain in (0, 1)]
        scaled_contexts = [
            batch[:, :-1] / scale for batch, scale in zip(contexts, scales, strict=True)
        ]
        source, target = covariances = [batch.T @ batch / len(batch) for batch in scaled_contexts]
        dim = len(source)
        maps = [np.eye(dim), np.eye(dim)]
        if self._kind == "coral":
            maps[0] = raise_matrix(source + np.eye(dim), -0.5) @ raise_matrix(
                target + np.eye(dim), 0.5
            )
        else:
            n_kept = max(1, dim // 2)
            bases = [
                np.linalg.eigh(covariance)[1][:, ::-1][:, :n_kept] for covariance in covariances
            ]
            maps = [bases[0] @ bases[0].T @ bases[1], bases[1]]
            maps = [np.pad(feature_map, ((0, 0), (0, dim - n_kept))) for feature_map in maps]
        self._feature_maps = [np.pad(feature_map, ((0, 1), (0, 1))) for feature_map in maps]
        for feature_map in self._feature_maps:
            feature_map[-1, -1] = 1.0

    def _score(self, contexts: Any, domain: int, with_bonuses: bool) -> Any:
        return super()._score(contexts @ self._feature_maps[domain], domain, with_bonuses)

    def _learn(self, rounds: Any, domain: int) -> None:
        contexts = rounds.contexts @ self._feature_maps[domain]
        super()._learn(rounds._replace(contexts=contexts), domain)


def raise_matrix(matrix: Any, exponent: float) -> Any:
    """Return a power of a symmetric, positive matrix."""
    eigenvalues, eigenvectors = np.linalg.eigh(matrix)
    return (eigenvectors * np.maximum(eigenvalues, 1e-12) ** exponent) @ eigenvectors.T


def build_aligned(pair: Any, kind: str, seed: int) -> AlignedLinUCB:
    """Return an aligned policy with the settings of ``LinUCB.for_pair`` for its number of
    features.
    """
    n_features = 1 + (
        max(1, pair.context_shape[0] // 2) if kind == "subspace" else pair.context_shape[0]
    )
    alpha = compute_default_alpha(n_features)
    ridge = compute_default_ridge(n_features)
    settings = {"alpha": alpha, "ridge": ridge, "seed": seed, "kind": kind}
    return AlignedLinUCB.for_pair(pair, transform=daband.Standardise(by_domain=True), **settings)


def measure_value(pair: Any, method: str, seed: int, max_episodes: int, hashes: set[str]) -> float:
    """Return the target value after one pass over the source, or after ``max_episodes`` episodes if
    these are fewer.

    The hash of the policy's recipe is added to ``hashes``.
    """
    name, settings = METHODS[method]
    if name in ("coral", "subspace"):
        policy: Policy = build_aligned(pair, name, seed)
    else:
        policy = build_policy(name, pair, seed=seed, settings=settings, n_components=64)
    if (recipe := getattr(policy, "recipe", None)) is not None:
        hashes.add(recipe.fingerprint())
    episodes = min(max(1, pair.source.rounds_available // _EPISODE_LENGTH), max_episodes)
    daband.train(
        policy,
        source=pair.source,
        target=pair.target,
        episodes=episodes,
        episode_length=_EPISODE_LENGTH,
    )
    return float(daband.evaluate(policy, pair.target_test).value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", nargs="*", default=list(PAIRS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=80, help="maximum number of episodes")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--commit", default="")
    args = parser.parse_args()
    values: dict[str, dict[str, list[float]]] = {}
    hashes: set[str] = set()
    for name in args.pairs:
        pair = daband.domains.load(name, **PAIRS.get(name, {}))
        values[name] = {}
        for method in args.methods:
            seeds = range(args.seeds)
            values[name][method] = [
                measure_value(pair, method, seed, args.episodes, hashes) for seed in seeds
            ]
            print(name, method, [round(value, 3) for value in values[name][method]], flush=True)
    record = {
        "commit": args.commit,
        "recipe_hash": sorted(hashes),
        "seeds": args.seeds,
        "episodes": args.episodes,
        "values": values,
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }
    args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
