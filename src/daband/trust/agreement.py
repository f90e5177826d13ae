"""Estimates of target accuracy by how often policies that were trained alike choose the same arm.

Two policies that make errors independently of each other, and as often as their predictions say, agree as often as they
are right (Jiang, Nagarajan, Baek, Kolter: "Assessing generalization of SGD via disagreement", ICLR 2022). Members of a
committee share some of their errors, so that agreement is too high; how much too high shows on held-out source rounds,
whose rewards are known. Every function takes ``Scores`` and returns an estimate per member, (M,).
"""

from __future__ import annotations

import numpy as np

from daband.arrays import FloatArray, IntArray
from daband.evaluation.scores import Scores

__all__ = [
    "agreement",
    "agreement_by_context",
    "balanced_agreement",
    "chance_corrected_agreement",
    "conditional_agreement",
    "corrected_agreement",
    "pairwise_agreement",
    "source_agreement",
    "target_agreement",
]


def pairwise_agreement(arms: IntArray, weight: FloatArray | None = None) -> FloatArray:
    """The share of contexts on which two members choose the same arm, (M, M); arms are (M, N), weights (N,)."""
    members, n = arms.shape
    share = np.ones((members, members))
    even = np.full(n, 1.0 / n) if weight is None else weight / weight.sum()
    for one in range(members):
        for other in range(one):
            share[one, other] = share[other, one] = float((arms[one] == arms[other]) @ even)
    return share


def agreement(arms: IntArray) -> FloatArray:
    """How often each member agrees with another one, on average over the others, (M,); arms are (M, N), M > 1."""
    table = pairwise_agreement(arms)
    mean: FloatArray = (table.sum(axis=1) - 1.0) / (len(arms) - 1)
    return mean


def agreement_by_context(arms: IntArray, member: int = 0) -> FloatArray:
    """The share of the other members that choose the arm of this one, on each context, (N,)."""
    others = np.delete(arms, member, axis=0)
    share: FloatArray = (others == arms[member]).mean(axis=0)
    return share


def source_agreement(scores: Scores) -> FloatArray:
    """How often each member agrees with the others on the held-out source contexts, (M,)."""
    return agreement(scores.source_arm)


def target_agreement(scores: Scores) -> FloatArray:
    """Plain agreement in the target as the estimate of the accuracy there, (M,)."""
    return agreement(scores.target_arm)


def corrected_agreement(scores: Scores, right: FloatArray | None = None) -> FloatArray:
    """Target agreement times source accuracy over source agreement, (M,); the accuracy (M,) is the mean reward."""
    right = scores.source_value() if right is None else right
    here = np.maximum(source_agreement(scores), 1e-9)
    estimate: FloatArray = np.clip(target_agreement(scores) * right / here, 0.0, 1.0)
    return estimate


def chance_corrected_agreement(scores: Scores, right: FloatArray | None = None) -> FloatArray:
    """``corrected_agreement`` of what is not chance: Cohen's kappa in place of agreement, (M,).

    Members that send most contexts to one arm agree whether they are right or not: what they would agree on if each
    drew its arms at random, as often as it chooses them, is taken off. Accuracy beyond chance falls as kappa does;
    chance is how often a random draw from the policy's choices would be right if arms were best as often as in the
    source. ``right`` is the accuracy in the source, (M,): the mean reward, or agreement where rewards are not 0 or 1.
    """
    right = _right(scores) if right is None else right
    frequencies = source_frequencies(scores)
    here, there = _kappa(scores.source_arm, scores.n_arms), _kappa(scores.target_arm, scores.n_arms)
    before, after = (_shares(arms, scores.n_arms) @ frequencies for arms in (scores.source_arm, scores.target_arm))
    kept = np.clip(there / np.maximum(here, 0.05), 0.0, 1.2)
    estimate: FloatArray = np.clip(after + np.maximum(right - before, 0.0) * kept, 0.0, 1.0)
    return estimate


def balanced_agreement(scores: Scores, right: FloatArray | None = None) -> FloatArray:
    """Agreement beyond chance as far as choices are spread over arms in the source, plain corrected agreement else.

    Where a policy rightly sends nearly every source context to one arm, chance cannot be told from accuracy, and the
    plain ratio is the better of the two, (M,).
    """
    right = _right(scores) if right is None else right
    top = _shares(scores.source_arm, scores.n_arms).max(axis=1)
    spread = np.clip((1.0 - top) / (1.0 - 1.0 / scores.n_arms), 0.0, 1.0)
    mixed: FloatArray = spread * chance_corrected_agreement(scores, right)
    mixed += (1.0 - spread) * corrected_agreement(scores, right)
    return mixed


def _right(scores: Scores) -> FloatArray:
    return scores.source_value() if scores.binary else source_agreement(scores)


def source_frequencies(scores: Scores) -> FloatArray:
    """How often each arm is best in the source, roughly, (K,): in proportion to the mean reward predicted of it."""
    predicted = np.clip(scores.source_mean.mean(axis=(0, 1)), 0.0, 1.0) + 0.01 / scores.n_arms
    frequencies: FloatArray = predicted / predicted.sum()
    return frequencies


def _shares(arms: IntArray, n_arms: int) -> FloatArray:
    """How often each member chooses each arm, (M, K)."""
    return np.stack([np.bincount(row, minlength=n_arms) / len(row) for row in arms])


def _kappa(arms: IntArray, n_arms: int) -> FloatArray:
    """Each member's agreement beyond chance with another, on average over the others, (M,); 0 where all is chance."""
    table, shares = pairwise_agreement(arms), _shares(arms, n_arms)
    expected = shares @ shares.T
    beyond = (table - expected) / np.maximum(1.0 - expected, 0.02)
    mean: FloatArray = (beyond.sum(axis=1) - np.diag(beyond)) / (len(arms) - 1)
    return np.maximum(mean, 0.0)


def conditional_agreement(scores: Scores) -> FloatArray:
    """Accuracy in the source where members agree, and where not, weighted as often as they do in the target, (M,)."""
    found = []
    value = scores.source_value()
    for member in range(scores.members):
        here = agreement_by_context(scores.source_arm, member)
        there = agreement_by_context(scores.target_arm, member)
        reward, weight = scores.reward[member], scores.weight[member]
        agreed, apart = (weight * here).sum(), (weight * (1.0 - here)).sum()
        right = (weight * here * reward).sum() / agreed if agreed > 0 else value[member]
        wrong = (weight * (1.0 - here) * reward).sum() / apart if apart > 0 else value[member]
        share = there.mean()
        found.append(share * right + (1.0 - share) * wrong)
    estimate: FloatArray = np.clip(np.asarray(found), 0.0, 1.0)
    return estimate
