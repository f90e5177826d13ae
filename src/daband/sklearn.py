"""Provide estimators for scikit-learn: classification and bandit logs across domains.

``sample_domain`` follows the convention of skada: an integer per row, at least 0 for a row of a source and negative for
a row of a target. Only source rows need a label or reward; those of target rows are ignored. Different integers are
different domains. Metadata routing passes ``sample_domain`` through pipelines and searches; ``set_fit_request`` is not
needed.

The policy is trained by ``daband.train``; it is the attribute ``policy_``, which ``daband.export`` writes to a file.
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

from daband._arrays import AnyArray, FloatArray, IntArray
from daband._domain_names import DomainNames
from daband.domains._contract import LoggedDomain, Pair
from daband.domains._mixtures import mix_domains
from daband.domains.readers._arrays import ArrayContexts
from daband.domains.readers._logs import ArrayLog
from daband.errors import InvalidInput
from daband.evaluation._off_policy import evaluate_log
from daband.policies._registered import policies
from daband.training._loop import train, training_budget

__all__ = ["TransferClassifier", "TransferPolicy"]


class _AllRewardsLog(LoggedDomain):
    """A log with one round per context and arm, from contexts (n, d) and the rewards of all arms (n, K)."""

    def __init__(self, contexts: FloatArray, rewards: FloatArray) -> None:
        self._contexts, self._rewards = contexts, rewards
        self.context_shape, self.n_arms = contexts.shape[1:], rewards.shape[1]

    def __len__(self) -> int:
        return self._rewards.size

    def read(self, indices: IntArray) -> AnyArray:
        return self._contexts[indices // self.n_arms]

    def read_log(self, indices: IntArray) -> tuple[IntArray, FloatArray, FloatArray]:
        rows, arms = np.divmod(indices, self.n_arms)
        return arms, self._rewards[rows, arms], np.full(len(indices), 1.0 / self.n_arms)


class _TransferEstimator(BaseEstimator):  # type: ignore[misc]
    """The base class of estimators that train a policy on source rows and unlabelled target rows."""

    __metadata_request__fit: ClassVar = {"sample_domain": True}
    __metadata_request__predict: ClassVar = {"sample_domain": True}
    __metadata_request__predict_proba: ClassVar = {"sample_domain": True}
    __metadata_request__score: ClassVar = {"sample_domain": True}

    def __init__(
        self, method: str = "mixture", *, network: bool = False, shift: Any = None, random_state: Any = 0
    ) -> None:
        self.method, self.network, self.shift, self.random_state = method, network, shift, random_state

    def _train(
        self, contexts: FloatArray, domain: IntArray, source: Callable[[IntArray], LoggedDomain], *, feedback: str
    ) -> Self:
        """Train ``policy_`` on the rows of all domains; ``source`` returns the log of the given rows."""
        domain_numbers = np.unique(domain).tolist()
        parts: dict[str, dict[int, Any]] = {
            "source": {number: source(np.flatnonzero(domain == number)) for number in domain_numbers if number >= 0},
            "target": {number: ArrayContexts(contexts[domain == number]) for number in domain_numbers if number < 0},
        }
        names = {number: role if len(own) == 1 else str(number) for role, own in parts.items() for number in own}
        sources, targets = ({names[number]: part for number, part in own.items()} for own in parts.values())
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
        pair, episodes, length = training_budget(pair, None, 64)
        target = pair.target if targets else None
        train(self.policy_, source=pair.source, target=target, episodes=episodes, episode_length=length)
        #: The name of each domain in ``policy_``, by its integer in ``sample_domain``.
        self.domains_ = names
        self.policy_.deploy(next(iter(targets or sources)))
        return self

    def _named_domains(self, X: Any, sample_domain: Any) -> tuple[FloatArray, AnyArray]:
        """Return the features and the name of each row's domain (n,), by default the deployed one."""
        check_is_fitted(self)
        contexts = validate_data(self, X, reset=False, dtype=np.float64)
        if sample_domain is None:
            return contexts, np.full(len(contexts), self.policy_.domain)
        domain, known = _checked_domain(sample_domain, contexts), self.policy_.domains
        names = {}
        for number in np.unique(domain).tolist():
            role = known.targets if number < 0 else known.sources
            names[number] = role[0] if len(role) == 1 else self.domains_.get(number)
            if names[number] is None:
                raise InvalidInput(f"sample_domain must be one of {', '.join(map(str, self.domains_))}, got {number}")
        return contexts, np.array([names[number] for number in domain.tolist()])

    def _by_domain(self, X: Any, sample_domain: Any, score: Callable[[FloatArray, str], FloatArray]) -> FloatArray:
        """Return ``score(rows, domain)`` (n, K), called with the rows of each domain."""
        contexts, domain = self._named_domains(X, sample_domain)
        scores = np.empty((len(contexts), self.policy_.n_arms))
        for name in np.unique(domain):
            scores[domain == name] = score(contexts[domain == name], str(name))
        return scores

    def predict(self, X: Any, sample_domain: Any = None) -> AnyArray:
        """Return the most probable class or action of each row, (n,). Arguments as in ``predict_proba``."""
        best = self.predict_proba(X, sample_domain).argmax(axis=1)
        return self.classes_[best]


class TransferClassifier(ClassifierMixin, _TransferEstimator):  # type: ignore[misc]
    """A classifier for target rows that needs only labels of source rows.

    Every class is an arm with reward 1 for rows of that class and 0 for others; the policy learns the rewards of all
    arms. Without target rows it is fitted on the source only.

    Args:
        method: the policy: "mixture", "linucb", "trees", "daband" or "nlinucb".
        network: if True, the mixture has a neural network as a member. It needs torch, and takes longer: a fit
            of 178 rows took 15 s instead of 0.1 s.
        shift: the assumed difference between the domains: "covariate", "units", "style", "labels", or several.
        random_state: the seed of the policy, or a generator.

    >>> from daband.sklearn import TransferClassifier
    >>> X, y = [[0.0], [1.0], [0.1], [0.9]] * 10, [*["low", "high"] * 20]
    >>> classifier = TransferClassifier().fit(X, y, sample_domain=[1] * 30 + [-2] * 10)
    >>> classifier.predict([[0.2], [0.8]]).tolist()
    ['low', 'high']
    """

    def fit(self, X: Any, y: Any, sample_domain: Any = None) -> Self:
        """Train on labelled source rows and unlabelled target rows.

        Args:
            X: features (n, d).
            y: labels (n,). Those of target rows are ignored; skada masks them with -1.
            sample_domain: an integer per row (n,), at least 0 for sources, negative for targets; by default all rows
                are of one source.
        """
        contexts, domain, rows, known = _checked_rows(self, X, y, sample_domain)
        _, labels = check_X_y(contexts[rows], known, estimator=self)
        check_classification_targets(labels)
        self.classes_, labels = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidInput(f"{type(self).__name__} needs source labels of 2 classes or more, got 1 class")
        rewards = np.zeros((len(contexts), len(self.classes_)))
        rewards[rows, labels] = 1.0
        return self._train(contexts, domain, lambda of: _AllRewardsLog(contexts[of], rewards[of]), feedback="one_hot")

    def predict_proba(self, X: Any, sample_domain: Any = None) -> FloatArray:
        """Return the probability of each class, (n, classes): the distribution nearest to the predicted rewards.

        Args:
            X: features (n, d).
            sample_domain: the domain of each row (n,), as in ``fit``; by default the first target, or the
                first source if there is no target.
        """
        means = self._by_domain(X, sample_domain, lambda *one: self.policy_.decide(*one, rule="greedy").mean)
        return _project_on_simplex(means)

    def score(self, X: Any, y: Any, sample_weight: Any = None, sample_domain: Any = None) -> float:
        """Return the accuracy on these rows, which all need a label. Arguments as in ``predict_proba``."""
        return float(accuracy_score(y, self.predict(X, sample_domain), sample_weight=sample_weight))


class TransferPolicy(_TransferEstimator):
    """A policy that chooses actions in a target, learned from rewards of a source.

    Args:
        method: the policy: "mixture", "linucb", "trees", "log" (for randomised logs), "daband" or "nlinucb".
        network: as in ``TransferClassifier``.
        shift: as in ``TransferClassifier``.
        random_state: the seed of the policy, or a generator.

    >>> from daband.sklearn import TransferPolicy
    >>> X, action = [[0.0], [1.0], [0.0], [1.0]] * 10, ["mail", "mail", "call", "call"] * 10
    >>> reward = [1.0, 0.0, 0.0, 1.0] * 10
    >>> policy = TransferPolicy().fit(X, reward, action=action, propensity=[0.5] * 40)
    >>> policy.predict([[0.1], [0.9]]).tolist()
    ['mail', 'call']
    """

    __metadata_request__fit: ClassVar = {"action": True, "propensity": True, "sample_domain": True}
    __metadata_request__score: ClassVar = {"action": True, "propensity": True, "sample_domain": True}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        target = tags.target_tags  # for ``fit(X, y)`` without ``action``: y has the rewards of all actions
        target.required, target.multi_output, target.single_output = True, True, False
        return tags

    def fit(self, X: Any, y: Any, action: Any = None, propensity: Any = None, sample_domain: Any = None) -> Self:
        """Train on source rows with rewards and on unlabelled target rows.

        Args:
            X: features (n, d).
            y: the reward of ``action`` in each row, (n,); or without ``action`` the reward of every action, (n, K).
                Rewards of target rows are ignored.
            action: the action that was taken in each row (n,), integers or strings; those of target rows are ignored.
            propensity: the probability with which the action was taken, (n,); estimated by default.
            sample_domain: as in ``TransferClassifier.fit``.
        """
        contexts, domain, rows, known = _checked_rows(self, X, y, sample_domain)
        _, rewards = check_X_y(contexts[rows], known, multi_output=True, y_numeric=True, estimator=self)
        if action is None:
            if rewards.ndim != 2:
                raise InvalidInput("action must be given, or y must have a column for every action")
            self.classes_ = np.asarray(getattr(y, "columns", np.arange(rewards.shape[1])))

            def log(of: IntArray) -> LoggedDomain:
                return _AllRewardsLog(contexts[of], rewards[np.searchsorted(rows, of)])
        else:
            self.classes_, arms = np.unique(_safe_indexing(action, rows), return_inverse=True)
            chances = None if propensity is None else np.asarray(_safe_indexing(propensity, rows), np.float64)

            def log(of: IntArray) -> LoggedDomain:
                own = np.searchsorted(rows, of)
                chosen = None if chances is None else chances[own]
                return ArrayLog(contexts[of], arms[own], rewards[own], chosen, n_arms=len(self.classes_))

        return self._train(contexts, domain, log, feedback="bandit")

    def predict_proba(self, X: Any, sample_domain: Any = None) -> FloatArray:
        """Return the probability with which each action is chosen, (n, K): 1 for the best one, equal for ties.

        Args:
            X: features (n, d).
            sample_domain: the domain of each row (n,), as in ``fit``; by default the first target, or the
                first source if there is no target.
        """
        return self._by_domain(X, sample_domain, lambda *one: self.policy_.probabilities(*one, rule="greedy"))

    def score(self, X: Any, y: Any, action: Any = None, propensity: Any = None, sample_domain: Any = None) -> float:
        """Return the mean reward of the predicted actions on these rows, which the policy must not have learned.

        With ``action`` it is the doubly robust estimate of ``daband.evaluate_log``. Without ``action``, ``y`` has the
        reward of every action, and the result is the mean over rows. Arguments as in ``fit``.
        """
        if action is None:
            return float((self.predict_proba(X, sample_domain) * check_array(y)).sum(axis=1).mean())
        contexts, domain = self._named_domains(X, sample_domain)
        order = np.argsort(self.classes_)  # the columns of a table have any order
        arms = order[np.minimum(np.searchsorted(self.classes_, action, sorter=order), len(order) - 1)]
        if (unknown := np.asarray(action)[self.classes_[arms] != action]).size:
            raise InvalidInput(f"action must have actions of fit, got {unknown[0]!r}")
        rewards, value = np.asarray(y, np.float64), 0.0
        for name in np.unique(domain):
            rows = domain == name
            chosen = None if propensity is None else np.asarray(propensity, np.float64)[rows]
            choose = partial(self.policy_.probabilities, domain=str(name), rule="greedy")
            value += rows.mean() * evaluate_log(choose, (contexts[rows], arms[rows], rewards[rows], chosen)).value
        return float(value)


def _checked_rows(estimator: Any, X: Any, y: Any, sample_domain: Any) -> tuple[FloatArray, IntArray, IntArray, Any]:
    """Return features, the domain of every row, the indices of source rows, and their labels or rewards."""
    contexts = validate_data(estimator, X, dtype=np.float64)
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    answers = y if isinstance(y, Sequence) or hasattr(y, "iloc") else np.asarray(y)
    check_consistent_length(contexts, answers)
    domain = _checked_domain(np.ones(len(contexts)) if sample_domain is None else sample_domain, contexts)
    rows = np.flatnonzero(domain >= 0)
    if not len(rows):
        raise InvalidInput("sample_domain must have source rows, marked by integers of at least 0")
    return contexts, domain, rows, _safe_indexing(answers, rows)


def _checked_domain(sample_domain: Any, contexts: FloatArray) -> IntArray:
    """Return the domain of each row (n,) as integers."""
    domain = check_array(sample_domain, ensure_2d=False, dtype=np.float64, input_name="sample_domain")
    if domain.ndim != 1 or (domain != np.rint(domain)).any():
        raise InvalidInput("sample_domain must be one integer per row: at least 0 for sources, negative for targets")
    check_consistent_length(contexts, domain)
    return domain.astype(np.int64)


def _project_on_simplex(means: FloatArray) -> FloatArray:
    """Return the probability distribution nearest to every row of predicted rewards, (n, K)."""
    descending = -np.sort(-means, axis=1)
    excess = (np.cumsum(descending, axis=1) - 1.0) / np.arange(1, means.shape[1] + 1)
    last = np.count_nonzero(descending > excess, axis=1) - 1
    return np.maximum(means - excess[np.arange(len(means)), last][:, None], 0.0)
