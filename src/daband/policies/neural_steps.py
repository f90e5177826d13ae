"""The gradient steps of a neural policy, and the head that is refitted after them."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from daband.arrays import AnyArray, FloatArray, IntArray
from daband.errors import TrainingDiverged
from daband.learning.inference_encoder import InferenceEncoder
from daband.learning.learner import Learner
from daband.learning.replay_buffer import ReplayBuffers, RoundBuffer
from daband.learning.settings import Recipe
from daband.learning.stepper import take_steps
from daband.linear import RidgeHead
from daband.linear.primal import PrimalRidge
from daband.policies.arm_prior import MOST_CONTEXTS, expected_arms
from daband.policies.contract import Policy
from daband.policies.linear_part import LinearPart

__all__ = ["NeuralSteps", "Published"]

_STREAK_THAT_STOPS = 3
_LEAST_TRUST = 0.0
"""Where the source counts no more than this (see ``PriorTrust``), gradient steps leave it out as well."""


class Published(NamedTuple):
    """What decisions rest on. ``adapt`` replaces all parts at once; rounds that are learned change the heads."""

    encoder: InferenceEncoder
    head: RidgeHead
    linear: RidgeHead | None
    """The head of the LinUCB beside the network, once it has features."""
    weight: float
    """The share of the linear head in predictions."""


class NeuralSteps(Policy):
    """The part of a neural policy that learns by gradients. ``stacked`` takes the steps of several policies at once."""

    recipe: Recipe
    _learner: Learner
    _linear_part: LinearPart | None
    _buffers: ReplayBuffers
    _target_alone: ReplayBuffers | None
    _published: Published
    _prior: FloatArray | None
    _rate: float
    _refitted_at: int
    _warned_no_target: bool
    _encoded_shape: tuple[int, ...]
    _device: torch.device

    @property
    def _head(self) -> RidgeHead:
        return self._published.head

    def _publish(self, encoder: InferenceEncoder, head: RidgeHead) -> None:
        part = self._linear_part
        if part is None or not part.fitted:
            self._published = Published(encoder, head, None, 0.0)
        else:
            self._published = Published(encoder, head, part.head, part.weight)

    def _adapt(self, steps: int | None) -> dict[str, float]:
        due = self.before_steps(steps)
        return self.after_steps(self._take_steps(due)) if due else {}

    def _take_steps(self, steps: int) -> dict[str, float]:
        (measured,) = take_steps([self._learner], steps, [self.buffers])
        return measured

    @property
    def learner(self) -> Learner:
        """What learns by gradients."""
        return self._learner

    @property
    def buffers(self) -> ReplayBuffers:
        """The replay buffers that steps draw from: those of the target alone where the source is not trusted."""
        trust = self._head.trust
        if trust is None or trust.discount > _LEAST_TRUST or not len(self._buffers.target_rounds):
            return self._buffers
        if self._target_alone is None or self._target_alone.target_rounds is not self._buffers.target_rounds:
            empty = self._fresh_buffers(self.n_arms)
            first = self._buffers.domains.first_target
            rounds = (*empty.rounds[:first], *self._buffers.rounds[first:])
            self._target_alone = replace(empty, rounds=rounds)
        return self._target_alone

    def before_steps(self, steps: int | None) -> int:
        """Prepare gradient steps, and return how many are due: 0 where there is nothing to learn from."""
        steps = self.recipe.learning.steps if steps is None else steps
        buffers = self._buffers
        if steps == 0 or not (len(buffers.source) or len(buffers.target_rounds)):
            return 0
        if self._learner.objective.needs_target and not len(buffers.target) and not self._warned_no_target:
            self._warned_no_target = True
            warnings.warn(
                f"{self.name} has seen no target context, so it learns from the source alone, as Neural-LinUCB does; "
                "show it some with observe_target, or give daband.train a target",
                stacklevel=4,
            )
        statistics = self._head.statistics
        assert isinstance(statistics, PrimalRidge)
        alpha = self._head.exploration.alpha
        self._learner.take_head(statistics.theta, statistics.inverse, alpha=alpha, rate=self._rate, prior=self._prior)
        return steps

    def after_steps(self, measured: dict[str, float]) -> dict[str, float]:
        """Publish the encoder, with the head refitted where that is due, unless the steps diverged."""
        streak = measured.pop("worst_streak", 0.0)
        if streak >= _STREAK_THAT_STOPS:
            raise TrainingDiverged(
                f"{int(streak)} gradient steps in a row had a loss or gradient that is not finite; they were skipped, "
                f"and training stops here. The last saved state is good; try a learning rate below "
                f"{self.recipe.learning.learning_rate:g}, or smaller weights"
            )
        encoder, head = self._learner.acting_copy(), self._head
        if self._refit_is_due():
            head = self._refitted(encoder)
            self._start_linear_part()
            measured["refitted"] = 1.0
            if self.recipe.learning.prior == "estimated":
                self._prior = self._expected_arms(encoder, head)
        if self._linear_part is not None:
            self._linear_part.reweigh(1.0 if head.trust is None else head.trust.discount)
        self._publish(encoder, head)
        measured["recent_reward"] = self._rate
        return measured

    def _rounds_in_head(self) -> int:
        """How many rounds the head rests on.

        Written in place of the last refit where the replay buffers are left out, it makes the next refit wait for as
        many new rounds: an earlier one would forget more than it mends.
        """
        shown = self._buffers.rounds_seen
        return shown if self._refitted_at <= shown else self._refitted_at + shown

    def _fresh_buffers(self, n_arms: int) -> ReplayBuffers:
        lead = (n_arms,) if self.arms == "shared" else ()
        return ReplayBuffers.empty(
            (*lead, *self._encoded_shape), self.recipe.replay, seed=self.seed, device=self._device
        )

    def _refit_is_due(self) -> bool:
        settings = self.recipe.replay
        shown = self._buffers.rounds_seen
        wait = max(settings.refit_after, int(settings.refit_growth * shown))
        # A young head rests on an encoder that changes fast: it is fitted anew more often, at little cost.
        wait = min(wait, max(1, shown // 8)) if shown < 8 * settings.refit_after else wait
        return settings.refit and shown - self._refitted_at >= wait

    def _refitted(self, encoder: InferenceEncoder) -> RidgeHead:
        """A head fitted to every stored round, each once, with the features of ``encoder``."""
        both = [("source", self._buffers.source), ("target", self._buffers.target_rounds)]
        rounds = [self._encoded_rounds(encoder, domain, buffer) for domain, buffer in both]
        self._refitted_at = self._buffers.rounds_seen
        head = copy.copy(self._head)  # a decision under way keeps the head it began with
        if head.trust is None:
            head.statistics = self._fit_head(*(np.concatenate(column) for column in zip(*rounds, strict=True)))
            return head
        head.trust = copy.copy(head.trust)
        head.trust.refit(*(self._fit_head(*columns) for columns in rounds))
        head.statistics = head.trust.statistics
        return head

    def _start_linear_part(self) -> None:
        """Fit the linear part to the stored rounds where nobody called ``prepare`` before the first of them."""
        part = self._linear_part
        if part is None or part.fitted:
            return
        filled = [buffer for buffer in (self._buffers.source, self._buffers.target_rounds) if len(buffer)]
        stored = [(*buffer.columns(), buffer.weights[: len(buffer)]) for buffer in filled]
        contexts, arms, rewards, weights = (torch.cat(column).cpu().numpy() for column in zip(*stored, strict=True))
        target = self._buffers.target
        part.fit_transform(contexts, target.contexts[: len(target)].cpu().numpy())
        if part.fitted:
            part.refit(contexts, arms, rewards, weights)

    def _encoded_rounds(
        self, encoder: InferenceEncoder, domain: str, buffer: RoundBuffer
    ) -> tuple[FloatArray, IntArray, FloatArray, FloatArray]:
        """Latents, arms, rewards and weights of every round in a buffer."""
        n = len(buffer)
        lead = (self.n_arms,) if self.arms == "shared" else ()
        latents = self._encode(encoder, buffer.contexts[:n], domain) if n else np.zeros((0, *lead, self._head.dim))
        arms, rewards, weights = (own[:n].cpu().numpy() for own in (buffer.arms, buffer.rewards, buffer.weights))
        return latents, arms, rewards, weights

    def _fit_head(self, latents: FloatArray, arms: IntArray, rewards: FloatArray, weights: FloatArray) -> PrimalRidge:
        weighted = self._buffers.source.weighted or self._buffers.target_rounds.weighted
        statistics = self._head.refitted(latents, arms, rewards, weights if weighted else None)
        assert isinstance(statistics, PrimalRidge)
        return statistics

    def _expected_arms(self, encoder: InferenceEncoder, head: RidgeHead) -> FloatArray | None:
        """How often each arm is expected to be the best one in the target, (K,); None as long as nothing tells."""
        source, target = self._buffers.source, self._buffers.target
        rounds = source.columns(MOST_CONTEXTS)
        contexts = target.contexts[: min(len(target), MOST_CONTEXTS)]
        return expected_arms(lambda rows, domain: self._predicted(encoder, head, rows, domain), rounds, contexts)

    def _predicted(
        self, encoder: InferenceEncoder, head: RidgeHead, contexts: AnyArray | torch.Tensor, domain: str
    ) -> FloatArray:
        return head.decide(self._encode(encoder, contexts, domain), first_round=0, rule="greedy").mean

    def _encode(self, encoder: InferenceEncoder, contexts: AnyArray | torch.Tensor, domain: str) -> FloatArray:
        return encoder.encode(contexts, self._learner.domains.index(domain))
