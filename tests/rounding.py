"""Runs the suite as another processor would round it.

`make test-portable` uses this; see tests/conftest.py.

Two processors add up the same numbers in another order, and their results differ in the last bits.
Environment variables stand in for them here:

* ``DABAND_TEST_NUDGE=SEED`` changes float contexts, as they enter a policy, and the first weights
  of networks by a relative 1e-7. The direction depends on the number itself and the seed alone, so
  equal contexts stay equal.
* ``DABAND_TEST_MKLDNN=0`` takes PyTorch's own loops instead of oneDNN's.

``OMP_NUM_THREADS`` and ``OPENBLAS_CORETYPE`` do the rest. A test that fails
under one of them compares the ends of two floating-point trajectories: it would fail on some
processor."""

from __future__ import annotations

import os

import numpy as np

RELATIVE = 1e-7
_HASH = 0x9E3779B97F4A7C15


def nudged(numbers, seed):
    """Each number of a float array times 1 + 1e-7 or 1 - 1e-7, in an array of its own; others as
    they are.
    """
    if numbers.dtype.kind != "f":
        return numbers
    bits = numbers.astype(np.float64).view(np.uint64) + np.uint64(seed)
    up = (bits * np.uint64(_HASH)) >> np.uint64(63)
    return (numbers * np.where(up, 1 + RELATIVE, 1 - RELATIVE)).astype(numbers.dtype)


def nudge(patch, seed):
    """Nudge what enters policies and networks for as long as ``patch``, a pytest.MonkeyPatch,
    lasts.
    """
    from daband.policies import _policy
    from daband.rounds import _rounds

    checked = _policy.check_contexts
    for module in (_policy, _rounds):
        patch.setattr(
            module, "check_contexts", lambda contexts, rule: nudged(checked(contexts, rule), seed)
        )

    import torch

    def wrap(initialise):
        def initialised(tensor, *arguments, **settings):
            initialise(tensor, *arguments, **settings)
            with torch.no_grad():
                tensor.copy_(torch.from_numpy(nudged(tensor.numpy(force=True), seed)))
            return tensor

        return initialised

    for name in ("normal_", "kaiming_uniform_"):
        patch.setattr(torch.nn.init, name, wrap(getattr(torch.nn.init, name)))


def without_mkldnn():
    """Switch oneDNN off in this process."""
    import torch

    torch.backends.mkldnn.set_flags(False)


def seed_of_nudge():
    """The seed that ``DABAND_TEST_NUDGE`` names, None where it is not set."""
    given = os.environ.get("DABAND_TEST_NUDGE")
    return int(given) if given else None
