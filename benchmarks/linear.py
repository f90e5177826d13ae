"""Compare the speed and the reward of daband's LinUCB with other bandit libraries, in one thread
with K = 10 arms.

    python benchmarks/linear.py --json linear.json      (or: make bench)

Four things are measured through public interfaces, for all libraries in one process and on the same
numbers:

1. one by one: a context arrives as a numpy row, one arm is chosen, and its reward is learned;
  rounds per second;
2. episodes of 64 rounds, each learned before the next is chosen (`policy.play`); daband only, no
  peer has them;
3. scoring a batch of contexts: contexts per second;
4. cumulative reward on a linear problem, over several seeds.

Each repeat measures all libraries before the next repeat starts, so that noise of the machine
affects all of them. The table has the median of the repeats, and the JSON file has all of them.
Seconds are CPU seconds of the process.
"""

import one_thread  # noqa: F401

# isort: split
import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from machine import commit, machine
from peers import ADAPTERS, Adapter, FloatArray, missing, version

N_ARMS = 10
ALPHA = 0.3
EPISODE = 64
CHECK_CLOCK_EVERY = 8


@dataclass(frozen=True)
class Effort:
    """The amount of work: the default, or a smoke run."""

    repeats: int = 9
    seconds: float = 0.4
    batch: int = 10_000
    training: int = 500
    reward_rounds: int = 5_000
    reward_seeds: int = 5


QUICK = Effort(repeats=1, seconds=0.1, batch=1_000, training=100, reward_rounds=300, reward_seeds=2)


@dataclass
class Measured:
    """The values of one metric by library, one per repeat, and their unit."""

    unit: str
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)


def average(metric: str, values: list[float]) -> float:
    """Return the median of speeds, or the mean over seeds of rewards."""
    return statistics.fmean(values) if metric == "cumulative reward" else statistics.median(values)


def linear_problem(n_dimensions: int, rounds: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return contexts (N, d) of unit scale with a constant first feature, and noisy linear rewards
    (N, K) in [0, 1].
    """
    draw = np.random.default_rng(seed)
    contexts = draw.normal(size=(rounds, n_dimensions))
    contexts[:, 0] = 1.0
    theta = draw.normal(size=(N_ARMS, n_dimensions))
    theta *= 0.15 / np.linalg.norm(theta[:, 1:], axis=1, keepdims=True)
    theta[:, 0] = 0.5
    rewards = contexts @ theta.T + 0.05 * draw.normal(size=(rounds, N_ARMS))
    return contexts, np.clip(rewards, 0.0, 1.0)


def play_one_by_one(
    policy: Adapter, rounds: Iterator[tuple[FloatArray, list[float]]], count: int
) -> float:
    """Play `count` rounds. Return the sum of rewards."""
    total = 0.0
    for _ in range(count):
        row, rewards = next(rounds)
        context = policy.encode(row)
        arm = policy.select(context)
        policy.update(context, arm, rewards[arm])
        total += rewards[arm]
    return total


def rate(work: Callable[[], int], seconds: float) -> float:
    """Return the units of work per CPU second; `work` does some and returns their number."""
    done = 0
    start = time.process_time()
    while (elapsed := time.process_time() - start) < seconds or done == 0:
        done += work()
    return done / elapsed


def measure_one_by_one(
    adapters: list[type[Adapter]], n_dimensions: int, effort: Effort
) -> Measured:
    """Measure rounds per second, one context at a time."""
    measured = Measured("rounds/s")
    contexts, rewards = linear_problem(n_dimensions, 1_024, seed=0)
    reward_rows = rewards.tolist()
    for repeat in range(effort.repeats):
        for adapter in adapters:
            policy = adapter(n_dimensions, N_ARMS, ALPHA, repeat)
            rounds = cycle(zip(contexts, reward_rows, strict=True))
            play_one_by_one(policy, rounds, 4 * N_ARMS)

            def some(
                policy: Adapter = policy, rounds: Iterator[tuple[FloatArray, list[float]]] = rounds
            ) -> int:
                play_one_by_one(policy, rounds, CHECK_CLOCK_EVERY)
                return CHECK_CLOCK_EVERY

            measured.add(adapter.name, rate(some, effort.seconds))
            policy.close()
    return measured


def measure_episodes(adapters: list[type[Adapter]], n_dimensions: int, effort: Effort) -> Measured:
    """Measure rounds per second in episodes of 64."""
    measured = Measured("rounds/s")
    contexts, rewards = linear_problem(n_dimensions, 64 * EPISODE, seed=0)
    starts = range(0, len(contexts), EPISODE)
    for repeat in range(effort.repeats):
        for adapter in adapters:
            if not adapter.episodes:
                continue
            policy = adapter(n_dimensions, N_ARMS, ALPHA, repeat)
            episodes = cycle(
                [(contexts[i : i + EPISODE], rewards[i : i + EPISODE]) for i in starts]
            )

            def one(
                policy: Adapter = policy,
                episodes: Iterator[tuple[FloatArray, FloatArray]] = episodes,
            ) -> int:
                policy.play(*next(episodes))
                return EPISODE

            one()
            measured.add(adapter.name, rate(one, effort.seconds))
            policy.close()
    return measured


def measure_scoring(adapters: list[type[Adapter]], n_dimensions: int, effort: Effort) -> Measured:
    """Measure contexts per second when a whole batch is scored without learning, after some rounds
    of training.
    """
    measured = Measured("contexts/s")
    contexts, rewards = linear_problem(n_dimensions, effort.training, seed=0)
    batch, _ = linear_problem(n_dimensions, effort.batch, seed=1)
    policies: list[tuple[Adapter, Any]] = []
    for adapter in adapters:
        policy = adapter(n_dimensions, N_ARMS, ALPHA, 0)
        play_one_by_one(policy, zip(contexts, rewards.tolist(), strict=True), len(contexts))
        encoded = policy.encode_batch(batch)
        policy.score(encoded[:100])
        policies.append((policy, encoded))
    for _ in range(effort.repeats):
        for policy, encoded in policies:

            def all_of_it(policy: Adapter = policy, encoded: Any = encoded) -> int:
                return len(policy.score(encoded))

            measured.add(policy.name, rate(all_of_it, effort.seconds))
    for policy, _ in policies:
        policy.close()
    return measured


def measure_reward(adapters: list[type[Adapter]], n_dimensions: int, effort: Effort) -> Measured:
    """Measure the mean reward per round; one value per seed, the same problem for every library."""
    measured = Measured("reward per round, mean of seeds")
    for seed in range(effort.reward_seeds):
        contexts, rewards = linear_problem(n_dimensions, effort.reward_rounds, seed=100 + seed)
        reward_rows = rewards.tolist()
        measured.add("random arm", float(rewards.mean()))
        measured.add("best arm in hindsight", float(rewards.max(axis=1).mean()))
        for adapter in adapters:
            policy = adapter(n_dimensions, N_ARMS, ALPHA, seed)
            total = play_one_by_one(policy, zip(contexts, reward_rows, strict=True), len(contexts))
            measured.add(adapter.name, total / len(contexts))
            policy.close()
    return measured


def aligned(rows: list[list[str]]) -> str:
    """Return rows of equal length as columns, the first one aligned to the left and the others to
    the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])])
        for first, *others in rows
    )


def number(value: float) -> str:
    return f"{value:,.0f}" if value > 1 else f"{value:.4f}"


def table(results: dict[str, Measured], absent: dict[str, str]) -> str:
    """Return a row per library and a column per metric."""
    names = list(dict.fromkeys(name for measured in results.values() for name in measured.values))
    rows = [["", *results]]
    for name in names:
        cells = [
            number(average(metric, m.values[name])) if name in m.values else "-"
            for metric, m in results.items()
        ]
        rows.append([name, *cells])
    rows.extend([name, *["not measured"] * len(results)] for name in absent)
    return aligned(rows)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="the file for all numbers")
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run of a few seconds, without useful numbers"
    )
    parser.add_argument(
        "--only", help="comma-separated beginnings of library names, e.g. daband,vw"
    )
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else Effort()
    began = time.perf_counter(), time.process_time()
    warnings.simplefilter("ignore")  # deprecations in other libraries

    wanted = tuple(arguments.only.split(",")) if arguments.only else ("",)
    chosen = [adapter for adapter in ADAPTERS if adapter.name.startswith(wanted)]
    reasons = {adapter: missing(adapter) for adapter in chosen}
    adapters = [adapter for adapter in chosen if reasons[adapter] is None]
    absent = {adapter.name: reason for adapter, reason in reasons.items() if reason is not None}
    facts = machine()
    print(
        f"{facts['cpu']}, {facts['cores']} cores, one thread used; Python {facts['python']}; K ="
        f" {N_ARMS}"
    )
    for adapter in adapters:
        print(f"  {adapter.name} ({adapter.package} {version(adapter)}): {adapter.note}")
    for name, reason in absent.items():
        print(f"  {name}: {reason}")

    results: dict[str, Measured] = {}

    def measure(
        metric: str, function: Callable[[list[type[Adapter]], int, Effort], Measured], dim: int
    ) -> None:
        print(f"measuring {metric} ...", file=sys.stderr, flush=True)
        results[metric] = function(adapters, dim, effort)

    for dim in (32, 256):
        measure(f"one by one, d = {dim}", measure_one_by_one, dim)
    for dim in (32, 64, 256):
        measure(f"episodes of 64, d = {dim}", measure_episodes, dim)
    for dim in (32, 256):
        measure(f"batch scoring, d = {dim}", measure_scoring, dim)
    measure("cumulative reward", measure_reward, 32)

    print(f"\n{table(results, absent)}")
    if arguments.json is not None:
        facts["load_average_at_end"] = os.getloadavg()
        facts["wall_seconds"], facts["cpu_seconds"] = (
            time.perf_counter() - began[0],
            time.process_time() - began[1],
        )
        document = {
            "commit": commit(),
            "machine": facts,
            "settings": (
                asdict(effort)
                | {
                    "n_arms": N_ARMS,
                    "alpha": ALPHA,
                    "ridge": 1.0,
                    "quick": arguments.quick,
                }
            ),
            "libraries": {
                a.name: {
                    "package": a.package,
                    "version": version(a),
                    "linucb": a.linucb,
                    "batch": a.batch,
                    "note": a.note,
                }
                for a in adapters
            },
            "absent": absent,
            "results": {metric: asdict(measured) for metric, measured in results.items()},
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
