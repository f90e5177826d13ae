"""Rounds in the user's units on their way to a policy's hooks, which learn rewards in [0, 1].

With ``reward_range="auto"`` the first rounds are kept back until the range of their rewards is known.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import nullcontext
from typing import ClassVar

import numpy as np

from daband.arrays import AnyArray, ArrayLike, BoolArray, FloatArray, IntArray
from daband.errors import InvalidInput
from daband.linear import Decision
from daband.linear.reward_model import cross_fitted_rewards, flat_features
from daband.policies.decisions import Played, joined
from daband.policies.hooks import PolicyHooks
from daband.policies.input_checks import CheckedInput
from daband.policies.propensities import LARGEST_WEIGHT, pseudo_rewards
from daband.policies.saving import Saved

__all__ = ["ScaledRounds"]

_NO_LOCK = nullcontext()


class ScaledRounds(CheckedInput, Saved, PolicyHooks):
    """The part of a policy that scales rewards and calls the hooks that learn, under the locks they need."""

    seed: int
    locks_state: ClassVar[bool] = True
    """Whether ``Policy`` holds the state lock around ``_decide``, ``_learn`` and ``_play``. A policy with long work in
    them sets it to False and holds ``self._state_lock`` itself where it reads or changes what it has learned."""

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
