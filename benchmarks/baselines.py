"""What a practitioner would try first on a table, beside LinUCB: trees, CORAL, subspace alignment.

    python benchmarks/baselines.py --json benchmarks/records/baselines.json --commit $(git rev-parse --short HEAD)

Pairs of the development half, each method as it comes, no reward of the target; values in the unit of the rewards.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import daband
from daband.bench._methods import build_policy

PAIRS: dict[str, dict[str, Any]] = {
    "market/units": {"data_seed": 1}, "natural_tables/weather-city": {}, "natural_tables/diamonds-cut": {},
    "natural_tables/churn-contract": {}, "warfarin/white-asian": {}, "office_caltech/amazon-dslr": {},
}  # fmt: skip
METHODS: dict[str, tuple[str, dict[str, str]]] = {
    "constant": ("constant", {}), "linucb": ("linucb", {"shift": "covariate"}),
    "linucb, other units": ("linucb", {"shift": "units"}), "linucb-coral": ("linucb-coral", {}),
    "linucb-subspace": ("linucb-subspace", {}), "trees": ("trees", {"shift": "covariate"}),
    "daband": ("daband", {"shift": "covariate"}), "daband, other units": ("daband", {"shift": "units"}),
}  # fmt: skip
_LENGTH = 64


def value(pair: Any, method: str, seed: int, most: int, hashes: set[str]) -> float:
    """The value in the target after one pass of the source, of at most so many episodes; ``hashes`` gets its recipe."""
    name, settings = METHODS[method]
    policy = build_policy(name, pair, seed=seed, settings=settings, components=64)
    if (recipe := getattr(policy, "recipe", None)) is not None:
        hashes.add(recipe.fingerprint())
    episodes = min(max(1, pair.source.rounds_available // _LENGTH), most)
    daband.train(policy, source=pair.source, target=pair.target, episodes=episodes, episode_length=_LENGTH)
    return float(daband.evaluate(policy, pair.target_test).value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="*", default=list(PAIRS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=80, help="at most")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="")
    given = parser.parse_args()
    values: dict[str, dict[str, list[float]]] = {}
    hashes: set[str] = set()
    for name in given.pairs:
        pair = daband.domains.load(name, **PAIRS.get(name, {}))
        values[name] = {}
        for method in given.methods:
            seeds = range(given.seeds)
            values[name][method] = [value(pair, method, seed, given.episodes, hashes) for seed in seeds]
            print(name, method, [round(one, 3) for one in values[name][method]], flush=True)
    record = {
        "commit": given.commit, "recipe_hash": sorted(hashes), "seeds": given.seeds, "episodes": given.episodes,
        "values": values, "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }  # fmt: skip
    if given.json is not None:
        given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
