"""Which of several sources to trust: how much a round of each counts, measured before a run.

Each source in turn is a target whose rewards are known. A LinUCB on few features learns the rounds of another source
and then chooses in this one; the *gain* of this source is what the best of these policies is paid here above the best
constant arm. A source of which no other says anything (shuffled labels, another data set) has no gain, and counts for
nothing, unless its own policy is clearly good in the others. One with at least ``_FULL`` of the largest gain counts
fully, so that sources that merely differ are pooled. Gains are given the benefit of the doubt: their upper 95% bound
counts.

Sources that say nothing of one another are told apart otherwise: by their *similarity* to the target, the share of its
contexts that a classifier of the sources puts into each, and among those that are alike by whether a policy learns
anything from each at all. A source that counts for nothing is not played.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from daband.arrays import AnyArray, FloatArray
from daband.domains import Contexts, LoggedDomain, LoggedRounds, RewardDomain
from daband.errors import InvalidInput
from daband.linear import Standardise
from daband.policies import LinUCB, Policy

__all__ = ["SourceWeights", "measured_source_weights"]

_COMPONENTS = 48
_MOST, _MOST_BYTES = 2000, 1 << 28
"""Rounds of each source that are played at most, and what the contexts of all may take as double numbers."""
_HELD = 0.25
"""The share of a source's rounds on which a policy of the source itself is judged."""
_NONE, _FULL = 0.15, 0.4
"""Gains, as shares of the largest one, up to which a source counts for nothing, and from which it counts fully."""
_NORMAL_95 = 1.645


@dataclass(frozen=True)
class SourceWeights:
    """What was measured of every source, by its name."""

    weights: dict[str, float]
    """How much one of its rounds counts, 1 at most."""
    gain: dict[str, float]
    """What the best policy of another source is paid here above the best constant arm, in the user's units."""
    own_gain: dict[str, float]
    """The same of a policy of this source, on rounds that it did not learn."""
    similarity: dict[str, float]
    """The share of target contexts that look most like this source."""

    def __str__(self) -> str:
        return ", ".join(f"{name} {weight:.2f}" for name, weight in self.weights.items())


def measured_source_weights(
    source: RewardDomain | LoggedDomain, target: Contexts | None, *, like: Policy, seed: int = 0
) -> SourceWeights:
    """Weights for the sources that ``source`` is made of, for a policy ``like`` this one.

    Args:
        source: the rounds of several sources, ``pair.source``.
        target: contexts of the target, ``pair.target``, for the similarity.
        like: gives the sizes, the arms, the reward range, and what may differ between the domains.
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
    there = None if target is None else target.batch(0, min(most, len(target)), seed=seed)
    blank = _blank(like, [own.contexts for own in rounds.values()], there)
    kept = {name: len(own) - math.ceil(_HELD * len(own)) for name, own in rounds.items()}
    policies = {name: copy.deepcopy(blank) for name in rounds}
    for name, policy in policies.items():
        _teach(policy, rounds[name], kept[name], name)
    here: dict[str, list[tuple[float, float]]] = {name: [] for name in rounds}
    elsewhere: dict[str, list[float]] = {name: [] for name in rounds}
    own_gains, own_errors = {}, {}
    for name, own in rounds.items():
        constant = _best_constant(own, like.n_arms)
        for other, policy in policies.items():
            if other != name:
                found = _gain(policy, own, 0, constant, name)
                here[name].append(found)
                elsewhere[other].append(found[0])
        own_gains[name], own_errors[name] = _gain(policies[name], own, kept[name], constant, name)
    gains, errors = ({name: max(found)[at] for name, found in here.items()} for at in (0, 1))
    shares = _similarity(blank, rounds, there)
    weights = _by_gain(gains, errors)
    if (
        weights is not None
    ):  # what shuffled labels teach is good elsewhere by luck, at times by half of the largest gain
        best = {name: np.mean(found) / max(gains.values()) for name, found in elsewhere.items()}
        weights = {name: max(weight, _ramp(float(best[name]) - _FULL)) for name, weight in weights.items()}
    if weights is None:  # no source says anything of another
        weights = dict.fromkeys(rounds, 1.0)
        if _by_gain(own_gains, own_errors) is not None:  # but there is something to learn
            weights = {name: _ramp(shares[name] / max(shares.values())) for name in rounds}
            alike = {name: own_gains[name] for name in rounds if weights[name] > 0}
            learned = _by_gain(alike, own_errors) or {}
            weights = {name: weight * learned.get(name, 1.0) for name, weight in weights.items()}
    return SourceWeights(weights, gains, own_gains, shares)


def _ramp(share: float) -> float:
    return float(np.clip((share - _NONE) / (_FULL - _NONE), 0.0, 1.0))


def _by_gain(gains: Mapping[str, float], errors: Mapping[str, float]) -> dict[str, float] | None:
    """A weight for each source; None where no gain is more than luck."""
    if not any(gains[name] > 2 * _NORMAL_95 * errors[name] for name in gains):
        return None
    largest = max(gains.values())
    return {name: _ramp((gains[name] + _NORMAL_95 * errors[name]) / largest) for name in gains}


def _blank(like: Policy, contexts: list[AnyArray], there: AnyArray | None) -> LinUCB:
    """A LinUCB on few features, without rounds, with the policy's view of the domains."""
    components = min(_COMPONENTS, math.prod(like.context_shape))
    transform = Standardise(components=components if components == _COMPONENTS else None)
    blank = LinUCB(
        context_shape=like.context_shape,
        n_arms=like.n_arms,
        arms=like.arms,  # type: ignore[arg-type]
        reward_range=like.reward_range if like.knows_reward_range else "auto",
        transform=transform,
        shift=like.shift,
        alpha=0.3,
        ridge=0.1,
        seed=like.seed,
    )
    blank.domains = like.domains
    if there is not None and len(there) > _COMPONENTS and not any(like.shift.own_statistics(1)):
        contexts, there = [there], None  # a source far away must not decide by what the others are scaled
    blank.prepare(*contexts, *([] if there is None else [there]))
    return blank


def _teach(policy: LinUCB, rounds: Any, n: int, name: str) -> None:
    """Let a policy play the first ``n`` rounds."""
    part = slice(n)
    if isinstance(rounds, LoggedRounds):
        propensity = rounds.propensities[part]
        policy.update(rounds.contexts[part], rounds.arms[part], rounds.rewards[part], name, propensity=propensity)
    else:
        policy.play(rounds.contexts[part], rounds.rewards[part], name)


def _best_constant(rounds: Any, n_arms: int) -> float:
    """What the arm pays that pays most on average."""
    if not isinstance(rounds, LoggedRounds):
        return float(rounds.rewards.mean(axis=0).max())
    weights = 1.0 / rounds.propensities
    counts = np.bincount(rounds.arms, weights, minlength=n_arms)
    sums = np.bincount(rounds.arms, weights * rounds.rewards, minlength=n_arms)
    return float((sums[counts > 0] / counts[counts > 0]).max())


def _gain(policy: LinUCB, rounds: Any, start: int, constant: float, name: str) -> tuple[float, float]:
    """The mean reward of a policy's choices from round ``start`` on above ``constant``, and its standard error."""
    arms = policy.decide(rounds.contexts[start:], name, rule="greedy").arm
    if isinstance(rounds, LoggedRounds):
        weights = np.where(arms == rounds.arms[start:], 1.0 / rounds.propensities[start:], 0.0)
        paid = rounds.rewards[start:]
    else:
        paid, weights = rounds.rewards[start:][np.arange(len(arms)), arms], np.ones(len(arms))
    total = max(float(weights.sum()), 1e-12)
    mean = float(weights @ paid) / total
    error = math.sqrt(float(np.square(weights) @ np.square(paid - mean))) / total
    low, high = policy.reward_range
    return mean - constant, max(error, 0.25 * (high - low) / len(arms))


def _similarity(blank: LinUCB, rounds: Mapping[str, Any], there: AnyArray | None) -> dict[str, float]:
    """The share of target contexts that a linear classifier of the sources puts into each; even without a target."""
    if there is None:
        return dict.fromkeys(rounds, 1.0 / len(rounds))

    def flat(contexts: AnyArray, domain: int) -> FloatArray:
        features = blank._transform_contexts(contexts, domain)
        rows: FloatArray = features.reshape(len(features), -1)
        return rows

    here = [flat(own.contexts, domain) for domain, own in enumerate(rounds.values())]
    x = np.concatenate(here)
    even = np.concatenate([np.full(len(rows), 1.0 / len(rows)) for rows in here])
    labels = np.repeat(np.eye(len(here)), [len(rows) for rows in here], axis=0)
    gram = (x * even[:, None]).T @ x + 0.01 * len(here) * np.eye(x.shape[1])
    predicted = flat(there, blank.domains.first_target) @ np.linalg.solve(gram, (x * even[:, None]).T @ labels)
    shares = np.bincount(predicted.argmax(axis=1), minlength=len(here)) / len(there)
    return dict(zip(rounds, shares.tolist(), strict=True))
