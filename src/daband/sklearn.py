"""Provide a scikit-learn estimator that learns from labelled source rows and unlabelled target rows.

``sample_domain`` follows the convention of skada: an integer per row, at least 0 for a row of a
source and negative for a row of a target. Different integers are different domains. Labels of target
rows are ignored by ``fit``. Rows without a label (-1 or NaN) do not count in ``score``. Metadata
routing passes ``sample_domain`` through pipelines and searches without ``set_fit_request``.

``fit`` trains a policy by ``daband.train``. It is the attribute ``policy_``, and ``daband.export``
writes it to a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import _safe_indexing, check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data

from daband.base._arrays import AnyArray, FloatArray, IntArray
from daband.domains._source_rounds import apply_by_source
from daband.domains.readers._arrays import from_arrays
from daband.domains.readers._reading import read_table
from daband.errors import InvalidInput
from daband.features._table_transform import TableTransform
from daband.policies._registered import policies
from daband.training._candidates import choose_training_budget
from daband.training._loop import train

__all__ = ["TransferClassifier"]

#: Labels of rows without a label, as text.
_MASKS = ("-1", "-1.0")


class TransferClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier for target rows that needs labels of source rows only.

    Each class is an arm. Its reward is 1 for rows of this class and 0 for others, and the policy
    learns the rewards of all arms. Without target rows, the classifier is fitted on the source
    only.

    Args:
        method: the policy: "supervised", "mixture", "linucb", "trees", "daband" or "nlinucb".
        network: if True, the mixture has a neural network as a member. This needs torch and takes
            longer: the fit of 178 rows took 15 s instead of 0.1 s.
        shift: the assumed difference between the domains: "covariate", "units", "style", "labels",
            or several.
        random_state: the seed of the policy, or a generator.

    >>> from daband.sklearn import TransferClassifier
    >>> X, y = [[0.0], [1.0], [0.1], [0.9]] * 10, [*["low", "high"] * 20]
    >>> classifier = TransferClassifier().fit(X, y, sample_domain=[1] * 30 + [-2] * 10)
    >>> classifier.predict([[0.2], [0.8]]).tolist()
    ['low', 'high']
    """

    __metadata_request__fit: ClassVar = {"sample_domain": True}
    __metadata_request__predict: ClassVar = {"sample_domain": True}
    __metadata_request__predict_proba: ClassVar = {"sample_domain": True}
    __metadata_request__score: ClassVar = {"sample_domain": True}

    def __init__(
        self,
        method: str = "supervised",
        *,
        network: bool = False,
        shift: Any = None,
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.network = network
        self.shift = shift
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_domain: Any = None) -> Self:
        """Train on labelled source rows and unlabelled target rows, and return this estimator.

        Args:
            X: features (n, d). A pandas or polars frame may have missing values, dates, and texts
                or categories, which are one-hot encoded (``table_``, a ``TableTransform``).
            y: labels (n,). Labels of target rows are ignored; skada sets them to -1.
            sample_domain: an integer per row (n,), at least 0 for sources and negative for targets.
                By default all rows are of one source.
        """
        #: The transform of the columns of a frame; None if ``X`` has only finite numbers.
        self.table_ = _fit_table(X)
        contexts = self._read_features(X, reset=True)
        row_domains, source_rows, source_labels = _check_rows(self, contexts, y, sample_domain)
        _, labels = check_X_y(contexts[source_rows], source_labels, estimator=self)
        check_classification_targets(labels)
        self.classes_, labels = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidInput(
                f"{type(self).__name__} needs source labels of 2 classes or more, got 1 class"
            )
        all_labels = np.zeros(len(contexts), np.int64)
        all_labels[source_rows] = labels
        numbers = np.unique(row_domains).tolist()
        numbers_by_role = {
            "source": [number for number in numbers if number >= 0],
            "target": [number for number in numbers if number < 0],
        }
        #: The name of each domain in ``policy_``, by its integer in ``sample_domain``.
        self.domains_ = {
            number: role if len(group) == 1 else str(number)
            for role, group in numbers_by_role.items()
            for number in group
        }
        rows = {name: row_domains == number for number, name in self.domains_.items()}
        sources, targets = (
            [self.domains_[number] for number in group] for group in numbers_by_role.values()
        )
        pair = from_arrays(
            sources={name: (contexts[rows[name]], all_labels[rows[name]]) for name in sources},
            targets={name: contexts[rows[name]] for name in targets} or {"target": contexts},
            source_test=None,
            n_arms=len(self.classes_),
            class_names=tuple(map(str, self.classes_.tolist())),
            shift=self.shift,
            name=type(self).__name__,
        )
        seed = check_random_state(self.random_state).randint(1 << 31)
        settings = {"network": self.network} if self.method == "mixture" else {}
        self.policy_ = policies.get(self.method).for_pair(pair, seed=seed, **settings)
        episodes, episode_length = choose_training_budget(pair, None, 64)
        train(
            self.policy_,
            source=pair.source,
            target=pair.target if targets else None,
            episodes=episodes,
            episode_length=episode_length,
        )
        self.policy_.deploy((targets or sources)[0])
        return self

    def predict_proba(self, X: Any, sample_domain: Any = None) -> FloatArray:
        """Return the probability of each class, (n, K).

        It is the distribution nearest to the predicted rewards.

        Args:
            X: features (n, d).
            sample_domain: the domain of each row (n,), as in ``fit``. By default it is the first
                target, or the first source if there is no target.
        """
        contexts, row_domains = self._find_domain_names(X, sample_domain)
        (means,) = apply_by_source(
            lambda rows, name: [self.policy_.decide(rows, name, rule="greedy").mean],
            contexts,
            row_domains,
        )
        return _project_on_simplex(means)

    def predict(self, X: Any, sample_domain: Any = None) -> AnyArray:
        """Return the most probable class or action of each row, (n,).

        Arguments are as in ``predict_proba``.
        """
        best_indices = self.predict_proba(X, sample_domain).argmax(axis=1)
        return self.classes_[best_indices]

    def score(self, X: Any, y: Any, sample_weight: Any = None, sample_domain: Any = None) -> float:
        """Return the accuracy on the labelled rows.

        Rows with the label -1 or NaN do not count, unless -1 is a class. At least one row must
        count.

        Args:
            X: features (n, d).
            y: labels (n,).
            sample_weight: the weight of each row (n,). Weights are equal by default.
            sample_domain: the domain of each row (n,), as in ``predict_proba``.
        """
        check_is_fitted(self)
        check_consistent_length(X, y, sample_weight, sample_domain)
        labels = np.asarray(y).astype(str)
        is_masked = np.isin(labels, _MASKS)
        if np.isin(_MASKS, self.classes_.astype(str)).any():
            is_target = np.asarray(0 if sample_domain is None else sample_domain) < 0
            if is_target.any() and is_masked[is_target].all():
                raise InvalidInput(
                    "y must not be -1 in every target row if -1 is also a class; use NaN for rows"
                    " without a label, or rename the class"
                )
            is_masked[:] = False
        X, y, sample_weight, sample_domain = _select_rows(
            ~is_masked & (labels != "nan"), X, y, sample_weight, sample_domain
        )
        return float(accuracy_score(y, self.predict(X, sample_domain), sample_weight=sample_weight))

    def _read_features(self, X: Any, *, reset: bool) -> FloatArray:
        """Return the features (n, d) of rows. ``reset`` is as in ``validate_data``."""
        if self.table_ is None:
            features: FloatArray = validate_data(self, X, reset=reset, dtype=np.float64)
            return features
        if not hasattr(X, "columns"):
            raise InvalidInput("X must be a frame with the columns of the fit")
        validate_data(self, X, reset=reset, skip_check_array=True)
        return self.table_.apply(read_table(X))

    def _find_domain_names(self, X: Any, sample_domain: Any) -> tuple[FloatArray, AnyArray]:
        """Return the features (n, d) and the name of each row's domain (n,), by default the
        deployed domain.
        """
        check_is_fitted(self)
        contexts = self._read_features(X, reset=False)
        if sample_domain is None:
            return contexts, np.full(len(contexts), self.policy_.domain)
        row_domains = _check_domains(sample_domain, contexts)
        domains = self.policy_.domains
        names = {}
        for number in np.unique(row_domains).tolist():
            role_names = domains.targets if number < 0 else domains.sources
            names[number] = role_names[0] if len(role_names) == 1 else self.domains_.get(number)
            if names[number] is None:
                raise InvalidInput(
                    f"sample_domain must be one of {', '.join(map(str, self.domains_))}, got"
                    f" {number}"
                )
        return contexts, np.array([names[number] for number in row_domains.tolist()])


def _select_rows(is_selected: Any, *columns: Any) -> list[Any]:
    """Return the selected rows of each column that is not None.

    Raise an error if no row is selected.
    """
    rows = np.flatnonzero(is_selected)
    if not len(rows):
        raise InvalidInput(
            "y must have a label or reward in at least one row; in cross-validation, use folds that"
            " all have source rows, such as those of StratifiedKFold"
        )
    return [column if column is None else _safe_indexing(column, rows) for column in columns]


def _fit_table(X: Any) -> TableTransform | None:
    """Return the transform of the columns of a frame; None if they are finite numbers, or if X is
    not a frame.
    """
    if not (hasattr(X, "columns") and hasattr(X, "dtypes")):
        return None
    frame = read_table(X)
    dtypes = dict(zip(frame.columns, frame.dtypes, strict=True))
    if all(dtype.is_numeric() for dtype in dtypes.values()) and not sum(frame.null_count().row(0)):
        return None
    dates = [name for name, dtype in dtypes.items() if dtype.is_temporal()]
    categories = [
        name
        for name, dtype in dtypes.items()
        if name not in dates and not (dtype.is_numeric() or str(dtype) == "Boolean")
    ]
    return TableTransform.fit(frame, context=frame.columns, categorical=categories, dates=dates)


def _check_rows(
    estimator: Any, contexts: FloatArray, y: Any, sample_domain: Any
) -> tuple[IntArray, IntArray, Any]:
    """Return the domains (n,) of rows of features, the indices of source rows (m,), and their
    labels or rewards (m, ...).
    """
    if y is None:
        raise ValueError(
            f"{type(estimator).__name__} requires y to be passed, but the target y is None"
        )
    labels = y if isinstance(y, Sequence) or hasattr(y, "iloc") else np.asarray(y)
    check_consistent_length(contexts, labels)
    row_domains = _check_domains(
        np.ones(len(contexts)) if sample_domain is None else sample_domain, contexts
    )
    source_rows = np.flatnonzero(row_domains >= 0)
    if not len(source_rows):
        raise InvalidInput("sample_domain must have source rows, which have integers of at least 0")
    return row_domains, source_rows, _safe_indexing(labels, source_rows)


def _check_domains(sample_domain: Any, contexts: FloatArray) -> IntArray:
    """Return the domain of each row of contexts as int64 (n,).

    Raise an error unless it is one integer per row.
    """
    row_domains = np.asarray(sample_domain)
    is_finite = row_domains.dtype.kind in "biuf" and np.isfinite(row_domains).all()
    if row_domains.ndim != 1 or not is_finite or (row_domains != np.rint(row_domains)).any():
        raise InvalidInput(
            "sample_domain must be one integer per row: at least 0 for sources, negative for"
            " targets"
        )
    check_consistent_length(contexts, row_domains)
    return row_domains.astype(np.int64)


def _project_on_simplex(means: FloatArray) -> FloatArray:
    """Return the probability distribution nearest to each row of predicted rewards (n, K), in
    Euclidean distance.
    """
    sorted_means = -np.sort(-means, axis=1)  # in descending order
    thresholds = (np.cumsum(sorted_means, axis=1) - 1.0) / np.arange(1, means.shape[1] + 1)
    last_index = np.count_nonzero(sorted_means > thresholds, axis=1) - 1
    return np.maximum(means - thresholds[np.arange(len(means)), last_index][:, None], 0.0)
