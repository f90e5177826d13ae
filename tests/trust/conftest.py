"""Scores of made-up policies for the tests of trust."""

import numpy as np

from daband.evaluation._policy_scores import Scores


def made_up_scores(*, members, right, seed, contexts=400, n_arms=4):
    """Scores of policies that are right on about this share of contexts, in both domains, each with its own errors."""
    draw = np.random.default_rng(seed)
    tables = {}
    for domain in ("source", "target"):
        best = draw.integers(n_arms, size=contexts)
        arms = np.tile(best, (members, 1))
        wrong = draw.random(arms.shape) >= right
        arms[wrong] = (arms[wrong] + draw.integers(1, n_arms, size=int(wrong.sum()))) % n_arms
        mean = 0.1 + 0.1 * draw.random((members, contexts, n_arms))
        sure = np.where(wrong, 0.3 + 0.3 * draw.random(arms.shape), 0.5 + 0.4 * draw.random(arms.shape))
        np.put_along_axis(mean, arms[..., None], sure[..., None], axis=2)
        tables |= {f"{domain}_mean": mean, f"{domain}_arm": arms, f"{domain}_best": best}
    reward = (tables["source_arm"] == tables["source_best"]).astype(np.float64)
    return Scores(
        source_mean=tables["source_mean"],
        source_arm=tables["source_arm"].astype(np.int64),
        reward=reward,
        weight=np.ones_like(reward),
        target_mean=tables["target_mean"],
        target_arm=tables["target_arm"].astype(np.int64),
        arm_value=np.bincount(tables["source_best"], minlength=n_arms) / contexts,
    )
