"""Select among trained policies without target rewards: criteria from the literature.

A criterion may use source rewards and unlabelled target contexts, which are available before deployment; target
rewards are not. So ``criteria`` takes a stream of target contexts, and rejects a domain with rewards.

* ``source-validation``: mean reward on source contexts that training did not use; if there are too few, the mean
  reward of the last quarter of the first pass, each round of which was decided before it was learned from
  (progressive validation: Blum, Kalai, Langford, 1999).
* ``entropy``: the mean entropy of the predictions on the target (Morerio, Cavazza, Murino: "Minimal-entropy correlation
  alignment for unsupervised deep domain adaptation", ICLR 2018). A policy that always chooses one arm looks good.
* ``mutual-information``: between target context and prediction; confident, yet using all arms (Bridle et al., NIPS
  1991; as a validation criterion: Musgrave et al., 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray
from daband.domains._contract import Contexts, EvaluationDomain, LoggedDomain, LoggedRounds, RewardDomain
from daband.errors import InvalidInput
from daband.policies._policy import Policy

#: Predicted rewards are in [0, 1], too flat for a softmax: they are multiplied by this, as in the objective.
_SCALE = 10.0
#: With fewer held-out source rounds than this, their mean is too noisy to select by.
_MIN_ROUNDS = 100
_BATCH = 512
#: Rows that are read at once from a domain in its own order.
_BLOCK = 50


@dataclass(frozen=True)
class Criterion:
    """The direction of one selection criterion."""

    #: True if the highest value is best, False if the lowest is.
    highest: bool
    summary: str


#: Every selection criterion; none needs target rewards.
CRITERIA: dict[str, Criterion] = {
    "source-validation": Criterion(True, "mean reward on source rounds not trained on"),
    "entropy": Criterion(False, "entropy of target predictions"),
    "mutual-information": Criterion(True, "mutual information of target contexts and predictions"),
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
    """Return every criterion's value for a trained policy, None if it cannot be computed. The policy is not changed.

    Args:
        policy: the policy.
        source: the domain it was trained in.
        target: contexts of the target; a domain with rewards is rejected.
        history: the rounds it was trained on there.
        source_test: source rounds that training did not use, ``pair.source_test``. With fewer than 100 of them, rounds
            of ``source`` after training are used, and if those are too few, rewards during training. A log has no
            substitute, because its rewards belong to another policy.
        contexts: the maximum number of contexts of each domain.
    """
    if not isinstance(target, Contexts) or isinstance(target, RewardDomain | LoggedDomain):
        raise InvalidInput(
            f"criteria take target contexts without rewards, e.g. pair.target, got {type(target).__name__}"
        )
    unlabelled = target.batch(0, min(contexts, len(target)), seed=history.seed)
    probability = _softmax(_SCALE * _predict(policy, unlabelled))
    return {
        "source-validation": _source_validation(policy, source, source_test, history, contexts),
        "entropy": prediction_entropy(probability),
        "mutual-information": mutual_information(probability),
    }


def prediction_entropy(probability: FloatArray) -> float:
    """Return the mean entropy, in nats, of predicted distributions over arms, (N, K)."""
    return float(_entropies(probability).mean())


def mutual_information(probability: FloatArray) -> float:
    """Return the entropy of the mean prediction minus the mean entropy of predictions (N, K), in nats; at most ln K."""
    return float(_entropies(probability.mean(axis=0, keepdims=True))[0] - _entropies(probability).mean())


def _source_validation(
    policy: Policy,
    source: RewardDomain | LoggedDomain,
    source_test: EvaluationDomain | LoggedDomain | None,
    history: SourceHistory,
    most: int,
) -> float | None:
    """Return the mean reward of the policy's choices in source rounds that training did not use.

    With fewer than 100 of them, return the mean reward of the last quarter of the first pass; for a log None, as these
    are rewards of another policy.
    """
    domain: EvaluationDomain | RewardDomain | LoggedDomain = source
    start, stop = len(history.rewards), min(len(history.rewards) + most, len(source))
    if source_test is not None and len(source_test) >= _MIN_ROUNDS:
        domain, start, stop = source_test, 0, min(most, len(source_test))
    elif stop - start < _MIN_ROUNDS:
        first_pass = history.rewards[: len(source)]
        last_quarter = first_pass[-max(1, len(first_pass) // 4) :]
        return None if isinstance(source, LoggedDomain) else float(last_quarter.mean())
    contexts, rounds = rewarded_rounds(domain, start, stop, seed=history.seed)
    arms = _in_batches(lambda part: policy.decide(part, "source", rule="greedy").arm, contexts)
    if not isinstance(rounds, LoggedRounds):
        return float(rounds[np.arange(len(arms)), arms].mean())
    weights = np.where(arms == rounds.arms, 1.0 / rounds.propensities, 0.0)
    return float(np.average(rounds.rewards, weights=weights)) if weights.any() else None


def _predict(policy: Policy, contexts: AnyArray) -> FloatArray:
    """Return predicted rewards in the target, (N, K), scaled to [0, 1]."""
    low, high = policy.reward_moments.observed
    mean = _in_batches(lambda part: policy.decide(part, "target", rule="greedy").mean, contexts)
    return (mean - low) / (high - low)


def _in_batches(function: Any, contexts: AnyArray) -> Any:
    return np.concatenate([function(contexts[start : start + _BATCH]) for start in range(0, len(contexts), _BATCH)])


def _softmax(logits: FloatArray) -> FloatArray:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def _entropies(probability: FloatArray) -> FloatArray:
    positive = np.where(probability > 0, probability, 1.0)  # 0 ln 0 is 0
    return -(probability * np.log(positive)).sum(axis=1)


# Source rounds, with the reward of every arm or with the logged arms.


def in_domains(
    act: Callable[[AnyArray, str], Sequence[AnyArray]], contexts: AnyArray, origin: AnyArray | None
) -> list[AnyArray]:
    """Return the arrays of ``act(contexts, domain)``, a row per context, with each context in its own source."""
    if origin is None:
        return list(act(contexts, "source"))
    rows_of = {str(name): np.flatnonzero(origin == name) for name in np.unique(origin)}
    order = np.argsort(np.concatenate(list(rows_of.values())))
    parts = [act(contexts[rows], name) for name, rows in rows_of.items()]
    return [np.concatenate(columns)[order] for columns in zip(*parts, strict=True)]


def positions_of(domain: EvaluationDomain | RewardDomain | LoggedDomain, n: int, seed: int) -> IntArray:
    """Return the indices of the contexts that ``rewarded_rounds`` returns for the first ``n`` rounds."""
    if isinstance(domain, Contexts):
        return domain.order(0, n, seed=seed)
    positions = np.concatenate([np.arange(*block) for block in _blocks(len(domain), n)])
    return positions[np.random.default_rng(seed).permutation(len(positions))]


def rewarded_rounds(
    domain: EvaluationDomain | RewardDomain | LoggedDomain, start: int, stop: int, *, seed: int
) -> tuple[AnyArray, FloatArray | LoggedRounds]:
    """Return the contexts of these rounds, and the reward of every arm (N, K) or the logged rounds."""
    if isinstance(domain, LoggedDomain):
        log = domain.rounds(start, stop, seed=seed)
        return log.contexts, log
    if isinstance(domain, RewardDomain):
        rounds = domain.rounds(start, stop, seed=seed)
        return rounds.contexts, rounds.rewards
    contexts, table = sample_evenly(domain, stop - start)
    order = np.random.default_rng(seed).permutation(len(contexts))  # the first rows must have all classes
    return contexts[order], table[order]


def sample_evenly(domain: EvaluationDomain, n: int) -> tuple[AnyArray, FloatArray]:
    """Return about ``n`` contexts, evenly spaced over a domain, and their expected rewards (n, K).

    A domain may be sorted by class, so that its first contexts have only a few classes.
    """
    blocks = _blocks(len(domain), min(n, len(domain)))
    contexts = np.concatenate([domain.read(start, stop) for start, stop in blocks])
    return contexts, np.concatenate([domain.read_expected(start, stop) for start, stop in blocks])


def _blocks(total: int, n: int) -> list[tuple[int, int]]:
    """Return the row ranges to read, so that ``n`` of ``total`` rows are evenly spaced over all of them."""
    if n == total:
        return [(0, total)]
    count = math.ceil(n / _BLOCK)
    starts = np.linspace(0, total - _BLOCK, count).astype(int)
    ends = np.minimum(starts + _BLOCK, [*starts[1:], total])
    return [(int(start), int(stop)) for start, stop in zip(starts, ends, strict=True) if stop > start]
