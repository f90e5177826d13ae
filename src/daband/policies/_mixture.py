"""A policy made of policies: it predicts a weighted mean of its members' predictions.

A network overfits a small table, and extrapolates badly to contexts far from those it was trained on; ridge regression
does neither, but cannot fit nonlinear functions. The weight of a member depends on how well it predicted rounds before
it learned them. ``linear/_mixture_weights.py`` computes the weights, and bounds the error relative to the best mixture.
The confidence bonus is a mean of the members' bonuses with fixed weights, since the error of a mean is at most the mean
of the errors.

Members are ordinary policies. ``Mixture.for_pair`` uses the members that did best on the development half of the data
sets (benchmarks/records/split.json). They predict and explore with different regressions. A small ridge penalty
explores well, because the bonus of a context falls as soon as that context has been seen. For contexts of more than 64
numbers, a large penalty predicts better in another domain.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from daband._arguments import check_int, finite, one_of
from daband._arrays import (
    AnyArray,
    BoolArray,
    FloatArray,
    IntArray,
    Mask,
    Weights,
    below,
    checked_number,
    restored_array,
)
from daband._domain_names import DomainNames
from daband._shift import Shift, ShiftLike, as_shift
from daband.errors import InvalidInput
from daband.linear._exploration import Decision, Exploration, join_decisions, seeded_draws
from daband.linear._joint_ridge import JointHead
from daband.linear._mixture_weights import MixtureWeights, revealed_predictions
from daband.linear._piecewise import Piecewise
from daband.linear._ridge_head import EpisodeScores
from daband.linear._standardise import Standardise
from daband.policies._checkpoints import policy_arrays, restore_arrays
from daband.policies._pair_defaults import (
    JOINT_ALPHA,
    default_transform,
    joint_components,
    policy_for_pair,
    standardised_alpha,
    standardised_ridge,
)
from daband.policies._policy import (
    Policy,
    exploration_setting,
    learn_transformed,
    member_contexts,
    score_transformed,
)
from daband.policies._registered import policies
from daband.policies._ridge import Constant, LinUCB
from daband.policies._self_training import SelfTraining
from daband.serving._frozen_policy import FrozenParts, Member

#: Maximum number of members. The weights are found by trying every subset of them.
_MAX_MEMBERS = 12
#: Rounds whose covariances are computed at once. The number of covariances grows with the square of this number.
_BLOCK = 64
#: Maximum number of stored context checksums; further contexts count as new.
_MAX_DISTINCT = 1 << 16
#: For contexts of at most this many numbers, ``for_pair`` adds piecewise features, and a one-hot reward of 1 counts for
#: every arm in the members' errors.
_FEW_NUMBERS = 64
#: For contexts of more numbers, ``for_pair`` uses only the network, or without it a regression on principal components.
_MAX_NUMBERS = 4096
#: The factor by which a member's counts of chosen arms decay with each batch (``_leave_out_collapsed``).
_FORGETTING = 0.9
#: A member is left out once it has chosen too few arms in this many consecutive batches of target contexts.
_PATIENCE = 10
#: About this many contexts per domain are used to fit principal components: more take longer and change little.
_MAX_ROWS = 4096


@policies.register("mixture")
class Mixture(Policy):
    """Mixes policies, weighted by how well each predicts.

    Args:
        context_shape: the shape of one context.
        n_arms: the number of arms; more can be added later.
        members: policies by name, for contexts of this shape after ``transform``; by default a ``LinUCB`` and a
            ``Constant``. The mixture copies them, and trains the copies.
        prior: the weight of each member in predictions before the first round; equal by default.
        exploring: the weight of each member's bonus, which is also multiplied by the member's ``alpha``; by default as
            in ``prior``.
        learn_weights: False keeps the weights of ``prior``, e.g. for members that differ in their seed only.
        feedback: "bandit", or "one_hot" if exactly one arm has reward 1 and all others 0. With "one_hot", a reward of 1
            reveals the rewards of all arms; for contexts of at most 64 numbers, the members' errors then include the
            errors for all arms.
        alpha: the factor of the mixture's confidence bonus.
        arms: "disjoint" (one context per round) or "shared" (one context per arm).
        explore: "ucb", "greedy", or "thompson" (disjoint arms only).
        epsilon: the probability with which an arm is drawn uniformly instead.
        standardise_rewards: as in ``LinUCB``.
        transform: applied to contexts before all members, e.g. ``daband.Standardise()``.
        shift: what may differ between the domains (``daband.Shift``).
        seed: determines ties and draws.
        domains: the names of the sources and targets, one of each by default.

    >>> shape = {"context_shape": (2,), "n_arms": 2}
    >>> policy = daband.Mixture(**shape, members={"linear": daband.LinUCB(**shape), "mean": daband.Constant(**shape)})
    >>> skipped = policy.update([[1.0, 0.0], [0.0, 1.0]] * 50, [0, 1] * 50, [0.0, 1.0] * 50)
    >>> policy.select([[0.0, 1.0]]).arm.tolist()
    [1]
    >>> sorted(policy.weights)
    ['linear', 'mean']
    """

    locks_state = False  # members hold their own locks
    order_matters = True  # errors come from predictions before a round is learned
    alpha = exploration_setting("alpha")
    epsilon = exploration_setting("epsilon")
    explore = exploration_setting("rule")

    def __init__(
        self,
        *,
        context_shape: Sequence[int],
        n_arms: int,
        members: Mapping[str, Policy] | None = None,
        prior: Mapping[str, float] | None = None,
        exploring: Mapping[str, float] | None = None,
        learn_weights: bool = True,
        feedback: str = "bandit",
        alpha: float = 1.0,
        arms: str = "disjoint",
        explore: str = "ucb",
        epsilon: float = 0.0,
        standardise_rewards: bool = True,
        transform: Any = None,
        shift: ShiftLike = None,
        seed: int = 0,
        domains: DomainNames | None = None,
    ) -> None:
        super().__init__(
            context_shape=context_shape,
            n_arms=n_arms,
            arms=arms,
            exploration=Exploration(explore, checked_number("alpha", alpha), checked_number("epsilon", epsilon)),
            standardise_rewards=standardise_rewards,
            transform=transform,
            shift=shift,
            seed=seed,
            domains=domains,
        )
        self.feedback: str = one_of("feedback", feedback, ("bandit", "one_hot"))
        if members is None:
            same: dict[str, Any] = {
                "context_shape": self.feature_shape, "n_arms": n_arms, "arms": arms, "seed": self.seed,
                "standardise_rewards": standardise_rewards, "domains": self.domains,
            }  # fmt: skip
            members = {"linucb": LinUCB(**same), "constant": Constant(**same)}
        #: The members by name.
        self.members: dict[str, Policy] = self._checked_members(members)
        self._prior = _checked_weights("prior", prior, self.members)
        self._exploring = self._prior if exploring is None else _checked_weights("exploring", exploring, self.members)
        self._stack = MixtureWeights(self._prior)
        self.learn_weights: bool = one_of("learn_weights", learn_weights, (True, False))
        #: How often each member would choose each arm in the target, with exponential decay over batches, (M, K).
        self._arm_counts: FloatArray = np.zeros((len(self.members), n_arms))
        #: Batches of target contexts in a row in which a member used too few arms, (M,).
        self._batches_collapsed: IntArray = np.zeros(len(self.members), np.int64)
        #: Checksums of learned contexts: errors on these are not informative about new contexts.
        self._seen: dict[int, None] = {}
        #: The index of the member that uses arm features. Predictions of the others are averaged with it (``_trust``).
        heads = (getattr(member, "_head", None) for member in self.members.values())
        self._joint = next((at for at, head in enumerate(heads) if isinstance(head, JointHead)), None)
        catalogues = (member.catalogue for member in self.members.values())
        self.catalogue = next((one for one in catalogues if one is not None), None)
        few = math.prod(self.feature_shape) <= _FEW_NUMBERS
        self._counts_every_arm = few and self.feedback == "one_hot" and arms == "disjoint"
        self.learns_by_gradients = any(member.learns_by_gradients for member in self.members.values())

    def _checked_members(self, members: Mapping[str, Policy]) -> dict[str, Policy]:
        if not isinstance(members, Mapping) or not 1 <= len(members) <= _MAX_MEMBERS:
            raise InvalidInput(f"members must be a mapping with 1 to {_MAX_MEMBERS} policies by name, got {members!r}")
        if not all(isinstance(name, str) and isinstance(member, Policy) for name, member in members.items()):
            raise InvalidInput(f"members must be policies by name, got {members!r}")
        checked = {name: copy.deepcopy(members[name]) for name in sorted(members)}  # sorted, as in a saved file
        for name, made in checked.items():
            for setting, wanted in (
                ("context_shape", self.feature_shape), ("n_arms", self.n_arms), ("arms", self.arms),
                ("domains", self.domains),
            ):  # fmt: skip
                if getattr(made, setting) != wanted:
                    raise InvalidInput(
                        f"members: {name!r} has {setting} {getattr(made, setting)!r}, the mixture needs {wanted!r}"
                    )
        return checked

    @classmethod
    def for_pair(cls, pair: Any, **settings: Any) -> Self:
        """Return a mixture for a ``daband.domains.Pair``, with the members that did best on the development data sets.

        For vectors the members are a ridge regression on standardised numbers, the mean reward of every arm, and
        ``DABand`` if torch is installed. With at most 64 numbers there is also a regression on piecewise features. With
        more numbers there is also a regression on principal components, and another one with a large penalty; if the
        source has labels, that one also learns its own choices in the target (``SelfTraining``). For images the only
        member is ``DABand``.

        ``settings`` are arguments of this class, and ``recipe``, ``encoder`` and ``device`` of the network;
        ``network=False`` leaves the network out.
        """
        if "members" in settings:
            return policy_for_pair(cls, pair, settings)
        return policy_for_pair(cls, pair, _composed(pair, settings))

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each member in predictions."""
        return dict(zip(self.members, self._stack.weights.tolist(), strict=True))

    @property
    def joint_member(self) -> Policy | None:
        """The member that uses arm features, or None."""
        return None if self._joint is None else list(self.members.values())[self._joint]

    @property
    def counts(self) -> IntArray:
        """The number of rounds that each arm has learned from."""
        return next(member.counts for member in self.members.values() if hasattr(member, "counts"))

    def settings(self) -> dict[str, Any]:
        members = {name: {**member.settings(), "policy": member.name} for name, member in self.members.items()}
        return {
            **super().settings(), "members": members, "prior": dict(zip(members, self._prior.tolist(), strict=True)),
            "exploring": dict(zip(members, self._exploring.tolist(), strict=True)), "feedback": self.feedback,
            "learn_weights": self.learn_weights,
            "alpha": self.alpha, "explore": self.explore, "epsilon": self.epsilon,
        }  # fmt: skip

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

    def _score(self, contexts: AnyArray, domain: int, bonuses: bool) -> tuple[FloatArray, FloatArray]:
        members = list(self.members.values())  # another thread may add an arm meanwhile
        mean, bonus = np.zeros((2, len(contexts), members[0].n_arms))
        of_joint: tuple[FloatArray, FloatArray] | None = None
        trust, factors = self._trust(members), self._factors()
        rows = zip(members, self._stack.weights, factors, self._exploring, strict=True)
        for at, (member, weight, factor, exploring) in self._joint_first(list(rows)):
            if not (weight or (factor and bonuses) or at == self._joint):
                continue
            given = member_contexts(member, contexts, domain)
            wanted = bonuses and (factor > 0.0 or at == self._joint)
            own_mean, own_bonus = score_transformed(member, given, domain, wanted)
            if at == self._joint:
                of_joint = own_mean, member.exploration.alpha * own_bonus
            elif of_joint is not None:
                own_mean = trust * own_mean + (1.0 - trust) * of_joint[0]
                bonus = bonus + exploring * (1.0 - trust) * of_joint[1]
                own_bonus = trust * own_bonus
            mean, bonus = weight * own_mean + mean, factor * own_bonus + bonus
        return mean, bonus

    def _joint_first(self, parts: Sequence[Any]) -> list[tuple[int, Any]]:
        """Return (index, part) of each member; the member that uses arm features comes first."""
        return sorted(enumerate(parts), key=lambda part: part[0] != self._joint)

    def _trust(self, members: Sequence[Policy]) -> FloatArray:
        """Return the weight of each arm's own regressions, (K,); the regression on arm features has the rest.

        After n rounds of an arm, its own regression on d numbers has the weight n / (n + d).
        """
        if self._joint is None:
            return np.ones(members[0].n_arms)
        with members[self._joint]._locks.state:
            counts = members[self._joint].counts  # type: ignore[attr-defined]
        return counts / (counts + math.prod(self.feature_shape))

    def _factors(self) -> FloatArray:
        """Return the factor of each member's bonus."""
        return self._exploring * np.array([member.exploration.alpha for member in self.members.values()])

    def _freeze(self, domain: int) -> FrozenParts:
        every, moments, offset = [], self.reward_moments, np.zeros(self.n_arms)
        frozen: list[Member] = []
        trust, factors = self._trust(list(self.members.values())), self._factors()
        for at, policy in enumerate(self.members.values()):
            parts, own = policy._freeze(domain), policy.reward_moments
            weight, factor = float(self._stack.weights[at]), float(factors[at])
            if at == self._joint:
                shares = weight + (1.0 - trust) * (1.0 - weight)
                alpha = policy.exploration.alpha
                bonuses = factor + (1.0 - trust) * alpha * (self._exploring.sum() - self._exploring[at])
                weight, factor = 1.0, alpha * self._exploring.sum()
                pooled = np.stack([shares, bonuses / factor if factor else np.ones(self.n_arms)])
                parts = parts._replace(members=tuple(dataclasses.replace(one, pooled=pooled) for one in parts.members))
                offset += (shares - weight) * (own.centre - moments.centre) / moments.scale
            elif self._joint is not None:
                parts = parts._replace(members=tuple(_trusted(one, trust) for one in parts.members))
                offset += (trust - 1.0) * float(weight) * (own.centre - moments.centre) / moments.scale
            step = None if policy.transform is None else copy.deepcopy(policy.transform.frozen(domain))
            unit = own.scale / moments.scale  # members predict in their own unit
            offset += float(weight) * (own.centre - moments.centre) / moments.scale
            for member in parts.members:
                share, bonus = float(weight) * unit * member.weight, float(factor) * unit * member.bonus_weight
                if share > 0.0 or bonus > 0.0:
                    frozen.append(_weighted_member(member, share, bonus, None if member.constant else step))
            every.append(parts)
        if offset.any():
            nothing = np.zeros((self.n_arms, 0, 0))
            frozen.append(Member(offset[:, None], nothing, bonus_weight=0.0, constant=True))
        layouts = {parts.layout for parts in every if not all(member.constant for member in parts.members)}
        if "channels_last" in layouts and len(layouts) > 1:
            raise InvalidInput("images with channels last: a mixture of a network and other members cannot be exported")
        return FrozenParts(
            tuple(frozen),
            next((parts.counts for parts in every if parts.counts is not None), None),
            layout=next((layout for layout in layouts if layout is not None), None),
            reference=next((parts.reference for parts in every if parts.reference is not None), None),
            seen_target=any(parts.seen_target for parts in every),
        )

    # Learning.

    def _learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: int, weights: Weights) -> None:
        every = [member_contexts(member, contexts, domain) for member in self.members.values()]
        checksums = _checksums(contexts)
        new = self._new_contexts(checksums)
        if new.any():
            both = zip(self.members.values(), every, strict=True)
            means = [score_transformed(member, given[new], domain, False)[0] for member, given in both]
            if self._joint is not None:
                trust = self._trust(list(self.members.values()))
                means = [trust * own + (1.0 - trust) * means[self._joint] for own in means]
            self._note(np.stack(means, axis=2), arms[new], rewards[new])
        self._remember(checksums)
        for member, given in zip(self.members.values(), every, strict=True):
            learn_transformed(member, given, arms, rewards, domain, weights)

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
        regressions_decide = all(
            hasattr(member, "_ridge") and not (in_target and isinstance(member, SelfTraining)) for member in members
        )
        if self.arms == "shared" or self._joint is not None or not regressions_decide:
            return super()._play(contexts, rewards, domain, available, first_round, weights)
        every = [member_contexts(member, contexts, domain) for member in members]
        regressions = [member._ridge(given, domain) for member, given in zip(members, every, strict=True)]  # type: ignore[attr-defined]
        checksums = _checksums(contexts)
        new = self._new_contexts(checksums)
        self._remember(checksums)
        parts = []
        for start in range(0, len(contexts), _BLOCK):
            rows = slice(start, start + _BLOCK)
            mask, counted = (None if part is None else part[rows] for part in (available, weights))
            scores = EpisodeScores([head for head, _ in regressions], [features[rows] for _, features in regressions])
            decision = self._play_block(scores, rewards[rows], new[rows], mask, first_round + start, counted)  # type: ignore[arg-type]
            received = rewards[rows][np.arange(len(decision.arm)), decision.arm]
            for member, given in zip(members, every, strict=True):
                learn_transformed(member, given[rows], decision.arm, received, domain, counted)  # type: ignore[arg-type]
            parts.append(decision)
        return join_decisions(parts)

    def _play_block(
        self,
        scores: EpisodeScores,
        rewards: FloatArray,
        new: BoolArray,
        available: Mask,
        first_round: int,
        weights: Weights,
    ) -> Decision:
        """Decide these rounds in turn, and update ``scores`` after each; the members learn all rounds afterwards."""
        moments, exploration, factors = self.reward_moments, self.exploration, self._factors()
        running = [copy.copy(member.reward_moments) for member in self.members.values()]
        decisions = []
        for row in range(len(rewards)):
            one = slice(row, row + 1)
            centre, scale = (np.array([[getattr(own, name)] for own in running]) for name in ("centre", "scale"))
            means, bonuses = scores.score(row, centre=centre, scale=scale)
            mean, bonus = (self._stack.weights @ means)[None], (factors @ bonuses)[None]
            mask, draws = None if available is None else available[one], seeded_draws(self._key, first_round + row)
            decisions.append(exploration.decide(mean, bonus, draws, mask, unit=(moments.centre, moments.scale)))
            arm = decisions[-1].arm
            reward, weight = rewards[one, arm[0]], None if weights is None else weights[one]
            if new[row]:
                self._note(means.T[None], arm, reward)
            scores.learn(row, int(arm[0]), float(reward[0]), 1.0 if weight is None else float(weight[0]))
            for own in (*running, moments):
                own.add(reward, weight)
        return join_decisions(decisions)

    def _note(self, means: FloatArray, arms: IntArray, rewards: FloatArray) -> None:
        """Record the errors of the members' predictions (B, K, M), made before any member has learned these rounds."""
        moments = self.reward_moments
        if moments.low < moments.high:
            means = np.clip(means, moments.low, moments.high)
        if self._counts_every_arm:
            predictions, rewards = revealed_predictions(means, arms, rewards)
        else:
            predictions = means[np.arange(len(arms)), arms]
        self._stack.add(predictions, rewards, scale=moments.scale)

    def _new_contexts(self, checksums: Sequence[int]) -> BoolArray:
        """Return True for each context that was not learned before and is not earlier in the batch."""
        batch: set[int] = set()
        new: list[bool] = []
        for checksum in checksums if self.learn_weights else ():
            new.append(checksum not in self._seen and checksum not in batch)
            batch.add(checksum)
        return np.array(new, np.bool_) if self.learn_weights else np.zeros(len(checksums), np.bool_)

    def _remember(self, checksums: Sequence[int]) -> None:
        free = _MAX_DISTINCT - len(self._seen)
        if free > 0:
            self._seen.update(dict.fromkeys(checksums[:free]))

    def _prepare(self, contexts: Sequence[AnyArray]) -> None:
        for member in self.members.values():
            if not member.prepared:
                batches = contexts
                if getattr(member.transform, "components", None) is not None:
                    batches = [batch[:: max(1, len(batch) // _MAX_ROWS)] for batch in contexts]
                member.prepare(*batches)

    def _observe(self, contexts: AnyArray, domain: int) -> None:
        every = [member_contexts(member, contexts, domain) for member in self.members.values()]
        for member, given in zip(self.members.values(), every, strict=True):
            member._observe(given, domain)
        if not self.learn_weights and len(every) > 1:
            self._leave_out_collapsed(every, domain)

    def _leave_out_collapsed(self, every: Sequence[AnyArray], domain: int) -> None:
        """Set the weight of collapsed members to 0: members that choose too few of the arms in the target.

        The number of arms that a member uses is the exponential of the entropy of its choices. A member has collapsed
        if this number was below half of the members' median in each of the last ten batches of target contexts. It is
        then left out, with a warning, until a batch in which it uses more arms.
        """
        members = zip(self.members.values(), every, strict=True)
        scores = [score_transformed(member, given, domain, False)[0] for member, given in members]
        counts = np.stack([np.bincount(mean.argmax(axis=1), minlength=self.n_arms) for mean in scores])
        self._arm_counts = _FORGETTING * self._arm_counts + counts
        fractions = self._arm_counts / self._arm_counts.sum(axis=1, keepdims=True)
        used = np.exp(-np.sum(fractions * np.log(np.maximum(fractions, 1e-300)), axis=1))
        few = used < np.median(used) / 2
        self._batches_collapsed = np.where(few, self._batches_collapsed + 1, 0)
        kept = self._prior * (self._batches_collapsed < _PATIENCE)
        self._stack.weights = kept / kept.sum() if kept.any() else self._prior.copy()
        for index in np.flatnonzero(self._batches_collapsed == _PATIENCE):
            warnings.warn(
                f"member {list(self.members)[index]!r} is left out: in the target it uses about {used[index]:.1f} "
                f"arms, the others {np.median(used):.1f}",
                stacklevel=3,
            )

    def student(self, *, steps: int = 1000) -> Policy:
        """Return one policy, the student, that decides nearly as this mixture does, and as quickly as one member.

        The student is a copy of the member with the largest weight. It is trained by gradient steps on the stored
        target contexts to predict as the mixture does. All members must be networks of one shape and recipe.

        Args:
            steps: the number of gradient steps.
        """
        student_of = getattr(next(iter(self.members.values())), "student_of", None)
        if student_of is None:
            raise InvalidInput("only a mixture of neural policies of one shape and recipe has a student")
        with self._locks.write:
            made: Policy = student_of(
                list(self.members.values()), self._stack.weights, check_int("steps", steps, minimum=1)
            )
        for name in ("table", "framing", "arm_names", "catalogue"):
            setattr(made, name, getattr(self, name))
        return made

    def _adapt(self, steps: int | None) -> dict[str, float]:
        members = list(self.members.values())
        together = getattr(members[0], "adapt_together", None)
        results = None if together is None or len(members) == 1 else together(members, steps)
        measured: dict[str, float] = {}
        for result in (member.adapt(steps) for member in members) if results is None else results:
            if isinstance(result, Exception):
                raise result
            measured |= result
        return measured

    def _grow(self) -> None:
        grown = copy.deepcopy(self.members)  # if an arm cannot be added, no member changes
        arms = self.catalogue
        for member in grown.values():
            if member.catalogue is None:
                member.add_arm()
            else:
                member._catalogue = arms
                member._grow()
                member.n_arms += 1
        self.members = grown
        self._arm_counts = np.pad(self._arm_counts, ((0, 0), (0, 1)))

    # Files.

    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        arrays = {f"weights/{name}": array for name, array in self._stack.state().items()}
        arrays |= {"arm_counts": self._arm_counts, "batches_collapsed": self._batches_collapsed}
        arrays["seen"] = np.array(list(self._seen) if replay else [], np.int64)
        for number, member in enumerate(self.members.values()):
            own = policy_arrays(member, replay=replay)
            arrays.update({f"member.{number}/{name}": array for name, array in own.items()})
        return arrays

    def _restore(self, state: dict[str, AnyArray]) -> None:
        self._stack.restore(below("weights/", state))
        self._seen = dict.fromkeys(state["seen"].tolist())
        self._arm_counts = restored_array(state, "arm_counts", self._arm_counts)
        self._batches_collapsed = restored_array(state, "batches_collapsed", self._batches_collapsed)
        for number, member in enumerate(self.members.values()):
            restore_arrays(member, below(f"member.{number}/", state))


def _checksums(contexts: AnyArray) -> list[int]:
    rows = np.ascontiguousarray(contexts, None if contexts.dtype == np.uint8 else np.float32)
    return [zlib.crc32(row.tobytes()) for row in rows]


def _checked_weights(name: str, given: Mapping[str, float] | None, members: Mapping[str, Policy]) -> FloatArray:
    """Return a weight per member, at least 0, with sum 1; equal weights by default."""
    if given is None:
        return np.full(len(members), 1.0 / len(members))
    if not isinstance(given, Mapping) or set(given) != set(members):
        raise InvalidInput(f"{name} must have a weight for each of {', '.join(members)}, got {given!r}")
    weights = np.array([finite(f"{name} of {member!r}", given[member]) for member in members])
    if not (weights >= 0.0).all() or not weights.sum() > 0.0:
        raise InvalidInput(f"{name} must have no negative weight, and at least one above 0, got {given!r}")
    return weights / weights.sum()


def _trusted(member: Member, trust: FloatArray) -> Member:
    """Return a frozen member whose predictions and bonuses for each arm are multiplied by ``trust``, (K,)."""
    inverse = member.inverse * trust[:, None, None] ** 2
    return dataclasses.replace(member, theta=member.theta * trust[:, None], inverse=inverse)


def _weighted_member(member: Member, share: float, bonus: float, step: Any) -> Member:
    """Return a frozen member with these weights, and with ``step`` before its features."""
    if step is not None and member.transform is not None:
        raise InvalidInput("a mixture of mixtures that both have transforms cannot be exported")
    inverse = member.inverse if bonus > 0.0 else np.zeros((len(member.theta), 0, 0))
    transform = member.transform if step is None else step
    return dataclasses.replace(member, weight=share, bonus_weight=bonus, inverse=inverse, transform=transform)


# The members for a pair of domains.


def _composed(pair: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a mixture for a pair, with its members."""
    settings = dict(settings)
    with_network = settings.pop("network", True)
    network = {name: settings.pop(name) for name in ("recipe", "encoder", "device") if name in settings}
    shift = as_shift(settings.get("shift", getattr(pair, "shift", None)), context_shape=pair.context_shape)
    vectors = len(pair.context_shape) == 1
    if "transform" not in settings:
        custom = callable(getattr(network.get("encoder"), "forward", None))  # it gets untransformed contexts
        standardise = vectors and not shift.aligns and not custom
        settings["transform"] = default_transform(LinUCB, pair, shift=shift) if standardise else None
    transform = settings["transform"]
    shape = pair.context_shape if transform is None else (transform.n_features(pair.context_shape),)
    if transform is not None:  # the given transform handles units
        kinds = tuple(kind for kind in shift.kinds if kind != "units") or ("covariate",)
        shift = Shift(kinds, stated=shift.stated)
    same: dict[str, Any] = {
        "context_shape": shape, "n_arms": pair.n_arms, "arms": pair.arms, "shift": shift,
        "standardise_rewards": settings.get("standardise_rewards", pair.feedback != "one_hot"),
        "seed": settings.get("seed", 0), "domains": getattr(pair, "domains", None),
    }  # fmt: skip
    #: Members by name, each with its prior and exploring weight.
    members: dict[str, tuple[Policy, float, float]] = {}
    if with_network and "daband" in policies:
        if isinstance(transform, Standardise) and "encoder" not in network:
            network["recipe"] = _without_input_norm(network.get("recipe"))
        members["network"] = policies.get("daband")(**same, feedback=pair.feedback, **network), 1.0, 1.0
    if vectors and math.prod(shape) <= _MAX_NUMBERS:
        shown = len(pair.source) + len(pair.target)
        members |= _linear_members(same, transform, contexts=shown, feedback=pair.feedback)
        if getattr(pair, "catalogue", None) is not None and pair.arms == "disjoint":
            components = joint_components(shape, pair.catalogue)
            before = None if components is None else Standardise(components=components)
            joint = LinUCB(**same, transform=before, alpha=JOINT_ALPHA, catalogue=pair.catalogue)
            members["joint"] = joint, 3.0, 2.0
    elif not members:
        reduced = Standardise(components=min(64, len(pair.source) + len(pair.target)))
        members["components"] = LinUCB(**same, transform=reduced), 1.0, 1.0
    made = {name: member for name, (member, _, _) in members.items()}
    weights = {"prior": 1, "exploring": 2}
    return {
        **settings, "members": made,
        **{name: {key: parts[at] for key, parts in members.items()} for name, at in weights.items()},
    }  # fmt: skip


def _linear_members(
    same: dict[str, Any], transform: Any, *, contexts: int, feedback: str
) -> dict[str, tuple[Policy, float, float]]:
    """Return the members other than the network for vectors, each with its prior and exploring weight."""
    shape, disjoint = same["context_shape"], same["arms"] == "disjoint"
    standardise = None if isinstance(transform, Standardise) else Standardise()
    dim = shape[0] if standardise is None else standardise.n_features(shape)
    alpha, ridge = standardised_alpha(dim), standardised_ridge(dim)

    def regression(before: Any, penalty: float) -> LinUCB:
        return LinUCB(**same, transform=before, ridge=penalty, alpha=alpha)

    members: dict[str, tuple[Policy, float, float]] = {"ridge": (regression(standardise, ridge), 3.0, 2.0)}
    # Principal components get no piecewise features: on DIGIT these took time and did not change the result.
    columns = transform is None or (isinstance(transform, Standardise) and transform.components is None)
    if shape[0] <= _FEW_NUMBERS and disjoint and columns:
        pieces = regression(Piecewise(), 4.0 * ridge)
        members = {"ridge": (regression(standardise, ridge), 2.0, 2.0), "piecewise": (pieces, 1.0, 0.0)}
    if shape[0] > _FEW_NUMBERS:
        reduced = Standardise(components=min(_FEW_NUMBERS, contexts))
        shrunk = regression(standardise, ridge * dim / 16)
        if feedback == "one_hot" and disjoint:  # the same in the source; in the target it also learns its own choices
            own = {name: value for name, value in same.items() if name != "standardise_rewards"}
            shrunk = SelfTraining(**own, feedback=feedback, transform=standardise, ridge=ridge * dim / 16, alpha=alpha)
        members = {
            "ridge": (regression(standardise, ridge), 0.0, 1.0),
            "components": (regression(reduced, ridge), 2.0 / 3.0, 1.0),
            "shrunk": (shrunk, 5.0, 0.0),
        }
    if disjoint:
        members["constant"] = Constant(**same), 0.0, 0.0
    return members


def _without_input_norm(recipe: Any) -> Any:
    """Return a recipe for a network whose contexts are already standardised; a full recipe is not changed."""
    if recipe is not None and not isinstance(recipe, str | Mapping):
        return recipe
    changes: dict[str, Any] = dict(recipe) if isinstance(recipe, Mapping) else {"base": recipe or "default"}
    if {"weights", "encoder", "learning", "replay"} <= set(changes):
        return recipe
    encoder = dict(changes.get("encoder", {}))
    if encoder.get("name", "mlp") == "mlp":
        changes["encoder"] = {**encoder, "options": {"normalise_input": False, **encoder.get("options", {})}}
    return changes
