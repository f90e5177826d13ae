"""The mean of what several trained policies predict, as a policy: for when nothing tells which of them is right.

Policies of different kinds err on different contexts, so the mean of their predictions often has more reward than
one of them; it may still be far below the best. ``daband.choose`` hands it over where no target reward decides.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray, Mask, Weights, below
from daband.errors import InvalidInput
from daband.linear import Decision, Exploration, draw_key, mixed_scores, seeded_draws, transform_settings
from daband.policies.policy import Policy, build, exploration_setting
from daband.serving import FrozenParts, Member


class Average(Policy):
    """The mean of the rewards that its members predict; their mean bonus explores. All members learn from every round.

    It is made of policies that were trained for one problem and see contexts behind the same transform, so it is not
    among the methods that a name builds. Files and exports hold all members.

    Args:
        members: the policies, or their settings, as a file has them.
        explore: "ucb", "greedy" or "thompson".
        alpha: what the mean bonus counts.
        epsilon: with this probability the arm is drawn evenly.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> members = [daband.LinUCB.for_pair(pair, seed=0), daband.Trees.for_pair(pair, seed=0)]
    >>> for member in members:
    ...     run = daband.train(member, source=pair.source, target=pair.target, episodes=4, episode_length=32)

    >>> policy, contexts = daband.policies.Average(members), pair.target.read([0, 1, 2])
    >>> means = [one.decide(contexts, "target").mean for one in (policy, *members)]
    >>> bool(abs(means[0] - (means[1] + means[2]) / 2).max() < 1e-9)
    True
    """

    name = "average"
    learns_by_gradients = True
    explore = exploration_setting("rule")
    alpha = exploration_setting("alpha")
    epsilon = exploration_setting("epsilon")

    def __init__(
        self,
        members: Sequence[Policy | Mapping[str, Any]],
        *,
        explore: str = "ucb",
        alpha: float = 1.0,
        epsilon: float = 0.0,
    ) -> None:
        self.members = tuple(one if isinstance(one, Policy) else build(dict(one)) for one in members)
        """What is averaged."""
        _check_members(self.members)
        first = self.members[0]
        super().__init__(
            context_shape=first.context_shape,
            n_arms=first.n_arms,
            arms=first.arms,
            reward_range=first.reward_range,
            transform=None,
            shift=first.shift,
            seed=first.seed,
            domains=first.domains,
        )
        self.transform, self._scale = copy.deepcopy(first.transform), copy.deepcopy(first._scale)
        self.largest_norm = min(member.largest_norm for member in self.members)
        self.exploration = Exploration(explore, alpha, epsilon)
        self._key = draw_key(self.seed)
        self.rounds_learned = min(member.rounds_learned for member in self.members)
        self._table, self._arm_names = first.table, first.arm_names

    def settings(self) -> dict[str, Any]:
        members = [{**member.settings(), "policy": member.name} for member in self.members]
        return {"members": members, "explore": self.explore, "alpha": self.alpha, "epsilon": self.epsilon}

    @property
    def adapts_to_target(self) -> bool:
        return any(member.adapts_to_target for member in self.members)

    # Decisions.

    def _shares(self) -> tuple[list[float], list[float], float]:
        """What each member's means and widths count, and what is added: ranges that were estimated differ."""
        low, high = self.reward_range
        spans = [(top - bottom) / (high - low) / len(self.members) for bottom, top in self._ranges()]
        widths = [span * member.exploration.alpha for span, member in zip(spans, self.members, strict=True)]  # type: ignore[attr-defined]
        return spans, widths, float(np.mean([(bottom - low) / (high - low) for bottom, _ in self._ranges()]))

    def _ranges(self) -> list[tuple[float, float]]:
        return [member.reward_range for member in self.members]

    def _score(self, contexts: AnyArray, domain: int, rule: str | None) -> tuple[FloatArray, FloatArray]:
        scores = []
        for member in self.members:
            with _state_lock(member):
                decision = member._decide(contexts, domain, None, 0, "greedy" if rule == "greedy" else "ucb")
            scores.append((decision.mean, decision.width))
        spans, widths, offset = self._shares()
        mean, width = mixed_scores(scores, spans, widths)
        return mean + offset, width

    def _decide(self, contexts: AnyArray, domain: int, available: Mask, first_round: int, rule: str | None) -> Decision:
        explored, draws = self.exploration.by_rule(rule), seeded_draws(self._key, first_round)
        return explored.decide(*self._score(contexts, domain, explored.rule), draws, available)

    def _probabilities(self, contexts: AnyArray, domain: int, available: Mask, rule: str | None) -> FloatArray:
        explored = self.exploration.by_rule(rule)
        return explored.probabilities(*self._score(contexts, domain, explored.rule), available=available)

    def _freeze(self, domain: int) -> FrozenParts:
        parts = [member._freeze(domain) for member in self.members]
        spans, widths, offset = self._shares()
        members = [
            replace(one, share=span * one.share, width_share=width * one.width_share)
            for part, span, width in zip(parts, spans, widths, strict=True)
            for one in part.members
        ]
        if offset:
            constant, nothing = np.full((self.n_arms, 1), offset), np.zeros((self.n_arms, 0, 0))
            members.append(Member(constant, nothing, share=1.0, width_share=0.0, constant=True))
        reference = next((part.reference for part in parts if part.reference is not None), None)
        seen = any(part.seen_target for part in parts)
        return FrozenParts(tuple(members), self.exploration, parts[0].counts, reference=reference, seen_target=seen)

    # Learning.

    @property
    def propensity_weightings(self) -> tuple[str, ...]:
        others = [member.propensity_weightings for member in self.members[1:]]
        return tuple(one for one in self.members[0].propensity_weightings if all(one in other for other in others))

    def _check_unit_rewards(self, rewards: FloatArray) -> None:
        for member in self.members:
            member._check_unit_rewards(rewards)

    def _learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: int, weights: Weights) -> None:
        low, high = self.reward_range
        # A network goes first: where memory is short it fails, and the others have learned nothing yet.
        for member in sorted(self.members, key=lambda member: not member.learns_by_gradients):
            if not member.knows_reward_range:  # "auto", and these are the first rewards
                member._scale.restore(self._scale.state())
            with _state_lock(member):
                member._learn(contexts, arms, member._scale.to_unit(low + (high - low) * rewards), domain, weights)
                member.rounds_learned += len(arms)

    def _observe(self, contexts: AnyArray, domain: int) -> None:
        for member in self.members:
            member._observe(contexts, domain)

    def _adapt(self, steps: int | None) -> dict[str, float]:
        return {name: value for member in self.members for name, value in member.adapt(steps).items()}

    def deploy(self, domain: str) -> None:
        super().deploy(domain)
        for member in self.members:
            member.deploy(domain)

    def _grow(self) -> None:
        for member in sorted(self.members, key=lambda member: member.name != "trees"):  # who may refuse goes first
            member.add_arm()

    # Files.

    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        arrays: dict[str, AnyArray] = {}
        for place, member in enumerate(self.members):
            parts = member._arrays(replay=replay)
            if member.transform is not None:
                parts |= {f"transform/{name}": array for name, array in member.transform.state().items()}
            arrays |= {f"{place}/{name}": array for name, array in parts.items()}
        return arrays

    def _restore(self, state: dict[str, AnyArray]) -> None:
        for place, member in enumerate(self.members):
            member.restore(below(f"{place}/", state))


def _state_lock(member: Policy) -> AbstractContextManager[Any]:
    """The member's own state lock, where its hooks do not take it themselves."""
    return member._locks.state if member.locks_state else nullcontext()


def _check_members(members: Sequence[Policy]) -> None:
    if len(members) < 2:
        raise InvalidInput(f"members has {len(members)} policies; an average needs two or more")
    first = members[0]
    for at, member in enumerate(members):
        for what in ("n_arms", "context_shape", "arms", "domains", "knows_reward_range"):
            value, expected = getattr(member, what), getattr(first, what)
            if value != expected:
                raise InvalidInput(f"members[{at}] has {what}={value!r}, members[0] has {expected!r}")
        if member.half_life is not None:
            raise InvalidInput(f"members[{at}] has half_life={member.half_life:g}; an average forgets nothing")
        if not hasattr(member, "exploration"):
            raise InvalidInput(f"members[{at}] ({member.name}) has no width to explore by")
        if not same_transform(member, first):
            raise InvalidInput(f"members[{at}] sees contexts behind another transform than members[0]")


def same_transform(one: Policy, other: Policy) -> bool:
    """Whether two policies see the same numbers."""
    if transform_settings(one.transform) != transform_settings(other.transform):
        return False
    if one.transform is None or other.transform is None or one.transform.fitted != other.transform.fitted:
        return one.transform is other.transform
    if not one.transform.fitted:
        return True
    states = one.transform.state(), other.transform.state()
    return states[0].keys() == states[1].keys() and all(np.array_equal(states[0][k], states[1][k]) for k in states[0])
