"""Neural-LinUCB: LinUCB on the latent of an encoder that is learned on the way.

Xu, Wen, Zhao, Gu: "Neural contextual bandits with deep representation and shallow exploration" (2020). This class is
also all of DABand: the two differ in the weights of the objective's terms and in nothing else.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, ParamSpec, TypeVar

import numpy as np
from torch import nn

from daband.arrays import AnyArray, BoolArray, FloatArray, IntArray, checked_number
from daband.encoders.frozen import freeze_encoder
from daband.errors import InvalidInput
from daband.image_layout import channels_first, channels_first_shape, image_layout
from daband.learning.learner import Learner
from daband.learning.replay_buffer import ReplayBuffers
from daband.learning.settings import EncoderSettings, Recipe
from daband.linear import ArmModel, AveragedHeads, Decision, Exploration, RidgeHead
from daband.linear.head import check_head_memory
from daband.objectives import FEEDBACKS
from daband.policies.contract import policies
from daband.policies.devices import device_named
from daband.policies.hooks import FrozenParts
from daband.policies.input_checks import DOMAINS, checked_domain
from daband.policies.linear_part import LARGEST_INPUT, LinearPart
from daband.policies.neural_steps import NeuralSteps, Published
from daband.policies.recipes import resolve_recipe, with_encoder
from daband.policies.reward_scale import RewardRange
from daband.serving import Member
from daband.serving.monitor_reference import MOST_CONTEXTS

__all__ = ["NeuralLinUCB", "device_named"]

_RATE_DECAY = 0.9 ** (1 / 64)
"""Of the recent mean reward, per round: it spans some six hundred rounds."""
_LARGEST_PIXEL = 2.0


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@policies.register("nlinucb")
class NeuralLinUCB(NeuralSteps):
    """LinUCB on learned features.

    Args:
        context_shape: the shape of one context.
        n_arms: how many arms there are; more can be added later.
        recipe: a name ("default", "default-rpd", "paper", "small"), here without the target's terms; a ``Recipe``; or a
            change of a named one, "default" unless it has a base: ``{"base": "paper", "learning": {"steps": 16}}``.
        encoder: another network than the recipe's: a registered name, ``EncoderSettings``, or a ``torch.nn.Module`` of
            your own, which is copied; a file holds its weights alone: ``daband.load(path, encoder=module)``.
        feedback: what a reward tells: "bandit" (of that arm alone), or "one_hot" where exactly one arm pays 1
            and all others 0, without noise, so that a reward of 1 tells of every arm. Never guessed.
        alpha: how much of the width is added to the predicted reward; the recipe's own by default.
        ridge: the penalty of the head's regressions.
        arms: "disjoint" (one context a round, a regression per arm) or "shared" (one context per arm, one regression).
        explore: "ucb", "greedy", or "thompson" (disjoint arms only).
        epsilon: the probability with which an arm is drawn evenly instead.
        reward_range: the smallest and largest reward, in any unit; others are refused. "auto" estimates it.
        transform: put in front of the encoder, e.g. ``daband.PCA(64)``.
        device: "auto" (a GPU where there is one), "cpu", "cuda", "cuda:1", ...
        seed: decides initial weights, batches, ties and draws.

    >>> policy = daband.NeuralLinUCB(context_shape=(8,), n_arms=3, recipe="small", seed=0)
    >>> skipped = policy.update([[1.0] * 8] * 64, [0] * 64, [1.0] * 64)
    >>> measured = policy.adapt(steps=2)
    >>> "loss" in measured
    True
    """

    source_terms_only: ClassVar[bool] = True
    """Whether the name of a recipe means that recipe without the target's terms."""
    learns_by_gradients = True
    locks_state = False  # encoding takes long; the state lock is held for what the head does

    def __init__(
        self,
        *,
        context_shape: Sequence[int],
        n_arms: int,
        recipe: str | Recipe | Mapping[str, Any] | None = None,
        encoder: str | EncoderSettings | nn.Module | None = None,
        feedback: str = "bandit",
        alpha: float | None = None,
        ridge: float = 1.0,
        arms: ArmModel = "disjoint",
        explore: Literal["ucb", "greedy", "thompson"] = "ucb",
        epsilon: float = 0.0,
        reward_range: RewardRange = (0.0, 1.0),
        transform: Any = None,
        device: str = "auto",
        seed: int = 0,
    ) -> None:
        super().__init__(
            context_shape=context_shape,
            n_arms=n_arms,
            arms=arms,
            reward_range=reward_range,
            transform=transform,
            seed=seed,
        )
        if feedback not in FEEDBACKS:
            raise InvalidInput(f"feedback must be one of {', '.join(FEEDBACKS)}, got {feedback!r}")
        self.feedback = feedback
        self.device_setting = device
        chosen = resolve_recipe(recipe, context_shape=self.feature_shape, source_terms_only=self.source_terms_only)
        self.recipe = with_encoder(chosen, encoder)
        # Networks of daband's own take images with the channels first; any other gets contexts as they are.
        of_ours = self.recipe.encoder.name in ("auto", "conv", "pretrained")
        self._layout = image_layout(self.feature_shape) if of_ours else None
        self._encoded_shape = channels_first_shape(self.feature_shape) if of_ours else self.feature_shape
        self._device = device_named(device)
        check_head_memory(n_arms=self.n_arms, dim=self.recipe.encoder.latent.dimension, arms=arms, primal=True)
        self._learner = Learner(
            recipe=self.recipe,
            feature_shape=self._encoded_shape,
            n_arms=self.n_arms,
            shared=arms == "shared",
            feedback=feedback,
            seed=self.seed,
            device=self._device,
            module=encoder if isinstance(encoder, nn.Module) else None,
        )
        head = RidgeHead(
            n_arms=self.n_arms,
            dim=self._learner.encoder.dimension,
            arms=arms,
            ridge=checked_number("ridge", ridge),
            exploration=Exploration(
                explore,
                checked_number("alpha", self.recipe.alpha if alpha is None else alpha),
                checked_number("epsilon", epsilon),
            ),
            seed=self.seed,
            form="primal",
        )
        weight = self.recipe.learning.linear_weight
        self._linear_part: LinearPart | None = None
        if weight > 0 and math.prod(self.feature_shape) <= LARGEST_INPUT:
            self._linear_part = LinearPart(
                feature_shape=self._encoded_shape,
                n_arms=self.n_arms,
                arms=arms,
                ridge=head.ridge,
                exploration=head.exploration,
                weight=weight,
                seed=self.seed,
            )
        self._publish(self._learner.acting_copy(), head)
        self._buffers = self._fresh_buffers(self.n_arms)
        self._target_alone: ReplayBuffers | None = None
        self._rate = 0.0
        self._prior: FloatArray | None = None
        self._refitted_at = 0
        self._warned_no_target = False
        self._warned_large_pixels = False

    @property
    def counts(self) -> IntArray:
        """How many rounds each regression of the head holds: (K,), or (1,) with shared arms."""
        return self._head.statistics.counts

    def latent(self, contexts: AnyArray, domain: str = "source") -> FloatArray:
        """The features that the head works on: (B, d), or (B, K, d) with shared arms."""
        checked = self._checked_contexts(contexts)
        checked_domain(domain)
        return self._encode(self._published.encoder, self._transformed(checked), domain)

    def settings(self) -> dict[str, Any]:
        exploration = self._head.exploration
        return {
            **super().settings(),
            "recipe": self.recipe.settings(),
            "feedback": self.feedback,
            "alpha": exploration.alpha,
            "ridge": self._head.ridge,
            "explore": exploration.rule,
            "epsilon": exploration.epsilon,
            "device": self.device_setting,
        }

    def timed_parts(self) -> list[tuple[str, object, str]]:
        parts = {"_take_steps": "step", "_encode": "features", "_call_head": "head", "_fit_head": "head"}
        return [(part, self, method) for method, part in parts.items()]

    # What Policy asks for.

    def _transformed(self, contexts: AnyArray) -> AnyArray:
        return channels_first(super()._transformed(contexts), self._layout)

    def _decide(
        self, contexts: AnyArray, domain: str, available: BoolArray | None, first_round: int, rule: str | None
    ) -> Decision:
        published = self._published  # once: its parts belong together
        head, available = self._head_for(self._acting(published), contexts, available)
        features = self._features(published, contexts, domain)
        return self._call_head(head.decide, features, first_round=first_round, available=available, rule=rule)

    def _acting(self, published: Published) -> RidgeHead | AveragedHeads:
        """What decides: the head of the network, or both heads."""
        if published.linear is None:
            return published.head
        return AveragedHeads(published.head, published.linear, published.weight)

    def _features(self, published: Published, contexts: AnyArray, domain: str) -> FloatArray:
        """What decisions rest on: latents (B, d), or (B, K, d) with shared arms, and the linear part's features."""
        latents = self._encode(published.encoder, contexts, domain)
        if published.linear is None or self._linear_part is None:
            return latents
        return np.concatenate([latents, self._linear_part.features(contexts)], axis=-1)

    def _learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: str) -> None:
        self._warn_of_large_pixels(contexts)
        encoder, head = self._published[:2]
        self._call_head(head.learn, self._encode(encoder, contexts, domain), arms, rewards)
        if self._linear_part is not None:
            self._call_head(self._linear_part.learn, contexts, arms, rewards)
        self._remember(contexts, arms, rewards, domain)

    @property
    def propensity_weightings(self) -> tuple[str, ...]:
        # Pseudo-rewards leave [0, 1], where the cross-entropy has no minimum. Steps on the latest rounds draw none.
        return ("flattened", "importance", "none") if self.recipe.replay.sampling == "all" else ("none",)

    def _learn_weighted(
        self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: str, weights: FloatArray
    ) -> None:
        self._warn_of_large_pixels(contexts)
        encoder, head = self._published[:2]
        self._call_head(head.learn, self._encode(encoder, contexts, domain), arms, rewards, weights)
        if self._linear_part is not None:
            self._call_head(self._linear_part.learn, contexts, arms, rewards, weights)
        self._remember(contexts, arms, rewards, domain, weights)

    def _probabilities(
        self, contexts: AnyArray, domain: str, available: BoolArray | None, rule: str | None
    ) -> FloatArray:
        published = self._published
        head, available = self._head_for(self._acting(published), contexts, available)
        features = self._features(published, contexts, domain)
        return self._call_head(head.probabilities, features, available=available, rule=rule)

    def _play(
        self, contexts: AnyArray, rewards: FloatArray, domain: str, available: BoolArray | None, first_round: int
    ) -> Decision:
        self._warn_of_large_pixels(contexts)
        published = self._published
        head, features = self._acting(published), self._features(published, contexts, domain)
        d = self._call_head(head.play, features, rewards, first_round=first_round, available=available)
        self._remember(contexts, d.arm, rewards[np.arange(len(contexts)), d.arm], domain)
        return d

    def _check_unit_rewards(self, rewards: FloatArray) -> None:
        if self.feedback != "one_hot" or np.isin(rewards, (0.0, 1.0)).all():
            return
        low, high = self.reward_range
        wrong = rewards[(rewards != 0.0) & (rewards != 1.0)][0] * (high - low) + low
        raise InvalidInput(
            f"feedback='one_hot' means that one arm pays {high:g} and all others {low:g}, got a reward of {wrong:g}; "
            "use feedback='bandit', where a reward tells of the pulled arm alone"
        )

    @property
    def prepared(self) -> bool:
        # Once rounds were learned, the next refit fits the linear part to the contexts they had.
        part = self._linear_part
        waiting = part is not None and not part.fitted and self.rounds_learned == 0
        return super().prepared and not waiting

    def _prepare(self, contexts: Sequence[AnyArray]) -> None:
        if self._linear_part is not None:
            self._linear_part.fit_transform(*contexts)
            self._publish(self._published.encoder, self._head)

    def _observe(self, contexts: AnyArray) -> None:
        self._warn_of_large_pixels(contexts)
        if self._learner.uses_target:
            self._buffers.target.add(contexts)

    @property
    def can_discount(self) -> bool:
        part = self._linear_part
        return self._head.can_discount and (part is None or part.head.can_discount)

    def _trust_prior(self, discounts: tuple[float, ...]) -> None:
        with self._state_lock:
            head = copy.copy(self._head)
            head.trust_prior(discounts)
            if self._linear_part is not None:
                self._linear_part.head = copy.copy(self._linear_part.head)
                self._linear_part.head.trust_prior(discounts)
            self._publish(self._published.encoder, head)

    def _head_for(
        self, head: RidgeHead | AveragedHeads, contexts: AnyArray, available: BoolArray | None
    ) -> tuple[RidgeHead | AveragedHeads, BoolArray | None]:
        """The head and the mask for contexts checked before another thread added an arm, which is not offered here."""
        if self.arms == "shared" and contexts.shape[1] != head.n_arms:
            head = head.with_arms(contexts.shape[1])
        elif self.arms == "disjoint" and available is not None and available.shape[1] < head.n_arms:
            available = np.pad(available, ((0, 0), (0, head.n_arms - available.shape[1])))
        return head, available

    def _call_head(
        self, method: Callable[Arguments, Result], *arguments: Arguments.args, **keywords: Arguments.kwargs
    ) -> Result:
        """Call a method of a head that other threads may be reading."""
        with self._state_lock:
            return method(*arguments, **keywords)

    def _freeze(self, domain: str) -> FrozenParts:
        published = self._published
        settings = self.recipe.encoder
        network = freeze_encoder(
            published.encoder.network, name=settings.name, options=settings.options, domain=DOMAINS.index(domain)
        )
        acting, members = self._acting(published), [Member(*published.head.frozen(), network=network)]
        if isinstance(acting, AveragedHeads):
            assert self._linear_part is not None
            shares = ((1.0 - acting.weight, acting.shares[0]), (acting.weight, acting.shares[1]))
            step = copy.deepcopy(self._linear_part.transform.frozen())
            members.append(Member(*acting.second.frozen(), transform=step))
            members = [
                dataclasses.replace(member, share=share, width_share=width)
                for member, (share, width) in zip(members, shares, strict=True)
            ]
        reference = None
        if self.transform is None and self._layout in (None, "channels_first"):  # contexts are kept as they came
            buffer = self._buffers.source if domain == "source" else self._buffers.target
            reference = buffer.contexts[: min(len(buffer), MOST_CONTEXTS)].cpu().numpy() if len(buffer) else None
        return FrozenParts(
            tuple(members),
            published.head.exploration,
            self.counts.copy(),
            layout=self._layout,
            reference=reference,
            seen_target=len(self._buffers.target) > 0,
        )

    def _grow(self) -> None:
        if self.arms == "shared":
            # Stored rounds hold one context per arm, and the new arm has none in them. The head keeps what they taught
            # it: the next refit waits until there are as many rounds again, or it would forget more than it mends.
            self._buffers = self._fresh_buffers(self.n_arms + 1)
        head = copy.deepcopy(self._head)
        head.add_arm()
        self._learner.grow()
        self._prior = None
        if self._linear_part is not None:
            self._linear_part.head = self._linear_part.grow()
        self._publish(self._published.encoder, head)

    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        arrays = {f"head.{name}": array for name, array in self._head.state(rounds=replay).items()}
        arrays.update({f"learner.{name}": array for name, array in self._learner.state().items()})
        buffers = self._buffers if replay else self._fresh_buffers(self.n_arms)
        arrays.update({f"replay.{name}": array for name, array in buffers.state().items()})
        if self._linear_part is not None:
            linear = self._linear_part.state(rounds=replay)
            arrays.update({f"linear.{name}": array for name, array in linear.items()})
        if self._prior is not None:
            arrays["prior"] = self._prior
        arrays["rate"] = np.array([self._rate])
        arrays["refitted_at"] = np.array([self._refitted_at if replay else self._rounds_in_head()], np.int64)
        return arrays

    def _restore(self, state: dict[str, AnyArray]) -> None:
        def below(prefix: str) -> dict[str, AnyArray]:
            return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}

        self._head.restore(below("head."))
        self._learner.restore(below("learner."))
        if self._linear_part is not None:
            self._linear_part.restore(below("linear."))
        self._publish(self._learner.acting_copy(), self._head)
        self._buffers.restore(below("replay."))
        self._rate = float(state["rate"][0])
        self._prior = state.get("prior")
        self._refitted_at = int(state["refitted_at"][0])

    # Its own parts.

    def _remember(
        self,
        contexts: AnyArray,
        arms: IntArray,
        rewards: FloatArray,
        domain: str,
        weights: FloatArray | None = None,
    ) -> None:
        if self._linear_part is not None:
            self._linear_part.count(contexts, domain)
        if domain != "source":
            self._buffers.target_rounds.add_rounds(contexts, arms, rewards, weights)
        else:
            self._buffers.source.add_rounds(contexts, arms, rewards, weights)
            fading = _RATE_DECAY ** np.arange(len(rewards) - 1, -1, -1)
            self._rate = float(self._rate * _RATE_DECAY ** len(rewards) + (1 - _RATE_DECAY) * (fading @ rewards))

    def _warn_of_large_pixels(self, contexts: AnyArray) -> None:
        """Floating-point images are taken as they are, and networks learn worse from pixels of 0..255."""
        if self._warned_large_pixels or self._layout is None or contexts.dtype.kind != "f":
            return
        largest = float(contexts.max())
        if largest > _LARGEST_PIXEL:
            self._warned_large_pixels = True
            warnings.warn(
                f"contexts are images of floating-point numbers up to {largest:g}; pass them as uint8, or divide them "
                "by 255, so that pixels lie in [0, 1]",
                stacklevel=5,
            )
