"""Neural-LinUCB: LinUCB on the latent of an encoder that is learned on the way.

Xu, Wen, Zhao, Gu: "Neural contextual bandits with deep representation and shallow exploration" (2020). This class is
also all of DABand: the two differ in the weights of the objective's terms and in nothing else.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from daband.arrays import AnyArray, BoolArray, FloatArray, IntArray, checked_number
from daband.errors import InvalidInput, TrainingDiverged
from daband.learning.learner import Learner
from daband.learning.replay_buffer import ContextBuffer, ReplayBuffers, RoundBuffer
from daband.learning.settings import Recipe
from daband.linear import ArmModel, Decision, Exploration, RidgeHead
from daband.linear.head import check_head_memory
from daband.linear.primal import PrimalRidge
from daband.objectives import FEEDBACKS
from daband.policies.contract import Policy, policies
from daband.policies.input_checks import checked_domain
from daband.policies.recipes import resolve_recipe
from daband.policies.reward_scale import RewardRange

__all__ = ["NeuralLinUCB", "device_named"]

_RATE_MEMORY = 0.9 ** (1 / 64)
"""How much of the recent mean reward a round leaves in place: it spans some six hundred rounds."""
_STREAK_THAT_STOPS = 3


@policies.register("nlinucb")
class NeuralLinUCB(Policy):
    """LinUCB on learned features.

    Args:
        context_shape: the shape of one context.
        n_arms: how many arms there are; more can be added later.
        recipe: a name ("nlinucb", "default", "default-rpd", "paper"), a ``Recipe``, what ``Recipe.settings`` gave, or a
            change of a named one: ``{"base": "paper", "weights": {"adversarial": 5}}``; without ``base``, of the
            policy's own default.
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
    """

    default_recipe = "nlinucb"
    learns_by_gradients = True

    def __init__(
        self,
        *,
        context_shape: Sequence[int],
        n_arms: int,
        recipe: str | Recipe | Mapping[str, Any] | None = None,
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
        chosen = self.default_recipe if recipe is None else recipe
        self.recipe = resolve_recipe(chosen, context_shape=self.feature_shape, default=self.default_recipe)
        self._device = device_named(device)
        check_head_memory(n_arms=self.n_arms, dim=self.recipe.encoder.latent.dimension, arms=arms, primal=True)
        self._learner = Learner(
            recipe=self.recipe,
            feature_shape=self.feature_shape,
            n_arms=self.n_arms,
            shared=arms == "shared",
            feedback=feedback,
            seed=self.seed,
            device=self._device,
        )
        self._head = RidgeHead(
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
        self._memories = self._fresh_memories()
        self._rate = 0.0
        self._refitted_at = 0
        self._warned_no_target = False

    @property
    def counts(self) -> IntArray:
        """How many rounds each regression of the head holds: (K,), or (1,) with shared arms."""
        return self._head.statistics.counts

    def latent(self, contexts: AnyArray, domain: str = "source") -> FloatArray:
        """The features that the head works on: (B, d), or (B, K, d) with shared arms."""
        checked = self._checked_contexts(contexts)
        checked_domain(domain)
        return self._learner.encode(self._transformed(checked), domain)

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
        head = [("head", self._head, method) for method in ("decide", "learn", "play", "refitted")]
        return [("step", self._learner, "adapt"), ("features", self._learner, "encode"), *head]

    # What Policy asks for.

    def _decide(
        self, contexts: AnyArray, domain: str, available: BoolArray | None, first_round: int, rule: str | None
    ) -> Decision:
        latents = self._learner.encode(contexts, domain)
        return self._head.decide(latents, first_round=first_round, available=available, rule=rule)

    def _learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: str) -> None:
        self._head.learn(self._learner.encode(contexts, domain), arms, rewards)
        self._remember(contexts, arms, rewards, domain)

    def _play(
        self, contexts: AnyArray, rewards: FloatArray, domain: str, available: BoolArray | None, first_round: int
    ) -> Decision:
        latents = self._learner.encode(contexts, domain)
        d = self._head.play(latents, rewards, first_round=first_round, available=available)
        self._remember(contexts, d.arm, rewards[np.arange(len(contexts)), d.arm], domain)
        return d

    def _observe(self, contexts: AnyArray) -> None:
        if self._learner.objective.needs_target:
            self._memories.target.add(contexts)

    def _adapt(self, steps: int | None) -> dict[str, float]:
        due = self.before_steps(steps)
        return self.after_steps(self._learner.adapt(due, self._memories)) if due else {}

    # For those who take the steps of several policies at once.

    @property
    def learner(self) -> Learner:
        """What learns by gradients."""
        return self._learner

    @property
    def memories(self) -> ReplayBuffers:
        """What steps draw from."""
        return self._memories

    def before_steps(self, steps: int | None) -> int:
        """Make ready for gradient steps, and say how many are due: 0 where there is nothing to learn from."""
        steps = self.recipe.learning.steps if steps is None else steps
        memories = self._memories
        if steps == 0 or not (len(memories.source) or len(memories.target_rounds)):
            return 0
        if self._learner.objective.needs_target and not len(memories.target) and not self._warned_no_target:
            self._warned_no_target = True
            warnings.warn(
                f"{self.name} has seen no target context, so it learns from the source alone, as Neural-LinUCB does; "
                "show it some with observe_target, or give daband.train a target",
                stacklevel=4,
            )
        statistics = self._head.statistics
        assert isinstance(statistics, PrimalRidge)
        alpha = self._head.exploration.alpha
        self._learner.take_head(statistics.theta, statistics.inverse, alpha=alpha, rate=self._rate)
        return steps

    def after_steps(self, measured: dict[str, float]) -> dict[str, float]:
        """Look at what steps measured, and refit the head where that is due."""
        streak = measured.pop("worst_streak", 0.0)
        if streak >= _STREAK_THAT_STOPS:
            raise TrainingDiverged(
                f"{int(streak)} gradient steps in a row had a loss or gradient that is not finite; they were skipped, "
                f"and training stops here. The last saved state is good; try a learning rate below "
                f"{self.recipe.learning.learning_rate:g}, or smaller weights"
            )
        if self._refit_is_due():
            self._refit()
            measured["refitted"] = 1.0
        measured["recent_reward"] = self._rate
        return measured

    def _grow(self) -> None:
        if self.arms == "shared":
            # Stored rounds hold one context per arm, and the new arm has none in them. The head keeps what they taught
            # it: the next refit waits until there are as many rounds again, or it would forget more than it mends.
            self._memories = self._fresh_memories(n_arms=self.n_arms + 1)
        self._head.add_arm()
        self._learner.grow()

    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        arrays = {f"head.{name}": array for name, array in self._head.state(rounds=replay).items()}
        arrays.update({f"learner.{name}": array for name, array in self._learner.state().items()})
        memories = self._memories if replay else self._fresh_memories()
        for part, memory in self._parts(memories):
            arrays.update({f"memory.{part}.{name}": array for name, array in memory.state().items()})
        arrays["rate"] = np.array([self._rate])
        arrays["refitted_at"] = np.array([self._refitted_at if replay else self._rounds_in_head()], np.int64)
        return arrays

    def _rounds_in_head(self) -> int:
        """How many rounds the head rests on.

        Written in place of the last refit where the replay buffers are left out, it makes the next refit wait for as
        many new rounds: an earlier one would forget more than it mends.
        """
        shown = self._memories.source.n_seen + self._memories.target_rounds.n_seen
        return shown if self._refitted_at <= shown else self._refitted_at + shown

    def _restore(self, state: dict[str, AnyArray]) -> None:
        def below(prefix: str) -> dict[str, AnyArray]:
            return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}

        self._head.restore(below("head."))
        self._learner.restore(below("learner."))
        for part, memory in self._parts(self._memories):
            memory.restore(below(f"memory.{part}."))
        self._rate = float(state["rate"][0])
        self._refitted_at = int(state["refitted_at"][0])

    # Its own parts.

    def _fresh_memories(self, n_arms: int | None = None) -> ReplayBuffers:
        lead = (self.n_arms if n_arms is None else n_arms,) if self.arms == "shared" else ()
        common = {
            "context_shape": (*lead, *self.feature_shape),
            "capacity": self.recipe.memory.capacity,
            "device": self._device,
            "place": self.recipe.memory.place,
            "latest": self.recipe.memory.replay == "last",
        }
        return ReplayBuffers(
            source=RoundBuffer(**common, seed=3 * self.seed),  # type: ignore[arg-type]
            target=ContextBuffer(**common, seed=3 * self.seed + 1),  # type: ignore[arg-type]
            target_rounds=RoundBuffer(**common, seed=3 * self.seed + 2),  # type: ignore[arg-type]
        )

    def _parts(self, memories: ReplayBuffers) -> list[tuple[str, ContextBuffer]]:
        return [
            ("source", memories.source),
            ("target", memories.target),
            ("target_rounds", memories.target_rounds),
        ]

    def _remember(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: str) -> None:
        memory = self._memories.source if domain == "source" else self._memories.target_rounds
        memory.add_rounds(contexts, arms, rewards)
        if domain == "source":
            fading = _RATE_MEMORY ** np.arange(len(rewards) - 1, -1, -1)
            self._rate = float(self._rate * _RATE_MEMORY ** len(rewards) + (1 - _RATE_MEMORY) * (fading @ rewards))

    def _refit_is_due(self) -> bool:
        settings = self.recipe.memory
        shown = self._memories.source.n_seen + self._memories.target_rounds.n_seen
        wait = max(settings.refit_after, int(settings.refit_growth * shown))
        # A young head rests on an encoder that changes fast: it is fitted anew more often, at little cost.
        wait = min(wait, max(1, shown // 8)) if shown < 8 * settings.refit_after else wait
        return settings.refit and shown - self._refitted_at >= wait

    def _refit(self) -> None:
        """Fit the head to every stored round, each once, with the features of the present encoder."""
        latents, arms, rewards = [], [], []
        for domain, memory in (("source", self._memories.source), ("target", self._memories.target_rounds)):
            n = len(memory)
            if n:
                latents.append(self._learner.encode(memory.contexts[:n], domain))
                arms.append(memory.arms[:n].cpu().numpy())
                rewards.append(memory.rewards[:n].cpu().numpy())
        rounds = np.concatenate(latents), np.concatenate(arms), np.concatenate(rewards)
        self._head.statistics = self._head.refitted(*rounds)
        self._refitted_at = self._memories.source.n_seen + self._memories.target_rounds.n_seen


def device_named(name: str) -> torch.device:
    """The device of this name; "auto" is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name) if isinstance(name, str) else None
    except RuntimeError:
        device = None
    if device is None or device.type == "meta":  # which holds no numbers
        raise InvalidInput(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidInput(f"device {name!r} was asked for, but no CUDA device is available; use device='auto'")
    return device
