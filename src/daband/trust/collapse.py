"""Signs that a policy has collapsed in the target, from its choices and predictions alone."""

from __future__ import annotations

import numpy as np

from daband.evaluation.scores import Scores
from daband.trust.single_policy import probabilities

__all__ = ["collapse_signs"]

_TOP_SHARE = 0.95
_LOST_SPREAD = 0.1
_UNUSED = 0.5


def collapse_signs(scores: Scores, member: int = 0) -> list[str]:
    """A sentence for each sign; none where nothing looks like a collapse."""
    signs = []
    n_arms = scores.n_arms
    here = np.bincount(scores.source_arm[member], minlength=n_arms) / scores.source_arm.shape[1]
    there = np.bincount(scores.target_arm[member], minlength=n_arms) / scores.target_arm.shape[1]
    if there.max() >= _TOP_SHARE and here.max() < _TOP_SHARE:
        signs.append(
            f"{there.max():.0%} of target contexts go to arm {int(there.argmax())}, which gets "
            f"{here[there.argmax()]:.0%} of the source's"
        )
    used = here > 0.5 / n_arms
    lost = used & (there < 0.02 * here)
    if used.sum() > 2 and lost.sum() >= _UNUSED * used.sum():
        signs.append(f"{int(lost.sum())} of the {int(used.sum())} arms used in the source are not used in the target")
    spread_here, spread_there = (
        float(probabilities(mean[member]).std(axis=0).mean()) for mean in (scores.source_mean, scores.target_mean)
    )
    if spread_here > 0 and spread_there < _LOST_SPREAD * spread_here:
        signs.append(
            f"predictions hardly differ between target contexts: their spread is {spread_there / spread_here:.0%} of "
            "that in the source"
        )
    return signs
