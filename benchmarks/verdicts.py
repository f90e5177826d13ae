"""Measure verdicts on logs: on randomised experiments in two domains, with equal arms, and on
problems in which the rewards of all arms are known.

    python benchmarks/verdicts.py --processes 2 --out benchmarks/records/verdicts.json

``experiments``: a policy learns from the log of one domain and sees the contexts of the other. It is
assessed against every arm as the incumbent, and its true advantage is estimated from the randomised
log of the other domain. Both directions. ``equal``: all arms have the same rewards, so that no
policy should be deployed. ``full``: the value of the policy is known exactly. ``movement``: the
constants of ``daband/logs/_experiments.py`` are fitted to ``$DABAND_DATA/sites`` and to the rows of
``experiments``, and evaluated on experiments that they were not fitted to. A part replaces its rows
in the record and keeps the others.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import polars as pl
from machine import commit
from parallel import run_jobs

import daband
from daband.domains import Columns
from daband.logs import _experiments as constants_module
from daband.logs._mean_estimates import MeanEstimate, estimate_mean
from daband.logs._scores import Scores

DATA = Path(os.environ.get("DABAND_DATA", ""))
CLUSTERS = {"nitrogen-year": "strip", "pupils-cash": "school"}
LOG_COLUMNS = ("arm", "reward", "propensity")
COLLECTIONS = ("trials", "later_trials")


# Experiments in two domains.


def list_experiments() -> list[Path]:
    """Return the folders of all experiments."""
    folders = itertools.chain(*((DATA / name).iterdir() for name in COLLECTIONS))
    return sorted(folder for folder in folders if folder.is_dir())


def load_pair(folder: Path, is_reversed: bool) -> tuple[Any, Any]:
    """Return the pair of an experiment, and a second pair whose source is the target's log."""
    cluster = CLUSTERS.get(folder.name)
    frames = [
        pl.read_csv(folder / f"{part}.csv.gz", infer_schema_length=None, null_values=["NA", ""])
        for part in ("source", "target")
    ]
    frames = [frame.with_columns(pl.col("arm").cast(pl.String)) for frame in frames]
    if is_reversed:
        frames.reverse()
    context = [name for name in frames[0].columns if name not in LOG_COLUMNS and name != cluster]
    categorical = [name for name in context if not frames[0][name].dtype.is_numeric()]
    columns = Columns(
        context, categorical, arm="arm", reward="reward", propensity="propensity", cluster=cluster
    )
    names = sorted(set(frames[0]["arm"]) | set(frames[1]["arm"]))
    options: dict[str, Any] = {"columns": columns, "class_names": names}
    source, target = frames
    pair = daband.domains.from_table(source=source, target=target.drop(LOG_COLUMNS), **options)
    truth = daband.domains.from_table(
        source=target, target=source.drop(LOG_COLUMNS), transform=pair.table, **options
    )
    return pair, truth


def measure_experiment(folder: Path, is_reversed: bool) -> list[dict[str, Any]]:
    """Return a row per incumbent arm, in standard deviations of source rewards."""
    pair, truth = load_pair(folder, is_reversed)
    start = time.process_time()
    policy = daband.LogPolicy.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target)
    evidence = policy.evidence
    seconds = time.process_time() - start
    rounds = truth.source.read_rounds(np.arange(len(truth.source)))
    scores = Scores(rounds, pair.n_arms).values
    clusters = (
        None if rounds.clusters is None else np.unique(rounds.clusters, return_inverse=True)[1]
    )
    arms = policy.decide(rounds.contexts, "target", rule="greedy").arm
    logged = pair.source.read_log(np.arange(len(pair.source)))
    deviation = float(logged[1].std())
    value = scores[np.arange(len(arms)), arms]
    values = policy.values
    assert values is not None
    over_best = estimate_mean(value - scores[:, values.source_arm], clusters)
    rows = []
    counts = np.bincount(logged[0], minlength=pair.n_arms)
    for incumbent in np.flatnonzero(counts >= 10).tolist():
        assessment = daband.assess(
            policy, source=pair.source, target=pair.target, incumbent=incumbent
        )
        if not assessment.disagreement:
            continue
        true_advantage = estimate_mean(value - scores[:, incumbent], clusters)
        gains = values.values - values.scores[:, incumbent]
        estimate = values.mix.estimate(gains).mean
        rows.append(
            {
                "experiment": folder.name,
                "collection": folder.parent.name,
                "reversed": is_reversed,
                "incumbent": incumbent,
                "rounds": len(pair.source),
                "arms": pair.n_arms,
                "personalises": evidence.personalises,
                "advantage": assessment.advantage / deviation,
                "error": estimate.standard_error / deviation,
                "skewness": estimate.skewness,
                "dof": estimate.dof,
                "contenders": values.n_contenders,
                "fraction": assessment.disagreement,
                "doubts": len(assessment.doubts),
                "low": assessment.low / deviation,
                "verdict": assessment.verdict,
                "effective_rounds": assessment.effective_rounds,
                "true": true_advantage.value / deviation,
                "true_error": true_advantage.standard_error / deviation,
                "over_best": over_best.value / max(over_best.standard_error, 1e-12),
                "seconds": seconds,
            }
        )
    return rows


def summarise_experiments(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rates of right and wrong verdicts, and the coverage of the limit."""
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    z = columns["true"] / columns["true_error"]
    is_deployed = columns["verdict"] == "deploy"
    # the limit is compared with an estimate that has its own error
    half_width = columns["advantage"] - columns["low"]
    ratio = half_width / np.maximum(columns["error"], 1e-12)
    slack = np.hypot(half_width, np.minimum(ratio, 1.4) * columns["true_error"])
    is_true = columns["advantage"] - slack < columns["true"]
    names = columns["experiment"]
    by_experiment = [is_true[names == name].mean() for name in np.unique(names)]
    directions = {(row["experiment"], row["reversed"]): row["over_best"] for row in rows}
    return {
        "pairs": len(rows),
        "good": int((z > 2).sum()),
        "good_deployed": float(is_deployed[z > 2].mean()),
        "deployed": int(is_deployed.sum()),
        "wrong": int((is_deployed & (z < -1)).sum()),
        "limit_true": float(is_true.mean()),
        "limit_true_by_experiment": float(np.mean(by_experiment)),
        "mean_z_over_best_arm": float(np.mean(list(directions.values()))),
        "least_z_over_best_arm": float(min(directions.values())),
        "personalised": int(
            sum({(r["experiment"], r["reversed"]): r["personalises"] for r in rows}.values())
        ),
    }


def run_experiments(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all experiments in both directions."""
    jobs = list(itertools.product(list_experiments(), (False, True)))
    rows = list(itertools.chain(*run_jobs(measure_experiment, jobs, arguments.processes)))
    return {"rows": rows, "all": summarise_experiments(rows)}


# Equal arms.

#: The fraction of rounds with a reward, and whether rewards are skewed amounts.
REWARDS = ((0.003, True), (0.03, True), (0.1, False), (0.5, False))
ARMS = (2, 5, 20)
ROUNDS = (500, 3000, 20_000)


def measure_equal(n_arms: int, n: int, buyers: float, is_amount: bool, seed: int) -> dict[str, Any]:
    """Assess the policy of a log with equal arms against the first arm.

    For large logs the policy is the best arm, without a test of choices by context.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    arms = rng.integers(0, n_arms, n)
    amounts = rng.gamma(2.0, 25.0, n) if is_amount else 1.0
    rewards = (rng.random(n) < buyers) * amounts
    log = (x, arms, rewards, np.full(n, 1 / n_arms))
    target = rng.normal(0.2, 1.0, size=(1000, 3))
    pair = daband.domains.from_log(source=log, target=target, n_arms=n_arms)
    policy = daband.LogPolicy.for_pair(pair, seed=0, by_context=n < 20_000)
    daband.train(policy, source=pair.source, target=pair.target)
    assessment = daband.assess(policy, source=pair.source, target=pair.target, incumbent=0)
    return {
        "deployed": assessment.verdict == "deploy",
        "differs": assessment.disagreement > 0,
        "personalises": policy.evidence.personalises,
    }


def run_equal(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return how often a policy is deployed if all arms are equal, in several settings."""
    settings = [
        (n_arms, n, *rewards) for n, n_arms, rewards in itertools.product(ROUNDS, ARMS, REWARDS)
    ]
    # with a limit of time, all settings have about the same number of runs
    jobs = [(*setting, seed) for seed in range(arguments.runs) for setting in settings]
    results = run_jobs(measure_equal, jobs, arguments.processes, arguments.seconds)
    rows = []
    for setting in settings:
        runs = [
            result
            for job, result in zip(jobs, results, strict=True)
            if job[:4] == setting and result is not None
        ]
        if not runs:
            continue
        row = dict(zip(("arms", "rounds", "buyers", "amounts"), setting, strict=True))
        rates = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
        rows.append(row | {"runs": len(runs)} | rates)
        print(rows[-1], flush=True)
    return {"rows": rows, "max_deployed": max(row["deployed"] for row in rows)}


# Problems with the rewards of all arms.


def measure_full(folder: Path, seed: int) -> dict[str, Any]:
    """Return the value of ``LogPolicy``, the best arm, a ridge and boosted trees per arm."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV

    frames = [
        pl.read_csv(folder / f"{part}.csv.gz", infer_schema_length=None)
        for part in ("source", "target")
    ]
    arm_columns = [name for name in frames[0].columns if name.startswith("arm_")]
    context = [name for name in frames[0].columns if not name.startswith("arm_")]
    categorical = [name for name in context if not frames[0][name].dtype.is_numeric()]
    rewards, truth = (frame.select(arm_columns).to_numpy() for frame in frames)
    rng = np.random.default_rng(seed)
    arms = rng.integers(0, len(arm_columns), len(rewards))
    logged = rewards[np.arange(len(arms)), arms]
    source = (
        frames[0]
        .select(context)
        .with_columns(arm=pl.Series(arms), reward=pl.Series(logged), p=pl.lit(1 / len(arm_columns)))
    )
    columns = Columns(context, categorical, arm="arm", reward="reward", propensity="p")
    pair = daband.domains.from_table(
        source=source, target=frames[1].select(context), columns=columns
    )
    x = pair.source.read(np.arange(len(pair.source)))
    x_target = pair.target.read(np.arange(len(pair.target)))
    order = np.arange(len(truth))
    values = {}
    for name, shift in (("log", None), ("log_covariate", "covariate")):
        policy = daband.LogPolicy.for_pair(pair, seed=0, shift=shift)
        daband.train(policy, source=pair.source, target=pair.target)
        chosen = policy.decide(x_target, "target", rule="greedy").arm
        values[name] = float(truth[order, chosen].mean())
    policy_values = policy.values
    assert policy_values is not None
    values["best_arm"] = float(truth[:, policy_values.source_arm].mean())
    scale = x.std(axis=0) + 1e-9
    models: dict[str, Callable[[], Any]] = {
        "ridge": lambda: RidgeCV(np.geomspace(1, 1e5, 11)),
        "trees": lambda: HistGradientBoostingRegressor(max_iter=60, max_leaf_nodes=8),
    }
    for name, make in models.items():
        predictions = [
            make().fit(x[arms == arm] / scale, logged[arms == arm]).predict(x_target / scale)
            for arm in range(len(arm_columns))
        ]
        values[name] = float(truth[order, np.argmax(predictions, axis=0)].mean())
    return {"problem": folder.name, "seed": seed, **values}


def run_full(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare policies on problems in which the rewards of all arms are known."""
    folders = sorted(path for path in (DATA / "full_rewards").iterdir() if path.is_dir())
    jobs = list(itertools.product(folders, range(arguments.seeds)))
    return {"rows": run_jobs(measure_full, jobs, arguments.processes)}


# The movement of effects between domains.

#: Effects in one domain, differences to the other domain, and their sampling variances, in standard
#: deviations of rewards.
Unit = tuple[np.ndarray, np.ndarray, np.ndarray]


def read_sites() -> dict[str, list[Unit]]:
    """Return the hypotheses of each project."""
    units: dict[str, list[Unit]] = {}
    pairs = pl.read_csv(DATA / "sites" / "pairs.csv.gz")
    for key, group in pairs.group_by(["project", "hypothesis"], maintain_order=True):
        rows = group["source_rows"].to_numpy(), group["target_rows"].to_numpy()
        variances = group["variance"].to_numpy()
        # the effect is a difference between two halves of the rows
        deviation = np.median(np.sqrt(variances / (4 / rows[0] + 4 / rows[1])))
        effects = group["source_effect"].to_numpy() / deviation
        differences = group["target_effect"].to_numpy() / deviation - effects
        units.setdefault(str(key[0]), []).append((effects, differences, variances / deviation**2))
    return units


def make_units(rows: list[dict[str, Any]]) -> list[Unit]:
    """Return the experiments of the rows."""
    units = []
    for name in sorted({row["experiment"] for row in rows}):
        effects, errors, true, true_errors = (
            np.array([row[key] for row in rows if row["experiment"] == name])
            for key in ("advantage", "error", "true", "true_error")
        )
        units.append((effects, true - effects, errors**2 + true_errors**2))
    return units


def fit_movement(units: list[Unit]) -> dict[str, float]:
    """Fit the standard deviation of effects between domains, and its conformal quantile.

    Each unit has weight 1.
    """
    from scipy.optimize import minimize

    def compute_loss(logs: np.ndarray) -> float:
        total = 0.0
        for effects, differences, variances in units:
            variance = variances + np.exp(2 * logs[0]) + np.exp(2 * logs[1]) * effects**2
            total += np.mean(np.log(variance) + differences**2 / variance)
        return total

    starts = [np.log([a, b]) for a in (0.02, 0.07) for b in (0.1, 0.4)]
    results = [minimize(compute_loss, start, method="Nelder-Mead") for start in starts]
    zero, slope = np.exp(min(results, key=lambda result: result.fun).x)
    scores = np.concatenate(
        [
            np.sign(effects)
            * differences
            / np.sqrt(variances + zero**2 + np.square(slope * effects))
            for effects, differences, variances in units
        ]
    )
    weights = np.concatenate([np.full(len(unit[0]), 1 / len(unit[0])) for unit in units])
    order = np.argsort(scores)
    level = 0.1 * (1 + 1 / len(units)) * weights.sum()
    quantile = -scores[order][np.searchsorted(np.cumsum(weights[order]), level)]
    return {
        "ZERO_EFFECT_DEVIATION": float(zero),
        "EFFECT_DEVIATION": float(slope),
        "_QUANTILE": float(quantile),
    }


def apply_movement(rows: list[dict[str, Any]], constants: dict[str, float]) -> list[dict[str, Any]]:
    """Return the rows with the limits and verdicts that other constants give."""
    changed = []
    with mock.patch.multiple(constants_module, **cast(Any, constants)):
        for row in rows:
            estimate = MeanEstimate(row["advantage"], row["error"], row["skewness"], row["dof"])
            between = constants_module.compute_between_deviation(estimate.value, row["fraction"], 1)
            low = constants_module.compute_target_limit(
                estimate, between_deviation=between, n_contenders=row["contenders"]
            )
            is_deployed = low > 0.0 and not row["doubts"]
            changed.append(row | {"low": low, "verdict": "deploy" if is_deployed else "other"})
    return changed


def run_movement(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fit the constants to one half of the collections, and apply them to the other half."""
    sites = read_sites()
    rows = json.loads(arguments.out.read_text())["experiments"]["rows"]
    halves = {
        "trials, pipeline": ([row for row in rows if row["collection"] == "trials"], "pipeline"),
        "later_trials, many-labs-1": (
            [row for row in rows if row["collection"] == "later_trials"],
            "many-labs-1",
        ),
    }
    result: dict[str, Any] = {
        "all": fit_movement(make_units(rows) + [unit for units in sites.values() for unit in units])
    }
    held_out = []
    for name, (half, project) in halves.items():
        constants = fit_movement(make_units(half) + sites[project])
        others = [row for row in rows if row not in half]
        changed = apply_movement(others, constants)
        held_out += changed
        result[name] = constants | {"on the other half": summarise_experiments(changed)}
    result["both held-out halves"] = summarise_experiments(held_out)
    result["constants in use"] = summarise_experiments(rows)
    return result


PARTS = {
    "experiments": run_experiments,
    "equal": run_equal,
    "full": run_full,
    "movement": run_movement,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=200, help="runs of each setting of equal arms")
    parser.add_argument("--seeds", type=int, default=5, help="logs of each full problem")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=np.inf, help="time limit of equal arms")
    parser.add_argument("--commit", help="the commit, if this is not a git checkout")
    arguments = parser.parse_args()
    for part in arguments.part:
        record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
        record[part] = PARTS[part](arguments) | {"commit": arguments.commit or commit()}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")
        print({key: value for key, value in record[part].items() if key != "rows"}, flush=True)


if __name__ == "__main__":
    main()
