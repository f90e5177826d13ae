"""``check_log``: find out what is wrong with a log before anything is learned from it.

Every finding says what was seen and what to do. Tests compare many arms and columns, so a finding
needs ``_MAX_STANDARD_ERRORS`` standard errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband.base._arrays import AnyArray, FloatArray, IntArray
from daband.base._lazy_polars import pl
from daband.domains.readers._columns import (
    Columns,
    describe_missing_clusters,
    find_missing_codes,
)
from daband.domains.readers._reading import read_table
from daband.domains.readers._rounds import read_rounds
from daband.errors import InvalidInput
from daband.features._table_transform import ROW_COLUMN, TableTransform
from daband.logs._mean_estimates import estimate_mean

#: Number of standard errors above which a difference is a finding.
_MAX_STANDARD_ERRORS = 4.5
#: Fraction of the variance of a column that arms may explain. More means that the column was
#: measured after the arm was chosen.
_MAX_EXPLAINED_FRACTION = 0.2
#: Absolute correlation of a column with rewards above which it is probably measured after them.
_MAX_CORRELATION = 0.98
#: Fraction of rewards that may have the largest value, if rewards have many values.
_MAX_CAPPED_FRACTION = 0.02
#: Minimum number of different rewards for the tests of amounts.
_MIN_AMOUNTS = 20
#: Fraction of the variance of rewards that a single reward may have.
_MAX_VARIANCE_FRACTION = 0.3
#: A draw is suspicious if a log of this size has fewer rounds of its propensity on average.
_MIN_EXPECTED_ROUNDS = 1e-3
#: Minimum number of rounds of an arm.
_MIN_ARM_ROUNDS = 50


@dataclass(frozen=True)
class ArmSummary:
    """The rounds of one arm in a log."""

    #: Name of the arm.
    name: str
    #: Number of rounds.
    rounds: int
    #: Mean reward.
    mean: float
    #: Lower limit of the 95% interval of the mean.
    low: float
    #: Upper limit of the 95% interval of the mean.
    high: float


@dataclass(frozen=True)
class LogCheck:
    """The arms of a log, and what is wrong with it.

    >>> import polars as pl
    >>> log = pl.DataFrame({"age": range(200), "offer": ["a", "b"] * 100, "euros": [0, 1, 1, 0] * 50})
    >>> columns = daband.domains.Columns(["age"], arm="offer", reward="euros")
    >>> check = daband.check_log(log, columns)
    >>> check.rounds, check.arms[0].mean
    (200, 0.5)
    """

    #: Number of rounds.
    rounds: int
    #: A summary of each arm.
    arms: tuple[ArmSummary, ...]
    #: What is wrong and what to do, one sentence or two for each; empty if nothing was found.
    findings: tuple[str, ...]

    def __str__(self) -> str:
        width = max(len(arm.name) for arm in self.arms)
        lines = [f"{self.rounds:,} rounds; mean reward by arm, with its 95% interval:"]
        lines += [
            f"  {arm.name:<{width}}  {arm.rounds:>9,} rounds  {arm.mean:.4g} [{arm.low:.4g},"
            f" {arm.high:.4g}]"
            for arm in self.arms
        ]
        lines += [f"- {finding}" for finding in self.findings] or ["Nothing wrong was found."]
        return "\n".join(lines) + "\n"


def check_log(log: Any, columns: Columns) -> LogCheck:
    """Return the arms of a log with their mean rewards, and what is wrong with it.

    It tests whether propensities agree with the arms, also given contexts; whether columns look
    measured after the arm or after the reward; whether rows repeat ids; whether rewards drift; and
    whether rewards look truncated or mistyped.

    Args:
        log: a table: a path, or a pandas, polars or arrow frame.
        columns: the roles of its columns; ``arm`` and ``reward`` are needed.

    >>> import polars as pl
    >>> log = pl.DataFrame({"age": range(200), "offer": ["a", "b"] * 100, "euros": [0, 1, 1, 0] * 50})
    >>> columns = daband.domains.Columns(["age"], arm="offer", reward="euros")
    >>> check = daband.check_log(log, columns)
    >>> [arm.rounds for arm in check.arms]
    [100, 100]
    """
    if columns.arm is None or columns.reward is None:
        raise InvalidInput("columns needs arm and reward, the columns of a log")
    arm, reward = columns.arm, columns.reward
    frame = read_table(log if not isinstance(log, str) else Path(log))
    names = [columns.arm, columns.reward, columns.propensity, columns.cluster]
    for name in (*columns.context, *names):
        if name is not None and name not in frame.columns:
            raise InvalidInput(
                f"the log has no column {name!r} (its columns: {', '.join(frame.columns)})"
            )
    columns = columns.with_types(frame)
    findings = describe_missing_clusters(frame, columns)
    n_unrewarded = frame[reward].null_count()
    if n_unrewarded:
        findings.append(f"{n_unrewarded:,} rows have no reward and are ignored.")
    has_both = pl.col(reward).is_not_null() & pl.col(arm).is_not_null()
    frame = frame.with_row_index(ROW_COLUMN).filter(has_both)
    if not len(frame):
        raise InvalidInput("the log has no row with an arm and a reward")
    arm_names = frame[arm].cast(pl.String).unique().sort().to_list()
    transform = TableTransform.fit(
        {"source": frame},
        context=columns.context,
        categorical=columns.categorical,
        dates=columns.dates,
        ids=columns.id,
        encoders=columns.encoders,
    )
    features = transform.apply(frame)
    rounds = read_rounds(frame, columns, features, arm_names=arm_names, table_name="log")
    arms, rewards = rounds.arms, rounds.rewards
    clusters = rounds.clusters
    if clusters is not None:
        clusters = np.unique(clusters, return_inverse=True)[1]
    summaries = []
    for index, name in enumerate(arm_names):
        is_arm = arms == index
        arm_clusters = (
            None if clusters is None else np.unique(clusters[is_arm], return_inverse=True)[1]
        )
        estimate = estimate_mean(rewards[is_arm], arm_clusters)
        low, high = estimate.compute_interval(0.95)
        summaries.append(ArmSummary(name, int(is_arm.sum()), estimate.value, low, high))
        if is_arm.sum() < _MIN_ARM_ROUNDS:
            findings.append(
                f"Arm {name!r} has only {is_arm.sum()} rounds: collect more, or drop the arm."
            )
    findings += _check_assignment(
        arms, arm_names, rounds.propensities, features, transform.feature_names, clusters
    )
    findings += [f"{notice}." for notice in find_missing_codes(reward, rewards)]
    findings += _check_rewards(rewards, features, transform.feature_names, clusters)
    return LogCheck(len(frame), tuple(summaries), tuple(findings))


def _check_assignment(
    arms: IntArray,
    arm_names: list[str],
    logged_propensities: FloatArray | None,
    features: FloatArray,
    feature_names: Any,
    clusters: IntArray | None,
) -> list[str]:
    """Return findings about how arms were drawn.

    Without logged propensities, every round of an arm should have the same.
    """
    findings = []
    if logged_propensities is None:
        propensities = np.bincount(arms)[arms] / len(arms)
        expectation = "though the log has no propensities"
        remedy = (
            "daband estimates propensities from contexts; state them if they are known"
            " (--propensity), or ignore the column"
        )
    else:
        propensities = logged_propensities
        expectation = "more than its propensities say"
        remedy = "Correct the propensities, or ignore the column"
    rarest = int(propensities.argmin())
    if propensities[rarest] < _MIN_EXPECTED_ROUNDS / len(arms):
        findings.append(
            f"Row {rarest} has a propensity of {propensities[rarest]:g}: in {len(arms):,} rounds, such"
            f" a draw hardly ever happens, and the round counts as much as"
            f" {1.0 / propensities[rarest]:.3g} others. Correct the propensity, or drop the round."
        )
    is_certain = propensities == 1.0
    if is_certain.any() and len(arm_names) > 1:
        findings.append(
            f"{is_certain.mean():.0%} of rounds have a propensity of 1: no other arm could be drawn"
            " there, so these rounds cannot compare arms. Drop them, or correct the propensities."
        )
    is_suspect = np.zeros(features.shape[1], np.bool_)
    for column, values in enumerate(features.T):
        total = float(values.var())
        means = np.bincount(arms, values) / np.bincount(arms)
        if _is_varied(values) and float(means[arms].var()) > _MAX_EXPLAINED_FRACTION * total:
            is_suspect[column] = True
            findings.append(
                f"{feature_names[column]!r} depends strongly on the arm: it was probably measured"
                f" after the arm was chosen. Ignore the column (--drop), or arms were not random."
            )
    ratios = find_mismatches(arms, propensities, np.ones((len(arms), len(arm_names))), clusters)
    for index, name in enumerate(arm_names):
        excess = (arms == index) / propensities - 1.0
        if index in ratios:
            findings.append(
                f"Arm {name!r} occurs {ratios[index]:.2f} times as often as its propensities"
                " say (sample-ratio mismatch): check the propensities, and whether rows were lost."
            )
            continue
        scores = np.array(
            [_score_dependence(excess, values, clusters) for values in features.T] or [0.0]
        )
        scores[: len(is_suspect)][is_suspect] = 0.0
        worst = int(np.abs(scores).argmax())
        if abs(scores[worst]) > _MAX_STANDARD_ERRORS:
            findings.append(
                f"Arm {name!r} depends on {feature_names[worst]!r} {expectation}"
                f" ({abs(scores[worst]):.1f} standard errors): arms were drawn by contexts, or the"
                f" column was measured afterwards. {remedy}."
            )
    return findings


def find_mismatches(
    arms: IntArray, propensities: FloatArray, offered: AnyArray, clusters: IntArray | None
) -> dict[int, float]:
    """Return the arms that occur more or less often than their propensities say, beyond noise, each
    with the ratio of both numbers.

    ``offered`` (n, K) is 1 where a round could have the arm.
    """
    ratios = {}
    for arm, is_offered in enumerate(offered.T):
        excess = estimate_mean((arms == arm) / propensities - is_offered, clusters)
        if abs(excess.value) > _MAX_STANDARD_ERRORS * excess.standard_error:
            ratios[arm] = 1.0 + excess.value / float(is_offered.mean())
    return ratios


def _is_varied(values: FloatArray) -> bool:
    """Return True if a feature has different values, beyond errors of rounding."""
    return float(np.ptp(values)) > 1e-9 * float(np.abs(values).max())


def _score_dependence(excess: FloatArray, values: FloatArray, clusters: IntArray | None) -> float:
    """Return the covariance of two columns (n,), in standard errors."""
    if not _is_varied(values):
        return 0.0
    covariance = estimate_mean(excess * (values - values.mean()), clusters)
    return covariance.value / max(covariance.standard_error, 1e-300)


def _check_rewards(
    rewards: FloatArray, features: FloatArray, feature_names: Any, clusters: IntArray | None
) -> list[str]:
    """Return findings about rewards."""
    findings = []
    deviation = float(rewards.std())
    if not deviation > 0:
        return ["All rewards are equal, so no arm is better than another."]
    for name, values in zip(feature_names, features.T, strict=True):
        if _is_varied(values) and abs(np.corrcoef(values, rewards)[0, 1]) > _MAX_CORRELATION:
            findings.append(
                f"{name!r} nearly equals the reward: it was probably measured after it. Ignore the"
                " column (--drop)."
            )
    distinct, counts = np.unique(rewards, return_counts=True)
    if len(distinct) >= _MIN_AMOUNTS:
        top_fraction = counts[-1] / len(rewards)
        is_capped = counts[-1] > 10 * max(1, int(counts[-2]))
        if top_fraction > _MAX_CAPPED_FRACTION and is_capped:
            findings.append(
                f"{top_fraction:.0%} of rewards are exactly {distinct[-1]:g}, the largest one: they"
                " look truncated. Use the full amounts."
            )
        squares = np.square(rewards - rewards.mean())
        if squares.max() > _MAX_VARIANCE_FRACTION * squares.sum() and len(rewards) > 100:
            row = int(squares.argmax())
            findings.append(
                f"One reward, {rewards[row]:g} in row {row}, has"
                f" {squares[row] / squares.sum():.0%} of the variance of all rewards: check whether"
                " it was read correctly (decimal comma, other currency)."
            )
    half = len(rewards) // 2
    if half >= _MIN_ARM_ROUNDS:
        signs = np.where(np.arange(len(rewards)) < half, -1.0, 1.0)
        drift = _score_dependence(rewards - rewards.mean(), signs, clusters)
        if abs(drift) > _MAX_STANDARD_ERRORS:
            first, second = rewards[:half].mean(), rewards[half:].mean()
            findings.append(
                f"The mean reward is {first:.4g} in the first half of the log and {second:.4g} in"
                " the second: rewards drift. Check that arms were drawn all the time, and prefer"
                " recent rounds (update(..., weights=))."
            )
    return findings
