"""Errors that another process raised can be sent to the process that waits for it."""

import pickle

import pytest

from daband import errors

KINDS = [getattr(errors, name) for name in errors.__all__ if name != "did_you_mean"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_survives_a_process(kind):
    error = pickle.loads(pickle.dumps(kind("x.parquet is damaged")))
    assert (type(error), str(error)) == (kind, "x.parquet is damaged")
