import numpy as np
import polars as pl

from daband.domains import load


def test_natural_tables_are_read_as_users_tables_are(shared_data):
    pair = load("natural_tables/credit-home")
    assert (len(pair.source), len(pair.source_test), len(pair.target), len(pair.target_test)) == (
        1896,
        211,
        879,
        877,
    )
    assert "Income (missing)" in pair.feature_names
    assert "Marital = married" in pair.feature_names
    assert pair.table is not None
    assert pair.about.summary.startswith("credit-home")
    frame = pl.read_csv(shared_data / "natural_tables/credit-home.csv.gz", null_values=["", "NA"])
    target = frame.filter(pl.col("domain") == "target")
    raw = pair.table.apply(target)
    known = {row.tobytes() for row in np.ascontiguousarray(raw)}
    assert all(row.tobytes() in known for row in pair.target.read(np.arange(len(pair.target))))


def test_office31_features_take_both_halves_of_a_source(shared_data):
    pair = load("office31_features/dslr-amazon", source_test=None)
    assert (len(pair.source), len(pair.target), len(pair.target_test)) == (498, 1410, 1407)
    assert pair.target.read(np.arange(3)).dtype == np.float32
    assert pair.class_names[0] == "back pack"


def test_sat12_rewards_are_every_solvers_time(shared_data):
    pair = load("sat12/indu-hand", source_test=None)
    assert (pair.context_shape, pair.n_arms, pair.feedback) == ((117,), 31, "bandit")
    with np.load(shared_data / "sat12/sat12-indu.npz") as packed:
        seconds = packed["seconds"]
        arms = tuple(packed["arms"])
    assert pair.class_names == arms
    rewards, _ = pair.source.read_rewards(np.arange(len(pair.source)))
    np.testing.assert_allclose(rewards, 1 - np.log1p(seconds) / np.log1p(1200.0), atol=1e-6)
    assert sum("is missing" in name for name in pair.feature_names) == 2


def test_real_warfarin(shared_data):
    pair = load("warfarin", source_test=0)
    assert pair.class_names == ("low", "medium", "high")
    counts = pair.source.read_rewards(np.arange(len(pair.source)))[0].sum(axis=0)
    assert counts.tolist() == [624, 1913, 432]
    target = pair.target_labelled.read_rewards(np.arange(len(pair.target)))[0].sum(axis=0)
    target = target + pair.target_test.read_expected(0, len(pair.target_test)).sum(axis=0)
    assert target.tolist() == [728, 859, 32]
    assert len(pair.feature_names) == pair.context_shape[0]
    assert not any("Race" in name or "INR" in name or "Dose" in name for name in pair.feature_names)
