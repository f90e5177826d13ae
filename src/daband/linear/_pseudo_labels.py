"""Self-training in closed form: a ridge regression of the target's contexts on what a policy would choose there.

A policy that learned in the source is wrong on contexts that lie between two arms, and right on most others. Contexts
of the target that resemble each other mostly have the same best arm. A linear regression on them, labelled by the
policy's own choices (pseudo-labels: Lee 2013; Kumar, Ma and Liang 2020), follows the majority of its neighbourhood, and
corrects single errors. It needs many numbers, so that a line separates what is close from what is not: on 64 or fewer
it forgets what is not linear. Columns of two values are no numbers in this sense (``count_numbers``): contexts with the
same categories, or the same word, are not close in all the rest. And it needs one best arm per context
(``feedback="one_hot"``), so that a choice is a label. It cannot mend a policy that is wrong on most contexts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daband._arrays import FloatArray


@dataclass(frozen=True)
class PseudoLabelRegression:
    """A regression on pseudo-labels; predictions are ``share`` times the sum of its own and those of the policy."""

    theta: FloatArray
    """Coefficients, (K, d)."""
    share: float
    """About a half: so that the best arm's predicted reward is on average what the policy predicts without it."""


def count_numbers(features: FloatArray) -> int:
    """How many columns of features (n, d) take more than two values: indicators of categories and words do not.

    >>> import numpy as np
    >>> from daband.linear import count_numbers
    >>> count_numbers(np.array([[0.0, 1.5, 7.0], [1.0, 2.0, 7.0], [0.0, 2.5, 7.0]]))
    1
    """
    between = (features > features.min(axis=0)) & (features < features.max(axis=0))
    return int(between.any(axis=0).sum())


def fit_pseudo_labels(features: FloatArray, predicted: FloatArray, *, ridge: float) -> PseudoLabelRegression:
    """A ridge regression for every arm, on labels 1 where it is predicted best, else 0.

    Features are (n, d), predicted rewards (n, K). The smaller of two systems is solved, of d or of n equations.

    >>> import numpy as np
    >>> from daband.linear import fit_pseudo_labels
    >>> features = np.array([[1.0, 0.0], [0.9, 0.0], [0.0, 1.0]])
    >>> predicted = np.array([[0.8, 0.1], [0.7, 0.2], [0.3, 0.4]])
    >>> fitted = fit_pseudo_labels(features, predicted, ridge=0.1)
    >>> (features @ fitted.theta.T).round(2).tolist(), round(fitted.share, 2)
    ([[0.99, 0.0], [0.9, 0.0], [0.0, 0.91]], 0.4)
    """
    n, d = features.shape
    labels = np.eye(predicted.shape[1])[predicted.argmax(axis=1)]
    if d <= n:
        theta: FloatArray = np.linalg.solve(features.T @ features + ridge * np.eye(d), features.T @ labels).T
    else:
        theta = np.linalg.solve(features @ features.T + ridge * np.eye(n), labels).T @ features
    before = float(np.clip(predicted, 0.0, 1.0).max(axis=1).mean())
    after = float((np.clip(predicted, 0.0, 1.0) + np.clip(features @ theta.T, 0.0, 1.0)).max(axis=1).mean())
    return PseudoLabelRegression(theta, before / after if after > 0.0 else 0.5)
