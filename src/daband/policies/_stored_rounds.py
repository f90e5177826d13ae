"""Store the rounds that a policy has learned, of which it can learn again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from daband.base._arrays import AnyArray, Arrays, FloatArray, IntArray, to_rows
from daband.logs._scores import sort_rounds
from daband.policies._trees import MAX_STORED_ROUNDS, sample_rounds
from daband.rounds._rounds import Rounds, make_rounds

#: The columns that files contain.
_COLUMNS = ("contexts", "arms", "rewards", "propensities", "weights", "clusters", "domains")


class StoredRounds:
    """A sample of learned rounds, which does not depend on their order.

    Every round has all columns: a flat context; a propensity, 0 if it is unknown; a weight above 0;
    a cluster, 0 if the round has none; and its domain, True for the target.

    Args:
        n_inputs: the number of dimensions of a context.
    """

    def __init__(self, n_inputs: int) -> None:
        no_rounds = Rounds(np.empty((0, n_inputs)), np.zeros(0, np.int64), np.zeros(0))
        self._blocks = [fill_columns(no_rounds, is_target=False)]

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def add(self, rounds: Rounds) -> None:
        """Store rounds with all columns. If there are too many, keep 131,072."""
        self._blocks.append(rounds)
        if len(self) > 2 * MAX_STORED_ROUNDS:
            self._blocks = [self.sample()]

    def sample(self) -> Rounds:
        """Return at most 131,072 rounds, in the order of learning if these are all rounds."""
        rounds = Rounds.join(self._blocks)
        return rounds.select(sample_rounds(_make_keys(rounds)))

    def read(self) -> Rounds:
        """Return ``sample`` in an order that does not depend on that of learning, because sums of
        floating-point numbers do.
        """
        rounds = self.sample()
        return rounds.select(sort_rounds(rounds))

    def find(self, rounds: Rounds) -> IntArray | None:
        """Return the index in ``rounds`` of each round of ``read``, (n,); None if another round is
        stored, or none.
        """
        stored = self.read()
        if not len(rounds) or not len(stored):
            return None
        rounds = fill_columns(rounds, is_target=False)
        stored.domains[:] = False  # type: ignore[index]
        keys, stored_keys = map(_make_keys, (rounds, stored))
        names, stored_names = (
            np.ascontiguousarray(array)
            .view(np.dtype((np.void, array.shape[1] * array.itemsize)))
            .ravel()
            for array in (keys, stored_keys)
        )
        order = np.argsort(names, kind="stable")
        positions = np.minimum(np.searchsorted(names[order], stored_names), len(names) - 1)
        indices = order[positions]
        return indices if np.array_equal(keys[indices], stored_keys) else None

    def arrays(self, *, with_rounds: bool) -> Arrays:
        """Return the columns for a file."""
        rounds = self.sample().select(slice(None if with_rounds else 0))
        return {name: getattr(rounds, name) for name in _COLUMNS}

    @classmethod
    def restore(cls, arrays: Mapping[str, AnyArray], n_inputs: int, n_arms: int) -> StoredRounds:
        """Return the rounds of ``arrays``. Raise an error if they are damaged."""
        contexts, arms, rewards, propensities, weights, clusters, domains = (
            np.array(arrays[name]) for name in _COLUMNS
        )
        n = len(contexts)
        if (
            contexts.shape != (n, n_inputs)
            or not np.isfinite(contexts).all()
            or propensities.shape != (n,)
            or domains.shape != (n,)
            or domains.dtype != np.bool_
            or clusters.shape != (n,)
        ):
            raise ValueError(f"kept must have {n_inputs} finite numbers and all columns per round")
        if not ((propensities >= 0) & (propensities <= 1)).all():
            raise ValueError("kept has a propensity outside [0, 1]")
        stored = cls(n_inputs)
        if not n:
            return stored
        make_rounds(contexts, arms, rewards, weights=weights, n_arms=n_arms)
        stored.add(
            Rounds(
                contexts, arms, rewards, propensities, weights, clusters=clusters, domains=domains
            )
        )
        return stored


def fill_columns(rounds: Rounds, *, is_target: bool) -> Rounds:
    """Return rounds of one domain with all columns of ``StoredRounds``, without those of weight
    0.
    """
    n = len(rounds.arms)
    none = np.zeros(n)
    filled = Rounds(
        to_rows(rounds.contexts),
        np.asarray(rounds.arms, np.int64),
        rounds.rewards,
        none if rounds.propensities is None else rounds.propensities,
        np.ones(n) if rounds.weights is None else rounds.weights,
        clusters=none.astype(np.int64) if rounds.clusters is None else rounds.clusters,
        domains=np.full(n, is_target),
    )
    return filled.select(filled.known_weights > 0)


def _make_keys(rounds: Rounds) -> FloatArray:
    """Return a row of numbers for each round, (n, m), which identifies it."""
    columns = (rounds.clusters, rounds.propensities, rounds.arms, rounds.rewards)
    # rounds of the target come first
    signed_weights = np.where(np.asarray(rounds.domains), -1.0, 1.0) * rounds.known_weights
    return np.column_stack([rounds.contexts, *columns, signed_weights]).astype(np.float64)  # type: ignore[list-item]
