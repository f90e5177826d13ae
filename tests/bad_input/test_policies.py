"""Bad input to policies: each case is a ``DabandError`` that says something, and leaves the policy
as it was.

Every policy sends its input through the same checks. Each check is tested with all cases through
one method of one policy, and every other method with one case
(``tests/policies/test_base_class.py``)."""

import datetime
import decimal

import numpy as np
import pytest
import torch

import daband

D = 3
K = 2
B = 4
GOOD = np.linspace(-1.0, 1.0, B * D).reshape(B, D)
ARM = np.array([0, 1, 1, 0])
REWARD = np.array([0.0, 1.0, 0.5, 0.25])
TABLE = np.tile([0.25, 0.75], (B, 1))


def _with(value, row=1, column=1):
    changed = GOOD.copy()
    changed[row, column] = value
    return changed


CONTEXTS = {
    "nothing": None,
    "text": "contexts",
    "bytes": b"contexts",
    "a number": 1.0,
    "a word per number": [["a", "b", "c"]] * B,
    "objects": np.full((B, D), object()),
    "decimals": [[decimal.Decimal(1)] * D] * B,
    "dates": np.full((B, D), np.datetime64("2020-01-01")),
    "durations": np.full((B, D), np.timedelta64(1, "s")),
    "complex numbers": GOOD + 0j,
    "a dict": {"a": 1},
    "a set": {1, 2},
    "a generator": (row for row in GOOD),
    "rows of several lengths": [[1.0] * D, [1.0] * (D - 1)],
    "no row": np.zeros((0, D)),
    "no row and no column": [],
    "one row without its batch": GOOD[0],
    "one column more": np.zeros((B, D + 1)),
    "one column less": np.zeros((B, D - 1)),
    "one axis more": GOOD[:, :, None],
    "NaN": _with(np.nan),
    "infinity": _with(np.inf),
    "minus infinity": _with(-np.inf),
    "squares that overflow": _with(1e200),
    "NaN in float32": _with(np.nan).astype(np.float32),
    "infinity in float16": _with(np.inf).astype(np.float16),
    "NaN in a big-endian array": _with(np.nan).astype(">f8"),
    "a long double beyond float64": GOOD.astype(np.longdouble) * np.longdouble("1e4000"),
    "a masked array": np.ma.masked_array(GOOD, GOOD > 0),
    "records": np.zeros(B, [("a", "f8"), ("b", "f8"), ("c", "f8")]),
    "a sparse tensor": torch.eye(D).to_sparse(),
    "a complex tensor": torch.zeros(B, D, dtype=torch.complex64),
    "a tensor with NaN": torch.full((B, D), torch.nan, dtype=torch.bfloat16),
    "a tensor of another shape": torch.zeros(B, D, 1),
    "a module": torch.nn.Linear(2, 2),
    "a type": float,
}
ARMS = {
    "nothing": None,
    "text": "0110",
    "floats": ARM.astype(np.float64),
    "booleans": ARM.astype(np.bool_),
    "one too few": ARM[:-1],
    "one too many": [*ARM, 0],
    "a column": ARM[:, None],
    "one number": 0,
    "negative": [0, -1, 0, 0],
    "beyond the last": [0, K, 0, 0],
    "beyond 64 bits": [0, 2**70, 0, 0],
    "beyond int64": np.array([0, 2**63 + 1, 0, 0], np.uint64),
    "words": ["a", "b", "a", "b"],
    "none among them": [0, None, 0, 0],
    "NaN among them": [0, np.nan, 0, 0],
}
REWARDS = {
    "nothing": None,
    "text": "1010",
    "words": ["a", "b", "a", "b"],
    "one too few": REWARD[:-1],
    "a column": REWARD[:, None],
    "one number": 1.0,
    "squares that overflow": [0, 0, 0, 1e200],
    "NaN": [0, 0, 0, np.nan],
    "infinity": [0, 0, 0, np.inf],
    "minus infinity": [0, 0, 0, -np.inf],
    "complex": REWARD + 0j,
    "none among them": [0, None, 0, 0],
    "dates": [datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)] * B,
    "a table": TABLE,
}
TABLES = {
    "nothing": None,
    "a column": REWARD,
    "one row less": TABLE[:-1],
    "one arm more": np.zeros((B, K + 1)),
    "NaN": np.full((B, K), np.nan),
    "infinity": np.full((B, K), np.inf),
    "words": [["a", "b"]] * B,
    "rows of several lengths": [[0.0], [0.0, 1.0]],
}
WEIGHTS = {
    "text": "1111",
    "one too few": np.ones(B - 1),
    "a column": np.ones((B, 1)),
    "negative": [1, 1, -1, 1],
    "NaN": [1, 1, np.nan, 1],
    "infinity": [1, 1, np.inf, 1],
    "too large": [1, 1, 1e12, 1],
}
DOMAINS = {
    "an array": np.zeros(2),
    "another word": "targets",
    "upper case": "SOURCE",
    "a number": 1,
    "empty": "",
    "a list": ["source"],
    "yes": True,
}
MASKS = {
    "text": "yes",
    "one arm less": np.ones(K - 1, bool),
    "one arm more": np.ones((B, K + 1), bool),
    "one row less": np.ones((B - 1, K), bool),
    "no arm at all": np.zeros(K, bool),
    "no arm in one row": np.array([[True] * K] * (B - 1) + [[False] * K]),
    "twos": np.full((B, K), 2),
    "NaN": np.full((B, K), np.nan),
    "words": [["a", "b"]] * B,
    "a set": {0},
}
IDS = {
    "text": "abcd",
    "bytes": b"abcd",
    "a number": 7,
    "one too few": [1, 2, 3],
    "one too many": [1, 2, 3, 4, 5],
    "the same twice": [1, 2, 3, 3],
    "floats": [1.0, 2.0, 3.0, 4.0],
    "booleans": [True, False, True, False],
    "nothing among them": [1, 2, 3, None],
    "lists": [[1], [2], [3], [4]],
    "bytes among them": [b"a", b"b", b"c", b"d"],
    "a table": np.arange(8).reshape(4, 2),
    "a set": {1, 2, 3, 4},
    "learned before": [100, 2, 3, 4],
}
STEPS = {"negative": -1, "a float": 1.5, "text": "1", "yes": True, "NaN": np.nan, "a list": [1]}
RULES = {"unknown": "best", "a number": 1, "empty": ""}


@pytest.fixture(scope="module")
def policy():
    made = daband.LinUCB(context_shape=(D,), n_arms=K, seed=1)
    made.update(GOOD, ARM, REWARD, ids=[100, 101, 102, 103])
    made.select(GOOD)
    return made


@pytest.fixture
def refused(policy, tmp_path):
    """Calls a method that must refuse; everything that a file of the policy would hold is the same
    afterwards.
    """

    def check(method, *arguments, **more):
        policy.save(tmp_path / "before")
        with pytest.raises(daband.DabandError) as error:
            getattr(policy, method)(*arguments, **more)
        assert str(error.value).strip()
        assert "\n" not in str(error.value).strip()
        policy.save(tmp_path / "after")
        assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()

    return check


def cases(table):
    return pytest.mark.parametrize("value", table.values(), ids=table.keys())


@cases(CONTEXTS)
def test_contexts(refused, value):
    refused("select", value)


@cases(ARMS)
def test_arms(refused, value):
    refused("update", GOOD, value, REWARD)


@cases(REWARDS)
def test_rewards(refused, value):
    refused("update", GOOD, ARM, value)


@cases(TABLES)
def test_tables_of_rewards(refused, value):
    refused("play", GOOD, value)


@cases(WEIGHTS)
def test_weights(refused, value):
    refused("update", GOOD, ARM, REWARD, weights=value)


@cases(DOMAINS)
def test_domains(refused, value):
    refused("select", GOOD, domain=value)


@cases(MASKS)
def test_masks(refused, value):
    refused("select", GOOD, available=value)


BAD = CONTEXTS["NaN"]


@pytest.mark.parametrize(
    ("method", "arguments", "more"),
    [
        ("decide", (BAD,), {}),
        ("probabilities", (BAD,), {}),
        ("update", (BAD, ARM, REWARD), {}),
        ("play", (BAD, TABLE), {}),
        ("observe_target", (BAD,), {}),
        ("observe_target", (GOOD, "source"), {}),
        ("decide", (GOOD, "nowhere"), {}),
        ("probabilities", (GOOD, "nowhere"), {}),
        ("deploy", ("nowhere",), {}),
        ("update", (GOOD, ARM, REWARD, "nowhere"), {}),
        ("play", (GOOD, TABLE, "nowhere"), {}),
        ("decide", (GOOD, None, [False] * K), {}),
        ("probabilities", (GOOD, None, [False] * K), {}),
        ("play", (GOOD, TABLE, None, [False] * K), {}),
        ("play", (GOOD, TABLE), {"weights": -np.ones(B)}),
        ("probabilities", (GOOD,), {"rule": "best"}),
        ("update", (GOOD, ARM, REWARD), {"on_duplicate": "ignore"}),
        ("frozen", ("nowhere",), {}),
        ("save", ("p",), {"notes": {"a": 1}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_method_calls_the_checks(refused, method, arguments, more):
    refused(method, *arguments, **more)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("arm_names", [None, 1]),
        ("arm_names", 5),
        ("arm_names", ["a", "a"]),
        ("table", 3),
        ("alpha", "x"),
        ("epsilon", 2.0),
        ("explore", "best"),
    ],
)
def test_attributes(policy, name, value):
    before = getattr(policy, name)
    with pytest.raises(daband.DabandError, match=name):
        setattr(policy, name, value)
    assert getattr(policy, name) == before


@cases(IDS)
def test_ids(refused, value):
    refused("update", GOOD, ARM, REWARD, ids=value)


@cases(STEPS)
def test_steps(refused, value):
    refused("adapt", value)


@cases(RULES)
def test_rules(refused, value):
    refused("decide", GOOD, rule=value)


# Constructors.

LINEAR = {
    "context_shape": [
        None,
        3,
        b"x",
        (),
        (0,),
        (-1,),
        (1.5,),
        ("a",),
        "ab",
        (True, 2.0),
        ((3,),),
        (10**15,),
        [[3]],
    ],
    "n_arms": [None, 0, -1, 1.5, "2", True, 10**15, [2], np.nan],
    "alpha": [-1, np.nan, np.inf, "1", True, [1], {}, 1j],
    "ridge": [0, -1, np.nan, np.inf, None, "1", True, [1.0], 1j],
    "arms": ["both", "", 1, True, ["disjoint"], {}],
    "explore": ["best", "", 1, True, ["ucb"]],
    "epsilon": [-0.1, 1.1, np.nan, None, "0", True, [0.5]],
    "standardise_rewards": [None, 1, "yes", np.ones(2, bool)],
    "transform": ["pca", 64, daband.PCA],
    "seed": [-1, None, 1.5, "0", True, [0], np.nan],
}
NEURAL = {
    "n_arms": [0, 1.5, "2", 10**15],
    "context_shape": [(), (0,), (10**15,)],
    "alpha": [-1, np.nan, "1", True, [1]],
    "ridge": [0, np.nan, None, "1", [1.0]],
    "epsilon": [1.1, None, "x", [0.5]],
    "feedback": ["one-hot", "", None, 1, ["bandit"], {}],
    "device": ["gpu", "", "cuda:99999", 3.5, "meta", None],
    "recipe": [
        "defaults",
        "",
        3,
        [],
        {"base": "nothing"},
        {"base": 3},
        {"weights": {"adverserial": 1}},
        {"weights": 3},
        {"weights": {"data_divergence": "high"}},
        {"weights": {"data_divergence": {"valu": 1}}},
        {"learning": {"steps": "x"}},
        {"learning": {"batch": 0}},
        {"learning": 3},
        {"learningrate": 1},
        {"encoder": {"name": "mpl"}},
        {"encoder": {"options": {"width": (3,)}}},
        {"encoder": {"options": {"widths": ()}}},
        {"encoder": {"options": 3}},
        {"encoder": {"name": "conv"}},
        {"encoder": {"dense": {"dimension": 0}}},
        {"replay": {"capacity": 0}},
        {"replay": {"place": "cloud"}},
        {"alpha": "x"},
        {"learning": {"learning_rate": -1}},
        {"learning": {"learning_rate": float("nan")}},
        {"learning": {"ema_decay": 1.0}},
    ],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in LINEAR.items() for value in values],
    ids=str,
)
def test_linear_constructor(name, value):
    with pytest.raises(daband.DabandError):
        daband.LinUCB(**{"context_shape": (D,), "n_arms": K, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in NEURAL.items() for value in values],
    ids=str,
)
def test_neural_constructor(name, value):
    with pytest.raises(daband.DabandError):
        daband.DABand(**{"context_shape": (D,), "n_arms": K, "device": "cpu", name: value})


@pytest.mark.parametrize("components", [0, -1, 1.5, "2", True, None, [2]], ids=str)
def test_pca_constructor(components):
    with pytest.raises(daband.DabandError):
        daband.PCA(components)


@pytest.mark.parametrize("seed", [-1, 1.5, "0", None, True], ids=str)
def test_pca_seed(seed):
    with pytest.raises(daband.DabandError):
        daband.PCA(2, seed=seed)


@cases({name: CONTEXTS[name] for name in ("nothing", "no row", "NaN")})
def test_prepare(value):
    policy = daband.LinUCB(context_shape=(D,), n_arms=K, transform=daband.PCA(2))
    with pytest.raises(daband.DabandError):
        policy.prepare(value)
    assert not policy.transform.fitted


def test_selecting_before_the_transform_is_fitted():
    policy = daband.LinUCB(context_shape=(D,), n_arms=K, transform=daband.PCA(2))
    with pytest.raises(daband.DabandError, match="prepare"):
        policy.select(GOOD)
    assert policy.rounds_decided == 0


class TestWhatLooksBadAndIsNot:
    """Numbers of other types and orders of bytes mean the same."""

    @pytest.mark.parametrize("dtype", [">f8", ">f4", "g", ">g", "f2", ">i4", "f4", ">u2"])
    def test_contexts(self, dtype):
        contexts = (4 * GOOD).round().astype(np.float64)
        if dtype.lstrip(">") in ("u2",):
            contexts = np.abs(contexts)
        policy, twin = (daband.LinUCB(context_shape=(D,), n_arms=K) for _ in range(2))
        policy.update(contexts, ARM, REWARD)
        twin.update(contexts.astype(dtype), ARM, REWARD)
        np.testing.assert_array_equal(
            policy.select(contexts).mean, twin.select(contexts.astype(dtype)).mean
        )

    def test_arms_and_rewards(self):
        policy, twin = (daband.LinUCB(context_shape=(D,), n_arms=K) for _ in range(2))
        policy.update(GOOD, ARM, REWARD)
        twin.update(GOOD, ARM.astype(">i4"), REWARD.astype(">f4").astype(np.longdouble))
        np.testing.assert_array_equal(policy.select(GOOD).mean, twin.select(GOOD).mean)
