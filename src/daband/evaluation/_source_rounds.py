"""Read source rounds with rewards, from evaluation domains, reward domains and logs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray
from daband.domains._contract import Contexts, EvaluationDomain, LoggedDomain, LoggedRounds, RewardDomain

#: The number of adjacent rows that are read at once.
_BLOCK_ROWS = 50


def apply_by_source(
    function: Callable[[AnyArray, str], Sequence[AnyArray]], contexts: AnyArray, origin: AnyArray | None
) -> list[AnyArray]:
    """Call ``function(contexts, source_name)`` for the contexts of each source, and join its results.

    ``function`` returns arrays with a row per context. The joined arrays have the rows in the order of ``contexts``.
    ``origin`` (N,) has the source name of each context; None if there is one source.
    """
    if origin is None:
        return list(function(contexts, "source"))
    rows_by_source = {str(name): np.flatnonzero(origin == name) for name in np.unique(origin)}
    order = np.argsort(np.concatenate(list(rows_by_source.values())))
    parts = [function(contexts[rows], name) for name, rows in rows_by_source.items()]
    return [np.concatenate(arrays)[order] for arrays in zip(*parts, strict=True)]


def round_indices(domain: EvaluationDomain | RewardDomain | LoggedDomain, n: int, seed: int) -> IntArray:
    """Return the indices in the domain of the first ``n`` contexts that ``rewarded_rounds`` returns."""
    if isinstance(domain, Contexts):
        return domain.order(0, n, seed=seed)
    indices = np.concatenate([np.arange(*block) for block in _spaced_blocks(len(domain), n)])
    return indices[np.random.default_rng(seed).permutation(len(indices))]


def rewarded_rounds(
    domain: EvaluationDomain | RewardDomain | LoggedDomain, n: int, *, seed: int
) -> tuple[AnyArray, FloatArray | LoggedRounds]:
    """Return the contexts of about ``n`` rounds, and their rewards.

    Rewards are an array (N, K) with the reward of every arm, or for a log its ``LoggedRounds``.
    """
    if not isinstance(domain, EvaluationDomain):
        rounds = domain.rounds(0, n, seed=seed)
        return rounds.contexts, rounds if isinstance(domain, LoggedDomain) else rounds.rewards
    contexts, rewards = sample_evenly(domain, n)
    order = np.random.default_rng(seed).permutation(len(contexts))  # the first rows must have all classes
    return contexts[order], rewards[order]


def sample_evenly(domain: EvaluationDomain, n: int) -> tuple[AnyArray, FloatArray]:
    """Return about ``n`` contexts, evenly spaced over a domain, and their expected rewards (n, K).

    A domain may be sorted by class, so that its first contexts have only a few classes.
    """
    blocks = _spaced_blocks(len(domain), min(n, len(domain)))
    contexts = np.concatenate([domain.read(start, stop) for start, stop in blocks])
    return contexts, np.concatenate([domain.read_expected(start, stop) for start, stop in blocks])


def _spaced_blocks(total: int, n: int) -> list[tuple[int, int]]:
    """Return row ranges (start, stop) with about ``n`` rows, evenly spaced over ``total`` rows."""
    if n == total:
        return [(0, total)]
    n_blocks = math.ceil(n / _BLOCK_ROWS)
    starts = np.linspace(0, total - _BLOCK_ROWS, n_blocks).astype(int)
    stops = np.minimum(starts + _BLOCK_ROWS, [*starts[1:], total])
    return [(int(start), int(stop)) for start, stop in zip(starts, stops, strict=True) if stop > start]
