"""What a gradient step of the default for images costs, part by part and in other precisions, for one run and stacked.

    python benchmarks/step_variants.py --runs 1,5 --steps 512 --json step-variants.json

Every variant takes the same steps on made-up images of DIGIT's shape: milliseconds a step, the kernels that a step
launches, and the seconds that the 19,200 steps of a run would take. A part that is left out shows what it costs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import daband
from daband.learning.gradient_step import GradientStep
from daband.learning.stepper import take_steps

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
def cudnn_benchmark() -> Iterator[None]:
    """Let cuDNN time its kernels and take the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextlib.contextmanager
def autocast(dtype: torch.dtype) -> Iterator[None]:
    """Every step's products and convolutions in another type."""
    losses = GradientStep._losses

    def cast(self: GradientStep, *arguments: Any) -> Any:
        with torch.autocast(self.stack.device.type, dtype=dtype, cache_enabled=False):
            return losses(self, *arguments)

    GradientStep._losses = cast  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        GradientStep._losses = losses  # type: ignore[method-assign]


@contextlib.contextmanager
def _both(*managers: contextlib.AbstractContextManager[None]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        yield


PRECISIONS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "cuDNN chooses by timing": cudnn_benchmark,
    "bfloat16": lambda: autocast(torch.bfloat16),
    "bfloat16, cuDNN chooses by timing": lambda: _both(cudnn_benchmark(), autocast(torch.bfloat16)),
}


def step_cost(changes: Mapping[str, Any], *, runs: int, steps: int, device: str) -> dict[str, float]:
    """Milliseconds and kernels of a step, with every term at work."""
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
    take_steps(learners, 64, buffers)  # warm up, and record the graph

    def elapsed() -> float:
        start = time.perf_counter()
        take_steps(learners, steps, buffers)  # reads the device at its end
        return time.perf_counter() - start

    seconds = min(elapsed() for _ in range(3))
    kernels = 0
    if device == "cuda":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            take_steps(learners, 64, buffers)
        kernels = sum(event.count for event in profile.key_averages())
    return {"milliseconds": 1e3 * seconds / steps, "kernels": kernels / 64, "run_seconds": seconds / steps * FULL_RUN}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default="1,5")
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    rows = []
    for runs in map(int, given.runs.split(",")):
        work = [(name, changes, contextlib.nullcontext) for name, changes in WITHOUT.items()]
        work += [(name, {}, manager) for name, manager in PRECISIONS.items()]  # type: ignore[misc]
        for name, changes, manager in work:
            try:
                with manager():
                    cost = step_cost(changes, runs=runs, steps=given.steps, device=given.device)
            except RuntimeError as error:
                print(f"{name}, {runs} runs: {error}", flush=True)
                continue
            rows.append({"variant": name, "runs": runs, **cost})
            print(f"{runs} x {name}: {cost}", flush=True)
            if given.json:
                given.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
