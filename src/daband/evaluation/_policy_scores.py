"""What policies predict and choose in both domains, and what the source paid them: all that an estimate may rest on.

There is no place for a reward of the target here. Of the source there is what a bandit would get: the reward of the arm
that a policy chose, and where the source is a log, of the logged arm with its propensity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray
from daband.domains._contract import Contexts, EvaluationDomain, LoggedDomain, RewardDomain
from daband.domains._mixtures import origins
from daband.policies._policy import Policy

_BATCH = 1024
_BLOCK = 50


_PER_POLICY = ("source_mean", "source_arm", "reward", "weight", "target_mean", "target_arm")


@dataclass(frozen=True)
class Scores:
    """M policies on N held-out source contexts and L target contexts, with K arms; rewards scaled to [0, 1]."""

    source_mean: FloatArray
    """Predicted rewards, (M, N, K)."""
    source_arm: IntArray
    """Chosen arms, (M, N)."""
    reward: FloatArray
    """The reward of each policy's choice, (M, N)."""
    weight: FloatArray
    """How much each of them counts, (M, N): 1, or for a log the inverse propensity where the choice was the logged arm,
    and 0 elsewhere."""
    target_mean: FloatArray
    """Predicted rewards, (M, L, K)."""
    target_arm: IntArray
    """Chosen arms, (M, L)."""
    arm_value: FloatArray
    """The mean reward of every arm on the held-out source contexts, (K,): what a constant policy would get. Of a log it
    is the mean over rounds with that arm, weighted by inverse propensities; NaN where there is none."""
    origin: AnyArray | None = None
    """The name of the source that each held-out context is of, (N,); None where there is one source."""

    @property
    def members(self) -> int:
        """How many policies there are, M."""
        return len(self.source_arm)

    @property
    def n_arms(self) -> int:
        """How many arms there are, K."""
        return int(self.source_mean.shape[2])

    @property
    def binary(self) -> bool:
        """Whether every reward is the lowest or the highest: then the mean reward is an accuracy."""
        return bool(np.isin(self.reward[self.weight > 0], (0.0, 1.0)).all())

    def source_value(self) -> FloatArray:
        """The mean scaled reward of each policy's choices in the source, (M,)."""
        total = self.weight.sum(axis=1)
        return (self.weight * self.reward).sum(axis=1) / np.where(total > 0, total, 1.0)

    def effective_rounds(self) -> FloatArray:
        """How many rewards of equal weight each policy's source value is worth, (M,)."""
        squares = np.square(self.weight).sum(axis=1)
        return np.square(self.weight.sum(axis=1)) / np.where(squares > 0, squares, 1.0)

    def of(self, members: Sequence[int]) -> Scores:
        """The same for some of the policies, in this order."""
        rows = np.asarray(members, np.int64)
        return replace(self, **{name: getattr(self, name)[rows] for name in _PER_POLICY})


def scores_of(
    policies: Sequence[Policy],
    *,
    source: EvaluationDomain | RewardDomain | LoggedDomain,
    target: Contexts,
    contexts: int,
    rule: str = "ucb",
    seed: int = 0,
) -> tuple[Scores, AnyArray, AnyArray]:
    """The scores of policies on at most so many contexts of each domain, and these contexts; no policy is changed."""
    rows, pay = rewarded_rounds(source, 0, min(contexts, len(source)), seed=seed)
    unlabelled = target.batch(0, min(contexts, len(target)), seed=seed)
    origin = None
    if len(source.by_name) > 1:
        origin = origins(source, _positions(source, len(rows), seed))
    low, high = policies[0].reward_moments.observed
    span = high - low if high > low else 1.0
    columns: dict[str, list[AnyArray]] = {name: [] for name in _PER_POLICY}
    for policy in policies:
        mean, arm = in_domains(lambda some, name, one=policy: _decide(one, some, name, rule), rows, origin)  # type: ignore[misc]
        reward, weight = pay(arm)
        columns["source_mean"].append((mean - low) / span)
        columns["source_arm"].append(arm)
        columns["reward"].append((reward - low) / span)
        columns["weight"].append(weight)
        mean, arm = _decide(policy, unlabelled, "target", rule)
        columns["target_mean"].append((mean - low) / span)
        columns["target_arm"].append(arm)
    scored = {name: np.stack(parts) for name, parts in columns.items()}
    arm_value = (_arm_values(pay, len(rows), policies[0].n_arms) - low) / span
    return Scores(**scored, arm_value=arm_value, origin=origin), rows, unlabelled


def in_domains(
    act: Callable[[AnyArray, str], Sequence[AnyArray]], contexts: AnyArray, origin: AnyArray | None
) -> list[AnyArray]:
    """The arrays, a row per context, that ``act(contexts, domain)`` gives: each context in the source it is of."""
    if origin is None:
        return list(act(contexts, "source"))
    places = {str(name): np.flatnonzero(origin == name) for name in np.unique(origin)}
    order = np.argsort(np.concatenate(list(places.values())))
    parts = [act(contexts[rows], name) for name, rows in places.items()]
    return [np.concatenate(columns)[order] for columns in zip(*parts, strict=True)]


def _positions(domain: EvaluationDomain | RewardDomain | LoggedDomain, n: int, seed: int) -> IntArray:
    """Where the contexts that ``rewarded_rounds`` gives of the first ``n`` rounds stand in the domain."""
    if isinstance(domain, Contexts):
        return domain.order(0, n, seed=seed)
    positions = np.concatenate([np.arange(*block) for block in _blocks(len(domain), n)])
    return positions[np.random.default_rng(seed).permutation(len(positions))]


Pay = Callable[[IntArray], tuple[FloatArray, FloatArray]]


def _arm_values(pay: Pay, n: int, n_arms: int) -> FloatArray:
    """What every arm pays on average over ``n`` rounds, (K,)."""
    values = np.full(n_arms, np.nan)
    for arm in range(n_arms):
        reward, weight = pay(np.full(n, arm))
        if weight.sum() > 0:
            values[arm] = float((weight * reward).sum() / weight.sum())
    return values


def rewarded_rounds(
    domain: EvaluationDomain | RewardDomain | LoggedDomain, start: int, stop: int, *, seed: int
) -> tuple[AnyArray, Pay]:
    """Contexts of these rounds, and what choices (N,) on them earn: rewards (N,) and weights (N,).

    Of a log only rounds whose arm was chosen count, weighted by one over their propensity.
    """
    if isinstance(domain, LoggedDomain):
        log = domain.rounds(start, stop, seed=seed)
        return log.contexts, lambda arms: (log.rewards, np.where(arms == log.arms, 1.0 / log.propensities, 0.0))
    if isinstance(domain, RewardDomain):
        rounds = domain.rounds(start, stop, seed=seed)
        return rounds.contexts, lambda arms: (rounds.pay(arms), np.ones(stop - start))
    contexts, table = sample_evenly(domain, stop - start)
    order = np.random.default_rng(seed).permutation(len(contexts))  # what looks at the first rows must see all classes
    contexts, table = contexts[order], table[order]
    return contexts, lambda arms: (table[np.arange(len(table)), arms], np.ones(len(table)))


def sample_evenly(domain: EvaluationDomain, n: int) -> tuple[AnyArray, FloatArray]:
    """About ``n`` contexts of a domain, spread over all of it, and their expected rewards (n, K).

    A domain may list class after class, so that its first contexts are of a few classes alone.
    """
    blocks = _blocks(len(domain), min(n, len(domain)))
    contexts = np.concatenate([domain.read(start, stop) for start, stop in blocks])
    return contexts, np.concatenate([domain.read_expected(start, stop) for start, stop in blocks])


def _blocks(total: int, n: int) -> list[tuple[int, int]]:
    """Rows to read so that ``n`` of ``total`` are spread over all of them."""
    if n == total:
        return [(0, total)]
    count = math.ceil(n / _BLOCK)
    starts = np.linspace(0, total - _BLOCK, count).astype(int)
    ends = np.minimum(starts + _BLOCK, [*starts[1:], total])
    return [(int(start), int(stop)) for start, stop in zip(starts, ends, strict=True) if stop > start]


def _decide(policy: Policy, contexts: AnyArray, domain: str, rule: str) -> tuple[FloatArray, IntArray]:
    parts = [
        policy.decide(contexts[start : start + _BATCH], domain, rule=rule, round_offset=start)
        for start in range(0, len(contexts), _BATCH)
    ]
    return np.concatenate([part.mean for part in parts]), np.concatenate([part.arm for part in parts])
