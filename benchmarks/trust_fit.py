"""How the study of `daband.assess` fits: weights and margins, judged on data sets that they were not fitted on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize

from daband.trust.calibration import spread
from daband.trust.estimate import sampling_error
from daband.trust.features import COMMITTEE_FEATURES, SINGLE_FEATURES

PRIOR = {COMMITTEE_FEATURES[0]: 1.0, SINGLE_FEATURES[0]: 1.0}
"""What weights are shrunk towards."""
SHRINKAGE = 0.001
NORMAL_95 = 1.645
LEVEL = 0.955
"""Of the bound, a conformal quantile with data sets counting the same: a little above 95%, which estimates of data sets
that were left out fall short of."""


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
    return float(ratio[order][min(int(np.searchsorted(reached, LEVEL)), len(order) - 1)])


def left_out(table: Table, shrinkage: float, judged: Table | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Estimates and bounds of every policy, by what was fitted on the other data sets, (N,) each.

    The margin of a judged data set comes from errors on the others, each estimated by weights that were fitted without
    it and without the judged one. ``judged`` are other policies to judge, by default those of the table.
    """
    judged = table if judged is None else judged
    estimate, low = np.zeros(len(judged.accuracy)), np.zeros(len(judged.accuracy))
    for name in np.unique(judged.family):
        own, others = judged.family == name, table.family != name
        quantile = conformal(table, held_out_estimates(table, others, shrinkage), others)
        estimate[own] = judged.estimate(fitted(table, others, shrinkage), own)
        margin = quantile * spread(estimate[own], judged.source[own])
        low[own] = np.maximum(0.0, estimate[own] - np.hypot(margin, judged.noise(estimate[own], own)))
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


def alternatives(table: Table, agreement: np.ndarray, shrinkage: float) -> dict[str, dict[str, float]]:
    """Mean absolute errors by data set of what else the estimate of a committee might be, fitted and judged alike.

    ``agreement`` is the log odds of agreement beyond chance, (N,), of which, with those of confidence, the first
    feature is the mean.
    """
    first, concentration, product = table.features.T
    change = np.divide(product, first, out=np.zeros_like(first), where=np.abs(first) > 1e-9)
    confidence = 2.0 * first - agreement
    lower = np.minimum(agreement, confidence)
    columns = {
        "as shipped": (first, concentration, product),
        "agreement alone in place of the first": (agreement, concentration, agreement * change),
        "confidence alone in place of the first": (confidence, concentration, confidence * change),
        "the lower of the two in place of the first": (lower, concentration, lower * change),
        "without concentration": (first, product),
        "without the change of predictions": (first, concentration),
        "the change of predictions by itself": (first, concentration, change),
        "the first alone": (first,),
    }
    found = {}
    for name, parts in columns.items():
        names = (table.names[0], *(f"other {index}" for index in range(1, len(parts))))
        other = replace(table, features=np.stack(parts, axis=1), names=names)
        error = np.abs(left_out(other, shrinkage)[0] - table.accuracy)
        found[name] = {str(one): round(float(error[table.family == one].mean()), 4) for one in np.unique(table.family)}
    return found
