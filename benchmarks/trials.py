"""Compare policies learned from logs of randomised experiments, and from the same contexts with
simulated effects.

    python benchmarks/trials.py --part experiments --out benchmarks/records/trials.json
    python benchmarks/trials.py --part planted --seconds 3000 --out benchmarks/records/trials.json
    python benchmarks/trials.py --part intervals --logs 300 --out benchmarks/records/trials.json

Every experiment is split into two domains. A policy learns from the log of one domain, and its
value is estimated from the randomised log of the other. Data: ``$DABAND_DATA/trials``. Methods of
other packages run if these are installed (``pip install econml causalml obp vowpalwabbit``). A part
replaces its rows in the record and keeps the others. With ``--methods`` it replaces the results of
these methods, on the same logs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from machine import commit
from parallel import run_jobs

import daband
from daband.logs._mean_estimates import estimate_mean
from daband.logs._scores import Scores
from daband.rounds._rounds import Rounds

EXPERIMENTS = (
    "donors-state",
    "mails-channel",
    "mails-zip",
    "strokes-country",
    "strokes-elsewhere",
    "training-sex",
    "wordings-year",
)
PLANTED = ("mails-channel", "strokes-country")
#: Number of contexts on which a policy is evaluated if effects are simulated.
N_TEST = 2000


class Log(NamedTuple):
    """Contexts (n, d), and arms, rewards and propensities (n,)."""

    contexts: np.ndarray
    arms: np.ndarray
    rewards: np.ndarray
    propensities: np.ndarray
    n_arms: int

    def scores(self) -> np.ndarray:
        """Return doubly robust scores of every arm, (n, K)."""
        rounds = Rounds(self.contexts, self.arms, self.rewards, self.propensities)
        return Scores(rounds, self.n_arms).values


#: A function of a log, contexts (m, d) of another domain and a seed, which returns the arms (m,)
#: that are chosen there.
Method = Callable[[Log, np.ndarray, int], np.ndarray]


# Methods.


def learn(log: Log, seed: int) -> daband.LogPolicy:
    """Return daband's policy for a log."""
    policy = daband.LogPolicy(context_shape=log.contexts.shape[1:], n_arms=log.n_arms, seed=seed)
    policy.update(log.contexts, log.arms, log.rewards, propensities=log.propensities)
    return policy


def best_arm(log: Log, target: np.ndarray, _: int) -> np.ndarray:
    """Choose the arm with the largest mean reward for every context."""
    weights = np.equal.outer(log.arms, np.arange(log.n_arms)) / log.propensities[:, None]
    return np.full(len(target), int(((weights.T @ log.rewards) / weights.sum(axis=0)).argmax()))


def log_policy(log: Log, target: np.ndarray, seed: int) -> np.ndarray:
    return learn(log, seed).decide(target).arm


def standardise(log: Log, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the contexts of the log and of the target, standardised by the log."""
    mean = log.contexts.mean(axis=0)
    scale = log.contexts.std(axis=0) + 1e-9
    return (log.contexts - mean) / scale, np.clip((target - mean) / scale, -5.0, 5.0)


def ridge(log: Log, target: np.ndarray, _: int) -> np.ndarray:
    """Choose arms by a ridge regression per arm."""
    from sklearn.linear_model import RidgeCV

    x, there = standardise(log, target)
    fits = [
        RidgeCV(np.geomspace(1, 1e5, 11)).fit(x[log.arms == a], log.rewards[log.arms == a])
        for a in range(log.n_arms)
    ]
    return np.stack([fit.predict(there) for fit in fits], axis=1).argmax(axis=1)


def regress(log: Log, target: np.ndarray, regression: Any) -> np.ndarray:
    """Choose arms by a regression of centred doubly robust scores."""
    x, there = standardise(log, target)
    scores = log.scores()
    return (
        regression.fit(x, scores - scores.mean(axis=1, keepdims=True)).predict(there).argmax(axis=1)
    )


def dr_ridge(log: Log, target: np.ndarray, _: int) -> np.ndarray:
    from sklearn.linear_model import RidgeCV

    return regress(log, target, RidgeCV(np.geomspace(1, 1e6, 13)))


def dr_forest(log: Log, target: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.ensemble import RandomForestRegressor

    return regress(
        log,
        target,
        RandomForestRegressor(100, min_samples_leaf=20, max_features=0.33, random_state=seed),
    )


def econml_policy_forest(log: Log, target: np.ndarray, seed: int) -> np.ndarray:
    from econml.policy import DRPolicyForest
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import RidgeCV

    x, there = standardise(log, target)
    forest = DRPolicyForest(
        model_propensity=DummyClassifier(strategy="prior"),
        model_regression=RidgeCV(np.geomspace(1, 1e5, 6)),
        n_estimators=100,
        min_samples_leaf=20,
        random_state=seed,
    )
    return (
        np.asarray(forest.fit(log.rewards, log.arms, X=x).predict(there))
        .astype(np.int64)
        .reshape(-1)
    )


def econml_dr_learner(log: Log, target: np.ndarray, seed: int) -> np.ndarray:
    from econml.dr import DRLearner
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import RidgeCV

    x, there = standardise(log, target)
    learner = DRLearner(
        model_propensity=DummyClassifier(strategy="prior"),
        model_regression=RidgeCV(np.geomspace(1, 1e5, 6)),
        model_final=RidgeCV(np.geomspace(1, 1e6, 13)),
        random_state=seed,
    )
    effects = (
        learner.fit(log.rewards, log.arms, X=x).const_marginal_effect(there).reshape(len(there), -1)
    )
    return np.column_stack([np.zeros(len(there)), effects]).argmax(axis=1)


def causalml_dr_learner(log: Log, target: np.ndarray, seed: int) -> np.ndarray:
    from causalml.inference.meta import BaseDRRegressor
    from sklearn.linear_model import RidgeCV

    x, there = standardise(log, target)
    propensity = [log.propensities[log.arms == arm].mean() for arm in range(log.n_arms)]
    chances = {
        a: np.full(len(x), propensity[a] / (propensity[0] + propensity[a]))
        for a in range(1, log.n_arms)
    }
    learner = BaseDRRegressor(learner=RidgeCV(np.geomspace(1, 1e6, 13)), control_name=0)
    learner.fit(x, log.arms, log.rewards, p=chances, seed=seed)
    effects = np.asarray(learner.predict(there)).reshape(len(there), -1)
    return np.column_stack([np.zeros(len(there)), effects]).argmax(axis=1)


def obp_ipw_learner(log: Log, target: np.ndarray, seed: int) -> np.ndarray:
    from obp.policy import IPWLearner
    from sklearn.linear_model import LogisticRegression

    x, there = standardise(log, target)
    learner = IPWLearner(
        n_actions=log.n_arms, base_classifier=LogisticRegression(max_iter=500, random_state=seed)
    )
    learner.fit(
        context=x, action=log.arms, reward=log.rewards - log.rewards.min(), pscore=log.propensities
    )
    return np.asarray(learner.predict(there)[:, :, 0].argmax(axis=1))


def vowpal(log: Log, target: np.ndarray, seed: int, kind: str) -> np.ndarray:
    """Choose arms by Vowpal Wabbit with this ``--cb_type``."""
    from vowpalwabbit import Workspace

    x, there = standardise(log, target)
    costs = -(log.rewards - log.rewards.mean()) / (log.rewards.std() or 1.0)
    learner = Workspace(f"--cb_explore_adf --cb_type {kind} -q sa --random_seed {seed + 1} --quiet")

    def example(row: np.ndarray, label: dict[int, str]) -> list[str]:
        shared = "shared |s " + " ".join(f"{i}:{v:.4g}" for i, v in enumerate(row) if v)
        return [shared, *(f"{label.get(arm, '')}|a {arm}" for arm in range(log.n_arms))]

    for i in np.random.default_rng(seed).permutation(len(x)):
        learner.learn(
            example(x[i], {int(log.arms[i]): f"0:{costs[i]:.5g}:{log.propensities[i]:.5g} "})
        )
    return np.array([int(np.argmax(learner.predict(example(row, {})))) for row in there])


METHODS: dict[str, Method] = {
    "daband": log_policy,
    "ridge per arm": ridge,
    "ridge on scores": dr_ridge,
    "forest on scores": dr_forest,
    "EconML DRPolicyForest": econml_policy_forest,
    "EconML DRLearner": econml_dr_learner,
    "causalml DR-learner": causalml_dr_learner,
    "obp IPWLearner": obp_ipw_learner,
    "Vowpal Wabbit dr": lambda log, target, seed: vowpal(log, target, seed, "dr"),
    "Vowpal Wabbit mtr": lambda log, target, seed: vowpal(log, target, seed, "mtr"),
}


# Experiments.


def read_experiment(name: str) -> dict[str, Log]:
    """Return the logs of both domains of an experiment, with the context columns as daband reads
    them.
    """
    import polars as pl

    folder = Path(os.environ["DABAND_DATA"]) / "trials" / name
    frames = {
        side: pl.read_csv(folder / f"{side}.csv.gz", infer_schema_length=None)
        for side in ("source", "target")
    }
    context = [
        column
        for column in frames["source"].columns
        if column not in ("arm", "reward", "propensity")
    ]
    texts = [c for c in context if any(frame[c].dtype == pl.String for frame in frames.values())]
    names = sorted({str(arm) for frame in frames.values() for arm in frame["arm"]})
    columns = daband.domains.Columns(
        context=tuple(context),
        categorical=tuple(texts),
        arm="arm",
        reward="reward",
        propensity="propensity",
    )
    pair = daband.domains.from_table(
        source=frames["source"],
        target=frames["target"].select(context),
        columns=columns,
        class_names=names,
        source_test=None,
        name=name,
    )
    logs = {}
    for side, frame in frames.items():
        arms = np.array([names.index(str(arm)) for arm in frame["arm"]])
        rewards, propensities = (
            frame[column].to_numpy().astype(np.float64) for column in ("reward", "propensity")
        )
        assert pair.table is not None
        contexts = np.asarray(pair.table.apply(frame.select(context)), np.float64)
        logs[side] = Log(contexts, arms, rewards, propensities, len(names))
    return logs


def run_experiments(methods: list[str], seeds: int, **_: Any) -> list[dict[str, Any]]:
    """Return a row per experiment, method and seed.

    ``z`` is the gain over the source's best arm by the target's scores, in standard errors.
    """
    rows = []
    for name in EXPERIMENTS:
        logs = read_experiment(name)
        for source, target in (("source", "target"), ("target", "source")):
            log = logs[source]
            there = logs[target]
            scores = there.scores()
            arm = int(best_arm(log, there.contexts[:1], 0)[0])
            for method, seed in itertools.product(methods, range(seeds)):
                start = time.perf_counter()
                chosen = METHODS[method](log, there.contexts, seed)
                gain = estimate_mean(scores[np.arange(len(chosen)), chosen] - scores[:, arm])
                row = {
                    "experiment": name,
                    "from": source,
                    "method": method,
                    "seed": seed,
                    "gain": gain.value,
                }
                row |= {
                    "z": gain.value / gain.standard_error if gain.standard_error else 0.0,
                    "other": float((chosen != arm).mean()),
                }
                row["seconds"] = round(time.perf_counter() - start, 2)
                if method == "daband":
                    evidence = learn(log, seed).evidence
                    row |= {
                        "source_gain": evidence.gain,
                        "source_error": evidence.error,
                        "low": evidence.low,
                    }
                rows.append(row)
                print(row, flush=True)
    return rows


# Planted effects.


def plant(
    contexts: np.ndarray, n: int, n_arms: int, effect: float, rate: float, rule: str, seed: int
) -> Any:
    """Return a log in which a rule of the context determines the best arm, test contexts, and their
    mean rewards.

    The best arm gains ``effect`` standard deviations of the reward.
    """
    rng = np.random.default_rng(
        [7, seed, n, n_arms, int(100 * effect), int(1000 * rate), len(rule)]
    )
    rows = contexts[rng.permutation(len(contexts))[: n + N_TEST]]
    z = np.clip((rows - rows.mean(axis=0)) / (rows.std(axis=0) + 1e-9), -3.0, 3.0)
    if rule == "linear":
        best_arms = (
            z @ rng.standard_normal((z.shape[1], n_arms)) + rng.standard_normal(n_arms)
        ).argmax(axis=1)
    else:  # two splits
        first, second, third = (
            z[:, j] > np.median(z[:, j]) for j in rng.choice(z.shape[1], 3, replace=False)
        )
        best_arms = (rng.permutation(4) % n_arms)[
            np.where(first, np.where(second, 0, 1), np.where(third, 2, 3))
        ]
    chances = np.minimum(
        rate + effect * np.sqrt(rate * (1 - rate)) * np.eye(n_arms)[best_arms], 1.0
    )
    arms = rng.integers(n_arms, size=n)
    rewards = (rng.random(n) < chances[np.arange(n), arms]).astype(np.float64)
    log = Log(rows[:n], arms, rewards, np.full(n, 1 / n_arms), n_arms)
    return log, rows[n:], (chances[n:] - rate) / np.sqrt(rate * (1 - rate))


#: The settings of simulated logs: contexts, rounds, arms, effect, fraction of buyers and rule.
SETTINGS = list(
    itertools.product(
        PLANTED,
        (2000, 5000),
        (2, 3),
        (0.0, 0.1, 0.2, 0.4, 0.7, 1.0),
        (0.01, 0.1, 0.5),
        ("linear", "splits"),
    )
)


@cache
def read_contexts(name: str) -> np.ndarray:
    """Return the contexts of both domains of an experiment."""
    return np.concatenate([log.contexts for log in read_experiment(name).values()])


def measure_planted(
    methods: list[str], index: int, seed: int, before: dict[str, Any]
) -> dict[str, Any]:
    """Return the gain of each method on a simulated log, in standard deviations of the reward.

    ``before`` are earlier results on the same log, which are kept for other methods.
    """
    name, n, n_arms, effect, rate, rule = SETTINGS[index]
    log, tested, means = plant(read_contexts(name), n, n_arms, effect, rate, rule, seed)
    row = {"contexts": name, "n": n, "arms": n_arms, "effect": effect, "rate": rate, "rule": rule}
    row |= {"seed": seed, "best possible": float(means.max(axis=1).mean())} | before
    for method in ("best arm", *methods):
        chosen = (best_arm if method == "best arm" else METHODS[method])(log, tested, seed)
        row[method] = float(means[np.arange(N_TEST), chosen].mean())
    return row


def run_planted(
    methods: list[str], seconds: float, before: list[dict[str, Any]], processes: int, **_: Any
) -> list[dict[str, Any]]:
    """Return a row per simulated log: those of ``before``, or as many as ``seconds`` allow."""
    order = [
        (int(index), seed)
        for seed in range(20)
        for index in np.random.default_rng(seed).permutation(len(SETTINGS))
    ]
    earlier = before or [{} for _ in order]
    jobs = [
        (methods, index, seed, row)
        for (index, seed), row in zip(order[: len(earlier)], earlier, strict=True)
    ]
    results = run_jobs(measure_planted, jobs, processes, float("inf") if before else seconds)
    return [row for row in results if row is not None]


# Intervals.


INTERVALS = (
    ("0.3% buy", 5000),
    ("1% buy", 1000),
    ("1% buy", 5000),
    ("1% buy, baskets", 5000),
    ("5% buy", 1000),
    ("5% buy, baskets", 1000),
    ("20% buy", 1000),
    ("promotion", 1000),
    ("promotion", 5000),
    ("lognormal 1", 1000),
    ("lognormal 1.5", 1000),
    ("lognormal 2", 1000),
    ("Pareto 2.1", 1000),
    ("Pareto 2.1", 5000),
    ("Pareto 3", 1000),
    ("normal, peaked", 1000),
    ("10% buy, peaked", 1000),
    ("lognormal 1, peaked", 1000),
    ("normal", 60),
    ("20% buy", 100),
    ("lognormal 1", 100),
    ("normal, wrong propensities", 1000),
    ("10% buy, wrong propensities", 1000),
    ("normal", 1000),
)


def simulate(
    kind: str, n: int, rng: np.random.Generator
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None], float]:
    """Return a log with three arms, and the true value of a policy.

    The policy chooses arm 1 if the first number of the context is above 0, else arm 0.
    """
    x = rng.standard_normal((n, 3))
    best_arms = (x[:, 0] > 0).astype(int)
    chances = np.full(3, 1 / 3)
    if "peaked" in kind:
        chances = np.array([0.92, 0.04, 0.04])
    if "wrong" in kind:
        chances = np.array([0.8, 0.1, 0.1])
    arms = rng.choice(3, n, p=chances)
    given = np.full(n, 1 / 3) if "wrong" in kind else chances[arms]
    right = arms == best_arms
    if "buy" in kind or kind == "promotion":
        rate = 0.012 if kind == "promotion" else float(kind.split("%", maxsplit=1)[0]) / 100
        rewards = (rng.random(n) < rate * np.where(right, 1.3, 1.0)).astype(float)
        value = 1.3 * rate
        if "baskets" in kind:
            rewards = rewards * np.exp(rng.standard_normal(n))
            value = value * np.exp(0.5)
        if kind == "promotion":
            rewards = 10.0 * rewards - 0.15
            value = 10.0 * value - 0.15
    elif "lognormal" in kind:
        size = float(kind.split(",", maxsplit=1)[0].split()[1])
        rewards = np.exp(0.3 * x[:, 1] + 0.2 * right + size * rng.standard_normal(n))
        value = np.exp(0.2 + 0.045 + size**2 / 2)
    elif "Pareto" in kind:
        size = float(kind.split()[1])
        rewards = (1 + rng.pareto(size, n)) * (1 + 0.2 * right)
        value = 1.2 * size / (size - 1)
    else:
        rewards = x[:, 1] + 0.3 * right + rng.standard_normal(n)
        value = 0.3
    return (x, arms, rewards, given), float(value)


def run_intervals(logs: int, **_: Any) -> list[dict[str, Any]]:
    """Return how often the 95% interval contains the true value, and how often there is a
    warning.
    """

    def policy(contexts: np.ndarray) -> np.ndarray:
        return np.eye(3)[(contexts[:, 0] > 0).astype(int)]

    rows = []
    for kind, n in INTERVALS:
        found = []
        for seed in range(logs):
            log, value = simulate(kind, n, np.random.default_rng([seed, n, len(kind)]))
            estimate = daband.evaluate_log(policy, log, seed=seed)
            found.append((estimate.low <= value <= estimate.high, bool(estimate.warnings)))
        covered, warned = np.mean(found, axis=0)
        rows.append(
            {
                "rewards": kind,
                "n": n,
                "logs": logs,
                "coverage": float(covered),
                "warned": float(warned),
            }
        )
        print(rows[-1], flush=True)
    return rows


PARTS: dict[str, Any] = {
    "experiments": run_experiments,
    "planted": run_planted,
    "intervals": run_intervals,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--logs", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=3000.0)
    parser.add_argument("--processes", type=int, default=1, help="for planted effects")
    parser.add_argument("--commit", help="the commit, if this is not a git checkout")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    before = record.get(arguments.part, []) if arguments.methods != list(METHODS) else []
    rows = PARTS[arguments.part](
        methods=arguments.methods,
        seeds=arguments.seeds,
        logs=arguments.logs,
        seconds=arguments.seconds,
        before=before,
        processes=arguments.processes,
    )
    if arguments.part == "experiments":
        rows += [row for row in before if row["method"] not in arguments.methods]
    measured = ["intervals"] if arguments.part == "intervals" else arguments.methods
    now = {f"{arguments.part}, {name}": arguments.commit or commit() for name in measured}
    record |= {arguments.part: rows, "commits": record.get("commits", {}) | now}
    record["commit"] = ", ".join(dict.fromkeys(record["commits"].values()))
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
