"""Measure the gradient step of the default for images, and whole runs on DIGIT.

    python benchmarks/steps.py --runs 1,5 --digit --table 8 --json benchmarks/records/steps.json

A step is timed on random images of DIGIT's shape, for one run and for several runs together:
milliseconds, and on a GPU the number of kernels. ``--digit`` trains whole runs: seconds without
loading and evaluation, and accuracies. ``--table`` times ``daband bench digit`` with this many
processes.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import daband
from daband.neural._accelerator import adapt_together

SHAPE = (3, 28, 28)
N_ARMS = 10


def measure_step(n_runs: int, n_steps: int, device: str) -> dict[str, Any]:
    """Return milliseconds and kernels of a step with every term active."""
    rng = np.random.default_rng(0)
    recipe = {"learning": {"gate_exponent": 0.0, "run_steps": 1}}
    settings: dict[str, Any] = {
        "recipe": recipe,
        "feedback": "one_hot",
        "device": device,
        "shift": "style",
    }
    policies = [
        daband.DABand(context_shape=SHAPE, n_arms=N_ARMS, seed=seed, **settings)
        for seed in range(n_runs)
    ]
    for policy in policies:
        images = rng.integers(0, 256, (1024, *SHAPE), dtype=np.uint8)
        policy.play(images, np.eye(N_ARMS)[rng.integers(0, N_ARMS, 1024)])
        policy.observe_target(255 - images)
    adapt_together(policies, 64 if device == "cuda" else 1)  # warm up, and record the graph

    def measure_seconds() -> float:
        start = time.perf_counter()
        adapt_together(policies, n_steps)  # reads the device at its end
        return time.perf_counter() - start

    cost: dict[str, Any] = {
        "runs": n_runs,
        "milliseconds": 1e3 * min(measure_seconds() for _ in range(3)) / n_steps,
    }
    if device == "cuda":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            adapt_together(policies, 64)
        cost["kernels"] = sum(event.count for event in profile.key_averages()) / 64
    return cost


def measure_runs(seeds: range, pair: Any) -> dict[str, Any]:
    """Return the seconds and target accuracies of runs on DIGIT, one after the other."""
    policies = [daband.DABand.for_pair(pair, seed=seed) for seed in seeds]
    start = time.perf_counter()
    for policy in policies:
        daband.train(policy, source=pair.source, target=pair.target, episodes=300)
    seconds = time.perf_counter() - start
    accuracies = [daband.evaluate(policy, pair.target_test).accuracy for policy in policies]
    return {
        "runs": len(seeds),
        "seconds": seconds,
        "target_accuracy": accuracies,
    }


def measure_table(jobs: int) -> dict[str, Any]:
    """Return the seconds of ``daband bench digit``: all methods, five seeds, with loading and
    evaluation.
    """
    from daband.bench._bench import bench
    from daband.bench._settings import load_experiment

    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        records = bench(load_experiment("digit").runs(), folder, jobs=jobs)
        seconds = time.perf_counter() - start
    accuracies: dict[str, list[float]] = {}
    for record in records:
        accuracies.setdefault(record["method"], []).append(record["target_accuracy"])
    return {"seconds": seconds, "jobs": jobs, "target_accuracy": accuracies}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", default="1,5", help="numbers of runs together")
    parser.add_argument("--steps", type=int, default=1024)
    parser.add_argument("--digit", action="store_true", help="also whole runs on DIGIT")
    parser.add_argument(
        "--table", type=int, default=0, help="also daband bench digit, with this many processes"
    )
    parser.add_argument("--commit", default="")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    name = torch.cuda.get_device_name() if args.device == "cuda" else platform.machine()
    record: dict[str, Any] = {
        "commit": args.commit,
        "device": name,
        "torch": torch.__version__,
        "steps": args.steps,
    }
    run_counts = [int(part) for part in args.runs.split(",")]
    record["rows"] = [measure_step(n_runs, args.steps, args.device) for n_runs in run_counts]
    if args.digit:
        pair = daband.domains.load("digit")
        measure_runs(range(1), pair)  # loads kernels
        record["digit"] = [measure_runs(range(n_runs), pair) for n_runs in run_counts]
    if args.table:
        record["table"] = measure_table(args.table)
    print(json.dumps(record, indent=1))
    args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
