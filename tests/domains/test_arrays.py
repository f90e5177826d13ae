import numpy as np
import pytest

from daband.checks.pairs import check_pair
from daband.domains import ArrayContexts, from_arrays
from daband.errors import InvalidInput

GENERATOR = np.random.default_rng(0)
X, Y = GENERATOR.random((30, 4)), GENERATOR.integers(0, 3, 30)
Y[:3] = [0, 1, 2]
X_TARGET, X_TEST, Y_TEST = GENERATOR.random((20, 4)), GENERATOR.random((10, 4)), GENERATOR.integers(0, 3, 10)


def made(**changed):
    given = {"source": (X, Y), "target": X_TARGET, "target_test": (X_TEST, Y_TEST)}
    return from_arrays(**(given | changed))


def test_labels_and_tables_make_sound_pairs():
    check_pair(made(target_paying=(X_TARGET, GENERATOR.integers(0, 3, 20))))
    tables = made(source=(X, GENERATOR.random((30, 3))), target_test=(X_TEST, GENERATOR.random((10, 3))))
    check_pair(tables)
    assert (made().one_correct_arm, tables.one_correct_arm) == (True, False)
    per_arm = made(
        source=(GENERATOR.random((30, 3, 4)), GENERATOR.random((30, 3))),
        target=GENERATOR.random((20, 3, 4)),
        target_test=(GENERATOR.random((10, 3, 4)), GENERATOR.random((10, 3))),
        arms="shared",
    )
    check_pair(per_arm)
    assert per_arm.context_shape == (4,)


def test_torch_tensors_are_welcome():
    torch = pytest.importorskip("torch")
    pair = made(source=(torch.as_tensor(X), torch.as_tensor(Y)), target=torch.as_tensor(X_TARGET))
    np.testing.assert_array_equal(pair.source.read(np.arange(30)), X)


def test_a_run_goes_on_from_a_round_number_across_passes():
    stream = ArrayContexts(np.arange(7.0)[:, None], passes=3)
    whole = stream.batch(0, 21, seed=5)
    for start, stop in ((0, 3), (5, 9), (6, 21), (14, 14)):
        np.testing.assert_array_equal(stream.batch(start, stop, seed=5), whole[start:stop])
    np.testing.assert_array_equal(np.sort(whole.reshape(3, 7), axis=1), np.tile(np.arange(7.0), (3, 1)))


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 8)])
def test_impossible_rounds(start, stop):
    with pytest.raises(InvalidInput, match="round"):
        ArrayContexts(np.zeros((7, 1))).batch(start, stop, seed=0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"source": X}, "source must be a tuple"),
        ({"source": (X, Y[:-1])}, r"needs labels \(30,\)"),
        ({"source": (X, Y + 0.5)}, "labels must be integers"),
        ({"source": (X, Y - 1)}, "label -1"),
        ({"source": (np.where(X > 0.9, np.nan, X), Y)}, "NaN or infinite value, first in row"),
        ({"source": (X[:0], Y[:0])}, "empty"),
        ({"source": (np.array(["a", "b"]), np.array([0, 1]))}, "must hold numbers"),
        ({"target": X_TARGET[:, :3]}, r"target contexts have shape \(3,\)"),
        ({"target_test": (X_TEST, Y_TEST + 3)}, "target_test has label"),
        ({"class_names": ["one"]}, "1 names for 3 arms"),
        ({"arms": "many"}, "'disjoint' or 'shared'"),
        ({"passes": 0}, "passes must be at least 1"),
        ({"arms": "shared"}, r"\(n, K, \*C\)"),
    ],
)
def test_wrong_arrays_are_named(changed, message):
    with pytest.raises(InvalidInput, match=message):
        made(**changed)
