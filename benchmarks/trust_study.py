"""The study of `daband.assess`: estimators of target accuracy on the committees that `trust_policies.py` kept.

    python benchmarks/trust_study.py --scores scores more_scores --digit digit_scores --commit C   # writes the record

Every estimator is judged on every policy. What is fitted (weights, margin of the bound) is fitted on all data sets but
the one that is judged; what the library ships is fitted on all of them. The record, `benchmarks/records/trust.json`,
has a row per policy; `results_pages.py` makes the page and the figure from it.

`--digit` names a folder of predictions for the released MNIST-M, a file per variant with arrays `variant`, `seed`,
`source_mean`, `source_label`, `target_mean`, `target_label`.
"""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from daband.evaluation.scores import Scores
from daband.evaluation.zero_shot import best_arms
from daband.trust.agreement import (
    balanced_agreement,
    chance_corrected_agreement,
    conditional_agreement,
    corrected_agreement,
    target_agreement,
)
from daband.trust.arm_frequencies import expected_arm_frequencies
from daband.trust.calibration import spread
from daband.trust.collapse import collapse_signs
from daband.trust.committee_confidence import committee_probabilities
from daband.trust.estimate import constant_value, sampling_error
from daband.trust.features import COMMITTEE_FEATURES, SINGLE_FEATURES, features_of
from daband.trust.single_policy import (
    average_thresholded_confidence,
    confidence,
    difference_of_confidences,
    neighbours,
    optimal_transport,
    source_accuracy,
)
from daband.trust.verdict import verdict_of

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "records" / "trust.json"
SINGLE: dict[str, Callable[[Scores], np.ndarray]] = {
    "source accuracy": source_accuracy,
    "confidence": confidence,
    "DoC": difference_of_confidences,
    "ATC, max": partial(average_thresholded_confidence, by="max"),
    "ATC, entropy": partial(average_thresholded_confidence, by="entropy"),
    "ATC, margin": partial(average_thresholded_confidence, by="margin"),
    "COT": partial(optimal_transport, most=300),
    "neighbours": partial(neighbours, most=500),
}
COMMITTEE: dict[str, Callable[[Scores], np.ndarray]] = {
    "agreement": target_agreement,
    "agreement x source accuracy / source agreement": corrected_agreement,
    "accuracy given agreement": conditional_agreement,
    "the same beyond chance": chance_corrected_agreement,
    "beyond chance as far as choices are spread": balanced_agreement,
}
PRIOR = {COMMITTEE_FEATURES[0]: 1.0, SINGLE_FEATURES[0]: 1.0}
"""What weights are shrunk towards."""
SHRINKAGE = 0.001
NORMAL_95 = 1.645
LEVEL = 0.955
"""Of the bound, a conformal quantile with data sets counting the same: a little above 95%, which estimates of data sets
that were left out fall short of."""


@dataclass(frozen=True)
class Committee:
    """What is known of a committee, and what is true of it."""

    about: dict[str, Any]
    scores: Scores
    accuracy: np.ndarray
    value: np.ndarray
    constant: float
    """The true value of the best constant arm in the target."""


def kept(path: Path) -> Committee:
    """A committee of `trust_policies.py`."""
    with np.load(path) as packed:
        arrays = dict(packed)
    about = json.loads(str(arrays["about"]))
    table, truth = (arrays[name].astype(np.float64) for name in ("source_expected", "test_expected"))
    arm, judged = arrays["source_arm"].astype(np.int64), arrays["test_arm"].astype(np.int64)
    paid = table[np.arange(len(table))[None, :], arm]
    low, high = -0.25, 1.25
    here, there = (arrays[f"{name}_mean"] / 255.0 * (high - low) + low for name in ("source", "target"))
    scores = Scores(here, arm, paid, np.ones_like(paid), there, arrays["target_arm"].astype(np.int64))
    rows = np.arange(len(truth))[None, :]
    return Committee(
        about,
        scores,
        best_arms(truth)[rows, judged].mean(axis=1),
        truth[rows, judged].mean(axis=1),
        float(truth.mean(axis=0).max()),
    )


def released(path: Path) -> Iterator[Committee]:
    """Committees of three and two among the seeds of one variant on the released MNIST-M."""
    with np.load(path) as packed:
        arrays = dict(packed)
    labels, truth = arrays["source_label"], arrays["target_label"]
    constant = float(np.bincount(truth).max() / len(truth))
    for members in ([0, 1, 2], [3, 4]):
        if members[-1] >= len(arrays["seed"]):
            continue
        here, there = (arrays[f"{name}_mean"][members].astype(np.float64) for name in ("source", "target"))
        arm, choice = here.argmax(axis=2), there.argmax(axis=2)
        paid = (arm == labels).astype(np.float64)
        right = (choice == truth).mean(axis=1)
        about = {
            "problem": "digit/released",
            "family": "digit",
            "variant": path.stem.removeprefix("digit_"),
            "stage": 1.0,
            "seeds": arrays["seed"][members].tolist(),
        }
        scores = Scores(here, arm, paid, np.ones_like(paid), there, choice)
        yield Committee(about, scores, right, right, constant)


def described(one: Committee) -> dict[str, Any]:
    """Everything that fits and tables need of a committee."""
    scores = one.scores
    signs = [len(collapse_signs(scores, member)) for member in range(scores.members)]
    calibrated = committee_probabilities(scores)
    alone = [features_of(scores.of([member])) for member in range(scores.members)]
    return {
        "about": one.about,
        "chance": alone[0].chance,
        "committee": features_of(scores, calibrated).values,
        "committee source": features_of(scores, calibrated).source,
        "single": np.concatenate([features.values for features in alone]),
        "single source": np.concatenate([features.source for features in alone]),
        "estimates": {name: own(scores) for name, own in {**SINGLE, **COMMITTEE}.items()},
        "accuracy": one.accuracy,
        "value": one.value,
        "constant": one.constant,
        "signs": signs,
        "required": constant_value(scores, expected_arm_frequencies(calibrated)[1]),
        "rounds": scores.effective_rounds(),
        "target_contexts": scores.target_arm.shape[1],
    }


@dataclass(frozen=True)
class Table:
    """All policies in rows."""

    family: np.ndarray
    features: np.ndarray
    names: tuple[str, ...]
    chance: np.ndarray
    """Log odds of a random arm."""
    source: np.ndarray
    """The accuracy in the source, as far as it is known."""
    accuracy: np.ndarray
    rounds: np.ndarray
    contexts: np.ndarray

    def estimate(self, weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Estimates of some rows."""
        return logistic(self.chance[rows] + self.features[rows] @ weights)

    def noise(self, estimate: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """What sampling alone adds to the margin of some rows, at their estimates."""
        parts = zip(self.rounds[rows], self.source[rows], self.contexts[rows], estimate, strict=True)
        return np.array([NORMAL_95 * sampling_error(*map(float, part)) for part in parts])


def logistic(odds: np.ndarray) -> np.ndarray:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(odds, -30.0, 30.0))))


def fitted(table: Table, rows: np.ndarray, shrinkage: float) -> np.ndarray:
    """Weights of least absolute error, every data set counting the same, shrunk towards `PRIOR`."""
    x, y, chance = table.features[rows], table.accuracy[rows], table.chance[rows]
    weight = even_weights(table.family[rows])
    prior = np.array([PRIOR.get(name, 0.0) for name in table.names])

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        p = logistic(chance + x @ w)
        error = p - y
        size = np.sqrt(np.square(error) + 1e-3)
        gradient = (weight * error / size * p * (1.0 - p)) @ x + 2.0 * shrinkage * (w - prior)
        return float((weight * size).sum() + shrinkage * np.square(w - prior).sum()), gradient

    found: np.ndarray = minimize(loss, prior, jac=True, method="L-BFGS-B").x
    return found


def even_weights(family: np.ndarray) -> np.ndarray:
    """Weights of rows with which every data set counts the same; their sum is 1."""
    counts = {name: int((family == name).sum()) for name in np.unique(family)}
    return np.array([1.0 / counts[name] for name in family]) / len(counts)


def conformal(table: Table, estimate: np.ndarray, rows: np.ndarray) -> float:
    """The multiple of the spread that a bound needs beside sampling errors, every data set counting the same."""
    error = (estimate - table.accuracy)[rows]
    noise = table.noise(estimate[rows], rows)
    beyond = np.sqrt(np.maximum(np.square(error) - np.square(noise), 0.0))
    ratio = np.where(error > noise, beyond / spread(estimate[rows], table.source[rows]), 0.0)
    order = np.argsort(ratio)
    reached = np.cumsum(even_weights(table.family[rows])[order])
    return float(ratio[order][min(np.searchsorted(reached, LEVEL), len(order) - 1)])


def left_out(table: Table, shrinkage: float) -> tuple[np.ndarray, np.ndarray]:
    """Estimates and bounds of every policy, by what was fitted on the other data sets, (N,) each.

    The margin of a judged data set comes from errors on the others, each estimated by weights that were fitted without
    it and without the judged one.
    """
    families = np.unique(table.family)
    estimate, low = np.zeros(len(table.accuracy)), np.zeros(len(table.accuracy))
    for judged in families:
        own = table.family == judged
        quantile = conformal(table, held_out_estimates(table, ~own, shrinkage), ~own)
        estimate[own] = table.estimate(fitted(table, ~own, shrinkage), own)
        margin = quantile * spread(estimate[own], table.source[own])
        low[own] = np.maximum(0.0, estimate[own] - np.hypot(margin, table.noise(estimate[own], own)))
    return estimate, low


def held_out_estimates(table: Table, rows: np.ndarray, shrinkage: float) -> np.ndarray:
    """Estimates of some rows, each data set by weights fitted on the others among them; 0 elsewhere, (N,)."""
    found = np.zeros(len(table.accuracy))
    for held in np.unique(table.family[rows]):
        own = rows & (table.family == held)
        found[own] = table.estimate(fitted(table, rows & ~own, shrinkage), own)
    return found


def shipped(table: Table, shrinkage: float) -> dict[str, Any]:
    """What the library takes over: weights fitted on everything, and the margin from data sets left out in turn."""
    everything = np.ones(len(table.accuracy), np.bool_)
    quantile = conformal(table, held_out_estimates(table, everything, shrinkage), everything)
    return {
        "features": list(table.names),
        "weights": [round(float(w), 4) for w in fitted(table, everything, shrinkage)],
        "quantile": round(quantile, 4),
    }


def table_of(described_all: Sequence[dict[str, Any]], kind: str) -> Table:
    """The features of a kind, "committee" or "single", with what is true."""
    sizes = [len(one["accuracy"]) for one in described_all]
    per_policy = {
        name: np.concatenate([one[key] for one in described_all])
        for name, key in (
            ("features", kind),
            ("source", f"{kind} source"),
            ("accuracy", "accuracy"),
            ("rounds", "rounds"),
        )
    }
    return Table(
        family=np.repeat([one["about"]["family"] for one in described_all], sizes),
        names=COMMITTEE_FEATURES if kind == "committee" else SINGLE_FEATURES,
        chance=np.repeat([one["chance"] for one in described_all], sizes),
        contexts=np.repeat([one["target_contexts"] for one in described_all], sizes),
        **per_policy,
    )


def rows_of(described_all: Sequence[dict[str, Any]], ours: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[Any]:
    """A record per policy."""
    found = []
    at = 0
    for one in described_all:
        about = one["about"]
        for member, right in enumerate(one["accuracy"]):
            estimate, low = (float(part[at]) for part in ours["committee"])
            alone, alone_low = (float(part[at]) for part in ours["single"])
            required = float(one["required"])
            verdict = verdict_of(
                value=estimate, low=low, required=required, estimated=True, doubts=one["signs"][member]
            )
            found.append(
                {
                    "family": about["family"],
                    "problem": about["problem"],
                    "variant": about["variant"],
                    "stage": about["stage"],
                    "seed": about["seeds"][member],
                    "committee": len(one["accuracy"]),
                    "true": _short(right),
                    "true_value": _short(one["value"][member]),
                    "constant": _short(one["constant"]),
                    "required": _short(required),
                    "verdict": verdict.text,
                    "estimated": _short(estimate),
                    "low": _short(low),
                    "single": _short(alone),
                    "single_low": _short(alone_low),
                    "others": {name: _short(values[member]) for name, values in one["estimates"].items()},
                }
            )
            at += 1
    return found


def relabelled(paths: Sequence[Path], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the same estimates are worth in a target whose arms were renamed, which no estimate can see.

    ``rows`` are records of policies in the order of ``paths``.
    """
    true = []
    for path in paths:
        with np.load(path) as packed:
            table, judged = packed["test_expected"], packed["test_arm"].astype(np.int64)
        moved = (judged + 1) % table.shape[1]
        true += best_arms(table.astype(np.float64))[np.arange(len(table))[None, :], moved].mean(axis=1).tolist()
    some = rows[: len(true)]
    return {
        "policies": len(true),
        "true": _short(float(np.mean(true))),
        "estimated": _short(float(np.mean([one["estimated"] for one in some]))),
        "handed_over": sum(one["verdict"] == "hand over" for one in some),
    }


def _short(value: float) -> float:
    return round(float(value), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, nargs="+", required=True)
    parser.add_argument("--digit", type=Path)
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--cache", type=Path, help="keep what was described here, to fit again without reading anew")
    parser.add_argument("--commit", default="")
    parser.add_argument("--machine", default="")
    parser.add_argument("--shrinkage", type=float, default=SHRINKAGE)
    arguments = parser.parse_args()
    paths = [path for folder in arguments.scores for path in sorted(folder.glob("*--*--*.npz"))]
    digits = sorted(arguments.digit.glob("*.npz")) if arguments.digit else []
    known: dict[str, Any] = {}
    if arguments.cache and arguments.cache.exists():
        known = pickle.loads(arguments.cache.read_bytes())
    for path in [*paths, *digits]:
        if str(path) not in known:
            found = [kept(path)] if path in paths else released(path)
            known[str(path)] = [described(one) for one in found]
    if arguments.cache:
        arguments.cache.write_bytes(pickle.dumps(known))
    described_all = [one for path in [*paths, *digits] for one in known[str(path)]]
    tables = {kind: table_of(described_all, kind) for kind in ("committee", "single")}
    ours = {kind: left_out(table, arguments.shrinkage) for kind, table in tables.items()}
    policies = rows_of(described_all, ours)
    record = {
        "command": "python benchmarks/trust_study.py --scores SCORES --digit DIGIT_SCORES",
        "commit": arguments.commit,
        "machine": arguments.machine,
        "shrinkage": arguments.shrinkage,
        "level": LEVEL,
        "fitted": {kind: shipped(table, arguments.shrinkage) for kind, table in tables.items()},
        "relabelled": relabelled(paths, policies),
        "policies": policies,
    }
    text = json.dumps(record, indent=None, separators=(",", ":")).replace('{"family"', '\n{"family"')
    arguments.out.write_text(text + "\n")
    print(f"{len(policies)} policies, {arguments.out}")


if __name__ == "__main__":
    main()
