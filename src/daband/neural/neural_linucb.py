"""Define Neural-LinUCB [1]_: LinUCB on the features of an encoder that is trained during the run.

The head, ridge regressions on the encoder's features (``RidgeHead``), predicts rewards and explores.
After an episode, ``adapt`` takes gradient steps on stored rounds (``Learner``). As in the paper, the
head is not fitted again after these steps, so its sums contain features that earlier encoders
computed.

References:
    .. [1] Xu, Wen, Zhao, Gu: "Neural contextual bandits with deep representation and shallow
       exploration", 2020.
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
    Mask,
    Weights,
    check_arms,
    check_number,
    drop_prefix,
)
from daband.features._catalogue import Catalogue
from daband.features._pair_like import PairLike
from daband.linear._draws import make_seeded_draw
from daband.linear._exploration import Decision
from daband.linear._joint_ridge import JointHead
from daband.linear._ridge import Ridge
from daband.linear._ridge_head import RidgeHead
from daband.neural._accelerator import adapt_together, take_steps
from daband.neural._learner import Learner
from daband.neural._recipes import resolve_recipe
from daband.neural._replay import ReplayBuffers
from daband.neural._settings import EncoderSettings, Recipe
from daband.neural._term import FEEDBACKS
from daband.neural._torch_settings import find_device
from daband.neural.encoders._encoder import limit_threads
from daband.neural.encoders._frozen_encoder import freeze_encoder
from daband.neural.encoders._image_input import ImageInput
from daband.policies._incoming_rounds import PlayedRounds
from daband.policies._mixture import Mixture
from daband.policies._policy import Policy, transform_contexts
from daband.policies._registered import policies
from daband.serving._frozen_policy import FrozenParts, Member
from daband.serving._monitor import MAX_CONTEXTS

#: The number of members for ``members="auto"`` on a GPU. Five networks together take about three
#: times as long as one.
_N_GPU_MEMBERS = 5
#: The maximum number of steps per episode that ``plan`` sets to reach
#: ``LearningSettings.min_run_steps``.
_MAX_STEPS_PER_EPISODE = 32


@policies.register("nlinucb")
class NeuralLinUCB(Policy):
    """LinUCB on the features of a neural encoder.

    Args:
        recipe: a name ("default", "default-rpd", "paper", "small"); a ``Recipe``; or a mapping that
            changes a named recipe, by default "default": ``{"base": "paper", "learning": {"steps":
            16}}``. This class uses named recipes without target terms, which are the parts of the
            loss that need target contexts.
        encoder: a network that replaces the recipe's network: a registered name,
            ``EncoderSettings``, or a custom ``torch.nn.Module``, which is copied and gets contexts
            as they are. A saved policy contains the weights of a custom module, but not its code:
            load it with ``daband.load(path, encoder=module)``.
        feedback: the information in a reward: "bandit" (only about the played arm), or "one_hot" if
            exactly one arm has reward 1 and all others 0, without noise. With "one_hot", a reward
            other than 1 is learned as bandit feedback.
        alpha: the factor of the confidence bonus; by default the recipe's ``alpha``.
        ridge: the penalty of the head's ridge regressions.
        device: "auto" (a GPU if available), "cpu", "cuda", "cuda:1", ...
        catalogue: the arms with their features (``pair.catalogue``). As in ``LinUCB``, there is
            then one regression for all arms, on products of the encoder's features and arm
            features. The encoder has fewer features if there would be more than 1,024 products.
        settings: the settings of every policy (``daband.Policy``). ``seed`` also determines initial
            weights and batches. ``shift`` determines which statistics normalise contexts, and which
            terms a named recipe has. Rewards of "one_hot" feedback are not standardised.

    >>> policy = daband.NeuralLinUCB(context_shape=(8,), n_arms=3, recipe="small", seed=0)
    >>> _ = policy.update([[1.0] * 8] * 64, [0] * 64, [1.0] * 64)
    >>> metrics = policy.adapt(steps=2)
    >>> "loss" in metrics
    True
    """

    #: True if this class uses named recipes without their target terms.
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
        takes_images = self.recipe.encoder.name in ("auto", "conv", "pretrained")
        self._image_input = ImageInput(self.feature_shape, takes_images=takes_images)
        dim = self.recipe.encoder.dense.dimension
        ridge = check_number("ridge", ridge)
        self._head: RidgeHead
        if catalogue is None:
            self._head = RidgeHead(
                n_arms=self.n_arms, dim=dim, arms=self.arms, ridge=ridge, form="primal"
            )
        else:
            vectors = catalogue.vectors
            self._head = JointHead(vectors=vectors, dim=dim, ridge=ridge, has_unit_norm=True)
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

    # Deciding and learning.

    def _encode(self, contexts: AnyArray, domain: int) -> FloatArray:
        """Return the features of transformed contexts for the head."""
        return self._encoder.encode(self._image_input(contexts), domain)

    def _score(
        self, contexts: AnyArray, domain: int, with_bonuses: bool
    ) -> tuple[FloatArray, FloatArray]:
        features = self._encode(contexts, domain)
        moments = self.reward_moments
        with self._locks.state:
            return self._head.score(
                features, centre=moments.centre, scale=moments.scale, with_bonuses=with_bonuses
            )

    def _learn(self, rounds: PlayedRounds, domain: int) -> None:
        contexts, arms, rewards, *_ = rounds
        weights = self._weigh(rounds)
        self._image_input.check_pixels(contexts)
        features = self._encode(contexts, domain)
        images = self._image_input(contexts)
        with self._locks.state:  # a fork waits for it, so that its child has complete buffers
            if self._updates_skill_gate(domain):
                centre = self.reward_moments.centre
                predictions, _ = self._head.score(features, centre=centre, with_bonuses=False)
                self.learner.skill_gate.add(predictions, arms, rewards)
            self._head.learn(features, arms, rewards, weights)
            self.buffers.rounds[domain].add_rounds(images, arms, rewards, weights)

    def _play(
        self,
        contexts: AnyArray,
        rewards: FloatArray,
        domain: int,
        available: Mask,
        first_round: int,
        weights: Weights,
    ) -> Decision:
        self._image_input.check_pixels(contexts)
        features = self._encode(contexts, domain)
        images = self._image_input(contexts)
        with self._locks.state:
            decision = self._head.play(
                features,
                rewards,
                exploration=self.exploration,
                draw_from=lambda row: make_seeded_draw(self._draw_key, first_round + row),
                moments=self.reward_moments,
                available=available,
                weights=weights,
            )
            arms = decision.arm
            received_rewards = rewards[np.arange(len(contexts)), arms]
            if self._updates_skill_gate(domain):
                self.learner.skill_gate.add(decision.mean, arms, received_rewards)
            self.buffers.rounds[domain].add_rounds(images, arms, received_rewards, weights)
        return decision

    def _updates_skill_gate(self, domain: int) -> bool:
        """Return True if rounds of this domain update the ``SkillGate``, which scales the weights
        of target terms.
        """
        return self.learner.uses_gate and not self.domains.is_target(domain)

    def _observe(self, contexts: AnyArray, domain: int) -> None:
        self._image_input.check_pixels(contexts)
        if self.learner.uses_target:
            buffer = self.buffers.unlabelled[domain - self.domains.first_target]
            buffer.add(self._image_input(contexts))

    def _adapt(self, steps: int | None) -> dict[str, float]:
        n_steps = self.start_steps(steps)
        if n_steps == 0:
            return {}
        learner = self.learner
        try:
            if learner.device.type == "cuda":
                take_steps([self], n_steps)
            else:
                with limit_threads(learner.needs_threads):
                    for batch in learner.draw_batches(self.buffers, n_steps):
                        learner.step(batch)
        except BaseException:
            learner.rewind()
            raise
        return self.finish_steps(n_steps)

    def start_steps(self, steps: int | None) -> int:
        """Copy the head's coefficients to the learner, and return the number of gradient steps to
        take.

        ``steps`` is by default the number that ``plan`` has set. The result is 0 if no rounds are
        stored.
        """
        learner = self.learner
        head = self._head
        moments = self.reward_moments
        n_steps = self.steps_per_adapt if steps is None else steps
        if n_steps == 0:
            return 0
        if isinstance(head, JointHead):
            with self._locks.state:
                head.fit_penalties(moments)
            theta, inverses = head.compute_regressions(moments.centre, learner.needs_bonus)
        else:
            statistics = head.statistics
            assert isinstance(statistics, Ridge)
            theta, inverses = statistics.compute_coefficients(moments.centre), statistics.A_inv
        learner.start(
            self.buffers, theta / moments.scale, inverses, self._exploration.alpha, moments
        )
        if not learner.layout.labelled:
            return 0
        if learner.needs_target and not learner.layout.unlabelled and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self.name} has seen no target context, so it learns from the source only, as"
                " Neural-LinUCB does; call observe_target, or pass a target to daband.train",
                stacklevel=4,
            )
        return n_steps

    def finish_steps(self, n_steps: int) -> dict[str, float]:
        """Use the trained encoder for decisions, and return the metrics of ``n_steps`` steps.

        If the steps diverged, undo them and raise ``TrainingDiverged``.
        """
        metrics = self.learner.finish(n_steps)
        self._encoder = self.learner.copy_acting_encoder()
        return metrics

    # The other methods of a policy.

    @classmethod
    def for_pair(cls, pair: PairLike, **settings: Any) -> Any:
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

    @property
    def counts(self) -> IntArray:
        """The number of rounds that each regression has learned from: (K,), or (1,) with shared
        arms.
        """
        return self._head.counts

    def encode(self, contexts: AnyArray, domain: str = "source") -> FloatArray:
        """Return the encoder's features for the head: (B, d), or (B, K, d) with shared arms.

        Args:
            contexts: (B, *context_shape).
            domain: the domain of the contexts.
        """
        return self._encode(transform_contexts(self, contexts, domain), self.domains.index(domain))

    def settings(self) -> dict[str, Any]:
        return {
            **super().settings(),
            "recipe": self.recipe.settings(),
            "feedback": self.feedback,
            "ridge": self._head.ridge,
            "device": self.device_setting,
        }

    @property
    def adapts_to_target(self) -> bool:
        return self.learner.needs_target

    def plan(self, episodes: int) -> None:
        if self.learner.step_number == 0:  # a resumed run keeps its plan
            min_steps = math.ceil(self.recipe.learning.min_run_steps / episodes)
            self.steps_per_adapt = max(self.steps_per_adapt, min(_MAX_STEPS_PER_EPISODE, min_steps))
            self.learner.run_steps = max(1, episodes * self.steps_per_adapt)

    @staticmethod
    def adapt_together(
        members: Sequence[Policy], steps: int | None
    ) -> list[dict[str, float] | Exception] | None:
        """Adapt the members of a mixture with common pseudo-labels, and return their metrics.

        Return None if the members differ in more than their seed.
        """
        settings = [{**member.settings(), "name": member.name, "seed": 0} for member in members]
        if any(member_settings != settings[0] for member_settings in settings):
            return None
        return adapt_together(members, steps, committee=True)

    def _get_head_and_features(
        self, contexts: AnyArray, domain: int
    ) -> tuple[RidgeHead, FloatArray]:
        """Return the regression head and the features of contexts, for ``Mixture``, which plays
        rounds in blocks.
        """
        return self._head, self._encode(contexts, domain)

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

    def _freeze(self, domain: int) -> FrozenParts:
        network = freeze_encoder(self._encoder.network, domain=domain)
        reference_contexts = None
        # contexts are stored unchanged
        if self.transform is None and self._image_input.layout in (None, "channels_first"):
            buffer = self.buffers.rounds[domain]
            if self.domains.is_target(domain):
                buffer = self.buffers.unlabelled[domain - self.domains.first_target]
            if len(buffer):
                reference_contexts = buffer.contexts[: min(len(buffer), MAX_CONTEXTS)].cpu().numpy()
        return FrozenParts(
            (Member(**self._head.freeze(self.reward_moments), network=network),),
            self.counts.copy(),
            layout=self._image_input.layout,
            reference=reference_contexts,
            has_seen_target=any(len(buffer) for buffer in self.buffers.unlabelled),
        )

    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        buffers = self.buffers if replay else self._make_buffers(self.n_arms)
        head_state = self._head.state(with_rounds=replay)
        states = {"head": head_state, "learner": self.learner.state(), "replay": buffers.state()}
        arrays = {
            f"{prefix}.{name}": array
            for prefix, state in states.items()
            for name, array in state.items()
        }
        return {**arrays, "steps": np.array([self.steps_per_adapt], np.int64)}

    def _restore(self, state: dict[str, AnyArray]) -> None:
        self._head.restore(drop_prefix("head.", state))
        self.learner.restore(drop_prefix("learner.", state))
        self._encoder = self.learner.copy_acting_encoder()
        self.buffers.restore(drop_prefix("replay.", state))
        for buffer in filter(len, self.buffers.rounds):
            check_arms(buffer.columns["arms"], len(buffer), self.n_arms)
        self.steps_per_adapt = check_int("steps", int(state["steps"][0]), minimum=0)
