"""Self-training: ridge regression that labels target contexts itself. On pretrained features it adapts in seconds.

Lee: "Pseudo-label" (2013); Liao et al.: "PACE" (2022). Each domain is standardised by its own statistics. A ridge
regression on the source labels predicts an arm for each target context. For each arm, the fifth of its contexts with
the most confident predictions is labelled with that arm (pseudo-labels), and the regression is fitted again to both
domains; then two fifths, and so on. The mean of all these regressions decides in the target. This keeps the result
near the first regression if the pseudo-labels are poor. LinUCB's predictions, scaled to the same standard deviation,
have a quarter of the weight.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from daband._arguments import one_of
from daband._arrays import AnyArray, FloatArray, IntArray, Mask, Weights, below, unit_scale
from daband._domain_names import DomainNames
from daband._shift import ShiftLike
from daband.errors import InvalidInput
from daband.linear._exploration import Decision, Exploration
from daband.policies._policy import Policy
from daband.policies._registered import policies
from daband.policies._ridge import LinUCB
from daband.serving._frozen_policy import FrozenParts

#: Fractions of the target contexts that are labelled, in order.
_FRACTIONS = (0.2, 0.4, 0.6, 0.8, 1.0)
#: The weight of LinUCB's predictions in the target: with many arms of few contexts its own labels are poor, and with a
#: small shift LinUCB is better. Chosen on four pairs of Office-31, emoji and signs from 0, 0.25, 0.5 and 0.75.
_OWN_SHARE = 0.25
#: Maximum number of stored contexts per target: more take time and change little.
_MAX_CONTEXTS = 2048
#: Maximum number of stored checksums of labelled contexts; further contexts count as new.
_MAX_DISTINCT = 1 << 16


@policies.register("self-training")
class SelfTraining(LinUCB):
    """LinUCB with pseudo-labels: it labels target contexts itself. For features of a pretrained network.

    In the source it plays as LinUCB. With ``feedback="one_hot"`` a reward of 1 reveals the label of a context; each
    context counts once. ``adapt`` fits another regression, which predicts rewards in the target. It is fitted to these
    labels and to pseudo-labels of the contexts from ``observe_target``, whenever the number of rounds has doubled, and
    after the last episode of a run. With other feedback, or with one context per arm, the policy is LinUCB.

    >>> from daband.policies import policies
    >>> policy = policies.get("self-training")(context_shape=(2,), n_arms=2, feedback="one_hot")
    >>> skipped = policy.update([[1.0, 0.2], [0.2, 1.0]] * 20, [0, 1] * 20, [1.0] * 40)
    >>> policy.observe_target([[2.0, 1.5], [1.5, 2.0]])
    >>> fitted = policy.adapt()
    >>> policy.select([[3.0, 1.0], [1.0, 3.0]], domain="target").arm.tolist()
    [0, 1]
    """

    adapts_to_target = True
    _decide_row = None  # type: ignore[assignment]  # compiled decisions would ignore the target's regression

    def __init__(
        self,
        *,
        context_shape: Sequence[int],
        n_arms: int,
        feedback: str = "bandit",
        alpha: float = Exploration.alpha,
        ridge: float = 1.0,
        arms: Any = "disjoint",
        explore: Any = "ucb",
        epsilon: float = 0.0,
        transform: Any = None,
        shift: ShiftLike = None,
        form: Any = "auto",
        seed: int = 0,
        domains: DomainNames | None = None,
    ) -> None:
        self.feedback: str = one_of("feedback", feedback, ("bandit", "one_hot"))
        super().__init__(
            context_shape=context_shape, n_arms=n_arms, alpha=alpha, ridge=ridge, arms=arms, explore=explore,
            epsilon=epsilon, standardise_rewards=feedback != "one_hot", transform=transform, shift=shift, form=form,
            seed=seed, domains=domains,
        )  # fmt: skip
        #: Sums over labelled contexts z, empty before the first: of z z' (d, d), and of z for each arm (K, d).
        self._gram: FloatArray = np.zeros((0, 0))
        self._moment: FloatArray = np.zeros((self.n_arms, 0))
        self._labels = 0.0
        #: Checksums of labelled contexts. Each counts once, so repeated source contexts do not outweigh the target.
        self._seen: dict[int, None] = {}
        #: Distinct contexts of each target, (n, d), and the regression that decides there, (K, d).
        self._contexts: dict[int, AnyArray] = {}
        self._theta: dict[int, FloatArray] = {}
        self._fitted_rounds = 0
        self._episodes_left = 0

    def settings(self) -> dict[str, Any]:
        settings = {**super().settings(), "feedback": self.feedback}
        settings.pop("standardise_rewards", None)  # it follows from the feedback
        return settings

    def _score(self, contexts: AnyArray, domain: int, bonuses: bool) -> tuple[FloatArray, FloatArray]:
        mean, bonus = super()._score(contexts, domain, bonuses)
        theta = self._theta.get(domain)
        if theta is None:
            return mean, bonus
        return unit_scale(self._features(contexts)) @ theta.T, math.sqrt(self._shrinkage()) * bonus

    def _shrinkage(self) -> float:
        """Return the ratio of the penalties, which is that of prior variances, of LinUCB and of self-training."""
        return float(self._head.ridge * self._labels / np.trace(self._gram))

    def _freeze(self, domain: int) -> FrozenParts:
        parts = super()._freeze(domain)
        if domain not in self._theta:
            return parts
        inverse = self._shrinkage() * parts.members[0].inverse
        member = dataclasses.replace(parts.members[0], theta=self._theta[domain].copy(), inverse=inverse)
        return parts._replace(members=(member,), seen_target=True)

    # Learning.

    def _learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: int, weights: Weights) -> None:
        super()._learn(contexts, arms, rewards, domain, weights)
        self._add_labels(contexts, arms, rewards, weights)

    def _play(
        self,
        contexts: AnyArray,
        rewards: FloatArray,
        domain: int,
        available: Mask,
        first_round: int,
        weights: Weights,
    ) -> Decision:
        if domain in self._theta:
            return Policy._play(self, contexts, rewards, domain, available, first_round, weights)
        decision = super()._play(contexts, rewards, domain, available, first_round, weights)
        self._add_labels(contexts, decision.arm, rewards[np.arange(len(rewards)), decision.arm], weights)
        return decision

    def _add_labels(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, weights: Weights) -> None:
        """Add the contexts whose label a reward reveals, each once."""
        if self.feedback != "one_hot" or self.arms != "disjoint":
            return
        features = self._features(contexts)
        new = [row for row in np.flatnonzero(rewards == 1.0) if _is_new(self._seen, features[row])]
        if not new:
            return
        if not len(self._gram):
            dim = self._head.dim
            self._gram, self._moment = np.zeros((dim, dim)), np.zeros((self.n_arms, dim))
        rows, counted = unit_scale(features[new]), np.ones(len(new)) if weights is None else weights[new]
        self._gram += rows.T @ (rows * counted[:, None])
        np.add.at(self._moment, arms[new], rows * counted[:, None])
        self._labels += float(counted.sum())

    def _observe(self, contexts: AnyArray, domain: int) -> None:
        if (
            self.feedback != "one_hot"
            or self.arms != "disjoint"
            or len(self._contexts.get(domain, ())) >= _MAX_CONTEXTS
        ):
            return
        rows = unit_scale(self._features(contexts)).astype(np.float32)
        rows = np.concatenate([self._contexts[domain], rows]) if domain in self._contexts else rows
        first = np.unique([zlib.crc32(row.tobytes()) for row in rows], return_index=True)[1]
        self._contexts[domain] = rows[np.sort(first)][:_MAX_CONTEXTS]

    def plan(self, episodes: int) -> None:
        if not 0 < self._episodes_left <= episodes:  # a resumed run keeps its number of episodes
            self._episodes_left = episodes

    def _adapt(self, steps: int | None) -> dict[str, float]:
        learned, self._episodes_left = self.rounds_learned, self._episodes_left - 1
        due = bool(steps) or (steps is None and (learned >= 2 * self._fitted_rounds or self._episodes_left == 0))
        if self._labels and due and learned > self._fitted_rounds:
            theta, own = {}, self._head.statistics.coefficients()
            for domain, rows in self._contexts.items():
                fitted = self_trained(self._gram, self._moment, self._labels, rows)
                sizes = [float(np.std(rows @ part.T)) for part in (fitted, own)]
                share = _OWN_SHARE if sizes[1] > 0.0 else 0.0
                theta[domain] = (1.0 - share) * fitted + (share * sizes[0] / sizes[1] * own if share else 0.0)
            with self._locks.state:
                # A file without training data has no contexts: its regressions stay.
                self._theta, self._fitted_rounds = self._theta | theta, learned
        return {}

    def _grow(self) -> None:
        super()._grow()
        self._moment = np.pad(self._moment, ((0, 1), (0, 0)))
        self._theta = {domain: np.pad(theta, ((0, 1), (0, 0))) for domain, theta in self._theta.items()}

    # Files.

    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        counts = np.array([self._labels, self._fitted_rounds, self._episodes_left])
        seen = np.array(list(self._seen) if replay else [], np.int64)
        arrays = {"gram": self._gram, "moment": self._moment, "counts": counts, "seen": seen}
        for name, parts in (("theta", self._theta), ("contexts", self._contexts if replay else {})):
            arrays[f"{name}.targets"] = np.array(list(parts), np.int64)
            arrays |= {f"{name}.{domain}": part for domain, part in parts.items()}
        return {**super()._state(replay=replay), **{f"labels/{name}": array for name, array in arrays.items()}}

    def _restore(self, state: dict[str, AnyArray]) -> None:
        arrays, dim = below("labels/", state), self._head.dim
        theta, contexts = (
            {domain: np.array(arrays[f"{name}.{domain}"]) for domain in arrays[f"{name}.targets"].tolist()}
            for name in ("theta", "contexts")
        )
        gram, moment = np.array(arrays["gram"]), np.array(arrays["moment"])
        labels, *counts = arrays["counts"].tolist()
        fits = gram.shape in ((0, 0), (dim, dim)) and moment.shape == (self.n_arms, len(gram))
        fits &= all(part.shape == (self.n_arms, dim) for part in theta.values())
        if not fits or not all(rows.ndim == 2 and rows.shape[1] == dim for rows in contexts.values()):
            raise InvalidInput(
                f"the file's arrays do not fit {self.n_arms} arms with {dim} features: sums have shape {gram.shape}"
            )
        seen = dict.fromkeys(arrays["seen"].tolist())
        super()._restore({name: array for name, array in state.items() if not name.startswith("labels/")})
        self._gram, self._moment, self._labels, self._seen = gram, moment, labels, seen
        self._fitted_rounds, self._episodes_left = map(int, counts)
        self._theta, self._contexts = theta, contexts


def _is_new(seen: dict[int, None], row: AnyArray) -> bool:
    """Return True if this context is not among the seen ones, and add it to them."""
    checksum = zlib.crc32(np.ascontiguousarray(row).tobytes())
    new = checksum not in seen
    if new and len(seen) < _MAX_DISTINCT:
        seen[checksum] = None
    return new


def self_trained(gram: FloatArray, moment: FloatArray, labels: float, contexts: AnyArray) -> FloatArray:
    """Return the mean coefficients (K, d) of regressions on labels and on a growing fraction of pseudo-labels.

    Args:
        gram: the sum of z z' over labelled contexts, (d, d).
        moment: the sum of z over the contexts of each arm, (K, d).
        labels: the number of labelled contexts.
        contexts: contexts of the target without labels, (n, d).

    The penalty is the mean squared norm of a context, about the penalty of the member "shrunk" of ``Mixture.for_pair``.
    """
    rows, n_arms = contexts.astype(np.float64), len(moment)
    penalty = np.eye(len(gram)) * (np.trace(gram) / labels)
    theta = [np.linalg.solve(gram + penalty, moment.T)]
    for fraction in _FRACTIONS if len(rows) and n_arms > 1 else ():
        scores = rows @ theta[-1]
        arms = scores.argmax(axis=1)
        best = np.partition(scores, -2, axis=1)
        # Sort rows by arm, the most confident first; the first rows of each arm get its pseudo-label.
        order = np.lexsort((best[:, -2] - best[:, -1], arms))
        counts = np.bincount(arms, minlength=n_arms)
        rank = np.arange(len(rows)) - (np.cumsum(counts) - counts)[arms[order]]
        chosen = order[rank < np.ceil(fraction * counts)[arms[order]]]
        known = rows[chosen]
        sums = np.eye(n_arms)[arms[chosen]].T @ known
        theta.append(np.linalg.solve(gram + known.T @ known + penalty, (moment + sums).T))
    return np.mean(theta, axis=0).T.copy()
