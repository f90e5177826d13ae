"""The incumbent: the decisions that are made today, with which every candidate is compared.

``as_incumbent`` reads the argument ``incumbent`` of ``assess``, ``choose`` and ``audit``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from daband.base._arrays import AnyArray, FloatArray, IntArray, as_numpy
from daband.domains._contract import Contexts
from daband.domains.readers._rounds import find_arm_index
from daband.errors import InvalidInput, did_you_mean
from daband.features._table_transform import find_distinct
from daband.policies._policy import Policy

#: Number of contexts per call of ``Policy.decide``.
_CONTEXTS_PER_CALL = 1024
#: Maximum number of target contexts from which today's choices are learned.
_MAX_CHOICES = 10_000
#: Minimum number of contexts in a leaf of the tree that predicts today's choices.
_MIN_LEAF_CONTEXTS = 10


@dataclass(frozen=True)
class Incumbent:
    """Today's decisions.

    They are one arm for every context, a stored choice per target context, or a policy.
    """

    #: Name for messages, such as "always coupon".
    name: str
    #: The arm that is always chosen; None if the arm depends on the context.
    arm: int | None = None
    #: The stored choice for each target context, (N,); None if there are no stored choices.
    choices: IntArray | None = None
    #: The policy that decides today; None if it is not a daband policy.
    policy: Policy | None = None
    #: The target's column with the stored choices; None if they are not in a column.
    column: str | None = None
    #: The target contexts of the stored choices.
    target: Contexts | None = None
    #: The names of the arms, (K,) or empty.
    arm_names: Sequence[str] = ()

    def read_source_arms(self, frame: Any) -> IntArray | None:
        """Return the arms in the incumbent's column of a frame of source rows, (n,).

        Return None if the frame has no such column, or a row has no arm in it.
        """
        if self.column is None or self.column not in frame.columns:
            return None
        index_by_name = {name: index for index, name in enumerate(self.arm_names)}
        values, codes = find_distinct(frame[self.column])
        arms = [None if value is None else find_arm_index(value, index_by_name) for value in values]
        return None if None in arms else np.array(arms, np.int64)[codes]

    def predict_choices(self, contexts: AnyArray, n_arms: int) -> FloatArray:
        """Return the probability of each arm (n, K) in contexts (n, *C), by a tree that predicts the
        stored choices from the target contexts.
        """
        from sklearn.tree import DecisionTreeRegressor  # importing takes half a second

        assert self.target is not None
        assert self.choices is not None
        rows = np.arange(min(_MAX_CHOICES, len(self.choices)))
        tree = DecisionTreeRegressor(min_samples_leaf=_MIN_LEAF_CONTEXTS, random_state=0)
        tree.fit(self.target.read(rows).reshape(len(rows), -1), np.eye(n_arms)[self.choices[rows]])
        return tree.predict(contexts.reshape(len(contexts), -1)).reshape(-1, n_arms)

    def choose_target_arms(self, contexts: AnyArray, indices: IntArray) -> IntArray:
        """Return the arms (n,) for these target contexts (n, *C).

        ``indices`` (n,) are the positions of the contexts in the target domain.
        """
        if self.choices is not None:
            return self.choices[indices]
        return self.choose_arms(contexts, "target")

    def choose_arms(self, contexts: AnyArray, domain: str) -> IntArray:
        """Return the arms for contexts (n, *C) of a domain, (n,)."""
        if self.policy is not None:
            return decide(self.policy, contexts, domain)[0]
        assert self.arm is not None
        return np.full(len(contexts), self.arm)


def decide(
    policy: Policy, contexts: AnyArray, domain: str, rule: str = "greedy"
) -> tuple[IntArray, AnyArray]:
    """Return the policy's arms (n,) and predicted rewards (n, K) for contexts (n, *C).

    The policy does not change.
    """
    decisions = [
        policy.decide(
            contexts[start : start + _CONTEXTS_PER_CALL], domain, rule=rule, round_offset=start
        )
        for start in range(0, len(contexts), _CONTEXTS_PER_CALL)
    ]
    arms = [decision.arm for decision in decisions]
    predicted_rewards = [decision.mean for decision in decisions]
    return np.concatenate(arms), np.concatenate(predicted_rewards)


def make_constant_incumbent(arm: int, arm_names: Sequence[str]) -> Incumbent:
    """Return the incumbent that always chooses this arm."""
    return Incumbent(f"always {arm_names[arm] if arm_names else f'arm {arm}'}", arm=int(arm))


def as_incumbent(
    incumbent: Any, *, n_arms: int, arm_names: Sequence[str], target: Contexts
) -> Incumbent | None:
    """Return the incumbent that the argument describes, or None for None.

    Args:
        incumbent: an arm's name or index, a column of the target's table, today's arm for each
            target context (N,), or a policy.
        n_arms: number of arms.
        arm_names: names of arms, (K,) or empty.
        target: target contexts.
    """
    if incumbent is None or isinstance(incumbent, Incumbent):
        return incumbent
    if isinstance(incumbent, Policy):
        if incumbent.n_arms != n_arms or incumbent.context_shape != target.context_shape:
            raise InvalidInput(
                f"incumbent is a policy for {incumbent.n_arms} arms and contexts"
                f" {incumbent.context_shape}; the target has {n_arms} arms and contexts"
                f" {target.context_shape}"
            )
        return Incumbent(f"the policy {incumbent.name}", policy=incumbent)
    if isinstance(incumbent, str | int | np.integer) and not isinstance(incumbent, bool):
        if not isinstance(incumbent, str) or incumbent in arm_names:
            return make_constant_incumbent(_find_arm_index(incumbent, n_arms, arm_names), arm_names)
        columns = (
            target.row_names if target.frame is None else target.frame.to_dict(as_series=False)
        )
        if incumbent not in columns:
            arms_text = ", ".join(arm_names) or f"0 to {n_arms - 1}"
            remedy = f"; a column that is not a context must be given as id (--id {incumbent})"
            raise InvalidInput(
                f"incumbent={incumbent!r} is neither an arm ({arms_text}) nor a column of the"
                " target "
                f"({', '.join(columns) or 'it has no table'}){did_you_mean(incumbent, arm_names) or remedy}"
            )
        name = f"the choices in column {incumbent}"
        column_incumbent = _make_incumbent_from_choices(
            columns[incumbent], name, n_arms, arm_names, target
        )
        return replace(column_incumbent, column=incumbent, arm_names=arm_names)
    if isinstance(incumbent, Sequence | np.ndarray) or hasattr(incumbent, "__array__"):
        choices = (
            incumbent
            if isinstance(incumbent, Sequence)
            else as_numpy(incumbent, "incumbent").tolist()
        )
        return _make_incumbent_from_choices(choices, "today's choices", n_arms, arm_names, target)
    raise InvalidInput(
        "incumbent must be an arm, a column of the target, an array of today's choices or a"
        f" policy, got {type(incumbent).__name__}"
    )


def _make_incumbent_from_choices(
    choices: Sequence[Any], name: str, n_arms: int, arm_names: Sequence[str], target: Contexts
) -> Incumbent:
    """Return the incumbent with a stored choice per target context."""
    if len(choices) != len(target):
        raise InvalidInput(
            f"incumbent has {len(choices)} choices for {len(target)} target contexts"
        )
    arms = [
        _find_arm_index(choice, n_arms, arm_names, f"incumbent, row {row}")
        for row, choice in enumerate(choices)
    ]
    return Incumbent(name, choices=np.array(arms, np.int64), target=target)


def _find_arm_index(
    arm: Any, n_arms: int, arm_names: Sequence[str], error_prefix: str = "incumbent"
) -> int:
    """Return the index of an arm that is given by its name, or by its index if no name is an
    integer.
    """
    index = (
        None
        if arm is None
        else find_arm_index(arm, {name: index for index, name in enumerate(arm_names)})
    )
    is_number = isinstance(arm, int | np.integer | float) and not isinstance(arm, bool)
    if (
        index is None
        and is_number
        and arm in range(n_arms)
        and not any(name.isdigit() for name in arm_names)
    ):
        index = int(arm)
    if index is None:
        raise InvalidInput(
            f"{error_prefix}: {arm!r} is not an arm"
            f" ({', '.join(arm_names) or f'0 to {n_arms - 1}'})"
        )
    return index
