"""Estimated propensities, for logs without any: the probability with which each logged arm was chosen."""

from __future__ import annotations

import warnings

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray, unit_scale

_MIN_PROPENSITY = 0.01
_FOLDS = 5


def estimate_propensities(contexts: AnyArray, arms: IntArray, n_arms: int) -> tuple[FloatArray, str]:
    """Return the estimated probability of each chosen arm (n,), and the name of the estimation method.

    It is the arm's frequency, or comes from a multinomial logistic model if that predicts held-out rounds better. Each
    round is predicted by a model that did not see it. No propensity is below 0.01.
    """
    counts = np.bincount(arms, minlength=n_arms)
    frequencies = (counts / len(arms))[arms]
    how = "estimated by the frequency of each arm"
    best = np.clip(frequencies, _MIN_PROPENSITY, 1.0)
    if len(arms) >= 20 * _FOLDS and np.count_nonzero(counts >= 2 * _FOLDS) > 1:
        predicted = _predict_propensities(unit_scale(contexts.reshape(len(contexts), -1)), arms)
        if np.log(predicted).mean() > np.log(best).mean():
            best, how = predicted, "estimated by a logistic model of the arm given the context"
    return best, how


def _predict_propensities(features: FloatArray, arms: IntArray) -> FloatArray:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import PredefinedSplit, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    folds = PredefinedSplit(np.random.default_rng(len(arms)).permutation(len(arms)) % _FOLDS)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    with warnings.catch_warnings():  # arms absent from a training fold get probability 0
        warnings.filterwarnings("ignore", message="Number of classes in training fold")
        table = cross_val_predict(model, features, arms, cv=folds, method="predict_proba")
    columns = np.unique(arms, return_inverse=True)[1]
    predicted: FloatArray = table[np.arange(len(arms)), columns]
    return np.clip(predicted, _MIN_PROPENSITY, 1.0)
