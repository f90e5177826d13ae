"""Measure the seconds of an import in a new process, and of ``daband demo``.

    python benchmarks/waiting.py --demo --json waiting.json

Times of imports are the best of seven processes, minus the time of an empty process. Compiled
modules are on disk, as in an installed package; the first process writes them. The demo is the
whole command, from the shell to the report. It uses as many processes as there are cores.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import commit, machine

N_PROCESSES = 7


def measure_seconds(code: str) -> tuple[float, float]:
    """Return the wall and processor seconds of the fastest of seven processes that run the code."""
    times = []
    with tempfile.TemporaryDirectory() as compiled:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
        for _ in range(N_PROCESSES):
            start = time.perf_counter()
            cpu_before = _cpu_seconds()
            subprocess.run([sys.executable, "-c", code], check=True, env=environment)
            times.append((time.perf_counter() - start, _cpu_seconds() - cpu_before))
    return min(wall for wall, _ in times), min(processor for _, processor in times)


def _cpu_seconds() -> float:
    """Return the processor seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_demo() -> dict[str, Any]:
    """Run the demo, and return its wall and processor seconds, its accuracies and the last line
    that it prints.
    """
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        cpu_before = _cpu_seconds()
        command = [sys.executable, "-m", "daband", "demo", "--out", f"{folder}/demo"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        seconds = time.perf_counter() - start
        processor = _cpu_seconds() - cpu_before
        records = json.loads(Path(folder, "demo", "results.json").read_text())
    return {
        "seconds": seconds,
        "cpu_seconds": processor,
        "target_accuracy": {
            f"{run['method']}, seed {run['seed']}": run["target_accuracy"] for run in records
        },
        "last_line": done.stdout.strip().splitlines()[-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demo", action="store_true", help="also the demo, which takes minutes")
    parser.add_argument("--json", type=Path, default=Path("waiting.json"))
    args = parser.parse_args()
    empty = measure_seconds("")
    imports = {}
    for name in ("numpy", "daband", "daband.serving"):
        wall, processor = (
            each - none for each, none in zip(measure_seconds(f"import {name}"), empty, strict=True)
        )
        imports[name] = {"seconds": wall, "cpu_seconds": processor}
    record: dict[str, Any] = {**machine(), "commit": commit(), "imports": imports}
    if args.demo:
        record["demo"] = run_demo()
    print(json.dumps(record, indent=1))
    args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
