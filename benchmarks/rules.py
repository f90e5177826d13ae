"""Compare trees of depth 2 (``daband.rules``) with the full policy and the best arm.

    python benchmarks/rules.py --out benchmarks/records/rules.json
    python benchmarks/rules.py --part engines --rows 1000000 --out benchmarks/records/rules.json

``experiments`` learns from one domain of each experiment and evaluates on the randomised log of the
other. ``planted`` has simulated effects (``trials.py``), with the gain of the trees that are
best for the true effects; ``full`` problems in which the rewards of all arms are known, in logs and
in full. Values are in standard deviations of the reward. ``speed`` measures a search on 20,000 rows,
20 columns and 4 arms, and ``daband.rules`` on a log of this size. ``engines`` compares the arms of random
rules by their JSON tree, DuckDB, SQLite, rules.json and the deployed file. A part replaces its rows in the
record.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from machine import commit
from parallel import run_jobs
from trials import SETTINGS, plant, read_contexts
from verdicts import list_experiments, load_pair

import daband
from daband.domains import Columns, Pair
from daband.logs._mean_estimates import estimate_mean
from daband.logs._scores import Scores
from daband.logs._tree_search import CodedColumn, search_tree
from daband.trust import Candidate
from daband.trust._rule_columns import MAX_CUTS, list_columns

DATA = Path(os.environ.get("DABAND_DATA", ""))
LOG = (Candidate("log", "log", preferred=True),)
FULL = (Candidate("supervised", "supervised", preferred=True),)


def compare(
    pair: Pair, contexts: np.ndarray, scores: np.ndarray, candidates: Any = LOG
) -> dict[str, Any]:
    """Return the values of the policy, the rule and the best arm by scores (n, K) of contexts."""
    choice = daband.choose(pair, candidates=candidates)
    start = time.process_time()
    rules = daband.rules(choice, pair=pair, max_depth=2)
    seconds = time.process_time() - start
    rows = np.arange(len(scores))
    arm_names = list(pair.class_names) or [str(arm) for arm in range(pair.n_arms)]
    best = arm_names.index(rules.best_arm)
    names = "policy", "rule"
    arms = [
        policy.decide(contexts, "target", rule="greedy").arm
        for policy in (choice.policy, rules.policy)
    ]
    result: dict[str, Any] = {"proven": rules.proven, "seconds": round(seconds, 2)}
    for name, chosen in zip(names, arms, strict=True):
        gain = estimate_mean(scores[rows, chosen] - scores[:, best])
        result[name] = gain.value
        result[f"{name}_error"] = gain.standard_error
    result["estimated_gain"] = rules.gain
    result["estimated_loss"] = [rules.loss, rules.loss_low, rules.loss_high]
    return result


def measure_experiment(folder: Path, is_reversed: bool) -> dict[str, Any]:
    pair, truth = load_pair(folder, is_reversed)
    rounds = truth.source.read_rounds(np.arange(len(truth.source)))
    deviation = float(pair.source.read_log(np.arange(len(pair.source)))[1].std())
    scores = Scores(rounds, pair.n_arms).values / deviation
    row = {"experiment": folder.name, "reversed": is_reversed, "deviation": deviation}
    return row | compare(pair, rounds.contexts, scores)


def measure_planted(index: int, seed: int) -> dict[str, Any]:
    name, n, n_arms, effect, rate, rule = SETTINGS[index]
    log, tested, means = plant(read_contexts(name), n, n_arms, effect, rate, rule, seed)
    arrays = log.contexts, log.arms, log.rewards, log.propensities
    pair = daband.domains.from_log(source=arrays, target=tested, n_arms=n_arms)
    row: dict[str, Any] = {
        "contexts": name,
        "n": n,
        "arms": n_arms,
        "effect": effect,
        "rate": rate,
        "rule_of": rule,
        "seed": seed,
    }
    gains = means - means[:, [means.mean(axis=0).argmax()]]
    row["possible"] = float(gains.max(axis=1).mean())
    row["possible_trees"] = {
        depth: search_best_tree(pair, tested, gains, depth) for depth in (2, 3)
    }
    return row | compare(pair, tested, means)


def search_best_tree(pair: Pair, contexts: np.ndarray, gains: np.ndarray, depth: int) -> float:
    """Return the mean gain of the tree that is best for the true gains (n, K) of contexts."""
    columns = list_columns(pair, contexts, MAX_CUTS[depth])
    total, _ = search_tree(gains, [column.coded for column in columns], depth=depth)
    return total / len(gains)


def measure_full(folder: Path, seed: int) -> dict[str, Any]:
    """Learn from a log of uniform arms, or from all rewards if ``seed`` is -1."""
    frames = [
        pl.read_csv(folder / f"{part}.csv.gz", infer_schema_length=None)
        for part in ("source", "target")
    ]
    names = [name for name in frames[0].columns if name.startswith("arm_")]
    context = [name for name in frames[0].columns if not name.startswith("arm_")]
    categorical = [name for name in context if not frames[0][name].dtype.is_numeric()]
    rewards, truth = (frame.select(names).to_numpy().astype(float) for frame in frames)
    if seed < 0:
        columns = Columns(context, categorical, rewards=names)
        source = frames[0]
    else:
        arms = np.random.default_rng(seed).integers(0, len(names), len(rewards))
        source = frames[0].select(context)
        source = source.with_columns(
            arm=pl.Series([names[arm] for arm in arms]),
            reward=pl.Series(rewards[np.arange(len(arms)), arms]),
            p=pl.lit(1 / len(names)),
        )
        columns = Columns(context, categorical, arm="arm", reward="reward", propensity="p")
    target = frames[1].select(context)
    arm_names: dict[str, Any] = {} if seed < 0 else {"class_names": names}
    full: dict[str, Any] = {"feedback": "full"} if seed < 0 else {}
    pair = daband.domains.from_table(
        source=source, target=target, columns=columns, **arm_names, **full
    )
    contexts = pair.target.read(np.arange(len(pair.target)))
    scores = truth / rewards.std()
    row = {"problem": folder.name, "seed": seed}
    return row | compare(pair, contexts, scores, FULL if seed < 0 else LOG)


def run_experiments(arguments: argparse.Namespace) -> dict[str, Any]:
    jobs = [(folder, side) for folder in list_experiments() for side in (False, True)]
    return {"rows": run_jobs(measure_experiment, jobs, arguments.processes)}


def run_planted(arguments: argparse.Namespace) -> dict[str, Any]:
    order = np.random.default_rng(0).permutation(len(SETTINGS))
    jobs = [(int(index), 0) for index in order if SETTINGS[index][3] >= arguments.min_effect]
    rows = run_jobs(measure_planted, jobs, arguments.processes, arguments.seconds)
    return {"rows": [row for row in rows if row is not None]}


def run_full(arguments: argparse.Namespace) -> dict[str, Any]:
    folders = sorted(path for path in (DATA / "full_rewards").iterdir() if path.is_dir())
    jobs = [(folder, seed) for folder in folders for seed in range(-1, arguments.seeds)]
    return {"rows": run_jobs(measure_full, jobs, arguments.processes)}


def run_speed(_: argparse.Namespace) -> dict[str, Any]:
    """Measure a search of each depth, with 32 and 64 cuts per column, on one core."""
    rng = np.random.default_rng(0)
    rows = []
    for depth, n_cuts in ((1, 64), (2, 32), (2, 64), (3, 16)):
        columns = [
            CodedColumn(rng.integers(0, n_cuts + 1, 20_000), n_cuts, True) for _ in range(20)
        ]
        scores = rng.normal(size=(20_000, 4))
        counts = np.eye(4)[rng.integers(0, 4, 20_000)]
        start = time.perf_counter()
        search_tree(scores, columns, depth=depth, counts=counts, min_count=50)
        seconds = time.perf_counter() - start
        rows.append({"depth": depth, "cuts": n_cuts, "seconds": round(seconds, 2)})
    contexts, arms = rng.normal(size=(20_000, 20)), rng.integers(0, 4, 20_000)
    log = contexts, arms, rng.normal(size=20_000), np.full(20_000, 0.25)
    pair = daband.domains.from_log(source=log, target=contexts[:2000] + 0.5, n_arms=4)
    choice = daband.choose(pair, candidates=LOG)
    start = time.perf_counter()
    daband.rules(choice, pair=pair, max_depth=2)
    return {"rows": rows, "command": round(time.perf_counter() - start, 1)}


def run_engines(arguments: argparse.Namespace) -> dict[str, Any]:
    """Count the rows for which two languages differ."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests import rule_engines as engines

    pair = engines.make_pair(engines.draw_rows(2000, 0), engines.draw_rows(2000, 1))
    rows = engines.draw_rows(arguments.rows, 2)
    policy = engines.make_policy(pair, 1)
    languages: dict[str, Any] = {
        "DuckDB": lambda rule: engines.decide_in_duckdb(rule, rows),
        "SQLite": lambda rule: engines.decide_in_sqlite(rule, rows),
        "rules.json": lambda _: policy.as_deployed().decide(rows).arm_name,
    }
    start = time.perf_counter()
    expected = engines.decide_in_json(policy.rule, rows)
    results = [{"language": "JSON", "seconds": round(time.perf_counter() - start, 1)}]
    for name, decide in languages.items():
        start = time.perf_counter()
        arms = decide(policy.rule)
        seconds = round(time.perf_counter() - start, 1)
        different = sum(a != b for a, b in zip(arms, expected, strict=True))
        results.append({"language": name, "seconds": seconds, "different": different})
        print(results[-1], flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rules.daband"
        daband.export(policy, file)
        start = time.perf_counter()
        arms = daband.load_deployed(file).decide(rows).arm_name
    different = sum(a != b for a, b in zip(arms, expected, strict=True))
    seconds = round(time.perf_counter() - start, 1)
    results.append({"language": "deployed file", "seconds": seconds, "different": different})
    return {"rows": results, "n": arguments.rows}


PARTS = {
    "speed": run_speed,
    "experiments": run_experiments,
    "full": run_full,
    "planted": run_planted,
    "engines": run_engines,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3, help="logs of each full problem")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the part engines")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1200.0, help="time limit of planted")
    parser.add_argument("--min-effect", type=float, default=0.0, help="smallest planted effect")
    arguments = parser.parse_args()
    for part in arguments.part:
        record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
        record[part] = PARTS[part](arguments) | {"commit": commit()}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")
        print(part, record[part]["rows"][:2], flush=True)


if __name__ == "__main__":
    main()
