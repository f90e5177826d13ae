"""Selecting among trained policies without target rewards: criteria from the literature.

A criterion may use source rewards and unlabelled target contexts, which are available before the hand-over; target
rewards are not. So ``criteria`` takes a stream of target contexts, and refuses a domain with rewards.

* ``source-validation``: mean reward on source contexts that training did not use; where there are too few, the mean
  reward of the last quarter of the first pass, each round of which was decided before it was learned from
  (progressive validation: Blum, Kalai, Langford, 1999).
* ``entropy``: how undecided the predictions on the target are (Morerio, Cavazza, Murino: "Minimal-entropy correlation
  alignment for unsupervised deep domain adaptation", ICLR 2018). One that sends the whole target to one arm looks good.
* ``mutual-information``: between target context and prediction; confident, yet using all arms (Bridle et al., NIPS
  1991; as a validation criterion: Musgrave et al., 2022).
* ``snd``: soft neighbourhood density (Saito et al.: "Tune it the right way", ICCV 2021): how many others each
  target prediction is close to.
* ``dev``: deep embedded validation (You et al.: "Towards accurate model selection in deep unsupervised domain
  adaptation", ICML 2019): loss on held-out source rounds, weighted by how much their latents look like the target's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from daband._arrays import AnyArray, FloatArray
from daband.domains._contract import Contexts, EvaluationDomain, LoggedDomain, LoggedRounds, RewardDomain
from daband.errors import InvalidInput
from daband.evaluation._policy_scores import rewarded_rounds
from daband.policies._policy import Policy

#: Predicted rewards lie in [0, 1], too flat for a softmax: they are multiplied by this, as the objective does.
_SCALE = 10.0
#: With fewer held-out source rounds than this, their mean is too noisy to select by.
_FEWEST = 100
_BATCH = 512


@dataclass(frozen=True)
class Criterion:
    """How to select by one criterion."""

    #: Whether the highest value is best, or the lowest.
    highest: bool
    summary: str


#: Every selection criterion; none needs target rewards.
CRITERIA: dict[str, Criterion] = {
    "source-validation": Criterion(True, "mean reward on source rounds not trained on"),
    "entropy": Criterion(False, "entropy of target predictions"),
    "mutual-information": Criterion(True, "mutual information of target contexts and predictions"),
    "snd": Criterion(True, "soft neighbourhood density of target predictions"),
    "dev": Criterion(False, "source loss weighted to look like the target (DEV)"),
}


@dataclass(frozen=True)
class SourceHistory:
    """The source rounds that a policy was trained on: their rewards, (N,), and the seed that ordered the contexts."""

    rewards: FloatArray
    seed: int


def criteria(
    policy: Policy,
    *,
    source: RewardDomain | LoggedDomain,
    target: Contexts,
    history: SourceHistory,
    source_test: EvaluationDomain | LoggedDomain | None = None,
    contexts: int = 2000,
) -> dict[str, float | None]:
    """Every criterion's value for a trained policy, None where it cannot be computed. The policy is not changed.

    Args:
        policy: the policy.
        source: the domain it was trained in.
        target: contexts of the target; a domain with rewards is refused.
        history: the rounds it was trained on there.
        source_test: source rounds that training did not use, ``pair.source_test``. Without at least 100 of them, rounds
            of ``source`` that came after training serve, and where there are too few, rewards while training; of a log
            nothing does, as these are rewards of another policy.
        contexts: how many contexts of each domain are used at most.
    """
    if not isinstance(target, Contexts) or isinstance(target, RewardDomain | LoggedDomain):
        raise InvalidInput(
            f"criteria take target contexts without rewards, e.g. pair.target, got {type(target).__name__}"
        )
    unlabelled = target.batch(0, min(contexts, len(target)), seed=history.seed)
    probability = _softmax(_SCALE * _predict(policy, unlabelled))
    values: dict[str, float | None] = {
        "entropy": prediction_entropy(probability),
        "mutual-information": mutual_information(probability),
        "snd": soft_neighbourhood_density(probability) if len(probability) > 2 else None,
    }
    held_out = _held_out(policy, source, source_test, history, contexts)
    if held_out is not None:
        rows, reward, weight = held_out
        values["source-validation"] = float(np.average(reward, weights=weight)) if weight.any() else None
        seen = source.batch(0, min(contexts, len(history.rewards)), seed=history.seed)
        values["dev"] = _dev(policy, seen, rows, unlabelled, reward, weight)
    elif isinstance(source, LoggedDomain):  # rewards while training are those of the logging policy's choices
        values["source-validation"] = values["dev"] = None
    else:
        first_pass = history.rewards[: len(source)]
        values["source-validation"] = float(first_pass[-max(1, len(first_pass) // 4) :].mean())
        values["dev"] = None
    return {name: values[name] for name in CRITERIA}


def prediction_entropy(probability: FloatArray) -> float:
    """The mean entropy, in nats, of predicted distributions over arms, (N, K)."""
    return float(_entropies(probability).mean())


def mutual_information(probability: FloatArray) -> float:
    """The entropy of the mean prediction less the mean entropy of predictions (N, K), in nats; at most ln K."""
    return float(_entropies(probability.mean(axis=0, keepdims=True))[0] - _entropies(probability).mean())


def soft_neighbourhood_density(probability: FloatArray, *, temperature: float = 0.05) -> float:
    """The mean entropy, in nats, of each prediction's similarities to all others; predictions are (N, K), N > 2.

    Similarities are cosines over ``temperature``, put through a softmax over the other N - 1 predictions.
    """
    if len(probability) < 3:
        raise InvalidInput(f"soft neighbourhood density needs at least 3 predictions, got {len(probability)}")
    unit = probability / np.linalg.norm(probability, axis=1, keepdims=True)
    total = 0.0
    for start in range(0, len(unit), _BATCH):  # rows at a time: the whole table is N x N
        rows = unit[start : start + _BATCH] @ unit.T / temperature
        rows[np.arange(len(rows)), start + np.arange(len(rows))] = -np.inf
        total += float(_entropies(_softmax(rows)).sum())
    return total / len(unit)


def deep_embedded_risk(loss: FloatArray, weight: FloatArray) -> float:
    """The importance-weighted risk with the weights' mean, known to be 1, as control variate; both (N,)."""
    weighted = loss * weight
    variance = float(weight.var(ddof=1))
    if variance == 0.0:
        return float(weighted.mean())
    slope = -float(np.cov(weighted, weight, ddof=1)[0, 1]) / variance
    return float(weighted.mean() + slope * weight.mean() - slope)


def _dev(
    policy: Policy, seen: AnyArray, held_out: AnyArray, unlabelled: AnyArray, reward: FloatArray, weight: FloatArray
) -> float | None:
    """DEV with a logistic regression on latents as the density ratio; None for policies that have no latent."""
    if not hasattr(policy, "latent") or not weight.any():
        return None
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    source, target, judged = (
        _latents(policy, contexts, domain)
        for contexts, domain in ((seen, "source"), (unlabelled, "target"), (held_out, "source"))
    )
    from_target = np.repeat([0, 1], [len(source), len(target)])
    judge = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    judge.fit(np.concatenate([source, target]), from_target)
    probability = judge.predict_proba(judged)
    ratio = len(source) / len(target) * probability[:, 1] / np.maximum(probability[:, 0], 1e-12)
    low, high = policy.reward_moments.observed
    loss = 1.0 - (reward - low) / (high - low)
    share = weight / weight.mean()  # 1 unless the source is a log
    return deep_embedded_risk(loss, ratio * share)


def _held_out(
    policy: Policy,
    source: RewardDomain | LoggedDomain,
    source_test: EvaluationDomain | LoggedDomain | None,
    history: SourceHistory,
    most: int,
) -> tuple[AnyArray, FloatArray, FloatArray] | None:
    """Contexts (N, *C) that training did not use, the rewards of the policy's own choices (N,), and weights (N,).

    None where there are fewer than 100.
    """
    domain: EvaluationDomain | RewardDomain | LoggedDomain = source
    start, stop = len(history.rewards), min(len(history.rewards) + most, len(source))
    if source_test is not None and len(source_test) >= _FEWEST:
        domain, start, stop = source_test, 0, min(most, len(source_test))
    elif stop - start < _FEWEST:
        return None
    contexts, rounds = rewarded_rounds(domain, start, stop, seed=history.seed)
    arms = _in_batches(lambda part: policy.decide(part, "source", rule="greedy").arm, contexts)
    if isinstance(rounds, LoggedRounds):
        return contexts, rounds.rewards, np.where(arms == rounds.arms, 1.0 / rounds.propensities, 0.0)
    return contexts, rounds[np.arange(len(arms)), arms], np.ones(len(arms))


def _predict(policy: Policy, contexts: AnyArray) -> FloatArray:
    """Predicted rewards in the target, (N, K), scaled to [0, 1]."""
    low, high = policy.reward_moments.observed
    mean = _in_batches(lambda part: policy.decide(part, "target", rule="greedy").mean, contexts)
    return (mean - low) / (high - low)


def _latents(policy: Any, contexts: AnyArray, domain: str) -> FloatArray:
    latents = _in_batches(lambda part: policy.latent(part, domain), contexts)
    return latents.reshape(len(latents), math.prod(latents.shape[1:]))


def _in_batches(function: Any, contexts: AnyArray) -> Any:
    return np.concatenate([function(contexts[start : start + _BATCH]) for start in range(0, len(contexts), _BATCH)])


def _softmax(logits: FloatArray) -> FloatArray:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def _entropies(probability: FloatArray) -> FloatArray:
    positive = np.where(probability > 0, probability, 1.0)  # 0 ln 0 is 0
    return -(probability * np.log(positive)).sum(axis=1)
