"""What ``LinUCB.for_pair`` gives without any setting, on every shared pair of vectors.

    python benchmarks/front_door.py --out benchmarks/records/front-door.json        # every pair, five seeds
    python benchmarks/front_door.py --out part0.json --part 0/2                     # half of the pairs
    python benchmarks/front_door.py --join part0.json part1.json --out all.json     # parts to one record

By its side: alpha .05, .3 and 1, and .15, the earlier default; the default on contexts multiplied by 1,000 and on
contexts shifted by ten deviations of each number, source and target alike; and half and twice the default alpha. Pairs
are played as their presets say. Every record has the target accuracy (by labels that only the evaluator has), the
accuracy on the source's held-out rounds, and the source regret. What ``--out`` has already is not run again. Numpy is
enough; ``warfarin`` is read with polars. ``--commit`` names the commit where there is no git directory.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import daband
from daband._arrays import AnyArray
from daband.domains._contract import EvaluationDomain, Pair, RewardDomain
from daband.domains.readers._arrays import ArrayContexts, ArrayEvaluation, ArraySource

OPTIONS: dict[str, dict[str, Any]] = {
    "amazon": {"passes": 3},
    "office_caltech": {"passes": 5},
    "warfarin": {"passes": 2},
    "synthetic": {},
}
"""By family, the options of its pairs, as in the presets."""
ABOUT = ("commit", "numpy", "machine")
EPISODES = {"synthetic": 100}
"""Of 64 rounds; all there are where a pair is not listed."""
ALPHAS = (0.05, 0.3, 1.0)
EARLIER = 0.15
"""The default of every dimension before."""
FACTORS = (0.5, 2.0)
"""Of the default alpha, for its choice by source regret."""
CHANGED = ("times 1000", "shifted")
"""Variants with other contexts."""
VARIANTS = (
    "default",
    *(f"alpha {alpha:g}" for alpha in ALPHAS),
    *CHANGED,
    *(f"default x {factor:g}" for factor in FACTORS),
    f"alpha {EARLIER:g}",
)


def pair_names() -> list[str]:
    """The shared pairs of vectors: every ordered pair of amazon, office_caltech and warfarin, and synthetic."""
    known = [name for name in daband.domains.pair_names() if _family(name) in OPTIONS]
    return [name for name in known if "/" in name or name == "synthetic"]


def _family(name: str) -> str:
    return name.partition("/")[0]


def changed(pair: Pair, change: Callable[[AnyArray], AnyArray]) -> Pair:
    """The same pair with other contexts; rounds come in the same order."""
    source, test, held = pair.source, pair.target_test, pair.source_test
    assert isinstance(source, RewardDomain)
    assert isinstance(test, EvaluationDomain)
    rewards, expected = source.read_rewards(np.arange(len(source)))
    contexts = change(source.read(np.arange(len(source))))
    targets = change(pair.target.read(np.arange(len(pair.target))))
    return replace(
        pair,
        source=ArraySource(contexts, rewards, expected=expected, n_arms=pair.n_arms, passes=source.passes),
        target=ArrayContexts(targets, passes=pair.target.passes),
        target_test=_evaluation(test, change),
        source_test=_evaluation(held, change) if isinstance(held, EvaluationDomain) else None,
        target_labelled=None,
    )


def _evaluation(domain: EvaluationDomain, change: Callable[[AnyArray], AnyArray]) -> ArrayEvaluation:
    size = len(domain)
    return ArrayEvaluation(change(domain.read(0, size)), domain.read_expected(0, size), n_arms=domain.n_arms)


def shift_of(pair: Pair) -> AnyArray:
    """Ten deviations of each number of a context, over what training sees of source and target."""
    parts = [domain.read(np.arange(len(domain))) for domain in (pair.source, pair.target)]
    deviation = np.concatenate(parts).astype(np.float64).std(axis=0)
    return np.where(deviation > 0, 10.0 * deviation, 10.0)


def variant_of(name: str, pair: Pair) -> tuple[Pair, dict[str, float]]:
    """The pair and the policy's settings of a variant."""
    if name == "times 1000":
        return changed(pair, lambda contexts: 1000.0 * contexts), {}
    if name == "shifted":
        shift = shift_of(pair)
        return changed(pair, lambda contexts: contexts + shift), {}
    if name.startswith("default x "):
        return pair, {"alpha": float(name.removeprefix("default x ")) * default_alpha(pair)}
    return pair, {} if name == "default" else {"alpha": float(name.removeprefix("alpha "))}


def default_alpha(pair: Pair) -> float:
    """What ``for_pair`` chooses."""
    alpha: float = daband.LinUCB.for_pair(pair).settings()["alpha"]
    return alpha


def one_run(pair: Pair, settings: dict[str, Any], seed: int, episodes: int) -> dict[str, Any]:
    """Train as ``for_pair`` builds the policy, and judge it."""
    started = time.perf_counter()
    policy = daband.LinUCB.for_pair(pair, seed=seed, **settings)
    run = daband.train(policy, source=pair.source, target=pair.target, episodes=episodes, episode_length=64)
    assert isinstance(pair.source_test, EvaluationDomain)
    return {
        "seed": seed,
        "alpha": policy.settings()["alpha"],
        "target_accuracy": daband.evaluate(policy, pair.require_target_test()).accuracy,
        "source_test_accuracy": daband.evaluate(policy, pair.source_test).accuracy,
        "source_regret": run.total_regret,
        "rounds": run.rounds,
        "seconds": round(time.perf_counter() - started, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", default="", help="names, separated by commas; by default all")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--part", default="0/1", help="I/N: of N processes the I-th")
    parser.add_argument("--commit", default="")
    parser.add_argument("--tiny", action="store_true", help="tiny twins of the pairs, to try the script")
    parser.add_argument("--join", type=Path, nargs="+", help="records of parts; nothing is run")
    given = parser.parse_args()
    names = given.pairs.split(",") if given.pairs else pair_names()
    if given.join:
        records = [record for path in given.join for record in json.loads(path.read_text())]
        order = {name: at for at, name in enumerate(names)}
        records.sort(key=lambda record: (order[record["pair"]], VARIANTS.index(record["variant"]), record["seed"]))
        given.out.write_text(json.dumps(records, indent=1) + "\n")
        return
    part, parts = (int(number) for number in given.part.split("/"))
    about = dict(zip(ABOUT, (given.commit or _commit(), np.__version__, platform.machine()), strict=True))
    records = json.loads(given.out.read_text()) if given.out.is_file() else []
    known = {(record["pair"], record["variant"], record["seed"]) for record in records}
    for name in names[part::parts]:
        pair = daband.domains.load(name, tiny=given.tiny, **OPTIONS[_family(name)])
        episodes = min(EPISODES.get(name, 10**9), pair.source.rounds_available // 64)
        for variant in given.variants.split(","):
            meant, settings = variant_of(variant, pair)
            for seed in range(given.seeds):
                if (name, variant, seed) in known:
                    continue
                same = _same_run(records, name, variant, seed, settings.get("alpha", default_alpha(meant)))
                record = one_run(meant, settings, seed, episodes) if same is None else same
                records.append({"pair": name, "variant": variant, **record, **about})
            given.out.write_text(json.dumps(records, indent=1) + "\n")
            own = [r["target_accuracy"] for r in records if (r["pair"], r["variant"]) == (name, variant)]
            print(f"{name:<32} {variant:<13} {np.mean(own):.4f}  {np.round(own, 4)}", flush=True)


def _same_run(records: list[dict[str, Any]], name: str, variant: str, seed: int, alpha: float) -> dict[str, Any] | None:
    """What has run already with the same contexts, seed and alpha under another name."""
    if variant in CHANGED:
        return None
    for record in records:
        if (record["pair"], record["seed"], record["alpha"]) == (name, seed, alpha) and record[
            "variant"
        ] not in CHANGED:
            return {key: value for key, value in record.items() if key not in ("pair", "variant", *ABOUT)}
    return None


def _commit() -> str:
    told = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return told.stdout.strip()


if __name__ == "__main__":
    main()
