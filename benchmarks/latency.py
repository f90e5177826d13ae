"""Measure the time of one decision of a deployed policy, compared with the bare arithmetic of the
same sizes.

    python benchmarks/latency.py --json benchmarks/records/latency.json --commit $(git rev-parse --short HEAD)

Decisions are made in one thread, one row at a time, after the file was loaded. The deployed policy,
the policy that was exported and the bare arithmetic take turns of 25 calls, so that other load on
the machine affects all of them. A value is the median over all calls, in microseconds of the
thread's CPU time. Bare arithmetic is numpy for heads and dense layers, and torch for convolutions
with norms folded in, without any checks. Loading is measured in separate processes, after numpy was
imported.
"""

import one_thread

# isort: split
import argparse
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import daband
from daband.features._table_transform import CategoricalColumn, NumericColumn, TableTransform
from daband.serving._deployed_policy import DeployedPolicy

DIMENSIONS = 32
ARMS = 10
ALPHA = 0.15
ROUNDS = 400
TURN_CALLS = 25
"""Number of calls in a turn. As in production, most calls find their data in the caches."""
IMAGE = (3, 28, 28)
GOALS = {
    "linucb, array": ("us", 150.0),
    "linucb, dict": ("us", 150.0),
    "linucb, dict with categories": ("us", 150.0),
    "linucb with Standardise, dict": ("us", 150.0),
    "daband, dict": ("us", 150.0),
    "daband, array": ("us", 150.0),
    "daband, small image": ("us", 600.0),
}
"""The goal of a case, in microseconds or as a ratio to the bare arithmetic."""


@dataclass(frozen=True)
class Case:
    """One measurement, which compares three ways to make the same decision."""

    name: str
    deployed: Callable[[], Any]
    policy: Callable[[], Any]
    bare: Callable[[], Any]


@dataclass(frozen=True)
class Measured:
    """Medians in microseconds, and whether the goal is met."""

    case: str
    deployed_us: float
    fastest_us: float
    """The fastest call of the deployed policy, which other load on the machine affects least."""
    policy_us: float
    bare_us: float
    ratio: float
    goal: str
    met: bool | None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="where the record goes", required=True)
    parser.add_argument("--commit", default="", help="the commit that is measured")
    parser.add_argument("--calls", type=int, default=2000, help="calls of each kind")
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    args = parser.parse_args()
    torch.set_num_threads(1)
    calls = 20 if args.quick else args.calls
    with tempfile.TemporaryDirectory() as folder:
        measured = [measure(case, calls) for case in cases(Path(folder))]
        loading = [] if args.quick else measure_loading(Path(folder))
    for one in measured:
        met = "" if one.met is None else "met" if one.met else "MISSED"
        print(
            f"{one.case:32} {one.deployed_us:8.1f} us  bare {one.bare_us:8.1f}  x {one.ratio:4.2f}"
            f"  policy.select {one.policy_us:8.1f}  {one.goal} {met}"
        )
    for row in loading:
        print(row)
    record = {
        "command": "python benchmarks/latency.py --json benchmarks/records/latency.json",
        "commit": args.commit,
        "machine": machine(),
        "calls": calls,
        "dimensions": DIMENSIONS,
        "arms": ARMS,
        "image": list(IMAGE),
        "cases": [asdict(one) for one in measured],
        "loading": loading,
    }
    args.json.write_text(json.dumps(record, indent=1) + "\n")


def cases(folder: Path) -> list[Case]:
    """Return all measurements. Policies are exported to the folder."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(ROUNDS, DIMENSIONS))
    arms = rng.integers(0, ARMS, ROUNDS)
    rewards = rng.random(ROUNDS)
    numeric = [NumericColumn(f"c{at}", 0.0, 0.1, 1.1, False) for at in range(DIMENSIONS)]
    mixed: list[NumericColumn | CategoricalColumn] = [
        *numeric[:20],
        *(CategoricalColumn(f"k{at}", ("a", "b", "c")) for at in range(4)),
    ]
    row = {f"c{at}": float(value) for at, value in enumerate(rows[0])}
    categories: dict[str, Any] = {
        **{f"c{at}": row[f"c{at}"] for at in range(20)},
        **{f"k{at}": "b" for at in range(4)},
    }
    found = []
    for name, table, given, transform in (
        ("linucb, array", None, rows[0], None),
        ("linucb, dict", TableTransform(tuple(numeric)), row, None),
        ("linucb, dict with categories", TableTransform(tuple(mixed)), categories, None),
        (
            "linucb with Standardise, dict",
            TableTransform(tuple(numeric)),
            row,
            daband.Standardise(),
        ),
    ):
        policy = daband.LinUCB(
            context_shape=(DIMENSIONS,), n_arms=ARMS, seed=0, transform=transform
        )
        policy.prepare(rows)
        policy.update(rows, arms, rewards)
        deployed = deploy(policy, folder / f"{name}.daband", rows, table)
        found.append(
            Case(
                name,
                decider(deployed, given),
                selecter(policy, table, given),
                bare_linear(policy, given),
            )
        )
    network = daband.DABand(
        context_shape=(DIMENSIONS,), n_arms=ARMS, seed=0, transform=daband.Standardise()
    )
    network.prepare(rows)
    for part in np.array_split(np.arange(ROUNDS), 8):
        network.update(rows[part], arms[part], rewards[part])
    network.observe_target(rows)
    network.adapt()
    table = TableTransform(tuple(numeric))
    deployed = deploy(network, folder / "daband.daband", rows, table)
    bare = bare_dense(deployed, rows[0])
    for name, given in (("daband, dict", row), ("daband, array", rows[0])):
        found.append(Case(name, decider(deployed, given), selecter(network, table, given), bare))
    images = rng.integers(0, 256, (64, *IMAGE), np.uint8)
    conv = daband.DABand(context_shape=IMAGE, n_arms=ARMS, seed=0)
    conv.update(images, arms[:64], rewards[:64])
    deployed = deploy(conv, folder / "images.daband", images, None)
    bare = bare_conv(conv, images[0])
    found.append(
        Case(
            "daband, small image",
            decider(deployed, images[0]),
            selecter(conv, None, images[0]),
            bare,
        )
    )
    content = png(images[0])
    found.append(
        Case(
            "daband, small PNG file",
            decider(deployed, content),
            selecter(conv, None, images[0]),
            bare,
        )
    )
    return found


def deploy(policy: Any, path: Path, contexts: Any, table: TableTransform | None) -> DeployedPolicy:
    """Export a policy to a file, and return the deployed policy."""
    policy.deploy("target")
    policy.table = table
    daband.export(policy, path, reference=contexts)
    return daband.load_deployed(path)


def decider(deployed: DeployedPolicy, row: Any) -> Callable[[], Any]:
    return lambda: deployed.decide(row)


def selecter(policy: Any, table: TableTransform | None, row: Any) -> Callable[[], Any]:
    """Return a function that selects an arm by the policy.

    The row is converted to an array before the measurement.
    """
    context = table.contexts(row) if table is not None and isinstance(row, dict) else row[None]
    return lambda: policy.select(context)


def bare_linear(policy: Any, row: Any) -> Callable[[], int]:
    """Return a function with the arithmetic of a linear head, and for a dict also of its conversion
    to an array.
    """
    statistics = policy._head.statistics
    theta = statistics.theta[:, 0, :DIMENSIONS].copy()
    inverse = statistics.A_inv[:, :DIMENSIONS, :DIMENSIONS].copy()
    mean = np.full(DIMENSIONS, 0.1)
    deviation = np.full(DIMENSIONS, 1.1)

    def choose_arm(z: Any) -> int:
        width = np.sqrt((inverse @ z) @ z)
        return int((theta @ z + ALPHA * width).argmax())

    if not isinstance(row, dict):
        return lambda: choose_arm(row)
    numbers = {name: value if isinstance(value, float) else 1.0 for name, value in row.items()}
    padding = [0.0] * (DIMENSIONS - len(numbers))
    return lambda: choose_arm((np.array([*numbers.values(), *padding]) - mean) / deviation)


def bare_dense(deployed: DeployedPolicy, row: Any) -> Callable[[], int]:
    """Return a function with the arithmetic of dense layers and the head, in numpy."""
    predictor: Any = deployed.frozen.predictor
    layers = predictor.steps[-1].transform.layers
    mean = np.full(DIMENSIONS, 0.1)
    deviation = np.full(DIMENSIONS, 1.1)

    def run() -> int:
        hidden = np.append((row - mean) / deviation, 1.0).astype(np.float32)
        for weight, bias in layers[:-1]:
            hidden = np.maximum(hidden @ weight + bias, 0.0)
        weight, bias = layers[-1]
        latent = (hidden @ weight + bias).astype(np.float64)
        z = latent / np.sqrt(latent @ latent)
        return int((predictor.theta @ z + ALPHA * np.sqrt((predictor.inverse @ z) @ z)).argmax())

    return run


def bare_conv(policy: Any, image: Any) -> Callable[[], int]:
    """Return a function with convolutions (norms folded in) and dense layers in torch, and the head
    in numpy.
    """
    encoder = policy._encoder.network
    folded = []
    for layer, norm in zip(encoder.features.layers, encoder.features.norms, strict=True):
        scale, shift = norm.compute_affine(1)
        folded.append((layer.weight * scale.view(-1, 1, 1, 1), shift))
    statistics = policy._head.statistics

    def run() -> int:
        with torch.inference_mode():
            maps = torch.from_numpy(image)[None] / 255.0
            for weight, shift in folded:
                maps = functional.relu(
                    functional.max_pool2d(functional.conv2d(maps, weight, shift), 2)
                )
            latent = encoder.second(functional.relu(encoder.first(maps.flatten(1))))
            z = functional.normalize(latent)[0].double().numpy()
        width = np.sqrt((statistics.A_inv @ z) @ z)
        return int((statistics.theta[:, 0] @ z + ALPHA * width).argmax())

    return run


def measure(case: Case, calls: int) -> Measured:
    """Return the medians over this number of calls of each way, made in turns."""
    ways = (case.deployed, case.policy, case.bare)
    for way in ways:
        for _ in range(10):
            way()
    seconds = np.empty((calls, len(ways)))
    for first in range(0, calls, TURN_CALLS):
        for at, way in enumerate(ways):
            for call in range(first, min(first + TURN_CALLS, calls)):
                started = time.thread_time()
                way()
                seconds[call, at] = time.thread_time() - started
    deployed, policy, bare = (1e6 * np.median(seconds, axis=0)).tolist()
    fastest = 1e6 * float(seconds[:, 0].min())
    unit, limit = GOALS.get(case.name, ("", 0.0))
    ratio = deployed / bare
    met = None if not unit else (ratio if unit == "times bare" else deployed) <= limit
    goal = "" if not unit else f"at most {limit:g} {unit}"
    return Measured(case.name, deployed, fastest, policy, bare, ratio, goal, met)


def measure_loading(folder: Path) -> list[dict[str, Any]]:
    """Return the CPU seconds to import daband and to load a file: the best of five separate
    processes.
    """
    script = """
import os, sys, time
import numpy
started = time.process_time()
import daband
imported = time.process_time()
deployed = daband.load_deployed(sys.argv[1])
print(imported - started, time.process_time() - imported, "torch" in sys.modules)
"""
    found = []
    for name, file in (
        ("linucb", "linucb, dict.daband"),
        ("daband", "daband.daband"),
        ("images", "images.daband"),
    ):
        runs = []
        for _ in range(5):
            command = [sys.executable, "-c", script, str(folder / file)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs.append(done.stdout.split())
        best = min(runs, key=lambda run: float(run[0]) + float(run[1]))
        found.append(
            {
                "file": name,
                "import_seconds": float(best[0]),
                "load_seconds": float(best[1]),
                "imports_torch": best[2] == "True",
            }
        )
    return found


def machine() -> dict[str, Any]:
    processor = platform.machine()
    try:
        told = subprocess.run(
            ["lscpu"], capture_output=True, text=True, check=False
        ).stdout.splitlines()
        processor = next(
            line.split(":")[1].strip() for line in told if line.startswith("Model name")
        )
    except (OSError, StopIteration):  # not on Linux
        pass
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": str(torch.__version__),
        "threads": {name: os.environ[name] for name in one_thread.VARIABLES},
        "load": os.getloadavg()[0],
    }


def png(image: Any) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(out, "PNG")
    return out.getvalue()


if __name__ == "__main__":
    main()
