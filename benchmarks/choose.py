"""How well `daband.choose` chooses: what every candidate predicts and chooses on all shared pairs, and the rule on it.

    python benchmarks/choose.py --export-tables tables.npz                          # warfarin as arrays: needs polars
    python benchmarks/choose.py --out scores --pairs vectors --tables tables.npz --device cpu --commit HASH   # per core
    python benchmarks/choose.py --out scores --pairs images --commit HASH                       # uses a GPU
    python benchmarks/choose_study.py --scores scores --record benchmarks/records/choose.json   # the rule on them

Training needs numpy, scipy, scikit-learn, torch and safetensors alone. One file per pair and candidate:
``PAIR--CANDIDATE.npz``, with the predictions and choices of every seed on held-out source contexts, on target contexts
and on the evaluator's target contexts, the expected rewards of both domains, the regret in the source and the accuracy
in the target. The target's rewards judge the choice and have no part in it. Several processes may share a folder: each
takes what nobody has begun (PAIR--CANDIDATE.claim). Random and NLinUCB-P are trained as well: they are rows of the
table of methods and no candidates of ``choose``.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import daband
from daband.domains.contract import EvaluationDomain, Pair, RewardDomain
from daband.policies import Policy, can_stack
from daband.training import Run, Training, TrainSettings, train_stacked
from daband.trust.candidates import Candidate, default_candidates

EPISODE = 64
MOST = 3000
AMAZON = ("books", "dvd", "elec", "kitchen")
OFFICE = ("amazon", "caltech10", "dslr", "webcam")
RACES = ("white", "asian", "black")
DIGITS = ("mnist", "usps", "semeion")
BASELINES = (Candidate("random", "random"), Candidate("nlinucb-p", "nlinucb-p"))
"""Methods that the table of methods has and ``choose`` does not try."""
PARTS = ("source", "source_rewards", "held", "held_rewards", "target", "test", "test_rewards")


def _ordered(name: str, domains: Sequence[str], **options: Any) -> dict[str, tuple[str, dict[str, Any], int | None]]:
    labels = [f"{name}/{a}-{b}" for a in domains for b in domains if a != b]
    return {label: (label, options, None) for label in labels}


FAMILIES: dict[str, dict[str, tuple[str, dict[str, Any], int | None]]] = {
    "amazon": _ordered("amazon", AMAZON, passes=3),
    "office_caltech": _ordered("office_caltech", OFFICE, passes=5),
    "warfarin": _ordered("warfarin", RACES, passes=2),
    "synthetic": {"synthetic": ("synthetic", {}, 100)},
    "handwritten": {
        f"handwritten/{a}-{b}": (
            f"handwritten/{a}-{b}",
            {"passes": 8 if a == "semeion" else 2, "target_passes": 16},
            100,
        )
        for a in DIGITS
        for b in DIGITS
        if a != b
    },
    "digit": {"digit": ("digit", {}, 300)},
    "signs": {"signs": ("signs", {"passes": 5}, None)},
}
"""By family and label: the pair, its options as in its preset, and the episodes; None: all its rounds."""
GROUPS = {"vectors": ("amazon", "office_caltech", "warfarin", "synthetic"), "images": ("signs", "digit", "handwritten")}


def load_pair(label: str, tables: Path | None) -> tuple[Pair, int]:
    """The pair, and its episodes; warfarin from exported arrays where there are some."""
    name, options, episodes = FAMILIES[label.split("/", maxsplit=1)[0]][label]
    if tables is not None and label.startswith("warfarin"):
        with np.load(tables) as packed:
            part = {key: packed[f"{label} {key}"] for key in PARTS}
        pair = daband.domains.from_arrays(
            source=(part["source"], part["source_rewards"].argmax(axis=1)),
            source_test=(part["held"], part["held_rewards"].argmax(axis=1)),
            target=part["target"],
            target_test=(part["test"], part["test_rewards"].argmax(axis=1)),
            n_arms=part["source_rewards"].shape[1],
            passes=options["passes"],
            name=label,
        )
        pair = replace(pair, about=replace(pair.about, summary=f"{label}, exported as arrays"))
    else:
        pair = daband.domains.load(name, **options)
    return pair, min(episodes or 10**9, pair.source.rounds_available // EPISODE)


def export_tables(path: Path) -> None:
    """Write warfarin's pairs as arrays."""
    arrays: dict[str, Any] = {}
    for label in FAMILIES["warfarin"]:
        pair, _ = load_pair(label, None)
        assert isinstance(pair.source, RewardDomain)
        every = np.arange(len(pair.source))
        held, test = pair.source_test, pair.require_target_test()
        assert isinstance(held, EvaluationDomain)
        values = (
            pair.source.read(every),
            pair.source.read_rewards(every)[0],
            held.read(0, len(held)),
            held.read_expected(0, len(held)),
            pair.target.read(np.arange(len(pair.target))),
            test.read(0, len(test)),
            test.read_expected(0, len(test)),
        )
        arrays |= {f"{label} {name}": value for name, value in zip(PARTS, values, strict=True)}
    np.savez_compressed(path, **arrays)


def decided(policy: Policy, contexts: np.ndarray, domain: str) -> tuple[np.ndarray, np.ndarray]:
    """Predicted rewards (N, K), scaled to [0, 1] by the reward range, and chosen arms (N,)."""
    low, high = policy.reward_range
    parts = [
        policy.decide(contexts[start : start + 1024], domain, rule="ucb", round_offset=start)
        for start in range(0, len(contexts), 1024)
    ]
    mean = (np.concatenate([part.mean for part in parts]) - low) / (high - low)
    return mean.astype(np.float16), np.concatenate([part.arm for part in parts]).astype(np.uint8)


def train_seeds(policies: list[Policy], pair: Pair, episodes: int, device: str) -> list[Run]:
    """Train a policy per seed, stacked on a GPU."""
    if device.startswith("cuda") and can_stack(policies):
        runs = []
        settings = TrainSettings(episodes=episodes, episode_length=EPISODE)
        for outcome in train_stacked([Training(policy, pair.source, pair.target, settings) for policy in policies]):
            if isinstance(outcome, Exception):
                raise outcome
            runs.append(outcome)
        return runs
    return [
        daband.train(policy, source=pair.source, target=pair.target, episodes=episodes, episode_length=EPISODE)
        for policy in policies
    ]


def dump(path: Path, label: str, candidate: Candidate, pair: Pair, episodes: int, arguments: argparse.Namespace) -> str:
    """Train a candidate and write what its seeds predict and choose."""
    started = time.perf_counter()
    seeds = list(range(arguments.seeds))
    policies = [candidate.build(pair, seed=seed, device=arguments.device) for seed in seeds]
    runs = train_seeds(policies, pair, episodes, arguments.device)
    held, test = pair.source_test, pair.require_target_test()
    assert isinstance(held, EvaluationDomain)
    n, m = min(MOST, len(held)), min(MOST, len(test))
    rows = np.random.default_rng(0).permutation(len(pair.target))[:MOST]
    sets = {"source": held.read(0, n), "target": pair.target.read(rows), "test": test.read(0, m)}
    arrays: dict[str, Any] = {}
    for name, contexts in sets.items():
        found = [decided(policy, contexts, "source" if name == "source" else "target") for policy in policies]
        arrays[f"{name}_mean"], arrays[f"{name}_arm"] = (np.stack(column) for column in zip(*found, strict=True))
    about = {
        "pair": label,
        "data": pair.about.summary,
        "candidate": candidate.name,
        "method": candidate.method,
        "settings": dict(candidate.settings),
        "seeds": seeds,
        "episodes": episodes,
        "episode_length": EPISODE,
        "rounds": [run.rounds for run in runs],
        "source_regret": [float(run.total_regret) for run in runs],
        "seconds": round(time.perf_counter() - started, 1),
        "accuracy": [float(daband.evaluate(policy, test).accuracy) for policy in policies],
        "reward_range": list(policies[0].reward_range),
        "device": torch.cuda.get_device_name() if arguments.device.startswith("cuda") else "cpu",
        "torch": torch.__version__,
        "commit": arguments.commit,
    }
    arrays["source_expected"] = held.read_expected(0, n).astype(np.float32)
    arrays["test_expected"] = test.read_expected(0, m).astype(np.float32)
    part = path.with_suffix(".part.npz")
    np.savez_compressed(part, about=json.dumps(about), **arrays)
    part.rename(path)
    return f"{path.name}: {np.mean(about['accuracy']):.3f} in {about['seconds']} s"


def claimed(path: Path) -> bool:
    """Whether this process is the first to begin this file: several share a folder."""
    try:
        path.with_suffix(".claim").open("x").close()
    except FileExistsError:
        return False
    return True


def train_all(arguments: argparse.Namespace) -> None:
    """Train what is asked for; this part of it."""
    started = time.perf_counter()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(arguments.threads)
    families = [family for name in arguments.pairs.split(",") for family in GROUPS.get(name, (name,))]
    labels = [label for family in families for label in FAMILIES.get(family, {family: None})]
    index, of = map(int, arguments.part.split("/"))
    wanted = [name for name in arguments.only.split(",") if name]
    for label in labels:
        try:
            pair, episodes = load_pair(label, arguments.tables)
        except ModuleNotFoundError as error:
            print(f"{label} is left out: {error}; give --tables", flush=True)
            continue
        for candidate in (*default_candidates(pair), *BASELINES):
            stem = candidate.name.replace(", ", "-").replace(" ", "-")
            mine = zlib.crc32(f"{label} {candidate.name}".encode()) % of == index
            path = arguments.out / f"{label.replace('/', '_')}--{stem}.npz"
            if time.perf_counter() - started > arguments.seconds:
                return
            if mine and (not wanted or candidate.method in wanted) and not path.exists() and claimed(path):
                try:
                    print(dump(path, label, candidate, pair, episodes, arguments), flush=True)
                except Exception:  # the others go on
                    traceback.print_exc()


def main() -> None:
    """Train, or study the rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tables", type=Path, help="what --export-tables wrote")
    parser.add_argument("--export-tables", type=Path, help="write warfarin as arrays, and nothing else")
    parser.add_argument("--pairs", default="vectors", help="groups (vectors, images), families or pairs, by commas")
    parser.add_argument("--only", default="", help="methods, by commas; all by default")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of torch, on the CPU")
    parser.add_argument("--part", default="0/1", help="I/N: this process does every N-th pair and candidate")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--commit", default="")
    arguments = parser.parse_args()
    if arguments.export_tables:
        export_tables(arguments.export_tables)
    elif arguments.out is None:
        parser.error("--out is needed")
    else:
        train_all(arguments)


if __name__ == "__main__":
    main()
