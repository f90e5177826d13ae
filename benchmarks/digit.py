"""DIGIT at the paper's budget, many runs on one device, with numpy, torch and safetensors alone.

``daband bench digit`` is the way to compare methods; this script is for a bare GPU machine and little time. It runs
named variants x seeds in a few processes, in the order given, writes a record after each run, and stops in time: a run
that the deadline cuts short is evaluated where it stands and says so.

    DABAND_DATA=... python benchmarks/digit.py --out digit.json --runs daband:0-4 nlinucb:0-4 --processes 4
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class _OutOfTime(Exception):
    """The deadline came in the middle of a run."""


def variant(name: str) -> tuple[str, dict[str, Any]]:
    """The class and the arguments of a named variant; ``name`` may be a recipe, too."""
    from dataclasses import replace

    from daband.encoders.disturbance import Disturbance
    from daband.policies.recipe import recipe_for

    shape = (3, 28, 28)
    if name in ("daband", "nlinucb"):
        return name, {}
    if name == "nlinucb-plain":  # images as they are: the baseline as it is usually run
        recipe = recipe_for("nlinucb", context_shape=shape)
        return "nlinucb", {"recipe": replace(recipe, learning=replace(recipe.learning, disturbance=Disturbance()))}
    if name == "nlinucb-mlp":
        recipe = recipe_for("nlinucb", context_shape=shape)
        return "nlinucb", {"recipe": replace(recipe, encoder=replace(recipe.encoder, name="mlp", options={}))}
    if name.startswith("rpd-"):  # default-rpd with another weight of P
        recipe = recipe_for("default-rpd", context_shape=shape).with_weights(predicted_reward=float(name[4:]))
        return "daband", {"recipe": recipe}
    return "daband", {"recipe": name}


def one_run(name: str, seed: int, arguments: argparse.Namespace, left: Callable[[], float]) -> dict[str, Any]:
    """Train and evaluate one variant with one seed."""
    import daband
    from daband.policies import policies

    started = time.perf_counter()
    pair = daband.domains.load("digit", form=arguments.form)
    kind, settings = variant(name)
    sizes: dict[str, Any] = {"context_shape": pair.context_shape, "n_arms": pair.n_arms, "reveal": "one_correct_arm"}
    policy = policies.get(kind)(**sizes, seed=seed, **settings)
    seen: list[dict[str, float]] = []

    def watch(record: dict[str, float]) -> None:
        seen.append(record)
        if left() < 0:
            raise _OutOfTime

    with contextlib.suppress(_OutOfTime):
        daband.train(policy, source=pair.source, target=pair.target, episodes=arguments.episodes, progress=watch)
    trained = time.perf_counter() - started
    result = daband.evaluate(policy, pair.target_test)
    greedy = daband.evaluate(policy, pair.target_test, rule="greedy")
    return {
        "pair": "digit",
        "method": name,
        "seed": seed,
        "episodes": len(seen),
        "finished": len(seen) == arguments.episodes,
        "target_accuracy": result.accuracy,
        "target_accuracy_macro": result.accuracy_macro,
        "target_accuracy_greedy": greedy.accuracy,
        "per_class": result.per_class,
        "source_regret": seen[-1]["regret"],
        "wall_seconds": trained,
        "last": seen[-1],
    }


def work(jobs: Any, results: Any, arguments: argparse.Namespace, deadline: float) -> None:
    """Take jobs until there are none or the time is up."""
    while True:
        try:
            name, seed = jobs.get_nowait()
        except queue.Empty:
            return
        if time.time() > deadline:
            return
        try:
            results.put(one_run(name, seed, arguments, lambda: deadline - time.time()))
        except Exception as error:
            results.put({"method": name, "seed": seed, "error": repr(error)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", nargs="+", default=["daband:0-4", "nlinucb:0-4"], help="variant:first-last seed")
    parser.add_argument("--form", default="auto")
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=Path("digit.json"))
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    deadline = time.time() + 60 * arguments.minutes
    context = multiprocessing.get_context("spawn")
    jobs, results = context.Queue(), context.Queue()
    total = 0
    for run in arguments.runs:
        name, _, seeds = run.partition(":")
        first, _, last = (seeds or "0").partition("-")
        for seed in range(int(first), int(last or first) + 1):
            jobs.put((name, seed))
            total += 1
    time.sleep(0.5)  # the queue's feeder must be done before anybody finds it empty
    workers = [
        context.Process(target=work, args=(jobs, results, arguments, deadline)) for _ in range(arguments.processes)
    ]
    for worker in workers:
        worker.start()
    records: list[dict[str, Any]] = []
    while len(records) < total and (any(worker.is_alive() for worker in workers) or not results.empty()):
        try:
            records.append(results.get(timeout=1.0))
        except queue.Empty:
            continue
        shown = {key: value for key, value in records[-1].items() if key not in ("per_class", "last")}
        print(json.dumps(shown), flush=True)
        arguments.out.write_text(json.dumps(records, indent=1) + "\n")
    for worker in workers:
        worker.join(timeout=5)
        worker.terminate()


if __name__ == "__main__":
    main()
