"""The connection to a Ray cluster (extra ``ray``): one on this machine for as long as it is needed, or a given one."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from daband.errors import InvalidInput, WorkerDied

#: What libraries read to know how many threads to use.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
#: Bytes for objects of a local cluster: what travels between its processes is small.
_OBJECT_STORE = 256 * 2**20


def import_ray() -> Any:
    """The module ``ray``, or an error that names the extra."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise InvalidInput("running on a cluster needs Ray: pip install 'daband[ray]'") from None
    return ray


@contextlib.contextmanager
def connected(ray: Any, address: str, workers: int) -> Iterator[None]:
    """A connection to the cluster at ``address``; "local" starts one with so many workers and ends it afterwards."""
    if ray.is_initialized():  # somebody else's connection: used, and left open
        yield
        return
    threads = {name: os.environ.get(name, "1") for name in THREAD_VARIABLES}
    common = {"log_to_driver": False, "logging_level": "ERROR", "runtime_env": {"env_vars": threads}}
    files = None
    try:
        if address == "local":
            # A short path: the names of Unix sockets below it may have some hundred characters.
            files = tempfile.mkdtemp(prefix="dr-")
            local = {"num_cpus": workers, "include_dashboard": False, "object_store_memory": _OBJECT_STORE}
            ray.init(address="local", _temp_dir=files, **local, **common)
        else:
            try:
                _knock(address)
                ray.init(address=address, **common)
            except (OSError, ValueError, RuntimeError) as error:
                raise InvalidInput(f"no Ray cluster answers at {address!r}: {error}") from None
        yield
    finally:
        ray.shutdown()
        if files is not None:
            shutil.rmtree(files, ignore_errors=True)


def task_result(ray: Any, reference: Any) -> Any:
    """What a task returned; what it raised is raised, and ``WorkerDied`` where its worker is gone."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from None
    except (ray.exceptions.RuntimeEnvSetupError, ray.exceptions.TaskUnschedulableError) as error:
        raise RuntimeError(f"Ray could not start it: {error}") from None
    except ray.exceptions.RayError as error:
        raise WorkerDied(f"its worker died ({type(error).__name__})") from None


def cancel_tasks(ray: Any, references: Iterable[Any]) -> None:
    """End tasks on the way out, when the cluster may be gone."""
    for reference in references:
        with contextlib.suppress(Exception):
            ray.cancel(reference, force=True)


def _knock(address: str) -> None:
    """Raise where nobody listens at HOST:PORT; Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        with socket.create_connection((host, int(port)), timeout=10):
            pass
