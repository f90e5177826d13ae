"""Combine policies: a ``Mixture`` predicts a weighted mean of its members' predictions.

A network overfits a small table, and extrapolates badly to contexts far from its training data.
Ridge regression does neither, but cannot fit nonlinear functions. A member has a large weight if it
predicted rounds well before it learned them. ``linear/_mixture_weights.py`` computes the weights,
and bounds the error relative to the best mixture. The confidence bonus is a mean of the members'
bonuses, because the error of a mean of predictions is at most the mean of their errors. Its weights
are fixed, unless one member uses arm features: for an arm with few rounds, that member then has
more weight, in predictions and in bonuses (``Mixture._predictor``).

Members are ordinary policies. A member has one weight in predictions and another one in the bonus,
because a regression that explores well need not predict well.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar, Self

import numpy as np

from daband.base._arguments import check_finite, check_one_of
from daband.base._arrays import (
    AnyArray,
    Arrays,
    BoolArray,
    FloatArray,
    IntArray,
    Mask,
    Weights,
    add_prefix,
    drop_prefix,
    take_chosen,
)
from daband.errors import InvalidInput
from daband.linear._draws import make_seeded_draw
from daband.linear._exploration import Decision, join_decisions
from daband.linear._joint_ridge import JointHead
from daband.linear._mixture_weights import MixtureWeights, find_revealed_predictions
from daband.linear._predictor import MixturePredictor, Predictor
from daband.linear._ridge_head import BLOCK_ROUNDS, BlockScores
from daband.linear._source_worth import WorthEstimate
from daband.policies._checkpoints import collect_arrays, restore_arrays
from daband.policies._default_members import MAX_SMALL_DIM, build_mixture_settings
from daband.policies._incoming_rounds import SeenContexts
from daband.policies._pair_defaults import build_policy_for_pair
from daband.policies._policy import (
    Policy,
    check_and_transform,
    learn_transformed,
    make_predictor,
    predict,
)
from daband.policies._registered import policies
from daband.policies._ridge import Constant, LinUCB
from daband.policies._self_training import SelfTraining
from daband.policies._trees import MAX_ARMS, Trees
from daband.rounds._rounds import Rounds

#: Maximum number of members. The time to compute weights doubles with each member, since every
#: subset is tried.
_MAX_MEMBERS = 12
#: Approximate maximum number of contexts per domain to which principal components are fitted.
_MAX_PCA_ROWS = 4096
#: Maximum number of numbers per context for trees among the default members. They are fitted quickly
#: up to this number.
_MAX_TREE_DIM = 512


@policies.register("mixture")
class Mixture(Policy):
    """A policy that averages the predictions of other policies, weighted by how well each one
    predicts.

    Args:
        members: policies by name, for contexts of this shape after ``transform``; by default a
            ``LinUCB``, a ``Constant`` and, with at most 512 numbers per context and 128 arms,
            ``Trees``. The mixture copies them, and trains the copies.
        prior: the weight of each member in predictions before the first round; equal by default.
        bonus_weights: the weight of each member's bonus, ``prior`` by default, or 1 for the
            ``LinUCB`` among the default members. The bonus is also
            multiplied by the member's ``alpha``. If only one member uses arm features, it has more
            weight for an arm with few rounds.
        learn_weights: if False, keep the weights of ``prior``, e.g. for members that differ only in
            their seed.
        feedback: "bandit", or "one_hot" if exactly one arm has reward 1 and all others 0. With
            "one_hot", a reward of 1 reveals the rewards of all arms. For contexts of at most 64
            numbers, the errors of members are then computed over all arms.
        settings: the settings of every policy (``daband.Policy``). ``alpha`` is 1 by default.
            ``transform`` is applied before all members.

    >>> shape = {"context_shape": (2,), "n_arms": 2}
    >>> policy = daband.Mixture(**shape, members={"linear": daband.LinUCB(**shape), "mean": daband.Constant(**shape)})
    >>> skipped = policy.update([[1.0, 0.0], [0.0, 1.0]] * 50, [0, 1] * 50, [0.0, 1.0] * 50)
    >>> policy.select([[0.0, 1.0]]).arm.tolist()
    [1]
    >>> sorted(policy.weights)
    ['linear', 'mean']
    """

    default_settings: ClassVar = {"alpha": 1.0}
    locks_state = False  # a member may learn for long without the lock
    order_matters = True  # a member's errors depend on what it had learned before

    def __init__(
        self,
        *,
        members: Mapping[str, Policy] | None = None,
        prior: Mapping[str, float] | None = None,
        bonus_weights: Mapping[str, float] | None = None,
        learn_weights: bool = True,
        feedback: str = "bandit",
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.feedback: str = check_one_of("feedback", feedback, ("bandit", "one_hot"))
        if members is None:
            common_settings: dict[str, Any] = {
                "context_shape": self.feature_shape,
                "n_arms": self.n_arms,
                "arms": self.arms,
                "seed": self.seed,
                "standardise_rewards": self.standardise_rewards,
                "domains": self.domains,
            }
            members = {"linucb": LinUCB(**common_settings), "constant": Constant(**common_settings)}
            is_small = math.prod(self.feature_shape) <= _MAX_TREE_DIM and self.n_arms <= MAX_ARMS
            if is_small and self.arms == "disjoint":
                members["trees"] = Trees(**common_settings)
            bonus_weights = bonus_weights or {name: float(name == "linucb") for name in members}
        #: The members by name.
        self.members: dict[str, Policy] = self._check_members(members)
        self._prior = _check_weights("prior", prior, self.members)
        bonus_weights = prior if bonus_weights is None else bonus_weights
        self._bonus_weights = _check_weights("bonus_weights", bonus_weights, self.members)
        self._mixture_weights = MixtureWeights(self._prior)
        if self._fixed_worth is not None:
            self._set_fixed_worth(self._fixed_worth)
        self.learn_weights: bool = check_one_of("learn_weights", learn_weights, (True, False))
        #: The learned contexts. Errors on these contexts are too small to measure a member.
        self._seen_contexts = SeenContexts()
        joint_indices = [
            index
            for index, member in enumerate(self.members.values())
            if _uses_arm_features(member)
        ]
        has_one_joint = len(joint_indices) == 1
        if joint_indices and not has_one_joint and len(joint_indices) < len(self.members):
            raise InvalidInput("members: arm features may be used by one member, or by all members")
        #: The index of the only member that uses arm features, or None. Predictions of the other
        #: members are averaged with its predictions (``_predictor``).
        self._joint_index = joint_indices[0] if has_one_joint else None
        self.catalogue = _find_given([member.catalogue for member in self.members.values()])
        is_small_context = math.prod(self.feature_shape) <= MAX_SMALL_DIM
        self._uses_all_arm_errors = (
            is_small_context and self.feedback == "one_hot" and self.arms == "disjoint"
        )
        self.learns_by_gradients = any(
            member.learns_by_gradients for member in self.members.values()
        )

    def _check_members(self, members: Mapping[str, Policy]) -> dict[str, Policy]:
        """Return copies of the members, sorted by name, after checking that they fit the
        mixture.
        """
        if not isinstance(members, Mapping) or not 1 <= len(members) <= _MAX_MEMBERS:
            raise InvalidInput(
                f"members must be a mapping with 1 to {_MAX_MEMBERS} policies by name, got"
                f" {members!r}"
            )
        if not all(
            isinstance(name, str) and isinstance(member, Policy) and not isinstance(member, Mixture)
            for name, member in members.items()
        ):
            raise InvalidInput(
                f"members must be policies by name that are not mixtures, got {members!r}"
            )
        # sorted, as in a saved file
        copies = {name: copy.deepcopy(members[name]) for name in sorted(members)}
        for name, member in copies.items():
            member._locks = self._locks
            for setting, expected in (
                ("context_shape", self.feature_shape),
                ("n_arms", self.n_arms),
                ("arms", self.arms),
                ("domains", self.domains),
            ):
                if getattr(member, setting) != expected:
                    raise InvalidInput(
                        f"members: {name!r} has {setting} {getattr(member, setting)!r}, the mixture"
                        f" needs {expected!r}"
                    )
        return copies

    @classmethod
    def for_pair(cls, pair: Any, **settings: Any) -> Self:
        """Return a mixture for a ``daband.domains.Pair``.

        ``settings`` are arguments of this class, or ``recipe``, ``encoder`` and ``device`` for the
        network. ``network=False`` omits the network. ``policies/_default_members.py`` chooses the
        default members.
        """
        if "members" in settings:
            return build_policy_for_pair(cls, pair, settings)
        return build_policy_for_pair(cls, pair, build_mixture_settings(pair, settings))

    @property
    def weights(self) -> dict[str, float]:
        """The current weight of each member in predictions, by name."""
        return dict(zip(self.members, self._mixture_weights.weights.tolist(), strict=True))

    @property
    def joint_member(self) -> Policy | None:
        """The member that uses arm features, the first one if all members do, or None."""
        return next(
            (member for member in self.members.values() if _uses_arm_features(member)), None
        )

    @property
    def counts(self) -> IntArray:
        """The number of learned rounds per arm, (K,), or in total, (1,), if arms are shared. It is
        that of the first member with ``counts``.
        """
        members = self.members.values()
        return _find_given([getattr(member, "counts", None) for member in members])

    def settings(self) -> dict[str, Any]:
        members = {
            name: {**member.settings(), "policy": member.name}
            for name, member in self.members.items()
        }
        return {
            **super().settings(),
            "members": members,
            "prior": dict(zip(members, self._prior.tolist(), strict=True)),
            "bonus_weights": dict(zip(members, self._bonus_weights.tolist(), strict=True)),
            "feedback": self.feedback,
            "learn_weights": self.learn_weights,
        }

    @property
    def prepared(self) -> bool:
        return super().prepared and all(member.prepared for member in self.members.values())

    @property
    def adapts_to_target(self) -> bool:
        return any(member.adapts_to_target for member in self.members.values())

    def plan(self, episodes: int) -> None:
        for member in self.members.values():
            member.plan(episodes)

    def _get_source_worth(self) -> WorthEstimate | None:
        """Return the mean of the members' estimates, with the weights of their predictions."""
        estimates = [member.source_worth for member in self.members.values()]
        weights = self._mixture_weights.weights * [estimate is not None for estimate in estimates]
        if not weights.any():
            return None
        values = [(0.0, 0.0) if estimate is None else estimate for estimate in estimates]
        return WorthEstimate(*np.average(values, axis=0, weights=weights).tolist())

    def _set_fixed_worth(self, worth: float | None) -> None:
        super()._set_fixed_worth(worth)
        for member in self.members.values():
            member._set_fixed_worth(worth)

    # Deciding.

    def _predictor(self, domain: int) -> Predictor:
        members = list(self.members.values())
        weights = self._mixture_weights.weights[:, None]
        bonus_weights = self._bonus_weights[:, None]
        alphas = np.array([[member.exploration.alpha] for member in members])
        new_weights = None
        if self._joint_index is not None:
            # The other members predict an arm with few rounds badly, so their predictions for this
            # arm are averaged with those of the member that uses arm features.
            separate = self._compute_separate_weights(members)
            joint = np.zeros_like(weights)
            joint[self._joint_index] = 1.0
            weights = separate * weights + (1.0 - separate) * joint
            bonus_weights = separate * bonus_weights + (1.0 - separate) * joint
            new_weights = np.hstack([joint, alphas * joint]).T
        bonus_weights = alphas * bonus_weights
        predictor = MixturePredictor(
            members=tuple(make_predictor(member, domain) for member in members),
            weights=weights,
            bonus_weights=bonus_weights,
            new_weights=new_weights,
        )
        return predictor.without_unused()

    def _compute_separate_weights(self, members: Sequence[Policy]) -> FloatArray:
        """Return the weight n / (n + d) of each arm's separate regressions after n rounds on d
        features, (K,).

        The rest of the weight is that of the regression on arm features, which learns from the
        rounds of all arms.
        """
        assert self._joint_index is not None
        joint_member = members[self._joint_index]
        with joint_member._locks.state:
            counts = joint_member.counts  # type: ignore[attr-defined]
        return counts / (counts + math.prod(self.feature_shape))

    @property
    def has_seen_target(self) -> bool:
        return any(member.has_seen_target for member in self.members.values())

    def _get_reference(self, domain: int) -> AnyArray | None:
        if self.transform is not None:  # members store transformed contexts
            return None
        members = self.members.values()
        return _find_given([member._get_reference(domain) for member in members])

    # Learning.

    def _learn(self, rounds: Rounds, domain: int) -> None:
        is_new = self._find_new_contexts(rounds.contexts, domain)
        for rows in self._split_rounds(len(is_new), domain):
            self._learn_block(rounds.select(rows), is_new[rows], domain)

    def _learn_full(self, contexts: AnyArray, rewards: FloatArray, domain: int) -> None:
        is_new = self._find_new_contexts(contexts, domain)
        for rows in self._split_rounds(len(is_new), domain):
            self._learn_full_block(contexts[rows], rewards[rows], is_new[rows], domain)

    def _split_rounds(self, n_rounds: int, domain: int) -> Iterator[slice]:
        """Yield the rounds that are learned together: all, or in a target those of one block."""
        start = 0
        while start < n_rounds:
            is_target = self.domains.is_target(domain)
            stop = start + self._get_block_length(domain) if is_target else n_rounds
            yield slice(start, stop)
            start = stop

    def _get_block_length(self, domain: int) -> int:
        """Return the number of rounds after which a member may change beyond learning them."""
        is_target = self.domains.is_target(domain)
        heads = [member._head for member in self.members.values() if hasattr(member, "_head")]
        lengths = (head.get_block_length(is_target=is_target) for head in heads)
        return min(lengths, default=BLOCK_ROUNDS)

    def _find_new_contexts(self, contexts: AnyArray, domain: int) -> BoolArray:
        """Return a mask (B,) of the contexts whose rounds determine the weights.

        They were not learned before. Once there are target rounds, source rounds have no effect on
        the weights.
        """
        is_new = self._seen_contexts.add(contexts) & self.learn_weights
        in_target = self.domains.is_target(domain)
        if in_target and not self._mixture_weights.is_in_target and self.learn_weights:
            self._mixture_weights.start_target()
        return is_new & (in_target == self._mixture_weights.is_in_target)

    def _learn_block(self, rounds: Rounds, is_new: BoolArray, domain: int) -> None:
        """Record the members' errors in the rounds ``is_new``, before all members learn."""
        members = list(self.members.values())
        features = [check_and_transform(member, rounds.contexts, domain) for member in members]
        if is_new.any():
            means = self._predict_by_member(rounds.contexts[is_new], domain)
            self._record_errors(means, rounds.arms[is_new], rounds.rewards[is_new])
        for member, member_features in zip(members, features, strict=True):
            learn_transformed(member, dataclasses.replace(rounds, contexts=member_features), domain)

    def _learn_full_block(
        self, contexts: AnyArray, rewards: FloatArray, is_new: BoolArray, domain: int
    ) -> None:
        """Record the members' errors over all arms of the contexts ``is_new``, before all members
        learn the rewards (B, K).
        """
        members = list(self.members.values())
        features = [check_and_transform(member, contexts, domain) for member in members]
        if is_new.any():
            means = self._clip_to_rewards(self._predict_by_member(contexts[is_new], domain))
            predictions = means.reshape(-1, len(members))
            deviation = self.reward_moments.scale
            self._mixture_weights.add(
                predictions, rewards[is_new].ravel(), reward_deviation=deviation
            )
        for member, member_features in zip(members, features, strict=True):
            member._learn_full(member_features, rewards, domain)
        arms = np.tile(np.arange(self.n_arms), len(rewards))
        self._add_to_moments(rewards.ravel(), arms)
        self.rounds_learned += rewards.size

    def _predict_by_member(self, contexts: AnyArray, domain: int) -> FloatArray:
        """Return the predictions (B, K, M) of each member."""
        members = list(self.members.values())
        means = [predict(member, contexts, domain, with_bonuses=False)[0] for member in members]
        if self._joint_index is not None:
            separate = self._compute_separate_weights(members)
            joint_mean = means[self._joint_index]
            means = [separate * mean + (1.0 - separate) * joint_mean for mean in means]
        return np.stack(means, axis=2)

    def _play(
        self,
        contexts: AnyArray,
        rewards: FloatArray,
        domain: int,
        available: Mask,
        first_round: int,
        weights: Weights,
    ) -> Decision:
        members = list(self.members.values())
        in_target = self.domains.is_target(domain)
        are_predictable = all(
            (hasattr(member, "_get_head_and_features") or (isinstance(member, Trees) and not bonus))
            and not (in_target and isinstance(member, SelfTraining))
            for member, bonus in zip(members, self._bonus_weights, strict=True)
        )
        if self.arms == "shared" or self.joint_member is not None or not are_predictable:
            return super()._play(contexts, rewards, domain, available, first_round, weights)
        member_features = [check_and_transform(member, contexts, domain) for member in members]
        is_new = self._find_new_contexts(contexts, domain)
        decisions: list[Decision] = []
        start = 0
        while start < len(contexts):
            rows = slice(start, start + self._get_block_length(domain))
            mask = None if available is None else available[rows]
            block_weights = None if weights is None else weights[rows]
            block_features = [features[rows] for features in member_features]
            block: list[tuple[Any, AnyArray]] = list(zip(members, block_features, strict=True))
            heads_and_features = [
                member._get_head_and_features(features, domain)
                for member, features in block
                if not isinstance(member, Trees)
            ]
            scores = BlockScores(*zip(*heads_and_features, strict=True))
            fixed = {
                index: member.predict_fixed(features)
                for index, (member, features) in enumerate(block)
                if isinstance(member, Trees)
            }
            decision = self._play_block(
                scores, fixed, rewards[rows], is_new[rows], mask, first_round + start, block_weights
            )
            received_rewards = take_chosen(rewards[rows], decision.arm)
            for member, features in block:
                played = Rounds(features, decision.arm, received_rewards, weights=block_weights)
                learn_transformed(member, played, domain)
            decisions.append(decision)
            start = rows.stop
        return join_decisions(decisions)

    def _play_block(
        self,
        scores: BlockScores,
        fixed: Mapping[int, tuple[FloatArray, BoolArray]],
        rewards: FloatArray,
        is_new: BoolArray,
        available: Mask,
        first_round: int,
        round_weights: Weights,
    ) -> Decision:
        """Choose arms round by round, and update ``scores`` of regressions after each.

        ``fixed`` has the predictions of trees (``Trees.predict_fixed``), by the index of the member.
        The members learn all rounds afterwards.
        """
        own_moments = self.reward_moments
        exploration = self.exploration
        alphas = [[member.exploration.alpha] for member in self.members.values()]
        bonus_weights = np.array(alphas) * self._bonus_weights[:, None]
        member_moments = [copy.copy(member.reward_moments) for member in self.members.values()]
        regressions = [index for index in range(len(member_moments)) if index not in fixed]
        decisions = []
        for row in range(len(rewards)):
            row_slice = slice(row, row + 1)
            centres = np.array([[moments.centre] for moments in member_moments])
            units = np.array([moments.compute_units(self.n_arms) for moments in member_moments])
            means, bonuses = np.zeros((2, len(member_moments), self.n_arms))
            means[regressions], bonuses[regressions] = scores.score(
                row, centre=centres[regressions], scale=units[regressions]
            )
            for index, (fixed_means, is_fixed) in fixed.items():
                shrunk_means = member_moments[index].compute_shrunk_means(self.n_arms)
                means[index] = np.where(is_fixed, fixed_means[row], shrunk_means)
            mean = (self._mixture_weights.weights @ means)[None]
            bonus = (bonus_weights * bonuses).sum(axis=0)[None]
            mask = None if available is None else available[row_slice]
            draw = make_seeded_draw(self._draw_key, first_round + row)
            scaling = own_moments.make_scaling(self._compute_units())
            decisions.append(exploration.decide(mean, bonus, draw, mask, scaling))
            arm = decisions[-1].arm
            reward = rewards[row_slice, arm[0]]
            weight = None if round_weights is None else round_weights[row_slice]
            if is_new[row]:
                self._record_errors(means.T[None], arm, reward)
            scores.learn(row, arm, reward, weight)
            for moments in member_moments:
                moments.add(reward, arm, weight)
            self._add_to_moments(reward, arm, weight)
        return join_decisions(decisions)

    def _record_errors(self, means: FloatArray, arms: IntArray, rewards: FloatArray) -> None:
        """Update the weights by the errors of predictions ``means`` (B, K, M), made before the
        rounds are learned.
        """
        means = self._clip_to_rewards(means)
        if self._uses_all_arm_errors:
            predictions, rewards = find_revealed_predictions(means, arms, rewards)
        else:
            predictions = take_chosen(means, arms)
        deviation = self.reward_moments.scale
        self._mixture_weights.add(predictions, rewards, reward_deviation=deviation)

    def _clip_to_rewards(self, means: FloatArray) -> FloatArray:
        """Return predictions, clipped to the range of the learned rewards."""
        moments = self.reward_moments
        return np.clip(means, moments.low, moments.high) if moments.low < moments.high else means

    def _prepare(self, contexts: Sequence[AnyArray]) -> None:
        for member in self.members.values():
            if not member.prepared:
                batches = contexts
                if getattr(member.transform, "components", None) is not None:
                    batches = [batch[:: max(1, len(batch) // _MAX_PCA_ROWS)] for batch in contexts]
                member.prepare(*batches)

    def _observe(self, contexts: AnyArray, domain: int) -> None:
        members = list(self.members.values())
        member_features = [check_and_transform(member, contexts, domain) for member in members]
        for member, features in zip(members, member_features, strict=True):
            member._observe(features, domain)

    def _adapt(self, steps: int | None) -> dict[str, float]:
        members = list(self.members.values())
        adapt_together = getattr(members[0], "adapt_together", None)
        results = (
            None if adapt_together is None or len(members) == 1 else adapt_together(members, steps)
        )
        if results is None:
            results = [member.adapt(steps) for member in members]
        return {
            name: fmean(other[name] for other in results if name in other)
            for result in results
            for name in result
        }

    def _grow(self) -> None:
        grown_members = copy.deepcopy(self.members)  # if an arm cannot be added, no member changes
        catalogue = self.catalogue
        for member in grown_members.values():
            member._locks = self._locks
            if member.catalogue is None:
                member.add_arm()
            else:
                member._catalogue = catalogue
                member._grow()
                member.n_arms += 1
        self.members = grown_members

    # Files.

    def _state(self, *, replay: bool = True) -> Arrays:
        arrays = add_prefix("weights/", self._mixture_weights.state())
        arrays["seen"] = self._seen_contexts.state() if replay else np.zeros(0, np.int64)
        for index, member in enumerate(self.members.values()):
            member_arrays = collect_arrays(member, replay=replay)
            arrays |= add_prefix(f"member.{index}/", member_arrays)
        return arrays

    def _restore(self, state: Arrays) -> None:
        self._mixture_weights.restore(drop_prefix("weights/", state))
        self._seen_contexts.restore(state["seen"])
        for index, member in enumerate(self.members.values()):
            restore_arrays(member, drop_prefix(f"member.{index}/", state))


def _uses_arm_features(member: Policy) -> bool:
    """Return True if the member is a regression on products with arm features."""
    return isinstance(getattr(member, "_head", None), JointHead)


def _check_weights(
    name: str, weights_by_name: Mapping[str, float] | None, members: Mapping[str, Policy]
) -> FloatArray:
    """Return the weights of the members (M,), scaled to a sum of 1; equal weights if
    ``weights_by_name`` is None.
    """
    if weights_by_name is None:
        return np.full(len(members), 1.0 / len(members))
    if not isinstance(weights_by_name, Mapping) or set(weights_by_name) != set(members):
        raise InvalidInput(
            f"{name} must have a weight for each of {', '.join(members)}, got {weights_by_name!r}"
        )
    weights = np.array(
        [check_finite(f"{name} of {member!r}", weights_by_name[member]) for member in members]
    )
    if not (weights >= 0.0).all() or not weights.sum() > 0.0:
        raise InvalidInput(
            f"{name} must have no negative weight, and at least one above 0, got"
            f" {weights_by_name!r}"
        )
    return weights / weights.sum()


def _find_given(values: list[Any]) -> Any:
    """Return the first value that is not None, or None."""
    return next((value for value in values if value is not None), None)
