"""Compare five members of DABand, one run, and five members of Neural-LinUCB on
pairs of image domains.

    python benchmarks/members.py --record benchmarks/records/members.json --seeds 20 30
    python benchmarks/members.py --pairs digit signs --kinds single neural --seeds 0 1 2 --record runs/members.json

A record has the accuracies of greedy choices on the target's test contexts, and the mean entropy of
target predictions. In ``thinned`` kinds, every other arm keeps a tenth of its target contexts.
Kinds with ``labels`` have ``shift="style,labels"``. ``emoji`` and ``signs`` may be npz files in the
data directory (xs, ys, xt, xe, ye).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from machine import commit

import daband
import research_sets  # noqa: F401  registers the data sets
from daband.domains._registry import get_data_directory
from daband.trust._choose import compute_mean_entropy

HANDWRITTEN = ("mnist", "usps", "semeion")
PAIRS = [
    "digit",
    "signs",
    "emoji",
    *(f"{a}-{b}" for a in HANDWRITTEN for b in HANDWRITTEN if a != b),
]
KINDS = ("members", "labels", "single", "neural", "thinned", "thinned-labels", "thinned-neural")


def load(name: str) -> Any:
    """Return the pair of this name; "usps-mnist" is a pair of handwritten digits."""
    if "-" in name:
        source, target = name.split("-")
        return daband.domains.load("handwritten", source=source, target=target)
    packed = get_data_directory() / f"{name}.npz"
    if not packed.exists():
        return daband.domains.load(name)
    with np.load(packed) as parts:
        return daband.domains.from_arrays(
            source=(parts["xs"], parts["ys"]),
            target=parts["xt"],
            target_test=(parts["xe"], parts["ye"]),
        )


def accuracy(policy: Any, pair: Any) -> float:
    """Return the fraction of target test contexts for which the largest prediction is that of the
    right arm.
    """
    size = len(pair.target_test)
    step = 2000
    batches = [
        pair.target_test.read(start, min(start + step, size)) for start in range(0, size, step)
    ]
    chosen = np.concatenate(
        [policy.decide(batch, "target").mean.argmax(axis=1) for batch in batches]
    )
    return round(
        float((chosen == pair.target_test.read_expected(0, size).argmax(axis=1)).mean()), 4
    )


def thin_target(pair: Any) -> Any:
    """Return a pair whose target has a tenth of the contexts of arms 0, 2, 4, ...: half of the test
    contexts each.
    """
    rng = np.random.default_rng(0)
    n = len(pair.target_test)
    labels = pair.target_test.read_expected(0, n).argmax(axis=1)
    rows = rng.permutation(n)
    rows = rows[(labels[rows] % 2 == 1) | (rng.random(n) < 0.1)]
    contexts = pair.target_test.read(0, n)[rows]
    labels = labels[rows]
    half = len(rows) // 2
    source_rows = np.arange(len(pair.source))
    source = (
        pair.source.read(source_rows),
        pair.source.read_rewards(source_rows)[0].argmax(axis=1),
    )
    test = (contexts[half:], labels[half:])
    return daband.domains.from_arrays(source=source, target=contexts[:half], target_test=test)


def run(name: str, kind: str, seed: int) -> dict[str, Any]:
    """Train a policy of this kind, and return its accuracies."""
    pair = load(name)
    if kind.startswith("thinned"):
        pair = thin_target(pair)
    policy_class = daband.NeuralLinUCB if kind.endswith("neural") else daband.DABand
    settings = {"shift": "style,labels"} if kind.endswith("labels") else {}
    policy = policy_class.for_pair(
        pair, seed=seed, members=1 if kind == "single" else 5, **settings
    )
    seconds = daband.train(policy, source=pair.source, target=pair.target).seconds
    row: dict[str, Any] = {
        "pair": name,
        "kind": kind,
        "seed": seed,
        "accuracy": accuracy(policy, pair),
    }
    means = policy.decide(pair.target.read(np.arange(min(2000, len(pair.target)))), "target").mean
    if kind != "single":
        row["of_members"] = [accuracy(member, pair) for member in policy.members.values()]
    return {**row, "entropy": round(compute_mean_entropy(means), 4), "seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", nargs="+", default=PAIRS)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["members"])
    parser.add_argument(
        "--seeds", nargs="*", type=int, default=[0], help="seeds, or first seeds of members"
    )
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--record", type=Path, default=Path("members.json"))
    parser.add_argument("--commit", help="the commit, where the tree is no checkout")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(run(args.one[0], args.one[1], int(args.one[2]))))
        return
    jobs = [(name, kind, seed) for kind in args.kinds for seed in args.seeds for name in args.pairs]
    rows = []

    def work(job: tuple[str, str, int]) -> None:
        command = [sys.executable, __file__, "--one", *map(str, job)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(job, done.stdout.strip() or done.stderr.strip()[-500:], flush=True)
        if done.returncode == 0:
            rows.append(
                {**json.loads(done.stdout.splitlines()[-1]), "commit": args.commit or commit()}
            )
            rows.sort(key=lambda row: (PAIRS.index(row["pair"]), row["kind"], row["seed"]))
            args.record.write_text(json.dumps(rows, indent=1) + "\n")

    with ThreadPoolExecutor(args.workers) as pool:
        list(pool.map(work, jobs))


if __name__ == "__main__":
    main()
