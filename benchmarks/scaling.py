"""How time and memory grow with rounds.

    python benchmarks/scaling.py growth --json growth.json     # 40,000 rounds: the exponent of time over rounds
    python benchmarks/scaling.py memory --json memory.json     # 1,000,000 rounds of 784 bytes: the peak

``growth`` plays one long run a policy, refits and saves into a folder included, and fits the exponent of seconds over
rounds from 2,000 rounds on: a shorter run does just what the first part of a longer one does. Seconds are processor
seconds on one thread, which a busy neighbour does not change. 1 is linear.

``memory`` plays DABand on bytes, with the contexts of source and target in memory, and reports the peak of the process.
"""

import one_thread  # noqa: F401 - before numpy

# isort: split

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peaks

import daband
from daband.encoders import LatentSettings
from daband.learning.settings import EncoderSettings, LearningSettings, Recipe
from daband.objectives import Weight

ROUNDS = (2_000, 4_000, 8_000, 16_000, 24_000, 32_000, 40_000)


def pictures(n: int, shape: tuple[int, ...], n_arms: int = 10) -> tuple[Any, Any]:
    """Noisy bytes around a mean for each class: something to learn, at no cost."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, n_arms, n)
    means = generator.integers(0, 192, (n_arms, *shape)).astype(np.uint8)
    contexts = generator.integers(0, 64, (n, *shape), dtype=np.uint8)
    for start in range(0, n, 65536):
        contexts[start : start + 65536] += means[labels[start : start + 65536]]
    return contexts, labels


def pair_of(n: int, shape: tuple[int, ...]) -> daband.domains.Pair:
    contexts, labels = pictures(n, shape)
    few = (contexts[:1000], labels[:1000])
    return daband.domains.from_arrays(
        source=(contexts, labels), source_test=None, target=contexts, target_test=few, n_arms=10
    )


def small(objective: dict[str, Weight], steps: int) -> Recipe:
    encoder = EncoderSettings(name="mlp", options={"widths": (64,)}, latent=LatentSettings(dimension=32, hidden=64))
    return Recipe(objective, encoder, LearningSettings(steps=steps, batch=32, ema_decay=0.98))


SOURCE = {"source_cross_entropy": Weight(1.0)}
BOTH = {**SOURCE, "adversarial": Weight(0.3, shape="sigmoid", steps=1500)}
POLICIES: dict[str, tuple[tuple[int, ...], Callable[..., daband.policies.Policy]]] = {
    "LinUCB": ((64,), daband.LinUCB),
    "NeuralLinUCB, mlp": ((784,), lambda **sizes: daband.NeuralLinUCB(recipe=small(SOURCE, 16), device="cpu", **sizes)),
    "DABand, mlp": ((784,), lambda **sizes: daband.DABand(recipe=small(BOTH, 16), device="cpu", **sizes)),
    "DABand, small conv": ((1, 28, 28), lambda **sizes: daband.DABand(recipe="small", device="cpu", **sizes)),
}


def growth(name: str, rounds: int) -> dict[str, Any]:
    """Processor seconds after so many rounds, and the fitted exponent."""
    shape, make = POLICIES[name]
    pair = pair_of(rounds, shape)
    make(context_shape=shape, n_arms=10).play(*_some(pair))  # kernels are compiled and loaded outside the clock
    policy = make(context_shape=shape, n_arms=10)
    seconds: list[float] = []
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = daband.train(
            policy,
            source=pair.source,
            target=pair.target,
            episodes=rounds // 64,
            directory=folder,
            save_every=5.0,
            progress=lambda _: seconds.append(time.process_time() - started),
        )
    points = [(at, seconds[at // 64 - 1]) for at in ROUNDS if at <= rounds]
    return {
        "policy": name,
        "seconds": dict(points),
        "exponent": exponent(points),
        "regret": run.total_regret,
    }


def _some(pair: daband.domains.Pair) -> tuple[Any, Any]:
    few = pair.source.rounds(0, 64, seed=0)
    return few.contexts, few.rewards


def exponent(points: list[tuple[int, float]]) -> float:
    """The slope of log seconds over log rounds, by least squares."""
    if len(points) < 2:
        return math.nan
    logs = np.log(np.array(points, float))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def memory(rounds: int) -> dict[str, Any]:
    """The peak of a long run, with the memory that its data takes beside it."""
    import torch

    cpu = torch.device("cpu")
    pair = pair_of(rounds, (1, 28, 28))
    peaks.forget_peak_memory(cpu)
    before = peaks.peak_memory(cpu)
    policy = daband.DABand(context_shape=(1, 28, 28), n_arms=10, recipe=small(BOTH, 2), device="cpu")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = daband.train(
            policy,
            source=pair.source,
            target=pair.target,
            episodes=rounds // 64,
            directory=folder,
            progress=lambda record: _show(record, started, cpu),
        )
    return {
        "rounds": run.rounds,
        "contexts_bytes": rounds * 784,
        "bytes_before_training": before,
        "peak_bytes": peaks.peak_memory(cpu),
        "seconds": time.perf_counter() - started,
        "regret": run.total_regret,
    }


def _show(record: dict[str, float], started: float, device: Any) -> None:
    if record["episode"] % 1000 == 0:
        taken = time.perf_counter() - started
        peak = peaks.peak_memory(device) / 1e9
        print(f"  {64 * record['episode']:>9,} rounds, {taken:6.0f} s, peak {peak:.2f} GB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("growth", "memory"))
    parser.add_argument("--rounds", type=int, help="40,000 for growth, 1,000,000 for memory")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    document: dict[str, Any] = {"machine": peaks.machine(), "what": arguments.what}
    if arguments.what == "memory":
        document["result"] = memory(arguments.rounds or 1_000_000)
        print({key: f"{value:,.0f}" for key, value in document["result"].items()})
    else:
        document["results"] = []
        for name in arguments.policies:
            document["results"].append(growth(name, arguments.rounds or ROUNDS[-1]))
            result = document["results"][-1]
            times = ", ".join(f"{at:,}: {taken:.1f} s" for at, taken in result["seconds"].items())
            print(f"{name}: exponent {result['exponent']:.3f} ({times})", flush=True)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
