"""Other estimates of target accuracy, to compare ``assess`` with; each takes ``Scores`` and is about the first policy.

* ``plain_agreement``: how often two policies choose the same arm (Jiang et al., ICLR 2022).
* ``m_cbpe``: the multiclass confidence-based estimate of NannyML (Kivimaki et al., 2024): predicted rewards of the
  chosen arms, recalibrated on held-out source rounds weighted as the target's contexts are, averaged over the target.
"""

from __future__ import annotations

import numpy as np

from daband.evaluation._policy_scores import Scores

_PRIOR_ROUNDS = 10.0
_BINS = 10


def plain_agreement(scores: Scores) -> float:
    """Agreement of the first two policies in the target; the source's value where there is one policy."""
    if scores.members < 2:
        return float(scores.source_value()[0])
    return float((scores.target_arm[0] == scores.target_arm[1]).mean())


def m_cbpe(scores: Scores) -> float:
    """The mean recalibrated prediction of the chosen arms in the target.

    Weights are ratios of densities of the predicted reward, by ten bins: what NannyML's domain classifier estimates.
    """
    here = scores.source_mean[0][np.arange(scores.source_arm.shape[1]), scores.source_arm[0]]
    there = scores.target_mean[0][np.arange(scores.target_arm.shape[1]), scores.target_arm[0]]
    edges = np.unique(np.quantile(np.concatenate([here, there]), np.linspace(0.0, 1.0, _BINS + 1)[1:-1]))
    before, after = (np.bincount(np.digitize(x, edges), minlength=len(edges) + 1) + 1.0 for x in (here, there))
    ratio = ((after / after.sum()) / (before / before.sum()))[np.digitize(here, edges)]
    weight = scores.weight[0] * ratio
    design = np.stack([np.ones(len(here)), here], axis=1)
    prior = _PRIOR_ROUNDS * np.diag([1.0, 0.25])
    gram = design.T @ (weight[:, None] * design) + prior
    offset, slope = np.linalg.solve(gram, design.T @ (weight * scores.reward[0]) + prior @ np.array([0.0, 1.0]))
    return float(np.clip(offset + slope * there, 0.0, 1.0).mean())
