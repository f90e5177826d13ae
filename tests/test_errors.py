"""Errors carry their remedies as fields, so that nobody has to search their text."""

import pickle

import pytest

from daband import errors

KINDS = [getattr(errors, name) for name in errors.__all__ if name != "did_you_mean"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_has_fields_and_survives_a_process(kind):
    remedies = {"columns": "pass columns="}
    error = kind("x.parquet is damaged", remedies=remedies)
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert str(one) == "x.parquet is damaged; pass columns="
        assert (one.message, one.remedies) == ("x.parquet is damaged", remedies)
    assert str(kind("plain")) == "plain"
    other = error.reworded("y.parquet is damaged", arm="pass arm=")
    assert str(other) == "y.parquet is damaged; pass columns=; pass arm="
    assert type(other) is kind
