"""One thread for numpy's products, where these are many and small.

OpenBLAS shares a product of a few thousand rows among threads, which then wait for one another in a loop. On a busy
machine that takes many times as long as one thread would.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["one_blas_thread"]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within this block products of numpy run on the thread that asks for them, in the whole process.

    Without threadpoolctl, which comes with scikit-learn, nothing changes.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        yield
        return
    with threadpool_limits(limits=1, user_api="blas"):
        yield
