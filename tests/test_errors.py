"""Errors carry their argument and their remedy as fields, so that nobody has to search their text."""

import pickle

import pytest

from daband import errors

KINDS = [getattr(errors, name) for name in errors.__all__ if name != "did_you_mean"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_has_fields_and_survives_a_process(kind):
    error = kind("x.parquet is damaged", argument="on_damaged", remedy="on_damaged='skip' leaves it out")
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert str(one) == "x.parquet is damaged; on_damaged='skip' leaves it out"
        assert (one.message, one.argument, one.remedy) == (
            "x.parquet is damaged",
            "on_damaged",
            "on_damaged='skip' leaves it out",
        )
    assert str(kind("plain")) == "plain"
