"""LinUCB beside a network, and source rounds held out of the gradient steps that tell which of the two acts.

A network overfits a small table, and the more so the more often it sees the same rounds. Its reward on those rounds
says nothing about that. So some source contexts, chosen by a hash of their numbers, are kept out of its gradient steps.
Now and then both regressions are fitted without the rounds of these contexts, and both say what they would choose
there. LinUCB acts where its choices are worth clearly more, else the network does: where both solve the source, the
network alone is adapted to the target. Both heads learn all rounds.

A choice that was made is worth what it was paid. Any other is worth what both predict for it on average, after a line
was fitted through the predictions and rewards of each: ridge regression on few rounds predicts rewards that are too
small. Where exactly one arm pays, a reward tells more: of 1, that no other arm pays, and of 0, that one of them does.
"""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Mapping

import numpy as np
import torch

from daband.arrays import AnyArray, BoolArray, FloatArray, IntArray
from daband.learning.replay_buffer import ReplayBuffers
from daband.linear import ArmModel, Exploration, RidgeHead, Standardise
from daband.policies.for_pair import standardised_alpha

__all__ = ["LARGEST_INPUT", "LinearGate"]

LARGEST_INPUT = 4096
"""Numbers of a context beyond which there is no linear part: it would take longer than the network."""
_WIDEST, _COMPONENTS = 128, 64
"""Contexts of more numbers than the first are reduced to so many principal components, as LinUCB-P does."""
_MOST_CONTEXTS = 512
"""Contexts held out at the most: more would not make the comparison much sharper."""
_MOST_ROUNDS = 8 * _MOST_CONTEXTS
_MOST_ROWS = 4096
_CLEARLY = 1.0
"""Standard errors by which LinUCB has to be better: little is lost where it should have acted, and all of the
adaptation where it should not."""
_FEWEST_CONTEXTS = 20
"""Held-out contexts below which the network is not trusted."""


class LinearGate:
    """The linear part: its features, its head, the held-out rounds, and who acts.

    ``feature_shape`` is that of one context; ``share`` the part of source contexts that is held out; with ``one_hot``,
    exactly one arm pays 1. ``exploration`` is the network's: the linear head explores by the same rule, with the alpha
    of ``LinUCB.for_pair`` or less.
    """

    _contexts: AnyArray
    _keys: IntArray
    _arms: IntArray
    _rewards: FloatArray
    _weights: FloatArray

    def __init__(
        self,
        *,
        feature_shape: tuple[int, ...],
        n_arms: int,
        arms: ArmModel,
        ridge: float,
        exploration: Exploration,
        share: float,
        one_hot: bool,
        seed: int,
    ) -> None:
        self.share = share
        self._one_hot = one_hot
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
        self.open = False
        """Whether the network acts."""
        self._feature_shape = feature_shape
        self._seed = seed
        self._lead = (n_arms,) if arms == "shared" else ()
        self._held: dict[int, None] = {}
        self._forget_rounds()

    @property
    def acts(self) -> bool:
        """Whether the linear part acts."""
        return self.transform.fitted and not self.open

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

    def learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, weights: FloatArray | None = None) -> None:
        """Learn rounds; before the standardisation is fitted there is nothing to learn them with."""
        if self.transform.fitted:
            self.head.learn(self.features(contexts), arms, rewards, weights)

    def hold_out(
        self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, weights: FloatArray | None = None
    ) -> BoolArray:
        """Keep the source rounds whose contexts are held out, and return which they are, (B,).

        A context is held out whenever it comes again, and so is never in a gradient step.
        """
        rows = np.ascontiguousarray(contexts, None if contexts.dtype == np.uint8 else np.float32)
        keys = np.array([zlib.crc32(row.tobytes(), self._seed & 0xFFFFFFFF) for row in rows], np.int64)
        held = np.zeros(len(rows), np.bool_)
        for i, key in enumerate(keys.tolist()):
            if key not in self._held:
                if key >= self.share * 2.0**32 or len(self._held) >= _MOST_CONTEXTS:
                    continue
                self._held[key] = None
            held[i] = True
        room = max(0, _MOST_ROUNDS - len(self._arms))
        kept = np.flatnonzero(held)[:room]
        if len(kept):
            self._contexts = rows[kept] if not len(self._arms) else np.concatenate([self._contexts, rows[kept]])
            self._keys = np.concatenate([self._keys, keys[kept]])
            self._arms = np.concatenate([self._arms, arms[kept]])
            self._rewards = np.concatenate([self._rewards, rewards[kept]])
            self._weights = np.concatenate([self._weights, np.ones(len(kept)) if weights is None else weights[kept]])
        return held

    @property
    def rounds(self) -> tuple[AnyArray, IntArray, FloatArray]:
        """The held-out rounds: contexts, arms and rewards."""
        return self._contexts, self._arms, self._rewards

    @property
    def weights(self) -> FloatArray:
        """The weights of the held-out rounds, (h,)."""
        return self._weights

    def compare(self, buffers: ReplayBuffers, head: RidgeHead, encode: Callable[[AnyArray], FloatArray]) -> None:
        """Decide who acts: this linear part, or the network whose ``head`` was just fitted to the stored rounds.

        ``head`` learns the held-out rounds afterwards; ``encode`` gives the latents of source contexts.
        """
        filled = [buffer for buffer in (buffers.source, buffers.target_rounds) if len(buffer)]
        stored = [(*buffer.columns(), buffer.weights[: len(buffer)]) for buffer in filled]
        contexts, arms, rewards, weights = (torch.cat(column).cpu().numpy() for column in zip(*stored, strict=True))
        if not self.transform.fitted:
            self.fit_transform(contexts, buffers.target.contexts[: len(buffers.target)].cpu().numpy())
            if not self.transform.fitted:
                return
            self.refit(contexts, arms, rewards, weights)
        held, held_arms, held_rewards = self.rounds
        if not len(held):
            return
        latents = encode(held)
        self.judge(contexts, arms, rewards, head.decide(latents, first_round=0, rule="greedy").mean, weights)
        head.learn(latents, held_arms, held_rewards, self._weights)

    def refit(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, weights: FloatArray) -> None:
        """Fit the head to rounds from before the standardisation was fitted, besides the held-out ones."""
        head = copy.copy(self.head)  # a decision under way keeps the head it began with
        held, held_arms, held_rewards = self.rounds
        features = [self.features(rows) for rows in (contexts, held) if len(rows)]
        head.statistics = head.refitted(
            np.concatenate(features),
            np.concatenate([arms, held_arms]),
            np.concatenate([rewards, held_rewards]),
            np.concatenate([weights, self._weights]),
        )
        self.head = head

    def judge(
        self,
        contexts: AnyArray,
        arms: IntArray,
        rewards: FloatArray,
        predicted: FloatArray,
        weights: FloatArray | None = None,
    ) -> None:
        """Decide who acts.

        Args:
            contexts: those of the rounds that are not held out, (n, *C).
            arms: their arms, (n,).
            rewards: and rewards, (n,).
            predicted: what the network, fitted to the same rounds, predicts for the held-out ones, (h, K).
            weights: those of the rounds, (n,); 1 by default.
        """
        held, held_arms, held_rewards = self.rounds
        root = np.ones(len(arms)) if weights is None else np.sqrt(weights)
        features = self.features(contexts) * root.reshape(-1, *[1] * (1 + len(self._lead)))
        own = self._predicted(features, arms, rewards * root, self.features(held))
        both = [calibrated(mean, held_arms, held_rewards) for mean in (own, predicted)]
        worth = values_of_arms(np.mean(both, axis=0), held_arms, held_rewards, one_hot=self._one_hot)
        rows = np.arange(len(held))
        gain = worth[rows, predicted.argmax(axis=1)] - worth[rows, own.argmax(axis=1)]
        self.open = not_clearly_worse(gain, self._keys)

    def _predicted(self, features: FloatArray, arms: IntArray, rewards: FloatArray, held: FloatArray) -> FloatArray:
        """Rewards (h, K) of the held-out contexts, as ridge regression on the other rounds predicts them."""
        if self._lead:
            own = features[np.arange(len(features)), arms]
            return held @ ridge_coefficients(own, rewards, self.head.ridge)
        mean = np.zeros((len(held), self.head.n_arms))
        for arm in np.unique(arms):
            rows = arms == arm
            mean[:, arm] = held @ ridge_coefficients(features[rows], rewards[rows], self.head.ridge)
        return mean

    def grow(self) -> RidgeHead:
        """The head with one more arm; with shared arms stored rounds have no context for it, and are dropped."""
        head = copy.deepcopy(self.head)
        head.add_arm()
        if self._lead:
            self._lead = (self._lead[0] + 1,)
            self._forget_rounds()
        return head

    def state(self, *, rounds: bool = True) -> dict[str, AnyArray]:
        """Everything needed to continue to the last bit; without ``rounds`` no context is in it."""
        arrays = {f"head.{name}": array for name, array in self.head.state(rounds=rounds).items()}
        arrays.update({f"transform.{name}": array for name, array in self.transform.state().items()})
        arrays["open"] = np.array([self.open])
        if rounds:
            arrays["held"] = np.array(list(self._held), np.int64)
            columns = zip(
                ("contexts", "keys", "arms", "rewards", "weights"),
                (self._contexts, self._keys, *self.rounds[1:], self._weights),
                strict=True,
            )
            arrays.update({f"rounds.{name}": array for name, array in columns})
        return arrays

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore what ``state`` returned."""

        def below(prefix: str) -> dict[str, AnyArray]:
            return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}

        self.head.restore(below("head."))
        self.transform = Standardise(components=self._components)  # one that was not fitted has no state
        self.transform.restore(below("transform."))
        self.open = bool(state["open"][0])
        self._held = dict.fromkeys(state["held"].tolist()) if "held" in state else {}
        self._forget_rounds()
        columns = below("rounds.")
        if columns:
            self._contexts, self._keys = columns["contexts"], columns["keys"]
            self._arms, self._rewards = columns["arms"], columns["rewards"]
            self._weights = columns["weights"]

    def _forget_rounds(self) -> None:
        self._contexts = np.empty((0, *self._lead, *self._feature_shape), np.float32)
        self._keys = np.empty(0, np.int64)
        self._arms = np.empty(0, np.int64)
        self._rewards = np.empty(0)
        self._weights = np.empty(0)


def ridge_coefficients(features: FloatArray, rewards: FloatArray, ridge: float) -> FloatArray:
    """Coefficients (d,) of the ridge regression of rewards (n,) on features (n, d), by the smaller system."""
    n, dim = features.shape
    if n < dim:
        of_rounds = np.linalg.solve(features @ features.T + ridge * np.eye(n), rewards)
        return np.asarray(features.T @ of_rounds, np.float64)
    solved = np.linalg.solve(features.T @ features + ridge * np.eye(dim), features.T @ rewards)
    return np.asarray(solved, np.float64)


def calibrated(mean: FloatArray, arms: IntArray, rewards: FloatArray) -> FloatArray:
    """Predictions (n, K) moved onto a line and clipped to [0, 1].

    It is the line of least squares through the predictions for ``arms`` (n,) and the rewards, if its slope is positive.
    """
    pulled = mean[np.arange(len(mean)), arms]
    centred = pulled - pulled.mean()
    spread = float(centred @ centred)
    slope = max(0.0, float(centred @ rewards) / spread) if spread > 0 else 0.0
    return np.asarray(np.clip(rewards.mean() + slope * (mean - pulled.mean()), 0.0, 1.0), np.float64)


def values_of_arms(mean: FloatArray, arms: IntArray, rewards: FloatArray, *, one_hot: bool) -> FloatArray:
    """What each arm is worth in each round, (n, K): what was paid for the pulled one, and ``mean`` for the others.

    With ``one_hot``, exactly one arm pays 1: the others are worth nothing after a reward of 1, and 1 in all after none.
    """
    rows = np.arange(len(mean))
    values = np.maximum(mean, 1e-6) if one_hot else mean.copy()
    if one_hot:
        values[rows, arms] = 0.0
        values *= ((1.0 - rewards) / np.maximum(values.sum(axis=1), 1e-12))[:, None]
    values[rows, arms] = rewards
    return values


def not_clearly_worse(gain: FloatArray, groups: IntArray) -> bool:
    """Whether the mean of ``gain`` (n,) is at most a standard error below 0.

    Rounds of one context, a group, count once. Too few contexts say nothing, and the answer is no.
    """
    _, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
    means = np.bincount(inverse, weights=gain) / counts
    if len(means) < _FEWEST_CONTEXTS:
        return False
    return bool(means.mean() >= -_CLEARLY * means.std(ddof=1) / math.sqrt(len(means)))
