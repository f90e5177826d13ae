"""What the parts of a log teach a policy that learns by sums over rounds."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from daband.blas_threads import one_blas_thread
from daband.domains import LoggedRounds
from daband.domains.readers.parquet_log import LogPart, ParquetLog
from daband.errors import DataError, InvalidInput
from daband.linear import RidgeSums
from daband.policies import RidgePolicy

__all__ = ["sums_in_turn", "sums_of_part"]

_THREADS = min(4, os.cpu_count() or 1)
"""More are of no use: files cannot be read faster."""


def sums_of_part(
    policy: RidgePolicy, log: ParquetLog, part: LogPart, weighting: str | None, *, threads: int = 1
) -> RidgeSums:
    """What one part of a log teaches; ``policy`` stays as it is.

    Every batch is summed by itself, and the sums are added up in order: ``threads`` change nothing but the time.
    """

    def summed(batch: LoggedRounds) -> RidgeSums:
        sums = policy.empty_sums()
        try:
            policy.add_to_sums(
                sums,
                batch.contexts,
                batch.arms,
                batch.rewards,
                propensity=batch.propensities,
                propensity_weighting=weighting,
            )
        except InvalidInput as error:
            raise DataError(f"{part.label} cannot be learned: {error}") from None
        return sums

    total = policy.empty_sums()
    with ThreadPoolExecutor(threads) as pool:
        under_way: deque[Future[RidgeSums]] = deque()
        for batch in log.batches(part):
            under_way.append(pool.submit(summed, batch))
            if len(under_way) > threads:
                total.merge(under_way.popleft().result())
        for future in under_way:
            total.merge(future.result())
    return total


def sums_in_turn(
    policy: RidgePolicy, log: ParquetLog, parts: Sequence[LogPart], weighting: str | None
) -> Iterator[tuple[LogPart, RidgeSums | DataError]]:
    """Every part with its sums, or with the error that its rows gave, one after the other."""
    with one_blas_thread():  # batches are shared among threads, not the products of one
        for part in parts:
            outcome: RidgeSums | DataError
            try:
                outcome = sums_of_part(policy, log, part, weighting, threads=_THREADS)
            except DataError as error:
                outcome = error
            yield part, outcome
