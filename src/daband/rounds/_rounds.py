"""Define the record of what happened (``Rounds``), and check it where it is made (``make_rounds``).

Tables, logs, policies and the service all use this record. Rounds made from user input are checked
completely by ``make_rounds``. The constructor, ``select``, ``join`` and ``sample`` trust their
input, so that a slice is not checked again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from daband.base._arguments import check_available
from daband.base._arrays import (
    AnyArray,
    ArrayLike,
    BoolArray,
    ContextRule,
    FloatArray,
    IntArray,
    check_arms,
    check_clusters,
    check_contexts,
    check_propensities,
    check_rewards,
    check_weights,
    take_chosen,
)
from daband.errors import InvalidInput


@dataclass(frozen=True)
class Guardrail:
    """A second outcome of the rounds of a log, which a policy must not make worse.

    A policy is deployed only if its mean of this outcome is proven to be at most ``margin`` worse
    than the incumbent's.

    >>> daband.domains.Guardrail([0.0, 1.0, 0.0], margin=0.01, name="-returns").margin
    0.01
    """

    #: The outcome of each round, (B,).
    values: FloatArray
    #: The largest loss that is accepted, at least 0, in the unit of the outcome.
    margin: float = 0.0
    #: The name of the outcome. A larger outcome is better, or a smaller one if the name starts with
    #: "-".
    name: str = "guardrail"

    def __post_init__(self) -> None:
        values = np.asarray(self.values, np.float64)
        if values.ndim != 1 or not np.isfinite(values).all():
            raise InvalidInput(f"guardrail {self.name!r} must have a finite number for each round")
        if not 0.0 <= self.margin < np.inf:
            raise InvalidInput(f"the guardrail's margin must be at least 0, got {self.margin!r}")
        object.__setattr__(self, "values", values)

    def __getitem__(self, rows: Any) -> Guardrail:
        """Return the outcome of these rounds."""
        return replace(self, values=self.values[rows])


@dataclass(frozen=True)
class Rounds:
    """What happened in B rounds, as columns. A column other than the first three may be None.

    >>> import numpy as np
    >>> from daband.rounds._rounds import Rounds
    >>> rounds = Rounds([[0.0], [1.0]], np.array([0, 1]), np.array([0.5, 1.0]))
    >>> len(rounds), rounds.select(slice(1, 2)).rewards
    (2, array([1.]))
    """

    #: Contexts, (B, *C), or (B, K, *C) with a context per arm.
    contexts: AnyArray
    #: The chosen arms, (B,).
    arms: IntArray
    #: Rewards of the chosen arms, (B,).
    rewards: FloatArray
    #: Probability with which each arm was chosen, (B,); None if it is not known.
    propensities: FloatArray | None = None
    #: How much each round counts, (B,); None if each counts once.
    weights: FloatArray | None = None
    #: Mask of the arms that could be chosen, (B, K); None if all could.
    offered: BoolArray | None = None
    #: Cluster of each round, (B,), e.g. its school, if arms were drawn for clusters; None if rounds
    #: are independent.
    clusters: IntArray | None = None
    #: Name of the domain of each round, (B,); None if all are of one domain.
    domains: AnyArray | None = None
    #: Id of each round, (B,), as integers or strings; None if rounds have no ids.
    ids: AnyArray | None = None
    #: A second outcome; None if there is none.
    guardrail: Guardrail | None = None

    def __len__(self) -> int:
        return len(self.contexts)

    @property
    def known_propensities(self) -> FloatArray:
        """The propensities of a log, which has them."""
        if self.propensities is None:
            raise InvalidInput("these rounds have no propensities")
        return self.propensities

    @property
    def known_weights(self) -> FloatArray:
        """The weights; ones if each round counts once."""
        return np.ones(len(self)) if self.weights is None else self.weights

    def to_arguments(self) -> dict[str, Any]:
        """Return these rounds as arguments of ``Policy.update``."""
        return {
            "contexts": self.contexts,
            "arm": self.arms,
            "reward": self.rewards,
            "weights": self.weights,
            "propensities": self.propensities,
            "available": self.offered,
            "clusters": self.clusters,
        }

    def select(self, rows: IntArray | BoolArray | slice) -> Rounds:
        """Return the rounds at these indices, of this slice, or where a mask (B,) is True."""
        columns: dict[str, Any] = {
            name: None if column is None else column[rows] for name, column in vars(self).items()
        }
        return Rounds(**columns)

    def sample(self, n: int, seed: int) -> Rounds:
        """Return n of the rounds, drawn without replacement; all of them if there are at most
        n.
        """
        if len(self) <= n:
            return self
        return self.select(np.random.default_rng(seed).permutation(len(self))[:n])

    @classmethod
    def join(cls, parts: Sequence[Rounds]) -> Rounds:
        """Return the rounds of several parts, one part after the other.

        A column that a part lacks is None, but ``weights`` and ``offered`` are filled: each
        round counts once, and all arms could be chosen.
        """
        columns = {name: [vars(part)[name] for part in parts] for name in vars(parts[0])}
        for name in ("weights", "offered"):
            known = next((column for column in columns[name] if column is not None), None)
            if known is not None:
                columns[name] = [
                    np.ones((len(part), *known.shape[1:]), known.dtype)
                    if column is None
                    else column
                    for part, column in zip(parts, columns[name], strict=True)
                ]
        guardrails = columns.pop("guardrail")
        joined: dict[str, Any] = {
            name: None if any(column is None for column in arrays) else np.concatenate(arrays)
            for name, arrays in columns.items()
        }
        if all(guardrail is not None for guardrail in guardrails):
            values = np.concatenate([guardrail.values for guardrail in guardrails])
            joined["guardrail"] = replace(guardrails[0], values=values)
        return cls(**joined)


def make_rounds(
    contexts: ArrayLike,
    arms: ArrayLike,
    rewards: ArrayLike,
    propensities: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    offered: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    domains: AnyArray | None = None,
    ids: AnyArray | None = None,
    guardrail: Guardrail | None = None,
    *,
    n_arms: int,
    context_rule: ContextRule | None = None,
    to_row: Callable[[int], object] = int,
) -> Rounds:
    """Return rounds after checking every column.

    Contexts are not checked again if ``context_rule`` is None. ``to_row(index)`` returns the row
    number that an error states for an index.
    """
    if context_rule is not None:
        contexts = check_contexts(contexts, context_rule)
    n = len(contexts)
    chosen_arms = check_arms(arms, n, n_arms, to_row)
    mask = None
    if offered is not None:
        mask = check_available(offered, n, n_arms, "offered arms")
        was_offered = take_chosen(mask, chosen_arms)
        if not was_offered.all():
            row = int(np.argmin(was_offered))
            raise InvalidInput(
                f"row {to_row(row)} has chosen arm {chosen_arms[row]}, which was not offered"
            )
    others = {
        "domains": domains,
        "ids": ids,
        "guardrail": None if guardrail is None else guardrail.values,
    }
    for name, values in others.items():
        if values is not None and len(values) != n:
            raise InvalidInput(f"{name} must have {n} values, got {len(values)}")
    return Rounds(
        contexts,
        chosen_arms,
        check_rewards(rewards, (n,), to_row),
        None if propensities is None else check_propensities(propensities, n, to_row),
        None if weights is None else check_weights(weights, n, to_row),
        mask,
        check_clusters(clusters, n),
        domains,
        ids,
        guardrail,
    )
