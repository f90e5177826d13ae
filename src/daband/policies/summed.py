"""Policies that learn by sums over rounds, so that parts of a log can be learned apart and put together.

``empty_sums`` starts a sum, ``add_to_sums`` adds rounds to it and leaves the policy as it is, ``learn_sums`` makes the
policy learn what was summed. The order of parts does not matter, nor who sums them.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable
from typing import Self

import numpy as np

from daband.arrays import AnyArray, ArrayLike, FloatArray
from daband.errors import InvalidInput
from daband.linear import RidgeHead, RidgeSums
from daband.policies.contract import Policy
from daband.policies.input_checks import checked_arms, checked_propensities
from daband.policies.propensities import checked_weighting, round_weights
from daband.policies.round_ids import RoundIds

__all__ = ["SummedPolicy"]


class SummedPolicy(Policy):
    """A policy that is a ``RidgeHead`` on features of its contexts, which learning does not change."""

    _head: RidgeHead

    @abstractmethod
    def _features(self, contexts: AnyArray) -> AnyArray:
        """What the head works on: (B, d), or (B, K, d) with a context per arm."""

    @property
    def can_discount(self) -> bool:
        return self._head.can_discount

    def _trust_prior(self, discounts: tuple[float, ...]) -> None:
        with self._state_lock:
            self._head.trust_prior(discounts)

    def empty_sums(self) -> RidgeSums:
        """Sums without a round."""
        return RidgeSums(self._head.statistics.n_heads, self._head.dim)

    def without_rounds(self) -> Self:
        """A copy without rounds that keeps the transform and the reward range: small enough to send around."""
        if len(self._pending):
            raise InvalidInput(
                f"the policy keeps back {len(self._pending)} rounds until reward_range='auto' knows the range; update "
                "it with more rounds first, or give the range"
            )
        if self._head.trust is not None:
            raise InvalidInput("the policy discounts what it learned before (trust_prior): fit it to logs before that")
        self._head.check_primal_fits()
        blank = copy.copy(self)  # which copies all parts
        blank._head = blank._head.without_rounds()
        blank._ids = RoundIds(self.id_window)
        blank.rounds_decided = blank.rounds_learned = 0
        return blank

    @property
    def needs_sample(self) -> bool:
        """Whether ``prepare_for_log`` has something to fix."""
        return not self._scale.known or (self.transform is not None and not self.transform.fitted)

    def prepare_for_log(self, contexts: ArrayLike, rewards: ArrayLike) -> None:
        """Fit what must be fixed before rounds can be summed: the transform, and ``reward_range="auto"``.

        Args:
            contexts: a sample of the log's contexts, (B, *context_shape).
            rewards: a sample of its rewards, (B,).
        """
        with self._write_lock:
            paid = self._checked_rewards(rewards, (len(np.asarray(rewards)),))
            if self.transform is not None and not self.transform.fitted:
                self.prepare(contexts)
            if not self._scale.known and not self._scale.estimate(paid):
                raise InvalidInput(
                    f"reward_range='auto' cannot tell a range from the {len(paid)} rewards at the beginning of the "
                    "log; give the policy reward_range=(low, high)"
                )

    def add_to_sums(
        self,
        sums: RidgeSums,
        contexts: ArrayLike,
        arm: ArrayLike,
        reward: ArrayLike,
        *,
        propensity: ArrayLike | None = None,
        propensity_weighting: str | None = None,
    ) -> None:
        """Add rounds to ``sums``: arguments as of ``update``. Pseudo-rewards ("doubly_robust") are not offered here.

        Rounds that ``update`` would refuse are refused here, and ``sums`` stays as it was.
        """
        checked = self._checked_contexts(contexts)
        pulled = checked_arms(arm, len(checked), self.n_arms)
        unit = self._scale.to_unit(self._checked_rewards(reward, (len(checked),)))
        self._check_unit_rewards(unit)
        weights = self._weights_of(propensity, len(checked), propensity_weighting)
        features = self._features(self._transformed(checked))
        if self._head.arms == "shared":
            features, heads = features[np.arange(len(pulled)), pulled], np.zeros_like(pulled)
        else:
            heads = pulled
        if features.dtype == np.uint8:
            features = features / np.float32(255.0)
        sums.add(features, heads, unit, weights)

    def check_sum_weighting(self, weighting: str | None) -> str:
        """The weighting to use for sums; pseudo-rewards need predictions, which sums do not give."""
        offered = tuple(name for name in self.propensity_weightings if name != "doubly_robust")
        return checked_weighting(weighting, offered, "learning from sums")

    def _weights_of(self, propensity: ArrayLike | None, n: int, weighting: str | None) -> FloatArray | None:
        asked = self.check_sum_weighting(weighting)
        if propensity is None:
            return None
        chance = checked_propensities(propensity, n)
        return round_weights(chance, self.n_arms, weighting=asked)

    def learn_sums(self, sums: RidgeSums, prepared: SummedPolicy, log_parts: Iterable[str] = ()) -> None:
        """Learn rounds that were summed; where that cannot be, an error is raised and nothing changes.

        ``prepared`` is the copy that summed them: its transform and its reward range become this policy's.
        ``log_parts`` are the digests of the parts of a log that the sums are of.
        """
        with self._write_lock:
            statistics = copy.deepcopy(self._head.primal("the log cannot be learned"))
            statistics.add_sums(sums)
            with self._state_lock:
                self.transform, self._scale = prepared.transform, prepared._scale
                self._head.statistics = statistics
                self.rounds_learned += int(sums.counts.sum())
                self.log_parts |= frozenset(log_parts)
