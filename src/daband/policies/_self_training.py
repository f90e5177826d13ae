"""Adapt to the target by self-training: a ridge regression learns its own confident predictions as
labels.

Lee: "Pseudo-label" (2013); Liao et al.: "PACE" (2022). Each domain is standardised by its own
statistics. A ridge regression on the source labels predicts an arm for each target context. For
each arm, the fifth of its contexts with the most confident predictions is labelled with that arm
(pseudo-labels). The regression is fitted again to both domains. These two steps are repeated with
two fifths of the contexts, three fifths, and so on. The mean of all regressions is used in the
target, which limits the effect of wrong pseudo-labels. The prediction in the target is 3/4 of this
mean plus 1/4 of LinUCB's prediction, scaled to the same standard deviation.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np

from daband.base._arguments import check_one_of
from daband.base._arrays import (
    AnyArray,
    Arrays,
    FloatArray,
    IntArray,
    Weights,
    add_prefix,
    drop_prefix,
    to_floats,
)
from daband.errors import InvalidInput
from daband.linear._predictor import Predictor, RidgePredictor
from daband.policies._incoming_rounds import SeenContexts
from daband.policies._registered import policies
from daband.policies._ridge import LinUCB
from daband.rounds._rounds import Rounds

#: The fraction of target contexts that gets pseudo-labels in each fit, in order.
_LABELLED_FRACTIONS = (0.2, 0.4, 0.6, 0.8, 1.0)
#: The weight of LinUCB's predictions in the target. LinUCB is better if the shift is small, or if
#: pseudo-labels are poor because there are many arms and few contexts. The weight was chosen from
#: 0, 0.25, 0.5 and 0.75 on four pairs of the data sets Office-31, emoji and signs.
_LINUCB_WEIGHT = 0.25
#: Maximum number of stored contexts per target. More contexts take time and change little.
_MAX_TARGET_CONTEXTS = 2048


@policies.register("self-training")
class SelfTraining(LinUCB):
    """A ``LinUCB`` that also learns pseudo-labels of target contexts; meant for features of a
    pretrained network.

    In the source it decides as LinUCB does. With ``feedback="one_hot"`` a reward of 1 reveals the
    label of a context. ``adapt`` fits another regression, which predicts rewards in the target, to
    these labels and to pseudo-labels of the contexts from ``observe_target``. It does so whenever
    the number of rounds has doubled, and after the last episode of a run. With the first reward
    from a target, this regression becomes the source of ``linear/_source_worth.py``, so target
    rewards can reject it. Pseudo-labels are then no longer learned. With ``feedback="bandit"``, or
    with ``arms="shared"``, the policy is LinUCB.

    Args:
        feedback: "bandit", or "one_hot" if exactly one arm has reward 1 and all others 0.

    The other arguments are those of ``LinUCB``. Rewards of "one_hot" feedback are not standardised.

    >>> from daband.policies import policies
    >>> policy = policies.get("self-training")(context_shape=(2,), n_arms=2, feedback="one_hot")
    >>> skipped = policy.update([[1.0, 0.2], [0.2, 1.0]] * 20, [0, 1] * 20, [1.0] * 40)
    >>> policy.observe_target([[2.0, 1.5], [1.5, 2.0]])
    >>> fitted = policy.adapt()
    >>> policy.select([[3.0, 1.0], [1.0, 3.0]], domain="target").arm.tolist()
    [0, 1]
    """

    adapts_to_target = True

    def __init__(self, *, feedback: str = "bandit", **settings: Any) -> None:
        self.feedback: str = check_one_of("feedback", feedback, ("bandit", "one_hot"))
        super().__init__(**{**settings, "standardise_rewards": feedback != "one_hot"})
        #: The sum of z z' over the features z of labelled contexts, (d, d); empty before the first
        #: label.
        self._gram: FloatArray = np.zeros((0, 0))
        #: The sum of z over the labelled contexts of each arm, (K, d).
        self._arm_sums: FloatArray = np.zeros((self.n_arms, 0))
        #: The sum of the weights of labelled contexts.
        self._total_label_weight = 0.0
        #: The labelled contexts. Each context counts once, so that repetitions do not outweigh the
        #: target.
        self._seen_contexts = SeenContexts()
        #: The features (n, d) of distinct contexts, by the index of their target.
        self._target_features: dict[int, AnyArray] = {}
        #: Coefficients (K, d) of the regression that predicts in a target, by the index of the
        #: target.
        self._target_thetas: dict[int, FloatArray] = {}
        #: The number of rounds that had been learned at the last fit.
        self._rounds_at_fit = 0
        #: The number of episodes until the end of the run.
        self._episodes_left = 0

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "feedback": self.feedback}

    def _predictor(self, domain: int) -> Predictor:
        theta = self._target_thetas.get(domain)
        if theta is None:
            return super()._predictor(domain)
        predictor = RidgePredictor(
            theta=theta,
            inverse=self._head.statistics.A_inv,
            scale=self._compute_units() * math.sqrt(self._compute_penalty_ratio()),
        )
        return self._append_one(predictor)

    @property
    def has_seen_target(self) -> bool:
        return bool(self._target_thetas)

    def _compute_penalty_ratio(self) -> float:
        """Return LinUCB's ridge penalty divided by the penalty of ``fit_self_training``.

        Bonuses in the target are multiplied by its square root.
        """
        return float(self._head.ridge * self._total_label_weight / np.trace(self._gram))

    # Learning.

    def _learn(self, rounds: Rounds, domain: int) -> None:
        theta = self._target_thetas.pop(domain, None)
        self._target_features.pop(domain, None)
        if theta is not None and self._head.worth is None:
            ridge = self._head.statistics
            theta = theta[:, None] * [[1], [0]]  # of rewards and of ones
            ridge.set_b(theta @ ridge.gram + theta * ridge.penalties)
        super()._learn(rounds, domain)
        self._add_labels(rounds.contexts, rounds.arms, rounds.rewards, self._weigh(rounds))

    def _add_labels(
        self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, weights: Weights
    ) -> None:
        """Add contexts with a reward of 1 to the sums.

        Their label is the chosen arm, and each context counts once.
        """
        if self.feedback != "one_hot" or self.arms != "disjoint":
            return
        features = self._featurise(contexts)
        labelled_rows = np.flatnonzero(rewards == 1.0)
        new_rows = labelled_rows[self._seen_contexts.add(features[labelled_rows])]
        if not len(new_rows):
            return
        if not len(self._gram):
            dim = self._head.dim
            self._gram, self._arm_sums = np.zeros((dim, dim)), np.zeros((self.n_arms, dim))
        row_weights = np.ones(len(new_rows)) if weights is None else weights[new_rows]
        new_features = to_floats(features[new_rows])
        self._gram += new_features.T @ (new_features * row_weights[:, None])
        np.add.at(self._arm_sums, arms[new_rows], new_features * row_weights[:, None])
        self._total_label_weight += float(row_weights.sum())

    def _observe(self, contexts: AnyArray, domain: int) -> None:
        is_full = len(self._target_features.get(domain, ())) >= _MAX_TARGET_CONTEXTS
        is_fixed = is_full or self._head.worth is not None
        if self.feedback != "one_hot" or self.arms != "disjoint" or is_fixed:
            return
        features = to_floats(self._featurise(contexts)).astype(np.float32)
        if domain in self._target_features:
            features = np.concatenate([self._target_features[domain], features])
        first_rows = np.unique([zlib.crc32(row.tobytes()) for row in features], return_index=True)[
            1
        ]
        self._target_features[domain] = features[np.sort(first_rows)][:_MAX_TARGET_CONTEXTS]

    def plan(self, episodes: int) -> None:
        if not 0 < self._episodes_left <= episodes:  # a resumed run keeps its number of episodes
            self._episodes_left = episodes

    def _adapt(self, steps: int | None) -> dict[str, float]:
        n_learned = self.rounds_learned
        self._episodes_left = self._episodes_left - 1
        # Without ``steps``, fit when the number of rounds has doubled, and after the last episode.
        must_fit = bool(steps) or (
            steps is None and (n_learned >= 2 * self._rounds_at_fit or self._episodes_left == 0)
        )
        if (
            self._total_label_weight
            and self._target_features
            and must_fit
            and n_learned > self._rounds_at_fit
        ):
            new_thetas = {}
            linucb_theta = self._head.statistics.compute_coefficients()
            for domain, features in self._target_features.items():
                fitted_theta = fit_self_training(
                    self._gram, self._arm_sums, self._total_label_weight, features
                )
                fitted_std = np.std(features @ fitted_theta.T)
                linucb_std = np.std(features @ linucb_theta.T)
                linucb_weight = _LINUCB_WEIGHT if linucb_std > 0.0 else 0.0
                linucb_factor = linucb_weight * fitted_std / linucb_std if linucb_weight else 0.0
                new_thetas[domain] = (
                    1.0 - linucb_weight
                ) * fitted_theta + linucb_factor * linucb_theta
            with self._locks.state:
                # A target without stored contexts keeps its regression.
                self._target_thetas = self._target_thetas | new_thetas
                self._rounds_at_fit = n_learned
        return {}

    def _grow(self) -> None:
        super()._grow()
        self._arm_sums = np.pad(self._arm_sums, ((0, 1), (0, 0)))
        self._target_thetas = {
            domain: np.pad(theta, ((0, 1), (0, 0))) for domain, theta in self._target_thetas.items()
        }

    # Files.

    def _state(self, *, replay: bool = True) -> Arrays:
        counters = np.array([self._total_label_weight, self._rounds_at_fit, self._episodes_left])
        checksums = self._seen_contexts.state() if replay else np.zeros(0, np.int64)
        thetas = {f"theta/{domain}": theta for domain, theta in self._target_thetas.items()}
        contexts = {f"contexts/{domain}": rows for domain, rows in self._target_features.items()}
        labels = {"gram": self._gram, "moment": self._arm_sums, "counts": counters}
        labels |= {"seen": checksums, **thetas, **(contexts if replay else {})}
        return {**super()._state(replay=replay), **add_prefix("labels/", labels)}

    def _restore(self, state: Arrays) -> None:
        arrays = drop_prefix("labels/", state)
        dim = self._head.dim
        thetas, features = (
            {int(name): np.array(array) for name, array in drop_prefix(prefix, arrays).items()}
            for prefix in ("theta/", "contexts/")
        )
        gram = np.array(arrays["gram"])
        arm_sums = np.array(arrays["moment"])
        label_weight, rounds_at_fit, episodes_left = arrays["counts"].tolist()
        is_valid = gram.shape in ((0, 0), (dim, dim)) and arm_sums.shape == (self.n_arms, len(gram))
        is_valid &= all(theta.shape == (self.n_arms, dim) for theta in thetas.values())
        if not is_valid or not all(rows.shape[1:] == (dim,) for rows in features.values()):
            raise InvalidInput(
                f"the file's arrays do not fit {self.n_arms} arms with {dim} features: sums have"
                f" shape {gram.shape}"
            )
        super()._restore(state)
        self._gram = gram
        self._arm_sums = arm_sums
        self._total_label_weight = label_weight
        self._seen_contexts.restore(arrays["seen"])
        self._rounds_at_fit = int(rounds_at_fit)
        self._episodes_left = int(episodes_left)
        self._target_thetas = thetas
        self._target_features = features


def fit_self_training(
    gram: FloatArray, arm_sums: FloatArray, label_weight: float, features: AnyArray
) -> FloatArray:
    """Return the mean coefficients (K, d) of regressions on the labels and a growing number of
    pseudo-labels.

    Args:
        gram: the sum of z z' over the features z of labelled contexts, (d, d).
        arm_sums: the sum of z over the labelled contexts of each arm, (K, d).
        label_weight: the sum of the weights of labelled contexts, which is their number without
            weights.
        features: the features of unlabelled target contexts, (n, d).

    The ridge penalty is the mean squared norm of a labelled context.
    """
    features = features.astype(np.float64)
    n_arms = len(arm_sums)
    penalty = np.eye(len(gram)) * (np.trace(gram) / label_weight)
    thetas = [np.linalg.solve(gram + penalty, arm_sums.T)]
    for fraction in _LABELLED_FRACTIONS if len(features) and n_arms > 1 else ():
        scores = features @ thetas[-1]
        arms = scores.argmax(axis=1)
        second_best, best = np.partition(scores, -2, axis=1)[:, -2:].T
        # Sort rows by arm, the most confident first; the first rows of each arm get its
        # pseudo-label.
        sorted_rows = np.lexsort((second_best - best, arms))
        arm_counts = np.bincount(arms, minlength=n_arms)
        ranks = np.arange(len(features)) - (np.cumsum(arm_counts) - arm_counts)[arms[sorted_rows]]
        labelled_rows = sorted_rows[ranks < np.ceil(fraction * arm_counts)[arms[sorted_rows]]]
        labelled_features = features[labelled_rows]
        all_sums = arm_sums + np.eye(n_arms)[arms[labelled_rows]].T @ labelled_features
        thetas.append(
            np.linalg.solve(gram + labelled_features.T @ labelled_features + penalty, all_sums.T)
        )
    return np.mean(thetas, axis=0).T.copy()
