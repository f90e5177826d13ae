"""Estimates from a log in Parquet files are those of the same rounds in memory, whatever is in the
files.
"""

import numpy as np
import pytest

import daband
from daband.domains import Columns, ParquetLog
from daband.domains.readers import _parquet_log as parquet_log
from daband.errors import DataError, InvalidInput

pl = pytest.importorskip("polars")
K = 3
D = 4


def rounds(n=3_000, *, d=D, offset=0.0, seed=0):
    """Contexts with an offset, arms, rewards around 7, and propensities."""
    rng = np.random.default_rng(seed)
    x = (offset + rng.normal(size=(n, d)) * np.linspace(0.1, 3.0, d)).astype(np.float64)
    share = np.exp(2 * (x[:, :1] - offset) * np.array([1.0, 0.0, -1.0]))
    share = 0.05 + (1 - K * 0.05) * share / share.sum(axis=1, keepdims=True)
    arms = (rng.random(n)[:, None] > share.cumsum(axis=1)).sum(axis=1).clip(max=K - 1)
    rewards = 7.0 + arms * 0.3 + (x[:, 1] - offset) * (arms == 1) + rng.normal(size=n)
    return x, arms, rewards, share[np.arange(n), arms]


def write(folder, log, files=3, **more):
    x, arms, rewards, chances = log
    folder.mkdir(exist_ok=True)
    for number, rows in enumerate(np.array_split(np.arange(len(arms)), files)):
        flat = x[rows].reshape(len(rows), -1)
        columns = {f"x{i}": flat[:, i] for i in range(flat.shape[1])}
        columns |= {"arm": arms[rows], "reward": rewards[rows], "propensity": chances[rows]}
        pl.DataFrame({**columns, **more}).write_parquet(folder / f"{number}.parquet")
    return folder


def fitted(log, **options):
    policy = daband.LinUCB(context_shape=log[0].shape[-1:], n_arms=K, epsilon=0.1, **options)
    policy.prepare(log[0])
    policy.update(log[0][:300], log[1][:300], log[2][:300])
    return policy


def assert_same(found, expected):
    assert found.warnings == expected.warnings
    assert (found.rounds, found.domain) == (expected.rounds, expected.domain)
    for field in ("value", "low", "high", "error", "effective_sample_size"):
        expected_value = getattr(expected, field)
        assert getattr(found, field) == pytest.approx(expected_value, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_the_estimate_is_that_of_the_rounds_in_memory(tmp_path, monkeypatch, offset):
    monkeypatch.setattr(parquet_log.ParquetLog.batches, "__defaults__", (700,))
    log = rounds(offset=offset)
    policy = fitted(log, transform=daband.Standardise())
    expected = daband.evaluate_log(policy, log)
    assert_same(daband.evaluate_log(policy, write(tmp_path / "log", log)), expected)


def test_shared_arms_and_functions(tmp_path):
    x, arms, rewards, chances = rounds(900)
    shared = np.random.default_rng(1).normal(size=(900, K, D))
    policy = fitted((shared, arms, rewards, chances), arms="shared", transform=None)
    folder = write(tmp_path / "shared", (shared, arms, rewards, chances))
    assert_same(
        daband.evaluate_log(policy, folder),
        daband.evaluate_log(policy, (shared, arms, rewards, chances)),
    )

    def even(contexts):
        return np.full((len(contexts), K), 1 / K)

    own = write(tmp_path / "own", (x, arms, rewards, chances))
    log = ParquetLog(own, n_arms=K)
    assert_same(
        daband.evaluate_log(even, log), daband.evaluate_log(even, (x, arms, rewards, chances))
    )
    with pytest.raises(InvalidInput, match=r"policy .*n_arms="):
        daband.evaluate_log(even, own)
    with pytest.raises(InvalidInput, match=r"policy .*sum 1, .*row 0 "):
        daband.evaluate_log(lambda contexts: np.ones((len(contexts), K)), log)


def test_a_function_and_an_open_log_with_clusters(tmp_path):
    """Before: the clusters were ignored."""
    log = rounds(900)
    schools = np.arange(900) // 30

    def even(contexts):
        return np.full((len(contexts), K), 1 / K)

    folder = write(tmp_path / "log", log, files=1, school=pl.Series(schools))
    stream = ParquetLog(
        folder,
        n_arms=K,
        columns=Columns(
            tuple(f"x{i}" for i in range(D)), arm="arm", reward="reward", propensity="propensity"
        ),
    )
    found = daband.evaluate_log(even, stream, clusters="school")
    assert_same(found, daband.evaluate_log(even, log, clusters=schools))
    assert found.error != daband.evaluate_log(even, stream).error  # the log did not change
    with pytest.raises(InvalidInput, match=r"cluster .*'shcool'.*school"):
        daband.evaluate_log(even, stream, clusters="shcool")


def test_long_contexts_are_reduced_alike(tmp_path):
    log = rounds(120, d=260)
    policy = fitted(log, transform=daband.PCA(4))
    assert_same(
        daband.evaluate_log(policy, write(tmp_path / "log", log)), daband.evaluate_log(policy, log)
    )


def test_an_arm_that_was_never_pulled_and_a_constant_column(tmp_path):
    x, arms, rewards, chances = rounds(500)
    x[:, 2] = 3.25
    log = x, np.where(arms == 2, 0, arms), rewards, chances
    policy = fitted((x, arms, rewards, chances), transform=daband.Standardise())
    expected = daband.evaluate_log(policy, log)
    assert any("never chose arm 2" in warning for warning in expected.warnings)
    assert_same(daband.evaluate_log(policy, write(tmp_path / "log", log)), expected)


def test_a_log_without_weight_and_a_small_one(tmp_path):
    def first(contexts):
        return np.tile([1.0, 0.0], (len(contexts), 1))

    x = np.zeros((30, 1))
    ones = np.ones(30, np.int64)
    log = x, ones, np.ones(30), np.full(30, 0.5)
    stream = ParquetLog(write(tmp_path / "log", log), n_arms=2)
    found = daband.evaluate_log(first, stream)
    expected = daband.evaluate_log(first, log)
    assert_same(found, expected)
    few = ParquetLog(
        write(tmp_path / "few", tuple(column[:9] for column in log), files=1), n_arms=2
    )
    with pytest.raises(InvalidInput, match=r"log .*target .*10 .*9$"):
        daband.evaluate_log(first, few)


def test_columns_and_tables(tmp_path):
    log = rounds(400)
    policy = fitted(log, transform=daband.Standardise())
    folder = write(tmp_path / "log", log, more="text")
    with pytest.raises(DataError, match="'more'"):
        daband.evaluate_log(policy, folder)
    columns = Columns(
        tuple(f"x{i}" for i in range(D)), arm="arm", reward="reward", propensity="propensity"
    )
    found = daband.evaluate_log(policy, folder, columns=columns)
    assert_same(found, daband.evaluate_log(policy, log))
    with pytest.raises(InvalidInput, match=r"^columns "):
        daband.evaluate_log(policy, log, columns=columns)


def test_a_damaged_file_is_named(tmp_path):
    log = rounds(600)
    policy = fitted(log, transform=daband.Standardise())
    folder = write(tmp_path / "log", log)
    content = bytearray((folder / "1.parquet").read_bytes())
    content[10:3000] = bytes(2990)  # the footer is well
    (folder / "1.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"1\.parquet .*damaged"):
        daband.evaluate_log(policy, folder)
    (folder / "1.parquet").write_bytes(content[:100])
    with pytest.raises(DataError, match=r"1\.parquet .*PAR1"):
        daband.evaluate_log(policy, folder)


def test_propensities_of_files_are_checked(tmp_path):
    x, arms, rewards, chances = rounds(60)
    policy = fitted((x, arms, rewards, chances), transform=daband.Standardise())
    for wrong in (0.0, 1.5, float("nan")):
        chances[45] = wrong
        folder = write(tmp_path / "log", (x, arms, rewards, chances))
        with pytest.raises(DataError, match=r"2\.parquet: .*'propensity'.* row 5 "):
            daband.evaluate_log(policy, folder)
