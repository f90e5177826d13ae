"""Evaluate a fixed policy by expected rewards that it never sees (``evaluate``)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from daband.base._arguments import check_one_of
from daband.base._arrays import AnyArray, BoolArray, FloatArray, take_chosen
from daband.domains._contract import EvaluationDomain, LoggedDomain
from daband.errors import InvalidInput
from daband.policies._policy import Policy

#: Arms are tied if their expected rewards differ by at most this fraction of the range over arms
#: plus a rounding error.
_TIE_FRACTION = 1e-9
#: The rounding error, as a fraction of the largest absolute reward.
_ROUNDING_FRACTION = 8 * float(np.finfo(np.float64).eps)
#: The number of contexts on which a policy decides at once.
_BATCH_CONTEXTS = 1024


@dataclass(frozen=True)
class Evaluation:
    """The value of a fixed policy on some contexts, in the reward unit of the domain.

    >>> pair = daband.domains.from_arrays(source=([[0.0], [1.0]] * 20, [0, 1] * 20), target=[[0.0]] * 40,
    ...                                   target_test=([[0.0], [1.0]], [0, 1]))
    >>> constant = daband.Constant.for_pair(pair, seed=0)
    >>> result = daband.evaluate(constant, pair.target_test)
    >>> result.best_value, result.constant_value, result.contexts
    (1.0, 0.5, 2)
    """

    #: The mean expected reward of the arms that the policy chose.
    value: float
    #: The mean expected reward of the best arm of each context.
    best_value: float
    #: The mean expected reward of the best constant arm: the arm with the highest mean over all
    #: these contexts.
    constant_value: float
    #: R_T: the sum over contexts of the best arm's expected reward minus the chosen arm's.
    regret: float
    #: The fraction of contexts whose chosen arm is a best arm. If exactly one arm has reward 1,
    #: this is 1 - R_T / N.
    accuracy: float
    #: The mean of ``per_class`` over classes that have contexts.
    accuracy_macro: float
    #: For each arm, the accuracy on contexts for which it is a best arm, (K,); None if there are no
    #: such contexts.
    per_class: list[float | None]
    #: The number of contexts, N.
    contexts: int
    #: How often each arm was chosen, (K,).
    arm_counts: list[int]
    #: Exploration rule of the evaluated choices.
    rule: str

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as a dictionary that JSON can hold."""
        return asdict(self)


def evaluate(
    policy: Policy,
    domain: EvaluationDomain | LoggedDomain | None,
    *,
    rule: str = "ucb",
    as_domain: str = "target",
) -> Evaluation:
    """Return the value, regret and accuracy of a policy on a domain. The policy does not change.

    Args:
        policy: the policy to evaluate.
        domain: contexts with the expected reward of every arm, e.g. ``pair.target_test``.
        rule: "ucb" chooses by predicted reward plus bonus, as in the paper; "greedy" by predicted
            reward only.
        as_domain: the domain in which the policy acts. It is ignored if the contexts have domain
            names, as ``pair.target_test`` has if there are several targets.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policy = daband.LinUCB.for_pair(pair, seed=0)
    >>> run = daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=8)
    >>> result = daband.evaluate(policy, pair.target_test)
    >>> result.regret >= 0 and result.value <= result.best_value
    True
    """
    if not isinstance(policy, Policy):
        raise InvalidInput(
            f"policy must be a daband policy, e.g. daband.LinUCB(...), got {type(policy).__name__}"
        )
    check_one_of("rule", rule, ("ucb", "greedy"))
    if domain is None:
        raise InvalidInput(
            "domain is None: this pair has no target labels, so nothing can be evaluated there;"
            " pass target_test=(contexts, labels or rewards) to the reader of the pair if you have"
            " some"
        )
    if not isinstance(domain, EvaluationDomain):
        hint = (
            ": a log has only the reward of the logged arm; daband.evaluate_log(policy, log)"
            " estimates from it"
        )
        hint = hint if isinstance(domain, LoggedDomain) else ""
        raise InvalidInput(
            "domain must be an EvaluationDomain, e.g. pair.target_test, got"
            f" {type(domain).__name__}{hint}"
        )
    if domain.n_arms != policy.n_arms:
        raise InvalidInput(f"domain has {domain.n_arms} arms, but the policy has {policy.n_arms}")
    if len(domain) == 0:
        raise InvalidInput("domain must have at least one context, got none")
    batches: list[tuple[AnyArray, ...]] = []
    n_contexts = 0
    # For each arm: the sum of its expected rewards, the contexts whose best arm it is, and right
    # choices among these.
    arm_sums = np.zeros((3, domain.n_arms))
    for name, part in domain.by_name.items():
        for contexts, rewards in part.batches(_BATCH_CONTEXTS):
            decision = policy.decide(
                contexts, name or as_domain, rule=rule, round_offset=n_contexts
            )
            n_contexts += len(contexts)
            is_best = find_best_arms(rewards)
            is_right = take_chosen(is_best, decision.arm)
            chosen_rewards = take_chosen(rewards, decision.arm)
            batches.append((decision.arm, chosen_rewards, rewards.max(axis=1), is_right))
            arm_sums += rewards.sum(axis=0), is_best.sum(axis=0), is_best[is_right].sum(axis=0)
    arms, chosen_values, best_values, is_right = map(np.concatenate, zip(*batches, strict=True))
    reward_sums, n_best, n_right = arm_sums
    per_class = [
        float(n_hits / n_total) if n_total else None
        for n_hits, n_total in zip(n_right, n_best, strict=True)
    ]
    return Evaluation(
        value=float(chosen_values.mean()),
        best_value=float(best_values.mean()),
        constant_value=float(reward_sums.max() / n_contexts),
        regret=float((best_values - chosen_values).sum()),
        accuracy=float(is_right.mean()),
        accuracy_macro=float(np.mean([accuracy for accuracy in per_class if accuracy is not None])),
        per_class=per_class,
        contexts=n_contexts,
        arm_counts=np.bincount(arms, minlength=domain.n_arms).tolist(),
        rule=rule,
    )


def find_best_arms(expected_rewards: FloatArray) -> BoolArray:
    """Return a mask (B, K) of the best arms by expected rewards (B, K).

    Arms that differ by rounding only are tied.
    """
    highest = expected_rewards.max(axis=1, keepdims=True)
    lowest = expected_rewards.min(axis=1, keepdims=True)
    tolerance = _TIE_FRACTION * (highest - lowest) + _ROUNDING_FRACTION * np.maximum(
        np.abs(highest), np.abs(lowest)
    )
    return expected_rewards >= highest - tolerance
