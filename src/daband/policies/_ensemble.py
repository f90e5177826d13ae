"""Learn the rewards of all arms by three learners of scikit-learn, and combine their predictions.

The learners extrapolate differently to contexts outside the source: a linear model on piecewise
features, gradient-boosted trees, and extremely randomised trees. With labels they predict the
probability of each arm to have reward 1, otherwise the reward of each arm.

The weights of the learners are the mean of equal weights and of the weights that predict best in
three-fold cross-validation: maximum likelihood for labels, least squares for rewards. Equal weights
protect against a learner that is better in the source only. On 60 tables with a shift, this mean
was closer to the best learner of each table than either part of it.

The held-out predictions of cross-validation also show how much the ensemble overestimates the
rewards of the arms that it predicts to be best.

The result is an ``EnsembleNetwork``, which needs only numpy. It does not depend on the order of
rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from daband.base._arrays import (
    Arrays,
    BoolArray,
    FloatArray,
    IntArray,
    add_prefix,
    count_processors,
    take_chosen,
)
from daband.features._piecewise import fit_ramps
from daband.linear._mixture_weights import solve_on_simplex
from daband.logs._mean_estimates import MeanEstimate, estimate_mean
from daband.policies._trees import TreeNodes, join_trees, round_to_16_bits
from daband.serving._numpy_networks import EnsembleNetwork, make_empty_trees

#: The number of folds of cross-validation.
_N_FOLDS = 3
#: The maximum number of ramps per column.
_MAX_PIECES = 8
#: Settings of the boosted trees.
_BOOSTING = {
    "learning_rate": 0.1,
    "max_iter": 60,
    "max_leaf_nodes": 15,
    "l2_regularization": 1.0,
    "early_stopping": False,
}
#: Settings of the extremely randomised trees. Small trees decide quickly.
_FOREST = {
    "n_estimators": 64,
    "max_depth": 10,
    "min_samples_leaf": 5,
    "max_features": 0.5,
    "random_state": 0,
}
#: The inverse penalty of the logistic regression, for columns of variance 1.
_INVERSE_PENALTY = 10.0
#: Ridge penalties among which cross-validation chooses.
_PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
#: The logit of an arm that is never right in the source, relative to others.
_ABSENT_LOGIT = -20.0
#: Maximum number of columns times arms for boosted trees, which would take minutes above it.
_MAX_BOOSTED_INPUTS = 1024
#: The number of steps of expectation maximisation.
_N_STEPS = 200


def fit_ensemble(
    contexts: FloatArray,
    rewards: FloatArray,
    *,
    has_labels: bool,
    like: EnsembleNetwork | None = None,
) -> EnsembleNetwork:
    """Return the ensemble that predicts the rewards of all arms.

    Args:
        contexts: (n, d).
        rewards: the reward of every arm, (n, K).
        has_labels: True if exactly one arm of each row has reward 1, and all others 0.
        like: an ensemble that may be for the same rows, with other units of columns. Its forest is
            then the same, and its cross-validation is used.
    """
    order = np.lexsort(np.column_stack([contexts, rewards]).T)
    contexts = contexts[order]
    rewards = rewards[order]
    n_rows = len(rewards)
    # every fold has the same fraction of each label
    shuffled = np.random.default_rng(0).permutation(n_rows)
    by_label = shuffled[np.argsort(rewards[shuffled].argmax(axis=1), kind="stable")]
    folds = np.argsort(by_label) % _N_FOLDS
    # the longest fit first
    rows = [folds >= 0, *(folds != fold for fold in range(min(_N_FOLDS, n_rows)) if n_rows > 1)]

    def fit(own: BoolArray) -> Arrays:
        return _fit_learners(contexts[own], rewards[own], has_labels)

    fitted = _run_in_threads(fit, rows[:1]) if like else []
    if like and np.array_equal(fitted[0]["forest/value"], like.arrays["forest/value"]):
        return make_ensemble(like.arrays | fitted[0], contexts.shape[1], has_labels)
    arrays, *fold_arrays = fitted + _run_in_threads(fit, rows[len(fitted) :])
    is_used = np.array([True, _uses_boosting(contexts, rewards), True])
    weights = is_used / is_used.sum()
    held_out_error = MeanEstimate(0.0, rewards.std())
    if fold_arrays:
        predictions = np.empty((3, *rewards.shape))
        for fold, learners in enumerate(fold_arrays):
            network = make_ensemble(learners | {"weights": weights}, contexts.shape[1], has_labels)
            predictions[:, folds == fold] = network.predict(contexts[folds == fold])
        fit_weights = _fit_likelihood if has_labels else _fit_least_squares
        weights[is_used] += fit_weights(predictions[is_used], rewards)
        weights /= 2.0
        mixed = np.tensordot(weights, predictions, axes=1)
        arms = mixed.argmax(axis=1)
        held_out_error = estimate_mean(take_chosen(rewards, arms) - take_chosen(mixed, arms))
    arrays |= {
        "weights": weights,
        "unit": np.array([rewards.mean(), rewards.std() or 1.0]),
        "held_out_error": np.array(held_out_error[:2]),
    }
    return make_ensemble(arrays, contexts.shape[1], has_labels)


def make_ensemble(arrays: Arrays, n_inputs: int, has_labels: bool) -> EnsembleNetwork:
    """Return the ensemble with these arrays, for contexts (n_inputs,)."""
    return EnsembleNetwork(
        {"kind": "ensemble", "inputs": n_inputs, "probabilities": has_labels}, arrays
    )


def _uses_boosting(contexts: FloatArray, rewards: FloatArray) -> bool:
    """Return True if boosted trees are fitted quickly enough."""
    return contexts.shape[1] * rewards.shape[1] <= _MAX_BOOSTED_INPUTS


def _fit_likelihood(predictions: FloatArray, rewards: FloatArray) -> FloatArray:
    """Return the weights (m,) of probabilities (m, n, K) for which labels are most likely, by
    expectation maximisation.
    """
    likelihoods = np.maximum(predictions[:, rewards == 1.0], 1e-6)
    weights = np.full(len(likelihoods), 1.0 / len(likelihoods))
    for _ in range(_N_STEPS):
        posterior = weights[:, None] * likelihoods
        weights = (posterior / posterior.sum(axis=0)).mean(axis=1)
    return weights


def _fit_least_squares(predictions: FloatArray, rewards: FloatArray) -> FloatArray:
    """Return the weights (m,), at least 0 with sum 1, of predictions (m, n, K) with the smallest
    squared error.
    """
    errors = (predictions - rewards).reshape(len(predictions), -1)
    scale = np.square(errors).mean() or 1.0
    gram = errors @ errors.T / (errors.shape[1] * scale)
    return solve_on_simplex(gram + 1e-9 * np.eye(len(gram)), np.zeros(len(gram)))


# The learners.


def _run_in_threads(fit: Callable[..., Arrays], rows: Sequence[BoolArray]) -> list[Arrays]:
    """Return the results of a fit for each selection of rows.

    The fits run in parallel, in one thread for each processor. A fit has no further threads of
    OpenMP and BLAS, which would wait for each other most of the time.
    """
    import sklearn.ensemble  # noqa: F401  # loads OpenMP before the controller looks for it
    from threadpoolctl import ThreadpoolController  # a dependency of scikit-learn

    # OpenMP's limit is that of a thread. That of BLAS, and warnings, are those of the process.
    limit = partial(ThreadpoolController().limit, limits=1)
    with (
        limit(),
        # scikit-learn changes the filters in each thread, so some warnings are not ignored
        warnings.catch_warnings(record=True, action="ignore"),
        ThreadPoolExecutor(count_processors(), initializer=limit) as executor,
    ):
        return list(executor.map(fit, rows))


def _fit_learners(contexts: FloatArray, rewards: FloatArray, has_labels: bool) -> Arrays:
    """Return the arrays of an ``EnsembleNetwork`` without its weights."""
    ramps = fit_ramps(contexts, _MAX_PIECES)
    # scikit-learn needs a column, but constant contexts have no ramp
    features = ramps(contexts)[:, 1:] if len(ramps.column) else np.zeros((len(contexts), 1))
    arrays = add_prefix("ramps/", ramps.arrays())
    fit = _fit_to_labels if has_labels else _fit_to_rewards
    theta, boosted_trees, forest = fit(contexts, features, rewards)
    # as in a saved file, for equal rounding
    arrays["theta"] = np.ascontiguousarray(theta[:, : ramps.n_features])
    arrays |= add_prefix("boosted/", boosted_trees)
    return arrays | add_prefix("forest/", forest)


def _fit_to_labels(
    contexts: FloatArray, features: FloatArray, rewards: FloatArray
) -> tuple[FloatArray, Arrays, Arrays]:
    """Return the coefficients (K, m + 1) of a logistic regression on features (n, m), and the
    arrays of boosted trees and of a forest, which predict labels.
    """
    from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    n_arms = rewards.shape[1]
    labels = rewards.argmax(axis=1)
    arms = np.unique(labels)
    theta = np.zeros((n_arms, features.shape[1] + 1))
    theta[:, 0] = _ABSENT_LOGIT
    theta[arms, 0] = 0.0
    bases = theta[:, 0].copy()
    if len(arms) < 2:
        empty_trees = {**make_empty_trees(n_arms), "base": bases}
        return theta, empty_trees, {**empty_trees, "base": np.eye(n_arms)[arms[0]]}
    linear = LogisticRegression(C=_INVERSE_PENALTY, max_iter=200).fit(features, labels)
    forest = ExtraTreesClassifier(**_FOREST).fit(contexts, labels)
    # with two labels, the models predict the logit of the second one
    modelled_arms = arms[-len(linear.coef_) :]
    theta[modelled_arms] = np.column_stack([linear.intercept_, linear.coef_])
    boosted_trees = make_empty_trees(n_arms)
    if _uses_boosting(contexts, rewards):
        boosted = HistGradientBoostingClassifier(**_BOOSTING).fit(contexts, labels)
        bases[modelled_arms] = boosted._baseline_prediction.ravel()
        trees_by_arm = zip(
            modelled_arms.tolist(), zip(*boosted._predictors, strict=True), strict=True
        )
        boosted_trees = _join_boosted(dict(trees_by_arm), bases)
    return theta, boosted_trees, _join_forest(forest, n_arms, arms)


def _fit_to_rewards(
    contexts: FloatArray, features: FloatArray, rewards: FloatArray
) -> tuple[FloatArray, Arrays, Arrays]:
    """Return the coefficients (K, m + 1) of a ridge regression on features (n, m), and the arrays
    of boosted trees and of a forest, which predict rewards.
    """
    from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV

    n_arms = rewards.shape[1]
    means = rewards.mean(axis=0)
    scale = float((rewards - means).std()) or 1.0
    # the unit of rewards changes nothing but the unit of predictions
    targets = np.round((rewards - means) / scale, 9)
    linear = RidgeCV(_PENALTIES).fit(features, targets)
    theta = scale * np.column_stack([linear.intercept_, linear.coef_.reshape(n_arms, -1)])
    theta[:, 0] += means
    boosted_trees = make_empty_trees(n_arms)
    if _uses_boosting(contexts, rewards):
        boosted = [
            HistGradientBoostingRegressor(**_BOOSTING).fit(contexts, target) for target in targets.T
        ]
        trees_by_arm = {
            arm: [predictors[0] for predictors in model._predictors]
            for arm, model in enumerate(boosted)
        }
        bases = means + scale * np.array([model._baseline_prediction.item() for model in boosted])
        boosted_trees = _join_boosted(trees_by_arm, bases, scale)
    forest_targets = targets if n_arms > 1 else targets[:, 0]
    forest = ExtraTreesRegressor(**_FOREST).fit(contexts, forest_targets)
    forest_arrays = _join_forest(forest, n_arms, np.arange(n_arms))
    return (
        theta,
        boosted_trees,
        {**forest_arrays, "value": scale * forest_arrays["value"], "base": means},
    )


# Trees as arrays.


def _join_boosted(
    trees_by_arm: Mapping[int, Sequence[Any]], bases: FloatArray, scale: float = 1.0
) -> Arrays:
    """Return the arrays of a ``TreeNetwork`` with the boosted trees of each arm."""
    trees = {}
    for arm, predictors in trees_by_arm.items():
        for index, predictor in enumerate(predictors):
            nodes = predictor.nodes
            trees[arm, index] = TreeNodes(
                nodes["is_leaf"].astype(bool),
                nodes["feature_idx"],
                round_to_16_bits(nodes["num_threshold"]),
                nodes["left"],
                nodes["right"],
                scale * nodes["value"],
                int(nodes["depth"].max()),
            )
    n_trees = max(map(len, trees_by_arm.values()))
    return {**join_trees(trees, len(bases), n_trees), "base": bases}


def _join_forest(forest: Any, n_arms: int, arms: IntArray) -> Arrays:
    """Return the arrays of a ``TreeNetwork`` with the trees of a forest, which predict all arms.

    ``arms`` are the arms of the forest's outputs.
    """
    trees = {}
    for index, estimator in enumerate(forest.estimators_):
        tree = estimator.tree_
        values = np.zeros((tree.node_count, n_arms))
        values[:, arms] = tree.value.reshape(tree.node_count, -1) / len(forest.estimators_)
        trees[0, index] = TreeNodes.read(tree, round_to_16_bits(tree.threshold), values)
    return {**join_trees(trees, 1, len(trees)), "base": np.zeros(n_arms)}
