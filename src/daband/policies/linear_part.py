"""A LinUCB beside a network: it sees every round, and predicted rewards are a weighted mean of both.

A network overfits a small table, and extrapolates badly where contexts are far from those it was trained on. Ridge
regression on the contexts themselves does neither, but misses what is not linear, and is not adapted to the target.
The fewer different contexts there were to learn from, the more the ridge regression counts.
"""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Mapping

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray
from daband.linear import ArmModel, Exploration, RidgeHead, Standardise
from daband.policies.for_pair import standardised_alpha

__all__ = ["LARGEST_INPUT", "LinearPart"]

LARGEST_INPUT = 4096
"""Numbers of a context beyond which there is no linear part: it would take longer than the network."""
_WIDEST, _COMPONENTS = 128, 64
"""Contexts of more numbers than the first are reduced to so many principal components, as LinUCB-P does."""
_MOST_ROWS = 4096
_FEW_CONTEXTS = 600.0
"""Different contexts after which the weight has gone 63% of its way from 1 to the one of many contexts."""
_MOST_COUNTED = 4096


class LinearPart:
    """The features of the LinUCB, standardised contexts, and its head.

    ``feature_shape`` is that of one context. ``exploration`` is the network's: the linear head explores by the same
    rule, with the alpha of ``LinUCB.for_pair`` or less. ``weight`` is its share in predictions after many contexts.
    """

    def __init__(
        self,
        *,
        feature_shape: tuple[int, ...],
        n_arms: int,
        arms: ArmModel,
        ridge: float,
        exploration: Exploration,
        weight: float,
        seed: int,
    ) -> None:
        self.weight = 1.0
        """The share of this part in predictions."""
        self._final_weight = weight
        self._counted: dict[str, dict[int, None]] = {"source": {}, "target": {}}
        self._components = _COMPONENTS if math.prod(feature_shape) > _WIDEST else None
        self.transform = Standardise(components=self._components)
        dim = self.transform.n_features(feature_shape)
        alpha = min(exploration.alpha, standardised_alpha(dim))
        self.head = RidgeHead(
            n_arms=n_arms,
            dim=dim,
            arms=arms,
            ridge=ridge,
            exploration=Exploration(exploration.rule, alpha, exploration.epsilon),
            seed=seed,
            form="auto",
        )
        self._feature_shape = feature_shape

    @property
    def fitted(self) -> bool:
        """Whether the standardisation is fitted: before that there are no features."""
        return self.transform.fitted

    def features(self, contexts: AnyArray) -> FloatArray:
        """Standardised contexts: (B, d), or (B, K, d) with shared arms."""
        lead = contexts.shape[: -len(self._feature_shape)]
        return self.transform(contexts.reshape(-1, *self._feature_shape)).reshape(*lead, -1)

    def fit_transform(self, *contexts: AnyArray) -> None:
        """Fit the standardisation to contexts of both domains, where there are enough of them."""
        batches = [batch.reshape(-1, *self._feature_shape) for batch in contexts if len(batch)]
        if self._components is not None:  # principal components of more rows take long and change little
            batches = [batch[:: max(1, len(batch) // _MOST_ROWS)] for batch in batches]
        if sum(map(len, batches)) >= (self._components or 1):
            self.transform.fit(*batches)

    def count(self, contexts: AnyArray, domain: str) -> None:
        """Count contexts of a domain that were learned from, each once however often it comes."""
        own = self._counted[domain]
        if len(own) < _MOST_COUNTED:
            some = contexts[:_MOST_COUNTED]
            rows = np.ascontiguousarray(some, None if some.dtype == np.uint8 else np.float32)
            own.update(dict.fromkeys(zlib.crc32(row.tobytes()) for row in rows))

    def reweigh(self, prior_trust: float) -> None:
        """Set the weight by how many different contexts there were; those of the source count as far as it does."""
        n = prior_trust * len(self._counted["source"]) + len(self._counted["target"])
        self.weight = self._final_weight + (1.0 - self._final_weight) * math.exp(-n / _FEW_CONTEXTS)

    def learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, weights: FloatArray | None = None) -> None:
        """Learn rounds; before the standardisation is fitted there is nothing to learn them with."""
        if self.fitted:
            self.head.learn(self.features(contexts), arms, rewards, weights)

    def refit(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, weights: FloatArray) -> None:
        """Fit the head to rounds from before the standardisation was fitted."""
        head = copy.copy(self.head)  # a decision under way keeps the head it began with
        head.statistics = head.refitted(self.features(contexts), arms, rewards, weights)
        self.head = head

    def grow(self) -> RidgeHead:
        """The head with one more arm."""
        head = copy.deepcopy(self.head)
        head.add_arm()
        return head

    def state(self, *, rounds: bool = True) -> dict[str, AnyArray]:
        """Everything needed to continue to the last bit; without ``rounds`` no context is in it."""
        arrays = {f"head.{name}": array for name, array in self.head.state(rounds=rounds).items()}
        arrays.update({f"transform.{name}": array for name, array in self.transform.state().items()})
        arrays["weight"] = np.array([self.weight])
        for domain, own in self._counted.items():
            # Without rounds no checksums, which would tell whether a context was among them.
            numbers = list(own) if rounds else range(len(own))
            arrays[f"counted.{domain}"] = np.array(numbers, np.int64)
        return arrays

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore what ``state`` returned."""

        def below(prefix: str) -> dict[str, AnyArray]:
            return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}

        self.head.restore(below("head."))
        self.transform = Standardise(components=self._components)  # one that was not fitted has no state
        self.transform.restore(below("transform."))
        self.weight = float(state["weight"][0])
        for domain in self._counted:
            self._counted[domain] = dict.fromkeys(state[f"counted.{domain}"].tolist())
