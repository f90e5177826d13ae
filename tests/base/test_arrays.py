"""Products of numpy on one thread, and on as many as before afterwards; memory that a
thread keeps.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from daband.base._arrays import get_thread_buffer, use_one_blas_thread

threadpoolctl = pytest.importorskip("threadpoolctl")


def threads():
    np.ones((2, 2)) @ np.ones((2, 2))
    return {
        library["num_threads"]
        for library in threadpoolctl.threadpool_info()
        if library["user_api"] == "blas"
    }


def test_one_thread_within_the_block():
    with threadpoolctl.threadpool_limits(limits=2, user_api="blas"):
        before = threads()
        with use_one_blas_thread():
            assert threads() <= {1}
        assert threads() == before


def test_an_error_leaves_no_limit_behind():
    with threadpoolctl.threadpool_limits(limits=2, user_api="blas"):
        before = threads()
        with pytest.raises(ValueError, match="odd"), use_one_blas_thread():
            raise ValueError("odd")
        assert threads() == before


def test_scratch_is_kept_by_name_in_each_thread():
    first = get_thread_buffer("a test", (3, 4))
    assert get_thread_buffer("a test", (2, 5)).base is first.base  # smaller: the same memory
    assert get_thread_buffer("a test", (2, 5), np.float32).dtype == np.float32
    with ThreadPoolExecutor(1) as other:
        theirs = other.submit(get_thread_buffer, "a test", (2, 5), np.float32).result()
    assert theirs.base is not get_thread_buffer("a test", (2, 5), np.float32).base
    large = get_thread_buffer("a test", (1 << 23,))
    assert get_thread_buffer("a test", (1 << 23,)).base is not large.base  # 64 MB are not kept
