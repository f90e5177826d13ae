"""How much should the source count once the target pays? Regret of 1,920 target rounds with different prior trust.

    python benchmarks/prior_trust.py --out DIR --commit COMMIT [--part I/N] [--pairs digit,synthetic,amazon]
    python benchmarks/prior_trust.py --join DIR --record benchmarks/records/prior-trust.json

Every policy is trained in the source as ``daband bench`` would, and handed over to two targets: the target as it is,
and the same with every label moved on to the next arm, where what the source taught is wrong. There it plays 1,920
rounds with full trust in the source, with adaptive trust, and with none; and a policy of the same settings that was
never in the source plays them as well ("nothing"). Seeds of one method on one pair are trained, and continued, in a
stack where they can be. ``--part`` takes every N-th pair and method, from I = 0 on. What is in DIR already is not
repeated: trained policies are kept there until every way to continue them is done. ``--join`` adds to a record that
is there. Numpy, scipy, torch and safetensors are enough.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import daband
from daband._arrays import AnyArray, FloatArray, IntArray
from daband.domains._contract import Pair, RewardDomain
from daband.domains._registry import load
from daband.policies._policy import Policy
from daband.training._loop import can_train_stacked, continue_on_target, train_stacked
from daband.training._trainer import Phase, TrainSettings

ROUNDS, EPISODE = 1920, 64
MODES: dict[str, float | str] = {"full": 1.0, "adaptive": "adaptive", "none": 0.0}
TARGETS = ("as it is", "relabelled")
# Pair, its options, source episodes, seeds, methods. The recipe of neural policies is --recipe.
STUDIES: dict[str, tuple[str, dict[str, Any], int, int, tuple[str, ...]]] = {
    "digit": ("digit", {}, 300, 5, ("linucb-p", "daband")),
    "digit-embedded": ("digit", {"form": "embedded"}, 100, 3, ("linucb-p", "daband")),
    "synthetic": ("synthetic", {}, 300, 10, ("linucb", "daband")),
    "amazon": ("amazon/books-dvd", {"passes": 4}, 40, 10, ("linucb", "daband")),
}


class Relabelled(RewardDomain):
    """A domain in which every arm pays what the arm before it pays there."""

    def __init__(self, domain: RewardDomain) -> None:
        self._domain = domain
        self.n_arms, self.context_shape, self.passes = domain.n_arms, domain.context_shape, domain.passes
        self.prefetches = domain.prefetches

    def __len__(self) -> int:
        return len(self._domain)

    def read(self, indices: IntArray) -> AnyArray:
        return self._domain.read(indices)

    def read_rewards(self, indices: IntArray) -> tuple[FloatArray, FloatArray | None]:
        rewards, expected = self._domain.read_rewards(indices)
        return np.roll(rewards, 1, axis=1), None if expected is None else np.roll(expected, 1, axis=1)


def build(method: str, pair: Pair, seed: int, recipe: str) -> Policy:
    if method == "daband":
        return daband.DABand.for_pair(pair, recipe=recipe, seed=seed)
    if method == "linucb-p":
        return daband.LinUCB.for_pair(pair, transform=daband.PCA(64), seed=seed)
    return daband.LinUCB.for_pair(pair, seed=seed)


class Group:
    """One method on one pair, for several seeds: trained once, and continued in every way."""

    def __init__(self, study: str, method: str, seeds: Sequence[int], given: argparse.Namespace) -> None:
        self.study, self.method, self.seeds, self.given = study, method, list(seeds), given
        name, options, episodes, _, _ = STUDIES[study]
        self.pair = load(name, tiny=True) if given.tiny else load(name, **options)
        self.episodes = min(episodes, self.pair.source.rounds_available // EPISODE)
        known = self.pair.require_target_labelled()
        self.targets = {TARGETS[0]: known, TARGETS[1]: Relabelled(known)}
        self.rounds = min(given.rounds, known.rounds_available)

    def run(self) -> None:
        """Train, continue in every way that is not done, and write a record per seed."""
        trained = self._trained()
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for label in TARGETS:
            for mode in (*MODES, "nothing"):
                found.setdefault(label, {})[mode] = self._continued(label, mode)
        about = {"commit": self.given.commit, "machine": machine()}
        options = f"--pairs {self.study} --methods {self.method} --seeds {len(self.seeds)}"
        recipe = self.given.recipe if self.method == "daband" else None
        options += f" --recipe {recipe}" if recipe else ""
        about["command"] = f"python benchmarks/prior_trust.py {options} --rounds {self.given.rounds}"
        for seed in self.seeds:
            key = str(seed)
            record = {
                "study": self.study, "pair": STUDIES[self.study][0], "method": self.method, "recipe": recipe,
                "recipe_hash": trained["recipe_hash"], "seed": seed, "episodes": self.episodes, "rounds": self.rounds,
                "zero_shot_accuracy": trained["accuracy"][key],
                "regret": {label: {mode: own["regret"][key] for mode, own in found[label].items()} for label in found},
                "discount": {label: found[label]["adaptive"]["discount"][key] for label in found},
                "seconds": trained["seconds"] / len(self.seeds), **about,
            }  # fmt: skip
            self._path(f"{seed}.json", hidden=False).write_text(json.dumps(record, indent=1) + "\n")
        for path in self.given.out.glob(f".{self.study}-{self.method}-*"):
            path.unlink()

    def _path(self, name: str, *, hidden: bool = True) -> Path:
        folder: Path = self.given.out
        return folder / f"{'.' if hidden else ''}{self.study}-{self.method}-{name}"

    def _policy_file(self, seed: int) -> Path:
        return self._path(f"{seed}.safetensors")

    def _trained(self) -> dict[str, Any]:
        """Zero-shot accuracies and seconds of the trained policies, whose files are there afterwards."""
        done = self._path("trained.json")
        if not done.exists():
            begun = time.perf_counter()
            made = [build(self.method, self.pair, seed, self.given.recipe) for seed in self.seeds]
            daband.train(
                made, source=self.pair.source, target=self.pair.target, episodes=self.episodes, episode_length=EPISODE,
            )  # fmt: skip
            seconds = time.perf_counter() - begun
            test = self.pair.require_target_test()
            accuracy = {str(policy.seed): daband.evaluate(policy, test).accuracy for policy in made}
            for policy in made:
                policy.save(self._policy_file(policy.seed))
            recipe = getattr(made[0], "recipe", None)
            hashed = None if recipe is None else recipe.fingerprint()
            done.write_text(json.dumps({"accuracy": accuracy, "seconds": seconds, "recipe_hash": hashed}))
            print(f"{self.study} {self.method}: trained in {seconds:.0f} s, accuracy {accuracy}", flush=True)
        found: dict[str, Any] = json.loads(done.read_text())
        return found

    def _continued(self, label: str, mode: str) -> dict[str, Any]:
        """Regrets of one way to continue, and which discount acts at the end, by seed."""
        done = self._path(f"{label}-{mode}.json".replace(" ", "-"))
        if not done.exists():
            begun = time.perf_counter()
            policies = [self._handed_over(seed, mode) for seed in self.seeds]
            regrets = continued(policies, self.targets[label], self.rounds, MODES.get(mode, 1.0))
            discounts = {str(policy.seed): _discount(policy) for policy in policies} if mode == "adaptive" else {}
            of = {str(policy.seed): regret for policy, regret in zip(policies, regrets, strict=True)}
            done.write_text(json.dumps({"regret": of, "discount": discounts}))
            seconds = time.perf_counter() - begun
            shown = [round(regret) for regret in regrets]
            print(f"{self.study} {self.method}, {label}, {mode}: {shown}, {seconds:.0f} s", flush=True)
        found: dict[str, Any] = json.loads(done.read_text())
        return found

    def _handed_over(self, seed: int, mode: str) -> Policy:
        if mode != "nothing":
            return daband.load(self._policy_file(seed))
        fresh = build(self.method, self.pair, seed, self.given.recipe)
        if fresh.transform is not None:  # what unlabelled contexts tell is not from the source
            fresh.transform = daband.load(self._policy_file(seed)).transform
        return fresh


def continued(policies: Sequence[Policy], target: RewardDomain, rounds: int, trust: float | str) -> list[float]:
    """Regrets of ``continue_on_target`` for every policy, stacked where that can be."""
    if not can_train_stacked(policies):
        runs = [continue_on_target(policy, target=target, rounds=rounds, prior_trust=trust) for policy in policies]
        return [run.total_regret for run in runs]
    episodes = -(-rounds // EPISODE)
    settings = TrainSettings(episode_length=EPISODE)
    phases = [Phase(policy, "target", target, None, episodes, policy.seed, settings, rounds) for policy in policies]
    for policy in policies:
        if trust != 1.0:
            policy.trust_prior(trust)
    regrets = []
    for outcome in train_stacked(phases):
        if isinstance(outcome, Exception):
            raise outcome
        regrets.append(outcome.total_regret)
    return regrets


def _discount(policy: Policy) -> float:
    """How much of the source counts in the head; of a network, in that on its latent."""
    trust = policy._head.trust  # type: ignore[attr-defined]
    return float(trust.discount) if trust is not None else 1.0


def machine() -> str:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{platform.machine()}, {os.cpu_count()} cores, {device}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pairs", default="digit,synthetic,amazon")
    parser.add_argument("--methods", default="linucb,linucb-p,daband")
    parser.add_argument("--seeds", type=int, help="at most so many seeds")
    parser.add_argument("--recipe", default="default")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--tiny", action="store_true", help="the pair's small twin, for tests")
    parser.add_argument("--commit", default="")
    parser.add_argument("--join", type=Path)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    if args.join is not None:
        known = json.loads(args.record.read_text()) if args.record.exists() else []
        found = [json.loads(path.read_text()) for path in sorted(args.join.glob("[!.]*.json"))]
        of = {(record["study"], record["method"], record["seed"]): record for record in [*known, *found]}
        args.record.write_text(json.dumps([of[key] for key in sorted(of)], indent=1) + "\n")
        return
    warnings.simplefilter("ignore")
    args.out.mkdir(parents=True, exist_ok=True)
    wanted = args.methods.split(",")
    groups = [(study, method) for study in args.pairs.split(",") for method in STUDIES[study][4] if method in wanted]
    part, parts = (int(text) for text in args.part.split("/"))
    for study, method in groups[part::parts]:
        seeds = range(min(STUDIES[study][3], args.seeds or STUDIES[study][3]))
        if not all((args.out / f"{study}-{method}-{seed}.json").exists() for seed in seeds):
            Group(study, method, seeds, args).run()


if __name__ == "__main__":
    main()
