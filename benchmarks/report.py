"""How long a report takes: reading many run folders, and drawing everything that a page shows.

    python benchmarks/report.py [--runs 1000] [--json FILE] [--keep DIR]

A few real runs are made (digits that come with the package, a handful of episodes) and copied until there are as many
as asked for, each with the files of a run of 19,200 rounds: a comparison and an ablation and a sweep on one pair, and
a comparison on ten pairs of one data set. 1,000 of them should take less than 60 seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from daband._files import finish_folder
from daband.bench._bench import bench
from daband.bench._settings import Experiment
from daband.bench.report._data_frames import compare, episodes, frame
from daband.bench.report._page import write_report

EPISODES, LENGTH = 300, 64
METHODS = ("random", "linucb", "linucb-p", "nlinucb", "nlinucb-p", "daband")
LETTERS = ("none", "R", "P", "D", "RP", "RD", "PD", "RPD")


def real_runs(out: Path) -> dict[str, dict[str, Any]]:
    """A short run of a linear and of two neural methods; their records by method."""
    short = Experiment(
        pair="digit", pair_options={"form": "embedded"}, episodes=3, episode_length=LENGTH, seeds=(0,),
        compare=("linucb", "nlinucb", "daband"),
        methods={"nlinucb": {"recipe": "small"}, "daband": {"recipe": "small"}},
    )  # fmt: skip
    return {record["method"]: record for record in bench(short.runs(), out)}


def lengthen(folder: Path, generator: np.random.Generator) -> None:
    """Give a short run the rounds and episodes of a long one; what it measured goes on as it ended."""
    rounds = EPISODES * LENGTH
    regret = (generator.random(rounds) < 1.0 / np.sqrt(1.0 + np.arange(rounds) / 100.0)).astype(np.float64)
    np.savez(
        folder / "rounds.npz",
        arm=generator.integers(0, 10, rounds),
        reward=1.0 - regret,
        regret=regret,
        propensity=np.ones(rounds),
    )
    last = json.loads((folder / "episodes.jsonl").read_text().splitlines()[-1])
    lines = []
    for number in range(1, EPISODES + 1):
        record = dict(last, episode=number, regret=float(regret[: number * LENGTH].sum()))
        for name, value in last.items():
            if name.startswith("bound_") and name not in ("bound_informative", "bound_rounds"):
                record[name] = value * number**0.8
        if "bound_rounds" in last:
            record["bound_rounds"] = float(number * LENGTH)
        lines.append(json.dumps(record, sort_keys=True))
    (folder / "episodes.jsonl").write_text("\n".join(lines) + "\n")


def wanted(n: int) -> Iterator[tuple[str, str, str, int]]:
    """Pair, method, variant and seed of ``n`` runs: a quarter compares, a quarter ablates, a tenth sweeps, one pair."""
    single = [("digit", method, "default") for method in METHODS]
    ablated = [("digit", "daband", f"{base}:{letters}") for base in ("paper", "default-rpd") for letters in LETTERS]
    swept = [("digit", "daband", f"lambda={value}") for value in (1, 5, 10, 15, 20)]
    several = [(f"amazon/pair{number}", method, "default") for number in range(10) for method in METHODS]
    kinds = ((single, n // 10), (ablated, n // 4), (swept, n // 10), (several, n - n // 10 - n // 4 - n // 10))
    for members, share in kinds:
        turns = ((*member, seed) for seed in itertools.count() for member in members)
        yield from itertools.islice(turns, share)


def fabricate(out: Path, n: int) -> None:
    """Fill a folder with ``n`` runs."""
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as place:
        kept = real_runs(Path(place))
        for record in kept.values():
            lengthen(Path(place) / record["folder"], generator)
        records = []
        for pair, method, variant, seed in wanted(n):
            like = kept[method if method in kept else "nlinucb" if method == "nlinucb-p" else "linucb"]
            name = f"{pair}-{method}-{variant}-seed{seed}".replace("/", "_")
            shares = np.clip(generator.normal(0.6 if method == "daband" else 0.4, 0.05, len(like["per_class"])), 0, 1)
            record = {
                **like, "pair": pair, "method": method, "variant": variant, "seed": seed, "folder": name,
                "config_hash": name, "per_class": shares.tolist(), "target_accuracy": float(shares.mean()),
                "target_accuracy_macro": float(shares.mean()), "target_value": float(shares.mean()),
                "rounds": EPISODES * LENGTH,
            }  # fmt: skip
            ignored = shutil.ignore_patterns("policy.safetensors")  # the large file, which no report reads
            shutil.copytree(Path(place) / like["folder"], out / name, ignore=ignored)
            (out / name / "result.json").write_text(json.dumps(record))
            finish_folder(out / name, ())
            records.append(record)
    (out / "results.json").write_text(json.dumps(records))


def timed(what: str, work: Any) -> tuple[str, float]:
    """Do something and say how long it took."""
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    print(f"{what:<34}{seconds:7.1f} s")
    return what, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="make the runs and the report there, and leave them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        out = options.keep or Path(place)
        out.mkdir(parents=True, exist_ok=True)
        fabricate(out, options.runs)
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        print(f"{options.runs} run folders, {size / 1e6:.0f} MB")
        results = dict(
            [
                timed("the report, all formats", lambda: write_report(out)),
                timed("the report, the page alone", lambda: write_report(out, formats=())),
                timed("compare()", lambda: compare(out)),
                timed("frame()", lambda: frame(out)),
                timed("episodes()", lambda: episodes(out)),
            ]
        )
        page = (out / "report.html").stat().st_size
    print(f"the page has {page / 1e6:.1f} MB")
    if options.json is not None:
        options.json.write_text(json.dumps({"runs": options.runs, "seconds": results, "page_bytes": page}, indent=2))


if __name__ == "__main__":
    main()
