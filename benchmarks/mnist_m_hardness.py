"""Are the MNIST-M made here and the released one equally hard?

Trains a small convolutional classifier on MNIST, with every label, and measures it on each MNIST-M:

    python benchmarks/mnist_m_hardness.py

It needs MNIST, the released MNIST-M and BSDS500 in the data directory (`daband data check digit`).
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import nn

from daband.arrays import AnyArray
from daband.domains import Pair, load


def classifier() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 48, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(768, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


def scaled(images: AnyArray) -> torch.Tensor:
    return torch.from_numpy(images.astype(np.float32) / 255.0)


def train(pair: Pair, *, seed: int, steps: int, batch: int = 128) -> nn.Module:
    torch.manual_seed(seed)
    network = classifier()
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    source = pair.source
    for step in range(steps):
        rounds = source.rounds(step * batch, (step + 1) * batch, seed=seed)
        loss = nn.functional.cross_entropy(network(scaled(rounds.contexts)), torch.from_numpy(rounds.rewards).float())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return network.eval()


@torch.no_grad()
def accuracy(network: nn.Module, pair: Pair) -> float:
    right = 0
    for contexts, expected in pair.require_target_test().batches(1000):
        right += int((network(scaled(contexts)).argmax(dim=1).numpy() == expected.argmax(axis=1)).sum())
    return right / len(pair.require_target_test())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=1, help="times the 60,000 digits are shown")
    arguments = parser.parse_args()
    forms = {form: load("digit", form=form, passes=arguments.passes) for form in ("released", "built", "embedded")}
    steps = arguments.passes * len(forms["built"].source) // 128
    found: dict[str, list[float]] = {form: [] for form in forms}
    for seed in range(arguments.seeds):
        begun = time.perf_counter()
        network = train(forms["built"], seed=seed, steps=steps)
        for form, pair in forms.items():
            found[form].append(accuracy(network, pair))
        row = "  ".join(f"{form} {values[-1]:.3f}" for form, values in found.items())
        print(f"seed {seed}: {row}  ({time.perf_counter() - begun:.0f} s)", flush=True)
    for form, values in found.items():
        print(f"{form:<9} {100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=min(1, len(values) - 1)):.1f}")


if __name__ == "__main__":
    main()
