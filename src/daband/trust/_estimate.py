"""The value of a policy in the target, estimated without a reward from there, and a bound for it.

Every explanation of the target (``explanations.py``) says two things about a policy. *Value*: the mean of what it
predicts for the policy's choices, its predictions calibrated on the rewards of held-out source rounds. *Agreement*: the
policy's skill in the source times how much less it agrees with the explanation in the target than in the source (two
predictors that err independently agree as often as they are right: Jiang et al., ICLR 2022). Skill is what the policy
earns above what its arms would earn drawn without a look at the context, and agreement is Cohen's kappa, above what the
shares of arms make by themselves: two policies that rush to one arm agree, and that says nothing. The estimate is two
parts of the median agreement and one of the smallest value. In the median an explanation counts by its agreement with
the policy in the source, because one that never agreed cannot show a fall; and ``other units``, a what-if, by a quarter
of that. Where all explanations are readings of one method they share its errors, so that the fall from the source to
the estimate is too small: it counts ``ALONE`` times.

The bound: **what the policy misses of the highest reward may be more than the estimate says by the factor** ``1 +
MISSED``; it is no higher than what any explanation says; of contexts outside the source's support nothing is known, so
that they may pay the least; and it allows for the error of few held-out rounds, and promises no more than these rounds
support in the source itself. What depends on something that no context shows can move unseen, and the more of the
reward the contexts leave open, the more there is that may.

Where one method stands alone and adapted to these very contexts, its confidence and agreement are what it was trained
for: it may be off by ``ADAPTED`` at least, however sure it is. A single explanation has nothing to disagree with.
Unless the user states what differs between the domains, the bound is then the lowest reward.

``ALONE``, ``MISSED`` and ``ADAPTED`` are the fitted numbers: ``benchmarks/trust_report.py --fit`` finds them on the 208
data sets that are for development, and a test holds them to the records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daband._arrays import FloatArray, IntArray
from daband.evaluation._policy_scores import Scores
from daband.trust._explanations import Explanation

ALONE, MISSED, ADAPTED = 1.5, 0.8, 0.25
_NORMAL_95, _LOG_20 = 1.645, math.log(20.0)
_PRIOR_ROUNDS = 10.0
"""Rounds by which calibration is held to predictions as they are."""
_FEWEST_AGREEMENTS = 0.05
"""The least agreement in the source that one in the target is compared with."""
_OTHER_UNITS_WEIGHT = 0.25
"""How much "other units" counts in the median agreement."""


@dataclass(frozen=True)
class Estimate:
    """Of one policy; values are scaled to [0, 1]."""

    value: float
    low: float
    """A one-sided 95% bound."""
    accuracy: float
    """The share of contexts for which the policy chooses a best arm: the value where rewards are 0 or 1, elsewhere the
    mean agreement with the best arms of other explanations."""
    accuracy_low: float
    constant: float
    """What the best constant arm is worth in the target, by the mean of explanations, and at least as in the source."""
    by_explanation: dict[str, float]
    """The policy's value by each explanation."""
    agreement: float
    """How often the policy agrees with another explanation, on average, in the target and in the source."""
    source_agreement: float
    disagreement: float
    """The share of target contexts on which the two most different explanations disagree, and their names."""
    apart: tuple[str, str]
    by_context: FloatArray
    """An estimated value for every target context, (L,), whose mean is ``value``."""
    expected_source: FloatArray
    """How often each arm is the best one, by all explanations, (K,)."""
    expected_target: FloatArray
    source_error: float
    """The standard error of the value in the source."""


def estimate_target(
    scores: Scores,
    explanations: Sequence[Explanation],
    *,
    member: int = 0,
    outside: float = 0.0,
    stated: bool = False,
) -> Estimate:
    """Estimate one policy.

    Args:
        scores: of all policies, as trained.
        explanations: of all policies.
        member: the position of the policy.
        outside: the share of target contexts outside the source's support.
        stated: whether the user states what may differ between the domains.
    """
    reward, weight = scores.reward[member], scores.weight[member]
    chosen, target_chosen = scores.source_arm[member], scores.target_arm[member]
    rounds = max(1.0, float(scores.effective_rounds()[member]))
    in_source = float(scores.source_value()[member])
    arm_value = np.where(np.isnan(scores.arm_value), np.nan_to_num(np.nanmean(scores.arm_value)), scores.arm_value)
    without_contexts = min(float(arm_value[target_chosen].mean()), in_source)
    rows, columns = np.arange(len(chosen)), np.arange(len(target_chosen))
    values, kept, counts, arm_values, tables = {}, [], [], [], []
    agreements, source_agreements = [], []
    for one in explanations:
        offset, slope = _calibrated(one.source_mean[rows, chosen], reward, weight)
        table = np.clip(offset + slope * np.clip(one.target_mean, -0.5, 1.5), 0.0, 1.0)
        tables.append(table[columns, target_chosen])
        values[one.name] = float(tables[-1].mean())
        arm_values.append(_arm_values(scores, one, slope))
        if not one.expert and np.array_equal(one.target_mean, scores.target_mean[member]):
            continue  # the policy agrees with itself whether it is right or not
        source_agreements.append(float((one.source_arm == chosen).mean()))
        agreements.append(float((one.target_arm == target_chosen).mean()))
        before = max(_kappa(one.source_arm, chosen, scores.n_arms), _FEWEST_AGREEMENTS)
        kept.append(float(np.clip(_kappa(one.target_arm, target_chosen, scores.n_arms) / before, 0.0, 1.0)))
        counts.append(before * (_OTHER_UNITS_WEIGHT if one.reading == "other units" else 1.0))
    skill = (in_source - without_contexts) * (_weighted_median(kept, counts) if kept else 1.0)
    by_agreement = without_contexts + skill
    least_value = min(values.values())
    fall = in_source - (2.0 * by_agreement + least_value) / 3.0
    one_method = len({one.method for one in explanations}) == 1
    value = float(np.clip(in_source - fall * (ALONE if one_method else 1.0), 0.0, 1.0))
    error = _standard_error(in_source, rounds, reward, weight, binary=scores.binary)
    unseen = max(MISSED * (1.0 - value), ADAPTED if one_method and explanations[0].adapted else 0.0)
    low = min(value - unseen, least_value) * (1.0 - outside) - _NORMAL_95 * error
    low = min(low, _least_supported(in_source, rounds))
    low = float(np.clip(low, 0.0, value)) if kept or stated else 0.0
    others = float(np.mean(agreements)) if agreements else 1.0
    disagreement, apart = _most_different(explanations)
    best_in_source = np.nan_to_num(np.nanmax(scores.arm_value), nan=0.0)
    expected_source, expected_target = (
        np.mean([np.bincount(arms, minlength=scores.n_arms) / len(arms) for arms in side], axis=0)
        for side in ([one.source_arm for one in explanations], [one.target_arm for one in explanations])
    )
    return Estimate(
        value=value,
        low=low,
        accuracy=value if scores.binary else others,
        accuracy_low=low if scores.binary else max(0.0, 2.0 * others - 1.0),
        constant=float(np.clip(max(np.mean(arm_values, axis=0).max(), best_in_source), 0.0, 1.0)),
        by_explanation=values,
        agreement=others,
        source_agreement=float(np.mean(source_agreements)) if source_agreements else 1.0,
        disagreement=disagreement,
        apart=apart,
        by_context=shift_to_mean(np.mean(tables, axis=0), value),
        expected_source=expected_source,
        expected_target=expected_target,
        source_error=error,
    )


def _calibrated(predicted: FloatArray, reward: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """Offset and slope by which predictions of chosen arms fit rewards, held to 0 and 1 by some prior rounds."""
    design = np.stack([np.ones(len(predicted)), np.clip(predicted, -0.5, 1.5)], axis=1)
    scaled = weight * (len(weight) / max(float(weight.sum()), 1e-12)) if weight.sum() > 0 else weight
    used = scaled * (np.square(scaled.sum()) / max(np.square(scaled).sum(), 1e-12) / max(len(weight), 1))
    prior = _PRIOR_ROUNDS * np.diag([1.0, 0.25])
    gram = design.T @ (used[:, None] * design) + prior
    offset, slope = np.linalg.solve(gram, design.T @ (used * reward) + prior @ np.array([0.0, 1.0]))
    return float(offset), float(slope)


def _kappa(one: IntArray, other: IntArray, n_arms: int) -> float:
    """Cohen's kappa of two columns of choices: agreement beyond what their shares of arms make by themselves."""
    shares = [np.bincount(arms, minlength=n_arms) / len(arms) for arms in (one, other)]
    by_chance = float(shares[0] @ shares[1])
    return (float((one == other).mean()) - by_chance) / max(1.0 - by_chance, 1e-3)


def _weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """The value at which half of the weight is reached; between two values by interpolation."""
    order = np.argsort(values)
    share = np.asarray(weights)[order] / np.sum(weights)
    return float(np.interp(0.5, np.cumsum(share) - share / 2.0, np.asarray(values)[order]))


def _arm_values(scores: Scores, one: Explanation, slope: float) -> FloatArray:
    """What every arm pays in the target by an explanation, (K,): as in the source, and what predictions change by."""
    before, after = (np.clip(mean, -0.5, 1.5).mean(axis=0) for mean in (one.source_mean, one.target_mean))
    in_source = np.where(np.isnan(scores.arm_value), before, scores.arm_value)
    return np.clip(in_source + slope * (after - before), 0.0, 1.0)


def _standard_error(value: float, rounds: float, reward: FloatArray, weight: FloatArray, *, binary: bool) -> float:
    """That of the source's mean reward; never 0, because few rounds that are all alike prove little."""
    if binary:
        return math.sqrt(max(value * (1.0 - value), 0.25 / rounds) / rounds)
    total = max(float(weight.sum()), 1e-12)
    variance = float(weight @ np.square(reward - value)) / total
    return math.sqrt(max(variance, 0.25 / rounds) / rounds)


def _least_supported(mean: float, rounds: float) -> float:
    """The least mean that so many rewards in 0 to 1 leave possible at 95%: Chernoff's bound, for few rounds too."""
    low, high = 0.0, min(max(mean, 0.0), 1.0)
    for _ in range(40):
        middle = (low + high) / 2.0
        both = ((mean, middle), (1.0 - mean, 1.0 - middle))
        divergence = sum(one * math.log(one / other) for one, other in both if one > 0.0)
        low, high = (middle, high) if rounds * divergence > _LOG_20 else (low, middle)
    return low


def _most_different(explanations: Sequence[Explanation]) -> tuple[float, tuple[str, str]]:
    """The largest share of target contexts on which two explanations choose differently, and their names."""
    most, names = 0.0, (explanations[0].name, explanations[0].name)
    for index, one in enumerate(explanations):
        for other in explanations[:index]:
            share = float((one.target_arm != other.target_arm).mean())
            if share > most:
                most, names = share, (other.name, one.name)
    return most, names


def shift_to_mean(predicted: FloatArray, mean: float) -> FloatArray:
    """Predictions (L,) in [0, 1], shifted by one number on the scale of log odds so that they have this mean."""
    inside = np.clip(predicted, 0.001, 0.999)
    odds = np.log(inside / (1.0 - inside))
    wanted = min(max(mean, 0.001), 0.999)
    below, above = -20.0, 20.0
    for _ in range(60):
        middle = 0.5 * (below + above)
        if float((1.0 / (1.0 + np.exp(-odds - middle))).mean()) < wanted:
            below = middle
        else:
            above = middle
    return 1.0 / (1.0 + np.exp(-odds - below))
