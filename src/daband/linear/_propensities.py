"""Estimate the propensities of a log without propensities, i.e. the probability with which each arm
was chosen.
"""

from __future__ import annotations

import warnings

import numpy as np

from daband.base._arrays import (
    AnyArray,
    FloatArray,
    IntArray,
    Mask,
    take_chosen,
    to_rows,
)
from daband.base._folds import N_FOLDS, assign_folds

#: The smallest estimated propensity.
_MIN_PROPENSITY = 0.01
#: The number of iterations that fit the weights of arms.
_N_ITERATIONS = 100


def estimate_propensities(
    contexts: AnyArray, arms: IntArray, n_arms: int, offered: Mask = None
) -> tuple[FloatArray, str]:
    """Return the estimated probability of each chosen arm (n,), and a description of the method.

    The estimate is the arm's frequency, or the prediction of a multinomial logistic model if that
    is better on held-out rounds. Each round is predicted by a model that did not see it.

    If some rounds did not offer all arms, another method is used. Each arm has a weight, and the
    probability of an offered arm is its weight divided by the sum of the weights of all offered
    arms. The weights maximise the likelihood.

    No propensity is below 0.01.

    Args:
        contexts: the contexts of the log, (n, *C).
        arms: the logged arms, (n,).
        n_arms: the number of arms, K.
        offered: True for the arms that each round offered, (n, K); None if all rounds offered all
            arms.
    """
    counts = np.bincount(arms, minlength=n_arms)
    if offered is not None and not offered.all():
        weights = np.where(counts > 0, 1.0, 0.0)
        # minorise and maximise (Hunter: "MM algorithms for Bradley-Terry models", 2004)
        for _ in range(_N_ITERATIONS):
            weights = np.where(
                counts > 0, counts / np.maximum((1.0 / (offered @ weights)) @ offered, 1e-300), 0.0
            )
        propensities = weights[arms] / (offered @ weights)
        return (
            np.clip(propensities, _MIN_PROPENSITY, 1.0),
            "estimated by a weight of each arm among the offered ones",
        )
    frequencies = (counts / len(arms))[arms]
    method = "estimated by the frequency of each arm"
    propensities = np.clip(frequencies, _MIN_PROPENSITY, 1.0)
    # A model needs at least 100 rounds, and at least two arms with 10 rounds each.
    if len(arms) >= 20 * N_FOLDS and np.count_nonzero(counts >= 2 * N_FOLDS) > 1:
        predictions = _predict_propensities(to_rows(contexts), arms)
        if np.log(predictions).mean() > np.log(propensities).mean():
            propensities = predictions
            method = "estimated by a logistic model of the arm given the context"
    return propensities, method


def _predict_propensities(features: FloatArray, arms: IntArray) -> FloatArray:
    """Return cross-validated predictions (n,) of a logistic model for the logged arms."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import PredefinedSplit, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    split = PredefinedSplit(assign_folds(len(arms), seed=len(arms)))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    with warnings.catch_warnings():  # arms absent from a training fold get probability 0
        warnings.filterwarnings("ignore", message="Number of classes in training fold")
        probabilities = cross_val_predict(model, features, arms, cv=split, method="predict_proba")
    # the model has a column for each arm in the log
    columns = np.unique(arms, return_inverse=True)[1]
    return np.clip(take_chosen(probabilities, columns), _MIN_PROPENSITY, 1.0)
