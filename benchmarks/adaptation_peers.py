"""Gradient steps of domain-adversarial training, a second: daband beside libraries for domain adaptation.

    pip install --no-deps skada skorch pytorch-adapt pytorch-metric-learning; pip install POT tabulate tqdm torchmetrics
    python benchmarks/adaptation_peers.py --device cpu --steps 16 --repeats 5 --json adaptation-peers.json

The same network (5x5 3-32, pool, 5x5 32-48, pool, dense 768-128-64, ten classes; discriminator 768-100-128-1), the
same loss (cross-entropy of source labels and a reversed discriminator on the pooled maps), batches of 64 + 64 images in
memory and Adam for everybody, each driven as its documentation does. Players take turns; a rate is the median of the
repeats, a ratio that of neighbours. daband's step does more: it measures, and skips what is not finite. A library that
is not installed is named and left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import peaks
import torch
from plain_step import PlainStep
from torch import nn

from daband.neural._neural_linucb import NeuralLinUCB
from daband.neural.learning._step_runners import take_steps
from training import ARMS, work_for

BATCH, IMAGES = 64, 2048
Player = Callable[[int], object]
"""Takes so many gradient steps."""


def maps() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 48, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    )


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(768, 128), nn.ReLU(), nn.Linear(128, 64), nn.Linear(64, ARMS))


def discriminator() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(768, 100), nn.ReLU(), nn.Linear(100, 128), nn.ReLU(), nn.Linear(128, 1), nn.Flatten(0)
    )


class Data:
    """Images of two domains as bytes, and labels of the first."""

    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        self.source = draw.integers(0, 256, (IMAGES, 3, 28, 28), dtype=np.uint8)
        self.target = 255 - self.source
        self.labels = draw.integers(0, ARMS, IMAGES)


def ours(data: Data, device: str) -> Player:
    recipe, shape = work_for("conv-plain")
    policy = NeuralLinUCB(
        context_shape=shape, n_arms=ARMS, recipe=recipe, feedback="one_hot", device=device, seed=0, shift="style"
    )
    policy.play(data.source, np.eye(ARMS)[data.labels])
    policy.observe_target(data.target)
    policy.before_steps(1)
    return lambda steps: take_steps([policy.learner], steps, [policy.buffers])


def plain(data: Data, device: str, *, compile_loss: bool = False) -> Player:
    arms = torch.from_numpy(data.labels).to(device)
    rewards = torch.ones(IMAGES, device=device)
    step = PlainStep(torch.from_numpy(data.source).to(device), arms, rewards, torch.from_numpy(data.target).to(device))
    if compile_loss:
        step.loss = torch.compile(step.loss)  # type: ignore[method-assign]

    def take(steps: int) -> None:
        for _ in range(steps):
            step()
        peaks.synchronise(torch.device(device))

    return take


def skada(data: Data, device: str) -> Player:
    from skada.deep import DANN

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maps, self.dense = maps(), dense()

        def forward(self, X: torch.Tensor, sample_weight: Any = None) -> Any:  # noqa: ARG002 - skorch's names
            return self.dense(self.maps(X))

    judge = nn.Sequential(*list(discriminator())[:-1], nn.Sigmoid(), nn.Flatten(0))
    contexts = np.concatenate([data.source, data.target]).astype(np.float32) / 255
    labels = np.concatenate([data.labels, np.full(IMAGES, -1)])
    domains = np.concatenate([np.ones(IMAGES), np.full(IMAGES, -2)]).astype(int)

    def take(steps: int) -> None:
        rows = np.r_[: BATCH * steps] % IMAGES  # one epoch of so many batches of either domain
        rows = np.concatenate([rows, IMAGES + rows])
        net = DANN(
            Network(), layer_name="maps", domain_classifier=judge, batch_size=2 * BATCH, max_epochs=1, lr=1e-3,
            optimizer=torch.optim.Adam, train_split=None, device=device, verbose=0, iterator_train__drop_last=True,
        )  # fmt: skip
        net.fit(contexts[rows], labels[rows], sample_domain=domains[rows])
        peaks.synchronise(torch.device(device))

    return take


def pytorch_adapt(data: Data, device: str) -> Player:
    from pytorch_adapt.adapters import DANN
    from pytorch_adapt.containers import Models, Optimizers

    models = Models({"G": maps().to(device), "C": dense().to(device), "D": discriminator().to(device)})
    adapter = DANN(models=models, optimizers=Optimizers((torch.optim.Adam, {"lr": 1e-3})))
    source, target = (torch.from_numpy(images).to(device) for images in (data.source, data.target))
    labels = torch.from_numpy(data.labels).to(device)
    zeros, ones = torch.zeros(BATCH, device=device), torch.ones(BATCH, device=device)

    def take(steps: int) -> None:
        for _ in range(steps):
            rows, seen = torch.randint(IMAGES, (2, BATCH), device=device)
            adapter.training_step(
                {
                    "src_imgs": source[rows].float() / 255,
                    "target_imgs": target[seen].float() / 255,
                    "src_labels": labels[rows],
                    "src_domain": zeros,
                    "target_domain": ones,
                }
            )
        peaks.synchronise(torch.device(device))

    return take


PLAYERS: dict[str, tuple[Callable[[Data, str], Player], str]] = {
    "daband": (ours, ""),
    "PyTorch as tutorials write it": (plain, "torch"),
    "the same, torch.compile": (partial(plain, compile_loss=True), "torch"),
    "skada.deep": (skada, "skada"),
    "pytorch-adapt": (pytorch_adapt, "pytorch-adapt"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU, for everybody")
    parser.add_argument("--commit", default="")
    parser.add_argument("--json", type=Path, help="a record to which this run is added")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    data = Data()
    players: dict[str, Player] = {}
    for name, (make, _) in PLAYERS.items():
        try:
            player = make(data, given.device)
            player(2)  # compiles, records, allocates
            player(given.steps)
        except (ImportError, RuntimeError) as error:
            print(f"{name} is left out: {error}", flush=True)
        else:
            players[name] = player
    # One thread's processor time is its own, whoever else uses the machine.
    clock = time.process_time if given.device == "cpu" and given.threads == 1 else time.perf_counter
    rates: dict[str, list[float]] = {name: [] for name in players}
    for _ in range(given.repeats):
        for name, player in players.items():
            started = clock()
            player(given.steps)
            rates[name].append(given.steps / (clock() - started))
    commit = given.commit or subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()
    rows = []
    for name, own in rates.items():
        ratio = statistics.median(mine / theirs for mine, theirs in zip(rates["daband"], own, strict=True))
        package = PLAYERS[name][1]
        version = metadata.version(package) if package else ""
        rows.append({"player": name, "version": version, "steps_per_second": statistics.median(own), "ratio": ratio})
        print(
            f"{name:<32} {version:<10} {rows[-1]['steps_per_second']:9.1f} steps/s, daband {ratio:5.2f} times",
            flush=True,
        )
    facts = {**peaks.machine(), "device": given.device, "commit": commit, "threads": given.threads}
    record = {**facts, "batch": f"{BATCH} + {BATCH}", "steps": given.steps, "repeats": given.repeats, "rows": rows}
    if given.json is not None:
        earlier = json.loads(given.json.read_text()) if given.json.is_file() else []
        others = [one for one in earlier if one["device"] != given.device]
        given.json.write_text(json.dumps([*others, record], indent=1) + "\n")


if __name__ == "__main__":
    main()
