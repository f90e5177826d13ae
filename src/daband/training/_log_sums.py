"""Sum the parts of a log for linear policies, which learn from sums, on this machine or on a Ray cluster.

On a cluster (extra ``ray``) a part is a task: its worker reads the rows and returns their sums, so that no rows are
sent. (Ray Data would first read the rows into its object store, for a result of a few hundred kilobytes.) A task
whose worker or node is lost is submitted again. The driver gets the sums in the order of the parts, so that it adds
them up as one process would.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from daband._arrays import FloatArray, check_weights, one_blas_thread
from daband._files import THREAD_VARIABLES
from daband.domains._contract import LoggedRounds
from daband.domains.readers._parquet_log import BATCH_ROWS, ParquetLog
from daband.domains.readers._reading import LogPart
from daband.errors import DataError, InvalidInput, WorkerDied
from daband.linear._primal_ridge import RidgeSums
from daband.policies._incoming_rounds import log_weights
from daband.policies._policy import Policy
from daband.policies._ridge import RidgePolicy

T = TypeVar("T")
Result = TypeVar("Result")
#: The number of times that a part is submitted before it counts as failed.
_MAX_ATTEMPTS = 5
#: The number of submitted parts per worker, so that no worker waits for the driver.
_PARTS_PER_WORKER = 2
#: The size of the object store of a local cluster, in bytes; its processes exchange little data.
_OBJECT_STORE_BYTES = 256 * 2**20
#: The maximum number of threads. More would not read files faster.
_MAX_THREADS = min(4, os.cpu_count() or 1)


def weighted_batches(
    policy: Policy, log: ParquetLog, part: LogPart, column: str | None, rows: int = BATCH_ROWS
) -> Iterator[tuple[LoggedRounds, FloatArray]]:
    """Yield the rounds of a part with their weights: from a column, or from their propensities."""
    values = log.values(part, column)
    for batch in log.batches(part, rows):
        if column is None:
            yield batch, log_weights(policy, batch.propensities)
            continue
        try:
            weights = check_weights(list(itertools.islice(values, len(batch))), len(batch))
            assert weights is not None
        except InvalidInput as error:
            raise DataError(f"{part.label} has no weights in column {column!r}: {error}") from None
        yield batch, weights


def sum_part(policy: RidgePolicy, log: ParquetLog, part: LogPart, column: str | None, *, threads: int = 1) -> RidgeSums:
    """Return the sums over the rounds of one part of a log, whose weights are in ``column``.

    The policy does not change. Every batch is summed separately, and the sums are added in order, so that ``threads``
    affects only the time.
    """

    def sum_batch(rounds: tuple[LoggedRounds, FloatArray]) -> RidgeSums:
        sums = policy.empty_sums()
        batch, weights = rounds
        try:
            policy.add_to_sums(sums, batch.contexts, batch.arms, batch.rewards, weights=weights)
        except InvalidInput as error:
            raise DataError(f"{part.label} cannot be learned: {error}") from None
        return sums

    total = policy.empty_sums()
    batches = weighted_batches(policy, log, part, column)
    in_threads = (sums for _, sums in _map_in_order(sum_batch, batches, threads=threads))
    batch_sums = map(sum_batch, batches) if threads == 1 else in_threads
    for sums in batch_sums:
        total.merge(sums)
    return total


def _map_in_order(work: Callable[[T], Result], items: Iterable[T], *, threads: int) -> Iterator[tuple[T, Result]]:
    """Yield every item with the result of ``work``, in order, while threads work on the next items."""
    with ThreadPoolExecutor(threads) as pool:
        pending: deque[tuple[T, Future[Result]]] = deque()
        for item in items:
            pending.append((item, pool.submit(work, item)))
            if len(pending) > threads:
                first, future = pending.popleft()
                yield first, future.result()
        for first, future in pending:
            yield first, future.result()


def sum_parts_locally(
    policy: RidgePolicy, log: ParquetLog, parts: Sequence[LogPart], column: str | None
) -> Generator[tuple[LogPart, RidgeSums]]:
    """Yield every part with its sums, in order; threads work on the next parts."""
    threads_per_part = -(-_MAX_THREADS // max(len(parts), 1))  # few parts are distributed batch by batch

    def summed(part: LogPart) -> RidgeSums:
        return sum_part(policy, log, part, column, threads=threads_per_part)

    with one_blas_thread():  # threads work on separate parts, not on the products of one batch
        yield from _map_in_order(summed, parts, threads=min(_MAX_THREADS, max(len(parts), 1)))


def sum_parts_on_ray(
    policy: RidgePolicy,
    log: ParquetLog,
    parts: Sequence[LogPart],
    column: str | None,
    *,
    address: str,
    workers: int | None,
) -> Generator[tuple[LogPart, RidgeSums]]:
    """Yield every part with its sums, in the order of ``parts``."""
    ray = _import_ray()
    if not parts:
        return
    with _cluster_connection(ray, address, min(workers or os.cpu_count() or 1, len(parts))):
        task = ray.remote(num_cpus=1, max_retries=0)(_sum_task)
        shared = ray.put((policy, log, column))
        n_ahead = _PARTS_PER_WORKER * max(1, int(ray.cluster_resources().get("CPU", 1)))
        submitted: dict[int, Any] = {}

        def submit(number: int) -> None:
            submitted[number] = task.options(name=f"daband fit_log part {number}").remote(shared, parts[number])

        def outcome(number: int, part: LogPart) -> RidgeSums:
            for attempt in range(_MAX_ATTEMPTS):
                if attempt:
                    submit(number)
                try:
                    return _task_result(ray, submitted[number])
                except WorkerDied:
                    continue
            raise WorkerDied(f"{part.label}: {_MAX_ATTEMPTS} workers died while summing it; see the cluster's logs")

        try:
            for number in range(min(n_ahead, len(parts))):
                submit(number)
            for number, part in enumerate(parts):
                yield part, outcome(number, part)
                del submitted[number]
                if number + n_ahead < len(parts):
                    submit(number + n_ahead)
        finally:
            _cancel_tasks(ray, submitted.values())


def _sum_task(shared: tuple[RidgePolicy, ParquetLog, str | None], part: LogPart) -> RidgeSums:
    """Return the sums of one part, in a worker."""
    policy, log, column = shared
    return sum_part(policy, log, part, column)


def _import_ray() -> Any:
    """Return the module ``ray``, or raise an error that names the extra."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise InvalidInput("engine='ray' needs Ray: pip install 'daband[ray]'") from None
    return ray


@contextlib.contextmanager
def _cluster_connection(ray: Any, address: str, workers: int) -> Iterator[None]:
    """Connect to the cluster at ``address``; "local" starts one with this many workers and ends it afterwards."""
    if ray.is_initialized():  # a connection that the caller opened: used, and left open
        yield
        return
    threads = {name: os.environ.get(name, "1") for name in THREAD_VARIABLES}
    common = {"log_to_driver": False, "logging_level": "ERROR", "runtime_env": {"env_vars": threads}}
    temporary = None
    try:
        if address == "local":
            # A short path: the names of Unix sockets below it may have some hundred characters.
            temporary = tempfile.mkdtemp(prefix="dr-")
            local = {"num_cpus": workers, "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
            ray.init(address="local", _temp_dir=temporary, **local, **common)
        else:
            try:
                _check_reachable(address)
                ray.init(address=address, **common)
            except (OSError, ValueError, RuntimeError) as error:
                raise InvalidInput(f"ray_address must be a running Ray cluster, got {address!r}: {error}") from None
        yield
    finally:
        ray.shutdown()
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _task_result(ray: Any, reference: Any) -> Any:
    """Return the result of a task or raise its exception; raise ``WorkerDied`` if its worker is gone."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from None
    except (ray.exceptions.RuntimeEnvSetupError, ray.exceptions.TaskUnschedulableError) as error:
        raise RuntimeError(f"Ray could not start it: {error}") from None
    except ray.exceptions.RayError as error:
        raise WorkerDied(f"its worker died ({type(error).__name__})") from None


def _cancel_tasks(ray: Any, references: Iterable[Any]) -> None:
    """Cancel tasks on exit, when the cluster may be gone."""
    for reference in references:
        with contextlib.suppress(Exception):
            ray.cancel(reference, force=True)


def _check_reachable(address: str) -> None:
    """Raise an error if nothing listens at HOST:PORT; Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        with socket.create_connection((host, int(port)), timeout=10):
            pass
