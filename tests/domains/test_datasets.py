import numpy as np
import polars as pl
import pytest

from daband.domains._registry import PairEntry, load, pairs
from daband.domains.datasets._builder import PairData, declare, load_catalogue
from daband.errors import InvalidInput
from daband.features._shift import Shift

MARKETS = ("covariate", "units", "inverted", "moved", "labels")


def linear_value(pair, contexts):
    """What a ridge regression per arm, fitted on the log, earns on these contexts of the target's
    test.
    """
    rows = np.arange(len(pair.source))
    x, (arms, rewards, _) = pair.source.read(rows), pair.source.read_log(rows)
    x = np.c_[x, np.ones(len(x))]
    seen = np.c_[contexts, np.ones(len(contexts))]
    expected = pair.target_test.read_expected(0, len(pair.target_test))
    scores = []
    for arm in range(pair.n_arms):
        mine = arms == arm
        gram = x[mine].T @ x[mine] + np.eye(x.shape[1])
        scores.append(seen @ np.linalg.solve(gram, x[mine].T @ rewards[mine]))
    return expected[np.arange(len(expected)), np.argmax(scores, axis=0)].mean()


def value_and_own(pair):
    """The value of the linear policy, and with the target's contexts moved to the source's mean and
    deviation.
    """
    source, target = (domain.read(np.arange(len(domain))) for domain in (pair.source, pair.target))
    held = pair.target_test.read(0, len(pair.target_test))
    own = (held - target.mean(0)) / (target.std(0) + 1e-9) * source.std(0) + source.mean(0)
    return linear_value(pair, held), linear_value(pair, own)


@pytest.mark.parametrize("seed", range(3))
def test_markets_need_what_their_kind_says(seed):
    values = {kind: value_and_own(load(f"market/{kind}", data_seed=seed)) for kind in MARKETS}
    constant = {
        kind: (
            load(f"market/{kind}", data_seed=seed)
            .target_test.read_expected(0, 10**6)
            .mean(axis=0)
            .max()
        )
        for kind in MARKETS
    }
    # own statistics are what another currency needs
    assert values["units"][1] > values["units"][0] + 1.0
    assert values["units"][1] > constant["units"] + 1.0
    for kind in ("covariate", "labels"):
        # and they only hurt where a number means the same
        assert values[kind][0] > constant[kind] + 0.5
        assert values[kind][0] > values[kind][1]
    assert max(values["moved"]) < constant["moved"]  # nothing without rewards of the target helps


def test_a_market_is_a_log_in_euros_with_gaps_and_a_category():
    pair = load("market/units", shift="units", units=["basket", "spent_last_year", "last_order"])
    assert pair.class_names == ("none", "discount", "delivery", "bundle", "premium")
    assert pair.feature_names[-3:] == ("channel = app", "channel = shop", "channel = web")
    assert "last_order (missing)" in pair.feature_names
    assert pair.shift == Shift.of("units", units=[0, 1, 2])
    arms, rewards, propensities = pair.source.read_log(np.arange(len(pair.source)))
    assert set(arms) == set(range(5))
    assert rewards.min() < 0
    assert rewards.max() > 5
    assert ((propensities >= 0.06) & (propensities < 1)).all()
    # The propensities are right: an inverse-propensity estimate of every arm has the same total
    # weight.
    weights = [np.sum(1 / propensities[arms == arm]) / len(arms) for arm in range(5)]
    np.testing.assert_allclose(weights, 1.0, atol=0.15)
    other = load("market/units", data_seed=1)
    assert not np.array_equal(other.target.read(np.arange(9)), pair.target.read(np.arange(9)))


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


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        (
            "market",
            {"kind": "unit"},
            "market's values of kind are covariate, units, inverted, moved, labels, got 'unit'",
        ),
        ("market", {"n_source": 5}, "n_source must be an integer >= 100"),
        ("market/units", {"kind": "moved"}, "has no option 'kind'"),
        ("sat12", {"source": "indu"}, "got 'indu' for both"),
        ("office31_features", {"source": "caltech"}, "domains are amazon, dslr, webcam"),
        ("natural_tables", {"table": "wages"}, "values of table are baseball-era"),
    ],
)
def test_options_are_checked_by_the_builder(name, options, says):
    with pytest.raises(InvalidInput, match=says):
        load(name, **options)


def test_a_declared_pair_has_the_options_of_its_reader(monkeypatch):
    x = np.zeros((8, 2))

    def read(*, labels=2):
        y = np.arange(8) % labels
        return PairData({"source": (x, y), "target": x, "target_test": (x, y)})

    monkeypatch.setitem(
        load_catalogue(), "declared here", {"summary": "of a test", "class_names": ["a", "b", "c"]}
    )
    declare("declared here", read=read)
    try:
        assert load("declared here", labels=3, passes=2).source.passes == 2
        assert isinstance(pairs.get("declared here"), PairEntry)
        assert load("declared here").n_arms == 3
    finally:
        del pairs._members["declared here"]
