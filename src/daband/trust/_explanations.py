"""What the new domain may mean, as predictions: one policy, read in every way that the user has not ruled out.

No unlabelled context tells whether a number means the same in both domains or is measured in other units ("warm for
here" is not warm; a price in another currency is no other price). So a policy predicts the target's rewards in several
ways, and each is an explanation of the target:

* ``as trained``: as the policy treats the target.
* ``nothing moved``: the target's contexts read as if they were the source's.
* ``other units``: every number that is no flag gets the source's mean and deviation first.

Policies of other kinds, given beside the first, and the experts of a mixture are further explanations. What the user
stated (``shift``) rules out some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray
from daband._shift import Shift
from daband.evaluation._policy_scores import in_domains
from daband.policies._policy import Policy

_BATCH = 1024
_TAIL = 0.001
_FLAG_VALUES = 2
_FARTHEST = 10.0
"""Deviations."""


@dataclass(frozen=True)
class Explanation:
    """What one policy, or one expert of it, predicts of both domains when the target is read in one way."""

    policy: int
    """The position of the policy."""
    reading: str
    source_mean: FloatArray
    """Predicted rewards on held-out source contexts, scaled to [0, 1], (N, K)."""
    target_mean: FloatArray
    """The same on target contexts, (L, K)."""
    source_arm: IntArray
    """Its choices, (N,) and (L,)."""
    target_arm: IntArray
    expert: str = ""
    method: str = ""
    """The kind of policy and what it assumes: the same for two seeds."""
    adapted: bool = False
    """Whether the policy's training looked at the target's contexts."""
    policy_name: str = ""
    """What the user calls the policy; without it, its position."""

    @property
    def name(self) -> str:
        """For people."""
        expert = f" ({self.expert})" if self.expert else ""
        return f"{self.policy_name or f'policy {self.policy}'}{expert}: {self.reading}"


def explanations_of(
    policies: Sequence[Policy],
    source: AnyArray,
    target: AnyArray,
    *,
    shift: Shift,
    rule: str,
    reward_range: tuple[float, float],
    origin: AnyArray | None = None,
    names: Sequence[str] = (),
) -> list[Explanation]:
    """Every explanation that the shift allows, of each policy first ``as trained``; none twice.

    Args:
        policies: the policies; none is changed.
        source: held-out source contexts, (N, *C) or (N, K, *C).
        target: target contexts, (L, *C) or (L, K, *C).
        shift: what may differ between the domains; where it is not stated, everything may.
        rule: "ucb" or "greedy".
        reward_range: what predicted rewards are scaled by.
        origin: with several sources, the name of the one that each held-out context is of, (N,).
        names: what the user calls the policies; one that two have is not used.
    """
    readings: dict[str, tuple[AnyArray, str]] = {"as trained": (target, "target")}
    if not shift.stated or not {"units", "style"} & set(shift.kinds):
        readings["nothing moved"] = (target, "source")
    if target.dtype != np.uint8 and target.ndim == source.ndim and len(policies[0].context_shape) == 1:
        columns = _columns_in_other_units(shift, policies[0].context_shape[0])
        if columns is not None:
            readings["other units"] = (in_source_units(source, target, columns), "source")
    explanations: list[Explanation] = []
    for index, policy in enumerate(policies):
        method = f"{policy.name} {policy.shift}"
        policy_name = names[index] if names and names.count(names[index]) == 1 else ""
        before = {
            name: (_scaled(mean, reward_range), arm) for name, mean, arm in _predict(policy, source, origin, rule)
        }
        for reading, (contexts, domain) in readings.items():
            where = None if domain == "source" else np.full(len(contexts), domain)
            for name, mean, arm in _predict(policy, contexts, where, rule):
                in_source = before[name]
                target_mean = _scaled(mean, reward_range)
                adapted = policy.adapts_to_target
                one = Explanation(
                    index, reading, in_source[0], target_mean, in_source[1], arm, name, method, adapted, policy_name
                )
                if not any(_same(one, other) for other in explanations):
                    explanations.append(one)
    return explanations


def in_source_units(source: AnyArray, target: AnyArray, columns: Sequence[bool]) -> AnyArray:
    """The target's contexts with the source's mean and deviation in some columns; flags and constants stay.

    The 0.1% smallest and largest values of a column are taken as no further out than the others.
    """
    flat = source.reshape(-1, source.shape[-1]).astype(np.float64)
    rows = target.reshape(-1, target.shape[-1]).astype(np.float64)
    moved = rows.copy()
    for column in np.flatnonzero(np.asarray(columns)):
        before, after = _clipped(flat[:, column]), _clipped(rows[:, column])
        flag = len(np.unique(flat[:, column])) <= _FLAG_VALUES
        # A number that is nearly always the same has no unit that its few other values could tell.
        if flag or before.std() <= 0.01 * flat[:, column].std() or after.std() <= 0.01 * rows[:, column].std():
            continue
        scaled = (rows[:, column] - after.mean()) / after.std()
        moved[:, column] = np.clip(scaled, -_FARTHEST, _FARTHEST) * before.std() + before.mean()
    return moved.reshape(target.shape).astype(target.dtype if target.dtype.kind == "f" else np.float64)


def _clipped(values: FloatArray) -> FloatArray:
    low, high = np.quantile(values, [_TAIL, 1.0 - _TAIL])
    return np.clip(values, low, high)


def _columns_in_other_units(shift: Shift, n_features: int) -> tuple[bool, ...] | None:
    """Which numbers may be in other units; None where none may."""
    if shift.stated and "units" not in shift.kinds:
        return None
    everywhere = not shift.stated or shift.units is None
    return tuple(everywhere or place in (shift.units or ()) for place in range(n_features))


def _predict(
    policy: Policy, contexts: AnyArray, origin: AnyArray | None, rule: str
) -> list[tuple[str, FloatArray, IntArray]]:
    """The policy's predictions (n, K) and choices (n,), and those of its experts where it has several.

    ``origin`` (n,) has the domain of each context; None: the first source.
    """
    experts = getattr(policy, "expert_means", None)
    names: list[str] = []

    def act(rows: AnyArray, domain: str) -> list[AnyArray]:
        parts = [slice(start, start + _BATCH) for start in range(0, len(rows), _BATCH)]
        decided = [policy.decide(rows[part], domain, rule=rule, round_offset=part.start) for part in parts]
        columns = [np.concatenate([part.mean for part in decided]), np.concatenate([part.arm for part in decided])]
        by_expert = [] if experts is None else [experts(rows[part], domain) for part in parts]
        names[:] = by_expert[0] if by_expert else []
        return columns + [np.concatenate([np.asarray(part[name], np.float64) for part in by_expert]) for name in names]

    mean, arm, *means = in_domains(act, contexts, origin)
    kept = [(name, own) for name, own in zip(names, means, strict=True) if np.ptp(own, axis=0).max() > 0]
    return [("", mean, arm), *((name, own, own.argmax(axis=1)) for name, own in kept)]  # a constant explains nothing


def _scaled(mean: FloatArray, reward_range: tuple[float, float]) -> FloatArray:
    low, high = reward_range
    return (np.asarray(mean, np.float64) - low) / (high - low if high > low else 1.0)


def _same(one: Explanation, other: Explanation) -> bool:
    return bool(
        np.array_equal(one.target_arm, other.target_arm)
        and np.allclose(one.target_mean, other.target_mean, rtol=0, atol=1e-6)
    )
