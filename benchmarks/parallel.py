"""Run the jobs of a benchmark in several processes."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any


def run_jobs(
    function: Callable[..., Any],
    jobs: Sequence[tuple[Any, ...]],
    n_processes: int,
    seconds: float = float("inf"),
) -> list[Any]:
    """Return the results of ``function(*job)``, in the order of jobs; None for a job that was not
    started within ``seconds``.

    Every process uses one thread.
    """
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", POLARS_MAX_THREADS="1")
    end = time.monotonic() + seconds
    results: list[Any] = [None] * len(jobs)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_processes, context, warnings.simplefilter, ("ignore",)) as pool:
        futures = {
            pool.submit(_run_until, end, function, job): index for index, job in enumerate(jobs)
        }
        for n_done, future in enumerate(as_completed(futures), start=1):
            results[futures[future]] = future.result()
            if n_done % max(1, len(jobs) // 20) == 0:
                print(f"{n_done} of {len(jobs)} jobs", flush=True)
    return results


def _run_until(end: float, function: Callable[..., Any], job: tuple[Any, ...]) -> Any:
    """Return ``function(*job)``, or None if it is too late to start."""
    return function(*job) if time.monotonic() < end else None
