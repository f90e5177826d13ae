"""Calls that raised an error of Python or numpy, or were accepted without reason: each raises an
error of ours.
"""

import numpy as np
import polars as pl
import pytest

import daband

FRAME = pl.DataFrame({"age": [30, 50] * 20, "city": ["Oslo", "Rome"] * 20, "offer": [0, 1] * 20})
ROW = {"age": 41, "city": "Oslo"}


@pytest.fixture(scope="module")
def pair():
    columns = daband.domains.Columns(context=["age", "city"], categorical=["city"], label="offer")
    return daband.domains.from_table(source=FRAME, target=FRAME.drop("offer"), columns=columns)


@pytest.fixture(scope="module")
def policy(pair):
    policy = daband.LinUCB.for_pair(pair, seed=0)
    contexts = pair.source.read(np.arange(20))
    policy.prepare(contexts)
    policy.update(contexts, [0, 1] * 10, [1.0, 0.5] * 10)
    return policy


def test_a_table_reads_frames_as_it_reads_rows(pair):
    rows = pair.table.contexts(FRAME.to_dicts())
    np.testing.assert_array_equal(pair.table.contexts(FRAME), rows)
    np.testing.assert_array_equal(pair.table.contexts(FRAME.to_pandas()), rows)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda p: daband.domains.DataOptions(source=FRAME, target=FRAME).read(),
            "source .*DataFrame",
        ),
        (
            lambda p: p.select(p.table.contexts(ROW), domain=np.zeros(2)),
            "domain .*'source' .*'target'",
        ),
        (lambda p: daband.export(p, "p.daband", arm_names=5), "arm_names .*list"),
        (lambda p: daband.export(p, "p.daband", arm_names=[None, 1]), "arm_names .*strings"),
        (
            lambda p: daband.domains.from_arrays(
                source=(np.eye(4), [0, 1, 0, 1]), target=np.eye(4), units=1.5
            ),
            r"units .*1\.5",
        ),
        (lambda p: daband.evaluate_log(p, "a" * 10_000), "10,000 "),
        (lambda p: daband.LinUCB(context_shape=b"x", n_arms=2), "context_shape .*tuple"),
    ],
)
def test_an_argument_is_refused_in_our_words(policy, tmp_path, monkeypatch, call, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(daband.InvalidInput, match=message):
        call(policy)
    assert not list(tmp_path.iterdir())


def test_a_round_number_beyond_64_bits(policy, pair, tmp_path):
    daband.export(policy, tmp_path / "p.daband", pair=pair)
    with pytest.raises(daband.InvalidInput, match="round_number"):
        daband.load_deployed(tmp_path / "p.daband").decide(ROW, round_number=10**30)
