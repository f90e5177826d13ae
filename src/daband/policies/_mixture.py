"""Combine policies: a ``Mixture`` predicts a weighted mean of its members' predictions.

A network overfits a small table, and extrapolates badly to contexts far from its training data.
Ridge regression does neither, but cannot fit nonlinear functions. A member has a large weight if it
predicted rounds well before it learned them. ``linear/_mixture_weights.py`` computes the weights,
and bounds the error relative to the best mixture. The confidence bonus is a mean of the members'
bonuses with fixed weights, because the error of a mean of predictions is at most the mean of their
errors.

Members are ordinary policies. ``Mixture.for_pair`` uses the members that did best on the
development half of the data sets (benchmarks/records/split.json). A member has one weight in
predictions and another one in the bonus, because a regression that explores well need not predict
well. With a small ridge penalty, the bonus of a context falls quickly once that context has been
seen, which explores well. For contexts of more than 64 numbers, a large penalty predicts better in
another domain.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from daband.base._arguments import check_finite, check_one_of
from daband.base._arrays import (
    AnyArray,
    BoolArray,
    FloatArray,
    IntArray,
    Mask,
    Weights,
    drop_prefix,
    read_array,
)
from daband.errors import InvalidInput
from daband.features._piecewise import Piecewise
from daband.features._shift import Shift, as_shift
from daband.features._standardise import Standardise
from daband.features._table_transform import CategoricalColumn
from daband.linear._draws import make_seeded_draw
from daband.linear._exploration import Decision, join_decisions
from daband.linear._joint_ridge import JointHead
from daband.linear._mixture_weights import MixtureWeights, find_revealed_predictions
from daband.linear._ridge_head import EpisodeScores
from daband.policies._checkpoints import collect_arrays, restore_arrays
from daband.policies._incoming_rounds import PlayedRounds, mask_new
from daband.policies._pair_defaults import (
    DEFAULT_JOINT_ALPHA,
    build_policy_for_pair,
    choose_transform,
    compute_default_alpha,
    compute_default_ridge,
    count_joint_components,
)
from daband.policies._policy import (
    Policy,
    check_and_transform,
    learn_transformed,
    score_transformed,
)
from daband.policies._registered import policies
from daband.policies._ridge import Constant, LinUCB
from daband.policies._self_training import SelfTraining
from daband.serving._frozen_policy import FrozenParts, Member

#: Maximum number of members. The time to compute weights doubles with each member, since every
#: subset is tried.
_MAX_MEMBERS = 12
#: The number of rounds whose covariances are computed at once. Memory grows with the square of this
#: number.
_BLOCK_ROUNDS = 64
#: Maximum number of stored context checksums; further contexts count as new.
_MAX_CHECKSUMS = 1 << 16
#: Maximum dimension of a small context. For small contexts, ``for_pair`` adds piecewise features,
#: and a one-hot reward of 1 counts for every arm in the members' errors.
_MAX_SMALL_DIM = 64
#: Maximum number of principal components of the regression on principal components.
_MAX_COMPONENTS = 64
#: Maximum dimension of contexts for which ``for_pair`` adds linear members to the network. For
#: larger contexts the only member is the network or, without torch, a regression on principal
#: components.
MAX_LINEAR_DIM = 4096
#: The factor by which a member's counts of chosen arms decay with each batch
#: (``_drop_collapsed_members``).
_COUNT_DECAY = 0.9
#: The number of consecutive batches of target contexts after which a member that chooses too few
#: arms is dropped.
_MAX_COLLAPSED_BATCHES = 10
#: Approximate maximum number of contexts per domain to which principal components are fitted.
_MAX_PCA_ROWS = 4096


@policies.register("mixture")
class Mixture(Policy):
    """A policy that averages the predictions of other policies, weighted by how well each one
    predicts.

    Args:
        members: policies by name, for contexts of this shape after ``transform``; by default a
            ``LinUCB`` and a ``Constant``. The mixture copies them, and trains the copies.
        prior: the weight of each member in predictions before the first round; equal by default.
        bonus_weights: the weight of each member's bonus, ``prior`` by default. The bonus is also
            multiplied by the member's ``alpha``.
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
    locks_state = False  # members hold their own locks
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
        #: The members by name.
        self.members: dict[str, Policy] = self._check_members(members)
        self._prior = _check_weights("prior", prior, self.members)
        bonus_weights = prior if bonus_weights is None else bonus_weights
        self._bonus_weights = _check_weights("bonus_weights", bonus_weights, self.members)
        self._mixture_weights = MixtureWeights(self._prior)
        self.learn_weights: bool = check_one_of("learn_weights", learn_weights, (True, False))
        #: The number of target contexts for which each member prefers each arm, decayed over
        #: batches, (M, K).
        self._arm_counts: FloatArray = np.zeros((len(self.members), self.n_arms))
        #: The number of latest consecutive batches of target contexts in which a member chose too
        #: few arms, (M,).
        self._collapsed_batches: IntArray = np.zeros(len(self.members), np.int64)
        #: Checksums of learned contexts. Errors on these contexts are too small to measure a
        #: member.
        self._seen_checksums: dict[int, None] = {}
        joint_indices = [
            index
            for index, member in enumerate(self.members.values())
            if _uses_arm_features(member)
        ]
        joint_members = [list(self.members.values())[index] for index in joint_indices]
        has_one_joint = len(joint_members) == 1 and not isinstance(joint_members[0], Mixture)
        if joint_members and not has_one_joint and len(joint_members) < len(self.members):
            raise InvalidInput(
                "members: arm features may be used by one member that is not a mixture, or by all"
                " members"
            )
        #: The index of the only member that uses arm features, or None. Predictions of the other
        #: members are averaged with its predictions (``_compute_arm_weights``).
        self._joint_index = joint_indices[0] if has_one_joint else None
        catalogues = (member.catalogue for member in self.members.values())
        self.catalogue = next(
            (catalogue for catalogue in catalogues if catalogue is not None), None
        )
        is_small_context = math.prod(self.feature_shape) <= _MAX_SMALL_DIM
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
            isinstance(name, str) and isinstance(member, Policy) for name, member in members.items()
        ):
            raise InvalidInput(f"members must be policies by name, got {members!r}")
        # sorted, as in a saved file
        copies = {name: copy.deepcopy(members[name]) for name in sorted(members)}
        for name, member in copies.items():
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
        """Return a mixture for a ``daband.domains.Pair``, with the members that did best on the
        development data sets.

        For vectors the members are a ridge regression on standardised numbers, the mean reward of
        every arm, and ``DABand`` if torch is installed. With at most 64 numbers there is also a
        regression on piecewise features. With more numbers there are also a regression on principal
        components, and a regression with a large penalty. If the source has labels, the latter also
        learns pseudo-labels of target contexts (``SelfTraining``). Tables with categorical columns
        have no such self-training: on 14 of these tables it changed the accuracy by -0.065 to
        0.050, and by -0.002 on average. For images the only member is ``DABand``.

        ``settings`` are arguments of this class, or ``recipe``, ``encoder`` and ``device`` for the
        network. ``network=False`` omits the network.
        """
        if "members" in settings:
            return build_policy_for_pair(cls, pair, settings)
        return build_policy_for_pair(cls, pair, _build_mixture_settings(pair, settings))

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
        """The number of learned rounds per arm, (K,)."""
        return next(member.counts for member in self.members.values() if hasattr(member, "counts"))

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

    # Deciding.

    def _score(
        self, contexts: AnyArray, domain: int, with_bonuses: bool
    ) -> tuple[FloatArray, FloatArray]:
        # Another thread may add an arm or change the weights meanwhile.
        members = list(self.members.values())
        weights = self._mixture_weights.weights
        mean, bonus = np.zeros((2, len(contexts), members[0].n_arms))
        joint_mean = mean
        joint_bonus = bonus  # replaced if one member uses arm features
        arm_weights = self._compute_arm_weights(members)
        bonus_scales = self._compute_bonus_scales()
        # the joint one first
        for index in sorted(range(len(members)), key=lambda index: index != self._joint_index):
            member = members[index]
            weight = weights[index]
            bonus_scale = bonus_scales[index]
            bonus_weight = self._bonus_weights[index]
            if not (weight or (bonus_weight and with_bonuses) or index == self._joint_index):
                continue
            features = check_and_transform(member, contexts, domain)
            needs_bonus = with_bonuses and (bonus_scale > 0.0 or index == self._joint_index)
            member_mean, member_bonus = score_transformed(member, features, domain, needs_bonus)
            if index == self._joint_index:
                joint_mean = member_mean
                joint_bonus = member.exploration.alpha * member_bonus
            elif self._joint_index is not None:
                member_mean = arm_weights * member_mean + (1.0 - arm_weights) * joint_mean
                bonus = bonus + bonus_weight * (1.0 - arm_weights) * joint_bonus
                member_bonus = arm_weights * member_bonus
            mean = weight * member_mean + mean
            bonus = bonus_scale * member_bonus + bonus
        return mean, bonus

    def _compute_arm_weights(self, members: Sequence[Policy]) -> FloatArray:
        """Return the weight n / (n + d) of each arm's separate regressions after n rounds on d
        features, (K,).

        The rest of the weight is that of the regression on arm features, which learns from the
        rounds of all arms.
        """
        if self._joint_index is None:
            return np.ones(members[0].n_arms)
        with members[self._joint_index]._locks.state:
            counts = members[self._joint_index].counts  # type: ignore[attr-defined]
        return counts / (counts + math.prod(self.feature_shape))

    def _compute_bonus_scales(self) -> FloatArray:
        """Return the factor of each member's bonus, (M,): its bonus weight times its ``alpha``."""
        return self._bonus_weights * np.array(
            [member.exploration.alpha for member in self.members.values()]
        )

    def _freeze(self, domain: int) -> FrozenParts:
        """Return frozen regressions of all members, whose weighted sum predicts as ``_score`` does.

        Members have their own centres of rewards. A constant regression adds the difference,
        ``offsets`` (K,).
        """
        parts_by_member = []
        moments = self.reward_moments
        offsets = np.zeros(self.n_arms)
        frozen_members: list[Member] = []
        arm_weights = self._compute_arm_weights(list(self.members.values()))
        bonus_scales = self._compute_bonus_scales()
        for index, member in enumerate(self.members.values()):
            parts = member._freeze(domain)
            member_moments = member.reward_moments
            weight = float(self._mixture_weights.weights[index])
            bonus_scale = float(bonus_scales[index])
            if index == self._joint_index:
                joint_weights = weight + (1.0 - arm_weights) * (1.0 - weight)
                alpha = member.exploration.alpha
                other_bonus_weight = self._bonus_weights.sum() - self._bonus_weights[index]
                joint_bonus_scales = bonus_scale + (1.0 - arm_weights) * alpha * other_bonus_weight
                weight = 1.0
                bonus_scale = alpha * self._bonus_weights.sum()
                bonus_factors = (
                    joint_bonus_scales / bonus_scale if bonus_scale else np.ones(self.n_arms)
                )
                arm_factors = np.stack([joint_weights, bonus_factors])
                joint_members = (
                    dataclasses.replace(frozen, arm_factors=arm_factors) for frozen in parts.members
                )
                parts = parts._replace(members=tuple(joint_members))
                offsets += (
                    (joint_weights - weight)
                    * (member_moments.centre - moments.centre)
                    / moments.scale
                )
            elif self._joint_index is not None:
                parts = parts._replace(
                    members=tuple(_scale_arms(frozen, arm_weights) for frozen in parts.members)
                )
                offsets += (
                    (arm_weights - 1.0)
                    * weight
                    * (member_moments.centre - moments.centre)
                    / moments.scale
                )
            frozen_transform = (
                None
                if member.transform is None
                else copy.deepcopy(member.transform.get_step(domain))
            )
            unit_ratio = member_moments.scale / moments.scale  # members predict in their own unit
            offsets += weight * (member_moments.centre - moments.centre) / moments.scale
            for frozen in parts.members:
                frozen_weight = weight * unit_ratio * frozen.weight
                frozen_bonus_weight = float(bonus_scale) * unit_ratio * frozen.bonus_weight
                if max(frozen_weight, frozen_bonus_weight) > 0.0:
                    transform = None if frozen.is_constant else frozen_transform
                    frozen_members.append(
                        _with_weights(frozen, frozen_weight, frozen_bonus_weight, transform)
                    )
            parts_by_member.append(parts)
        if offsets.any():
            no_inverse = np.zeros((self.n_arms, 0, 0))
            frozen_members.append(
                Member(offsets[:, None], no_inverse, bonus_weight=0.0, is_constant=True)
            )
        layouts = {
            parts.layout
            for parts in parts_by_member
            if not all(frozen.is_constant for frozen in parts.members)
        }
        if "channels_last" in layouts and len(layouts) > 1:
            raise InvalidInput(
                "images with channels last: a mixture of a network and other members cannot be"
                " exported"
            )
        return FrozenParts(
            tuple(frozen_members),
            next(
                (parts.round_counts for parts in parts_by_member if parts.round_counts is not None),
                None,
            ),
            layout=next((layout for layout in layouts if layout is not None), None),
            # with a transform, members store transformed contexts
            reference=next(
                (
                    parts.reference
                    for parts in parts_by_member
                    if parts.reference is not None and self.transform is None
                ),
                None,
            ),
            has_seen_target=any(parts.has_seen_target for parts in parts_by_member),
        )

    # Learning.

    def _learn(self, rounds: PlayedRounds, domain: int) -> None:
        contexts, arms, rewards, *_ = rounds
        member_features = [
            check_and_transform(member, contexts, domain) for member in self.members.values()
        ]
        checksums = _compute_checksums(contexts)
        is_new = self._find_new_contexts(checksums)
        if is_new.any():
            inputs = zip(self.members.values(), member_features, strict=True)
            means = [
                score_transformed(member, features[is_new], domain, False)[0]
                for member, features in inputs
            ]
            if self._joint_index is not None:
                arm_weights = self._compute_arm_weights(list(self.members.values()))
                means = [
                    arm_weights * mean + (1.0 - arm_weights) * means[self._joint_index]
                    for mean in means
                ]
            self._record_errors(np.stack(means, axis=2), arms[is_new], rewards[is_new])
        self._store_checksums(checksums)
        for member, features in zip(self.members.values(), member_features, strict=True):
            learn_transformed(member, rounds._replace(contexts=features), domain)

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
        are_regressions = all(
            hasattr(member, "_get_head_and_features")
            and not (in_target and isinstance(member, SelfTraining))
            for member in members
        )
        if self.arms == "shared" or self.joint_member is not None or not are_regressions:
            return super()._play(contexts, rewards, domain, available, first_round, weights)
        member_features = [check_and_transform(member, contexts, domain) for member in members]
        checksums = _compute_checksums(contexts)
        is_new = self._find_new_contexts(checksums)
        self._store_checksums(checksums)
        decisions = []
        for start in range(0, len(contexts), _BLOCK_ROUNDS):
            rows = slice(start, start + _BLOCK_ROUNDS)
            mask = None if available is None else available[rows]
            block_weights = None if weights is None else weights[rows]
            block_features = [features[rows] for features in member_features]
            block: list[tuple[Any, AnyArray]] = list(zip(members, block_features, strict=True))
            heads_and_features = [
                member._get_head_and_features(features, domain) for member, features in block
            ]
            scores = EpisodeScores(*zip(*heads_and_features, strict=True))
            decision = self._play_block(
                scores, rewards[rows], is_new[rows], mask, first_round + start, block_weights
            )
            received_rewards = rewards[rows][np.arange(len(decision.arm)), decision.arm]
            for member, features in block:
                played = PlayedRounds(features, decision.arm, received_rewards, block_weights)
                learn_transformed(member, played, domain)
            decisions.append(decision)
        return join_decisions(decisions)

    def _play_block(
        self,
        scores: EpisodeScores,
        rewards: FloatArray,
        is_new: BoolArray,
        available: Mask,
        first_round: int,
        round_weights: Weights,
    ) -> Decision:
        """Choose arms round by round, and update ``scores`` after each.

        The members learn all rounds afterwards.
        """
        own_moments = self.reward_moments
        exploration = self.exploration
        bonus_scales = self._compute_bonus_scales()
        member_moments = [copy.copy(member.reward_moments) for member in self.members.values()]
        decisions = []
        for row in range(len(rewards)):
            row_slice = slice(row, row + 1)
            centres = np.array([[moments.centre] for moments in member_moments])
            scales = np.array([[moments.scale] for moments in member_moments])
            means, bonuses = scores.score(row, centre=centres, scale=scales)
            mean = (self._mixture_weights.weights @ means)[None]
            bonus = (bonus_scales @ bonuses)[None]
            mask = None if available is None else available[row_slice]
            draw = make_seeded_draw(self._draw_key, first_round + row)
            decisions.append(
                exploration.decide(mean, bonus, draw, mask, (own_moments.centre, own_moments.scale))
            )
            arm = decisions[-1].arm
            reward = rewards[row_slice, arm[0]]
            weight = None if round_weights is None else round_weights[row_slice]
            if is_new[row]:
                self._record_errors(means.T[None], arm, reward)
            scores.learn(row, arm, reward, weight)
            for moments in (*member_moments, own_moments):
                moments.add(reward, weight)
        return join_decisions(decisions)

    def _record_errors(self, means: FloatArray, arms: IntArray, rewards: FloatArray) -> None:
        """Update the weights by the errors of predictions ``means`` (B, K, M), made before the
        rounds are learned.
        """
        moments = self.reward_moments
        if moments.low < moments.high:
            means = np.clip(means, moments.low, moments.high)
        if self._uses_all_arm_errors:
            predictions, rewards = find_revealed_predictions(means, arms, rewards)
        else:
            predictions = means[np.arange(len(arms)), arms]
        self._mixture_weights.add(predictions, rewards, reward_deviation=moments.scale)

    def _find_new_contexts(self, checksums: Sequence[int]) -> BoolArray:
        """Return a mask (B,) of the contexts that were not learned before and are not earlier in
        the batch.
        """
        return mask_new(checksums, self._seen_checksums) & self.learn_weights

    def _store_checksums(self, checksums: Sequence[int]) -> None:
        """Store checksums of learned contexts, up to ``_MAX_CHECKSUMS``."""
        n_free = _MAX_CHECKSUMS - len(self._seen_checksums)
        if n_free > 0:
            self._seen_checksums.update(dict.fromkeys(checksums[:n_free]))

    def _prepare(self, contexts: Sequence[AnyArray]) -> None:
        for member in self.members.values():
            if not member.prepared:
                batches = contexts
                if getattr(member.transform, "components", None) is not None:
                    batches = [batch[:: max(1, len(batch) // _MAX_PCA_ROWS)] for batch in contexts]
                member.prepare(*batches)

    def _observe(self, contexts: AnyArray, domain: int) -> None:
        member_features = [
            check_and_transform(member, contexts, domain) for member in self.members.values()
        ]
        for member, features in zip(self.members.values(), member_features, strict=True):
            member._observe(features, domain)
        if not self.learn_weights and len(member_features) > 1:
            self._drop_collapsed_members(member_features, domain)

    def _drop_collapsed_members(self, member_features: Sequence[AnyArray], domain: int) -> None:
        """Set the weight of collapsed members to 0.

        A collapsed member chooses too few of the arms in the target.

        The effective number of arms of a member is the exponential of the entropy of its choices. A
        member has collapsed if this number was below half of the members' median in each of the
        last ten batches of target contexts. It is then dropped, with a warning, until a batch in
        which it chooses more arms.
        """
        inputs = zip(self.members.values(), member_features, strict=True)
        means = [
            score_transformed(member, features, domain, False)[0] for member, features in inputs
        ]
        batch_counts = np.stack(
            [np.bincount(mean.argmax(axis=1), minlength=self.n_arms) for mean in means]
        )
        self._arm_counts = _COUNT_DECAY * self._arm_counts + batch_counts
        fractions = self._arm_counts / self._arm_counts.sum(axis=1, keepdims=True)
        n_arms_used = np.exp(-np.sum(fractions * np.log(np.maximum(fractions, 1e-300)), axis=1))
        uses_few_arms = n_arms_used < np.median(n_arms_used) / 2
        self._collapsed_batches = np.where(uses_few_arms, self._collapsed_batches + 1, 0)
        weights = self._prior * (self._collapsed_batches < _MAX_COLLAPSED_BATCHES)
        self._mixture_weights.weights = (
            weights / weights.sum() if weights.any() else self._prior.copy()
        )
        for index in np.flatnonzero(self._collapsed_batches == _MAX_COLLAPSED_BATCHES):
            warnings.warn(
                f"member {list(self.members)[index]!r} is dropped: it chooses about"
                f" {n_arms_used[index]:.1f} different arms in the target, the median member"
                f" {np.median(n_arms_used):.1f}",
                stacklevel=3,
            )

    def _adapt(self, steps: int | None) -> dict[str, float]:
        members = list(self.members.values())
        adapt_together = getattr(members[0], "adapt_together", None)
        results = (
            None if adapt_together is None or len(members) == 1 else adapt_together(members, steps)
        )
        metrics: dict[str, float] = {}
        for result in (member.adapt(steps) for member in members) if results is None else results:
            if isinstance(result, Exception):
                raise result
            metrics |= result
        return metrics

    def _grow(self) -> None:
        grown_members = copy.deepcopy(self.members)  # if an arm cannot be added, no member changes
        catalogue = self.catalogue
        for member in grown_members.values():
            if member.catalogue is None:
                member.add_arm()
            else:
                member._catalogue = catalogue
                member._grow()
                member.n_arms += 1
        self.members = grown_members
        self._arm_counts = np.pad(self._arm_counts, ((0, 0), (0, 1)))

    # Files.

    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        arrays = {f"weights/{name}": array for name, array in self._mixture_weights.state().items()}
        arrays |= {"arm_counts": self._arm_counts, "batches_collapsed": self._collapsed_batches}
        arrays["seen"] = np.array(list(self._seen_checksums) if replay else [], np.int64)
        for index, member in enumerate(self.members.values()):
            member_arrays = collect_arrays(member, replay=replay)
            arrays.update(
                {f"member.{index}/{name}": array for name, array in member_arrays.items()}
            )
        return arrays

    def _restore(self, state: dict[str, AnyArray]) -> None:
        self._mixture_weights.restore(drop_prefix("weights/", state))
        self._seen_checksums = dict.fromkeys(state["seen"].tolist())
        self._arm_counts = read_array(state, "arm_counts", self._arm_counts)
        self._collapsed_batches = read_array(state, "batches_collapsed", self._collapsed_batches)
        for index, member in enumerate(self.members.values()):
            restore_arrays(member, drop_prefix(f"member.{index}/", state))


def _uses_arm_features(member: Policy) -> bool:
    """Return True if the member is a regression on products with arm features, or a mixture with
    such a member.
    """
    has_joint_member = member.joint_member is not None if isinstance(member, Mixture) else False
    return has_joint_member or isinstance(getattr(member, "_head", None), JointHead)


def _compute_checksums(contexts: AnyArray) -> list[int]:
    """Return the checksum of each context."""
    rows = np.ascontiguousarray(contexts, None if contexts.dtype == np.uint8 else np.float32)
    return [zlib.crc32(row.tobytes()) for row in rows]


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


def _scale_arms(member: Member, arm_weights: FloatArray) -> Member:
    """Return a frozen member whose predictions and bonuses for each arm are multiplied by
    ``arm_weights``, (K,).
    """
    inverse = member.inverse * arm_weights[:, None, None] ** 2
    return dataclasses.replace(
        member, theta=member.theta * arm_weights[:, None], inverse=inverse, new_theta=None
    )


def _with_weights(member: Member, weight: float, bonus_weight: float, transform: Any) -> Member:
    """Return a frozen member with these weights and with ``transform``, if it is given."""
    if transform is not None and member.transform is not None:
        raise InvalidInput(
            "a mixture cannot be exported if both it and a mixture among its members have a"
            " transform"
        )
    inverse = member.inverse if bonus_weight > 0.0 else np.zeros((len(member.theta), 0, 0))
    transform = member.transform if transform is None else transform
    return dataclasses.replace(
        member, weight=weight, bonus_weight=bonus_weight, inverse=inverse, transform=transform
    )


# The members for a pair of domains.


def _build_mixture_settings(pair: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a mixture for a pair: ``settings``, and the members with their
    weights.
    """
    settings = dict(settings)
    has_network = settings.pop("network", True)
    network_settings: dict[str, Any] = {
        name: settings.pop(name) for name in ("recipe", "encoder", "device") if name in settings
    }
    shift = as_shift(
        settings.get("shift", getattr(pair, "shift", None)), context_shape=pair.context_shape
    )
    are_vectors = len(pair.context_shape) == 1
    if "transform" not in settings:
        # needs raw contexts
        has_custom_encoder = callable(getattr(network_settings.get("encoder"), "forward", None))
        must_standardise = are_vectors and not shift.aligns_features and not has_custom_encoder
        settings["transform"] = (
            choose_transform(LinUCB, pair, shift=shift) if must_standardise else None
        )
    transform = settings["transform"]
    feature_shape = (
        pair.context_shape if transform is None else (transform.n_features(pair.context_shape),)
    )
    if transform is not None:  # the given transform handles units
        shift_kinds = tuple(kind for kind in shift.kinds if kind != "units") or ("covariate",)
        shift = Shift(shift_kinds, stated=shift.stated)
    common_settings: dict[str, Any] = {
        "context_shape": feature_shape,
        "n_arms": pair.n_arms,
        "arms": pair.arms,
        "shift": shift,
        "standardise_rewards": settings.get("standardise_rewards", pair.feedback != "one_hot"),
        "seed": settings.get("seed", 0),
        "domains": getattr(pair, "domains", None),
    }
    catalogue = getattr(pair, "catalogue", None) if pair.arms == "disjoint" else None
    joint_settings = (
        {} if catalogue is None else {"alpha": DEFAULT_JOINT_ALPHA, "catalogue": catalogue}
    )
    has_linear_members = are_vectors and math.prod(feature_shape) <= MAX_LINEAR_DIM
    #: Members by name, each with its prior weight and its bonus weight.
    members: dict[str, tuple[Policy, float, float]] = {}
    if has_network and "daband" in policies:
        if isinstance(transform, Standardise) and "encoder" not in network_settings:
            network_settings["recipe"] = _disable_input_norm(network_settings.get("recipe"))
        network_settings |= {
            "feedback": pair.feedback,
            **({} if has_linear_members else joint_settings),
        }
        members["network"] = policies.get("daband")(**common_settings, **network_settings), 1.0, 1.0
    if has_linear_members:
        n_contexts = len(pair.source) + len(pair.target)
        columns = getattr(getattr(pair, "table", None), "columns", ())
        has_categories = any(isinstance(column, CategoricalColumn) for column in columns)
        self_trains = pair.feedback == "one_hot" and not has_categories
        members |= _build_linear_members(
            common_settings, transform, n_contexts=n_contexts, self_trains=self_trains
        )
        if catalogue is not None:
            n_components = count_joint_components(feature_shape, catalogue)
            joint_transform = None if n_components is None else Standardise(components=n_components)
            members["joint"] = (
                LinUCB(**common_settings, transform=joint_transform, **joint_settings),
                3.0,
                2.0,
            )
    elif not members:
        reduction = Standardise(
            components=min(_MAX_COMPONENTS, len(pair.source) + len(pair.target))
        )
        members["components"] = (
            LinUCB(**common_settings, transform=reduction, **joint_settings),
            1.0,
            1.0,
        )
    return {
        **settings,
        "members": {name: member for name, (member, _, _) in members.items()},
        "prior": {name: weight for name, (_, weight, _) in members.items()},
        "bonus_weights": {name: weight for name, (_, _, weight) in members.items()},
    }


def _build_linear_members(
    common_settings: dict[str, Any], transform: Any, *, n_contexts: int, self_trains: bool
) -> dict[str, tuple[Policy, float, float]]:
    """Return the members other than the network for vectors, each with its prior weight and its
    bonus weight.

    Args:
        common_settings: the settings that all members share.
        transform: the mixture's transform, or None.
        n_contexts: the number of contexts of both domains, which limits the number of principal
            components.
        self_trains: True if one member learns pseudo-labels of the target.
    """
    feature_shape = common_settings["context_shape"]
    is_disjoint = common_settings["arms"] == "disjoint"
    standardise = None if isinstance(transform, Standardise) else Standardise()
    dim = feature_shape[0] if standardise is None else standardise.n_features(feature_shape)
    alpha = compute_default_alpha(dim)
    ridge = compute_default_ridge(dim)

    def build_ridge(member_transform: Any, penalty: float) -> LinUCB:
        return LinUCB(**common_settings, transform=member_transform, ridge=penalty, alpha=alpha)

    members: dict[str, tuple[Policy, float, float]] = {
        "ridge": (build_ridge(standardise, ridge), 3.0, 2.0)
    }
    # Principal components get no piecewise features: on DIGIT these took time and did not change
    # the result.
    keeps_columns = transform is None or (
        isinstance(transform, Standardise) and transform.components is None
    )
    if feature_shape[0] <= _MAX_SMALL_DIM and is_disjoint and keeps_columns:
        piecewise_ridge = build_ridge(Piecewise(), 4.0 * ridge)
        members = {
            "ridge": (build_ridge(standardise, ridge), 2.0, 2.0),
            "piecewise": (piecewise_ridge, 1.0, 0.0),
        }
    if feature_shape[0] > _MAX_SMALL_DIM:
        reduction = Standardise(components=min(_MAX_COMPONENTS, n_contexts))
        large_penalty_member = build_ridge(standardise, ridge * dim / 16)
        # equal in the source, but also learns pseudo-labels of the target
        if self_trains and is_disjoint:
            large_penalty_member = SelfTraining(
                **common_settings,
                feedback="one_hot",
                transform=standardise,
                ridge=ridge * dim / 16,
                alpha=alpha,
            )
        members = {
            "ridge": (build_ridge(standardise, ridge), 0.0, 1.0),
            "components": (build_ridge(reduction, ridge), 2.0 / 3.0, 1.0),
            "shrunk": (large_penalty_member, 5.0, 0.0),
        }
    if is_disjoint:
        members["constant"] = Constant(**common_settings), 0.0, 0.0
    return members


def _disable_input_norm(recipe: Any) -> Any:
    """Return a recipe whose network does not normalise its input, because contexts are already
    standardised.

    A complete recipe is returned unchanged.
    """
    if recipe is not None and not isinstance(recipe, str | Mapping):
        return recipe
    changes: dict[str, Any] = (
        dict(recipe) if isinstance(recipe, Mapping) else {"base": recipe or "default"}
    )
    if {"weights", "encoder", "learning", "replay"} <= set(changes):
        return recipe
    encoder = dict(changes.get("encoder", {}))
    if encoder.get("name", "mlp") == "mlp":
        changes["encoder"] = {
            **encoder,
            "options": {"normalise_input": False, **encoder.get("options", {})},
        }
    return changes
