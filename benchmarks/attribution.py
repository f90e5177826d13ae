"""Train every variant on the results pages of DIGIT: all methods, ablations, ceilings and the paper's recipe.

    python benchmarks/attribution.py --out runs/                             # every study
    python benchmarks/attribution.py --out runs/ --studies 'leave-one-out;ceilings'
    python benchmarks/attribution.py --out runs/ --studies ablation --pair signs
    python benchmarks/attribution.py --out runs/ --record benchmarks/records/attribution.json

Several processes may share ``--out``. Each takes the next variant that has no file there. The seeds of one neural
variant are trained together. ``--record`` replaces the variants in the record that are finished in ``--out``.
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import daband
from daband.bench._methods import build_policy
from daband.domains._contract import Pair, RewardDomain
from daband.domains.readers._logs import from_log
from daband.policies._policy import Policy
from daband.training._loop import train_stacked
from daband.training._trainer import Run, TrainSettings, build_source_phase

FIVE = (0, 1, 2, 3, 4)
THREE = (0, 1, 2)
EPISODE_LENGTH = 64
COMPONENTS = 64
NO_TARGET_TERMS = {"adversarial": 0.0, "target_diversity": 0.0, "pseudo_labels": 0.0}
COMBINATIONS = ("none", "R", "P", "D", "RP", "RD", "PD", "RPD")
PAPER_TERMS = {"R": "regression_error", "P": "predicted_reward", "D": "adversarial"}
WITHOUT: dict[str, dict[str, Any]] = {
    "discriminator": {"weights": {"adversarial": 0.0}},
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
    seeds: tuple[int, ...] = FIVE
    labels: str = ""
    """"source": every source label is revealed; "target": the target's labels are the source."""
    bound: bool = False
    """Record the observable terms of the regret bound."""


class ImageNetPixels:
    """A transform of uint8 images to flat contexts that are normalised by ImageNet's statistics."""

    def fit(self, contexts: np.ndarray) -> ImageNetPixels:  # noqa: ARG002
        return self

    def transform(self, contexts: np.ndarray) -> np.ndarray:
        unit = contexts.reshape(len(contexts), 3, -1).astype(np.float32) / 255
        return ((unit - IMAGENET_MEAN[:, None]) / IMAGENET_DEVIATION[:, None]).reshape(len(unit), -1)


def studies() -> dict[str, list[Variant]]:
    """Return the variants of each study, as the record names them."""
    bandit = {"feedback": "bandit"}
    own_choice = {"predicted_reward": 0.0, "predicted_reward_target_choice": 1.0}
    standardised = {"ridge": 10.0, "alpha": 0.05, "transform": daband.Standardise()}
    return {
        "methods": [
            Variant("random", "random"),
            Variant("constant", "constant", settings={"alpha": 1.0}),
            Variant("linucb", "linucb", settings=standardised, seeds=(0,)),
            Variant("linucb-p", "linucb-p", settings={"ridge": 10.0, "alpha": 0.05}, seeds=THREE),
            Variant("linucb-normalised", "linucb", settings={"alpha": 1.5, "transform": ImageNetPixels()}, seeds=THREE),
            Variant("nlinucb", "nlinucb"),
            Variant("nlinucb-p", "nlinucb-p"),
            Variant("daband"),
            Variant("paper", recipe={"base": "paper"}),
            Variant("paper-nlinucb", recipe=_paper("none")),
        ],
        "leave-one-out": [
            Variant("default"),
            *(Variant(f"no {name}", recipe=change) for name, change in WITHOUT.items()),
            Variant(
                "discriminator alone of the target's terms", recipe={"weights": {**NO_TARGET_TERMS, "adversarial": 0.3}}
            ),
        ],
        "baselines": [
            Variant("nlinucb: statistics of the target", "nlinucb"),
            Variant("nlinucb: statistics of the source", "nlinucb", {"encoder": {"options": {"statistics": "source"}}}),
            Variant("nlinucb: no batch norm", "nlinucb", WITHOUT["batch norm"]),
            Variant("nlinucb: statistics of the target, bandit feedback", "nlinucb", settings=bandit),
            Variant("daband: bandit feedback", settings=bandit),
            Variant("nlinucb-p: principal components", "nlinucb-p"),
        ],
        "ceilings": [
            Variant("daband: every source label", labels="source", seeds=THREE),
            Variant("daband: target labels", recipe={"weights": NO_TARGET_TERMS}, labels="target", seeds=THREE),
        ],
        "ablation": [Variant(letters, recipe=_default_rpd(letters)) for letters in COMBINATIONS],
        "paper ablation": [
            *(Variant(letters, recipe=_paper(letters)) for letters in COMBINATIONS),
            Variant("RPD, P on the policy's own choice", recipe={"base": "paper", "weights": own_choice}),
        ],
        "bound": [Variant(method, method, bound=True) for method in ("nlinucb", "nlinucb-p", "daband")],
    }


def _default_rpd(letters: str) -> dict[str, Any]:
    """Return the default with R and P added, and D (all target terms) removed or at weight 1."""
    weights = {"adversarial": 1.0} if "D" in letters else dict(NO_TARGET_TERMS)
    weights |= {"regression_error": 0.5} if "R" in letters else {}
    return {"weights": weights | ({"predicted_reward": 1.0} if "P" in letters else {})}


def _paper(letters: str) -> dict[str, Any]:
    """Return the paper's recipe with some of its terms."""
    return {"base": "paper", "weights": {term: 0.0 for one, term in PAPER_TERMS.items() if one not in letters}}


def with_labels(pair: Pair, labels: str) -> Pair:
    """Return the pair with a source that reveals every label (a log of the best arm), or with the target as source."""
    domain = pair.source if labels == "source" else pair.target_labelled
    assert isinstance(domain, RewardDomain)
    every = np.arange(len(domain))
    contexts, best = domain.read(every), domain.read_rewards(every)[0].argmax(axis=1)
    made = from_log(
        source=(contexts, best, np.ones(len(best)), np.ones(len(best))),
        source_test=None,
        target=contexts[:1],
        n_arms=pair.n_arms,
        feedback="one_hot",
    )
    return replace(made, target=pair.target, target_test=pair.target_test, about=pair.about)


def run_variant(study: str, variant: Variant, pair: Pair, episodes: int) -> list[dict[str, Any]]:
    """Train a variant's seeds and evaluate each."""
    shown = with_labels(pair, variant.labels) if variant.labels else pair
    settings = {**variant.settings, **({"recipe": variant.recipe} if variant.recipe else {})}
    if "transform" in settings:
        made: list[Policy] = [daband.LinUCB.for_pair(shown, seed=seed, **settings) for seed in variant.seeds]
    else:
        options: dict[str, Any] = {"settings": settings, "components": COMPONENTS}
        made = [build_policy(variant.method, shown, seed=seed, **options) for seed in variant.seeds]
    records = []
    for seed, policy, run in zip(variant.seeds, made, _train(made, shown, episodes), strict=True):
        record = {
            "study": study, "variant": variant.name, "pair": pair.name.partition("/")[0], "seed": seed,
            "target_accuracy": daband.evaluate(policy, pair.target_test).accuracy, "rounds": run.rounds,
        }  # fmt: skip
        if not variant.labels:
            record["source_regret"] = run.total_regret
        if hasattr(policy, "recipe"):
            record["recipe_hash"] = policy.recipe.fingerprint()
        if variant.bound:
            record["bound"] = bound_terms(run)
        records.append(record)
    return records


def _train(policies: Sequence[Policy], pair: Pair, episodes: int) -> list[Run]:
    """Train policies, with common gradient steps if they are neural, and return their runs."""
    if not policies[0].learns_by_gradients:
        return [daband.train(policy, source=pair.source, target=pair.target, episodes=episodes) for policy in policies]
    settings = TrainSettings(episodes=episodes)
    runs = train_stacked([build_source_phase(policy, pair.source, pair.target, settings) for policy in policies])
    failed = [run for run in runs if isinstance(run, Exception)]
    if failed:
        raise failed[0]
    return [run for run in runs if isinstance(run, Run)]


def bound_terms(run: Run) -> dict[str, list[float]]:
    """Return the bound's observable terms, summed over rounds, after each of about twenty episodes and the last."""
    known = [episode for episode in run.episodes if "bound_rounds" in episode]
    some = known[:: -max(1, len(known) // 20)][::-1]
    names = [name for name in known[-1] if name.startswith("bound_")]
    complete = [name for name in names if all(one.get(name) is not None for one in some)]
    return {name.removeprefix("bound_"): [round(one[name], 2) for one in some] for name in complete}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder with a JSON file per variant")
    parser.add_argument("--studies", default=";".join(studies()), help="separated by semicolons")
    parser.add_argument("--only", default="", help="variants of these studies, separated by semicolons")
    parser.add_argument("--pair", default="digit")
    parser.add_argument("--episodes", type=int, default=0, help="300 by default, or what the pair has")
    parser.add_argument("--commit", default="")
    parser.add_argument("--record", type=Path, help="update this record with the finished variants; train nothing")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.record is not None:
        finished = [run for path in sorted(args.out.glob("*.json")) for run in json.loads(path.read_text() or "[]")]
        _update(args.record, finished)
        return
    options = {"passes": 5, "target_passes": 10} if args.pair == "signs" else {}
    pair = daband.domains.load(args.pair, **options)
    available = min(pair.source.rounds_available, pair.target.rounds_available) // EPISODE_LENGTH
    machine = {
        "commit": args.commit,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }
    for study in args.studies.split(";"):
        for variant in studies()[study]:
            if args.only and variant.name not in args.only.split(";"):
                continue
            path = args.out / f"{args.pair} {study} {variant.name}.json".replace(" ", "_").replace(":", "")
            try:
                claim = path.open("x")
            except FileExistsError:  # finished, or another process has started it
                continue
            with claim:
                try:
                    runs = run_variant(study, variant, pair, args.episodes or min(300, available))
                except Exception:
                    traceback.print_exc()
                    path.unlink()
                    continue
                claim.write(json.dumps([{**run, **machine} for run in runs], indent=1) + "\n")
            accuracies = [round(run["target_accuracy"], 4) for run in runs]
            print(f"{study}: {variant.name}: {np.mean(accuracies):.4f} {accuracies}", flush=True)


def _update(record: Path, finished: Sequence[dict[str, Any]]) -> None:
    """Replace the variants in the record that are among the finished ones, and add the others."""

    def key(run: dict[str, Any]) -> tuple[str, str, str]:
        return run["pair"], run["study"], run["variant"]

    new = {key(run) for run in finished}
    known = json.loads(record.read_text()) if record.exists() else []
    runs = [run for run in known if key(run) not in new] + list(finished)
    order = [(study, one.name) for study, variants in studies().items() for one in variants]
    runs.sort(key=lambda run: (run["pair"], order.index((run["study"], run["variant"])), run["seed"]))
    record.write_text("[\n" + ",\n".join(map(json.dumps, runs)) + "\n]\n")


if __name__ == "__main__":
    main()
