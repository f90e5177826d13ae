"""Products of numpy on one thread, and on as many as before afterwards."""

import numpy as np
import pytest

from daband.base._arrays import use_one_blas_thread

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
