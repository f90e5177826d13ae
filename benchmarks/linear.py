"""How fast, and how good, is daband's LinUCB beside the bandit libraries one can install? One run, one thread, K = 10.

    python benchmarks/linear.py --json linear.json      (or: make bench)

Four things are measured, all through public interfaces, all libraries in the same process on the same numbers:

1. one by one: a context arrives as a numpy row, one arm is chosen, its reward learned; rounds per second. And the same
   with every context converted beforehand to what the library takes (text, dictionaries), outside the clock;
2. episodes of 64 rounds, each learned before the next is chosen (`policy.play`); daband only, no peer has them;
3. scoring a batch of contexts: contexts per second;
4. cumulative reward on a linear problem, over several seeds.

Every repeat visits all libraries before the next repeat starts, so that a noisy neighbour on the machine is shared out;
the table has the median of the repeats, the JSON all of them. Seconds are CPU seconds of the process: all runs in one
thread, so on an idle machine they are those of the wall, and on a busy one waiting for a core does not count.
"""

import one_thread

# isort: split
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from peers import ADAPTERS, Adapter, Daband, FloatArray, missing, version

N_ARMS = 10
ALPHA = 0.3
EPISODE = 64
CHECK_CLOCK_EVERY = 8
GOALS = {
    "one by one, d = 32": ("times the fastest peer", 3.0),
    "one by one, d = 256": ("times the fastest peer", 2.0),
    "episodes of 64, d = 32": ("rounds/s", 100_000.0),
    "episodes of 64, d = 64": ("rounds/s", 35_000.0),
    "episodes of 64, d = 256": ("rounds/s", 6_500.0),
    "batch scoring, d = 32": ("times the fastest peer", 1.3),
    "batch scoring, d = 256": ("times the fastest peer", 1.3),
    "cumulative reward": ("times the best LinUCB peer", 0.99),
}


@dataclass(frozen=True)
class Effort:
    """How much is measured: the default, or a smoke run."""

    repeats: int = 9
    seconds: float = 0.4
    batch: int = 10_000
    training: int = 500
    reward_rounds: int = 5_000
    reward_seeds: int = 5


QUICK = Effort(repeats=1, seconds=0.1, batch=1_000, training=100, reward_rounds=300, reward_seeds=2)


@dataclass
class Measured:
    """The repeats of one metric: library to its values, and what each value is."""

    unit: str
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)


def average(metric: str, values: list[float]) -> float:
    """What stands for the repeats: the median of speeds, the mean over seeds of rewards."""
    return statistics.fmean(values) if metric == "cumulative reward" else statistics.median(values)


def linear_problem(n_dimensions: int, rounds: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Contexts (N, d) of unit scale with a constant first feature, and noisy linear rewards (N, K) in [0, 1]."""
    draw = np.random.default_rng(seed)
    contexts = draw.normal(size=(rounds, n_dimensions))
    contexts[:, 0] = 1.0
    theta = draw.normal(size=(N_ARMS, n_dimensions))
    theta *= 0.15 / np.linalg.norm(theta[:, 1:], axis=1, keepdims=True)
    theta[:, 0] = 0.5
    rewards = contexts @ theta.T + 0.05 * draw.normal(size=(rounds, N_ARMS))
    return contexts, np.clip(rewards, 0.0, 1.0)


def play_one_by_one(policy: Adapter, rounds: Iterator[tuple[Any, list[float]]], count: int, encoded: bool) -> float:
    """Play `count` rounds; returns the sum of rewards. Contexts that are not `encoded` yet come as numpy rows."""
    total = 0.0
    for _ in range(count):
        row, rewards = next(rounds)
        context = row if encoded else policy.encode(row)
        arm = policy.select(context)
        policy.update(context, arm, rewards[arm])
        total += rewards[arm]
    return total


def rate(work: Callable[[], int], seconds: float) -> float:
    """Units of work per CPU second; `work` does some and says how many."""
    done = 0
    start = time.process_time()
    while (elapsed := time.process_time() - start) < seconds or done == 0:
        done += work()
    return done / elapsed


def measure_one_by_one(
    adapters: list[type[Adapter]], n_dimensions: int, effort: Effort, encoded: bool = False
) -> Measured:
    """Rounds per second, one context at a time."""
    measured = Measured("rounds/s")
    contexts, rewards = linear_problem(n_dimensions, 1_024, seed=0)
    reward_rows = rewards.tolist()
    for repeat in range(effort.repeats):
        for adapter in adapters:
            policy = adapter(n_dimensions, N_ARMS, ALPHA, repeat)
            rows = [policy.encode(row) for row in contexts] if encoded else list(contexts)
            rounds = cycle(zip(rows, reward_rows, strict=True))
            play_one_by_one(policy, rounds, 4 * N_ARMS, encoded)

            def some(policy: Adapter = policy, rounds: Iterator[tuple[Any, list[float]]] = rounds) -> int:
                play_one_by_one(policy, rounds, CHECK_CLOCK_EVERY, encoded)
                return CHECK_CLOCK_EVERY

            measured.add(adapter.name, rate(some, effort.seconds))
            policy.close()
    return measured


def measure_encoded_beforehand(adapters: list[type[Adapter]], n_dimensions: int, effort: Effort) -> Measured:
    """The same without the conversion of contexts."""
    return measure_one_by_one(adapters, n_dimensions, effort, encoded=True)


def measure_episodes(adapters: list[type[Adapter]], n_dimensions: int, effort: Effort) -> Measured:
    """Rounds per second in episodes of 64 whose rewards can be looked up; beside it the bare loop."""
    measured = Measured("rounds/s")
    contexts, rewards = linear_problem(n_dimensions, 64 * EPISODE, seed=0)
    starts = range(0, len(contexts), EPISODE)
    for repeat in range(effort.repeats):
        for adapter in adapters:
            if not adapter.episodes:
                continue
            policy = adapter(n_dimensions, N_ARMS, ALPHA, repeat)
            episodes = cycle([(contexts[i : i + EPISODE], rewards[i : i + EPISODE]) for i in starts])

            def one(policy: Adapter = policy, episodes: Iterator[tuple[FloatArray, FloatArray]] = episodes) -> int:
                policy.play(*next(episodes))
                return EPISODE

            one()
            measured.add(adapter.name, rate(one, effort.seconds))
            policy.close()
    return measured


def measure_scoring(adapters: list[type[Adapter]], n_dimensions: int, effort: Effort) -> Measured:
    """Contexts per second when a whole batch is scored without learning, after some rounds of training."""
    measured = Measured("contexts/s")
    contexts, rewards = linear_problem(n_dimensions, effort.training, seed=0)
    batch, _ = linear_problem(n_dimensions, effort.batch, seed=1)
    policies: list[tuple[Adapter, Any]] = []
    for adapter in adapters:
        policy = adapter(n_dimensions, N_ARMS, ALPHA, 0)
        play_one_by_one(policy, zip(contexts, rewards.tolist(), strict=True), len(contexts), encoded=False)
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
    """Mean reward per round; one value per seed, the same problem for every library."""
    measured = Measured("reward per round, mean of seeds")
    for seed in range(effort.reward_seeds):
        contexts, rewards = linear_problem(n_dimensions, effort.reward_rounds, seed=100 + seed)
        reward_rows = rewards.tolist()
        measured.add("random arm", float(rewards.mean()))
        measured.add("best arm in hindsight", float(rewards.max(axis=1).mean()))
        for adapter in adapters:
            policy = adapter(n_dimensions, N_ARMS, ALPHA, seed)
            total = play_one_by_one(policy, zip(contexts, reward_rows, strict=True), len(contexts), encoded=False)
            measured.add(adapter.name, total / len(contexts))
            policy.close()
    return measured


@dataclass(frozen=True)
class Comparison:
    """daband against the peers in one metric."""

    metric: str
    daband: float
    fastest_peer: str | None
    """Of the peers that learn the problem; None where no peer has the thing measured."""
    ratio: float | None
    fastest_linucb_peer: str | None
    ratio_linucb: float | None
    ratio_to_each: dict[str, float]
    goal: str | None
    met: bool | None


def learning_peers(adapters: list[type[Adapter]], reward: Measured) -> list[type[Adapter]]:
    """The peers that gain at least half of what the best one gains over a random arm: speed alone is no comparison."""
    peers = [adapter for adapter in adapters if adapter is not Daband and not adapter.orientation]
    random_mean = statistics.fmean(reward.values["random arm"])
    gains = {adapter: statistics.fmean(reward.values[adapter.name]) - random_mean for adapter in peers}
    return [adapter for adapter in peers if gains[adapter] >= 0.5 * max(gains.values())]


def compare(
    metric: str, measured: Measured, adapters: list[type[Adapter]], counted: list[type[Adapter]]
) -> Comparison | None:
    """Set daband beside the peers, and beside the goal."""
    if Daband.name not in measured.values:
        return None
    values = {name: average(metric, repeats) for name, repeats in measured.values.items()}
    ours = values[Daband.name]
    each = {a.name: values[a.name] for a in adapters if a.name in values and a is not Daband}
    libraries = {a.name: each[a.name] for a in counted if a.name in each}
    linucb = {a.name: each[a.name] for a in counted if a.name in each and a.linucb}
    fastest = max(libraries, key=libraries.__getitem__, default=None)
    fastest_linucb = max(linucb, key=linucb.__getitem__, default=None)
    ratio = ours / libraries[fastest] if fastest else None
    ratio_linucb = ours / linucb[fastest_linucb] if fastest_linucb else None
    what, least = GOALS.get(metric, ("", 0.0))
    reached = {"rounds/s": ours, "times the best LinUCB peer": ratio_linucb, "times the fastest peer": ratio}.get(what)
    return Comparison(
        metric=metric, daband=ours, fastest_peer=fastest, ratio=ratio, fastest_linucb_peer=fastest_linucb,
        ratio_linucb=ratio_linucb, ratio_to_each={name: ours / value for name, value in each.items()},
        goal=f"at least {least:,g} {what}" if what else None, met=None if reached is None else reached >= least,
    )  # fmt: skip


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {
        "cpu": model, "architecture": platform.machine(), "cores": os.cpu_count(), "system": platform.system(),
        "python": platform.python_version(), "threads": {name: os.environ[name] for name in one_thread.VARIABLES},
        "load_average_at_start": os.getloadavg(), "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def aligned(rows: list[list[str]], markdown: bool) -> str:
    """Rows of equal length as columns; the first to the left, the others to the right."""
    between, left, right = (" | ", "| ", " |") if markdown else ("  ", "", "")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append(left + between.join([first.ljust(widths[0]), *cells]) + right)
    rules = ["-" * widths[0], *("-" * (width - 1) + (":" if markdown else "-") for width in widths[1:])]
    lines.insert(1, left + between.join(rules) + right)
    return "\n".join(lines)


def number(value: float) -> str:
    return f"{value:,.0f}" if value > 1 else f"{value:.4f}"


def table(results: dict[str, Measured], absent: dict[str, str], markdown: bool) -> str:
    """One row per library, one column per metric."""
    names = list(dict.fromkeys(name for measured in results.values() for name in measured.values))
    rows = [["", *results]]
    for name in names:
        cells = [number(average(metric, m.values[name])) if name in m.values else "-" for metric, m in results.items()]
        rows.append([name, *cells])
    rows.extend([name, *["not measured"] * len(results)] for name in absent)
    return aligned(rows, markdown)


def comparisons_table(comparisons: list[Comparison], markdown: bool) -> str:
    """What daband reaches, and whether that is what was promised."""
    rows = [["", "daband", "x fastest peer", "peer", "x fastest LinUCB", "LinUCB peer", "goal", "met"]]
    for c in comparisons:
        rows.append(
            [
                c.metric,
                number(c.daband),
                "-" if c.ratio is None else f"{c.ratio:.3g}",
                c.fastest_peer or "-",
                "-" if c.ratio_linucb is None else f"{c.ratio_linucb:.4g}",
                c.fastest_linucb_peer or "-",
                c.goal or "-",
                "-" if c.met is None else ("yes" if c.met else "no"),
            ]
        )
    return aligned(rows, markdown)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where every number goes")
    parser.add_argument("--quick", action="store_true", help="a smoke run of some seconds; its numbers mean little")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--only", help="comma-separated beginnings of library names, e.g. daband,vw")
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else Effort()
    began = time.perf_counter(), time.process_time()
    warnings.simplefilter("ignore")  # the peers' own deprecations

    wanted = tuple(arguments.only.split(",")) if arguments.only else ("",)
    chosen = [adapter for adapter in ADAPTERS if adapter.name.startswith(wanted)]
    reasons = {adapter: missing(adapter) for adapter in chosen}
    adapters = [adapter for adapter in chosen if reasons[adapter] is None]
    absent = {adapter.name: reason for adapter, reason in reasons.items() if reason is not None}
    facts = machine()
    print(f"{facts['cpu']}, {facts['cores']} cores, one thread used; Python {facts['python']}; K = {N_ARMS}")
    for adapter in adapters:
        print(f"  {adapter.name} ({adapter.package} {version(adapter)}): {adapter.note}")
    for name, reason in absent.items():
        print(f"  {name}: {reason}")

    results: dict[str, Measured] = {}

    def measure(metric: str, function: Callable[[list[type[Adapter]], int, Effort], Measured], dim: int) -> None:
        print(f"measuring {metric} ...", file=sys.stderr, flush=True)
        results[metric] = function(adapters, dim, effort)

    for dim in (32, 256):
        measure(f"one by one, d = {dim}", measure_one_by_one, dim)
    for dim in (32, 256):
        measure(f"encoded beforehand, d = {dim}", measure_encoded_beforehand, dim)
    for dim in (32, 64, 256):
        measure(f"episodes of 64, d = {dim}", measure_episodes, dim)
    for dim in (32, 256):
        measure(f"batch scoring, d = {dim}", measure_scoring, dim)
    measure("cumulative reward", measure_reward, 32)

    counted = learning_peers(adapters, results["cumulative reward"]) if len(adapters) > 2 else []
    comparisons = [c for metric, m in results.items() if (c := compare(metric, m, adapters, counted)) is not None]
    single = {metric: m for metric, m in results.items() if metric.startswith(("one by one", "encoded"))}
    for part in (single, {metric: m for metric, m in results.items() if metric not in single}):
        print(f"\n{table(part, absent, arguments.markdown)}")
    print(f"\n{comparisons_table(comparisons, arguments.markdown)}")
    left_out = [a.name for a in adapters if a not in counted and a is not Daband and not a.orientation]
    if left_out:
        print(f"\nNot counted as peers, for they gain less than half of what the best gains: {', '.join(left_out)}")
    if arguments.json is not None:
        facts["load_average_at_end"] = os.getloadavg()
        facts["wall_seconds"], facts["cpu_seconds"] = time.perf_counter() - began[0], time.process_time() - began[1]
        document = {
            "commit": subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip(),
            "machine": facts,
            "settings": asdict(effort) | {"n_arms": N_ARMS, "alpha": ALPHA, "ridge": 1.0, "quick": arguments.quick},
            "libraries": {
                a.name: {
                    "package": a.package,
                    "version": version(a),
                    "linucb": a.linucb,
                    "counted": a in counted,
                    "batch": a.batch,
                    "note": a.note,
                }
                for a in adapters
            },
            "absent": absent,
            "results": {metric: asdict(measured) for metric, measured in results.items()},
            "comparisons": [asdict(comparison) for comparison in comparisons],
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
