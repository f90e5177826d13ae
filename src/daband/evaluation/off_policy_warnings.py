"""Reasons to doubt an estimate from a log: few rounds that count, arms or contexts that the log does not have."""

from __future__ import annotations

import numpy as np

from daband.arrays import FloatArray, IntArray
from daband.evaluation.intervals import MeanEstimate, WeightSums, effective_sample_size

__all__ = ["log_warnings"]

_FEWEST = 100
"""Below as many effective rounds a normal interval is too short too often."""
_LARGEST_SHARE = 0.1
_NEGLIGIBLE = 1e-3
_DEVIATIONS = 4.0
_LEAST_MASS = 0.5
_ROUNDING = 1e-12


def log_warnings(
    *,
    estimator: str,
    weights: WeightSums,
    kept: WeightSums,
    average: MeanEstimate,
    ratio: FloatArray | None,
    mass: float,
    shares: FloatArray,
    pulls: IntArray,
) -> tuple[str, ...]:
    """What a reader of the estimate should know.

    Args:
        estimator: its name.
        weights: of all rounds.
        kept: the same with those that the estimator leaves out at 0.
        average: the mean weight.
        ratio: target density over source density of the log's contexts, (n,); None without a target.
        mass: the mean of that ratio before it was scaled to 1.
        shares: the policy's probability of every arm, averaged over contexts, (K,).
        pulls: how often the log pulled each arm, (K,).
    """
    found = []
    n = int(pulls.sum())
    unseen = np.flatnonzero((pulls == 0) & (shares > _NEGLIGIBLE))
    share = float(shares[pulls == 0].sum())
    if len(unseen):
        names = ", ".join(map(str, unseen[:5])) + (", ..." if len(unseen) > 5 else "")
        found.append(
            f"support is missing: the log never pulled arm {names}, which the policy takes in {share:.1%} of rounds; "
            "nothing is known of what that pays"
        )
    unlike = "" if ratio is None else _of_the_target(ratio, mass)
    if unlike:
        found.append(unlike)
    if estimator == "dm":
        found.append("'dm' trusts its reward model, and its interval leaves out the model's bias; 'dr' corrects for it")
        return tuple(found)
    size = kept.effective_sample_size
    if size < _FEWEST:
        found.append(
            f"the effective sample is small: {size:.0f} of {n} rounds; the interval may be too short, and a policy "
            "closer to the log's would be estimated better"
        )
    if n > 1 and kept.total > 0 and kept.largest > _LARGEST_SHARE * kept.total:
        found.append(f"one round (row {kept.row}) carries {kept.largest / kept.total:.0%} of all weight")
    # Arms that the log never has take their share of the weight away; what is missing beyond that is no less lost.
    if abs(average.value - (1.0 - share)) > _DEVIATIONS * average.error:
        found.append(
            f"weights average {average.value:.3g} instead of {1.0 - share:.3g}: propensities are not those of the log, "
            "or the policy takes arms in contexts where the log never does; of those nothing is known, and the "
            "estimate leaves them out"
        )
    dropped = weights.total - kept.total
    if estimator == "switch-dr" and dropped > _ROUNDING * weights.total:
        found.append(
            f"'switch-dr' leaves {dropped / weights.total:.1%} of the weight to its reward model, whose error the "
            "interval does not include"
        )
    return tuple(found)


def _of_the_target(ratio: FloatArray, mass: float) -> str:
    """Whether the log has contexts like the target's; an empty text where it has."""
    size = effective_sample_size(ratio)
    if size < max(_FEWEST, _LARGEST_SHARE * len(ratio)):
        left = f"{size:.0f} of {len(ratio)} rounds"
        return f"the log has few contexts like the target's: the ratio of densities leaves {left}"
    if not _LEAST_MASS < mass < 1.0 / _LEAST_MASS:
        return (
            f"the log has few contexts like the target's: the ratio of densities averages {mass:.2g} over the log "
            "instead of 1, so most of the target lies where the log has nothing"
        )
    return ""
