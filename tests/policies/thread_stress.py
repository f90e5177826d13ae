"""Stress a policy that threads share: select and update from eight threads, at a switch interval of
a microsecond.

    python -m tests.policies.thread_stress --calls 1000000

Every round is offered by two threads under the same id, so that half of all updates are duplicates.
At the end each round must be counted once, and the statistics must be those of one thread that
learned the same rounds, within 1e-9."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import daband


def stress(
    *, calls: int, threads: int = 8, dimension: int = 32, n_arms: int = 10
) -> dict[str, float]:
    """Run the stress and return what was found; ``largest_error`` is over predicted rewards and
    widths.
    """
    rounds = calls // 4
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(rounds, dimension)) / np.sqrt(dimension)
    pulled = rng.integers(0, n_arms, rounds)
    paid = rng.random(rounds)
    policy = daband.LinUCB(context_shape=(dimension,), n_arms=n_arms, seed=0)
    if rounds > policy.id_window:
        raise SystemExit(
            f"at most {4 * policy.id_window:,} calls: a duplicate must lie within the window of"
            " round ids"
        )

    def serve(thread: int) -> int:
        taken = 0
        own = [range(thread, rounds, threads), range((thread + 1) % threads, rounds, threads)]
        for i in [row for both in zip(*own, strict=False) for row in both]:
            row = slice(i, i + 1)
            policy.select(contexts[row])
            taken += not policy.update(
                contexts[row], pulled[row], paid[row], ids=[i], on_duplicate="skip"
            )
        for i in [*own[0][len(own[1]) :], *own[1][len(own[0]) :]]:
            taken += not policy.update(
                contexts[i : i + 1],
                pulled[i : i + 1],
                paid[i : i + 1],
                ids=[i],
                on_duplicate="skip",
            )
        return taken

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    started = time.perf_counter()
    try:
        with ThreadPoolExecutor(threads) as pool:
            taken = sum(pool.map(serve, range(threads)))
    finally:
        sys.setswitchinterval(interval)
    seconds = time.perf_counter() - started
    alone = daband.LinUCB(context_shape=(dimension,), n_arms=n_arms, seed=0)
    alone.update(contexts, pulled, paid)
    here = policy.decide(contexts[:1000])
    there = alone.decide(contexts[:1000])
    error = max(
        float(np.abs(here.mean - there.mean).max()), float(np.abs(here.bonus - there.bonus).max())
    )
    return {
        "calls": float(policy.rounds_decided + 2 * rounds),
        "rounds": float(rounds),
        "learned": float(policy.rounds_learned),
        "taken": float(taken),
        "counted": float(policy.counts.sum()),
        "largest_error": error,
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=1_000_000)
    found = stress(calls=parser.parse_args().calls)
    for name, value in found.items():
        print(f"{name:>14}: {value:,.12g}")
    exact = found["rounds"] == found["learned"] == found["taken"] == found["counted"]
    if not exact or found["largest_error"] > 1e-9:
        sys.exit(
            "a round was lost or counted twice, or the statistics differ from those of one thread"
        )


if __name__ == "__main__":
    main()
