"""What every estimator of target accuracy must do, whoever wrote it.

An estimator takes ``daband.evaluation.scores.Scores`` and returns an accuracy per policy, (M,). It has no target reward
to look at; these checks hold it to what follows from the problem alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from daband.arrays import AnyArray, FloatArray
from daband.evaluation import Scores

__all__ = ["check_estimator", "made_up_scores"]

Estimator = Callable[[Scores], FloatArray]
_TOLERANCE = 1e-6


def check_estimator(estimator: Estimator, *, members: int = 3) -> None:
    """Raise an ``AssertionError`` that says what is wrong where an estimator breaks one of these rules.

    * It returns a finite share per policy, and leaves the scores as they were.
    * The names of arms and the order of contexts do not matter; the order of policies is that of the result.
    * The same scores give the same result.
    * Where the target's contexts are those of the source and every choice is right, it is above .9.
    * A policy that is right in the source and undecided in the target is estimated lower than one that stays as it is.

    Args:
        estimator: the estimator.
        members: how many policies it is given; 1 for one that judges a policy by itself.
    """
    scores = made_up_scores(members=members, right=0.8, seed=0)
    before = {name: getattr(scores, name).copy() for name in Scores.__dataclass_fields__}
    found = _called(estimator, scores)
    for name, array in before.items():
        assert np.array_equal(getattr(scores, name), array), f"the estimator changed {name}"
    assert np.array_equal(found, _called(estimator, scores)), "the same scores gave another estimate"
    _same(found, _called(estimator, _arms_renamed(scores)), "the names of arms matter")
    shuffle = np.random.default_rng(1).permutation
    mixed = scores.rows(source=shuffle(scores.source_arm.shape[1]), target=shuffle(scores.target_arm.shape[1]))
    loose = float(np.abs(_called(estimator, mixed) - found).max())  # some look at the first contexts only
    assert loose < 0.1, f"the order of contexts changes the estimate by {loose:.3f}"
    if members > 1:
        order = np.arange(members)[::-1]
        _same(found[order], _called(estimator, scores.of(order.tolist())), "the order of policies matters")
    perfect = made_up_scores(members=members, right=1.0, seed=2)
    alike = replace(perfect, target_mean=perfect.source_mean, target_arm=perfect.source_arm)
    kept = _called(estimator, alike)
    assert (kept > 0.9).all(), f"nothing changed and every choice is right, but the estimate is {kept.min():.3f}"
    lost = _called(estimator, _undecided(perfect))
    assert (lost < kept).all(), "random choices in the target are estimated no lower than those in the source"


def made_up_scores(*, members: int, right: float, seed: int, contexts: int = 400, n_arms: int = 4) -> Scores:
    """Scores of policies that are right on about this share of contexts, in both domains, each with its own errors."""
    draw = np.random.default_rng(seed)
    tables: dict[str, AnyArray] = {}
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


def _called(estimator: Estimator, scores: Scores) -> FloatArray:
    found = np.asarray(estimator(scores), np.float64)
    assert found.shape == (scores.members,), f"{scores.members} policies, but estimates of shape {found.shape}"
    assert np.isfinite(found).all(), "an estimate is not finite"
    assert ((found >= 0.0) & (found <= 1.0)).all(), f"an accuracy lies in [0, 1], got {found}"
    return found


def _same(one: FloatArray, other: FloatArray, complaint: str) -> None:
    worst = float(np.abs(one - other).max())
    assert worst < _TOLERANCE, f"{complaint}: by {worst:.3g}"


def _arms_renamed(scores: Scores) -> Scores:
    new = np.random.default_rng(3).permutation(scores.n_arms)
    back = np.argsort(new)
    return replace(
        scores,
        arm_value=scores.arm_value[back],
        source_mean=scores.source_mean[..., back],
        source_arm=new[scores.source_arm],
        target_mean=scores.target_mean[..., back],
        target_arm=new[scores.target_arm],
    )


def _undecided(scores: Scores) -> Scores:
    draw = np.random.default_rng(4)
    mean = 0.25 + 0.01 * draw.random(scores.target_mean.shape)
    return replace(scores, target_mean=mean, target_arm=mean.argmax(axis=2))
