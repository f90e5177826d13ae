"""LinUCB and LinUCB-P on images, read in more than one way: pixels, ridge, components; alpha chosen by source regret.

    python benchmarks/linear_readings.py --out records/                   # DIGIT
    python benchmarks/linear_readings.py --out records/ --pair signs
    python benchmarks/linear_readings.py --out records/ --record benchmarks/records/linear-readings.json

Several processes may be started with one ``--out`` (``study_queue``). Every record has the target accuracy (by labels
that only the evaluator has) and the source regret, by which alpha is chosen. Beside them a constant arm and random
choices.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from study_queue import Unit, finished, load_study, study_parser, work_through

import daband
from daband.domains._contract import Pair
from daband.policies._policy import Policy

EPISODE = 64
ALPHAS = (0.05, 0.15, 0.5, 1.5)
BEYOND: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((1.0, 10.0, 100.0, 1000.0), (1.5, 5.0)),
    "symmetric": ((1.0, 10.0, 100.0, 1000.0), (1.5, 5.0)),
    "unit": ((10.0, 30.0, 100.0, 300.0), (0.015, 0.05)),
    "standardised": ((10.0, 100.0), (0.05,)),
}
"""On DIGIT, where the lowest source regret lay at an edge of the grid: by pixels, further ridges and alphas."""
COMPONENTS = (16, 32, 64, 128, 256)
SEEDS = {"digit": (0, 1, 2), "signs": (0, 1, 2, 3, 4)}
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


def linear(pair: Pair, settings: dict[str, Any], seed: int) -> Policy:
    """LinUCB by one reading."""
    made = {"unit": None, "standardised": daband.Standardise()}
    how, components = settings["pixels"], settings["components"]
    transform = made[how] if how in made else Pixels(how)
    return daband.LinUCB.for_pair(
        pair,
        alpha=settings["alpha"],
        ridge=settings["ridge"],
        seed=seed,
        transform=daband.PCA(components) if components else transform,
    )


def one(pair: Pair, method: str, settings: dict[str, Any], episodes: int, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Train the seeds of one method, or of one reading of it at one alpha."""
    records = []
    for seed in seeds:
        started = time.perf_counter()
        if method == "constant":  # alpha 1, as choose has it: a small one may stay with an arm whose reward was luck
            policy: Policy = daband.Constant.for_pair(pair, alpha=1.0, seed=seed)
        elif method == "random":
            policy = daband.Random.for_pair(pair, seed=seed)
        else:
            policy = linear(pair, settings, seed)
        run = daband.train(policy, source=pair.source, target=pair.target, episodes=episodes)
        found = daband.evaluate(policy, pair.require_target_test())
        records.append(
            {
                "method": method,
                "seed": seed,
                **settings,
                "target_accuracy": found.accuracy,
                "source_regret": run.total_regret,
                "rounds": run.rounds,
                "target_contexts": len(pair.require_target_test()),
                "seconds": round(time.perf_counter() - started, 1),
                "pair": pair.about.summary,
            }
        )
    return records


def readings(name: str) -> Iterator[dict[str, Any]]:
    """What a pair's contexts, ridge and components may be: all on DIGIT, which the paper has; fewer on signs."""
    if name == "digit":
        yield from ({"pixels": "unit", "ridge": 1.0, "components": count} for count in (64, 0))
        yield from ({"pixels": "unit", "ridge": 1.0, "components": count} for count in COMPONENTS if count != 64)
        for how in ("symmetric", "imagenet", "standardised"):
            yield {"pixels": how, "ridge": 1.0, "components": 0}
        for ridge in (0.1, 10.0):
            yield from ({"pixels": "unit", "ridge": ridge, "components": count} for count in (64, 0))
    else:
        yield from ({"pixels": "unit", "ridge": 1.0, "components": count} for count in (64, 16))
        yield {"pixels": "unit", "ridge": 10.0, "components": 64}
        yield {"pixels": "unit", "ridge": 1.0, "components": 0}
        yield {"pixels": "standardised", "ridge": 1.0, "components": 0}
        yield {"pixels": "unit", "ridge": 10.0, "components": 0}


def beyond(pair: Pair, episodes: int) -> Iterator[Unit]:
    """A unit per reading, alpha and seed beyond the first grid: first all readings with one seed."""
    for seed in SEEDS["digit"]:
        for how, (ridges, alphas) in BEYOND.items():
            for ridge in ridges:
                for alpha in alphas:
                    if alpha in ALPHAS and (ridge == 1.0 or (how, ridge) == ("unit", 10.0)):
                        continue  # the first grid has it
                    settings = {"pixels": how, "ridge": ridge, "components": 0, "alpha": alpha}
                    label = " ".join(f"{key} {value}" for key, value in settings.items())
                    yield f"{label} seed {seed}", partial(one, pair, "linucb", settings, episodes, (seed,))
        for ridge in (30.0, 100.0, 300.0):
            settings = {"pixels": "unit", "ridge": ridge, "components": 64, "alpha": 0.05}
            label = " ".join(f"{key} {value}" for key, value in settings.items())
            yield f"{label} seed {seed}", partial(one, pair, "linucb-p", settings, episodes, (seed,))


def units(name: str, pair: Pair, episodes: int) -> Iterator[Unit]:
    """A unit per method, or reading of it, and alpha."""
    front = "" if name == "digit" else f"{name} "
    for method in ("constant", "random"):
        yield f"{front}{method}", partial(one, pair, method, {}, episodes, range(5))
    for reading in readings(name):
        for alpha in ALPHAS:
            settings = {**reading, "alpha": alpha}
            method = "linucb-p" if settings["components"] else "linucb"
            label = " ".join(f"{key} {value}" for key, value in settings.items())
            yield front + label, partial(one, pair, method, settings, episodes, SEEDS[name])


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--beyond", action="store_true", help="the readings of DIGIT beyond the first grid alone")
    given = parser.parse_args()
    if given.record is not None:
        found = sorted(finished(given.out), key=lambda one: (one["pair"], one["method"], one["seed"]))
        given.record.write_text(json.dumps(found, indent=1) + "\n")
        return
    pair, episodes = load_study(given, episode_length=EPISODE)
    asked = beyond(pair, episodes) if given.beyond else units(given.pair, pair, episodes)
    work_through(asked, out=given.out, commit=given.commit, seconds=given.seconds)


if __name__ == "__main__":
    main()
