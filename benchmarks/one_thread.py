"""Limit every library to one thread, so that all are compared on equal terms.

Import this module before numpy.
"""

import os

VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "BLIS_NUM_THREADS",
)

os.environ.update(dict.fromkeys(VARIABLES, "1"))
