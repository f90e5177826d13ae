"""Committees of policies for the study of `daband.assess`: good, half-trained and collapsed, of several methods.

    python benchmarks/trust_policies.py --export-tables tables.npz                  # warfarin as arrays: needs polars
    python benchmarks/trust_policies.py --out scores --pairs vectors --tables tables.npz --device cpu --part 0/12
    python benchmarks/trust_policies.py --out scores --pairs images --part 0/4      # a quarter of it; uses a GPU
    python benchmarks/trust_policies.py --out scores --pairs synthetic --only daband,linucb  # some methods

Numpy, scipy, scikit-learn, torch and safetensors are enough (image folders need PIL; warfarin needs polars, or the file
that ``--export-tables`` wrote where polars is). ``vectors`` are synthetic, amazon, office_caltech and warfarin;
``images`` are handwritten, digit and signs. One file per pair, variant and stage of training,
``PAIR--VARIANT--STAGE.npz``; a file that is there is not made again, and processes that share a folder each take what
nobody has begun (PAIR--VARIANT.claim). It holds, for every seed of the committee, what
the policy predicts (scaled to [0, 1]) and chooses on held-out source contexts, on target contexts, on the evaluator's
target contexts and on source contexts under simulated shifts, the widths of chosen arms, some latents, and the expected
rewards of both domains.
The rewards of the target are for the judgement of an estimate alone; ``benchmarks/trust_study.py`` reads the files.

Seeds of a method are trained stacked on a GPU. Half-trained policies are the same runs at an earlier episode.
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from choose import claimed
from trust_problems import GROUPS, Problem, Variant, problems, variants

import daband
from daband.domains.contract import EvaluationDomain, Pair, RewardDomain
from daband.policies import Policy, can_stack
from daband.policies.for_pair import default_transform
from daband.training import Training, TrainSettings, train_stacked

MOST_SOURCE, MOST_TARGET, MOST_LATENTS, MOST_SIMULATED = 2000, 2000, 300, 500
MOST_TEST = 3000
STAGES = (0.12, 0.4, 1.0)
"""Shares of the training at which a committee is kept."""
LOWEST, HIGHEST = -0.25, 1.25
"""Predictions are kept as 8-bit numbers between these."""
EPISODE = 64
TABLE_PARTS = (
    "source",
    "source_rewards",
    "source_test",
    "source_test_rewards",
    "target",
    "target_test",
    "target_test_rewards",
)


def build(variant: Variant, pair: Pair, *, seed: int, device: str) -> Policy:
    """The policy of a variant for a pair."""
    kind: Any = {"daband": daband.DABand, "nlinucb": daband.NeuralLinUCB, "linucb": daband.LinUCB}[variant.method]
    settings = dict(variant.settings)
    if variant.components is not None:
        settings["transform"] = default_transform(kind, pair, components=variant.components)
    if variant.method != "linucb":
        settings["device"] = device
    policy: Policy = kind.for_pair(pair, seed=seed, **settings)
    return policy


def scored(policy: Policy, contexts: np.ndarray, domain: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predicted rewards as 8-bit numbers, (N, K), chosen arms, (N,), and the scaled widths of their means, (N,)."""
    low, high = policy.reward_range
    parts = [
        policy.decide(contexts[start : start + 1024], domain, rule="ucb", round_offset=start)
        for start in range(0, len(contexts), 1024)
    ]
    mean = (np.concatenate([part.mean for part in parts]) - low) / (high - low)
    levels = np.clip(np.rint((mean - LOWEST) / (HIGHEST - LOWEST) * 255), 0, 255)
    arm = np.concatenate([part.arm for part in parts])
    width = np.concatenate([part.width for part in parts])[np.arange(len(arm)), arm] / (high - low)
    return levels.astype(np.uint8), arm.astype(np.uint8), width.astype(np.float16)


def latents(policy: Policy, contexts: np.ndarray, domain: str) -> np.ndarray:
    """Latents (N, d) of the first contexts; empty where the policy has none."""
    if not hasattr(policy, "latent"):
        return np.zeros((0, 0), np.int8)
    found = policy.latent(contexts[:MOST_LATENTS], domain)
    flat = np.asarray(found, np.float64).reshape(len(found), -1)
    return np.clip(np.rint(flat * 127), -127, 127).astype(np.int8)


def simulated_shifts(source: np.ndarray, target: np.ndarray) -> dict[str, np.ndarray]:
    """Source contexts (N, *C) as other domains might show them: noisy, mixed with target contexts, partly covered."""
    draw = np.random.default_rng(7)
    n = min(MOST_SIMULATED, len(source))
    here = source[:n].astype(np.float64)
    there = target[draw.integers(len(target), size=n)].astype(np.float64)
    spread = here.reshape(n, -1).std(axis=0).reshape(here.shape[1:]) if source.dtype != np.uint8 else 60.0
    flat_length = int(np.prod(here.shape[1:]))
    shifted = {}
    for level in (0.5, 1.0):
        shifted[f"noise {level:g}"] = here + level * spread * draw.standard_normal(here.shape)
    for level in (0.3, 0.5):
        shifted[f"mixed {level:g}"] = (1.0 - level) * here + level * there
    if source.dtype == np.uint8:  # a block of columns
        begins = draw.integers(here.shape[-1] * 2 // 3, size=n)
        columns = np.arange(here.shape[-1])[None, :]
        covered = ((columns >= begins[:, None]) & (columns < begins[:, None] + here.shape[-1] // 3)).reshape(
            n, *[1] * (here.ndim - 2), -1
        )
    else:
        covered = (draw.random((n, flat_length)) < 0.4).reshape(here.shape)
    shifted["covered"] = np.where(covered, there, here)
    if source.dtype == np.uint8:
        return {name: np.clip(rows, 0, 255).astype(np.uint8) for name, rows in shifted.items()}
    return shifted


@dataclass(frozen=True)
class Seen:
    """The contexts that every committee of a problem is judged on."""

    source: np.ndarray
    source_expected: np.ndarray
    target: np.ndarray
    test: np.ndarray
    test_expected: np.ndarray
    shifted: dict[str, np.ndarray]
    """Source contexts under simulated shifts."""


def contexts_of(pair: Pair) -> Seen:
    """Held-out source contexts, target contexts as training sees them, and the evaluator's."""
    source, test = pair.source_test, pair.require_target_test()
    assert isinstance(source, EvaluationDomain)
    n, m = min(len(source), MOST_SOURCE), min(len(test), MOST_TEST)
    rows = np.random.default_rng(0).permutation(len(pair.target))[:MOST_TARGET]
    here, there = source.read(0, n), pair.target.read(rows)
    return Seen(
        here,
        source.read_expected(0, n),
        there,
        test.read(0, m),
        test.read_expected(0, m),
        simulated_shifts(here, there),
    )


def dump(path: Path, policies: Sequence[Policy], seen: Seen, about: dict[str, Any]) -> None:
    """Write one committee."""
    columns: dict[str, list[np.ndarray]] = {}
    for policy in policies:
        for name, contexts, domain in (
            ("source", seen.source, "source"),
            ("target", seen.target, "target"),
            ("test", seen.test, "target"),
        ):
            mean, arm, width = scored(policy, contexts, domain)
            columns.setdefault(f"{name}_arm", []).append(arm)
            if name != "test":
                columns.setdefault(f"{name}_mean", []).append(mean)
                columns.setdefault(f"{name}_width", []).append(width)
                columns.setdefault(f"{name}_latent", []).append(latents(policy, contexts, domain))
        arms = [scored(policy, contexts, "source")[1] for contexts in seen.shifted.values()]
        columns.setdefault("simulated_arm", []).append(np.stack(arms))
    arrays: dict[str, Any] = {name: np.stack(parts) for name, parts in columns.items()}
    arrays |= {
        "source_expected": seen.source_expected.astype(np.float32),
        "test_expected": seen.test_expected.astype(np.float32),
    }
    part = path.with_suffix(".part.npz")
    np.savez_compressed(part, about=json.dumps(about), **arrays)
    part.rename(path)


def train_committee(
    problem: Problem, variant: Variant, pair: Pair, seen: Seen, out: Path, arguments: argparse.Namespace
) -> Iterator[str]:
    """Train the seeds of a variant and keep the committee at every stage; yields a line about each."""
    episodes = problem.episodes or pair.source.rounds_available // EPISODE
    episodes = min(max(10, int(episodes * arguments.scale)), pair.source.rounds_available // EPISODE)
    kept_at = {"daband": STAGES, "nlinucb": STAGES[::2], "linucb": STAGES[::2]}.get(variant.label, STAGES[-1:])
    stages = {max(1, round(share * episodes)): share for share in kept_at}
    stem = f"{problem.label.replace('/', '_')}--{variant.label}"
    paths = {episode: out / f"{stem}--{share:g}.npz" for episode, share in stages.items()}
    if all(path.exists() for path in paths.values()) or not claimed(out / stem):
        return
    policies = [build(variant, pair, seed=seed, device=arguments.device) for seed in range(arguments.seeds)]
    kept: dict[int, int] = dict.fromkeys(stages, 0)
    lines: list[str] = []
    started = time.perf_counter()

    def after(_: int) -> Callable[[dict[str, float]], None]:
        def look(record: dict[str, float]) -> None:
            episode = int(record["episode"])
            if episode in kept:
                kept[episode] += 1
                if kept[episode] == len(policies) and stackable:
                    keep(episode)

        return look

    def keep(episode: int) -> None:
        about = {
            "problem": problem.label,
            "family": problem.label.split("/")[0],
            "variant": variant.label,
            "stage": stages[episode],
            "episodes": episode,
            "seeds": list(range(arguments.seeds)),
            "n_arms": pair.n_arms,
            "feedback": pair.feedback,
            "recipe": arguments.recipe,
            "simulated": list(seen.shifted),
            "commit": arguments.commit,
        }
        dump(paths[episode], policies, seen, about)
        lines.append(f"{paths[episode].name} after {time.perf_counter() - started:.0f} s")

    stackable = (arguments.device.startswith("cuda") or arguments.stacked) and can_stack(policies)
    common: dict[str, Any] = {"source": pair.source, "target": pair.target, "episode_length": EPISODE}
    if stackable:
        work = [
            Training(
                policy,
                pair.source,
                pair.target,
                TrainSettings(episodes=episodes, episode_length=EPISODE, progress=after(i)),
            )
            for i, policy in enumerate(policies)
        ]
        for outcome in train_stacked(work):
            if isinstance(outcome, Exception):
                lines.append(f"{stem}: {outcome}")
        yield from lines
        return
    # One after the other: each is kept in memory at its stages, as bytes, and committees are put together at the end.
    snapshots: dict[int, list[Policy]] = {episode: [] for episode in stages}
    for policy in policies:

        def snapshot(record: dict[str, float], policy: Policy = policy) -> None:
            episode = int(record["episode"])
            if episode in snapshots and episode != episodes:
                snapshots[episode].append(frozen(policy, out))

        try:
            daband.train(policy, **common, episodes=episodes, progress=snapshot)
        except daband.TrainingDiverged as error:
            yield f"{stem}: {error}"
            return
        snapshots[episodes].append(policy)
    for episode, some in snapshots.items():
        policies[:] = some
        keep(episode)
    yield from lines


def frozen(policy: Policy, out: Path) -> Policy:
    """A copy of the policy as it stands."""
    path = out / f".snapshot-{id(policy)}-{time.monotonic_ns()}.safetensors"
    policy.save(path)
    copy = daband.load(path)
    path.unlink()
    return copy


def load_pair(problem: Problem, tables: Path | None) -> Pair:
    """The pair of a problem; warfarin from exported arrays where there are some."""
    if tables is None or not problem.pair.startswith("warfarin"):
        return daband.domains.load(problem.pair, **problem.options)
    with np.load(tables) as packed:
        parts = {name: packed[f"{problem.label} {name}"] for name in TABLE_PARTS}
    return daband.domains.from_arrays(
        source=(parts["source"], parts["source_rewards"].argmax(axis=1)),
        source_test=(parts["source_test"], parts["source_test_rewards"].argmax(axis=1)),
        target=parts["target"],
        target_test=(parts["target_test"], parts["target_test_rewards"].argmax(axis=1)),
        n_arms=3,
        passes=problem.options["passes"],
        name=problem.label,
    )


def export_tables(path: Path) -> None:
    """Write warfarin's pairs as arrays."""
    arrays: dict[str, Any] = {}
    for problem in problems()["warfarin"]:
        pair = daband.domains.load(problem.pair, **problem.options)
        every = np.arange(len(pair.source))
        held, test = pair.source_test, pair.require_target_test()
        assert isinstance(held, EvaluationDomain)
        assert isinstance(pair.source, RewardDomain)
        values = (
            pair.source.read(every),
            pair.source.read_rewards(every)[0],
            held.read(0, len(held)),
            held.read_expected(0, len(held)),
            pair.target.read(np.arange(len(pair.target))),
            test.read(0, len(test)),
            test.read_expected(0, len(test)),
        )
        arrays |= {f"{problem.label} {name}": value for name, value in zip(TABLE_PARTS, values, strict=True)}
    np.savez_compressed(path, **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tables", type=Path, help="what --export-tables wrote")
    parser.add_argument("--export-tables", type=Path, help="write warfarin as arrays, and nothing else")
    parser.add_argument("--pairs", default="vectors", help="families, groups (vectors, images) or problems, by commas")
    parser.add_argument("--only", default="", help="variants, by commas; all by default")
    parser.add_argument("--seeds", type=int, default=3, help="members of a committee")
    parser.add_argument("--recipe", default="default", help="the recipe that neural variants change; small on a CPU")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual episodes")
    parser.add_argument("--part", default="0/1", help="I/N: this process does every N-th problem and variant")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--stacked", action="store_true", help="train seeds in a stack without a GPU too")
    parser.add_argument("--commit", default="")
    arguments = parser.parse_args()
    if arguments.export_tables:
        export_tables(arguments.export_tables)
        return
    if arguments.out is None:
        parser.error("--out is needed")
    arguments.out.mkdir(parents=True, exist_ok=True)
    families = problems()
    chosen: list[Problem] = []
    for name in arguments.pairs.split(","):
        for family in GROUPS.get(name, (name,)):
            chosen += families.get(family, [])
        chosen += [one for some in families.values() for one in some if one.label == name]
    if not chosen:
        parser.error(f"no problem is called {arguments.pairs!r}; families: {', '.join(families)}")
    index, of = map(int, arguments.part.split("/"))
    wanted = [name for name in arguments.only.split(",") if name]
    work = [
        (problem, variant)
        for problem in chosen
        for variant in variants(image=problem.label.split("/")[0] in GROUPS["images"], base=arguments.recipe)
        if not wanted or variant.label in wanted
    ]
    work = [one for one in work if zlib.crc32(f"{one[0].label} {one[1].label}".encode()) % of == index]
    loaded: tuple[str, Pair, Seen] | None = None
    for problem, variant in work:
        if loaded is None or loaded[0] != problem.label:
            pair = load_pair(problem, arguments.tables)
            loaded = problem.label, pair, contexts_of(pair)
        for line in train_committee(problem, variant, loaded[1], loaded[2], arguments.out, arguments):
            print(line, flush=True)


if __name__ == "__main__":
    main()
