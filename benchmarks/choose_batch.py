"""The studies of ``choose`` and small tables in one go, on a machine with many cores and a GPU.

    python benchmarks/choose.py --export-tables tables.npz                      # where polars is
    python benchmarks/choose_batch.py --out DIR --tables tables.npz --cores 14 --seconds 540 --commit HASH

Called again with the same folder it goes on where it stopped, as nothing is trained twice. Afterwards:

    python benchmarks/choose_study.py --scores DIR/scores --record benchmarks/records/choose.json
    python benchmarks/small_tables.py --out DIR/small --record benchmarks/records/small-tables.json
    python benchmarks/results_pages.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LINEAR, NEURAL = "constant,random,linucb,linucb-p", "nlinucb,daband"
EXTRA = "nlinucb-p"
"""A row of the table of methods; what ``choose`` tries is trained first."""


def work(out: Path, tables: Path) -> tuple[list[list[str]], list[list[str]]]:
    """What a core does, one command after the other, and what a process with the GPU does."""
    scores, small = str(out / "scores"), str(out / "small")
    vectors = ["--tables", str(tables)]
    most_wanted_first = "office_caltech,synthetic,warfarin,amazon"
    cpu = ["--device", "cpu"]
    of_core = [
        ["choose.py", "--out", scores, "--pairs", "vectors", *vectors, *cpu, "--only", LINEAR],
        ["small_tables.py", "--out", small, *vectors, "--only", "constant;linucb"],
        ["small_tables.py", "--out", small, *vectors],
        ["choose.py", "--out", scores, "--pairs", "images", *cpu, "--only", LINEAR],
    ]
    of_gpu = [  # five seeds of a table in a stack take no longer there than one on a core
        ["choose.py", "--out", scores, "--pairs", most_wanted_first, *vectors, "--only", NEURAL],
        ["choose.py", "--out", scores, "--pairs", "signs,digit", "--only", NEURAL],
        ["choose.py", "--out", scores, "--pairs", "handwritten", "--only", NEURAL],
        ["choose.py", "--out", scores, "--pairs", "images,vectors", *vectors, "--only", EXTRA],
    ]
    return of_core, of_gpu


def main() -> None:
    """Run all commands on every core, as long as there is time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--cores", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--gpu-processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--commit", default="")
    arguments = parser.parse_args()
    for claim in arguments.out.glob("*/*.claim"):  # of processes that were stopped
        claim.unlink()
    ends = time.perf_counter() + arguments.seconds
    of_core, of_gpu = work(arguments.out, arguments.tables)
    queues = [list(of_core) for _ in range(arguments.cores)] + [list(of_gpu) for _ in range(arguments.gpu_processes)]
    running: list[subprocess.Popen[bytes] | None] = [None] * len(queues)
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    while any(queues) or any(one is not None for one in running):
        left = ends - time.perf_counter()
        for i, queue in enumerate(queues):
            process = running[i]
            if process is not None and process.poll() is not None:
                running[i] = process = None
            if process is None and queue and left > 0:
                script, *rest = queue.pop(0)
                command = [sys.executable, str(HERE / script), *rest, "--commit", arguments.commit]
                running[i] = subprocess.Popen([*command, "--seconds", f"{left:.0f}"], env=alone)
        if left < 0:
            for process in running:
                if process is not None:
                    process.terminate()
            return
        time.sleep(0.5)


if __name__ == "__main__":
    main()
