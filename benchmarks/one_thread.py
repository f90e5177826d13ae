"""Import this before numpy: one thread for every library that would take more, so that all compete on equal terms."""

import os

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "BLIS_NUM_THREADS")

os.environ.update(dict.fromkeys(VARIABLES, "1"))
