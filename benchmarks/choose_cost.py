"""Measure the wall and processor seconds of ``daband.choose`` on a table, and of each candidate.

    python benchmarks/choose_cost.py --rows 2000,50000 --json choose-cost.json

Contexts are 20 normal numbers. The best of five arms is the largest of five noisy linear functions. The target is
shifted by 0.3. All settings of ``choose`` are the defaults.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import commit, machine

import daband

COLUMNS, ARMS = 20, 5


def build_pair(rows: int) -> daband.domains.Pair:
    """Return a pair with this number of source rows and of target rows."""
    draw = np.random.default_rng(0)
    by_arm = draw.normal(size=(COLUMNS, ARMS))
    contexts = draw.normal(size=(2, rows, COLUMNS))
    labels = (contexts[0] @ by_arm + 0.5 * draw.normal(size=(rows, ARMS))).argmax(axis=1)
    return daband.domains.from_arrays(source=(contexts[0], labels), source_test=0.1, target=contexts[1] + 0.3)


def measure_cost(rows: int) -> dict[str, Any]:
    """Return the seconds of one choice, and of the training of each candidate."""
    pair = build_pair(rows)
    by_candidate: dict[str, float] = {}
    last = [time.process_time()]

    def progress(now: daband.training.CandidateProgress) -> None:
        spent = time.process_time() - last[0]
        last[0] += spent
        by_candidate[now.candidate] = by_candidate.get(now.candidate, 0.0) + spent

    wall, processor = time.perf_counter(), time.process_time()
    choice = daband.choose(pair, progress=progress)
    return {
        "rows": rows, "columns": COLUMNS, "recipe_hash": daband.DABand.for_pair(pair, seed=0).recipe.fingerprint(),
        "seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - processor,
        "training_cpu_seconds": by_candidate, "chosen": choice.candidate,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="2000,50000")
    parser.add_argument("--json", type=Path, default=Path("choose-cost.json"))
    args = parser.parse_args()
    record: dict[str, Any] = {**machine(), "commit": commit(), "runs": []}
    for rows in map(int, args.rows.split(",")):
        record["runs"].append(measure_cost(rows))
        print(json.dumps(record["runs"][-1], indent=1), flush=True)
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
