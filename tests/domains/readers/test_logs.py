import tracemalloc
import warnings

import numpy as np
import polars as pl
import pytest

import daband
from daband.domains import Columns, from_arrays, from_log, from_table
from daband.logs._scores import Scores
from daband.rounds._rounds import Rounds

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 4))
Y = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0.5)


def log_frame(n=4000, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(n, 3))
    propensity = np.where(x[:, 0] > 0, 0.8, 0.2)
    arm = (generator.random(n) < propensity).astype(np.int64)
    return pl.DataFrame(
        {
            "a": x[:, 0],
            "b": x[:, 1],
            "c": x[:, 2],
            "arm": arm,
            "reward": generator.normal(arm * x[:, 1], 0.1),
            "propensity": np.where(arm == 1, propensity, 1 - propensity),
        }
    )


@pytest.mark.parametrize(
    "column", [lambda y: y[:, None], lambda y: pl.DataFrame({"y": y}), lambda y: [[v] for v in y]]
)
def test_labels_in_one_column_are_labels(column):
    """Before: a bandit of one arm, through which everything ran."""
    plain, columned = (
        from_arrays(
            source=(X, labels), target=X, target_test=(X, labels), target_labelled=(X, labels)
        )
        for labels in (Y, column(Y))
    )
    assert columned.n_arms == plain.n_arms == 3
    assert columned.feedback == "one_hot"
    rows = np.arange(50)
    np.testing.assert_array_equal(
        columned.source.read_rewards(rows)[0], plain.source.read_rewards(rows)[0]
    )
    np.testing.assert_array_equal(
        columned.target_test.read_expected(0, 50), plain.target_test.read_expected(0, 50)
    )


def test_labels_in_a_pandas_frame_or_a_tensor_column():
    import pandas as pd
    import torch

    for labels in (pd.DataFrame({"y": Y}), torch.as_tensor(Y)[:, None]):
        assert from_arrays(source=(X, labels), target=X).n_arms == 3
    with pytest.raises(daband.InvalidInput, match=r"labels .*'low'.*numpy\.unique"):
        from_arrays(source=(X, pd.DataFrame({"y": ["low", "high"] * 300})), target=X)


def test_one_column_of_rewards_is_refused():
    with pytest.raises(
        daband.InvalidInput,
        match=r"source rewards .*\(n,\)",
    ):
        from_arrays(source=(X, Y[:, None] / 2), target=X)


def test_a_number_of_arms_beyond_memory_is_refused_at_once():
    with pytest.raises(daband.InvalidInput, match=r"n_arms=1000000000000 .* GiB"):
        from_arrays(source=(X, Y), target=X, n_arms=10**12)
    with pytest.raises(daband.InvalidInput, match=r"labels .*999999999999 .* GiB"):
        from_arrays(source=(X, np.where(Y == 0, 10**12 - 1, Y)), target=X)
    log = (X, Y, X[:, 0], np.full(600, 0.5))
    with pytest.raises(daband.InvalidInput, match=r"n_arms=1000000000000 .* GiB"):
        from_log(source=log, target=X, n_arms=10**12)


def test_equal_class_names_are_refused_at_once():
    with pytest.raises(daband.InvalidInput, match=r"class_names .*'low'"):
        from_arrays(source=(X, Y), target=X, class_names=["low", "high", "low"])


def test_two_columns_of_one_name_are_refused(tmp_path):
    import pandas as pd

    twice = pd.DataFrame([[1.0, 2.0, 0], [2.0, 1.0, 1]] * 10, columns=["a", "a", "y"])
    columns = Columns(context=["a"], label="y")
    with pytest.raises(daband.InvalidInput, match=r"columns .*'a'"):
        from_table(source=twice, target=twice, columns=columns)
    twice.to_csv(tmp_path / "twice.csv", index=False)
    with pytest.raises(daband.InvalidInput, match=r"columns .*'a'"):
        from_table(source=tmp_path / "twice.csv", target=tmp_path / "twice.csv", columns=columns)


def test_a_quote_in_the_name_of_a_column_of_a_file(tmp_path):
    (tmp_path / "log.csv").write_text('"a ""b"" c",y\n' + "1.5,no\n2.5,yes\n" * 10)
    columns = Columns(context=['a "b" c'], label="y")
    pair = from_table(source=tmp_path / "log.csv", target=tmp_path / "log.csv", columns=columns)
    assert pair.source.read(np.arange(len(pair.source))).std() > 0


@pytest.mark.parametrize("framing", ["224", 0, True])
def test_a_framing_that_is_no_number_of_pixels_is_refused(tmp_path, framing):
    for name in ("day", "night"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(b"")
    with pytest.raises(daband.InvalidInput, match="framing"):
        daband.domains.from_images(source=tmp_path, target=tmp_path, framing=framing)


def test_a_log_needs_no_table_of_every_arm():
    n = 20_000
    arms = 400
    log = (RNG.normal(size=(n, 5)), RNG.integers(arms, size=n), RNG.random(n), np.full(n, 1 / arms))
    tracemalloc.start()
    pair = from_log(source=log, target=log[0], n_arms=arms)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pair.n_arms == arms
    assert peak < 8e6  # the table of 20,000 x 400 rewards takes 64 MB


def test_a_share_of_parquet_files_is_held_out(tmp_path):
    """Before: source_test=0.1 was ignored, because it is the default."""
    frame = log_frame()
    frame[:2500].write_parquet(tmp_path / "0.parquet")
    frame[2500:].write_parquet(tmp_path / "1.parquet")
    pair = from_log(
        source=tmp_path, target=frame.select("a", "b", "c").to_numpy(), n_arms=2, source_test=0.1
    )
    assert len(pair.source) + len(pair.source_test) == 4000
    assert abs(len(pair.source_test) - 400) < 4

    def rows(log):
        every = log.read(np.arange(len(log)))
        shown = log.batch(0, len(log), seed=3)
        assert {row.tobytes() for row in shown} == {row.tobytes() for row in every}
        return {row.tobytes() for row in every}

    used = rows(pair.source)
    held = rows(pair.source_test)
    assert not used & held
    assert len(used | held) == 4000
    assert from_log(source=tmp_path, target=X[:, :3], n_arms=2).source_test is None


def test_training_rounds_of_a_file_keep_their_weights(tmp_path):
    frame = log_frame(200).with_columns(w=pl.int_range(1, 201).cast(pl.Float64))
    frame.write_parquet(tmp_path / "log.parquet")
    log = daband.domains.ParquetLog(
        tmp_path,
        n_arms=2,
        columns=Columns(arm="arm", reward="reward", propensity="propensity", weights="w"),
    )
    pair = from_log(source=log, target=frame.select("a", "b", "c").to_numpy(), n_arms=2)
    rounds = pair.source.rounds(0, len(pair.source), seed=0)
    rows = enumerate(log.read(np.arange(200)), start=1)
    expected = {row.tobytes(): weight for weight, row in rows}
    assert rounds.weights.tolist() == [expected[row.tobytes()] for row in rounds.contexts]


def test_a_log_without_propensities_says_that_they_are_estimated():
    frame = log_frame(800)
    contexts = frame.select("a", "b", "c").to_numpy()
    arms = frame["arm"].to_numpy()
    rewards = frame["reward"].to_numpy()
    with pytest.warns(UserWarning, match="propensities.*logistic"):
        pair = from_log(source=(contexts, arms, rewards), target=contexts, n_arms=2)
    assert len(pair.source) == 800
    columns = Columns(context=["a", "b", "c"], arm="arm", reward="reward")
    with pytest.warns(UserWarning, match="propensities"):
        table = from_table(source=frame.drop("propensity"), target=frame, columns=columns)
    everything = table.source.read_log(np.arange(800))[2]
    # a step, met by a slope
    assert np.abs(np.sort(everything) - np.sort(frame["propensity"].to_numpy())).mean() < 0.16
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_log(source=(contexts, arms, rewards, np.full(800, 0.5)), target=contexts, n_arms=2)
    with pytest.raises(daband.InvalidInput, match=r"columns\.arm .*columns\.reward"):
        Columns(context=["a"], arm="arm")


# Arms that were offered.


def offered_log(n=3000, seed=0):
    """Arm 2 is best and offered in a third of the rounds; the log chooses uniformly among the
    offered arms.
    """
    draw = np.random.default_rng(seed)
    offered = np.stack([np.ones(n, np.bool_), np.ones(n, np.bool_), np.arange(n) % 3 == 0], axis=1)
    arms = np.array([draw.choice(np.flatnonzero(row)) for row in offered])
    return draw.normal(size=(n, 2)), arms, arms + 0.1 * draw.normal(size=n), offered


def test_an_arm_that_was_not_offered_has_no_chance():
    contexts, arms, rewards, offered = offered_log()
    with pytest.warns(UserWarning, match="propensities.*weight .*offered"):
        pair = daband.domains.from_log(
            source=(contexts, arms, rewards, None, offered),
            target=contexts,
            n_arms=3,
            source_test=0.1,
        )
    rounds = pair.source.rounds(0, 500, seed=0)
    np.testing.assert_allclose(rounds.propensities, 1 / rounds.offered.sum(axis=1), atol=0.04)
    always = daband.evaluate_log(lambda x: np.tile([0.0, 0.5, 0.5], (len(x), 1)), pair.source_test)
    # arm 2 in half of the rounds that offer it
    assert always.value == pytest.approx(1.0 + 0.5 / 3, abs=0.05)
    again = daband.evaluate_log(lambda x: np.tile([0.0, 0.5, 0.5], (len(x), 1)), rounds)
    assert again.value == pytest.approx(1.0 + 0.5 / 3, abs=0.08)
    policy = daband.LogPolicy.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target)
    assert daband.evaluate_log(policy, pair.source_test).value == pytest.approx(4 / 3, abs=0.05)
    advantage = daband.assess(
        policy, source=pair.source_test, target=pair.target, incumbent=1
    ).source_value
    assert advantage == pytest.approx(4 / 3, abs=0.05)


def test_log_files_list_the_offered_arms(tmp_path):
    contexts, arms, rewards, offered = offered_log(400)
    propensities = 1 / offered.sum(axis=1)
    policy = daband.LinUCB(context_shape=(2,), n_arms=3, epsilon=0.3, seed=0)
    policy.arm_names = ["a", "b", "c"]
    listed = [[name for name, one in zip("abc", row, strict=True) if one] for row in offered]
    frame = pl.DataFrame(
        {
            "x": contexts[:, 0],
            "y": contexts[:, 1],
            "arm": ["abc"[at] for at in arms],
            "reward": rewards,
            "propensity": propensities,
            "offered": ["|".join(names) for names in listed],
        }
    )
    frame.write_parquet(tmp_path / "texts.parquet")
    frame.with_columns(shown=pl.Series(listed)).drop("offered").write_parquet(
        tmp_path / "lists.parquet"
    )
    frame.with_columns(offered=pl.lit("a|b")).write_parquet(tmp_path / "wrong.parquet")
    roles = {"context": ["x", "y"], "arm": "arm", "reward": "reward", "propensity": "propensity"}
    learned = policy
    streamed = daband.LinUCB(context_shape=(2,), n_arms=3, epsilon=0.3, seed=0)
    streamed.arm_names = policy.arm_names
    daband.fit_log(streamed, tmp_path / "texts.parquet")
    learned.update(contexts, arms, rewards, weights=np.ones(400))  # uniform among the offered arms
    np.testing.assert_allclose(
        streamed.decide(contexts).mean, learned.decide(contexts).mean, rtol=1e-9
    )
    expected = daband.evaluate_log(policy, (contexts, arms, rewards, propensities, offered))
    for name, columns in (
        ("texts", None),
        ("lists", daband.domains.Columns(**roles, offered="shown")),
    ):
        assert daband.evaluate_log(
            policy, tmp_path / f"{name}.parquet", columns=columns
        ).value == pytest.approx(expected.value)
    log = daband.domains.ParquetLog(
        tmp_path / "texts.parquet", n_arms=3, arm_names=policy.arm_names
    )
    assert log.read_rounds(np.array([5, 0, 7])).offered.tolist() == offered[[5, 0, 7]].tolist()
    with pytest.raises(daband.errors.DataError, match=r"wrong\.parquet: row 0 .*'c', .*'offered'"):
        daband.evaluate_log(policy, tmp_path / "wrong.parquet")
    with pytest.raises(daband.InvalidInput, match=r"policy .*probability 0 .* row 1 "):
        daband.evaluate_log(
            lambda x: np.tile([0.0, 0.0, 1.0], (len(x), 1)),
            (contexts, arms, rewards, propensities, offered),
        )


def test_an_incumbent_that_was_not_offered_earns_as_the_log_does():
    contexts, arms, rewards, offered = offered_log()
    rounds = Rounds(contexts, arms, rewards, 1 / offered.sum(axis=1), offered=offered)
    values = Scores(rounds, 3).values.mean(axis=0)
    np.testing.assert_allclose(values, [0.0, 1.0, 2 / 3 + 0.5 * 2 / 3], atol=0.05)


def test_offered_arms_are_checked():
    contexts, arms, rewards, offered = offered_log(60)
    given = {"target": contexts, "n_arms": 3}
    with pytest.raises(daband.InvalidInput, match=r"offered .*booleans.*int64"):
        daband.domains.from_log(
            source=(contexts, arms, rewards, np.full(60, 0.4), offered.astype(int)), **given
        )
    offered[7] = np.arange(3) == (arms[7] + 1) % 3
    with pytest.raises(daband.InvalidInput, match=r"row 7 .* arm \d, .*offered"):
        daband.domains.from_log(
            source=(contexts, arms, rewards, np.full(60, 0.4), offered), **given
        )


def test_a_column_lists_the_offered_arms():
    contexts, arms, rewards, offered = offered_log(60)
    listed = [
        "|".join(name for name, one in zip("abc", row, strict=True) if one) for row in offered
    ]
    frame = pl.DataFrame(
        {"x": contexts[:, 0], "arm": ["abc"[at] for at in arms], "paid": rewards, "shown": listed}
    )
    columns = daband.domains.Columns(context=["x"], arm="arm", reward="paid", offered="shown")
    with pytest.warns(UserWarning, match="propensities.*weight .*offered"):
        pair = daband.domains.from_table(
            source=frame, target=frame, columns=columns, source_test=None
        )
    assert pair.source.read_rounds(np.arange(60)).offered.tolist() == offered.tolist()
    wrong = frame.with_columns(shown=pl.lit("a|b"))
    with pytest.raises(daband.errors.DataError, match=r"row 0 .*'c', .*'shown'"):
        daband.domains.from_table(source=wrong, target=frame, columns=columns, source_test=None)
    gap = frame.with_columns(shown=pl.when(pl.int_range(60) != 7).then("shown"))
    with pytest.raises(daband.errors.DataError, match=r"'shown' .*row 7"):
        daband.domains.from_table(source=gap, target=frame, columns=columns, source_test=None)
    with pytest.raises(daband.errors.DataError, match=r"'z' .*'shown', row 0 .*\(a, b, c\)"):
        daband.domains.from_table(
            source=frame.with_columns(shown=pl.lit("a|z")),
            target=frame,
            columns=columns,
            source_test=None,
        )
    with pytest.raises(daband.InvalidInput, match=r"columns\.offered .*columns\.arm"):
        daband.domains.Columns(context=["x"], label="arm", offered="shown")
