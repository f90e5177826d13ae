import numpy as np
import pytest

from daband.domains import from_arrays
from daband.domains.readers._arrays import ArrayContexts
from daband.errors import InvalidInput
from tests.leaks import check_pair, reachable

GENERATOR = np.random.default_rng(0)
X = GENERATOR.random((30, 4))
Y = GENERATOR.integers(0, 3, 30)
Y[:3] = [0, 1, 2]
X_TARGET = GENERATOR.random((20, 4))
X_TEST = GENERATOR.random((10, 4))
Y_TEST = GENERATOR.integers(0, 3, 10)


def made(**changed):
    given = {"source": (X, Y), "target": X_TARGET, "target_test": (X_TEST, Y_TEST)}
    return from_arrays(**(given | changed))


def test_labels_and_tables_make_sound_pairs():
    check_pair(made(target_labelled=(X_TARGET, GENERATOR.integers(0, 3, 20))))
    tables = made(
        source=(X, GENERATOR.random((30, 3))), target_test=(X_TEST, GENERATOR.random((10, 3)))
    )
    check_pair(tables)
    assert (made().feedback, tables.feedback) == ("one_hot", "bandit")
    per_arm = made(
        source=(GENERATOR.random((30, 3, 4)), GENERATOR.random((30, 3))),
        target=GENERATOR.random((20, 3, 4)),
        target_test=(GENERATOR.random((10, 3, 4)), GENERATOR.random((10, 3))),
        arms="shared",
    )
    check_pair(per_arm)
    assert per_arm.context_shape == (4,)


@pytest.mark.parametrize("side", ["source", "target", "target_test", "target_labelled"])
def test_shared_arms_need_a_context_per_arm_on_every_side(side):
    sizes = {"source": 30, "target": 20, "target_test": 10, "target_labelled": 20}
    contexts = {name: np.zeros((n, 4 if name == side else 3, 4)) for name, n in sizes.items()}
    given = {
        name: (contexts[name], GENERATOR.random((n, 3)))
        for name, n in sizes.items()
        if name != "target"
    }
    with pytest.raises(InvalidInput, match=rf"{side} .*\(n, 3, \*C\), .*\(\d+, 4, 4\)"):
        from_arrays(**given, target=contexts["target"], arms="shared")


def test_contexts_are_not_copied():
    pair = made(target=X_TARGET, target_labelled=(X_TARGET, np.arange(20) % 3))
    for domain, given in (
        (pair.source, X),
        (pair.target, X_TARGET),
        (pair.target_labelled, X_TARGET),
    ):
        assert any(found is given for found in reachable(domain))
    assert "not copied" in from_arrays.__doc__


def test_torch_tensors_are_welcome():
    torch = pytest.importorskip("torch")
    pair = made(
        source=(torch.as_tensor(X), torch.as_tensor(Y)),
        target=torch.as_tensor(X_TARGET),
        source_test=None,
    )
    np.testing.assert_array_equal(pair.source.read(np.arange(30)), X)


def test_a_run_goes_on_from_a_round_number_across_passes():
    stream = ArrayContexts(np.arange(7.0)[:, None])
    whole = stream.batch(0, 21, seed=5)
    for start, stop in ((0, 3), (5, 9), (6, 21), (14, 14)):
        np.testing.assert_array_equal(stream.batch(start, stop, seed=5), whole[start:stop])
    np.testing.assert_array_equal(
        np.sort(whole.reshape(3, 7), axis=1), np.tile(np.arange(7.0), (3, 1))
    )


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2)])
def test_impossible_rounds(start, stop):
    with pytest.raises(InvalidInput, match="round"):
        ArrayContexts(np.zeros((7, 1))).batch(start, stop, seed=0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"source": X}, "source .*ndarray"),
        ({"source": (X, Y[:-1])}, r"source .*\(30,\) .*\(29,\)"),
        ({"source": (X, Y + 0.5)}, "source labels .*float64"),
        ({"source": (X, Y - 1)}, r"source .*-1, .*0\.\.1"),
        ({"source": (np.where(X > 0.9, np.nan, X), Y)}, "source .*NaN .* row 1$"),
        ({"source": (X[:0], Y[:0])}, r"source .*\(0, 4\)"),
        ({"source": (np.array(["a", "b"]), np.array([0, 1]))}, "source .*<U1"),
        ({"target": X_TARGET[:, :3]}, r"target .*\(3,\), .*\(4,\)"),
        ({"target_test": (X_TEST, Y_TEST + 3)}, r"target_test .*5, .*0\.\.2"),
        ({"class_names": ["one"]}, "class_names .* 3 .* 1 "),
        ({"arms": "many"}, "'disjoint' or 'shared'"),
        ({"source": (X, np.where(Y == 1, np.nan, Y))}, "source labels .*float64"),
        (
            {"source": (X, np.where(Y == 1, np.nan, Y)), "n_arms": 3},
            "source labels .*float64",
        ),
        ({"target_test": (X_TEST, np.full(10, np.nan))}, "target_test labels .*float64"),
        ({"n_arms": "3"}, "n_arms .*'3'"),
        ({"n_arms": 3.0}, r"n_arms .*3\.0"),
        ({"n_arms": 0}, "n_arms .*>= 1"),
        ({"arms": "shared"}, r"\(n, K, \*C\)"),
    ],
)
def test_wrong_arrays_are_named(changed, message):
    with pytest.raises(InvalidInput, match=message):
        made(**changed)


def test_numpy_integers_are_whole_numbers():
    assert type(made(n_arms=np.int64(3), source_test=0).n_arms) is int


def test_feedback_is_one_hot_for_labels_alone():
    x = np.random.default_rng(0).normal(size=(20, 3))
    labels = np.arange(20) % 2
    assert from_arrays(source=(x, labels), target=x).feedback == "one_hot"
    with_table = from_arrays(
        source=(x, labels), target=x, target_labelled=(x, np.full((20, 2), 0.3))
    )
    assert with_table.feedback == "bandit"


@pytest.mark.parametrize("labels", [["card", "loan"] * 20, np.array(["card", "loan"] * 20)])
def test_names_in_the_place_of_labels_are_told_what_to_do(labels):
    x = np.zeros((40, 2))
    with pytest.raises(
        InvalidInput,
        match=r"source labels .*'card'.*numpy\.unique",
    ):
        from_arrays(source=(x, labels), target=x)
    names, numbers = np.unique(labels, return_inverse=True)
    assert from_arrays(source=(x, numbers), target=x, class_names=names).class_names == (
        "card",
        "loan",
    )


def test_labels_that_begin_at_1_are_warned_about():
    """Before: an arm more than there are, which never pays, without a word."""
    x = np.zeros((40, 2))
    y = np.arange(40) % 3 + 1
    with pytest.warns(UserWarning, match="label .*0 to 3.* n_arms"):
        from_arrays(source=(x, y), target=x)
    from_arrays(source=(x, y), target=x, n_arms=4)
