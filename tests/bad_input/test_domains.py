"""Bad input to domains, training and evaluation: each case is a ``DabandError`` that says
something.
"""

import numpy as np
import polars as pl
import pytest

import daband
from daband import domains

D = 3
K = 2
N = 12
X = np.linspace(-1.0, 1.0, N * D).reshape(N, D)
Y = np.arange(N) % K
TABLE = np.tile([0.25, 0.75], (N, 1))


def _with(value):
    changed = X.copy()
    changed[1, 1] = value
    return changed


CONTEXTS = {
    "nothing": None,
    "text": "contexts",
    "a number": 1.0,
    "words": [["a", "b", "c"]] * N,
    "objects": np.full((N, D), object()),
    "dates": np.full((N, D), np.datetime64("2020-01-01")),
    "complex numbers": X + 0j,
    "a dict": {"a": 1},
    "rows of several lengths": [[1.0, 2.0, 3.0], [1.0]],
    "no row": np.zeros((0, D)),
    "no column": np.zeros((N, 0)),
    "one axis": X[:, 0],
    "NaN": _with(np.nan),
    "infinity": _with(np.inf),
    "NaN in a big-endian array": _with(np.nan).astype(">f4"),
    "a masked array": np.ma.masked_array(X, X > 0),
}
LABELS = {
    "nothing": None,
    "text": "labels",
    "a number": 1,
    "floats that are no labels": Y + 0.5,
    "negative": Y - 1,
    "one too few": Y[:-1],
    "one too many": [*Y, 0],
    "words": ["a"] * N,
    "NaN": np.full(N, np.nan),
    "a table with NaN": np.full((N, K), np.nan),
    "a table with one row less": TABLE[:-1],
    "a table without arms": np.zeros((N, 0)),
    "a cube": np.zeros((N, K, 2)),
    "rows of several lengths": [[0.0], [0.0, 1.0]],
    "objects": np.full(N, object()),
}
WHOLE = {
    "zero": 0,
    "negative": -1,
    "a float": 1.5,
    "text": "2",
    "yes": True,
    "a list": [2],
    "NaN": np.nan,
}
NAMES = {
    "too few": ["a"],
    "too many": ["a", "b", "c"],
    "a number": 3,
    "numbers": [1, 2],
    "one text": "ab",
}


def arrays(**changed):
    return domains.from_arrays(**{"source": (X, Y), "target": X, "target_test": (X, Y), **changed})


def log(**changed):
    source = (X, Y, np.linspace(0, 1, N), np.full(N, 0.5))
    return domains.from_log(
        **{"source": source, "target": X, "target_test": (X, Y), "n_arms": K, **changed}
    )


def table(**changed):
    frame = pl.DataFrame(
        {"age": range(N), "city": ["a", "b"] * (N // 2), "label": ["x", "y"] * (N // 2)}
    )
    columns = domains.Columns(context=("age", "city"), categorical=("city",), label="label")
    given = {"source": frame, "target": frame, "target_test": frame, "columns": columns}
    return domains.from_table(**{**given, **changed})


def cases(values):
    return pytest.mark.parametrize("value", values.values(), ids=values.keys())


def refused(call, *arguments, **more):
    with pytest.raises(daband.DabandError) as error:
        call(*arguments, **more)
    assert str(error.value).strip()


def test_what_the_cases_change_is_good():
    assert arrays().n_arms == log().n_arms == table().n_arms == K


@cases(CONTEXTS)
def test_contexts(value):
    refused(arrays, source=(value, Y))


@cases({name: CONTEXTS[name] for name in list(CONTEXTS)[:2]})
def test_contexts_of_every_side(value):
    """The check itself is tested with all cases above."""
    refused(arrays, target=value)
    refused(arrays, target_test=(value, Y))
    refused(log, source=(value, Y, np.linspace(0, 1, N), np.full(N, 0.5)))


@cases(LABELS)
def test_labels(value):
    refused(arrays, source=(X, value))


@cases({name: LABELS[name] for name in list(LABELS)[:2]})
def test_labels_of_the_target(value):
    refused(arrays, target_test=(X, value))


@cases(
    {
        "nothing": None,
        "text": "ab",
        "one array": X,
        "five": (X, Y, Y, Y, Y),
        "one": (X,),
        "a dict": {"x": X},
        "a number": 3,
    }
)
class TestSides:
    def test_source(self, value):
        refused(arrays, source=value)

    def test_log(self, value):
        refused(log, source=value)


@cases(WHOLE)
class TestNumbers:
    def test_arms(self, value):
        refused(arrays, n_arms=value)

    def test_arms_of_a_log(self, value):
        refused(log, n_arms=value)

    def test_episodes(self, value):
        pair = arrays()
        policy = daband.LinUCB(context_shape=(D,), n_arms=K)
        refused(daband.train, policy, source=pair.source, episodes=value, episode_length=2)
        refused(daband.train, policy, source=pair.source, episodes=1, episode_length=value)
        assert policy.counts.sum() == 0


@cases(NAMES)
class TestNames:
    def test_arrays(self, value):
        refused(arrays, class_names=value)

    def test_log(self, value):
        refused(log, class_names=value)


@cases(
    {
        "negative": [-1.0] * N,
        "above": [2] * N,
        "one less": [0] * (N - 1),
        "floats": [0.5] * N,
        "NaN": [np.nan] * N,
        "text": "a",
    }
)
def test_arms_of_a_log(value):
    refused(log, source=(X, value, np.linspace(0, 1, N), np.full(N, 0.5)))


@cases(
    {
        "NaN": [np.nan] * N,
        "infinite": [np.inf] * N,
        "one less": [0.0] * (N - 1),
        "text": "a",
        "words": ["a"] * N,
    }
)
def test_rewards_of_a_log(value):
    refused(log, source=(X, Y, value, np.full(N, 0.5)))


@cases(
    {
        "zero": [0.0] * N,
        "above one": [1.5] * N,
        "negative": [-0.5] * N,
        "NaN": [np.nan] * N,
        "one less": [0.5] * (N - 1),
    }
)
def test_propensities_of_a_log(value):
    refused(log, source=(X, Y, np.linspace(0, 1, N), value))


@cases(
    {
        "nothing": None,
        "a number": 3,
        "a list of words": ["a", "b"],
        "a dict": {"age": [1]},
        "no column": pl.DataFrame(),
        "no row": pl.DataFrame({"age": [], "city": [], "label": []}),
        "other columns": pl.DataFrame({"x": [1, 2]}),
        "nothing in it": pl.DataFrame({"age": [None], "city": [None], "label": [None]}),
        "a folder": ".",
        "no file": "nowhere.csv",
        "another ending": "table.xyz",
        "an empty name": "",
        "a NUL": "a\0b.csv",
        "an array": X,
    }
)
class TestTables:
    def test_source(self, value):
        refused(table, source=value)

    def test_target(self, value):
        refused(table, target=value)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe\x00", b'age,city,label\n1,"a,x\n', b"PAR1PAR1", b"{}"],
    ids=["empty", "bytes", "quote", "magic", "json"],
)
@pytest.mark.parametrize("ending", ["csv", "parquet", "tsv", "arrow", "json"])
def test_files_that_hold_no_table(content, ending, tmp_path):
    path = tmp_path / f"table.{ending}"
    path.write_bytes(content)
    refused(table, source=str(path))


@cases({"nothing": None, "a dict": {"context": ("age",)}, "text": "age", "a number": 1})
def test_columns(value):
    refused(table, columns=value)


@cases(
    {
        "text": "pair",
        "nothing": None,
        "a number": 1,
        "unknown": "syntetic",
        "NUL": "syn\0thetic",
        "path": "../digit",
    }
)
def test_names_of_pairs(value):
    refused(domains.load, value)


@pytest.mark.parametrize(
    "option", [{"n_arm": 3}, {"n_arms": 0}, {"n_arms": "x"}, {"data_seed": -1}], ids=str
)
def test_options_of_pairs(option):
    refused(domains.load, "synthetic", **option)


class TestFolders:
    @cases(
        {"nothing": None, "a number": 3, "empty": "", "NUL": "a\0b", "nowhere": "no/such/folder"}
    )
    def test_images(self, value):
        refused(domains.from_images, source=value, target=value)

    def test_a_folder_without_images(self, tmp_path):
        (tmp_path / "cat").mkdir()
        refused(domains.from_images, source=tmp_path, target=tmp_path)

    def test_a_file_in_place_of_a_folder(self, tmp_path):
        (tmp_path / "file").write_text("")
        refused(domains.from_images, source=tmp_path / "file", target=tmp_path / "file")


class TestTraining:
    @cases(
        {
            "nothing": None,
            "text": "linucb",
            "a class": daband.LinUCB,
            "a number": 3,
            "a list of text": ["linucb"],
        }
    )
    def test_no_policy(self, value):
        refused(daband.train, value, source=arrays().source, episodes=1, episode_length=2)

    @cases({"nothing": None, "arrays": (X, Y), "contexts": "target", "a number": 3})
    def test_no_source(self, value):
        pair = arrays()
        policy = daband.LinUCB(context_shape=(D,), n_arms=K)
        refused(
            daband.train,
            policy,
            source=pair.target if value == "target" else value,
            episodes=1,
            episode_length=2,
        )

    @cases({"text": "target", "arrays": X, "a pair": "pair", "the source": "source"})
    def test_no_target(self, value):
        pair = arrays()
        given = (
            {"pair": pair, "source": pair.source}.get(value, value)
            if isinstance(value, str)
            else value
        )
        policy = daband.LinUCB(context_shape=(D,), n_arms=K)
        refused(
            daband.train, policy, source=pair.source, target=given, episodes=1, episode_length=2
        )
        assert policy.counts.sum() == 0

    @pytest.mark.parametrize("changed", [{"context_shape": (D + 1,)}, {"n_arms": K + 1}], ids=str)
    def test_a_policy_of_another_shape(self, changed):
        policy = daband.LinUCB(**{"context_shape": (D,), "n_arms": K, **changed})
        refused(daband.train, policy, source=arrays().source, episodes=1, episode_length=2)

    @cases({"negative": -1, "a float": 1.5, "text": "0", "yes": True})
    def test_seeds(self, value):
        policy = daband.LinUCB(context_shape=(D,), n_arms=K)
        refused(
            daband.train, policy, source=arrays().source, episodes=1, episode_length=2, seed=value
        )

    @cases({"text": "often", "nothing": None, "NaN": np.nan, "negative": -1.0})
    def test_save_every(self, value, tmp_path):
        policy = daband.LinUCB(context_shape=(D,), n_arms=K)
        settings = {
            "source": arrays().source,
            "episodes": 1,
            "episode_length": 2,
            "directory": tmp_path / "run",
        }
        refused(daband.train, policy, **settings, save_every=value)
        assert not (tmp_path / "run").exists()


@cases({"zero": 0, "negative": -1, "a float": 1.5, "text": "2", "yes": True})
def test_rounds_of_continuing(value):
    pair = arrays(target_labelled=(X, Y))
    policy = daband.LinUCB(context_shape=(D,), n_arms=K)
    refused(daband.continue_on_target, policy, target=pair.target_labelled, rounds=value)
    refused(
        daband.continue_on_target,
        policy,
        target=pair.target_labelled,
        rounds=4,
        episode_length=value,
    )
