"""The incumbent: today's decisions, which every candidate is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daband._arrays import AnyArray, IntArray, as_numpy
from daband.domains._contract import Contexts
from daband.errors import InvalidInput
from daband.policies._policy import Policy

_BATCH = 1024


@dataclass(frozen=True)
class Incumbent:
    """One arm for every context, a choice for each target context, or a policy."""

    #: Name for messages, such as "always coupon".
    name: str
    arm: int | None = None
    #: Today's choice for each target context, (N,).
    choices: IntArray | None = None
    policy: Policy | None = None

    def target_arms(self, contexts: AnyArray, indices: IntArray) -> IntArray:
        """Return the choices for the target contexts at these indices, (n,)."""
        if self.choices is not None:
            return self.choices[indices]
        return self.arms(contexts, "target")

    def arms(self, contexts: AnyArray, domain: str) -> IntArray:
        """Return the choices for contexts of a domain, (n,)."""
        if self.policy is not None:
            return decide(self.policy, contexts, domain)[0]
        assert self.arm is not None
        return np.full(len(contexts), self.arm)


def decide(policy: Policy, contexts: AnyArray, domain: str, rule: str = "greedy") -> tuple[IntArray, AnyArray]:
    """Return the arm (n,) and the predicted rewards (n, K) for each context; the policy does not change."""
    parts = [
        policy.decide(contexts[start : start + _BATCH], domain, rule=rule, round_offset=start)
        for start in range(0, len(contexts), _BATCH)
    ]
    return np.concatenate([part.arm for part in parts]), np.concatenate([part.mean for part in parts])


def constant_arm(arm: int, arm_names: Sequence[str]) -> Incumbent:
    """Return the incumbent that always chooses an arm."""
    return Incumbent(f"always {arm_names[arm] if arm_names else f'arm {arm}'}", arm=int(arm))


def as_incumbent(given: Any, *, n_arms: int, arm_names: Sequence[str], target: Contexts) -> Incumbent | None:
    """Return the incumbent that a user describes; None if it is the source's best arm.

    Args:
        given: an arm's name or index, a column of the target's table, today's choice for each target context (N,), or
            a policy.
        n_arms: number of arms.
        arm_names: names of arms, (K,) or empty.
        target: target contexts.
    """
    if given is None or isinstance(given, Incumbent):
        return given
    if isinstance(given, Policy):
        if given.n_arms != n_arms or given.context_shape != target.context_shape:
            raise InvalidInput(
                f"incumbent is a policy for {given.n_arms} arms and contexts of shape {given.context_shape}; here are "
                f"{n_arms} and {target.context_shape}"
            )
        return Incumbent(f"the policy {given.name}", policy=given)
    if isinstance(given, str | int | np.integer) and not isinstance(given, bool):
        if not isinstance(given, str) or given in arm_names:
            return constant_arm(_arm_index(given, n_arms, arm_names), arm_names)
        columns = target.row_names if target.table is None else target.table
        known = list(target.row_names) if target.table is None else target.table.columns
        if given not in known:
            arms = ", ".join(arm_names) or f"0 to {n_arms - 1}"
            raise InvalidInput(
                f"incumbent={given!r} is neither an arm ({arms}) nor a column of the target "
                f"({', '.join(known) or 'it has no table'}); a column that is not a context is kept if it is an id"
            )
        return _todays_choices(list(columns[given]), f"the choices in column {given}", n_arms, arm_names, target)
    if isinstance(given, Sequence | np.ndarray) or hasattr(given, "__array__"):
        values = given if isinstance(given, Sequence) else as_numpy(given, "incumbent").tolist()
        return _todays_choices(values, "today's choices", n_arms, arm_names, target)
    raise InvalidInput(
        "incumbent must be an arm, a column of the target, an array of today's choices or a policy, got "
        f"{type(given).__name__}"
    )


def _todays_choices(
    values: Sequence[Any], name: str, n_arms: int, arm_names: Sequence[str], target: Contexts
) -> Incumbent:
    if len(values) != len(target):
        raise InvalidInput(f"incumbent has {len(values)} choices for {len(target)} target contexts")
    return Incumbent(name, choices=np.array([_arm_index(value, n_arms, arm_names) for value in values], np.int64))


def _arm_index(value: Any, n_arms: int, arm_names: Sequence[str]) -> int:
    if str(value) in arm_names:
        return list(arm_names).index(str(value))
    number = isinstance(value, int | np.integer | float) and not isinstance(value, bool)
    if number and 0 <= value < n_arms and value == int(value):
        return int(value)
    raise InvalidInput(f"incumbent: {value!r} is not an arm ({', '.join(arm_names) or f'0 to {n_arms - 1}'})")
