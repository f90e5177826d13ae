"""Define the base class of policies that decide on the features of an encoder.

``EncoderPolicy`` has the parts of such a policy: a head of ridge regressions, an encoder, the
``Learner`` that trains it, and the replay buffers that gradient steps draw from. It creates them,
saves and restores them, and adds arms to them. ``NeuralLinUCB`` derives from it: it chooses arms,
learns rounds and takes gradient steps.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import nn

from daband.base._arguments import check_int, check_one_of
from daband.base._arrays import (
    AnyArray,
    FloatArray,
    IntArray,
    add_prefix,
    check_arms,
    check_number,
    drop_prefix,
)
from daband.features._catalogue import Catalogue
from daband.linear._joint_ridge import JointHead
from daband.linear._ridge_head import RidgeHead
from daband.neural._accelerator import adapt_together
from daband.neural._learner import Learner
from daband.neural._recipes import resolve_recipe
from daband.neural._replay import ReplayBuffers
from daband.neural._settings import EncoderSettings, Recipe
from daband.neural._term import FEEDBACKS
from daband.neural._torch_settings import find_device
from daband.neural.encoders._image_input import ImageInput
from daband.policies._mixture import Mixture
from daband.policies._policy import Policy, transform_contexts
from daband.serving._monitor import MAX_CONTEXTS

#: The number of members for ``members="auto"`` on a GPU. Five networks together take about three
#: times as long as one.
_N_GPU_MEMBERS = 5
#: The maximum number of steps per episode that ``plan`` sets to reach
#: ``LearningSettings.min_run_steps``.
_MAX_STEPS_PER_EPISODE = 32


class EncoderPolicy(Policy):
    """A policy that decides by ridge regressions (``RidgeHead``) on the features of an encoder.

    ``NeuralLinUCB`` describes the arguments.
    """

    #: True if this class uses only the source regret of a named recipe.
    source_only: ClassVar[bool] = True
    learns_by_gradients = True
    scale_matters = True
    # encoding takes long, so the state lock is held only while the head is used
    locks_state = False

    def __init__(
        self,
        *,
        recipe: str | Recipe | Mapping[str, Any] | None = None,
        encoder: str | EncoderSettings | nn.Module | None = None,
        feedback: str = "bandit",
        alpha: float | None = None,
        explore: str | None = None,
        ridge: float = 1.0,
        device: str = "auto",
        catalogue: Catalogue | None = None,
        **settings: Any,
    ) -> None:
        self.feedback: str = check_one_of("feedback", feedback, FEEDBACKS)
        if feedback == "one_hot":
            settings["standardise_rewards"] = False
        super().__init__(**settings)
        self.device_setting = device
        self.catalogue = catalogue
        self.recipe = resolve_recipe(
            recipe,
            encoder=encoder,
            context_shape=self.feature_shape,
            n_arms=self.n_arms,
            source_only=self.source_only,
            shift=self.shift,
            transform=self.transform,
            catalogue=catalogue,
        )
        self.alpha = self.recipe.alpha if alpha is None else alpha
        self.explore = self.recipe.explore if explore is None else explore
        takes_images = self.recipe.encoder.name in ("auto", "conv")
        self._image_input = ImageInput(self.feature_shape, takes_images=takes_images)
        dim = self.recipe.encoder.dense.dimension
        ridge = check_number("ridge", ridge)
        self._head: RidgeHead
        if catalogue is None:
            self._head = RidgeHead(n_arms=self.n_arms, dim=dim, arms=self.arms, ridge=ridge)
        else:
            self._head = JointHead(
                vectors=catalogue.vectors, dim=dim, ridge=ridge, has_unit_norm=True
            )
        self._set_fixed_worth(self._fixed_worth)
        #: The encoder and all other state that gradient steps change.
        self.learner = Learner(
            recipe=self.recipe,
            context_shape=self._image_input.shape,
            n_arms=self.n_arms,
            has_shared_arms=self.arms == "shared",
            feedback=feedback,
            seed=self.seed,
            device=find_device(device),
            standardise_rewards=self.standardise_rewards,
            module=encoder if isinstance(encoder, nn.Module) else None,
            domains=self.domains,
            has_intercept=catalogue is not None,
        )
        #: A copy of the encoder, which decides until ``adapt`` replaces it.
        self._encoder = self.learner.copy_acting_encoder()
        #: The number of gradient steps of one ``adapt``; ``plan`` may increase it.
        self.steps_per_adapt = self.recipe.learning.steps
        #: The replay buffers that steps draw from.
        self.buffers = self._make_buffers(self.n_arms)
        self._has_warned = False

    # Policies that differ in their seed, as the members of a mixture.

    @classmethod
    def for_pair(cls, pair: Any, **settings: Any) -> Any:
        """Return a policy for a ``daband.domains.Pair``; see ``Policy.for_pair``.

        A custom module as ``encoder`` gets contexts as the pair has them, unless a ``transform`` is
        given.

        With ``members=5``, return a ``Mixture`` of five policies that differ only in their seed
        (``seed``, ``seed + 1``, ...). All of them learn the same rounds. Arms and pseudo-labels are
        chosen by the mean of their predictions, so that the result depends less on the seed.
        ``members="auto"`` is 5 on a GPU and 1 on a CPU.
        """
        if isinstance(settings.get("encoder"), nn.Module):
            settings.setdefault("transform", None)
        n_members = settings.pop("members", 1)
        if n_members == "auto":
            device = find_device(settings.get("device", "auto"))
            n_members = _N_GPU_MEMBERS if device.type == "cuda" else 1
        if check_int("members", n_members, minimum=1) == 1:
            return super().for_pair(pair, **settings)
        first_seed = settings.pop("seed", 0)
        members = {
            f"seed-{seed}": cls.for_pair(pair, seed=seed, **settings)
            for seed in range(first_seed, first_seed + n_members)
        }
        options: dict[str, Any] = {"transform": None, "learn_weights": False}
        options |= {name: settings[name] for name in ("explore", "epsilon") if name in settings}
        return Mixture.for_pair(pair, seed=first_seed, members=members, **options)

    @staticmethod
    def adapt_together(
        members: Sequence[Policy], steps: int | None
    ) -> list[dict[str, float]] | None:
        """Adapt the members of a mixture with common pseudo-labels, and return their metrics.

        Return None if the members differ in more than their seed.
        """
        settings = [{**member.settings(), "name": member.name, "seed": 0} for member in members]
        if any(member_settings != settings[0] for member_settings in settings):
            return None
        return adapt_together(members, steps)

    # Features.

    def _encode(self, contexts: AnyArray, domain: int) -> FloatArray:
        """Return the features of transformed contexts for the head."""
        return self._encoder.encode(self._image_input(contexts), domain)

    def encode(self, contexts: AnyArray, domain: str = "source") -> FloatArray:
        """Return the encoder's features for the head: (B, d), or (B, K, d) with shared arms.

        Args:
            contexts: (B, *context_shape).
            domain: the domain of the contexts.
        """
        return self._encode(transform_contexts(self, contexts, domain), self.domains.index(domain))

    def _get_head_and_features(
        self, contexts: AnyArray, domain: int
    ) -> tuple[RidgeHead, FloatArray]:
        """Return the regression head and the features of contexts, for ``Mixture``, which plays
        rounds in blocks.
        """
        return self._head, self._encode(contexts, domain)

    @property
    def counts(self) -> IntArray:
        """The number of rounds that each regression has learned from: (K,), or (1,) with shared
        arms.
        """
        return self._head.counts

    @property
    def adapts_to_target(self) -> bool:
        return self.learner.needs_target

    # Parts of learning, which ``NeuralLinUCB`` puts together.

    def _updates_skill_gate(self, domain: int) -> bool:
        """Return True if rounds of this domain update the ``SkillGate``, which scales the weights
        of target terms.
        """
        return self.learner.uses_gate and not self.domains.is_target(domain)

    def plan(self, episodes: int) -> None:
        if self.learner.step_number == 0:  # a resumed run keeps its plan
            min_steps = math.ceil(self.recipe.learning.min_run_steps / episodes)
            self.steps_per_adapt = max(self.steps_per_adapt, min(_MAX_STEPS_PER_EPISODE, min_steps))
            self.learner.run_steps = max(1, episodes * self.steps_per_adapt)

    def _warn_without_target(self) -> None:
        """Warn once that steps are taken without target contexts."""
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            f"{self.name} has seen no target context, so it learns from the source only, as"
            " Neural-LinUCB does; call observe_target, or pass a target to daband.train",
            stacklevel=5,
        )

    # Settings, new arms and files.

    def settings(self) -> dict[str, Any]:
        return {
            **super().settings(),
            "recipe": self.recipe.settings(),
            "feedback": self.feedback,
            "ridge": self._head.ridge,
            "device": self.device_setting,
        }

    def _grow(self) -> None:
        if self.arms == "shared":  # stored rounds have no context for the new arm
            self.buffers = self._make_buffers(self.n_arms + 1)
        self._head.add_arm(None if self.catalogue is None else self.catalogue.vectors[-1])
        self.learner.add_arm()

    def _make_buffers(self, n_arms: int) -> ReplayBuffers:
        """Return empty replay buffers for this number of arms."""
        arm_axis = (n_arms,) if self.arms == "shared" else ()
        return ReplayBuffers(
            (*arm_axis, *self._image_input.shape),
            self.recipe.replay,
            seed=self.seed,
            device=self.learner.device,
            domains=self.domains,
        )

    def _get_reference(self, domain: int) -> AnyArray | None:
        buffer = self.buffers.rounds[domain]
        if self.domains.is_target(domain):
            buffer = self.buffers.unlabelled[domain - self.domains.first_target]
        is_converted = self.transform is not None or self._image_input.shape != self.context_shape
        if is_converted or not len(buffer):
            return None
        return buffer.contexts[: len(buffer)][:MAX_CONTEXTS].cpu().numpy()

    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        buffers = self.buffers if replay else self._make_buffers(self.n_arms)
        arrays = add_prefix("head.", self._head.state())
        arrays |= add_prefix("learner.", self.learner.state())
        arrays |= add_prefix("replay.", buffers.state())
        return {**arrays, "steps": np.array([self.steps_per_adapt], np.int64)}

    def _restore(self, state: dict[str, AnyArray]) -> None:
        self._head.restore(drop_prefix("head.", state))
        self.learner.restore(drop_prefix("learner.", state))
        self._encoder = self.learner.copy_acting_encoder()
        self.buffers.restore(drop_prefix("replay.", state))
        for buffer in filter(len, self.buffers.rounds):
            check_arms(buffer.columns["arms"], len(buffer), self.n_arms)
        self.steps_per_adapt = check_int("steps", int(state["steps"][0]), minimum=0)
