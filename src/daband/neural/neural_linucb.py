"""Define Neural-LinUCB [1]_: LinUCB on the features of an encoder that is trained during the run.

The head, ridge regressions on the encoder's features (``RidgeHead``), predicts rewards and explores.
After an episode, ``adapt`` takes gradient steps on stored rounds (``Learner``). ``EncoderPolicy``
creates and saves these parts. As in the paper, the head is not fitted again after these steps, so
its sums contain features that earlier encoders computed.

References:
    .. [1] Xu, Wen, Zhao, Gu: "Neural contextual bandits with deep representation and shallow
       exploration", 2020.
"""

from __future__ import annotations

import numpy as np

from daband.base._arrays import AnyArray, FloatArray, Mask, Weights
from daband.linear._draws import make_seeded_draw
from daband.linear._exploration import Decision
from daband.linear._joint_ridge import JointHead
from daband.linear._predictor import ContextStep, Predictor
from daband.neural._accelerator import take_steps
from daband.neural._encoder_policy import EncoderPolicy
from daband.neural.encoders._encoder import limit_threads
from daband.neural.encoders._frozen_encoder import TorchNetwork
from daband.policies._registered import policies
from daband.rounds._rounds import Rounds


@policies.register("nlinucb")
class NeuralLinUCB(EncoderPolicy):
    """LinUCB on the features of a neural encoder.

    Args:
        recipe: a name ("default", "default-rpd", "paper", "small"); a ``Recipe``; or a mapping that
            changes a named recipe, by default "default": ``{"base": "paper", "learning": {"steps":
            16}}``. This class uses only the source regret of a named recipe.
        encoder: a network that replaces the recipe's network: a registered name,
            ``EncoderSettings``, or a custom ``torch.nn.Module``, which is copied and gets contexts
            as they are. A saved policy contains the weights of a custom module, but not its code:
            load it with ``daband.load(path, encoder=module)``.
        feedback: the information in a reward: "bandit" (only about the played arm), or "one_hot" if
            exactly one arm has reward 1 and all others 0, without noise. With "one_hot", a reward
            other than 1 is learned as bandit feedback.
        alpha: the factor of the confidence bonus; by default the recipe's ``alpha``.
        explore: the rule of exploration; by default the recipe's ``explore``, which is "ucb" in the
            recipe "paper".
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

    # Choose arms and learn rounds.

    def _predictor(self, domain: int) -> Predictor:
        network = TorchNetwork(self._encoder, domain)
        step = ContextStep(self.feature_shape, network, self._image_input.layout)
        units = self._compute_units()
        return self._head.predictor(self.reward_moments.centre, units).after(step)

    @property
    def has_seen_target(self) -> bool:
        return any(map(len, self.buffers.unlabelled))

    def _play(
        self,
        contexts: AnyArray,
        rewards: FloatArray,
        domain: int,
        available: Mask,
        first_round: int,
        weights: Weights,
    ) -> Decision:
        inputs = self._image_input.check_and_convert(contexts)
        features = self._encoder.encode(inputs, domain)
        with self._locks.state:
            decision = self._head.play(
                features,
                rewards,
                exploration=self.exploration,
                draw_from=lambda row: make_seeded_draw(self._draw_key, first_round + row),
                moments=self.reward_moments,
                available=available,
                weights=weights,
                is_target=domain >= self._first_target,
            )
            arms = decision.arm
            received_rewards = rewards[np.arange(len(contexts)), arms]
            if self._updates_skill_gate(domain):
                self.learner.skill_gate.add(decision.mean, arms, received_rewards)
            self.buffers.rounds[domain].add_rounds(inputs, arms, received_rewards, weights)
        return decision

    def _learn(self, rounds: Rounds, domain: int) -> None:
        arms, rewards = rounds.arms, rounds.rewards
        weights = self._weigh(rounds)
        inputs = self._image_input.check_and_convert(rounds.contexts)
        features = self._encoder.encode(inputs, domain)
        with self._locks.state:  # a fork waits for it, so that its child has complete buffers
            if self._updates_skill_gate(domain):
                centre = self.reward_moments.centre
                predictions, _ = self._head.score(features, centre=centre, with_bonuses=False)
                self.learner.skill_gate.add(predictions, arms, rewards)
            self._head.learn(
                features,
                arms,
                rewards,
                weights,
                target_moments=self.reward_moments if domain >= self._first_target else None,
            )
            self.buffers.rounds[domain].add_rounds(inputs, arms, rewards, weights)

    def _learn_full(self, contexts: AnyArray, rewards: FloatArray, domain: int) -> None:
        inputs = self._image_input.check_and_convert(contexts)
        features = self._encoder.encode(inputs, domain)
        rows, arms = np.divmod(np.arange(rewards.size), rewards.shape[1])
        moments = self.reward_moments
        with self._locks.state:
            predictions, _ = self._head.score(features, centre=moments.centre, with_bonuses=False)
            self._head.learn(
                features[rows],
                arms,
                rewards.ravel(),
                target_moments=moments if domain >= self._first_target else None,
            )
            self._add_to_moments(rewards.ravel(), arms)
            self.rounds_learned += rewards.size
        if self._updates_skill_gate(domain):
            chosen_arms = predictions.argmax(axis=1)
            chosen_rewards = rewards[np.arange(len(rewards)), chosen_arms]
            self.learner.skill_gate.add(predictions, chosen_arms, chosen_rewards)
        if self.feedback == "one_hot":  # a reward of 1 reveals the other rewards
            rows, arms = np.arange(len(rewards)), rewards.argmax(axis=1)
        self.buffers.rounds[domain].add_rounds(inputs[rows], arms, rewards[rows, arms])

    def _observe(self, contexts: AnyArray, domain: int) -> None:
        inputs = self._image_input.check_and_convert(contexts)
        if self.learner.uses_target:
            self.buffers.unlabelled[domain - self.domains.first_target].add(inputs)

    # Train the encoder.

    def _adapt(self, steps: int | None) -> dict[str, float]:
        n_steps = self.start_steps(steps)
        if n_steps == 0:
            return {}
        learner = self.learner
        try:
            # both branches take the same steps; on a GPU, a step is recorded once and replayed
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
        n_steps = self.steps_per_adapt if steps is None else steps
        if n_steps == 0:
            return 0
        learner = self.learner
        learner.start(self.buffers, self._compute_coefficients(), self.reward_moments)
        if not learner.layout.labelled:
            return 0
        if learner.needs_target and not learner.layout.unlabelled:
            self._warn_without_target()
        return n_steps

    def _compute_coefficients(self) -> FloatArray:
        """Return the head's coefficients (heads, d) in the unit of ``reward_moments``."""
        head = self._head
        moments = self.reward_moments
        if isinstance(head, JointHead):
            with self._locks.state:
                head.fit_penalties(moments)
            theta, _ = head.predictor(moments.centre, 1.0).get_arm_heads(with_bonuses=False)
        else:
            theta = head.statistics.compute_coefficients(moments.centre)
        return theta / moments.scale

    def finish_steps(self, n_steps: int) -> dict[str, float]:
        """Use the trained encoder for decisions, and return the metrics of ``n_steps`` steps.

        If the steps diverged, undo them and raise ``TrainingDiverged``.
        """
        metrics = self.learner.finish(n_steps)
        self._encoder = self.learner.copy_acting_encoder()
        return metrics
