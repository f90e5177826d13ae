"""DABand on small tables against LinUCB: warfarin's pairs, and tables of 300 rows.

    python benchmarks/choose.py --export-tables tables.npz                       # warfarin as arrays: needs polars
    python benchmarks/small_tables.py --out small --tables tables.npz --commit HASH   # one per core
    python benchmarks/small_tables.py --out small --record benchmarks/records/small-tables.json

Numpy, scikit-learn, torch and safetensors are enough. Tables of 300 rows: subsamples of each source of warfarin, and
scikit-learn's wine and breast cancer, whose rows at or below the median of a feature are the source and whose others
are the target; the seed draws the subsample, or is the feature's number. Half of the target's rows are seen, the
others are for the evaluator. Several processes may share a folder: each takes what nobody has begun.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from choose import EPISODE, FAMILIES, claimed, load_pair

import daband
from daband.domains.contract import EvaluationDomain, Pair, RewardDomain

ROWS = 300
METHODS: dict[str, Callable[[Pair, int], daband.Policy]] = {
    "constant": lambda pair, seed: daband.Constant.for_pair(pair, seed=seed, alpha=1.0),
    "linucb": lambda pair, seed: daband.LinUCB.for_pair(pair, seed=seed),
    "nlinucb": lambda pair, seed: daband.NeuralLinUCB.for_pair(pair, seed=seed, device="cpu"),
    "daband": lambda pair, seed: daband.DABand.for_pair(pair, seed=seed, device="cpu"),
    "daband, network alone": lambda pair, seed: daband.DABand.for_pair(
        pair, seed=seed, device="cpu", recipe={"learning": {"linear_weight": 0.0}}
    ),
}


def tables() -> list[tuple[str, int]]:
    """Every table, with the passes over it."""
    races = list(FAMILIES["warfarin"])
    whole = [(name, 2) for name in races]
    small = [*(f"{name}, {ROWS} rows" for name in races), "wine", "breast_cancer"]
    return [*((name, passes) for passes in (5, 1) for name in small), *whole]


def table_pair(name: str, *, passes: int, seed: int, arrays: Path | None) -> Pair:
    """The pair of a table; ``seed`` draws its rows, or names the feature that splits it."""
    if name.startswith("warfarin"):
        pair, _ = load_pair(name.split(",", maxsplit=1)[0], arrays)
        return pair if name in FAMILIES["warfarin"] else _subsample(pair, name, passes, seed)
    from sklearn import datasets

    data = getattr(datasets, f"load_{name}")()
    contexts, labels = data.data.astype(np.float64), data.target
    feature = contexts[:, seed % contexts.shape[1]]
    draw = np.random.default_rng(seed)
    low = draw.permutation(np.flatnonzero(feature <= np.median(feature)))[:ROWS]
    high = draw.permutation(np.flatnonzero(feature > np.median(feature)))
    seen, test = high[::2], high[1::2]
    return daband.domains.from_arrays(
        source=(contexts[low], labels[low]),
        source_test=0.1,
        target=contexts[seen],
        target_test=(contexts[test], labels[test]),
        n_arms=int(labels.max()) + 1,
        passes=passes,
        name=f"{name}, feature {seed}",
    )


def _subsample(pair: Pair, name: str, passes: int, seed: int) -> Pair:
    assert isinstance(pair.source, RewardDomain)
    draw = np.random.default_rng(seed)
    rows = draw.permutation(len(pair.source))[:ROWS]
    test = pair.require_target_test()
    return daband.domains.from_arrays(
        source=(pair.source.read(rows), pair.source.read_rewards(rows)[0].argmax(axis=1)),
        source_test=0.1,
        target=pair.target.read(draw.permutation(len(pair.target))[:ROWS]),
        target_test=(test.read(0, len(test)), test.read_expected(0, len(test)).argmax(axis=1)),
        n_arms=pair.n_arms,
        passes=passes,
        name=f"{name}, seed {seed}",
    )


def measured(name: str, passes: int, method: str, seed: int, arrays: Path | None) -> dict[str, Any]:
    """Train one policy and evaluate it on the evaluator's target and on held-out source rounds."""
    started = time.perf_counter()
    pair = table_pair(name, passes=passes, seed=seed, arrays=arrays)
    policy = METHODS[method](pair, seed)
    episodes = max(1, pair.source.rounds_available // EPISODE)
    run = daband.train(policy, source=pair.source, target=pair.target, episodes=episodes, episode_length=EPISODE)
    held = pair.source_test
    assert isinstance(held, EvaluationDomain)
    return {
        "table": name,
        "passes": passes,
        "method": method,
        "seed": seed,
        "rounds": run.rounds,
        "target_accuracy": daband.evaluate(policy, pair.target_test).accuracy,
        "held_out_source_accuracy": daband.evaluate(policy, held, as_domain="source").accuracy,
        "source_reward": float(run.reward.mean()),
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> None:
    """Train, or gather the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tables", type=Path, help="what benchmarks/choose.py --export-tables wrote")
    parser.add_argument("--only", default="", help="methods, by semicolons; all by default")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--part", default="0/1", help="I/N: this process does every N-th table and method")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--commit", default="")
    parser.add_argument("--record", type=Path, help="gather what is in --out into this file, and train nothing")
    arguments = parser.parse_args()
    if arguments.record:
        found = [record for path in sorted(arguments.out.glob("*.json")) for record in json.loads(path.read_text())]
        lines = ",\n".join(json.dumps(record) for record in found)
        arguments.record.write_text(f"[\n{lines}\n]\n")
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    wanted = [name for name in arguments.only.split(";") if name]
    units = [(name, passes, method) for name, passes in tables() for method in wanted or METHODS]
    index, of = map(int, arguments.part.split("/"))
    started = time.perf_counter()
    for name, passes, method in units[index::of]:
        if time.perf_counter() - started > arguments.seconds:
            return
        stem = f"{name}--{passes}--{method}".replace("/", "-").replace(", ", "-").replace(" ", "-")
        path = arguments.out / f"{stem}.json"
        if path.exists() or not claimed(path):
            continue
        try:
            records = [measured(name, passes, method, seed, arguments.tables) for seed in range(arguments.seeds)]
        except Exception:  # the others go on
            traceback.print_exc()
            continue
        path.write_text(json.dumps([{**record, "commit": arguments.commit} for record in records]))
        print(stem, round(float(np.mean([record["target_accuracy"] for record in records])), 3), flush=True)


if __name__ == "__main__":
    main()
