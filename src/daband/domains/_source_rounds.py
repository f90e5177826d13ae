"""Read source rounds with their rewards, from evaluation domains, reward domains and logs.

``read_rewarded_rounds`` reads them, and ``apply_by_source`` calls a function for the rounds of each
source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from daband.base._arrays import AnyArray, FloatArray, IntArray
from daband.domains._contract import (
    Contexts,
    EvaluationDomain,
    LoggedDomain,
    LoggedRounds,
    RewardDomain,
    gather_rows,
)

#: The number of adjacent rows that are read at once.
_BLOCK_ROWS = 50


def apply_by_source(
    function: Callable[[AnyArray, str], Sequence[AnyArray]],
    contexts: AnyArray,
    source_names: AnyArray | None,
) -> list[AnyArray]:
    """Call ``function(contexts, source_name)`` for the contexts of each source, and join its
    results.

    ``function`` returns arrays with a row per context. The joined arrays have the rows in the order
    of ``contexts``. ``source_names`` (N,) has the name of each context's source; None if there is
    only one source.
    """
    if source_names is None:
        return list(function(contexts, "source"))
    names, source_indices = np.unique(source_names, return_inverse=True)
    return gather_rows(
        source_indices, lambda index, rows: function(contexts[rows], str(names[index]))
    )


def sample_round_indices(
    domain: EvaluationDomain | RewardDomain | LoggedDomain, n_rounds: int, seed: int
) -> IntArray:
    """Return the indices in the domain of the first ``n_rounds`` contexts that
    ``read_rewarded_rounds`` returns.
    """
    if isinstance(domain, Contexts):
        return domain.order(0, n_rounds, seed=seed)
    indices = np.concatenate(
        [np.arange(*row_range) for row_range in _space_row_ranges(len(domain), n_rounds)]
    )
    return indices[np.random.default_rng(seed).permutation(len(indices))]


def read_rewarded_rounds(
    domain: EvaluationDomain | RewardDomain | LoggedDomain, n_rounds: int, *, seed: int
) -> tuple[AnyArray, FloatArray | LoggedRounds]:
    """Return the contexts (N, *C) and the rewards of about ``n_rounds`` rounds.

    The rewards of a log are ``LoggedRounds``; those of other domains are an array (N, K) for every
    arm.
    """
    if not isinstance(domain, EvaluationDomain):
        rounds = domain.rounds(0, n_rounds, seed=seed)
        return rounds.contexts, rounds if isinstance(domain, LoggedDomain) else rounds.rewards
    contexts, rewards = sample_evenly(domain, n_rounds)
    # so that the first rows have all classes
    random_order = np.random.default_rng(seed).permutation(len(contexts))
    return contexts[random_order], rewards[random_order]


def sample_evenly(domain: EvaluationDomain, n_contexts: int) -> tuple[AnyArray, FloatArray]:
    """Return about ``n_contexts`` contexts, evenly spaced over a domain, and their expected rewards
    (N, K).

    The first ``n_contexts`` contexts may have only a few classes, since a domain may be sorted by
    class.
    """
    row_ranges = _space_row_ranges(len(domain), min(n_contexts, len(domain)))
    contexts = np.concatenate([domain.read(start, stop) for start, stop in row_ranges])
    return contexts, np.concatenate(
        [domain.read_expected(start, stop) for start, stop in row_ranges]
    )


def _space_row_ranges(n_rows: int, n_selected: int) -> list[tuple[int, int]]:
    """Return row ranges (start, stop) with about ``n_selected`` rows, evenly spaced over ``n_rows``
    rows.
    """
    if n_selected == n_rows:
        return [(0, n_rows)]
    n_blocks = math.ceil(n_selected / _BLOCK_ROWS)
    starts = np.linspace(0, n_rows - _BLOCK_ROWS, n_blocks).astype(int)
    stops = np.minimum(starts + _BLOCK_ROWS, [*starts[1:], n_rows])
    return [
        (int(start), int(stop)) for start, stop in zip(starts, stops, strict=True) if stop > start
    ]
