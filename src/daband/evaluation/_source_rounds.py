"""Read source rounds in any form, with the reward of every arm or with the logged arms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray
from daband.domains._contract import Contexts, EvaluationDomain, LoggedDomain, LoggedRounds, RewardDomain

#: Number of consecutive rows that are read at a time from a domain in its own order.
_BLOCK = 50


def in_domains(
    act: Callable[[AnyArray, str], Sequence[AnyArray]], contexts: AnyArray, origin: AnyArray | None
) -> list[AnyArray]:
    """Return the arrays of ``act(contexts, domain)``, with a row per context, called for each source separately.

    ``origin`` (n,) has the name of the source of each context; None if there is only one.
    """
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
