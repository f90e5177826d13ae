"""What a gradient step of the default for images costs, part by part and in other precisions, for one run and stacked.

    python benchmarks/step_variants.py --runs 1,5 --steps 1024 --digit --before --table 8 --json step-variants.json

Every variant takes the same steps on made-up images of DIGIT's shape: milliseconds a step, the kernels that a step
launches, and the seconds that the 19,200 steps of a run would take; of the step as it is also what it asks of the
machine and the time of its kernels by kind. Ways of taking the step come first; with ``--parts``, then, what each part
of the recipe costs. ``--digit`` trains whole runs on DIGIT, as it is and as it was, one alone twice and five stacked:
seconds without loading and evaluation, and accuracies. ``--table`` times ``daband bench digit`` with so many jobs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import re
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import peaks
import torch
from attribution import Variant, run_variant

import daband
from daband.neural.encoders import _domain_norm as domain_norm
from daband.neural.learning import _batches as batches
from daband.neural.learning._gradient_step import GradientStep
from daband.neural.learning._step_runners import take_steps
from daband.neural.objectives._objective import Objective

SHAPE, ARMS, FULL_RUN = (3, 28, 28), 10, 19_200
WITHOUT: dict[str, Mapping[str, Any]] = {
    "default": {},
    "without pseudo-labels": {"weights": {"pseudo_labels": 0.0}},
    "without entropy and diversity": {"weights": {"target_entropy": 0.0, "target_diversity": 0.0}},
    "without discriminator": {"weights": {"adversarial": 0.0}},
    "without augmentation": {"learning": {"augmentation": {"shift": 0, "contrast": 0.0}}},
    "without EMA": {"learning": {"ema_decay": 0.0}, "weights": {"pseudo_labels": 0.0}},
    "without batch norm": {"encoder": {"options": {"normalise": False}}},
    "the source's terms alone": {
        "weights": dict.fromkeys(("adversarial", "target_entropy", "target_diversity", "pseudo_labels"), 0.0)
    },
}


@contextlib.contextmanager
def changed(place: Any, **attributes: Any) -> Iterator[None]:
    """Within this block an object's attributes have other values."""
    before = {name: getattr(place, name) for name in attributes if hasattr(place, name)}
    for name, value in attributes.items():
        setattr(place, name, value)
    try:
        yield
    finally:
        for name in attributes:
            setattr(place, name, before[name]) if name in before else delattr(place, name)


def no_autocast() -> contextlib.AbstractContextManager[None]:
    return changed(GradientStep, _maps_type=lambda _: contextlib.nullcontext())


def no_kernels() -> contextlib.AbstractContextManager[None]:
    return changed(domain_norm, _module=lambda: None)


def no_stream() -> contextlib.AbstractContextManager[None]:
    """The teacher on the same stream as the encoder."""
    return changed(GradientStep, _on_side_stream=lambda _: contextlib.nullcontext(), _join_side_stream=lambda _: None)


def one_branch() -> contextlib.AbstractContextManager[None]:
    """All terms on one stream, the discriminator among them."""
    return changed(Objective, streams=property(lambda _: (), lambda *_: None))


def nothing_ahead() -> contextlib.AbstractContextManager[None]:
    return changed(batches, _MOST_AHEAD=0)


def by_timing() -> contextlib.AbstractContextManager[None]:
    return changed(torch.backends.cudnn, benchmark=True)


Way = Callable[[], contextlib.AbstractContextManager[None]]
BEFORE = (no_autocast, no_kernels, no_stream, one_branch, nothing_ahead)
WAYS: dict[str, tuple[Way, ...]] = {
    "as it is": (), "maps in TF32": (no_autocast,), "without fused kernels": (no_kernels,),
    "teacher on the same stream": (no_stream,), "all terms on one stream": (one_branch,),
    "one stream": (no_stream, one_branch), "batches gathered in the step": (nothing_ahead,),
    "cuDNN chooses by timing": (by_timing,), "TF32, no fused kernels, one stream, gathered in the step": BEFORE,
}  # fmt: skip
"""How the step is taken, other than what it computes; the last is how it was taken before version 0.4."""
KINDS = {
    "kernels of our own": r"^_(moments|pool|sums|back|affine_pool|patches|adam)$",
    "convolutions and products": r"gemm|xmma|nvjet|gemv|splitK|cutlass|convolve",
    "copies and other layouts": r"copy|tensorTransform|Cat|Memcpy|Memset|Fill",
    "gathering": r"index|gather|scatter",
    "sums": r"reduce|softmax",
    "number by number": "",
}
"""Kinds of kernels by what their names contain; the first that fits."""


def step_cost(
    changes: Mapping[str, Any], *, runs: int, steps: int, device: str, profiles: list[str] | None = None
) -> dict[str, Any]:
    """Milliseconds and kernels of a step, with every term at work; on a GPU also the time of its kernels by kind."""
    draw = np.random.default_rng(0)
    recipe = {**changes, "learning": {**changes.get("learning", {}), "gate_exponent": 0.0, "run_steps": 1}}
    policies = [
        daband.DABand(
            context_shape=SHAPE, n_arms=ARMS, recipe=recipe, feedback="one_hot", device=device, seed=seed, shift="style"
        )
        for seed in range(runs)
    ]
    for policy in policies:
        images = draw.integers(0, 256, (1024, *SHAPE), dtype=np.uint8)
        policy.play(images, np.eye(ARMS)[draw.integers(0, ARMS, 1024)])
        policy.observe_target(255 - images)
        policy.before_steps(1)
    learners, buffers = [policy.learner for policy in policies], [policy.buffers for policy in policies]
    take_steps(learners, 64 if device == "cuda" else 1, buffers)  # warm up, and record the graph

    def elapsed() -> float:
        start = time.perf_counter()
        take_steps(learners, steps, buffers)  # reads the device at its end
        return time.perf_counter() - start

    seconds = min(elapsed() for _ in range(3))
    kernels, kinds = 0, dict.fromkeys(KINDS, 0.0)
    if device == "cuda":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            take_steps(learners, 64, buffers)
        events = profile.key_averages()
        kernels = sum(event.count for event in events)
        for event in events:
            kind = next(kind for kind, names in KINDS.items() if re.search(names, event.key))
            kinds[kind] += event.self_device_time_total / 64e3
        if profiles is not None:
            profiles.append(events.table(sort_by="cuda_time_total", row_limit=45, max_name_column_width=110))
    cost = {"milliseconds": 1e3 * seconds / steps, "kernels": kernels / 64, "run_seconds": seconds / steps * FULL_RUN}
    if device == "cuda" and not changes:
        for learner in learners:
            learner.cuda_graph = False
        demand = peaks.demand_of(lambda: take_steps(learners, 1, buffers))
        return {**cost, "kernel_milliseconds": kinds, **demand}
    return cost


def whole_table(jobs: int, commit: str) -> dict[str, Any]:
    """Seconds of ``daband bench digit``: every method of the table, five seeds, with loading and evaluation."""
    from daband.bench._bench import bench
    from daband.bench._executors import RunEvent
    from daband.bench._settings import load_experiment  # needs pydantic

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()

        def tell(event: RunEvent) -> None:
            if event.kind == "finished":
                print(f"{time.perf_counter() - began:.0f} s: {event.spec.method}, seed {event.spec.seed}", flush=True)

        records = bench(load_experiment("digit").runs(), folder, jobs=jobs, on_event=tell)
        seconds = time.perf_counter() - began
    accuracy: dict[str, list[float]] = {}
    for record in records:
        accuracy.setdefault(record["method"], []).append(record["target_accuracy"])
    return {"seconds": seconds, "jobs": jobs, "target_accuracy": accuracy, **machine(commit)}


def whole_runs(commit: str, *, before: bool, save: Callable[[list[dict[str, Any]]], None]) -> None:
    """The default on DIGIT: seconds of its training, and accuracies in the target."""
    pair = daband.domains.load("digit")
    default, rows = Variant("default"), []
    run_variant("leave-one-out", replace(default, seeds=(9,)), pair, episodes=6, scores=None)  # loads kernels
    for name, managers, seeds in (
        ("as it is", (), (0,)),
        ("as it is, again", (), (0,)),
        ("as it is", (), (0, 1, 2, 3, 4)),
        ("as it was", BEFORE, (0,)),
        ("as it was", BEFORE, (0, 1, 2, 3, 4)),
    ):
        if managers and not before:
            continue
        with contextlib.ExitStack() as way:
            for manager in managers:
                way.enter_context(manager())
            runs = run_variant("leave-one-out", replace(default, seeds=seeds), pair, episodes=300, scores=None)
        row = {
            "variant": name,
            "runs": len(seeds),
            "seconds": sum(run["seconds"] for run in runs),
            "target_accuracy": [run["target_accuracy"] for run in runs],
            "source_regret": [run["source_regret"] for run in runs],
            "recipe_hash": runs[0]["recipe_hash"],
            **machine(commit),
        }
        rows.append(row)
        print(f"DIGIT, {len(seeds)} x {name}: {row['seconds']:.1f} s, {row['target_accuracy']}", flush=True)
        save(rows)


def machine(commit: str) -> dict[str, str]:
    """What a record says of where it was made."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {"commit": commit, "device": device, "torch": torch.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default="1,5")
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profiles", type=Path, help="a file to which the longest kernels are appended")
    parser.add_argument("--ways", default="", help="of taking the step, by semicolons; all by default")
    parser.add_argument("--parts", action="store_true", help="also what each part of the recipe costs")
    parser.add_argument("--commit", default="")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--digit", action="store_true", help="also whole runs on DIGIT, as it is")
    parser.add_argument("--before", action="store_true", help="and as it was")
    parser.add_argument("--table", type=int, default=0, help="also the whole table of DIGIT, with so many jobs")
    given = parser.parse_args()
    record: dict[str, Any] = {**machine(given.commit), "steps": given.steps, "rows": [], "digit": []}
    if given.device == "cuda":
        record["peaks"] = peaks.peaks(torch.device("cuda"))
    rows = record["rows"]

    def save(digit: list[dict[str, Any]] | None = None) -> None:
        record["digit"] = digit or record["digit"]
        if given.json:
            given.json.write_text(json.dumps(record, indent=1) + "\n")

    for runs in [int(part) for part in given.runs.split(",") if part]:
        work: list[tuple[str, Mapping[str, Any], tuple[Way, ...]]] = [
            (name, {}, managers) for name, managers in WAYS.items() if not given.ways or name in given.ways.split(";")
        ]
        work += [(name, changes, ()) for name, changes in WITHOUT.items() if given.parts and changes]
        for name, changes, managers in work:
            profiles: list[str] = []
            try:
                with contextlib.ExitStack() as way:
                    for manager in managers:
                        way.enter_context(manager())
                    cost = step_cost(changes, runs=runs, steps=given.steps, device=given.device, profiles=profiles)
            except Exception:
                print(f"{runs} x {name} failed:\n{traceback.format_exc()}", flush=True)
                continue
            rows.append({"variant": name, "runs": runs, **cost})
            print(f"{runs} x {name}: {cost}", flush=True)
            save()
            if given.profiles:
                with given.profiles.open("a") as file:
                    file.write("\n".join([f"== {runs} x {name}", *profiles, ""]))
    if given.digit:
        whole_runs(given.commit, before=given.before, save=save)
    if given.table:
        record["table"] = whole_table(given.table, given.commit)
        print(f"the table: {record['table']}", flush=True)
        save()


if __name__ == "__main__":
    main()
