"""LinUCB and LinUCB-P on DIGIT, read in more than one way: pixels, ridge, components; alpha chosen by source regret.

    python benchmarks/linear_readings.py --out records/

Several processes may be started with one ``--out`` (``study_queue``). Every record has the target accuracy (by labels
that only the evaluator has) and the source regret, by which alpha is chosen.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from study_queue import Unit, work_through

import daband
from daband.domains import Pair

ALPHAS = (0.05, 0.15, 0.5, 1.5)
COMPONENTS = (16, 32, 64, 128, 256)
SEEDS = (0, 1, 2)
_MEAN = np.array((0.485, 0.456, 0.406), np.float32)
_DEVIATION = np.array((0.229, 0.224, 0.225), np.float32)


class Pixels:
    """Images of uint8, channels first, as flat contexts (B, 3 * height * width), normalised."""

    def __init__(self, how: str) -> None:
        self.how = how

    def fit(self, contexts: np.ndarray) -> Pixels:  # noqa: ARG002 - there is nothing to fit
        return self

    def transform(self, contexts: np.ndarray) -> np.ndarray:
        unit = contexts.reshape(len(contexts), len(_MEAN), -1).astype(np.float32) / 255
        if self.how == "symmetric":
            unit = 2 * unit - 1
        elif self.how == "imagenet":
            unit = (unit - _MEAN[:, None]) / _DEVIATION[:, None]
        return unit.reshape(len(unit), -1)


def one(pair: Pair, settings: dict[str, Any], episodes: int) -> list[dict[str, Any]]:
    """Train the seeds of one reading at one alpha."""
    made = {"unit": None, "standardised": daband.Standardise()}
    how = settings["pixels"]
    transform = made[how] if how in made else Pixels(how)
    records = []
    for seed in SEEDS:
        started = time.perf_counter()
        components = settings["components"]
        policy = daband.LinUCB.for_pair(
            pair,
            alpha=settings["alpha"],
            ridge=settings["ridge"],
            seed=seed,
            transform=daband.PCA(components) if components else transform,
        )
        run = daband.train(policy, source=pair.source, target=pair.target, episodes=episodes)
        found = daband.evaluate(policy, pair.require_target_test())
        records.append(
            {
                "method": "linucb-p" if components else "linucb",
                "seed": seed,
                **settings,
                "target_accuracy": found.accuracy,
                "source_regret": run.total_regret,
                "rounds": run.rounds,
                "seconds": round(time.perf_counter() - started, 1),
                "pair": pair.about.summary,
            }
        )
    return records


def units(pair: Pair, episodes: int) -> Iterator[Unit]:
    readings = [{"pixels": "unit", "ridge": 1.0, "components": count} for count in (64, 0)]
    readings += [{"pixels": "unit", "ridge": 1.0, "components": count} for count in COMPONENTS if count != 64]
    readings += [{"pixels": how, "ridge": 1.0, "components": 0} for how in ("symmetric", "imagenet", "standardised")]
    readings += [{"pixels": "unit", "ridge": ridge, "components": count} for ridge in (0.1, 10.0) for count in (64, 0)]
    for reading in readings:
        for alpha in ALPHAS:
            settings = {**reading, "alpha": alpha}
            yield (
                " ".join(f"{name} {value}" for name, value in settings.items()),
                partial(one, pair, settings, episodes),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no reading after so many")
    parser.add_argument("--commit", default="")
    given = parser.parse_args()
    pair = daband.domains.load("digit")
    work_through(units(pair, given.episodes), out=given.out, commit=given.commit, seconds=given.seconds)


if __name__ == "__main__":
    main()
