"""Count the files and calls of daband on the path of a row, a reward and a gradient step.

    python benchmarks/paths.py --json benchmarks/records/paths.json

A call is a Python function of daband that starts, in any thread; comprehensions do not count. The
record has the numbers of each commit that was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from machine import commit

import daband

PACKAGE = str(Path(daband.__file__).parent)


def count_path(function: Callable[[], Any]) -> dict[str, int]:
    """Return the number of files and calls of daband, and the depth of nested calls."""
    files: set[str] = set()
    counts = {"calls": 0, "depth": 0, "deepest": 0}

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or code.co_name.startswith("<"):
            return
        if event == "call":
            files.add(code.co_filename)
            counts["calls"] += 1
            counts["depth"] += 1
            counts["deepest"] = max(counts["deepest"], counts["depth"])
        elif event == "return":
            counts["depth"] -= 1

    function()  # imports and caches
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {"files": len(files), "calls": counts["calls"], "depth": counts["deepest"]}


def make_log(n: int) -> Any:
    """Return a pair from a log of n rounds with two arms and four columns."""
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(n, 4))
    arms = rng.integers(0, 2, n)
    rewards = contexts[:, 0] * (2 * arms - 1) + rng.normal(size=n)
    log = (contexts, arms, rewards, np.full(n, 0.5))
    return daband.domains.from_log(source=log, target=rng.normal(size=(200, 4)), n_arms=2)


def measure(folder: Path) -> dict[str, dict[str, int]]:
    """Return files, calls and depth by path."""
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(64, 8)).astype(np.float32)
    arms = rng.integers(0, 3, 64)
    rewards = rng.random(64)
    settings: dict[str, Any] = {"context_shape": (8,), "n_arms": 3, "seed": 0}
    linucb = daband.LinUCB(**settings)
    mixture = daband.Mixture(**settings)
    neural = daband.DABand(**settings, recipe="paper", device="cpu")
    neural.observe_target(contexts)
    neural.update(contexts, arms, rewards)
    mixture.update(contexts, arms, rewards)
    linucb.update(contexts, arms, rewards)
    exported = folder / "policy.daband"
    daband.export(linucb, exported, domain="source")
    deployed = daband.load_deployed(exported)
    row = contexts[0].tolist()
    pair = make_log(600)

    def fit_log_policy() -> None:
        policy = daband.LogPolicy.for_pair(pair, seed=0)
        daband.train(policy, source=pair.source)
        policy.select(np.zeros((1, 4)))

    paths: dict[str, Callable[[], Any]] = {
        "LinUCB.update": lambda: linucb.update(contexts, arms, rewards),
        "Mixture.update": lambda: mixture.update(contexts, arms, rewards),
        "DABand.adapt(steps=1)": lambda: neural.adapt(steps=1),
        "LogPolicy fit": fit_log_policy,
        "choose, 600 logged rows": lambda: daband.choose(pair, seed=0),
        "export": lambda: daband.export(linucb, exported, domain="source"),
        "deployed.decide": lambda: deployed.decide(row),
    }
    return {name: count_path(function) for name, function in paths.items()}


def main() -> None:
    """Measure all paths and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        paths = measure(Path(folder))
    for name, counts in paths.items():
        numbers = f"{counts['files']:4} files {counts['calls']:6} calls {counts['depth']:3} deep"
        print(f"{name:24} {numbers}")
    if arguments.json:
        record = json.loads(arguments.json.read_text()) if arguments.json.exists() else []
        record.append({"commit": commit(), "paths": paths})
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
