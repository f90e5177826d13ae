"""Sum the parts of a log for linear policies, which learn from sums, on this machine or on a Ray
cluster.

``sum_parts_locally`` and ``sum_parts_on_ray`` yield the sums of each part. Both compute them with
``sum_part``.

On a cluster (extra ``ray``) every part is a task. Its worker reads the rows and returns their sums,
so that no rows are sent. (Ray Data would first read the rows into its object store, for a result of
a few hundred kilobytes.) Ray repeats a task whose worker or node is lost. This process gets
the sums in the order of the parts, so that it adds them up in the same order as without a cluster.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from daband.base._arrays import use_one_blas_thread
from daband.domains.readers._parquet_log import ParquetLog
from daband.domains.readers._reading import LogPart
from daband.errors import DataError, InvalidInput, WorkerDied
from daband.linear._ridge import RidgeSums
from daband.policies._ridge import RidgePolicy
from daband.rounds._rounds import Rounds

Item = TypeVar("Item")
Result = TypeVar("Result")
#: The maximum number of times that the task of a part is repeated, if its workers are lost.
_MAX_RETRIES = 4
#: The maximum number of threads on this machine. More threads would not read files faster.
_MAX_THREADS = min(4, os.cpu_count() or 1)


def sum_part(
    policy: RidgePolicy, log: ParquetLog, part: LogPart, *, n_threads: int = 1
) -> RidgeSums:
    """Return the sums over the rounds of one part of a log.

    The policy is not changed. Every batch is summed separately, and the sums are added in the order
    of the batches, so that ``n_threads``, the number of threads, does not affect the result.
    """

    def sum_batch(batch: Rounds) -> RidgeSums:
        sums = policy.empty_sums()
        try:
            policy.add_to_sums(sums, **batch.to_arguments())
        except InvalidInput as error:
            raise DataError(f"{part.label} cannot be learned: {error}") from None
        return sums

    total = policy.empty_sums()
    for _, sums in _map_in_order(sum_batch, log.batches(part), n_threads=n_threads):
        total.merge(sums)
    return total


def _map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, n_threads: int
) -> Iterator[tuple[Item, Result]]:
    """Yield every item with the result of ``work(item)``, in order.

    Meanwhile threads work on the next items.
    """
    with ThreadPoolExecutor(n_threads) as pool:
        pending_items: deque[tuple[Item, Future[Result]]] = deque()
        for item in items:
            pending_items.append((item, pool.submit(function, item)))
            if len(pending_items) > n_threads:
                oldest_item, future = pending_items.popleft()
                yield oldest_item, future.result()
        for oldest_item, future in pending_items:
            yield oldest_item, future.result()


def sum_parts_locally(
    policy: RidgePolicy, log: ParquetLog, parts: Sequence[LogPart]
) -> Generator[tuple[LogPart, RidgeSums]]:
    """Yield every part with its sums, in the order of ``parts``.

    Meanwhile threads sum the next parts.
    """
    # with few parts, several threads work on one part
    threads_per_part = -(-_MAX_THREADS // max(len(parts), 1))
    sum_log_part = partial(sum_part, policy, log, n_threads=threads_per_part)
    # threads work on separate parts or batches, not on the products of one batch
    with use_one_blas_thread():
        yield from _map_in_order(
            sum_log_part, parts, n_threads=min(_MAX_THREADS, max(len(parts), 1))
        )


def sum_parts_on_ray(
    policy: RidgePolicy, log: ParquetLog, parts: Sequence[LogPart]
) -> Generator[tuple[LogPart, RidgeSums]]:
    """Yield every part with its sums, in the order of ``parts``.

    Tasks of a Ray cluster compute the sums. Without a connection to a cluster, ``ray.init()``
    connects to one, or starts one on this machine.
    """
    ray = _import_ray()
    is_connected = ray.is_initialized()
    if not is_connected:
        ray.init(log_to_driver=False, logging_level="ERROR")
    remote_task = ray.remote(num_cpus=1, max_retries=_MAX_RETRIES)(_sum_task)
    shared_arguments = ray.put((policy, log))
    references = [remote_task.remote(shared_arguments, part) for part in parts]
    try:
        for part, reference in zip(parts, references, strict=True):
            try:
                sums = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, Exception) else error) from None
            except ray.exceptions.RayError as error:
                raise WorkerDied(f"{part.label}: Ray could not sum it: {error}") from None
            yield part, sums
    finally:
        if is_connected:
            for reference in references:
                ray.cancel(reference, force=True)
        else:
            ray.shutdown()


def _sum_task(shared_arguments: tuple[RidgePolicy, ParquetLog], part: LogPart) -> RidgeSums:
    """Return the sums of one part.

    This function runs in a worker; ``shared_arguments`` is in Ray's object store.
    """
    return sum_part(*shared_arguments, part)


def _import_ray() -> Any:
    """Import and return ``ray``, or raise an error that says how to install it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise InvalidInput("engine='ray' needs Ray: pip install 'daband[ray]'") from None
    return ray
