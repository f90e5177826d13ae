"""Errors carry their argument and their remedy as fields, so that nobody has to search their text."""

import pickle

import pytest

from daband import errors

KINDS = [getattr(errors, name) for name in errors.__all__ if name != "did_you_mean"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_has_fields_and_survives_a_process(kind):
    remedies = {"on_damaged": "on_damaged='skip' leaves it out"}
    error = kind("x.parquet is damaged", argument="log", remedies=remedies)
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert str(one) == "x.parquet is damaged; on_damaged='skip' leaves it out"
        assert (one.message, one.argument, one.remedies) == ("x.parquet is damaged", "log", remedies)
    assert str(kind("plain")) == "plain"
    other = error.reworded("y.parquet is damaged", columns="pass columns=")
    assert str(other) == "y.parquet is damaged; on_damaged='skip' leaves it out; pass columns="
    assert type(other) is kind
