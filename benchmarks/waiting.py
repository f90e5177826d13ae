"""What a user waits for: the seconds of an import in a fresh process, and of ``daband demo``.

    python benchmarks/waiting.py --demo --json waiting.json

Imports are the best of seven processes, each less an empty one, with compiled modules on disk as an installed package
has them (the first process writes them, whatever ``PYTHONDONTWRITEBYTECODE`` says). The demo is the whole command, from
a shell to the report, with its environment installed before; it uses as many processes as there are cores.
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

PROCESSES = 7


def seconds_of(code: str) -> tuple[float, float]:
    """Wall and processor seconds of the fastest of some processes that run this."""
    times = []
    with tempfile.TemporaryDirectory() as compiled:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
        for _ in range(PROCESSES):
            began, before = time.perf_counter(), _processor()
            subprocess.run([sys.executable, "-c", code], check=True, env=environment)
            times.append((time.perf_counter() - began, _processor() - before))
    return min(wall for wall, _ in times), min(processor for _, processor in times)


def _processor() -> float:
    """Processor seconds of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def demo() -> dict[str, Any]:
    """Wall and processor seconds of the demo, and the last line that it prints."""
    with tempfile.TemporaryDirectory() as folder:
        began, before = time.perf_counter(), _processor()
        command = [sys.executable, "-m", "daband", "demo", "--out", f"{folder}/demo"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        seconds, processor = time.perf_counter() - began, _processor() - before
        records = json.loads(Path(folder, "demo", "results.json").read_text())
    return {
        "seconds": seconds,
        "cpu_seconds": processor,
        "target_accuracy": {f"{run['method']}, seed {run['seed']}": run["target_accuracy"] for run in records},
        "last_line": done.stdout.strip().splitlines()[-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", action="store_true", help="also the demo, which takes minutes")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    empty = seconds_of("")
    imports = {}
    for name in ("numpy", "daband", "daband.serving"):
        wall, processor = (each - none for each, none in zip(seconds_of(f"import {name}"), empty, strict=True))
        imports[name] = {"seconds": wall, "cpu_seconds": processor}
    record: dict[str, Any] = {**machine(), "commit": commit(), "imports": imports}
    if given.demo:
        record["demo"] = demo()
    print(json.dumps(record, indent=1))
    if given.json is not None:
        given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
