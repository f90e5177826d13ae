"""Which of several sources to trust: how much a round of each counts, measured before a run.

Each source in turn is a target whose rewards are known. Its *skill* is the correlation, arm by arm, of its rewards with
what a ridge regression on the rounds of all other sources predicts. Where the labels of a source were shuffled, the
skill is noise of size ``1 / sqrt(n)``, whatever the others have learned; in rounds of another data set it is small. So
the source of the least skill is left out while its skill is below ``_LEAST`` of the median of the others: a bad source
is found as long as most are good. Two sources have no majority: one of them is left out where neither the other one nor
its own earlier rounds predict its rewards, while the other one's do.

All others are pooled, also those that look unlike the target: they are left out where no source says anything of
another alone. Where some rewards of the target are known, other sources are taken where these are clearly more likely
by them. A source that counts for nothing is not played: the run is the one without it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from daband._arguments import RewardRange
from daband._arrays import AnyArray, FloatArray, IntArray, unit_scale
from daband.domains._contract import Contexts, LoggedDomain, LoggedRounds, RewardDomain
from daband.errors import InvalidInput
from daband.linear._primal_ridge import RidgeSums
from daband.linear._standardise import Standardise
from daband.policies._policy import Policy
from daband.policies._ridge import LinUCB

LabelledDomain = RewardDomain | LoggedDomain
"""Where rounds are played and rewarded, or were."""
_COMPONENTS, _RIDGE = 48, 10.0
_MOST, _MOST_BYTES = 2000, 1 << 28
"""Rounds of each source that are played at most, and what the contexts of all may take as double numbers."""
_MOST_NEIGHBOURS = 500
"""Contexts of each domain among which nearest neighbours are looked for."""
_LEAST, _LEAST_CLEAR = 0.4, 0.2
"""The part of the others' median skill that a source must have, also where its skill is clearly above 0. Set on the
development targets of the record."""
_UNLIKE = 0.15
"""The part of the largest similarity below which a source is left out where none says anything of another."""
_SIGNIFICANT, _CLEAR = 1.28, 3.0
"""Deviations above 0 that a skill has by luck in 1 of 10 cases, and hardly ever."""
_LOG_EVIDENCE = 3.0
"""How much more likely the target's rewards must be by other sources, that these are taken: 20 times."""


@dataclass(frozen=True)
class SourceWeights:
    """What was measured of every source, by its name."""

    weights: dict[str, float]
    """How much one of its rounds counts, 1 at most."""
    skill: dict[str, float]
    """The correlation of its rewards with what the other sources predict for them."""
    similarity: dict[str, float]
    """The share of target contexts whose nearest neighbour is in this source."""

    def __str__(self) -> str:
        return ", ".join(f"{name} {weight:.2f}" for name, weight in self.weights.items())


def measured_source_weights(
    source: LabelledDomain,
    target: Contexts | None,
    *,
    like: Policy,
    target_rounds: LoggedRounds | None = None,
    seed: int = 0,
) -> SourceWeights:
    """Weights for the sources that ``source`` is made of, for a policy ``like`` this one.

    Args:
        source: the rounds of several sources, ``pair.source``.
        target: contexts of the target, ``pair.target``, for the similarity.
        like: gives the sizes, the arms, the reward range, and what may differ between the domains.
        target_rounds: rounds of the target whose rewards are known, ``daband.domains.LoggedRounds``, where there are.
        seed: fixes which rounds are played.
    """
    parts = {str(name): part for name, part in source.by_name.items()}
    if len(parts) < 2:
        raise InvalidInput("source must be the rounds of several sources, e.g. of from_arrays(sources={...})")
    each = 8 * math.prod(like.context_shape) * (like.n_arms if like.arms == "shared" else 1)
    most = max(_COMPONENTS, min(_MOST, _MOST_BYTES // (each * (len(parts) + 1))))
    rounds: dict[str, Any] = {
        name: part.rounds(0, min(most, len(part)), seed=seed)  # type: ignore[attr-defined]
        for name, part in parts.items()
    }
    contexts = {name: part.contexts for name, part in rounds.items()}
    there = None if target is None else target.batch(0, min(most, len(target)), seed=seed)
    blank = _blank(like, list(contexts.values()), there)
    played = {name: _RidgeRounds.of(blank, part, domain, name) for domain, (name, part) in enumerate(rounds.items())}
    similarity = dict.fromkeys(played, 1.0 / len(played)) if there is None else _similarity(contexts, there, seed)
    skill, kept = _choose_sources(played, similarity)
    if target_rounds is not None:
        rewarded = _RidgeRounds.of(blank, target_rounds, blank.domains.first_target, blank.domains.targets[0])
        kept = _choose_by_likelihood(played, kept, rewarded)
    weights = {name: float(name in kept) for name in played}
    return SourceWeights(weights, skill, similarity)


@dataclass(frozen=True)
class _RidgeRounds:
    """Rounds as a ridge regression sees them: features (n, d) of the arm that was chosen, its head, and its reward."""

    features: FloatArray
    arms: IntArray
    heads: IntArray
    rewards: FloatArray
    n_arms: int

    @classmethod
    def of(cls, blank: LinUCB, rounds: Any, domain: int, name: str) -> _RidgeRounds:
        """Rounds of a log as they are; where any arm's reward is known, as a LinUCB plays them."""
        if isinstance(rounds, LoggedRounds):
            arms, rewards = rounds.arms, rounds.rewards
        else:
            decision = copy.deepcopy(blank).play(rounds.contexts, rounds.rewards, name)
            arms, rewards = decision.arm, decision.reward
        features = blank._transform_contexts(rounds.contexts, domain)
        shared = features.ndim == 3
        features = features[np.arange(len(arms)), arms] if shared else features
        return cls(features, arms, np.zeros_like(arms) if shared else arms, rewards, blank.n_arms)

    @cached_property
    def sums(self) -> RidgeSums:
        """What the regression learns of them."""
        sums = RidgeSums(self.n_arms, self.features.shape[1])
        sums.add(self.features, self.heads, self.rewards)
        return sums

    def __len__(self) -> int:
        return len(self.rewards)

    def __getitem__(self, part: slice) -> _RidgeRounds:
        columns = self.features[part], self.arms[part], self.heads[part], self.rewards[part]
        return _RidgeRounds(*columns, self.n_arms)

    def predict_from(self, others: Sequence[_RidgeRounds]) -> FloatArray:
        """The rewards that a regression on the rounds of ``others`` predicts for these, (n,)."""
        gram = np.sum([other.sums.gram for other in others], axis=0)
        moment = np.sum([other.sums.moment for other in others], axis=0)
        theta = np.linalg.solve(gram + _RIDGE * np.eye(self.sums.dim), moment[..., None])[..., 0]
        return np.einsum("nd,nd->n", self.features, theta[self.heads])

    def error(self, others: Sequence[_RidgeRounds]) -> float:
        """The mean squared error of what ``others`` predict."""
        return float(np.mean(np.square(self.rewards - self.predict_from(others))))

    def skill(self, others: Sequence[_RidgeRounds]) -> float:
        """The correlation of these rewards with the predicted ones, both less their means of every arm."""
        count = np.maximum(np.bincount(self.arms), 1)
        predicted, rewards = (
            values - (np.bincount(self.arms, values) / count)[self.arms]
            for values in (self.predict_from(others), self.rewards)
        )
        size = float(np.linalg.norm(predicted) * np.linalg.norm(rewards))
        return float(predicted @ rewards) / max(size, 1e-12)


def _others(played: Mapping[str, _RidgeRounds], name: str) -> list[_RidgeRounds]:
    return [part for other, part in played.items() if other != name]


def _choose_sources(
    played: Mapping[str, _RidgeRounds], similarity: Mapping[str, float]
) -> tuple[dict[str, float], list[str]]:
    """The skill of every source, and the names of those that are trusted."""
    skill: dict[str, float] = {}
    kept = dict(played)
    while True:
        skill |= {name: part.skill(_others(kept, name)) for name, part in kept.items()}
        deviations = {name: skill[name] * math.sqrt(len(part)) for name, part in played.items()}
        worst, *others = sorted(kept, key=lambda name: skill[name])
        related = sum(deviations[name] for name in others) > _SIGNIFICANT * math.sqrt(len(others))
        usual = float(np.median([skill[name] for name in others]))
        least = (_LEAST_CLEAR if deviations[worst] > _CLEAR else _LEAST) * usual
        if len(kept) == 2 or not related or skill[worst] >= least:
            break
        del kept[worst]
    if len(played) == 2 or not (related or len(kept) < len(played)):
        halves = {name: (part[: len(part) // 2], part[len(part) // 2 :]) for name, part in played.items()}
        learned = {name: later.skill([earlier]) for name, (earlier, later) in halves.items()}
        largest, sound = max(learned.values()), []
        for name, (_, later) in halves.items():
            least = max(_SIGNIFICANT / math.sqrt(len(later)), _LEAST_CLEAR * largest)
            if learned[name] > least or (deviations[name] > _SIGNIFICANT and skill[name] > _LEAST_CLEAR * largest):
                sound.append(name)
        if not any(learned[name] * math.sqrt(len(halves[name][1])) > _SIGNIFICANT for name in sound):
            sound = list(played)
        if max(deviations.values()) <= _SIGNIFICANT:
            nearest = max(similarity[name] for name in sound)
            sound = [name for name in sound if similarity[name] >= _UNLIKE * nearest]
        return skill, sound
    return skill, list(kept)


def _similarity(contexts: Mapping[str, AnyArray], there: AnyArray, seed: int) -> dict[str, float]:
    """The share of contexts ``there`` whose nearest neighbour, among as many of every source, is in each."""
    n = min(_MOST_NEIGHBOURS, *map(len, contexts.values()))
    parts = [there[:_MOST_NEIGHBOURS], *(part[:n] for part in contexts.values())]
    flat = [part.reshape(len(part), -1) for part in parts]
    components = min(_COMPONENTS, flat[0].shape[1])
    transform = Standardise(components=components if components == _COMPONENTS < len(flat[0]) else None)
    standardise = transform.fit(flat[0]).frozen()
    targets, *sources = (standardise(unit_scale(part)) for part in flat)
    order = np.random.default_rng(seed).permutation(n * len(sources))  # so that none is preferred where two are alike
    every, of = np.concatenate(sources)[order], np.repeat(np.arange(len(sources)), n)[order]
    nearest = (np.square(every).sum(axis=1) - 2.0 * targets @ every.T).argmin(axis=1)
    return dict(zip(contexts, (np.bincount(of[nearest], minlength=len(sources)) / len(targets)).tolist(), strict=True))


def _choose_by_likelihood(played: Mapping[str, _RidgeRounds], trusted: list[str], rewarded: _RidgeRounds) -> list[str]:
    """The trusted sources, or others where the rewards of the target are clearly more likely (Gaussian noise) by them.

    From the trusted ones, and from all, that one is left out without which the rewards are most likely, and so on.
    """
    chosen, least = trusted, rewarded.error([played[name] for name in trusted])
    for start in (trusted, list(played)):
        names = start
        while names:
            error = rewarded.error([played[name] for name in names])
            if len(rewarded) / 2 * math.log(max(least, 1e-12) / max(error, 1e-12)) > _LOG_EVIDENCE:
                chosen, least = names, error
            fewer = [[other for other in names if other != name] for name in names if len(names) > 1]
            names = min(fewer, key=lambda some: rewarded.error([played[name] for name in some]), default=[])
    return chosen


def _blank(like: Policy, contexts: list[AnyArray], there: AnyArray | None) -> LinUCB:
    """A LinUCB on few features, without rounds, with the policy's view of the domains."""
    components = min(_COMPONENTS, math.prod(like.context_shape))
    transform = Standardise(components=components if components == _COMPONENTS else None)
    same: dict[str, Any] = {name: getattr(like, name) for name in ("context_shape", "n_arms", "arms", "shift", "seed")}
    rewards: RewardRange = like.reward_range if like.knows_reward_range else "auto"
    blank = LinUCB(**same, reward_range=rewards, transform=transform, alpha=0.3, ridge=0.1)
    blank.domains = like.domains
    if there is not None and len(there) > _COMPONENTS and not any(like.shift.own_statistics(1)):
        contexts, there = [there], None  # a source far away must not decide by what the others are scaled
    blank.prepare(*contexts, *([] if there is None else [there]))
    return blank
