"""The paper's recipe on DIGIT, read in more than one way: ablation, lambda, and what the paper leaves open.

    python benchmarks/readings.py --out records.json                       # every study, the paper's budget
    python benchmarks/readings.py --out records.json --studies ablation --seeds 0-4
    python benchmarks/readings.py --out part0.json --part 0/3              # a third of the work, for three processes

Numpy, torch and safetensors are enough. Runs of one shape are trained stacked. Every record says the variant, the seed,
the target accuracy (by labels that only the evaluator has), the source regret, and what the label-free selection
criteria say. ``--commit`` names the commit where there is no git directory.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import daband
from daband.evaluation.model_selection import SourceHistory, criteria
from daband.training import Training, TrainSettings, train_stacked

LETTERS = {"R": "regression_error", "P": "predicted_reward", "D": "adversarial"}
COMBINATIONS = ("none", "R", "P", "D", "RP", "RD", "PD", "RPD")
LAMBDAS = (5.0, 10.0, 15.0, 20.0)
MOST_STACKED = 10


def ablated(letters: str, **changes: Any) -> dict[str, Any]:
    """The paper's recipe with the terms of these letters alone, and some settings changed."""
    off = {term: 0.0 for letter, term in LETTERS.items() if letter not in letters}
    return {"base": "paper", **changes, "weights": {**changes.get("weights", {}), **off}}


def studies() -> dict[str, dict[str, dict[str, Any]]]:
    """By study and variant, the policy's settings."""
    network = {"options": {"pixels": "imagenet"}}
    own_choice = {"predicted_reward": 0.0, "predicted_reward_own_choice": 1.0}
    readings: dict[str, dict[str, Any]] = {
        "pixels by ImageNet": {"recipe": ablated("RPD", encoder=network)},
        "pixels by ImageNet, none": {"recipe": ablated("none", encoder=network)},
        "pixels in [0, 1]": {"recipe": ablated("RPD", encoder={"options": {"pixels": "unit"}})},
        "P on the policy's own choice": {"recipe": {"base": "paper", "weights": own_choice}},
        "theta as it is": {"recipe": ablated("RPD", replay={"unit_theta": False})},
        "wide features aligned": {"recipe": ablated("RPD", encoder={"latent": {"alignment": "features"}})},
        "L_RS over the pulled arm": {"recipe": ablated("RPD"), "feedback": "bandit"},
        "replay of all rounds": {"recipe": ablated("RPD", replay={"sampling": "all"})},
        "head refitted": {"recipe": ablated("RPD", replay={"refit": True})},
        "replay and refit": {"recipe": ablated("RPD", replay={"sampling": "all", "refit": True})},
        "learning rate 1e-4": {"recipe": ablated("RPD", learning={"learning_rate": 1e-4})},
        "P at a tenth": {"recipe": ablated("RPD", weights={"predicted_reward": 0.1})},
    }
    return {
        "ablation": {letters: {"recipe": ablated(letters)} for letters in COMBINATIONS},
        "lambda": {f"{value:g}": {"recipe": ablated("RPD", weights={"adversarial": value})} for value in LAMBDAS},
        "readings": readings,
    }


def groups(asked: list[str], seeds: dict[str, list[int]]) -> Iterator[list[tuple[str, str, int, dict[str, Any]]]]:
    """Runs (study, variant, seed, settings) that can be stacked, at most ten at a time."""
    for study in asked:
        for variant, settings in studies()[study].items():
            runs = [(study, variant, seed, settings) for seed in seeds[study]]
            for start in range(0, len(runs), MOST_STACKED):
                yield runs[start : start + MOST_STACKED]


def run_group(
    group: list[tuple[str, str, int, dict[str, Any]]], pair: daband.domains.Pair, *, episodes: int, commit: str
) -> list[dict[str, Any]]:
    """Train a group stacked and judge each of its runs."""
    made = [
        daband.DABand(
            context_shape=pair.context_shape,
            n_arms=pair.n_arms,
            seed=seed,
            **{"feedback": pair.feedback, **settings},
        )
        for _, _, seed, settings in group
    ]
    started = time.perf_counter()
    runs = train_stacked(
        [Training(policy, pair.source, pair.target, TrainSettings(episodes=episodes)) for policy in made]
    )
    seconds = (time.perf_counter() - started) / len(group)
    records = []
    for (study, variant, seed, settings), policy, run in zip(group, made, runs, strict=True):
        if isinstance(run, Exception):
            raise run
        assert pair.target_test is not None
        found = daband.evaluate(policy, pair.target_test)
        chosen = criteria(policy, source=pair.source, target=pair.target, history=SourceHistory(run.reward, seed))
        records.append(
            {
                "study": study,
                "variant": variant,
                "seed": seed,
                "settings": settings,
                "target_accuracy": found.accuracy,
                "source_regret": run.total_regret,
                "rounds": run.rounds,
                "criteria": chosen,
                "seconds": round(seconds, 2),
                "pair": pair.about.summary,
                "commit": commit,
                "torch": torch.__version__,
                "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            }
        )
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--studies", default="ablation,lambda,readings")
    parser.add_argument("--seeds", type=int, default=5, help="how many; readings have three at most")
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--part", default="0/1", help="I/N: of N processes the I-th")
    parser.add_argument("--commit", default="")
    parser.add_argument("--tiny", action="store_true", help="the tiny twin of the pair, to try the script")
    given = parser.parse_args()
    asked = given.studies.split(",")
    part, parts = (int(number) for number in given.part.split("/"))
    pair = daband.domains.load("digit", tiny=given.tiny)
    seeds = {study: list(range(min(given.seeds, 3) if study == "readings" else given.seeds)) for study in asked}
    records: list[dict[str, Any]] = []
    for number, group in enumerate(groups(asked, seeds)):
        if number % parts != part:
            continue
        records += run_group(group, pair, episodes=given.episodes, commit=given.commit)
        given.out.write_text(json.dumps(records, indent=1) + "\n")
        accuracies = [record["target_accuracy"] for record in records[-len(group) :]]
        mean = sum(accuracies) / len(accuracies)
        print(f"{group[0][0]:>9} {group[0][1]:<30} {mean:.4f}  {[round(one, 4) for one in accuracies]}", flush=True)


if __name__ == "__main__":
    main()
