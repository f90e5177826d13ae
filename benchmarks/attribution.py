"""Train every variant on the results pages of DIGIT: all methods, ablations, ceilings and the
paper's recipe.

    python benchmarks/attribution.py --out runs/                             # every study
    python benchmarks/attribution.py --out runs/ --studies 'leave-one-out;ceilings'
    python benchmarks/attribution.py --out runs/ --studies ablation --pair signs
    python benchmarks/attribution.py --out runs/ --record benchmarks/records/attribution.json

Several processes may share ``--out``. Each takes the next variant that has no file there. The seeds
of one neural variant are trained together. ``--record`` replaces the variants in the record that
are finished in ``--out``.
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from regret_bound import train_with_bound

import daband
import research_sets  # noqa: F401  registers the data sets
from daband.bench._methods import build_policy
from daband.domains._contract import Pair, RewardDomain
from daband.domains.readers._logs import from_log
from daband.policies._policy import Policy
from daband.training._trainer import Run

FIVE_SEEDS = (0, 1, 2, 3, 4)
THREE_SEEDS = (0, 1, 2)
EPISODE_LENGTH = 64
N_COMPONENTS = 64
NO_TARGET_TERMS = {"data_divergence": 0.0, "target_diversity": 0.0, "pseudo_labels": 0.0}
COMBINATIONS = ("none", "R", "P", "D", "RP", "RD", "PD", "RPD")
PAPER_TERMS = {"R": "regression_error", "P": "predicted_reward", "D": "data_divergence"}
CHANGE_WITHOUT: dict[str, dict[str, Any]] = {
    "discriminator": {"weights": {"data_divergence": 0.0}},
    "pseudo-labels": {"weights": {"pseudo_labels": 0.0}},
    "statistics per domain": {"encoder": {"options": {"statistics": "source"}}},
    "augmentation": {"learning": {"augmentation": {"shift": 0, "contrast": 0.0, "affine": 0.0}}},
    "EMA": {"learning": {"ema_decay": 0.0}},
    "gate": {"learning": {"gate_exponent": 0.0}},
    "replay": {"replay": {"sampling": "last"}},
    "batch norm": {"encoder": {"options": {"normalise": False}}},
}
"""The change of the default recipe that removes an ingredient."""
IMAGENET_MEAN = np.array((0.485, 0.456, 0.406), np.float32)
IMAGENET_DEVIATION = np.array((0.229, 0.224, 0.225), np.float32)


@dataclass(frozen=True)
class Variant:
    """A policy's settings, its source, and its seeds."""

    name: str
    method: str = "daband"
    recipe: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = FIVE_SEEDS
    labels: str = ""
    """"source": every source label is revealed; "target": the target's labels are the source."""
    bound: bool = False
    """Record the observable terms of the regret bound."""


class ImageNetPixels:
    """A transform of uint8 images to flat contexts that are normalised by ImageNet's statistics."""

    def fit(self, contexts: np.ndarray) -> ImageNetPixels:  # noqa: ARG002
        return self

    def transform(self, contexts: np.ndarray) -> np.ndarray:
        pixels = contexts.reshape(len(contexts), 3, -1).astype(np.float32) / 255
        return ((pixels - IMAGENET_MEAN[:, None]) / IMAGENET_DEVIATION[:, None]).reshape(
            len(pixels), -1
        )


def list_studies() -> dict[str, list[Variant]]:
    """Return the variants of each study, as the record names them."""
    bandit = {"feedback": "bandit"}
    normalised = {"alpha": 1.5, "transform": ImageNetPixels()}
    standardised = {"ridge": 10.0, "alpha": 0.05, "transform": daband.Standardise()}
    return {
        "methods": [
            Variant("random", "random"),
            Variant("constant", "constant", settings={"alpha": 1.0}),
            Variant("linucb", "linucb", settings=standardised, seeds=(0,)),
            Variant(
                "linucb-p", "linucb-p", settings={"ridge": 10.0, "alpha": 0.05}, seeds=THREE_SEEDS
            ),
            Variant("linucb-normalised", "linucb", settings=normalised, seeds=THREE_SEEDS),
            Variant("nlinucb", "nlinucb"),
            Variant("nlinucb-p", "nlinucb-p"),
            Variant("daband"),
            Variant("paper", recipe={"base": "paper"}),
            Variant("paper-nlinucb", recipe=_get_paper_recipe("none")),
        ],
        "leave-one-out": [
            Variant("default"),
            *(Variant(f"no {name}", recipe=change) for name, change in CHANGE_WITHOUT.items()),
            Variant(
                "discriminator alone of the target's terms",
                recipe={"weights": {**NO_TARGET_TERMS, "data_divergence": 0.3}},
            ),
        ],
        "baselines": [
            Variant("nlinucb: statistics of the target", "nlinucb"),
            Variant(
                "nlinucb: statistics of the source",
                "nlinucb",
                {"encoder": {"options": {"statistics": "source"}}},
            ),
            Variant("nlinucb: no batch norm", "nlinucb", CHANGE_WITHOUT["batch norm"]),
            Variant(
                "nlinucb: statistics of the target, bandit feedback", "nlinucb", settings=bandit
            ),
            Variant("daband: bandit feedback", settings=bandit),
            Variant("nlinucb-p: principal components", "nlinucb-p"),
        ],
        "ceilings": [
            Variant("daband: every source label", labels="source", seeds=THREE_SEEDS),
            Variant(
                "daband: target labels",
                recipe={"weights": NO_TARGET_TERMS},
                labels="target",
                seeds=THREE_SEEDS,
            ),
        ],
        "ablation": [
            Variant(letters, recipe=_get_default_recipe(letters)) for letters in COMBINATIONS
        ],
        "paper ablation": [
            Variant(letters, recipe=_get_paper_recipe(letters)) for letters in COMBINATIONS
        ],
        "bound": [
            Variant(method, method, bound=True) for method in ("nlinucb", "nlinucb-p", "daband")
        ],
    }


def _get_default_recipe(letters: str) -> dict[str, Any]:
    """Return the default with R and P added, and D (all target terms) removed or at weight 1."""
    weights = {"data_divergence": 1.0} if "D" in letters else dict(NO_TARGET_TERMS)
    weights |= {"regression_error": 0.5} if "R" in letters else {}
    return {"weights": weights | ({"predicted_reward": 1.0} if "P" in letters else {})}


def _get_paper_recipe(letters: str) -> dict[str, Any]:
    """Return the paper's recipe with some of its terms."""
    return {
        "base": "paper",
        "weights": {term: 0.0 for letter, term in PAPER_TERMS.items() if letter not in letters},
    }


def reveal_labels(pair: Pair, labels: str) -> Pair:
    """Return the pair with a source that reveals every label (a log of the best arm), or with the
    target as source.
    """
    domain = pair.source if labels == "source" else pair.target_labelled
    assert isinstance(domain, RewardDomain)
    rows = np.arange(len(domain))
    contexts = domain.read(rows)
    best_arms = domain.read_rewards(rows)[0].argmax(axis=1)
    log_pair = from_log(
        source=(contexts, best_arms, np.ones(len(best_arms)), np.ones(len(best_arms))),
        source_test=None,
        target=contexts[:1],
        n_arms=pair.n_arms,
        feedback="one_hot",
    )
    return replace(log_pair, target=pair.target, target_test=pair.target_test, about=pair.about)


def run_variant(study: str, variant: Variant, pair: Pair, episodes: int) -> list[dict[str, Any]]:
    """Train a variant's seeds and evaluate each."""
    training_pair = reveal_labels(pair, variant.labels) if variant.labels else pair
    settings = {**variant.settings, **({"recipe": variant.recipe} if variant.recipe else {})}
    if "transform" in settings:
        linucb = partial(daband.LinUCB.for_pair, training_pair, **settings)
        policies: list[Policy] = [linucb(seed=seed) for seed in variant.seeds]
    else:
        options: dict[str, Any] = {"settings": settings, "n_components": N_COMPONENTS}
        policies = [
            build_policy(variant.method, training_pair, seed=seed, **options)
            for seed in variant.seeds
        ]
    records = []
    if variant.bound:
        runs = [train_with_bound(policy, training_pair, episodes=episodes) for policy in policies]
    else:
        runs = [
            daband.train(
                policy,
                source=training_pair.source,
                target=training_pair.target,
                episodes=episodes,
            )
            for policy in policies
        ]
    for seed, policy, run in zip(variant.seeds, policies, runs, strict=True):
        record = {
            "study": study,
            "variant": variant.name,
            "pair": pair.name.partition("/")[0],
            "seed": seed,
            "target_accuracy": daband.evaluate(policy, pair.target_test).accuracy,
            "rounds": run.rounds,
        }
        if not variant.labels:
            record["source_regret"] = run.total_regret
        if variant.bound:
            record["bound"] = compute_bound_terms(run)
        records.append(record)
    return records


def compute_bound_terms(run: Run) -> dict[str, list[float]]:
    """Return the bound's observable terms, summed over rounds, after each of about twenty episodes
    and the last.
    """
    episodes = [episode for episode in run.episodes if "bound_rounds" in episode]
    chosen_episodes = episodes[:: -max(1, len(episodes) // 20)][::-1]
    names = [name for name in episodes[-1] if name.startswith("bound_")]
    complete_names = [
        name for name in names if all(episode.get(name) is not None for episode in chosen_episodes)
    ]
    columns = {
        name: [round(episode[name], 2) for episode in chosen_episodes] for name in complete_names
    }
    return {name.removeprefix("bound_"): column for name, column in columns.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="a folder with a JSON file per variant"
    )
    parser.add_argument(
        "--studies", default=";".join(list_studies()), help="separated by semicolons"
    )
    parser.add_argument(
        "--only", default="", help="variants of these studies, separated by semicolons"
    )
    parser.add_argument("--pair", default="digit")
    parser.add_argument(
        "--episodes", type=int, default=0, help="300 by default, or what the pair has"
    )
    parser.add_argument("--commit", default="")
    parser.add_argument(
        "--record", type=Path, help="update this record with the finished variants; train nothing"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.record is not None:
        paths = sorted(args.out.glob("*.json"))
        _update_record(
            args.record, [run for path in paths for run in json.loads(path.read_text() or "[]")]
        )
        return
    pair = daband.domains.load(args.pair)
    passes = 5 if args.pair == "signs" else 1
    n_available_episodes = passes * len(pair.source) // EPISODE_LENGTH
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    machine_fields = {"commit": args.commit, "device": device}
    for study in args.studies.split(";"):
        for variant in list_studies()[study]:
            if args.only and variant.name not in args.only.split(";"):
                continue
            path = args.out / f"{args.pair} {study} {variant.name}.json".replace(" ", "_").replace(
                ":", ""
            )
            try:
                file = path.open("x")
            except FileExistsError:  # finished, or another process has started it
                continue
            with file:
                try:
                    runs = run_variant(
                        study, variant, pair, args.episodes or min(300, n_available_episodes)
                    )
                except Exception:
                    traceback.print_exc()
                    path.unlink()
                    continue
                file.write(json.dumps([{**run, **machine_fields} for run in runs], indent=1) + "\n")
            accuracies = [round(run["target_accuracy"], 4) for run in runs]
            print(f"{study}: {variant.name}: {np.mean(accuracies):.4f} {accuracies}", flush=True)


def _update_record(record: Path, finished_runs: Sequence[dict[str, Any]]) -> None:
    """Replace the variants in the record that are among the finished ones, and add the others."""

    def get_key(run: dict[str, Any]) -> tuple[str, str, str]:
        return run["pair"], run["study"], run["variant"]

    new_keys = {get_key(run) for run in finished_runs}
    old_runs = json.loads(record.read_text()) if record.exists() else []
    runs = [run for run in old_runs if get_key(run) not in new_keys] + list(finished_runs)
    variant_order = [
        (study, variant.name) for study, variants in list_studies().items() for variant in variants
    ]
    runs.sort(
        key=lambda run: (
            run["pair"],
            variant_order.index((run["study"], run["variant"])),
            run["seed"],
        )
    )
    record.write_text("[\n" + ",\n".join(map(json.dumps, runs)) + "\n]\n")


if __name__ == "__main__":
    main()
