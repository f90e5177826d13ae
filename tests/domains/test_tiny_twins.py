"""Every registered pair, by being registered: its tiny twin passes the public checks without any file."""

import numpy as np
import pytest

from daband.checks._pairs import check_pair, check_registered_pair
from daband.domains._registry import load, pairs


@pytest.mark.parametrize("name", pairs.names())
def test_every_pair_conforms(name):
    check_registered_pair(name)


@pytest.mark.parametrize("options", [{"arms": "shared"}, {"rewards": "labels", "arms": "shared"}])
def test_other_kinds_of_the_synthetic_pair_conform(options):
    check_pair(load("synthetic", tiny=True, **options))


#: The first pair of every family with real data that tests may have.
REAL = {name.partition("/")[0]: name for name in reversed(pairs.names())}


@pytest.mark.parametrize(
    "name",
    [name for family, name in REAL.items() if family not in ("files", "synthetic", "visda17", "s2rda49", "emoji")],
)
def test_the_real_pairs_conform(shared_data, name):
    check_pair(load(name))


@pytest.mark.parametrize(
    "name", ["amazon", "digit", "handwritten", "office_caltech", "s2rda49", "signs", "visda17", "warfarin"]
)
def test_passes_is_passed_on(name):
    pair = load(name, tiny=True, passes=3)
    assert pair.source.rounds_available == 3 * len(pair.source)
    assert pair.target.rounds_available == 3 * len(pair.target)


@pytest.mark.parametrize(
    ("family", "count"),
    [
        ("amazon", 12),
        ("emoji", 6),
        ("handwritten", 6),
        ("office_caltech", 12),
        ("warfarin", 6),
        ("office31_features", 6),
        ("sat12", 2),
    ],
)
def test_ordered_pairs_are_those_of_the_family(family, count):
    ordered = [name for name in pairs if name.startswith(f"{family}/")]
    assert len(ordered) == count
    for name in ordered:
        source, _, target = name.partition("/")[2].partition("-")
        entry = pairs.get(name)
        assert {"passes", "target_passes", "source_test"} <= set(entry.options())
        assert f"{source} to {target}" in entry.about.summary
        named, asked = load(name, tiny=True, passes=2), load(family, tiny=True, source=source, target=target, passes=2)
        assert named.name == asked.name == name
        np.testing.assert_array_equal(named.source.batch(0, 99, seed=0), asked.source.batch(0, 99, seed=0))


@pytest.mark.parametrize("name", ["handwritten", "s2rda49", "signs", "visda17", "amazon", "office_caltech"])
def test_tiny_twins_can_be_learned_and_shift(name):
    """A nearest-mean rule fitted on the source does well there, worse on the target, and better than chance."""
    pair = load(name, tiny=True)
    n = len(pair.source)
    contexts = pair.source.read(np.arange(n)).reshape(n, -1).astype(float)
    labels = pair.source.read_rewards(np.arange(n))[0].argmax(axis=1)
    means = np.stack([contexts[labels == label].mean(axis=0) for label in range(pair.n_arms)])

    def accuracy(rows, truth):
        distances = np.square(means).sum(axis=1) - 2 * rows @ means.T
        return (distances.argmin(axis=1) == truth).mean()

    test = pair.target_test.read(0, len(pair.target_test))
    truth = pair.target_test.read_expected(0, len(pair.target_test)).argmax(axis=1)
    on_source, on_target = accuracy(contexts, labels), accuracy(test.reshape(len(test), -1).astype(float), truth)
    assert on_source > 0.9
    assert 1.5 / pair.n_arms < on_target <= on_source
