"""Measure the speed and the peak memory of ``fit_log`` on a log larger than memory.

    python benchmarks/fit_log.py --rows 10000000 --data /tmp/log --out benchmarks/records/fit-log.json

The command writes 64 Parquet files with 32 float32 features (1.4 GB for 10,000,000 rows). Files
that exist are used again. Then it measures, each in a separate process:

- reading all files and computing X'X only, in single and in double precision,
- ``fit_log`` for LinUCB with ten arms,
- ``fit_log`` on two Ray workers, and again with one worker killed in the middle.

The coefficients of all fits are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import daband
from daband.base._arrays import use_one_blas_thread
from daband.linear._ridge import Ridge

N_FILES = 64
N_FEATURES = 32
N_ARMS = 10
BATCH_ROWS = 65_536
CONTEXT = [f"x{i}" for i in range(N_FEATURES)]


def make_file(path: Path, number: int, rows: int) -> None:
    """Write one file of a log whose rewards depend on the context, and whose propensities differ
    between arms.

    Contexts are standard normal. To save time, every block has the contexts of the first block in
    another order, with random signs.
    """
    rng = np.random.default_rng([16, number])
    coefficients = np.random.default_rng(16).normal(size=(N_ARMS, N_FEATURES)).astype(np.float32)
    first = rng.standard_normal((min(rows, BATCH_ROWS), N_FEATURES), dtype=np.float32)
    frames = []
    for start in range(0, rows, BATCH_ROWS):
        n = min(BATCH_ROWS, rows - start)
        x = first[rng.permutation(len(first))[:n]] * rng.choice(
            np.array([-1, 1], np.float32), N_FEATURES
        )
        favourite = np.argmax(x[:, :N_ARMS], axis=1)
        arm = np.where(rng.random(n) < 0.5, favourite, rng.integers(0, N_ARMS, n))
        propensity = np.where(arm == favourite, 0.5 + 0.5 / N_ARMS, 0.5 / N_ARMS).astype(np.float32)
        chance = 1 / (1 + np.exp(-(x @ coefficients.T)[np.arange(n), arm] / np.sqrt(N_FEATURES)))
        columns: dict[str, Any] = {name: x[:, i] for i, name in enumerate(CONTEXT)}
        columns |= {
            "arm": arm.astype(np.uint8),
            "reward": (rng.random(n) < chance).astype(np.float32),
        }
        frames.append(pl.DataFrame({**columns, "propensity": propensity}))
    temporary = path.with_suffix(".tmp")
    pl.concat(frames).write_parquet(temporary, compression="uncompressed", row_group_size=131_072)
    temporary.rename(path)


def make_log(folder: Path, rows: int) -> None:
    """Write the files of a log that do not exist yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(N_FILES):
        path = folder / f"{number:02d}.parquet"
        if not path.exists():
            make_file(path, number, rows * (number + 1) // N_FILES - rows * number // N_FILES)


def compute_product(folder: Path, dtype: type) -> None:
    """Read every context and compute X'X."""
    total: np.ndarray = np.zeros((N_FEATURES, N_FEATURES), dtype)
    for path in sorted(folder.glob("*.parquet")):
        for frame in pl.scan_parquet(path).collect_batches(chunk_size=BATCH_ROWS):
            x: np.ndarray = frame.select(CONTEXT).to_numpy().astype(dtype, copy=False)
            total += x.T @ x


def fit(folder: Path, engine: str, *, kill: bool = False) -> tuple[Any, int]:
    """Fit LinUCB, and return its coefficients and the number of killed workers.

    With ``kill``, one Ray worker is killed while it sums its first part.
    """
    killed: list[int] = []
    if kill:
        threading.Thread(target=_kill_a_worker, args=(killed,), daemon=True).start()
    policy = daband.LinUCB(context_shape=(N_FEATURES,), n_arms=N_ARMS, seed=0)
    if engine == "ray":
        import ray

        ray.init(address="local", num_cpus=2, log_to_driver=False)
    daband.fit_log(policy, folder, engine=engine)
    statistics = policy._head.statistics
    assert isinstance(statistics, Ridge)
    return statistics.theta, len(killed)


def _kill_a_worker(killed: list[int]) -> None:
    """Kill a Ray worker that works on a part, and append its process id to ``killed``."""
    while not killed:
        for stat in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                title = stat.read_bytes()
            except OSError:
                continue
            if title.startswith(b"ray::_sum_task") and int(stat.parent.name) != os.getpid():
                time.sleep(0.2)
                os.kill(int(stat.parent.name), signal.SIGKILL)
                killed.append(int(stat.parent.name))
                return
        time.sleep(0.01)


def run_child(what: str, folder: Path) -> None:
    """Run one measurement and print it."""
    theta = None
    killed = 0
    start = time.perf_counter()
    cpu_before = _cpu_seconds()
    if what.startswith("product"):
        # as fit_log: several threads take longer for products of this size
        with use_one_blas_thread():
            compute_product(folder, np.float32 if what == "product float32" else np.float64)
    else:
        theta, killed = fit(folder, "ray" if "ray" in what else "local", kill="killed" in what)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    coefficients = None if theta is None else theta.tolist()
    numbers = {
        "seconds": seconds,
        "cpu_seconds": _cpu_seconds() - cpu_before,
        "peak_bytes": peak,
        "killed": killed,
    }
    print(json.dumps({**numbers, "theta": coefficients}))


def _cpu_seconds() -> float:
    """Return the CPU seconds of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(what: str, folder: Path) -> dict[str, Any]:
    """Run one measurement in a new process, and return its numbers."""
    command = [sys.executable, __file__, "--child", what, "--data", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--commit", default="")
    parser.add_argument("--child")
    args = parser.parse_args()
    if args.child:
        run_child(args.child, args.data)
        return
    make_log(args.data, args.rows)
    kinds = ["product float32", "product float64", "fit_log"]
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for repeat in range(args.repeats):
        for kind in kinds:  # in turn, so that other load on the machine affects all of them
            runs[kind].append(measure(kind, args.data))
            print(repeat, kind, f"{args.rows / runs[kind][-1]['seconds']:,.0f} rows/s", flush=True)
    if not args.no_ray:
        for kind in ("fit_log ray", "fit_log ray killed"):
            runs[kind] = [measure(kind, args.data)]
            print(kind, f"{runs[kind][0]['seconds']:.1f} s", flush=True)
    theta = np.array(runs["fit_log"][0]["theta"])
    record = {
        "rows": args.rows,
        "files": N_FILES,
        "bytes": sum(path.stat().st_size for path in args.data.glob("*.parquet")),
        "features": N_FEATURES,
        "arms": N_ARMS,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_average": os.getloadavg()[1],
        "commit": args.commit,
        "command": f"python benchmarks/fit_log.py --rows {args.rows} --repeats {args.repeats}",
        "results": {
            kind: {
                "rows_per_second": [args.rows / run["seconds"] for run in found],
                "seconds": [run["seconds"] for run in found],
                "cpu_seconds": [run["cpu_seconds"] for run in found],
                "peak_bytes": max(run["peak_bytes"] for run in found),
                "workers_killed": sum(run["killed"] for run in found),
                "largest_difference": (
                    None
                    if found[0]["theta"] is None
                    else float(np.abs(np.array(found[0]["theta"]) - theta).max())
                ),
            }
            for kind, found in runs.items()
        },
    }
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(args.out.read_text()) if args.out.exists() else []
        known = [entry for entry in known if entry["rows"] != args.rows]
        args.out.write_text(
            json.dumps(sorted([*known, record], key=lambda entry: entry["rows"]), indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
