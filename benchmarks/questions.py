"""Measure choices and intervals from target rewards, on stored predictions, and compare with two other methods.

    python benchmarks/predictions.py --sets natural_tables more_tables amazon office_caltech warfarin --out predictions
    python benchmarks/questions.py --predictions predictions --record benchmarks/records/questions.json

Constants of ``daband.trust._questions`` were chosen on the development half: within each kind, every other data set by
name. *Uniform* draws contexts uniformly and one of the proposed arms, and takes the largest estimate. *CODA* (Kay et
al., ICCV 2025) asks for the best arm of a context, which is more informative than a reward,
and needs rewards of 0 and 1.

Verdicts are those of ``choose`` after 50 rewards: in the target as it is, in one whose contexts have the rewards of
other contexts (*unrelated*), and in one whose rewards are reversed (*flipped*).
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from machine import commit
from scipy.special import betainc

from daband.trust._assessment import Assessment
from daband.trust._questions import Interval, Questions

BUDGETS = (10, 25, 50, 100, 200)
DRAWS = 10
CODA_DRAWS = 2
CODA_BUDGETS = (10, 25, 50, 100)
_CODA_POOL = 100
"""Number of contexts that CODA compares before each question."""
_GRID = np.linspace(1e-6, 1 - 1e-6, 128)


def measure(path: Path) -> list[dict[str, Any]]:
    """Return a row per way of asking, budget and draw for one data set."""
    stored = np.load(path)
    means, rewards = stored["target_means"].astype(float), stored["target_rewards"].astype(float)
    source, kept = stored["source_rewards"].astype(float), _distinct(stored["target_means"])
    default = kept.index(int(stored["default"]))
    arms = means[kept].argmax(axis=2)
    at_source = stored["source_means"][kept].argmax(axis=2)
    earned = source[np.arange(len(source)), at_source]
    today = np.full(len(rewards), source.mean(axis=0).argmax())
    every = np.concatenate([arms, today[None]])
    values = rewards[np.arange(len(rewards)), every].mean(axis=1)
    best, n = values[:-1].max(), len(kept)
    span = float(np.ptp(rewards)) or 1.0
    predicted = means[kept].mean(axis=0)
    common = {"set": path.stem.rpartition("__")[0], "default": float((best - values[default]) / span)}
    rows = []
    for draw in range(DRAWS):
        asked = Questions(every, predicted, deviation=float(earned.std(axis=1).max()), seed=draw)
        for budget in BUDGETS:
            evidence = asked.compute_evidence({question: rewards[question] for question in asked.draw_first(budget)})
            chosen = evidence.choose_candidate(default, earned.mean(axis=1))
            interval = evidence.compute_intervals(n, budget=budget)[chosen]
            row = {**common, "way": "questions", "rewards": budget, "lost": float((best - values[chosen]) / span)}
            if (every[chosen] != today).any():
                row["true"] = bool(interval.low - 1e-9 <= values[chosen] - values[n] <= interval.high + 1e-9)
                row["width"] = float((interval.high - interval.low) / span)
            rows.append(row)
            lost = float((best - values[_uniform(arms, predicted, rewards, budget, draw)]) / span)
            rows.append({**common, "way": "uniform", "rewards": budget, "lost": lost})
    if np.isin(rewards, (0.0, 1.0)).all() and (rewards.sum(axis=1) == 1.0).all():
        for draw in range(CODA_DRAWS):
            for budget, chosen in _coda(means[kept], rewards.argmax(axis=1), draw).items():
                lost = float((best - values[chosen]) / span)
                rows.append({**common, "way": "coda", "rewards": budget, "lost": lost})
    return rows


def verdicts(path: Path) -> list[dict[str, Any]]:
    """Return the verdict after 50 rewards in the target as it is, unrelated and flipped, with the true advantage."""
    stored = np.load(path)
    kept = _distinct(stored["target_means"])
    default = kept.index(int(stored["default"]))
    source, means = stored["source_rewards"].astype(float), stored["target_means"][kept].astype(float)
    at_source = stored["source_means"][kept].argmax(axis=2)
    earned = source[np.arange(len(source)), at_source]
    today, scale = int(source.mean(axis=0).argmax()), float(earned.std(axis=1).max())
    real = stored["target_rewards"].astype(float)
    every = np.concatenate([means.argmax(axis=2), np.full((1, len(real)), today)])
    generator = np.random.default_rng(0)
    targets = {"real": real, "unrelated": generator.permutation(real), "flipped": real.max() + real.min() - real}
    rows = []
    for target, rewards in targets.items():
        values = rewards[np.arange(len(rewards)), every].mean(axis=1)
        for draw in range(DRAWS):
            asked = Questions(every, means.mean(axis=0), deviation=scale, seed=draw)
            evidence = asked.compute_evidence({question: rewards[question] for question in asked.draw_first(50)})
            chosen = evidence.choose_candidate(default, earned.mean(axis=1))
            verdict = _verdict(evidence.compute_intervals(len(kept), budget=50)[chosen])
            gain = float(values[chosen] - values[-1]) / (float(np.ptp(rewards)) or 1.0)
            rows.append({"set": path.stem.rpartition("__")[0], "target": target, "verdict": verdict, "gain": gain})
    return rows


def _verdict(interval: Interval) -> str:
    """Return the verdict of ``Assessment.with_rewards``. Fields that do not affect the verdict are empty."""
    empty: dict[str, Any] = dict.fromkeys(Assessment.__dataclass_fields__, 0)
    return Assessment(**{**empty, "doubts": [], "high": None}).with_rewards(interval, interval, 50).verdict


def of_verdicts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how often each target led to a deployment, and how often that was wrong."""
    found = []
    for target in ("real", "unrelated", "flipped"):
        own = [row for row in rows if row["target"] == target]
        deployed = [row for row in own if row["verdict"] == "deploy"]
        good = [row for row in own if row["gain"] >= 0.05]
        found.append({
            "target": target, "runs": len(own), "deployed": len(deployed), "good": len(good),
            "good_deployed": sum(row["verdict"] == "deploy" for row in good),
            "worse": sum(row["gain"] < 0.0 for row in deployed),
            "clearly_worse": sum(row["gain"] < -0.02 for row in deployed),
        })  # fmt: skip
    return found


def _distinct(means: Any) -> list[int]:
    """Return the candidates that do not predict the same as an earlier one."""
    return [i for i, own in enumerate(means) if not any(np.array_equal(own, other) for other in means[:i])]


def _uniform(arms: Any, predicted: Any, rewards: Any, budget: int, draw: int) -> int:
    generator = np.random.default_rng(draw)
    total = predicted[np.arange(arms.shape[1]), arms].mean(axis=1)
    for context in generator.integers(arms.shape[1], size=budget):
        proposed = np.unique(arms[:, context])
        arm = generator.choice(proposed)
        residual = (rewards[context, arm] - predicted[context, arm]) * len(proposed) / budget
        total = total + np.where(arms[:, context] == arm, residual, 0.0)
    return int(total.argmax())


def _coda(means: Any, labels: Any, draw: int) -> dict[int, int]:
    """Return the model that CODA takes after each budget; settings of its paper: prior 0.1, learning rate 0.01."""
    generator, (n_models, _, n_arms) = np.random.default_rng(draw), means.shape
    scores = np.maximum(means, 1e-6) / np.maximum(means, 1e-6).sum(axis=2, keepdims=True)
    choices = means.argmax(axis=2)
    consensus = np.eye(n_arms)[scores.mean(axis=0).argmax(axis=1)]
    soft = np.einsum("nc,hnj->hcj", consensus, scores)
    soft /= np.maximum(soft.sum(axis=2, keepdims=True), 1e-6)
    base = np.full((n_arms, n_arms), 1.0 / max(n_arms - 1, 1)) + np.eye(n_arms) * (1.0 - 1.0 / max(n_arms - 1, 1))
    counts = base + 0.1 * soft
    open_rows = np.flatnonzero((choices != choices[0]).any(axis=0))
    found = {}
    for asked in range(max(CODA_BUDGETS) + 1):
        if asked in CODA_BUDGETS:
            found[asked] = int((_best(counts) * _frequencies(counts, scores)[0][:, None]).sum(axis=0).argmax())
        if not len(open_rows):
            continue
        rows = generator.choice(open_rows, min(_CODA_POOL, len(open_rows)), replace=False)
        frequencies, per_row = _frequencies(counts, scores, rows)
        before = _best(counts)
        mixture = (frequencies[:, None] * before).sum(axis=0)
        gain = np.zeros(len(rows))
        for arm in range(n_arms):  # what each answer would change
            right = choices[:, rows] == arm
            alpha = counts[:, arm, arm][:, None] + right
            beta = counts[:, arm].sum(axis=1)[:, None] - counts[:, arm, arm][:, None] + ~right
            after = mixture[:, None] + frequencies[arm] * (_largest(alpha, beta) - before[arm][:, None])
            gain -= per_row[:, arm] * _entropy(after)
        row = int(rows[gain.argmax()])
        counts[np.arange(n_models), labels[row], choices[:, row]] += 0.01
        open_rows = open_rows[open_rows != row]
    return found


def _frequencies(counts: Any, scores: Any, rows: Any = slice(None)) -> tuple[Any, Any]:
    per_row = np.einsum("hcs,hns->nc", counts, scores)
    per_row /= per_row.sum(axis=1, keepdims=True)
    return per_row.mean(axis=0), per_row[rows]


def _best(counts: Any) -> Any:
    """Return the probability that each model is the most accurate for each true arm, (K, H)."""
    diagonal = np.diagonal(counts, axis1=1, axis2=2)
    return np.stack([_largest(a, b) for a, b in zip(diagonal.T, (counts.sum(axis=2) - diagonal).T, strict=True)])


def _largest(alpha: Any, beta: Any) -> Any:
    """Return the probability that each Beta variable (H, ...) is the largest."""
    cdf = np.maximum(betainc(alpha[..., None], beta[..., None], _GRID), 1e-30)
    others = np.exp(np.log(cdf).sum(axis=0) - np.log(cdf))
    chance = (np.diff(cdf, axis=-1) * (others[..., 1:] + others[..., :-1]) / 2.0).sum(axis=-1)
    return chance / np.maximum(chance.sum(axis=0), 1e-30)


def _entropy(chance: Any) -> Any:
    kept = np.maximum(chance, 1e-12)
    return -(kept * np.log2(kept)).sum(axis=0)


def halves(names: list[str]) -> dict[str, str]:
    """Return the half of each data set: within a kind, every other one by name is for development."""
    kinds: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        kinds.setdefault(name.split("__")[0], []).append(name)
    return {name: ("development", "report")[i % 2] for own in kinds.values() for i, name in enumerate(own)}


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return means by half, way of asking and budget; ``gain`` is against the default, ``worst`` of a data set."""
    half = halves([row["set"] for row in rows])
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((half[row["set"]], row["way"], row["rewards"]), []).append(row)
    found = []
    for (where, way, rewards), own in sorted(groups.items()):
        gains: dict[str, list[float]] = {}
        for row in own:
            gains.setdefault(row["set"], []).append(row["default"] - row["lost"])
        means = [float(np.mean(values)) for values in gains.values()]
        one = {"half": where, "way": way, "rewards": rewards, "sets": len(means)}
        one["default_within"] = float(np.mean([row["default"] <= 0.03 for row in own]))
        one["within"] = float(np.mean([row["lost"] <= 0.03 for row in own]))
        one |= {"gain": float(np.mean(means)), "worst": min(means)}
        if intervals := [row for row in own if "true" in row]:
            one |= {key: float(np.mean([row[key] for row in intervals])) for key in ("true", "width")}
        found.append({key: round(value, 4) if isinstance(value, float) else value for key, value in one.items()})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predictions", type=Path, required=True)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--commit", help="the commit, where there is no checkout")
    given = parser.parse_args()
    with ProcessPoolExecutor(given.jobs) as pool:
        files = sorted(given.predictions.glob("*__0.npz"))
        judged = of_verdicts([row for part in pool.map(verdicts, files) for row in part])
        print(*judged, sep="\n", flush=True)
        rows = summary([row for part in pool.map(measure, files) for row in part])
        print(*rows, sep="\n")
    if given.record:
        record = {"commit": given.commit or commit(), "verdicts": judged, "rows": rows}
        given.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
