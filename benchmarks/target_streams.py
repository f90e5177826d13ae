"""Measure learning in a target: 2,000 rounds of a target, after training on its source.

    python benchmarks/target_streams.py --seeds 3 --processes 8 --out benchmarks/records/target-streams.json

A policy trained on the source continues to learn in the target (warm), and the same policy starts
without the source (cold). In the world "as is", two more copies continue with a fixed worth of a
source round: 1 and 0.1. Contexts come in batches of 16. The reward of an arm is 1 if it is the row's
label. In the world "as is", labels are the target's. "reversed" moves each label to the next
arm, "drift" does so after half of the rounds, and "shuffled" permutes the labels of all rows. In a
randomised experiment, only rounds in which the policy chooses the logged arm are counted and
learned (replay). Every second table of later_tables and more_tables is in half 0. The prior weights
of the experts in ``daband/linear/_source_worth.py`` were counted on tables of this half and on some
natural_tables, which are all in half 0, so only half 1 and the experiments are untouched. Data sets
are measured in a fixed order, so that a run that is stopped early has the same fraction of each half.
Data sets with more than 128 features take too long and are left out. The results in ``--out`` are
kept, and their data sets are not measured again.
"""

from __future__ import annotations

import one_thread  # noqa: F401  # isort: skip

import argparse
import copy
import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from machine import commit

import daband
from daband.domains._registry import get_data_directory
from daband.trust._assess import SourceRounds

_ROUNDS = 2000
_BATCH = 16
_MAX_FEATURES = 128
_FOLDERS = ("later_tables", "more_tables", "later_trials", "natural_tables")
_FIXED_WORTHS = (1.0, 0.1)
_STARTS = ("warm", "cold", "worth 1", "worth 0.1")
_WORLDS = ("as is", "reversed", "drift", "shuffled")
_ROLES = ("arm", "reward", "propensity")


def list_data() -> list[tuple[str, int]]:
    """Return the names of all data sets, each with its half."""
    root = get_data_directory()
    names = [
        f"{folder}/{path.name.removesuffix('.csv.gz')}"
        for folder in _FOLDERS
        for path in sorted((root / folder).iterdir())
        if path.suffix != ".md"
    ]
    return [
        (name, 0 if name.startswith("natural_tables") else index % 2)
        for index, name in enumerate(names)
    ]


def load_table(name: str) -> tuple[Any, Any, Any]:
    """Return the pair of a table, and the target's contexts with the rewards of all arms."""
    frame = pl.read_csv(get_data_directory() / f"{name}.csv.gz", infer_schema_length=None)
    source, target = (
        frame.filter(pl.col("domain") == role).drop("domain") for role in ("source", "target")
    )
    columns = describe_columns(frame, context=set(source.columns) - {"arm"}, label="arm")
    domains: dict[str, Any] = {"target": target.drop("arm"), "target_test": target}
    pair = daband.domains.from_table(source=source, **domains, columns=columns, source_test=None)
    assert pair.target_test is not None
    rounds = SourceRounds.read(pair.target_test, 12_000, seed=0)
    return pair, rounds.contexts, rounds.rewards


def load_trial(name: str) -> tuple[Any, Any, Any]:
    """Return the pair of an experiment, and the target's contexts with the rewards of the logged
    arms; the rewards of other arms are NaN.
    """
    source, target = (
        pl.read_csv(get_data_directory() / name / f"{role}.csv.gz", infer_schema_length=None)
        for role in ("source", "target")
    )
    context = set(source.columns) - {*_ROLES, "school", "strip"}
    roles = {role: role for role in _ROLES}
    columns = describe_columns(source, context=context, **roles)
    contexts = target.select(sorted(context))
    pair = daband.domains.from_table(source=source, target=contexts, columns=columns)
    arms = np.array([list(pair.class_names).index(str(arm)) for arm in target["arm"]])
    rewards = np.full((len(target), pair.n_arms), np.nan)
    rewards[np.arange(len(target)), arms] = target["reward"]
    return pair, pair.target.read(np.arange(len(target))), rewards


def describe_columns(frame: pl.DataFrame, *, context: set[str], **roles: Any) -> Any:
    """Return the columns of a table, whose texts are categories."""
    names = sorted(context)
    categorical = [name for name in names if frame[name].dtype == pl.String]
    return daband.domains.Columns(context=names, categorical=categorical, **roles)


def make_rewards(rewards: Any, world: str, rng: np.random.Generator) -> Any:
    """Return the rewards (n, K) of all arms in a world."""
    moved = np.roll(rewards, 1, axis=1)
    is_late = (np.arange(len(rewards)) >= len(rewards) // 2)[:, None]
    if world == "shuffled":
        return rng.permutation(rewards)
    return {"as is": rewards, "reversed": moved, "drift": np.where(is_late, moved, rewards)}[world]


def play(policy: daband.Policy, contexts: Any, rewards: Any) -> Any:
    """Return the rewards of all rounds whose reward is known."""
    received = []
    for start in range(0, len(contexts), _BATCH):
        batch = contexts[start : start + _BATCH]
        arms = policy.select(batch, domain="target").arm
        reward = rewards[start : start + _BATCH][np.arange(len(arms)), arms]
        is_known = np.isfinite(reward)
        if is_known.any():
            policy.update(batch[is_known], arms[is_known], reward[is_known], domain="target")
            received.append(reward[is_known])
    return np.concatenate(received)


def measure(task: tuple[str, int, int, list[str]]) -> list[dict[str, Any]]:
    """Return the mean rewards of warm and cold policies on one data set."""
    name, half, seed, worlds = task
    is_trial = name.startswith("later_trials")
    pair, contexts, rewards = (load_trial if is_trial else load_table)(name)
    results: list[dict[str, Any]] = []
    if contexts.shape[1] > _MAX_FEATURES:
        return results
    for policy_name, policy_class in (("linucb", daband.LinUCB), ("mixture", daband.Mixture)):
        settings: dict[str, Any] = {"network": False} if policy_name == "mixture" else {}
        trained = policy_class.for_pair(pair, seed=seed, **settings)
        cold_start = copy.deepcopy(trained)
        daband.train(trained, source=pair.source, target=pair.target, seed=seed)
        n_source = min(len(pair.source), 4096)
        cold_start.prepare(pair.source.batch(0, n_source, seed=0), contexts[:4096])
        for world in ["as is"] if is_trial else worlds:
            rng = np.random.default_rng(seed)
            passes = [rng.permutation(len(contexts)) for _ in range(_ROUNDS // len(contexts) + 1)]
            rows = np.concatenate(passes)[:_ROUNDS]
            world_rewards = make_rewards(rewards[rows], world, rng)
            result: dict[str, Any] = {}
            starts: list[tuple[str, Any, float | None]] = [
                ("warm", trained, None),
                ("cold", cold_start, None),
            ]
            if world == "as is":
                starts += [(f"worth {worth:g}", trained, worth) for worth in _FIXED_WORTHS]
            for start, policy, fixed_worth in starts:
                learner = copy.deepcopy(policy)
                learner._set_fixed_worth(fixed_worth)
                received = play(learner, contexts[rows], world_rewards)
                windows = [received, received[:50], received[50:200], received[-400:]]
                result[start] = [round(float(window.mean()), 4) for window in windows]
                worth = getattr(getattr(learner, "_head", None), "worth", None)
                if start == "warm" and worth is not None:
                    result["best expert"] = int(np.argmin(worth.total_errors))
            if is_trial:  # rewards have different units
                result["deviation"] = float(np.nanstd(rewards))
            results.append(
                {"data": name, "half": half, "seed": seed, "policy": policy_name, "world": world}
                | result
            )
    return results


def summarise(results: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the means for each policy, world and half of the tables, and the losses against the
    better cold start.
    """
    summary = {}
    rows = [row for row in results if "deviation" not in row]
    for key in sorted({(row["policy"], row["world"], row["half"]) for row in rows}):
        policy, world, half = key
        group = [row for row in rows if (row["policy"], row["world"], row["half"]) == key]
        best_cold = [
            max(
                other["cold"][0]
                for other in rows
                if all(other[name] == row[name] for name in ("data", "seed", "world"))
            )
            for row in group
        ]
        warm, own_cold = (np.array([row[start][0] for row in group]) for start in ("warm", "cold"))
        differences = warm - best_cold
        experts = [row["best expert"] for row in group if "best expert" in row]
        summary[f"{policy}, {world}, half {half}"] = {
            "streams": len(group),
            **{
                start: np.mean([row[start] for row in group], axis=0).round(4).tolist()
                for start in _STARTS
                if start in group[0]
            },
            "more than 0.01 below the better cold start": int((differences < -0.01).sum()),
            "worst difference": round(float(differences.min()), 4),
            "worst difference from its own cold start": round(float((warm - own_cold).min()), 4),
            "streams for which each expert is best": np.bincount(experts, minlength=5).tolist(),
        }
    for row in results:
        if "deviation" in row:
            gain = (row["warm"][0] - row["cold"][0]) / row["deviation"]
            trial = summary.setdefault(f"{row['policy']}, {row['data']}", {"gains": []})
            trial["gains"].append(round(gain, 4))
    return summary


def main() -> None:
    """Measure all data sets, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="use every n-th data set of each half")
    parser.add_argument("--data", nargs="*", help="use only these data sets, in this order")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--worlds", nargs="*", default=list(_WORLDS))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    data = list_data()
    chosen = [item for index, item in enumerate(data) if index // 2 % arguments.every == 0]
    if arguments.data:
        chosen = [(name, dict(data)[name]) for name in arguments.data]
    tasks = [
        (name, half, seed, arguments.worlds)
        for seed in range(arguments.seeds)
        for name, half in chosen
    ]
    results: list[dict[str, Any]] = []
    if arguments.out.exists():
        results = json.loads(arguments.out.read_text())["results"]
    measured = {(row["data"], row["seed"]) for row in results}
    tasks = [task for task in tasks if (task[0], task[2]) not in measured]
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for rows in pool.imap_unordered(measure, tasks):
            results += rows
            record = {"commit": commit(), "summary": summarise(results), "results": results}
            arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
