"""Measure the wall and processor seconds of ``daband.choose`` on a table, and of each candidate.

    python benchmarks/choose_cost.py --rows 2000,50000 --json choose-cost.json

Contexts are 20 normal numbers. The best of five arms is the largest of five noisy linear functions.
The target is shifted by 0.3. All settings of ``choose`` are the defaults.
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

N_COLUMNS = 20
N_ARMS = 5


def build_pair(n_rows: int) -> daband.domains.Pair:
    """Return a pair with this number of source rows and of target rows."""
    rng = np.random.default_rng(0)
    arm_weights = rng.normal(size=(N_COLUMNS, N_ARMS))
    contexts = rng.normal(size=(2, n_rows, N_COLUMNS))
    labels = (contexts[0] @ arm_weights + 0.5 * rng.normal(size=(n_rows, N_ARMS))).argmax(axis=1)
    return daband.domains.from_arrays(
        source=(contexts[0], labels), source_test=0.1, target=contexts[1] + 0.3
    )


def measure_cost(n_rows: int) -> dict[str, Any]:
    """Return the seconds of one choice, and of the training of each candidate."""
    pair = build_pair(n_rows)
    seconds_by_candidate: dict[str, float] = {}
    last_time = [time.process_time()]

    def progress(now: daband.training.CandidateProgress) -> None:
        spent = time.process_time() - last_time[0]
        last_time[0] += spent
        seconds_by_candidate[now.candidate] = seconds_by_candidate.get(now.candidate, 0.0) + spent

    wall_start = time.perf_counter()
    cpu_start = time.process_time()
    choice = daband.choose(pair, progress=progress)
    return {
        "rows": n_rows,
        "columns": N_COLUMNS,
        "seconds": time.perf_counter() - wall_start,
        "cpu_seconds": time.process_time() - cpu_start,
        "training_cpu_seconds": seconds_by_candidate,
        "chosen": choice.candidate,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="2000,50000")
    parser.add_argument("--json", type=Path, default=Path("choose-cost.json"))
    args = parser.parse_args()
    record: dict[str, Any] = {**machine(), "commit": commit(), "runs": []}
    for n_rows in map(int, args.rows.split(",")):
        record["runs"].append(measure_cost(n_rows))
        print(json.dumps(record["runs"][-1], indent=1), flush=True)
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
