"""Compares one gradient step that two code paths took from the same state.

Adam divides a gradient by its own size: where the true gradient is zero (a bias in front of a
norm), what remains is rounding, and the step follows its sign. So two paths end up in different
places, on every processor in other ones. What one step can be held to is the gradient itself, which
Adam keeps, and the parameters whose gradient is no rounding."""

import copy

import numpy as np
import torch

PRECISION = 1e-4
"""Of float32 sums over a batch, relative to the largest number of the vector."""
WELL_ABOVE = 1e-2
"""Gradients of at least this share of the largest one have no sign of rounding."""


def copies(policies):
    """Policies in the same state to the last bit, each trained by itself from here on."""
    return [copy.deepcopy(policy) for policy in policies]


def assert_same_step(one, other):
    """Two policies that were equal before one ``adapt`` of one step are equal after it, up to
    rounding.
    """
    ours = one.learner
    theirs = other.learner
    assert ours.step_number == theirs.step_number
    assert torch.equal(ours.generator.get_state(), theirs.generator.get_state())
    assert torch.equal(ours.moments["step"], theirs.moments["step"])
    for name in ("exp_avg", "exp_avg_sq"):
        _assert_near(ours.moments[name], theirs.moments[name], name)
    size = theirs.moments["exp_avg"].abs()
    clear = size > WELL_ABOVE * size.max()
    assert clear.any()
    _assert_near(ours.parameter_vector[clear], theirs.parameter_vector[clear], "parameters")
    if theirs.ema_vector is not None:  # the encoder's parameters come first
        kept = clear[: len(theirs.ema_vector)]
        _assert_near(ours.ema_vector[kept], theirs.ema_vector[kept], "moving average")
    for part in ("encoder", "objective"):
        wanted = dict(getattr(theirs, part).named_buffers())
        for name, buffer in getattr(ours, part).named_buffers():
            _assert_near(buffer, wanted[name], name)


def _assert_near(found, wanted, name):
    found, wanted = (tensor.detach().numpy() for tensor in (found, wanted))
    largest = float(np.abs(wanted).max()) if wanted.size else 0.0
    np.testing.assert_allclose(found, wanted, rtol=0, atol=PRECISION * largest, err_msg=name)
