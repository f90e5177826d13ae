"""Provide scikit-learn estimators that learn from labelled source rows and unlabelled target rows.

``TransferClassifier`` learns from labels, ``TransferPolicy`` from the rewards of actions.

``sample_domain`` follows the convention of skada: an integer per row, at least 0 for a row of a
source and negative for a row of a target. Different integers are different domains. Labels and
rewards of target rows are ignored by ``fit``. Rows without a label (-1 or NaN) or a reward (NaN) do
not count in ``score``. Metadata routing passes ``sample_domain`` through pipelines and searches
without ``set_fit_request``.

``fit`` trains a policy by ``daband.train``. It is the attribute ``policy_``, and ``daband.export``
writes it to a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import _safe_indexing, check_array, check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data

from daband.base._arrays import AnyArray, FloatArray, IntArray
from daband.domains._contract import LoggedDomain, Pair
from daband.domains._mixtures import mix_domains
from daband.domains._source_rounds import apply_by_source
from daband.domains.readers._arrays import ArrayContexts
from daband.domains.readers._logs import ArrayLog
from daband.errors import InvalidInput
from daband.features._domain_names import DomainNames
from daband.logs._off_policy import evaluate_log
from daband.policies._registered import policies
from daband.training._candidates import choose_training_budget
from daband.training._loop import train

__all__ = ["TransferClassifier", "TransferPolicy"]

#: Labels of rows without a label, as text.
_MASKS = ("-1", "-1.0")
#: The error of a policy without actions.
_NO_ACTION = (
    "action must be given unless y has a column for every action; pass action= (a search passes it"
    " on with sklearn.config_context(enable_metadata_routing=True))"
)


class _AllRewardsLog(LoggedDomain):
    """A log with one round per context and arm, from contexts (n, d) and the rewards of all arms
    (n, K).
    """

    def __init__(self, contexts: FloatArray, rewards: FloatArray) -> None:
        self._contexts = contexts
        self._rewards = rewards
        self.context_shape = contexts.shape[1:]
        self.n_arms = rewards.shape[1]

    def __len__(self) -> int:
        return self._rewards.size

    def read(self, indices: IntArray) -> AnyArray:
        return self._contexts[indices // self.n_arms]

    def read_log(self, indices: IntArray) -> tuple[IntArray, FloatArray, FloatArray]:
        rows, arms = np.divmod(indices, self.n_arms)
        return arms, self._rewards[rows, arms], np.full(len(indices), 1.0 / self.n_arms)


class _TransferEstimator(BaseEstimator):  # type: ignore[misc]
    """The base class of both estimators.

    Subclasses define ``fit``, ``predict_proba`` and ``score``.
    """

    __metadata_request__fit: ClassVar = {"sample_domain": True}
    __metadata_request__predict: ClassVar = {"sample_domain": True}
    __metadata_request__predict_proba: ClassVar = {"sample_domain": True}
    __metadata_request__score: ClassVar = {"sample_domain": True}

    def __init__(
        self,
        method: str = "mixture",
        *,
        network: bool = False,
        shift: Any = None,
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.network = network
        self.shift = shift
        self.random_state = random_state

    def _train(
        self,
        contexts: FloatArray,
        row_domains: IntArray,
        make_log: Callable[[IntArray], LoggedDomain],
        feedback: str,
    ) -> Self:
        """Train ``policy_`` on contexts (n, d) with the domain of each row (n,), and return this
        estimator.

        ``make_log(rows)`` returns the log of source rows, given by their indices.
        """
        numbers = np.unique(row_domains).tolist()
        data_by_role: dict[str, dict[int, Any]] = {
            "source": {
                number: make_log(np.flatnonzero(row_domains == number))
                for number in numbers
                if number >= 0
            },
            "target": {
                number: ArrayContexts(contexts[row_domains == number])
                for number in numbers
                if number < 0
            },
        }
        names = {
            number: role if len(data) == 1 else str(number)
            for role, data in data_by_role.items()
            for number in data
        }
        sources, targets = (
            {names[number]: data[number] for number in data} for data in data_by_role.values()
        )
        pair = Pair(
            name=type(self).__name__,
            context_shape=contexts.shape[1:],
            n_arms=len(self.classes_),
            class_names=tuple(map(str, self.classes_.tolist())),
            feedback=feedback,
            source=mix_domains(sources),
            target=mix_domains(targets or {"target": ArrayContexts(contexts)}),
            shift=self.shift,
            domains=DomainNames(tuple(sources), tuple(targets) or ("target",)),
        )
        seed = check_random_state(self.random_state).randint(1 << 31)
        settings = {"network": self.network} if self.method == "mixture" else {}
        self.policy_ = policies.get(self.method).for_pair(pair, seed=seed, **settings)
        pair, episodes, episode_length = choose_training_budget(pair, None, 64)
        target = pair.target if targets else None
        train(
            self.policy_,
            source=pair.source,
            target=target,
            episodes=episodes,
            episode_length=episode_length,
        )
        #: The name of each domain in ``policy_``, by its integer in ``sample_domain``.
        self.domains_ = names
        self.policy_.deploy(next(iter(targets or sources)))
        return self

    def _find_domain_names(self, X: Any, sample_domain: Any) -> tuple[FloatArray, AnyArray]:
        """Return the features (n, d) and the name of each row's domain (n,), by default the
        deployed domain.
        """
        check_is_fitted(self)
        contexts = validate_data(self, X, reset=False, dtype=np.float64)
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

    def _score_domains(
        self, X: Any, sample_domain: Any, score: Callable[[FloatArray, str], FloatArray]
    ) -> FloatArray:
        """Call ``score(contexts, domain)`` for the rows of each domain.

        Return its results (n, K) in row order.
        """
        contexts, row_domains = self._find_domain_names(X, sample_domain)
        (scores,) = apply_by_source(lambda rows, name: [score(rows, name)], contexts, row_domains)
        return scores

    def predict(self, X: Any, sample_domain: Any = None) -> AnyArray:
        """Return the most probable class or action of each row, (n,).

        Arguments are as in ``predict_proba``.
        """
        best_indices = self.predict_proba(X, sample_domain).argmax(axis=1)
        return self.classes_[best_indices]


class TransferClassifier(ClassifierMixin, _TransferEstimator):  # type: ignore[misc]
    """A classifier for target rows that needs labels of source rows only.

    Each class is an arm. Its reward is 1 for rows of this class and 0 for others, and the policy
    learns the rewards of all arms. Without target rows, the classifier is fitted on the source
    only.

    Args:
        method: the policy: "mixture", "linucb", "trees", "daband" or "nlinucb".
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

    def fit(self, X: Any, y: Any, sample_domain: Any = None) -> Self:
        """Train on labelled source rows and unlabelled target rows, and return this estimator.

        Args:
            X: features (n, d).
            y: labels (n,). Labels of target rows are ignored; skada sets them to -1.
            sample_domain: an integer per row (n,), at least 0 for sources and negative for targets.
                By default all rows are of one source.
        """
        contexts, row_domains, source_rows, source_labels = _check_rows(self, X, y, sample_domain)
        _, labels = check_X_y(contexts[source_rows], source_labels, estimator=self)
        check_classification_targets(labels)
        self.classes_, labels = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidInput(
                f"{type(self).__name__} needs source labels of 2 classes or more, got 1 class"
            )
        rewards = np.zeros((len(contexts), len(self.classes_)))
        rewards[source_rows, labels] = 1.0

        def make_log(rows: IntArray) -> LoggedDomain:
            return _AllRewardsLog(contexts[rows], rewards[rows])

        return self._train(contexts, row_domains, make_log, feedback="one_hot")

    def predict_proba(self, X: Any, sample_domain: Any = None) -> FloatArray:
        """Return the probability of each class, (n, K).

        It is the distribution nearest to the predicted rewards.

        Args:
            X: features (n, d).
            sample_domain: the domain of each row (n,), as in ``fit``. By default it is the first
                target, or the first source if there is no target.
        """

        def predict_rewards(contexts: FloatArray, domain: str) -> FloatArray:
            return self.policy_.decide(contexts, domain, rule="greedy").mean

        return _project_on_simplex(self._score_domains(X, sample_domain, predict_rewards))

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


class TransferPolicy(_TransferEstimator):
    """A policy for target rows that is learned from the rewards of actions in source rows.

    Args:
        method: the policy: "mixture", "linucb", "trees", "log" (for randomised logs), "daband" or
            "nlinucb".
        network: if True, the mixture has a neural network as a member; see ``TransferClassifier``.
        shift: the assumed difference between the domains: "covariate", "units", "style", "labels",
            or several.
        random_state: the seed of the policy, or a generator.

    >>> from daband.sklearn import TransferPolicy
    >>> X, action = [[0.0], [1.0], [0.0], [1.0]] * 10, ["mail", "mail", "call", "call"] * 10
    >>> reward = [1.0, 0.0, 0.0, 1.0] * 10
    >>> policy = TransferPolicy().fit(X, reward, action=action, propensity=[0.5] * 40)
    >>> policy.predict([[0.1], [0.9]]).tolist()
    ['mail', 'call']
    """

    __metadata_request__fit: ClassVar = {"action": True, "propensity": True, "sample_domain": True}
    __metadata_request__score: ClassVar = {
        "action": True,
        "propensity": True,
        "sample_domain": True,
    }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # for ``fit(X, y)`` without ``action``: y has the rewards of all actions
        target_tags = tags.target_tags
        target_tags.required = True
        target_tags.multi_output = True
        target_tags.single_output = False
        return tags

    def fit(
        self, X: Any, y: Any, action: Any = None, propensity: Any = None, sample_domain: Any = None
    ) -> Self:
        """Train on source rows with rewards and on target rows without, and return this estimator.

        Args:
            X: features (n, d).
            y: the reward of ``action`` in each row, (n,). Without ``action``, the reward of every
                action, (n, K). Rewards of target rows are ignored.
            action: the action that was taken in each row (n,), an integer or a string. Actions of
                target rows are ignored.
            propensity: the probability with which the action was taken, (n,). It is estimated by
                default.
            sample_domain: as in ``TransferClassifier.fit``.
        """
        contexts, row_domains, source_rows, source_rewards = _check_rows(self, X, y, sample_domain)
        _, rewards = check_X_y(
            contexts[source_rows], source_rewards, multi_output=True, y_numeric=True, estimator=self
        )
        if action is None:
            if rewards.ndim != 2:
                raise InvalidInput(_NO_ACTION)
            self.classes_ = np.asarray(getattr(y, "columns", np.arange(rewards.shape[1])))

            def make_log(rows: IntArray) -> LoggedDomain:
                return _AllRewardsLog(contexts[rows], rewards[np.searchsorted(source_rows, rows)])

        else:
            self.classes_, arms = np.unique(
                _safe_indexing(action, source_rows), return_inverse=True
            )
            if propensity is not None:
                propensity = np.asarray(_safe_indexing(propensity, source_rows), np.float64)

            def make_log(rows: IntArray) -> LoggedDomain:
                indices = np.searchsorted(source_rows, rows)
                propensities = None if propensity is None else propensity[indices]
                return ArrayLog(
                    contexts[rows],
                    arms[indices],
                    rewards[indices],
                    propensities,
                    n_arms=len(self.classes_),
                )

        return self._train(contexts, row_domains, make_log, feedback="bandit")

    def predict_proba(self, X: Any, sample_domain: Any = None) -> FloatArray:
        """Return the probability with which each action is chosen, (n, K): 1 for the best action,
        shared by ties.

        Args:
            X: features (n, d).
            sample_domain: the domain of each row (n,), as in ``fit``. By default it is the first
                target, or the first source if there is no target.
        """

        def choose(contexts: FloatArray, domain: str) -> FloatArray:
            return self.policy_.probabilities(contexts, domain, rule="greedy")

        return self._score_domains(X, sample_domain, choose)

    def score(
        self, X: Any, y: Any, action: Any = None, propensity: Any = None, sample_domain: Any = None
    ) -> float:
        """Return the mean reward of the predicted actions on these rows, which the policy must not
        have learned.

        With ``action``, it is the doubly robust estimate of ``daband.evaluate_log``. Without, ``y``
        has the reward of every action, and the result is the mean over rows. Rows whose reward is
        NaN do not count, and at least one row must count. Arguments are as in ``fit``.
        """
        check_is_fitted(self)
        check_consistent_length(X, y, action, propensity, sample_domain)
        rewards = np.asarray(y, np.float64)
        if action is None and rewards.shape[1:] != self.classes_.shape:
            raise InvalidInput(_NO_ACTION)
        has_reward = ~np.isnan(rewards.reshape(len(rewards), -1)).all(axis=1)
        X, rewards, action, propensity, sample_domain = _select_rows(
            has_reward, X, rewards, action, propensity, sample_domain
        )
        if action is None:
            rewards = check_array(rewards)
            return float((self.predict_proba(X, sample_domain) * rewards).sum(axis=1).mean())
        contexts, row_domains = self._find_domain_names(X, sample_domain)
        class_order = np.argsort(self.classes_)  # columns of ``y`` may be in any order
        indices = np.searchsorted(self.classes_, action, sorter=class_order)
        arms = class_order[np.minimum(indices, len(class_order) - 1)]
        if (unknown_actions := np.asarray(action)[self.classes_[arms] != action]).size:
            raise InvalidInput(
                f"action must be one of the actions in fit, got {unknown_actions[0]!r}"
            )
        value = 0.0
        for name in np.unique(row_domains):
            is_in_domain = row_domains == name
            propensities = (
                None if propensity is None else np.asarray(propensity, np.float64)[is_in_domain]
            )
            choose = partial(self.policy_.probabilities, domain=str(name), rule="greedy")
            log = contexts[is_in_domain], arms[is_in_domain], rewards[is_in_domain], propensities
            value += is_in_domain.mean() * evaluate_log(choose, log).value
        return float(value)


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


def _check_rows(
    estimator: Any, X: Any, y: Any, sample_domain: Any
) -> tuple[FloatArray, IntArray, IntArray, Any]:
    """Return features (n, d), domains (n,), the indices of source rows (m,), and their labels or
    rewards (m, ...).
    """
    contexts = validate_data(estimator, X, dtype=np.float64)
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
    return contexts, row_domains, source_rows, _safe_indexing(labels, source_rows)


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
