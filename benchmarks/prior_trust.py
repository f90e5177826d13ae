"""How much should the source count once the target pays? Regret of 1,920 target rounds with different prior trust.

    python benchmarks/prior_trust.py --out DIR --commit COMMIT [--part I/N] [--pairs digit,synthetic,amazon]
    python benchmarks/prior_trust.py --join DIR --record benchmarks/records/prior-trust.json

Every policy is trained in the source as ``daband bench`` would, and handed over to two targets: the target as it is,
and the same with every label moved on to the next arm, where what the source taught is wrong. There it plays 1,920
rounds with full trust in the source, with adaptive trust, and with none; and a policy of the same settings that was
never in the source plays them as well ("nothing"). A unit of work is a pair, a method and a seed; ``--part`` takes
every N-th, from I = 0 on. A unit that is in DIR already is not repeated; ``--join`` adds to a record that is there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import daband
from daband.arrays import AnyArray, FloatArray, IntArray
from daband.domains import Pair, RewardDomain, load
from daband.policies import Policy
from daband.training import continue_on_target

ROUNDS, EPISODE = 1920, 64
MODES: dict[str, float | str] = {"full": 1.0, "adaptive": "adaptive", "none": 0.0}
# Pair, its options, source episodes, seeds, methods. The recipe of neural policies is --recipe.
STUDIES: dict[str, tuple[str, dict[str, Any], int, int, tuple[str, ...]]] = {
    "digit": ("digit", {}, 300, 5, ("linucb-p", "daband")),
    "digit-embedded": ("digit", {"form": "embedded"}, 100, 3, ("linucb-p", "daband")),
    "synthetic": ("synthetic", {}, 300, 10, ("linucb", "daband")),
    "amazon": ("amazon/books-dvd", {"passes": 4}, 40, 10, ("linucb", "daband")),
}


class Relabelled(RewardDomain):
    """A domain in which every arm pays what the arm before it pays there."""

    def __init__(self, domain: RewardDomain) -> None:
        self._domain = domain
        self.n_arms, self.context_shape, self.passes = domain.n_arms, domain.context_shape, domain.passes
        self.prefetches = domain.prefetches

    def __len__(self) -> int:
        return len(self._domain)

    def read(self, indices: IntArray) -> AnyArray:
        return self._domain.read(indices)

    def read_rewards(self, indices: IntArray) -> tuple[FloatArray, FloatArray | None]:
        rewards, expected = self._domain.read_rewards(indices)
        return np.roll(rewards, 1, axis=1), None if expected is None else np.roll(expected, 1, axis=1)


def build(method: str, pair: Pair, seed: int, recipe: str) -> Policy:
    if method == "daband":
        return daband.DABand.for_pair(pair, recipe=recipe, seed=seed)
    if method == "linucb-p":
        return daband.LinUCB.for_pair(pair, transform=daband.PCA(64), seed=seed)
    return daband.LinUCB.for_pair(pair, seed=seed)


def unit(study: str, method: str, seed: int, recipe: str, folder: Path, *, rounds: int, tiny: bool) -> dict[str, Any]:
    """Train one policy and continue it in every way."""
    name, options, episodes, _, _ = STUDIES[study]
    pair = load(name, tiny=True) if tiny else load(name, **options)
    begun = time.perf_counter()
    policy = build(method, pair, seed, recipe)
    episodes = min(episodes, pair.source.rounds_available // EPISODE)
    daband.train(policy, source=pair.source, target=pair.target, episodes=episodes, episode_length=EPISODE)
    accuracy = daband.evaluate(policy, pair.require_target_test()).accuracy
    file = folder / f".{study}-{method}-{seed}.safetensors"
    policy.save(file)
    known = pair.require_target_labelled()
    regrets: dict[str, dict[str, float]] = {}
    discounts: dict[str, float] = {}
    for label, target in (("as it is", known), ("relabelled", Relabelled(known))):
        own = regrets[label] = {}
        for mode, trust in MODES.items():
            policy = daband.load(file)
            run = continue_on_target(policy, target=target, rounds=rounds, prior_trust=trust, seed=seed)
            own[mode] = run.total_regret
            if mode == "adaptive":
                discounts[label] = policy._head.trust.discount  # type: ignore[attr-defined]
        fresh = build(method, pair, seed, recipe)
        if fresh.transform is not None:
            fresh.transform = daband.load(file).transform  # what unlabelled contexts tell is not from the source
        own["nothing"] = continue_on_target(fresh, target=target, rounds=rounds, seed=seed).total_regret
    file.unlink()
    return {
        "study": study,
        "pair": name,
        "method": method,
        "recipe": recipe if method == "daband" else None,
        "seed": seed,
        "episodes": episodes,
        "rounds": min(rounds, known.rounds_available),
        "zero_shot_accuracy": accuracy,
        "regret": regrets,
        "discount": discounts,
        "seconds": time.perf_counter() - begun,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pairs", default="digit,synthetic,amazon")
    parser.add_argument("--methods", default="linucb,linucb-p,daband")
    parser.add_argument("--seeds", type=int, help="at most so many seeds")
    parser.add_argument("--recipe", default="default")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--tiny", action="store_true", help="the pair's small twin, for tests")
    parser.add_argument("--commit", default="")
    parser.add_argument("--join", type=Path)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    if args.join is not None:
        known = json.loads(args.record.read_text()) if args.record.exists() else []
        found = [json.loads(path.read_text()) for path in sorted(args.join.glob("*.json"))]
        of = {(record["study"], record["method"], record["seed"]): record for record in [*known, *found]}
        args.record.write_text(json.dumps([of[key] for key in sorted(of)], indent=1) + "\n")
        return
    warnings.simplefilter("ignore")
    args.out.mkdir(parents=True, exist_ok=True)
    units = [
        (study, method, seed)
        for study in args.pairs.split(",")
        for seed in range(min(STUDIES[study][3], args.seeds or STUDIES[study][3]))
        for method in STUDIES[study][4]
        if method in args.methods.split(",")
    ]
    part, parts = (int(text) for text in args.part.split("/"))
    for study, method, seed in units[part::parts]:
        path = args.out / f"{study}-{method}-{seed}.json"
        if path.exists():
            continue
        record = unit(study, method, seed, args.recipe, args.out, rounds=args.rounds, tiny=args.tiny)
        about = {"commit": args.commit, "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
        options = f"--pairs {study} --recipe {args.recipe} --rounds {args.rounds}"
        about["command"] = f"python benchmarks/prior_trust.py {options}"
        path.write_text(json.dumps({**record, **about}, indent=1) + "\n")
        shown = {kind: {mode: round(regret) for mode, regret in own.items()} for kind, own in record["regret"].items()}
        print(study, method, seed, shown, flush=True)


if __name__ == "__main__":
    main()
