"""NeuralLinUCB against other libraries' neural-linear bandits: rounds a second, and what they earn.

    python benchmarks/neural_peers.py --json neural.json            # --rounds 4096 --seeds 3
    python benchmarks/neural_peers.py --only daband,bare            # without the peers

The problem is not linear: contexts are 10 normal numbers, every arm has a direction, and the arm along whose direction
the context is longest, forwards or backwards, pays 1. Only the pulled arm's reward is told. Everybody has a network
that ends in 64-32 (ours has one more layer of 64), and plays the same rounds, feedback coming in batches of 64 unless
the name says "one by one". One thread; processor seconds; each seed visits all players before the next begins.
"""

from __future__ import annotations

import one_thread  # noqa: F401 - before numpy

# isort: split

import argparse
import importlib.metadata
import importlib.util
import json
import logging
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peaks
import torch
from torch import nn

import daband
from daband.arrays import AnyArray, FloatArray
from daband.encoders import LatentSettings
from daband.learning.settings import EncoderSettings, LearningSettings, Recipe
from daband.objectives import Weight

INPUTS, ARMS, HIDDEN, LATENT, FEEDBACK = 10, 5, 64, 32, 64
FEW = 512
"""Rounds that are enough for a player that takes feedback one by one at a few rounds a second."""


def problem(n: int, seed: int) -> tuple[AnyArray, FloatArray]:
    """Contexts (n, 10) and what each arm pays (n, 5)."""
    directions = np.random.default_rng(1234).normal(size=(INPUTS, ARMS))
    directions /= np.linalg.norm(directions, axis=0)
    contexts = np.random.default_rng(seed).normal(size=(n, INPUTS))
    return contexts.astype(np.float32), np.eye(ARMS)[np.abs(contexts @ directions).argmax(axis=1)]


def neural_linucb(contexts: AnyArray, rewards: FloatArray, seed: int, *, one_by_one: bool = False) -> float:
    """Ours: 16 steps on replayed rounds after every 64, the head fitted anew on a schedule.

    Learning rate, steps and alpha are the best of eight settings tried, as the peer's are.
    """
    recipe = Recipe(
        weights={"source_cross_entropy": Weight(1.0)},
        encoder=EncoderSettings(
            name="mlp", options={"widths": (HIDDEN,)}, latent=LatentSettings(dimension=LATENT, hidden=HIDDEN)
        ),
        learning=LearningSettings(learning_rate=5e-3, steps=16),
        alpha=0.5,
    )
    policy = daband.NeuralLinUCB(context_shape=(INPUTS,), n_arms=ARMS, recipe=recipe, device="cpu", seed=seed)
    earned = 0.0
    for start in range(0, len(contexts), FEEDBACK):
        stop = min(start + FEEDBACK, len(contexts))
        if one_by_one:
            for i in range(start, stop):
                arm = policy.select(contexts[i : i + 1]).arm
                policy.update(contexts[i : i + 1], arm, rewards[i, arm])
                earned += float(rewards[i, arm[0]])
        else:
            earned += float(policy.play(contexts[start:stop], rewards[start:stop]).reward.sum())
        policy.adapt()
    return earned


def calvera(contexts: AnyArray, rewards: FloatArray, seed: int, *, feedback: int = FEEDBACK, **settings: Any) -> float:
    """As calvera's own benchmark drives it: choose, record the feedback, ``Trainer.fit`` for an epoch."""
    import lightning.pytorch as lightning
    from calvera.bandits.neural_linear_bandit import NeuralLinearBandit
    from calvera.utils.data_storage import AllDataRetrievalStrategy, TensorDataBuffer
    from calvera.utils.multiclass import MultiClassContextualizer

    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(INPUTS * ARMS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, LATENT), nn.ReLU())
    buffer: Any = TensorDataBuffer(AllDataRetrievalStrategy())
    bandit: Any = NeuralLinearBandit(network, buffer, LATENT, **settings)
    blocks = MultiClassContextualizer(ARMS)
    pays = torch.from_numpy(rewards).float()
    earned = 0.0
    for start in range(0, len(contexts), feedback):
        actions = blocks(torch.from_numpy(contexts[start : start + feedback]))
        with torch.no_grad():
            chosen, _ = bandit(actions)
        paid = (pays[start : start + feedback] * chosen).sum(dim=1, keepdim=True)
        earned += float(paid.sum())
        bandit.record_feedback(actions[chosen.bool()].unsqueeze(1), paid)
        trainer = lightning.Trainer(
            max_epochs=1, logger=False, enable_progress_bar=False, enable_checkpointing=False,
            enable_model_summary=False, accelerator="cpu",
        )  # fmt: skip
        trainer.fit(bandit)
    return earned


def bare_torch(contexts: AnyArray, rewards: FloatArray, seed: int) -> float:
    """For orientation: a network that predicts every arm's reward, epsilon-greedy, 8 steps after every 64 rounds."""
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    network = nn.Sequential(
        nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, LATENT), nn.ReLU(), nn.Linear(LATENT, ARMS)
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    seen = torch.from_numpy(contexts)
    pays = torch.from_numpy(rewards).float()
    pulled = torch.zeros(len(contexts), dtype=torch.int64)
    earned = 0.0
    for i in range(len(contexts)):
        with torch.no_grad():
            arm = int(network(seen[i]).argmax()) if generator.random() > 0.05 else int(generator.integers(ARMS))
        pulled[i] = arm
        earned += float(rewards[i, arm])
        if (i + 1) % FEEDBACK == 0:
            for _ in range(8):
                rows = torch.randint(i + 1, (64,))
                predicted = network(seen[rows]).gather(1, pulled[rows, None]).squeeze(1)
                loss = nn.functional.mse_loss(predicted, pays[rows, pulled[rows]])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
    return earned


def linucb(contexts: AnyArray, rewards: FloatArray, seed: int) -> float:
    """For orientation: what a linear policy earns."""
    policy = daband.LinUCB(context_shape=(INPUTS,), n_arms=ARMS, alpha=0.2, seed=seed)
    return float(policy.play(contexts, rewards).reward.sum())


Player = Callable[..., float]
TUNED = {"min_samples_required_for_training": 256, "learning_rate": 1e-2}
"""The best of eight settings of calvera tried on seed 0: learning rate, interval, ridge, early stopping."""
PLAYERS: dict[str, tuple[Player, dict[str, Any], int | None]] = {
    "daband NeuralLinUCB": (neural_linucb, {}, None),
    "daband NeuralLinUCB, one by one": (neural_linucb, {"one_by_one": True}, None),
    "calvera NeuralLinear, defaults": (calvera, {}, None),
    "calvera NeuralLinear, tuned": (calvera, TUNED, None),
    "calvera NeuralLinear, one by one": (calvera, {"feedback": 1}, FEW),
    "bare torch loop, epsilon-greedy": (bare_torch, {}, None),
    "daband LinUCB": (linucb, {}, None),
}
"""Name: how it plays, its settings, and after how many rounds it may stop."""


def played(name: str, rounds: int, seed: int) -> dict[str, float]:
    player, settings, enough = PLAYERS[name]
    n = min(rounds, enough or rounds)
    contexts, rewards = problem(rounds, seed)
    wall, used = time.perf_counter(), time.process_time()
    earned = player(contexts[:n], rewards[:n], seed, **settings)
    used, wall = time.process_time() - used, time.perf_counter() - wall
    return {"rounds": n, "reward": earned / n, "rounds_per_second": n / used, "rounds_per_wall_second": n / wall}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4096)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="comma-separated beginnings of names, e.g. daband,bare")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # the peers' own
    for logger in ("lightning", "lightning.pytorch", "lightning.pytorch.utilities.rank_zero", "lightning.fabric"):
        logging.getLogger(logger).setLevel(logging.FATAL)
    names = [name for name in PLAYERS if name.startswith(tuple(arguments.only.split(",")))]
    if importlib.util.find_spec("calvera") is None:
        print("calvera is not installed, so it is left out: pip install --no-deps calvera, pip install lightning")
        names = [name for name in names if not name.startswith("calvera")]
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    played("daband NeuralLinUCB", 256, 0)  # kernels are compiled and loaded outside the clock
    for seed in range(arguments.seeds):
        for name in names:
            results[name].append(played(name, arguments.rounds, seed))
            print(f"  seed {seed}, {name}: {results[name][-1]}", flush=True)
    ours = results.get("daband NeuralLinUCB", [])
    print(
        "\n| player | rounds | reward a round | rounds/s | daband is faster by |\n| --- | ---: | ---: | ---: | ---: |"
    )
    for name, runs in results.items():
        rate = statistics.median(run["rounds_per_second"] for run in runs)
        reward = statistics.mean(run["reward"] for run in runs)
        pairs = zip(ours, runs, strict=False)
        ratio = statistics.median(o["rounds_per_second"] / r["rounds_per_second"] for o, r in pairs) if ours else 0.0
        print(f"| {name} | {runs[0]['rounds']:,} | {reward:.3f} | {rate:,.0f} | {ratio:.1f} |")
    if arguments.json is not None:
        versions = {
            name: importlib.metadata.version(name)
            for name in ("calvera", "lightning", "torch")
            if importlib.util.find_spec(name)
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        document = {"machine": peaks.machine(), "versions": versions, "results": results}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
