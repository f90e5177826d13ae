import json

import numpy as np
import polars as pl
import pytest

import daband
from daband.domains import Columns, TableTransform, from_table
from daband.domains.readers._reading import read_table
from daband.errors import DataError, InvalidInput


def frame(n=40, *, seed=0, shift=0.0):
    generator = np.random.default_rng(seed)
    income = generator.normal(shift, 1.0, n)
    income[::7] = np.nan
    return pl.DataFrame(
        {
            "income": income,
            "city": [["Rome", "Oslo", None][value] for value in generator.integers(0, 3, n)],
            "member": generator.integers(0, 2, n).astype(bool),
            "offer": [["blue", "green"][value] for value in np.arange(n) % 2],
            "pay blue": generator.random(n),
            "pay green": generator.random(n),
            "shown": [["blue", "green"][value] for value in generator.integers(0, 2, n)],
            "clicked": generator.integers(0, 2, n),
            "chance": generator.uniform(0.1, 1.0, n),
        }
    )


COLUMNS = Columns(context=("income", "city", "member"), categorical=("city",), label="offer")
LOGGED = {"label": "offer", "arm": "shown", "reward": "clicked", "propensity": "chance"}


def test_numbers_and_categories_become_contexts():
    pair = from_table(source=frame(), target=frame(seed=1), columns=COLUMNS, source_test=0)
    assert pair.feature_names == (
        "income",
        "income (missing)",
        "city = Oslo",
        "city = Rome",
        "city = (missing)",
        "member",
    )
    assert pair.class_names == ("blue", "green")
    contexts = pair.source.read(np.arange(40))
    np.testing.assert_array_equal(contexts[:, 1], np.isnan(frame()["income"].to_numpy()))
    np.testing.assert_array_equal(contexts[:, 2:5].sum(axis=1), 1.0)
    assert (len(pair.target), len(pair.target_test)) == (20, 20)


def test_missing_numbers_become_the_median_and_columns_are_standardised():
    table = pl.DataFrame({"x": [1.0, None, 3.0, 11.0]})
    transform = TableTransform.fit(table, context=["x"])
    contexts = transform.apply(table)
    filled = np.array([1.0, 3.0, 3.0, 11.0])
    np.testing.assert_allclose(contexts[:, 0], (filled - filled.mean()) / filled.std())
    np.testing.assert_array_equal(contexts[:, 1], [0, 1, 0, 0])


def test_an_unknown_category_is_zeros_and_a_constant_column_is_too():
    fitted = TableTransform.fit(
        pl.DataFrame({"c": ["a", "b"], "one": [1.0, 1.0]}), context=["c", "one"], categorical=["c"]
    )
    np.testing.assert_array_equal(
        fitted.apply(pl.DataFrame({"c": ["z", None], "one": [1.0, 1.0]})), np.zeros((2, 3))
    )


def test_a_fitted_transform_can_be_given():
    fitted = TableTransform.fit(frame(), context=COLUMNS.context, categorical=COLUMNS.categorical)
    again = TableTransform.from_state(json.loads(json.dumps(fitted.state())))
    assert again == fitted
    np.testing.assert_array_equal(again.apply(frame(seed=5)), fitted.apply(frame(seed=5)))
    pair = from_table(
        source=frame(), target=frame(seed=1), columns=COLUMNS, transform=again, source_test=None
    )
    np.testing.assert_array_equal(pair.source.read(np.arange(40)), fitted.apply(frame()))


def test_the_pair_has_its_transform_and_raw_rows_become_contexts():
    pair = from_table(source=frame(), target=frame(seed=1), columns=COLUMNS, source_test=0)
    rows = frame().to_dicts()
    np.testing.assert_array_equal(pair.table.contexts(rows), pair.source.read(np.arange(40)))
    np.testing.assert_array_equal(pair.table.contexts(rows[3]), pair.source.read(np.array([3])))
    again = TableTransform.from_state(json.loads(json.dumps(pair.table.state())))
    assert again == pair.table
    odd = {**rows[0], "income": float("nan"), "city": "Atlantis"}
    np.testing.assert_array_equal(again.contexts(odd)[:, 1:5], [[1.0, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"income": "much"}, "'income' .*'much'"),
        ({"income": float("inf")}, "'income' .*inf"),
        ({"city": None, "income": None}, None),
    ],
)
def test_wrong_raw_rows_are_named(change, message):
    table = from_table(source=frame(), target=frame(seed=1), columns=COLUMNS).table
    row = {**frame().to_dicts()[0], **change}
    if message is None:
        assert table.contexts(row).shape == (1, len(table.feature_names))
    else:
        with pytest.raises(InvalidInput, match=message):
            table.contexts(row)
    del row["income"]
    with pytest.raises(InvalidInput, match=r"row 0: .*'income'"):
        table.contexts(row)


@pytest.mark.parametrize(
    "state", [[], {}, {"format": "other"}, {"format": "daband table transform", "columns": [{}]}]
)
def test_a_state_that_is_no_transform(state):
    with pytest.raises(DataError, match=r"state .*transform"):
        TableTransform.from_state(state)


@pytest.mark.parametrize("kind", ["parquet", "csv", "tsv", "arrow", "pandas", "pyarrow", "lazy"])
def test_every_kind_of_table_gives_the_same_pair(tmp_path, kind):
    pytest.importorskip("pyarrow")

    def given(table, name):
        path = tmp_path / f"{name}.{kind}"
        match kind:
            case "parquet":
                table.write_parquet(path)
            case "csv":
                table.write_csv(path)
            case "tsv":
                table.write_csv(path, separator="\t")
            case "arrow":
                table.write_ipc(path)
            case "pandas":
                return table.to_pandas()
            case "pyarrow":
                return table.to_arrow()
            case "lazy":
                return table.lazy()
        return path

    plain = from_table(source=frame(), target=frame(seed=1), columns=COLUMNS, source_test=0)
    other = from_table(
        source=given(frame(), "s"), target=given(frame(seed=1), "t"), columns=COLUMNS, source_test=0
    )
    np.testing.assert_allclose(
        other.source.read(np.arange(40)), plain.source.read(np.arange(40)), atol=1e-9
    )
    np.testing.assert_array_equal(
        other.target_test.read_expected(0, 20), plain.target_test.read_expected(0, 20)
    )


def test_a_reward_per_arm_and_a_test_of_its_own():
    columns = Columns(context=("income",), rewards=("pay blue", "pay green"))
    pair = from_table(
        source=frame(), target=frame(seed=1), target_test=frame(seed=2), columns=columns
    )
    np.testing.assert_allclose(
        pair.target_test.read_expected(0, 40)[:, 1], frame(seed=2)["pay green"].to_numpy()
    )
    assert pair.feedback == "bandit"
    assert len(pair.target_labelled) == 40
    only_contexts = from_table(
        source=frame(),
        target=frame(seed=1).select("income"),
        target_test=frame(seed=2),
        columns=columns,
    )
    assert only_contexts.target_labelled is None


def test_a_log_as_source():
    columns = Columns(
        context=("income",), label="offer", arm="shown", reward="clicked", propensity="chance"
    )
    given = {"source": frame(), "target": frame(seed=1), "target_test": frame(seed=2)}
    pair = from_table(**given, columns=columns, source_test=None)
    rounds = pair.source.rounds(0, 40, seed=0)
    order = pair.source.order(0, 40, seed=0)
    np.testing.assert_array_equal(rounds.rewards, frame()["clicked"].to_numpy()[order])
    np.testing.assert_allclose(rounds.propensities, frame()["chance"].to_numpy()[order])
    assert [pair.class_names[arm] for arm in rounds.arms] == frame()["shown"].gather(
        order
    ).to_list()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            Columns(context=("incomes",), label="offer"),
            r"source .*'incomes'.*'income'\? \(.*income, city",
        ),
        (
            Columns(context=("income",), label="offers"),
            r"'offers'.*'offer'\? \(.*income, city",
        ),
        (
            Columns(context=("income",), rewards=("pay blue", "city")),
            "^target: .*'city' .*'Rome' .*row 2",
        ),
    ],
)
def test_wrong_columns_are_named(columns, message):
    with pytest.raises((InvalidInput, DataError), match=message):
        from_table(source=frame(), target=frame(seed=1), columns=columns)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"context": "income"}, r"columns\.context .*'income'"),
        ({"context": ("income",)}, "label .*reward"),
        ({"context": ("income",), "label": "offer", "rewards": ("a",)}, "label .*reward"),
        (
            {"context": ("income",), "label": "offer", "categorical": ("city",)},
            r"columns\.categorical .*'city'",
        ),
        *(
            ({"context": ("income",), "label": "offer", role: None}, rf"columns\.{role} .*None")
            for role in ("context", "categorical", "rewards", "dates", "id", "encoders")
        ),
        (
            {"context": ("income",), "label": "offer", "arm": "shown"},
            r"columns\.arm .*columns\.reward",
        ),
        (
            {"context": ("income", "offer"), "label": "offer"},
            r"columns\.context .*'offer', .*columns\.label",
        ),
        (
            {"context": ("a", "b"), "categorical": ("b",), "label": "b"},
            r"columns\.context .*'b', .*columns\.label",
        ),
        (
            {"context": ("income", "b"), "rewards": ("a", "b")},
            r"columns\.context .*'b', .*columns\.rewards",
        ),
        (
            {"context": ("income", "shown"), **LOGGED},
            r"columns\.context .*'shown', .*columns\.arm",
        ),
        (
            {"context": ("income", "clicked"), **LOGGED},
            r"columns\.context .*'clicked', .*columns\.reward ",
        ),
        (
            {"context": ("income", "chance"), **LOGGED},
            r"columns\.context .*'chance', .*columns\.propensity",
        ),
    ],
)
def test_columns_that_make_no_sense(fields, message):
    with pytest.raises(InvalidInput, match=message):
        Columns(**fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"target": {"income": pl.lit("much")}},
            "'income' .*'much' .*target",
        ),
        (
            {"source": {"clicked": pl.lit("12 $")}},
            "^source: .*'clicked' .*'12 [$]' .*row 0",
        ),
        ({"source": {"income": pl.lit("2024-03-27")}}, "'2024-03-27' .*`dates`"),
        ({"source": {"income": pl.date(2024, 3, 27)}}, r"\(date\) .*`dates`"),
    ],
)
def test_a_column_of_the_wrong_type_is_named_with_its_table(change, message):
    tables = {
        name: table.with_columns(**change.get(name, {}))
        for name, table in (("source", frame()), ("target", frame(seed=1)))
    }
    with pytest.raises((InvalidInput, DataError), match=message):
        from_table(**tables, columns=Columns(context=("income",), **LOGGED))


def test_rounds_of_a_log_without_a_reward_are_named():
    log = frame().with_columns(
        clicked=pl.when(pl.arange(0, 40) == 17).then(None).otherwise("clicked")
    )
    columns = Columns(context=("income",), arm="shown", reward="clicked", propensity="chance")
    with pytest.raises(DataError, match=r"^source: .*'clicked' .*row 17"):
        from_table(source=log, target=frame(seed=1), columns=columns, source_test=None)


def test_a_column_with_a_category_for_every_row_is_warned_about():
    many = [
        table.with_columns(city=pl.format("no. {}", pl.arange(0, 100)))
        for table in (frame(100), frame(100, seed=1))
    ]
    with pytest.warns(UserWarning, match="'city' .*96 .*140 "):
        from_table(source=many[0], target=many[1], columns=COLUMNS)


def test_whole_numbers_are_the_same_categories_as_floats(tmp_path):
    plans = [1, 2, 2, None] * 10
    # as pandas has them where some are missing
    source = frame().with_columns(plan=pl.Series(plans, dtype=pl.Float64))
    target = frame(seed=1).with_columns(plan=pl.Series([1, 2] * 20, dtype=pl.Int64))
    columns = Columns(context=("income", "plan"), categorical=("plan",), label="offer")
    pair = from_table(source=source, target=target, columns=columns)
    assert [name for name in pair.feature_names if "plan" in name] == [
        "plan = 1",
        "plan = 2",
        "plan = (missing)",
    ]
    rows = [{"income": 0.0, "plan": value} for value in (1, 1.0, np.float32(1), "1")]
    assert len(np.unique(pair.table.contexts(rows), axis=0)) == 1
    assert pair.table.contexts(rows)[0, pair.feature_names.index("plan = 1")] == 1.0
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=1, episode_length=16)
    daband.export(policy, tmp_path / "p.daband", pair=pair, domain="target")
    deployed = daband.load_deployed(tmp_path / "p.daband")
    assert all(deployed.decide(row).warnings == () for row in rows)


def test_arms_can_be_named_with_those_that_were_never_tried():
    columns = Columns(context=("income",), arm="shown", reward="clicked", propensity="chance")
    named = {"source": frame(), "target": frame(seed=1), "columns": columns}
    pair = from_table(**named, class_names=["red", "green", "blue"])
    assert (pair.n_arms, pair.class_names) == (3, ("red", "green", "blue"))
    assert set(pair.source.rounds(0, 30, seed=0).arms) == {1, 2}
    with pytest.raises(DataError, match=r"'blue' .*'shown', .*\(red, green\)"):
        from_table(**named, class_names=["red", "green"])
    for wrong in ("red", ["red"], ["red", "red", "blue", "green"]):
        with pytest.raises(InvalidInput, match="class_names"):
            from_table(**named, class_names=wrong)
    rewards = Columns(context=("income",), rewards=("pay blue", "pay green"))
    with pytest.raises(InvalidInput, match=r"class_names .*columns\.rewards"):
        from_table(**{**named, "columns": rewards}, class_names=["a", "b"])


def test_a_pair_prints_what_it_is_in_a_few_lines():
    text = repr(from_table(source=frame(), target=frame(seed=1).drop("offer"), columns=COLUMNS))
    assert "contexts (6,), 2 arms (blue, green)" in text
    assert "36 source contexts and 4 held out, 40 target contexts, no target labels" in text
    assert len(text) < 300


def test_a_class_that_one_side_does_not_have():
    few = frame(seed=1).filter(pl.col("offer") == "blue")
    # a small target need not have every class
    pair = from_table(source=frame(), target=few, columns=COLUMNS)
    result = daband.evaluate(daband.Constant.for_pair(pair, seed=0), pair.target_test)
    assert result.per_class[1] is None
    assert result.per_class[0] is not None
    with pytest.raises(DataError, match=r"'green' .*'offer', .*\(blue\)"):
        from_table(source=few, target=frame(), columns=COLUMNS)


def test_target_rows_without_labels_in_the_table_of_all_domains():
    """Before: "no value in row 0; drop such rows first", though a target without labels is the
    usual one.
    """
    everything = pl.concat(
        [
            frame().with_columns(market=pl.lit("old")),
            frame(seed=1).with_columns(market=pl.lit("new")),
        ]
    )
    unlabelled = everything.with_columns(offer=pl.when(pl.col("market") == "old").then("offer"))
    pair = from_table(source=unlabelled, domain="market", targets=["new"], columns=COLUMNS)
    assert pair.target_test is None
    assert len(pair.target) == 40
    some = everything.with_columns(offer=pl.when(pl.int_range(pl.len()) < 50).then("offer"))
    with pytest.warns(
        UserWarning,
        match="30 .*40 .*offer.*target_test=",
    ):
        pair = from_table(source=some, domain="market", targets=["new"], columns=COLUMNS)
    assert pair.target_test is None
    some = frame(seed=1).with_columns(offer=pl.when(pl.int_range(pl.len()) < 10).then("offer"))
    # nobody is told to give what he gave
    with pytest.warns(UserWarning, match=r"30 .*40 .*offer, [^.]*\.$"):
        from_table(source=frame(), target=some, target_test=frame(seed=2), columns=COLUMNS)


def test_missing_labels_rewards_and_rows():
    holes = frame().with_columns(
        pl.when(pl.col("offer") == "blue").then(None).otherwise("offer").alias("offer")
    )
    with pytest.raises(DataError, match=r"'offer' .*row 0"):
        from_table(source=holes, target=frame(), columns=COLUMNS)
    unpaid = frame().with_columns(pl.lit(None, dtype=pl.Float64).alias("pay blue"))
    with pytest.raises(DataError, match=r"^source: .*'pay blue' .*row 0"):
        from_table(
            source=unpaid,
            target=frame(),
            columns=Columns(context=("income",), rewards=("pay blue", "pay green")),
        )
    with pytest.raises(DataError, match=r"target .*rows"):
        from_table(source=frame(), target=frame()[:0], target_test=frame(), columns=COLUMNS)


@pytest.mark.parametrize("side", ["source", "target", "target_test"])
@pytest.mark.parametrize("column", ["income", "pay green"])
def test_an_infinite_number_is_named_not_taken_as_missing(side, column):
    given = {"source": frame(), "target": frame(seed=1), "target_test": frame(seed=2)}
    given[side] = given[side].with_columns(
        pl.when(pl.int_range(pl.len()) == 4).then(-float("inf")).otherwise(column).alias(column)
    )
    columns = Columns(context=("income",), rewards=("pay blue", "pay green"))
    with pytest.raises(DataError, match=f"'{column}' .*inf .*row 4"):
        from_table(**given, columns=columns)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(DataError, match=r"broken\.parquet "):
        read_table(tmp_path / "broken.parquet")
    with pytest.raises(DataError, match=r"gone\.csv "):
        read_table(tmp_path / "gone.csv")
    with pytest.raises(InvalidInput, match=r"table\.xlsx .*\.jsonl"):
        read_table(tmp_path / "table.xlsx")
    with pytest.raises(InvalidInput, match=r"polars .*dict"):
        read_table({"a": [1]})


def test_gaps_of_columns_in_other_units_are_filled_by_the_median_of_their_own_domain() -> None:
    price = np.random.default_rng(0).uniform(1.0, 3.0, 200)
    price[::10] = np.nan
    old = pl.DataFrame({"price": price, "age": price, "offer": [0, 1] * 100})
    new = pl.DataFrame({"price": 100.0 * price, "age": price + 1.0})
    columns = Columns(context=["price", "age"], label="offer")
    pair = from_table(source=old, target=new, columns=columns, units=["price"])
    source, target = (part.read(np.arange(len(part))) for part in (pair.source, pair.target))
    # Standardised by each domain's own statistics, a gap lies in the middle of its own domain.
    policy = daband.LinUCB.for_pair(pair)
    policy.prepare(source, target)
    for contexts, domain in ((source, 0), (target, 1)):
        features = policy.transform(contexts, domain)
        gaps = contexts[:, 1] > 0
        assert np.abs(features[gaps, 0]).max() < 0.05 < np.abs(features[~gaps, 0]).mean()
    # A row that a deployed policy decides on is one of the target; a column in the same units has
    # one median.
    assert np.array_equal(pair.table.contexts({"price": None, "age": None}), target[:1])
    assert source[source[:, 1] > 0][0, 2] == target[0, 2]
