"""Zero-shot evaluation: how a fixed policy does in a domain, by expected rewards that it never sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray
from daband.domains import EvaluationDomain, LoggedDomain
from daband.errors import InvalidInput
from daband.linear import Decision
from daband.policies import Policy

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True)
class Evaluation:
    """How a fixed policy did.

    ``regret`` is R_T, the sum over contexts of the best arm's expected reward minus the chosen one's; ``accuracy`` is
    1 - R_T / N, which for classification is the share of right answers. ``per_class`` is the same for the contexts
    whose best arm is that class (None where there are none), ``accuracy_macro`` the mean of these.
    """

    accuracy: float
    accuracy_macro: float
    regret: float
    per_class: list[float | None]
    contexts: int
    arm_counts: list[int]
    rule: str

    def as_dict(self) -> dict[str, Any]:
        """All fields, as JSON can hold them."""
        return asdict(self)


def evaluate(
    policy: Policy,
    domain: EvaluationDomain | LoggedDomain | None,
    *,
    rule: str = "ucb",
    as_domain: str = "target",
    batch_size: int = 1024,
    observe: Callable[[AnyArray, FloatArray, Decision], None] | None = None,
) -> Evaluation:
    """Evaluate a policy as it stands; it is the same afterwards.

    Args:
        policy: the policy.
        domain: contexts with the expected reward of every arm, e.g. ``pair.target_test``.
        rule: "ucb" keeps the exploration bonus, as the paper's Definition of the policy does; "greedy" drops it.
        as_domain: what the policy is told the contexts come from.
        batch_size: contexts at a time.
        observe: called with every batch in turn: contexts (B, *C), expected rewards (B, K) and the decision on them.
    """
    if not isinstance(domain, EvaluationDomain):
        missing = ": this pair has no labels of the target to evaluate with" if domain is None else ""
        if isinstance(domain, LoggedDomain):
            missing = ": a log holds the reward of the logged arm alone, which takes an off-policy estimate"
        raise InvalidInput(
            f"domain must be an EvaluationDomain, e.g. pair.target_test, got {type(domain).__name__}{missing}"
        )
    if domain.n_arms != policy.n_arms:
        raise InvalidInput(f"domain has {domain.n_arms} arms, the policy {policy.n_arms}")
    if rule not in ("ucb", "greedy"):
        raise InvalidInput(f"rule must be 'ucb' or 'greedy', got {rule!r}")
    if not isinstance(batch_size, int) or batch_size < 1:
        raise InvalidInput(f"batch_size must be a whole number >= 1, got {batch_size!r}")
    regrets: list[FloatArray] = []
    classes: list[IntArray] = []
    arms: list[IntArray] = []
    for contexts, expected in domain.batches(batch_size):
        decision = policy.decide(contexts, as_domain, rule=rule, ahead=sum(map(len, arms)))
        arm = decision.arm
        regrets.append(expected.max(axis=1) - expected[np.arange(len(arm)), arm])
        classes.append(expected.argmax(axis=1))
        arms.append(arm)
        if observe is not None:
            observe(contexts, expected, decision)
    regret, best = np.concatenate(regrets), np.concatenate(classes)
    per_class: list[float | None] = []
    for arm_number in range(domain.n_arms):
        rows = best == arm_number
        per_class.append(float(1.0 - regret[rows].mean()) if rows.any() else None)
    return Evaluation(
        accuracy=float(1.0 - regret.mean()),
        accuracy_macro=float(np.mean([share for share in per_class if share is not None])),
        regret=float(regret.sum()),
        per_class=per_class,
        contexts=len(regret),
        arm_counts=np.bincount(np.concatenate(arms), minlength=domain.n_arms).tolist(),
        rule=rule,
    )
