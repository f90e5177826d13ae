"""Between what users call and the hooks of a policy: checked input, scaled rewards, rounds that are kept back."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import nullcontext
from typing import ClassVar

import numpy as np

from daband.arrays import AnyArray, ArrayLike, BoolArray, FloatArray, IntArray
from daband.errors import InvalidInput
from daband.linear import Decision
from daband.linear.kernels import kernels
from daband.linear.reward_model import cross_fitted_rewards, flat_features
from daband.policies.decisions import Played, joined
from daband.policies.hooks import PolicyHooks
from daband.policies.input_checks import (
    LARGEST_RAW_NORM,
    checked_contexts,
    checked_domain,
    checked_mask,
    checked_rewards,
)
from daband.policies.propensities import LARGEST_WEIGHT, pseudo_rewards

__all__ = ["CheckedRounds"]

_NO_LOCK = nullcontext()
_FLOAT64 = np.dtype(np.float64)


class CheckedRounds(PolicyHooks):
    """Checks what arrives, scales rewards, and calls the hooks."""

    n_arms: int
    arms: str
    seed: int
    locks_state: ClassVar[bool]
    _dimensions: int

    @abstractmethod
    def select(self, contexts: ArrayLike, domain: str | None = None, available: ArrayLike | None = None) -> Decision:
        """Choose an arm for every context."""

    def _absorb(
        self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: str, weights: FloatArray | None
    ) -> None:
        """Learn checked rounds, or keep them back until the range of rewards is known."""
        if self._scale.known:
            self._learn_known(contexts, arms, rewards, domain, weights)
            return
        self._transformed(contexts)  # refuse now what could not be learned later
        rounds = self._pending.joined_with(contexts, arms, rewards, domain, weights)
        before = self._scale.state()
        if not self._scale.estimate(np.concatenate([paid for _, _, paid, _, _ in rounds])):
            self._pending.add(contexts, arms, rewards, domain, weights)
            return
        try:
            for _, _, paid, _, _ in rounds:
                self._check_unit_rewards(self._scale.to_unit(paid))
        except BaseException:
            self._scale.restore(before)
            raise
        self._pending.clear()
        for batch in rounds:
            self._learn_known(*batch)

    def _learn_known(
        self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: str, weights: FloatArray | None
    ) -> None:
        unit = self._scale.to_unit(rewards)
        self._check_unit_rewards(unit)
        with self._state_lock if self.locks_state else _NO_LOCK:
            if weights is None:
                self._learn(self._transformed(contexts), arms, unit, domain)
            else:
                self._learn_weighted(self._transformed(contexts), arms, unit, domain, weights)
        self.rounds_learned += len(arms)

    def _learn_doubly_robust(
        self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, propensities: FloatArray, domain: str
    ) -> None:
        """Every arm learns its pseudo-reward in every round; a round counts once, each of its arms 1 / n_arms.

        Predictions come from what was learned before, or, where that is less than this batch, from a model that is
        fitted to the batch's other rounds.
        """
        if not self._scale.known:
            raise InvalidInput(
                "propensity_weighting='doubly_robust' needs to know reward_range, and 'auto' has not seen enough "
                "rewards yet; give the range, or use propensity_weighting='importance'"
            )
        unit = self._scale.to_unit(rewards)
        n, k = len(arms), self.n_arms
        with self._state_lock:
            features = self._transformed(contexts)
            if self.rounds_learned >= n:
                predicted = self._decide(features, domain, None, self.rounds_decided, "greedy").mean
            else:
                (flat,) = flat_features(features, lead=2 if self.arms == "shared" else 1)
                predicted = cross_fitted_rewards(flat, arms, unit, n_arms=k, seed=self.seed)
            every = pseudo_rewards(predicted, arms, unit, propensities, largest=k * LARGEST_WEIGHT)
            repeated = np.repeat(features, k, axis=0)
            self._learn_weighted(repeated, np.tile(np.arange(k), n), every.reshape(-1), domain, np.full(n * k, 1.0 / k))
        self.rounds_learned += n

    def _play_known(self, contexts: AnyArray, rewards: FloatArray, domain: str, mask: BoolArray | None) -> Played:
        unit = self._scale.to_unit(rewards)
        self._check_unit_rewards(unit)
        with self._state_lock:
            first = self.rounds_decided
            self.rounds_decided += len(contexts)
        try:
            with self._state_lock if self.locks_state else _NO_LOCK:
                decision = self._play(self._transformed(contexts), unit, domain, mask, first)
        except BaseException:
            with self._state_lock:
                self.rounds_decided -= len(contexts)
            raise
        self.rounds_learned += len(contexts)
        d = self._in_units(decision)
        return Played(d.arm, d.propensity, d.mean, d.width, rewards[np.arange(len(contexts)), d.arm])

    def _play_unknown(self, contexts: AnyArray, rewards: FloatArray, domain: str, mask: BoolArray | None) -> Played:
        """Play one round at a time until "auto" knows the range, then the rest. All are played or none."""
        before = self._snapshot()
        parts: list[Played] = []
        start = selected = 0
        try:
            while start < len(contexts) and not self._scale.known:
                part = slice(start, start + 1)
                decision = self.select(contexts[part], domain, None if mask is None else mask[part])
                selected += 1
                reward = rewards[part, decision.arm[0]]
                self._absorb(contexts[part], decision.arm, reward, domain, None)
                parts.append(Played(decision.arm, decision.propensity, decision.mean, decision.width, reward))
                start += 1
            if start < len(contexts):
                rest = None if mask is None else mask[start:]
                parts.append(self._play_known(contexts[start:], rewards[start:], domain, rest))
        except BaseException:
            with self._state_lock:
                decided = self.rounds_decided - selected  # others may have selected meanwhile
                self._roll_back(before)
                self.rounds_decided = decided
            raise
        return joined(parts)

    def _in_units(self, decision: Decision) -> Decision:
        if self._scale.is_unit:
            return decision
        mean, width = self._scale.predictions(decision.mean, decision.width)
        return Decision(decision.arm, decision.propensity, mean, width)

    # The checks.

    def _transformed(self, contexts: AnyArray) -> AnyArray:
        if self.transform is None:
            return contexts
        lead = contexts.shape[: -len(self.context_shape)]
        return self.transform(contexts.reshape(-1, *self.context_shape)).reshape(*lead, -1)

    def _checked_contexts(self, contexts: ArrayLike) -> AnyArray:
        usual = type(contexts) is np.ndarray and contexts.dtype == _FLOAT64 and contexts.shape[1:] == self._round_shape
        # One product tells in nearly every case that all is well: a loop of single rounds needs no further check.
        if usual and len(contexts) and kernels.sum_of_squares(contexts.reshape(-1)) < self._safe_square:
            return contexts  # type: ignore[no-any-return]
        largest = self.largest_norm if self.transform is None else LARGEST_RAW_NORM
        return checked_contexts(contexts, self._round_shape, dimensions=self._dimensions, largest_norm=largest)

    @property
    def largest_norm(self) -> float:
        """Contexts of a larger Euclidean norm are refused, unless a transform stands before the policy."""
        return self._largest_norm

    @largest_norm.setter
    def largest_norm(self, value: float) -> None:
        self._largest_norm = value
        self._safe_square = value * value

    def _set_round_shape(self) -> None:
        """The shape of what a round brings: one context, or one per arm."""
        self._round_shape = (self.n_arms, *self.context_shape) if self.arms == "shared" else self.context_shape

    def _checked_rewards(self, reward: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
        array = checked_rewards(reward, shape)
        self._scale.check(array)
        return array

    def _resolved_domain(self, domain: str | None) -> str:
        return self.domain if domain is None else checked_domain(domain)

    def _checked_request(
        self, contexts: ArrayLike, domain: str | None, available: ArrayLike | None
    ) -> tuple[AnyArray, str, BoolArray | None]:
        checked = self._checked_contexts(contexts)
        where = self._resolved_domain(domain)
        mask = None if available is None else checked_mask(available, len(checked), self.n_arms)
        return checked, where, mask
