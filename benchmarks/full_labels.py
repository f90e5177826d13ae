"""Measure what learning all labels of a source is worth in the target, on tables with a shift.

    python benchmarks/full_labels.py --out benchmarks/records/full-labels.json --seeds 3 --jobs 16

The tables are those of ``natural_tables``, ``more_tables`` and ``later_tables``; ``full_rewards``
has tables with the rewards of all arms. Each policy learns the training rows of the source, with
the columns and the target contexts that ``choose`` would use, and is evaluated on all target rows.
The seed also splits the source into training and held-out rows.

The baselines are models of scikit-learn on the same features and rows: a linear model, boosted
trees and a forest; the one of them with the smallest loss in cross-validation in the source; and
their mean, weighted by this loss. "mixture" is ``Mixture`` on the same rows with bandit feedback.

``streams`` are target accuracies on held-out target rows after 0, 48, 208 and 1,024 target rewards,
by penalty of the corrections; in "reversed" targets another arm is right for each label.

Settings of ``Supervised`` were chosen on the tables with an even number in the sorted list
("development"). The others ("report") were seen when ``penalty`` was chosen.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import daband
from daband.domains._registry import get_data_directory
from daband.linear._arm_frequencies import estimate_frequencies
from daband.training._candidates import choose_training_budget

COLLECTIONS = ("natural_tables", "more_tables", "later_tables")
PENALTIES = (3.0, 10.0, 30.0, 100.0)
STREAM_MARKS = (0, 48, 208, 1024)


def list_tables() -> list[tuple[str, str]]:
    """Return collection and name of every table, sorted, then of every table of rewards."""
    folder = get_data_directory()
    tables = [
        (collection, path.name.removesuffix(".csv.gz"))
        for collection in COLLECTIONS
        for path in sorted((folder / collection).glob("*.csv.gz"))
    ]
    problems = sorted((folder / "full_rewards").glob("*/source.csv.gz"))
    return [*tables, *(("full_rewards", path.parent.name) for path in problems)]


def load_table(collection: str, name: str, seed: int = 0, feedback: str = "full") -> Any:
    """Return the pair of a table. All target rows are contexts, and all are for the evaluator."""
    folder = get_data_directory() / collection
    if collection == "full_rewards":
        source, target = (
            pl.read_csv(folder / name / f"{domain}.csv.gz", infer_schema_length=None)
            for domain in ("source", "target")
        )
        answers = tuple(column for column in source.columns if column.startswith("arm_"))
        roles: dict[str, Any] = {"rewards": answers}
    else:
        frame = pl.read_csv(folder / f"{name}.csv.gz", infer_schema_length=None).with_columns(
            pl.col("arm").cast(pl.String)
        )
        source, target = (
            frame.filter(pl.col("domain") == domain).drop("domain")
            for domain in ("source", "target")
        )
        answers = ("arm",)
        roles = {"label": "arm"}
    context = tuple(column for column in source.columns if column not in answers)
    texts = tuple(column for column in context if source[column].dtype == pl.String)
    return daband.domains.from_table(
        source=source,
        target=target.drop(answers),
        target_test=target,
        columns=daband.domains.Columns(context=context, categorical=texts, **roles),
        feedback=feedback,
        name=f"{name}-{seed}",
    )


def read_source(pair: Any) -> tuple[Any, Any]:
    """Return contexts and rewards of all training rows."""
    rounds = pair.source.read_rounds(np.arange(len(pair.source)))
    return np.asarray(rounds.contexts, np.float64), np.asarray(rounds.rewards, np.float64)


def read_target(pair: Any) -> tuple[Any, Any]:
    """Return contexts and rewards of all target rows."""
    n = len(pair.target_test)
    contexts = np.asarray(pair.target_test.read(0, n), np.float64)
    return contexts, np.asarray(pair.target_test.read_expected(0, n), np.float64)


def compute_baselines(pair: Any, seed: int) -> dict[str, float]:
    """Return the mean target reward of models of scikit-learn that learn all rewards."""
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
        RandomForestClassifier,
        RandomForestRegressor,
    )
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.metrics import log_loss
    from sklearn.model_selection import cross_val_predict
    from sklearn.multioutput import MultiOutputRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    contexts, rewards = read_source(pair)
    target_contexts, target_rewards = read_target(pair)
    has_labels = pair.feedback == "one_hot"
    answers = rewards.argmax(axis=1) if has_labels else rewards
    if has_labels:
        models = {
            "linear": make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)),
            "boosted": HistGradientBoostingClassifier(random_state=seed),
            "forest": RandomForestClassifier(100, min_samples_leaf=2, random_state=seed),
        }
    else:
        models = {
            "linear": make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 4, 7))),
            "boosted": MultiOutputRegressor(HistGradientBoostingRegressor(random_state=seed)),
            "forest": RandomForestRegressor(100, min_samples_leaf=2, random_state=seed),
        }
    method = "predict_proba" if has_labels else "predict"
    arms = np.unique(answers) if has_labels else np.arange(rewards.shape[1])
    losses = []
    predictions = []
    for model in models.values():
        held_out = cross_val_predict(model, contexts, answers, cv=3, method=method)
        losses.append(
            log_loss(answers, held_out) if has_labels else np.square(held_out - answers).mean()
        )
        predictions.append(getattr(model.fit(contexts, answers), method)(target_contexts))
    # the weight of a model is its likelihood per ten rows, or its precision
    relative_losses = np.array(losses) - min(losses)
    weights = np.exp(-10 * relative_losses) if has_labels else 1.0 / np.array(losses)
    named_predictions = {
        **dict(zip(models, predictions, strict=True)),
        "best by source": predictions[int(np.argmin(losses))],
        "weighted mean": np.tensordot(weights / weights.sum(), np.array(predictions), axes=1),
    }
    rows = np.arange(len(target_rewards))
    return {
        name: float(target_rewards[rows, arms[array.argmax(axis=1)]].mean())
        for name, array in named_predictions.items()
    }


def measure(job: tuple[int, str, str, int, tuple[str, ...]]) -> dict[str, Any]:
    """Return the mean target reward of each method on one table."""
    warnings.simplefilter("ignore")
    number, collection, name, seed, methods = job
    pair = load_table(collection, name, seed)
    result: dict[str, Any] = {
        "table": f"{collection}/{name}",
        "half": "report" if number % 2 else "development",
        "seed": seed,
        "columns": pair.context_shape[0],
        "arms": pair.n_arms,
        "rows": len(pair.source),
    }
    for method in methods:
        start = time.process_time()
        if method == "baselines":
            result |= compute_baselines(pair, seed)
            result["baselines seconds"] = round(time.process_time() - start, 1)
            continue
        settings = {"shift": "covariate"} if pair.shift.aligns_features else {}
        if method == "mixture":
            if seed:
                continue
            pair = load_table(collection, name, seed, feedback="bandit")
            episodes, length = choose_training_budget(pair, None, 64)
        else:
            episodes, length = None, 64
        policy = daband.policies.policies.get(method).for_pair(pair, seed=seed, **settings)
        daband.train(
            policy,
            source=pair.source,
            target=pair.target,
            episodes=episodes,
            episode_length=length,
        )
        result[method] = float(daband.evaluate(policy, pair.target_test, rule="greedy").value)
        result[f"{method} seconds"] = round(time.process_time() - start, 1)
        if method == "supervised":
            result["weights"] = [round(weight, 3) for weight in policy.weights.values()]
            result |= compare_with_best_arm(policy, pair)
            result["streams"] = measure_streams(policy, pair, seed)
    return result


def measure_streams(policy: Any, pair: Any, seed: int) -> dict[str, list[float]]:
    """Return the mean reward on held-out target rows after target rewards, by world and penalty."""
    contexts, rewards = read_target(pair)
    order = np.random.default_rng(seed).permutation(len(contexts))
    n_stream = min(STREAM_MARKS[-1], len(order) // 2)
    stream, test = order[:n_stream], order[n_stream : n_stream + 2000]
    results = {}
    for world in ("as it is", "reversed"):
        world_rewards = rewards if world == "as it is" else np.roll(rewards, 1, axis=1)
        for penalty in PENALTIES:
            learner = copy.deepcopy(policy)
            learner.penalty = penalty
            learner._corrections = learner._make_corrections(pair.n_arms)
            means = []
            for start in range(0, n_stream + 16, 16):
                if start in STREAM_MARKS or start >= n_stream:
                    arms = learner.decide(contexts[test], "target", rule="greedy").arm
                    means.append(round(float(world_rewards[test, arms].mean()), 4))
                rows = stream[start : start + 16]
                if len(rows):
                    arms = learner.select(contexts[rows], "target").arm
                    learner.update(contexts[rows], arms, world_rewards[rows, arms], domain="target")
            results[f"{world}, {penalty:g}"] = means
    return results


def compare_with_best_arm(policy: Any, pair: Any) -> dict[str, float]:
    """Return the advantage over the source's best arm in both domains, as in ``reference.json``,
    and how often that arm is right: in the source, and in the target as estimated.
    """
    rounds = pair.source.read_rounds(np.arange(len(pair.source)))
    frequencies = rounds.rewards.mean(axis=0)
    best_arm = int(frequencies.argmax())
    advantages = {}
    for domain, test in (("source", pair.source_test), ("target", pair.target_test)):
        rewards = test.read_expected(0, len(test))
        decision = policy.decide(test.read(0, len(test)), domain, rule="greedy")
        chosen_rewards = rewards[np.arange(len(rewards)), decision.arm]
        gains = chosen_rewards - rewards[:, best_arm]
        advantages[domain] = float(gains.mean())
        if domain == "source":
            n = len(gains)
            scale = float(chosen_rewards.std())
            error = float(np.sqrt((gains.var() * n + scale**2) / (n + 1) / max(n - 1, 1)))
    rows = np.arange(len(decision.arm))
    predicted_gains = decision.mean[rows, decision.arm] - decision.mean[:, best_arm]
    if pair.feedback != "one_hot":
        return {
            **{f"{domain} advantage": advantage for domain, advantage in advantages.items()},
            "predicted advantage": float(predicted_gains.mean()),
            "error": error,
            "scale": scale,
        }
    probabilities = np.clip(decision.mean, 0.0, 1.0)
    return {
        **{f"{domain} advantage": advantage for domain, advantage in advantages.items()},
        "predicted advantage": float(predicted_gains.mean()),
        "error": error,
        "scale": scale,
        "best arm in source": float(frequencies[best_arm]),
        "best arm in target": float(rewards[:, best_arm].mean()),
        "predicted": float(probabilities[:, best_arm].mean()),
        "estimated": float(estimate_frequencies(probabilities, frequencies)[best_arm]),
        "chosen": float((decision.arm == best_arm).mean()),
        "confidence": float(probabilities.max(axis=1).mean()),
    }


def summarise(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the mean reward of each method by half, and how often ``Supervised`` is within 0.02 of
    the best baseline by source.
    """
    summary = {}
    groups = {
        half: [
            row
            for row in rows
            if row["half"] == half and not row["table"].startswith("full_rewards")
        ]
        for half in ("development", "report")
    }
    groups["full rewards"] = [row for row in rows if row["table"].startswith("full_rewards")]
    names = ("mixture", "supervised", "linear", "boosted", "forest")
    for group, group_rows in groups.items():
        if not group_rows:
            continue
        means: dict[str, Any] = {"rows": len(group_rows)}
        for name in (*names, "best by source", "weighted mean"):
            values = [row[name] for row in group_rows if name in row]
            if values:
                means[name] = round(float(np.mean(values)), 4)
        both = [row for row in group_rows if {"supervised", "best by source"} <= row.keys()]
        if both:
            is_near = [row["supervised"] >= row["best by source"] - 0.02 for row in both]
            means["within 0.02 of best by source"] = round(float(np.mean(is_near)), 3)
        for key in both[0]["streams"] if both else ():
            values = [row["streams"][key] for row in both if len(row["streams"][key]) == 4]
            if values:
                means[f"stream, {key}"] = np.round(np.mean(values, axis=0), 4).tolist()
        summary[group] = means
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=["supervised", "baselines", "mixture"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tables", type=int, help="the number of tables; by default all")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--commit", default="")
    arguments = parser.parse_args()
    jobs = [
        (number, collection, name, seed, tuple(arguments.methods))
        for seed in range(arguments.seeds)
        for number, (collection, name) in list(enumerate(list_tables()))[: arguments.tables]
    ]
    rows = []
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as executor:
        for future in as_completed([executor.submit(measure, job) for job in jobs]):
            rows.append(future.result())
            print(json.dumps(rows[-1]), flush=True)
            rows.sort(key=lambda row: (row["seed"], row["table"]))
            record = {"commit": arguments.commit, "summary": summarise(rows), "rows": rows}
            arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(summarise(rows), indent=1))


if __name__ == "__main__":
    main()
