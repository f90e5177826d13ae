"""How fast policies train, where the time goes, and how much of the machine that is.

    python benchmarks/training.py                          # every encoder on every device there is
    python benchmarks/training.py --device cpu --encoders conv-plain --eager
    python benchmarks/training.py --device cuda --encoders conv-plain,conv-plain,conv --episodes 298  # DIGIT
    python benchmarks/training.py --device cuda --encoders conv-plain,conv --episodes 298 --stacked 5

Numpy, torch and safetensors are enough (torchvision for the encoder ``pretrained``); what
cannot run here is named and left out. Contexts are random images: what they show does not matter for time. The first
two episodes warm up, which rates and shares leave out and the seconds of a run count; the first run of a process loads
what later ones find loaded, so that an encoder may be named twice.
``--eager`` adds the same work the slow way: on a GPU the same steps without the CUDA graph, on the CPU the step as
PyTorch's tutorials write it.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import peaks
import torch
from plain_step import PlainStep

import daband
from daband.errors import DabandError
from daband.neural._neural_linucb import NeuralLinUCB
from daband.neural._recipes import recipe_for
from daband.neural.encoders._encoder import LatentSettings
from daband.neural.learning._settings import EncoderSettings, LearningSettings, Recipe
from daband.neural.learning._step_runners import take_steps
from daband.neural.objectives._objective import Weight
from daband.training._loop import train_stacked
from daband.training._trainer import TrainSettings, source_phase

ENCODERS = ("mlp", "conv-plain", "conv", "pretrained")
ARMS, ROUNDS = 10, 64
WARM_UP = 2


@dataclass(frozen=True)
class Result:
    """One encoder on one device. Rates count what training did; shares are of wall time and add up to one."""

    encoder: str
    device: str
    way: str
    """"as it is", or "eager": without the CUDA graph."""
    seconds: float
    """Of the whole run, all episodes."""
    steps_per_second: float
    rounds_per_second: float
    images_per_second: float
    shares: dict[str, float]
    outside_steps: float
    peak_bytes: int
    flops_per_step: float
    share_of_product: float
    """Of the measured rate of a float32 product (on a GPU with TF32 where convolutions use it)."""
    share_of_copy: float
    """Bytes that the step's operations read and write, a second, of the measured rate of a copy."""
    threads: int


def work_for(encoder: str) -> tuple[Recipe, tuple[int, ...]]:
    """The recipe and the shape of contexts that stand for an encoder: batch 64 + 64, 64 steps an episode."""
    game = {"source_cross_entropy": Weight(1.0), "adversarial": Weight(1.0)}
    dense = LatentSettings(dimension=64, hidden=128)
    if encoder == "conv":
        return recipe_for("default", context_shape=(3, 28, 28)), (3, 28, 28)
    if encoder == "pretrained":
        options: dict[str, Any] = {"backbone": "resnet50", "weights": "random"}
        settings = EncoderSettings(name="pretrained", options=options, latent=dense)
        return Recipe(game, settings, LearningSettings(steps=16, ema_decay=0.0)), (3, 224, 224)
    settings = {
        "mlp": EncoderSettings(name="mlp", options={"widths": (256,)}, latent=dense),
        "conv-plain": EncoderSettings(name="conv", options={"channels": (32, 48), "normalise": False}, latent=dense),
    }[encoder]
    return Recipe(game, settings, LearningSettings(ema_decay=0.0)), (3, 28, 28)


def made_up(shape: tuple[int, ...], rounds: int) -> daband.domains.Pair:
    """Random images in memory with random labels."""
    generator = np.random.default_rng(0)
    n = min(rounds, 4096)
    images = generator.integers(0, 256, (n, *shape), dtype=np.uint8)
    labels = generator.integers(0, ARMS, n)
    few = (images[:64], labels[:64])
    passes = -(-rounds // n)
    return daband.domains.from_arrays(
        source=(images, labels), source_test=None, target=images, target_test=few, n_arms=ARMS, passes=passes
    )


PARTS = ("step", "features", "head", "host")
"""Gradient steps; encoding contexts; choosing, learning and refitting in the head; all the rest."""


class Stopwatch:
    """Measures the wall seconds in the parts of a policy while it is entered; nested parts are not counted twice.

    The parts of a policy wait for the device at their ends, so the seconds are right on a GPU, too.
    """

    def __init__(self, policy: NeuralLinUCB) -> None:
        self._policy = policy
        self._inside: list[str] = []
        self._hooked: list[tuple[object, str]] = []
        self._mark = 0.0
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)

    def __enter__(self) -> Stopwatch:
        for part, holder, method in self._policy.timed_parts():
            setattr(holder, method, self._wrapped(part, getattr(holder, method)))
            self._hooked.append((holder, method))
        self._mark = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._charge()
        while self._hooked:
            delattr(*self._hooked.pop())

    def restart(self) -> None:
        """Discard the seconds measured so far."""
        self._mark = time.perf_counter()
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def _charge(self) -> None:
        """Add the time since the last mark to the part that was running."""
        now = time.perf_counter()
        self.seconds[self._inside[-1] if self._inside else "host"] += now - self._mark
        self._mark = now

    def _wrapped(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            self._charge()
            self._inside.append(part)
            try:
                return call(*arguments, **keywords)
            finally:
                self._charge()
                self._inside.pop()

        return timed


def trained(policy: NeuralLinUCB, pair: daband.domains.Pair, episodes: int) -> tuple[Stopwatch, float]:
    """Train; where the time went that came after the first episodes, and the seconds of all."""
    begun = time.perf_counter()
    with Stopwatch(policy) as watch:

        def mark(record: dict[str, float]) -> None:
            if record["episode"] == WARM_UP:
                peaks.synchronise(policy._device)
                watch.restart()

        daband.train(
            policy, source=pair.source, target=pair.target, episodes=WARM_UP + episodes, episode_length=ROUNDS,
            progress=mark,
        )  # fmt: skip
        peaks.synchronise(policy._device)
    return watch, time.perf_counter() - begun


def measured(encoder: str, device: torch.device, episodes: int, rates: dict[str, float], *, eager: bool) -> Result:
    recipe, shape = work_for(encoder)
    if encoder == "pretrained":
        episodes = max(1, episodes // 10)
    peaks.forget_peak_memory(device)
    policy = NeuralLinUCB(
        context_shape=shape, n_arms=ARMS, recipe=recipe, feedback="one_hot", device=str(device), seed=0
    )
    policy.learner.cuda_graph = not eager
    pair = made_up(shape, (WARM_UP + episodes) * ROUNDS)
    watch, in_all = trained(policy, pair, episodes)
    peak = peaks.peak_memory(device)
    demand = peaks.demand_of(lambda: one_step(policy))
    seconds = watch.seconds
    steps = episodes * recipe.learning.steps
    rate = steps / seconds["step"]
    product = rates.get("product_tf32_flops", rates["product_flops"])
    shares = {part: spent / sum(watch.seconds.values()) for part, spent in watch.seconds.items()}
    return Result(
        encoder=encoder, device=device.type, way="eager" if eager else "as it is", seconds=in_all,
        steps_per_second=rate, rounds_per_second=episodes * ROUNDS / sum(seconds.values()),
        images_per_second=2 * recipe.learning.batch * rate, shares=shares, outside_steps=1 - shares["step"],
        peak_bytes=peak, flops_per_step=demand["flops"], share_of_product=demand["flops"] * rate / product,
        share_of_copy=demand["bytes"] * rate / rates["copy_bytes"],
        threads=torch.get_num_threads() if policy.learner.worth_threads else 1,
    )  # fmt: skip


def stacked_seconds(encoder: str, device: torch.device, episodes: int, runs: int) -> float:
    """Seconds of ``runs`` stacked runs that differ in their seed."""
    recipe, shape = work_for(encoder)
    pair = made_up(shape, (WARM_UP + episodes) * ROUNDS)
    settings: dict[str, Any] = {"context_shape": shape, "n_arms": ARMS, "recipe": recipe, "feedback": "one_hot"}
    policies = [NeuralLinUCB(**settings, device=str(device), seed=seed) for seed in range(runs)]
    begun = time.perf_counter()
    domains: dict[str, Any] = {"source": pair.source, "target": pair.target}
    outcome = train_stacked(
        [
            source_phase(policy, settings=TrainSettings(episodes=WARM_UP + episodes, episode_length=ROUNDS), **domains)
            for policy in policies
        ]
    )
    for run in outcome:
        if isinstance(run, Exception):
            raise run
    peaks.synchronise(device)
    return time.perf_counter() - begun


def one_step(policy: NeuralLinUCB) -> None:
    """An eager step, so that its operations can be counted."""
    policy.learner.cuda_graph = False
    take_steps([policy.learner], 1, [policy.buffers])


def against_plain(repeats: int, steps: int) -> list[dict[str, float]]:
    """Our step of the plain convolutional encoder against PyTorch's own, in turns; ratios of neighbours.

    Once with one thread for both, which shows what layout and optimiser bring, and once each in its own way: the rival
    with the threads that torch takes by itself, ours with those of its rule.
    """
    recipe, shape = work_for("conv-plain")
    policy = daband.DABand(context_shape=shape, n_arms=ARMS, recipe=recipe, feedback="one_hot", device="cpu")
    pair = made_up(shape, 2048)
    rounds = pair.source.rounds(0, 2048, seed=0)
    policy.play(rounds.contexts, rounds.rewards)
    policy.observe_target(rounds.contexts)
    policy.adapt(2)
    buffers = policy.buffers
    rival = PlainStep(
        buffers.rounds[0].contexts[:2048],
        buffers.rounds[0].arms[:2048],
        buffers.rounds[0].rewards[:2048],
        buffers.unlabelled[0].contexts[:2048],
    )
    flops = peaks.demand_of(lambda: one_step(policy))["flops"]
    factor = torch.rand(1024, 1024)
    most = torch.get_num_threads()

    outcome = []
    for ours_threads, rival_threads in ((1, 1), (most, most)):
        # One thread's processor time is its own; of several threads the wall time is what matters.
        clock = time.process_time if rival_threads == 1 else time.perf_counter

        def milliseconds(work: Callable[[], object], times: int, clock: Callable[[], float] = clock) -> float:
            started = clock()
            for _ in range(times):
                work()
            return 1e3 * (clock() - started) / times

        ours, theirs, product = [], [], []
        for repeat in range(repeats + 1):
            torch.set_num_threads(ours_threads)
            taken = milliseconds(lambda: take_steps([policy.learner], steps, [buffers]), 1) / steps
            torch.set_num_threads(rival_threads)
            default = milliseconds(rival, steps)
            torch.set_num_threads(ours_threads)
            multiplied = milliseconds(lambda: factor @ factor, 5)
            if repeat:  # the first warms up
                ours.append(taken)
                theirs.append(default)
                product.append(multiplied)
        torch.set_num_threads(most)
        rate = 2 * 1024**3 / (1e-3 * statistics.median(product))
        outcome.append(
            {
                "threads": ours_threads,
                "threads_default": rival_threads,
                "ms": statistics.median(ours),
                "ms_default": statistics.median(theirs),
                "ratio": statistics.median(t / o for o, t in zip(ours, theirs, strict=True)),
                "share_of_product": flops / (1e-3 * statistics.median(ours)) / rate,
                "share_of_product_default": flops / (1e-3 * statistics.median(theirs)) / rate,
            }
        )
    return outcome


def aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "| " + " | ".join("-" * (width - 1) + ":" for width in widths) + " |")
    return "\n".join(lines)


def results_table(results: list[Result]) -> str:
    titles = "encoder | device | way | s | steps/s | rounds/s | images/s | step | features | head | host"
    rows = [[*titles.split(" | "), "peak memory", "of product", "of copy"]]
    for r in results:
        rows.append(
            [
                r.encoder,
                r.device if r.device == "cuda" else f"{r.device}, {r.threads} thr.",
                r.way,
                f"{r.seconds:.1f}",
                f"{r.steps_per_second:,.1f}",
                f"{r.rounds_per_second:,.0f}",
                f"{r.images_per_second:,.0f}",
                *(f"{r.shares[part]:.1%}" for part in ("step", "features", "head", "host")),
                f"{r.peak_bytes / 1e9:.2f} GB",
                f"{r.share_of_product:.1%}",
                f"{r.share_of_copy:.1%}",
            ]
        )
    return aligned(rows)


def devices(wanted: str) -> list[torch.device]:
    if wanted != "all":
        return [torch.device(wanted)]
    return [torch.device("cuda"), torch.device("cpu")] if torch.cuda.is_available() else [torch.device("cpu")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="all", help="cpu, cuda, or all that there are")
    parser.add_argument("--encoders", help=f"some of {','.join(ENCODERS)}; by default all, on a CPU the small ones")
    parser.add_argument("--episodes", type=int, help="timed episodes; by default 20 on a GPU, 2 on a CPU")
    parser.add_argument("--eager", action="store_true", help="compare with the same work the slow way")
    parser.add_argument("--stacked", type=int, default=0, help="also time so many stacked runs of each encoder")
    parser.add_argument("--repeats", type=int, default=9, help="turns of the comparison on the CPU")
    parser.add_argument("--json", type=Path, help="where every number goes")
    arguments = parser.parse_args()
    facts = peaks.machine()
    document: dict[str, Any] = {"machine": facts, "peaks": {}, "results": [], "left_out": {}}
    print(f"{facts['cpu']}, {facts['cores']} cores; GPU: {facts['gpu']}; torch {facts['torch']}")
    print(f"load averages {facts['load_average']}")
    results: list[Result] = []
    for device in devices(arguments.device):
        rates = document["peaks"][device.type] = peaks.peaks(device)
        print(
            f"{device.type}: " + ", ".join(f"{name} {rate / 1e9:,.0f} G/s" for name, rate in rates.items()), flush=True
        )
        chosen = arguments.encoders.split(",") if arguments.encoders else ENCODERS[: 4 if device.type == "cuda" else 3]
        episodes = arguments.episodes or (20 if device.type == "cuda" else 2)
        for encoder in chosen:
            for eager in (False, True) if arguments.eager and device.type == "cuda" else (False,):
                try:
                    results.append(measured(encoder, device, episodes, rates, eager=eager))
                except DabandError as error:
                    document["left_out"][f"{encoder} on {device.type}"] = str(error)
                    continue
                r = results[-1]
                print(f"  {encoder}, {device.type}, {r.way}: {r.steps_per_second:,.1f} steps/s", flush=True)
        for encoder in dict.fromkeys(chosen) if arguments.stacked else ():
            seconds = stacked_seconds(encoder, device, episodes, arguments.stacked)
            document.setdefault("stacked", {})[f"{encoder} on {device.type}"] = seconds
            print(f"  {encoder}, {device.type}, {arguments.stacked} stacked runs: {seconds:.1f} s", flush=True)
        if arguments.eager and device.type == "cpu":
            document["against_plain"] = against_plain(arguments.repeats, steps=4)
            for row in document["against_plain"]:
                print("  against default PyTorch: " + ", ".join(f"{k} {v:.3g}" for k, v in row.items()), flush=True)
    document["results"] = [asdict(result) for result in results]
    if results:
        print("\n" + results_table(results))
    for what, reason in document["left_out"].items():
        print(f"left out: {what}: {reason}")
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
