"""LinUCB on raw images: contexts of 150,528 dimensions, learned in the dual form. How long, and how much memory?

    python benchmarks/dual.py --json dual.json                         19,200 rounds, the paper's VisDA17 budget
    python benchmarks/dual.py --rounds 1280 --evaluate 256             a small one first

In the space of contexts each arm would need a matrix of 150,528 x 150,528: 181 GB. In the space of rounds it needs the
products between contexts, and the contexts themselves, which stay uint8. Contexts are generated episode by episode from
the seed: a smooth template per class, a smooth augmentation and pixel noise per image, so that there is something to
learn; the target has other contrast and brightness. Set OMP_NUM_THREADS for fewer threads than cores.
"""

import argparse
import json
import math
import os
import platform
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import daband

COARSE = 8


class Images:
    """Generated images of `n_classes` classes; episode number and seed decide every pixel."""

    def __init__(self, shape: tuple[int, int, int], n_classes: int, seed: int) -> None:
        self.shape = shape
        self.n_classes = n_classes
        self.seed = seed
        self.templates = np.random.default_rng(seed).normal(size=(n_classes, shape[0], COARSE, COARSE))

    def draw(self, count: int, episode: int, target: bool = False) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Images (count, *shape) and their classes (count,)."""
        draw = np.random.default_rng((self.seed, episode, int(target)))
        classes = draw.integers(self.n_classes, size=count)
        smooth = self.templates[classes] + 1.5 * draw.normal(size=(count, *self.templates.shape[1:]))
        level = np.clip((120 if target else 96) + (14 if target else 20) * smooth, 0, 191).astype(np.uint8)
        rows = np.arange(self.shape[1]) * COARSE // self.shape[1]
        columns = np.arange(self.shape[2]) * COARSE // self.shape[2]
        images = draw.integers(0, 64, size=(count, *self.shape), dtype=np.uint8)
        images += level[:, :, rows][:, :, :, columns]  # at most 191 + 63: no pixel wraps around
        return images, classes


def peak_memory() -> float:
    """The largest resident set of this process so far, in GB."""
    units = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * units / 1e9


def main() -> int:
    """Train, evaluate, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=19_200)
    parser.add_argument("--episode", type=int, default=64, help="rounds played in one go")
    parser.add_argument("--shape", default="3,224,224", help="channels, height, width")
    parser.add_argument("--arms", type=int, default=12)
    parser.add_argument("--alpha", type=float, default=0.05)
    parser.add_argument("--evaluate", type=int, default=2_000, help="target contexts to score at the end")
    parser.add_argument("--batch", type=int, default=200, help="contexts scored in one go")
    parser.add_argument("--report-every", type=int, default=10, help="episodes between lines of progress")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where every number goes")
    arguments = parser.parse_args()

    channels, height, width = (int(part) for part in arguments.shape.split(","))
    shape = (channels, height, width)
    images = Images(shape, arguments.arms, arguments.seed)
    policy = daband.LinUCB(context_shape=shape, n_arms=arguments.arms, alpha=arguments.alpha, seed=arguments.seed)
    payoff = np.eye(arguments.arms)
    print(f"{math.prod(shape):,} dimensions, {arguments.arms} arms, {arguments.rounds:,} rounds", flush=True)
    progress: list[dict[str, float]] = []
    started = time.perf_counter()
    generating = playing = 0.0
    done, rewards, reported_at, played_since = 0, [], 0, 0.0
    for episode in range(math.ceil(arguments.rounds / arguments.episode)):
        clock = time.perf_counter()
        contexts, classes = images.draw(min(arguments.episode, arguments.rounds - done), episode)
        drawn = time.perf_counter()
        played = policy.play(contexts, payoff[classes])
        ended = time.perf_counter()
        generating += drawn - clock
        playing += ended - drawn
        played_since += ended - drawn
        done += len(classes)
        rewards.append(float(played.reward.mean()))
        if (episode + 1) % arguments.report_every == 0 or done == arguments.rounds:
            line = {
                "rounds": done,
                "rounds_per_second": (done - reported_at) / played_since,
                "reward": float(np.mean(rewards[-arguments.report_every :])),
                "peak_gb": peak_memory(),
                "seconds": ended - started,
            }
            progress.append(line)
            reported_at, played_since = done, 0.0
            print(
                f"{done:>7,} rounds  {line['rounds_per_second']:>7,.1f} rounds/s  reward {line['reward']:.3f}  "
                f"peak {line['peak_gb']:.2f} GB  {line['seconds']:,.0f} s",
                flush=True,
            )

    right, scored = 0, 0
    clock = time.perf_counter()
    while scored < arguments.evaluate:
        count = min(arguments.batch, arguments.evaluate - scored)
        contexts, classes = images.draw(count, scored, target=True)
        right += int((policy.decide(contexts, domain="target").arm == classes).sum())
        scored += count
    evaluating = time.perf_counter() - clock
    result: dict[str, Any] = {
        "rounds": done, "dimensions": math.prod(shape), "arms": arguments.arms, "episode": arguments.episode,
        "evaluated": scored, "wall_seconds": time.perf_counter() - started, "play_seconds": playing,
        "generate_seconds": generating, "evaluate_seconds": evaluating, "peak_gb": peak_memory(),
        "mean_reward": float(np.mean(rewards)), "target_accuracy": right / scored if scored else None,
        "cores": os.cpu_count(), "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "python": platform.python_version(), "numpy": np.__version__,
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result | {"progress": progress}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
