"""Sum the parts of a log for linear policies, which learn from sums, on this machine or on a Ray
cluster.

``sum_parts_locally`` and ``sum_parts_on_ray`` yield the sums of each part. Both compute them with
``sum_part``.

On a cluster (extra ``ray``) every part is a task. Its worker reads the rows and returns their sums,
so that no rows are sent. (Ray Data would first read the rows into its object store, for a result of
a few hundred kilobytes.) A task whose worker or node is lost is submitted again. This process gets
the sums in the order of the parts, so that it adds them up in the same order as without a cluster.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from daband.base._arrays import use_one_blas_thread
from daband.base._files import THREAD_VARIABLES
from daband.domains._contract import LoggedRounds
from daband.domains.readers._parquet_log import ParquetLog
from daband.domains.readers._reading import LogPart
from daband.errors import DataError, InvalidInput, WorkerDied
from daband.linear._ridge import RidgeSums
from daband.policies._ridge import RidgePolicy

Item = TypeVar("Item")
Result = TypeVar("Result")
#: The maximum number of times that the task of a part is submitted, if its workers are lost.
_MAX_ATTEMPTS = 5
#: The number of submitted parts per worker. With more than one, no worker waits for this process.
_PARTS_PER_WORKER = 2
#: The size of the object store of a local cluster, in bytes; its processes exchange little data.
_OBJECT_STORE_BYTES = 256 * 2**20
#: The maximum number of threads on this machine. More threads would not read files faster.
_MAX_THREADS = min(4, os.cpu_count() or 1)


def sum_part(
    policy: RidgePolicy, log: ParquetLog, part: LogPart, *, n_threads: int = 1
) -> RidgeSums:
    """Return the sums over the rounds of one part of a log.

    The policy is not changed. Every batch is summed separately, and the sums are added in the order
    of the batches, so that ``n_threads``, the number of threads, does not affect the result.
    """

    def sum_batch(batch: LoggedRounds) -> RidgeSums:
        sums = policy.empty_sums()
        try:
            policy.add_to_sums(sums, **batch.to_arguments())
        except InvalidInput as error:
            raise DataError(f"{part.label} cannot be learned: {error}") from None
        return sums

    total = policy.empty_sums()
    batches = log.batches(part)
    threaded_sums = (sums for _, sums in _map_in_order(sum_batch, batches, n_threads=n_threads))
    batch_sums = map(sum_batch, batches) if n_threads == 1 else threaded_sums
    for sums in batch_sums:
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

    def sum_log_part(part: LogPart) -> RidgeSums:
        return sum_part(policy, log, part, n_threads=threads_per_part)

    # threads work on separate parts or batches, not on the products of one batch
    with use_one_blas_thread():
        yield from _map_in_order(
            sum_log_part, parts, n_threads=min(_MAX_THREADS, max(len(parts), 1))
        )


def sum_parts_on_ray(
    policy: RidgePolicy,
    log: ParquetLog,
    parts: Sequence[LogPart],
    *,
    address: str,
    n_workers: int | None,
) -> Generator[tuple[LogPart, RidgeSums]]:
    """Yield every part with its sums, in the order of ``parts``.

    Tasks of a Ray cluster compute the sums.

    ``address`` is the address of the cluster. "local" starts one on this machine with at most
    ``n_workers`` workers, by default one per core.
    """
    ray = _import_ray()
    if not parts:
        return
    with _connect_to_cluster(ray, address, min(n_workers or os.cpu_count() or 1, len(parts))):
        remote_task = ray.remote(num_cpus=1, max_retries=0)(_sum_task)
        shared_arguments = ray.put((policy, log))
        n_ahead = _PARTS_PER_WORKER * max(1, int(ray.cluster_resources().get("CPU", 1)))
        references: dict[int, Any] = {}

        def submit(index: int) -> None:
            named_task = remote_task.options(name=f"daband fit_log part {index}")
            references[index] = named_task.remote(shared_arguments, parts[index])

        def wait_for_sums(index: int, part: LogPart) -> RidgeSums:
            for attempt in range(_MAX_ATTEMPTS):
                if attempt:
                    submit(index)
                try:
                    return _get_result(ray, references[index])
                except WorkerDied:
                    continue
            raise WorkerDied(
                f"{part.label}: {_MAX_ATTEMPTS} workers died while summing it; see the cluster's"
                " logs"
            )

        try:
            for index in range(min(n_ahead, len(parts))):
                submit(index)
            for index, part in enumerate(parts):
                yield part, wait_for_sums(index, part)
                del references[index]
                if index + n_ahead < len(parts):
                    submit(index + n_ahead)
        finally:
            _cancel_tasks(ray, references.values())


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


@contextlib.contextmanager
def _connect_to_cluster(ray: Any, address: str, n_workers: int) -> Iterator[None]:
    """Connect to the Ray cluster at ``address`` for this block.

    "local" starts a cluster with ``n_workers`` workers on this machine, and stops it at the end of
    the block.
    """
    if ray.is_initialized():  # the caller has opened a connection, and will close it
        yield
        return
    thread_variables = {name: os.environ.get(name, "1") for name in THREAD_VARIABLES}
    init_options = {
        "log_to_driver": False,
        "logging_level": "ERROR",
        "runtime_env": {"env_vars": thread_variables},
    }
    temporary_folder = None
    try:
        if address == "local":
            # The path is short, because paths of Unix sockets below it are limited to about a
            # hundred characters.
            temporary_folder = tempfile.mkdtemp(prefix="dr-")
            options = {
                "num_cpus": n_workers,
                "include_dashboard": False,
                "object_store_memory": _OBJECT_STORE_BYTES,
            }
            ray.init(address="local", _temp_dir=temporary_folder, **options, **init_options)
        else:
            try:
                _check_reachable(address)
                ray.init(address=address, **init_options)
            except (OSError, ValueError, RuntimeError) as error:
                raise InvalidInput(
                    f"ray_address must be a running Ray cluster, got {address!r}: {error}"
                ) from None
        yield
    finally:
        ray.shutdown()
        if temporary_folder is not None:
            shutil.rmtree(temporary_folder, ignore_errors=True)


def _get_result(ray: Any, reference: Any) -> Any:
    """Wait for a task, and return its result or raise its exception.

    Raise ``WorkerDied`` if its worker was lost.
    """
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from None
    except (ray.exceptions.RuntimeEnvSetupError, ray.exceptions.TaskUnschedulableError) as error:
        raise RuntimeError(f"Ray could not start a task: {error}") from None
    except ray.exceptions.RayError as error:
        raise WorkerDied(f"its worker died ({type(error).__name__})") from None


def _cancel_tasks(ray: Any, references: Iterable[Any]) -> None:
    """Cancel tasks. Errors are ignored, because the cluster may be gone."""
    for reference in references:
        with contextlib.suppress(Exception):
            ray.cancel(reference, force=True)


def _check_reachable(address: str) -> None:
    """Raise ``OSError`` if nothing listens at HOST:PORT.

    Ray itself would try to connect for minutes.
    """
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        with socket.create_connection((host, int(port)), timeout=10):
            pass
