import gzip
from dataclasses import replace
from datetime import date, datetime, time, timedelta

import numpy as np
import pandas
import polars as pl
import pytest
from PIL import Image

import daband
from daband.domains import Columns, DataOptions, TableTransform, from_table
from daband.domains.readers._columns import StatedRoles, find_notices, infer_columns
from daband.domains.readers._reading import _CSV_SAMPLE_BYTES, read_table
from tests.leaks import check_pair

N = 120


def frames(seed=0):
    generator = np.random.default_rng(seed)
    days = [date(2021, 3, 1) + timedelta(days=int(day)) for day in generator.integers(0, 700, N)]
    offer = generator.integers(3, size=N)
    old = pl.DataFrame(
        {
            "customer": [f"c-{number:05d}" for number in range(N)],
            "row_id": np.arange(N),
            "age": generator.integers(18, 80, N),
            "city": generator.choice(["Oslo", "Rome"], size=N),
            "joined": days,
            "seen": [f"{day} 1{number % 10}:30" for number, day in enumerate(days)],
            "note": [f"wrote {number} lines" for number in range(N)],
            "country": ["Norway"] * N,
            "empty": pl.Series([None] * N, dtype=pl.String),
            "member": generator.random(N) < 0.5,
            "income": [None if number % 9 == 0 else float(number) for number in range(N)],
            "offer": np.array(["none", "mail", "call"])[offer],
            "euros": generator.normal(offer, 1.0).round(2),
            "p": np.full(N, 1 / 3),
        }
    )
    return old, old.drop("offer", "euros", "p", "member")


def test_types_are_told_from_values_and_each_has_a_reason():
    old, new = frames()
    columns, types = infer_columns(
        old, new, StatedRoles(arm="offer", reward="euros", propensity="p", id=["customer"])
    )
    roles = {column.name: (column.role, column.reason) for column in types}
    assert list(roles) == old.columns
    assert roles["customer"] == ("ignored", "an id, as stated")
    assert roles["row_id"] == ("ignored", "an id: 120 different integers in 240 rows")
    assert roles["note"][1].startswith("an id or free text: 120 different values")
    assert roles["country"] == ("ignored", "it has the same value in every row")
    assert roles["empty"] == ("ignored", "it has no value at all")
    assert roles["member"] == ("ignored", "the target has no such column")
    assert roles["age"][0] == "number"
    assert roles["income"] == ("number", "106 different values, 28 missing")
    assert roles["city"] == ("category", "2 different values")
    assert roles["joined"][0] == roles["seen"][0] == "date"
    assert (roles["offer"][0], roles["euros"][0], roles["p"][0]) == ("arm", "reward", "propensity")
    assert columns == Columns(
        context=("age", "city", "joined", "seen", "income"),
        categorical=("city",),
        dates=("joined", "seen"),
        arm="offer",
        reward="euros",
        propensity="p",
        id=("customer",),
    )


@pytest.mark.parametrize("name", ["propensity", "pscore", "Logged_Propensity", "action_prob"])
def test_a_column_of_propensities_is_known_by_its_name_and_is_no_context(name):
    """It tells the logging policy, which a policy cannot look at where it decides."""
    old, _ = frames()
    old = old.rename({"p": name}).with_columns(pl.Series(name, np.linspace(0.1, 0.9, N)))
    columns, types = infer_columns(old, old, StatedRoles(arm="offer", reward="euros"))
    assert (columns.propensity, name in columns.context) == (name, False)
    assert next(one for one in types if one.name == name).reason.startswith("by its name")
    for settled, is_context in (({"number": [name]}, True), ({"drop": [name]}, False)):
        columns, _ = infer_columns(old, old, StatedRoles(arm="offer", reward="euros", **settled))
        assert (columns.propensity, name in columns.context) == (None, is_context)
    columns, _ = infer_columns(old, old, StatedRoles(label="offer"))  # no log
    assert name in columns.context


def test_what_the_user_says_wins():
    old, new = frames()
    settled = {"category": ["age"], "number": ["row_id"], "drop": ["joined", "seen", "income"]}
    columns, _ = infer_columns(old, new, StatedRoles(arm="offer", reward="euros", **settled))
    assert columns.context == ("row_id", "age", "city")
    assert columns.categorical == ("age", "city")
    assert columns.propensity is None
    with pytest.raises(daband.InvalidInput, match=r"source .*'agee'.*'age'"):
        infer_columns(old, new, StatedRoles(label="offer", drop=["agee"]))
    with pytest.raises(daband.InvalidInput, match=r"\(label\).*\(arm .*\(rewards\)"):
        infer_columns(old, new, StatedRoles())
    with pytest.raises(daband.InvalidInput, match=r"context: country: .*; offer: "):
        infer_columns(old.select("country", "offer"), new, StatedRoles(label="offer"))


@pytest.mark.parametrize(
    ("old_numbers", "new_numbers", "is_id"),
    [
        (range(1, N + 1), range(N + 1, 2 * N + 1), True),  # consecutive
        (range(N), range(N), True),  # row numbers of each file
        (range(0, 40 * N, 40), range(90 * N, 130 * N, 40), True),  # other numbers in each file
        (range(0, 4000 * N, 4000), range(7, 4000 * N, 4000), False),  # such as populations
        ([*range(N - 1), 0], range(N, 2 * N), False),  # one is repeated
    ],
)
def test_integers_that_identify_rows_are_ids_unless_the_user_says_they_are_numbers(
    old_numbers, new_numbers, is_id
):
    old, new = (
        frame.with_columns(customer=pl.Series(list(numbers)))
        for frame, numbers in zip(frames(), (old_numbers, new_numbers), strict=True)
    )
    roles = StatedRoles(arm="offer", reward="euros", propensity="p")
    columns, types = infer_columns(old, new, roles)
    customer = next(column for column in types if column.name == "customer")
    assert ("customer" in columns.id, "customer" in columns.context) == (is_id, not is_id)
    assert ("--number customer" in customer.reason, customer.is_notable) == (is_id, is_id)
    columns, _ = infer_columns(old, new, replace(roles, number=("customer",)))
    assert ("customer" in columns.id, "customer" in columns.context) == (False, True)


def test_a_reward_that_may_mean_a_missing_value_is_noticed():
    old, new = frames()
    old[3, "euros"] = old[5, "euros"] = -999.0
    _, types = infer_columns(old, new, StatedRoles(arm="offer", reward="euros", propensity="p"))
    (notice,) = (notice for notice in find_notices(old, new, types) if notice.column == "euros")
    assert "-999 is in 2 rows" in notice.text
    assert notice.needs_decision


def test_many_categories_are_left_out_with_a_word_how_to_keep_them():
    text = pl.DataFrame(
        {"street": [f"street {number % 60}" for number in range(300)], "y": [0, 1] * 150}
    )
    with pytest.raises(daband.InvalidInput, match=r"street: .*60 .*300 .*--category street"):
        infer_columns(text, text, StatedRoles(label="y"))
    assert infer_columns(text, text, StatedRoles(label="y", category=["street"]))[
        0
    ].categorical == ("street",)


def test_a_date_becomes_parts_the_same_from_a_table_a_row_and_a_file():
    days = [date(2020, 12, 31), date(2021, 1, 1), None, date(2023, 7, 2)]
    frame = pl.DataFrame({"day": days, "age": [1.0, 2.0, 3.0, 4.0]})
    transform = TableTransform.fit(frame, context=["day", "age"], dates=["day"])
    assert transform.feature_names[:6] == (
        "day year",
        "day month sine",
        "day month cosine",
        "day weekday sine",
        "day weekday cosine",
        "day (missing)",
    )
    contexts = transform.apply(frame)
    rows = [
        {"day": None if day is None else str(day), "age": age} for day, age in frame.iter_rows()
    ]
    np.testing.assert_array_equal(transform.contexts(rows), contexts)
    np.testing.assert_array_equal(transform.contexts(list(frame.iter_rows(named=True))), contexts)
    np.testing.assert_array_equal(
        TableTransform.from_state(transform.state()).apply(frame), contexts
    )
    assert np.linalg.norm(contexts[0, 1:3] - contexts[1, 1:3]) < 0.1  # December is near January
    assert contexts[2, 5] == 1.0
    np.testing.assert_array_equal(contexts[2, :5], 0.0)
    timed = TableTransform.fit(
        pl.DataFrame({"at": ["2024-05-31 06:00", "2024-06-01 18:00"]}), context=["at"], dates=["at"]
    )
    morning = timed.contexts({"at": datetime(2024, 5, 31, 6)})[0]
    np.testing.assert_allclose(morning[-2:], [1.0, 0.0], atol=1e-12)
    for wrong in ("31.5.2024", 7):
        with pytest.raises(daband.InvalidInput, match=rf"'at' .*2024-05-31 .*{wrong!r}$"):
            timed.contexts({"at": wrong})
    with pytest.raises(daband.InvalidInput, match=r"'at'.*\(columns: at\)"):
        timed.contexts({"on": "2024-05-31"})


def test_a_deployed_policy_reads_dates(tmp_path):
    old, new = frames()
    columns, _ = infer_columns(
        old, new, StatedRoles(arm="offer", reward="euros", propensity="p", id=["customer"])
    )
    pair = from_table(source=old, target=new, columns=columns)
    check_pair(pair)
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=1, episode_length=64)
    daband.export(policy, tmp_path / "market.daband", pair=pair)
    row = new.select(columns.context).row(3, named=True)
    decided = daband.load_deployed(tmp_path / "market.daband").decide(
        {**row, "joined": str(row["joined"])}
    )
    policy.deploy("target")
    assert decided.arm == int(policy.select(pair.table.apply(new[3:4])).arm[0])


def test_disjoint_categories_warn():
    old = pl.DataFrame({"city": ["Oslo", "Rome"] * 20, "age": [1.0, 2.0] * 20, "y": [0, 1] * 20})
    new = old.drop("y").with_columns(city=pl.Series(["oslo", "rome"] * 20))
    columns = Columns(context=["city", "age"], categorical=["city"], label="y")
    with pytest.warns(
        UserWarning,
        match=r"'city' .*\('Oslo' .*'oslo'\)",
    ):
        from_table(source=old, target=new, columns=columns)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_two_files_are_a_pair(tmp_path, ending):
    old, new = frames()
    for name, frame in (("old", old), ("new", new)):
        path = tmp_path / f"{name}.{ending}"
        frame.write_csv(path) if ending == "csv" else frame.write_parquet(path)
    options = {"source": str(tmp_path / f"old.{ending}"), "target": str(tmp_path / f"new.{ending}")}
    options |= {
        "arm": "offer",
        "reward": "euros",
        "propensity": "p",
        "id": ["customer"],
        "units": ["income"],
    }
    pair = DataOptions(**options).read()
    check_pair(pair)
    assert pair.class_names == ("call", "mail", "none")
    assert pair.shift.units == (pair.feature_names.index("income"),)
    assert pair.about.summary == f"old.{ending} to new.{ending}"
    new.head(50).write_csv(tmp_path / f"new.{ending}")
    with pytest.raises(daband.DataError, match=r"old\.[a-z]+ .*new\.[a-z]+ .*changed"):
        pair.options.read()


def test_labels_in_the_target_are_for_the_evaluator(tmp_path):
    old, _ = frames()
    old.write_csv(tmp_path / "old.csv")
    options = {
        "source": str(tmp_path / "old.csv"),
        "target": str(tmp_path / "old.csv"),
        "label": "offer",
    }
    assert (
        DataOptions(**options, drop=["euros", "p"], id="customer").read().context_shape
        == DataOptions(**options, drop=["euros", "p"], id=["customer"]).read().context_shape
    )
    pair = DataOptions(**options, drop=["euros", "p", "customer"]).read()
    assert pair.feedback == "one_hot"
    assert len(pair.target) + len(pair.target_test) == N
    assert abs(len(pair.target) - len(pair.target_test)) <= 3


def test_two_folders_are_a_pair(tmp_path):
    for number in range(24):
        for folder in (tmp_path / "drawn" / ["day", "night"][number % 2], tmp_path / "seen"):
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9, 9), (10 * number, 0, 0)).save(folder / f"{number}.png")
    options = {"source": str(tmp_path / "drawn"), "target": str(tmp_path / "seen")}
    pair = DataOptions(**options, side=8).read()
    assert (pair.context_shape, pair.class_names, len(pair.target)) == (
        (3, 8, 8),
        ("day", "night"),
        24,
    )
    with pytest.raises(daband.InvalidInput, match=r"label, arm .*domain "):
        DataOptions(**options, label="y").read()
    with pytest.raises(daband.DataError, match=r"source: .*nowhere "):
        DataOptions(source=str(tmp_path / "nowhere"), target=str(tmp_path / "seen")).read()
    with pytest.raises(daband.InvalidInput, match=r"source .*empty"):
        DataOptions().read()
    for side in ("source", "target"):
        with pytest.raises(daband.InvalidInput, match=f"{side} .*DataFrame; .*from_table"):
            DataOptions(**{**options, side: frames()[0]}).read()


def test_python_is_told_of_other_units_and_the_command_line_not_twice(tmp_path):
    old, new = frames()
    old.write_csv(tmp_path / "old.csv")
    new.with_columns(pl.col("income") * 1000).write_csv(tmp_path / "new.csv")
    options = {"arm": "offer", "reward": "euros", "propensity": "p"}
    options |= {
        side: str(tmp_path / f"{name}.csv") for side, name in (("source", "old"), ("target", "new"))
    }
    with pytest.warns(
        UserWarning,
        match=r"--units income, .*units=\['income'\]",
    ):
        DataOptions(**options).read()
    DataOptions(**options).resolve().read()
    DataOptions(**options, units=["income"]).read()


def test_an_id_that_was_left_out_names_rows_and_is_no_warning(tmp_path):
    old, new = frames()
    columns, _ = infer_columns(old, new, StatedRoles(arm="offer", reward="euros", propensity="p"))
    assert columns.id == ("customer", "row_id", "note")
    pair = from_table(source=old, target=new, columns=columns)
    assert list(pair.target.row_names) == ["customer", "row_id", "note"]
    table = TableTransform.from_state(pair.table.state())
    row = new.row(3, named=True)
    assert {odd.column for odd in table.row_reader.read(row)[1]} == {"country", "empty"}


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("a\tb;\tc\n1\t2\t3\n", (1, 2, 3)),
        ("a;b\n1,5;x\n", (1.5, "x")),
        ("a;b\n1.5;2,5\n", (1.5, 2.5)),
        ("a;b;c\n1.2;3.854,17;4,125\n1.25;0,5;5,5\n", (1.2, 3854.17, 4.125)),
        ("a;b;c;d\n1.2;0,5;1.234;4,125\n", (1.2, 0.5, "1.234", "4,125")),
        ("a;b;c\n1.2;0,5;1.2\n1.3;1,5;1,5\n", (1.2, 0.5, "1.2")),
        ("a,b\n1.5,2\n", (1.5, 2)),
        ("a;b\n3.854,17;1.234\n", (3854.17, 1234.0)),
        ("a;b\n1.234;5.678\n", (1.234, 5.678)),
        ("a;b;c\n-1.234.567;10.0.0.1;0,5\n", (-1234567.0, "10.0.0.1", 0.5)),
        ("sep=;\na;b\n1,5;x\n", (1.5, "x")),
        ("sep=,\na,b\n1.5,x\n", (1.5, "x")),
        ('a,b\n"28,297",88%\n999,7%\n', ("28,297", "88%")),
        ("a;b;c\n12,5%;1.234;x\n7%;2.000;y\n", ("12,5%", 1.234, "x")),
        ("a;b\n70,125;18.30\n71;19.15\n", ("70,125", 18.3)),
        ("a\tb\n70,125\tx\n71\ty\n", ("70,125", "x")),
        ("a,b,c,d\n?,n/a,#N/A,x\n1,2,3,y\n", ("?", None, None, "x")),
        ("a, b, c,d, e\n1, 2, x ,NA, .5\n3, NA, y,4, 1e-3\n", (1, 2, "x", None, 0.5)),
        ("a; b; c\n1; 2,5; 1.234\n3; 3; x\n", (1, 2.5, "1.234")),
    ],
)
def test_how_a_csv_file_is_written_is_told_from_its_beginning(tmp_path, text, row):
    (tmp_path / "table.csv").write_text(text)
    assert read_table(tmp_path / "table.csv").row(0) == row


def test_a_date_cut_off_at_the_end_of_the_sample_is_no_number(tmp_path):
    # 10.12.2016 cut after 10.12 looked like a decimal point, and every column with commas became
    # text.
    before = "amount;since\n" + "0,5;10.12.2016\n" * 5000
    assert len(before) > _CSV_SAMPLE_BYTES
    for padding in range(16):
        path = tmp_path / f"{padding}.csv"
        path.write_text(before.replace("amount", "amount" + "t" * padding, 1))
        assert read_table(path).dtypes[0] == pl.Float64, padding


def test_a_table_of_json_lines(tmp_path):
    old, _ = frames()
    table = old.select("age", "city", "income", "offer")
    table.write_ndjson(tmp_path / "old.jsonl")
    assert read_table(tmp_path / "old.jsonl").equals(table)


def test_a_date_that_grows_from_row_to_row_is_said_to():
    old, new = (frame.with_columns(written=pl.col("joined").sort()) for frame in frames())
    _, types = infer_columns(old, new, StatedRoles(arm="offer", reward="euros"))
    why = {column.name: column.reason for column in types}
    assert "--drop written if it is the time of logging" in why["written"]
    assert "--drop" not in why["joined"]


def _write(tmp_path, old, new):
    old.write_csv(tmp_path / "old.csv")
    new.write_csv(tmp_path / "new.csv")
    return {"source": str(tmp_path / "old.csv"), "target": str(tmp_path / "new.csv")}


LOG = {"arm": "offer", "reward": "euros", "propensity": "p", "id": ["customer"]}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"offer": pl.lit("mail")}, "'offer' .*'mail'"),
        (
            {"offer": pl.col("income").fill_null(0.0) + 0.5},
            "'offer' .*107 .*120 .*--arm",
        ),
        (
            {"euros": pl.lit(0.0)},
            r"'euros' .*0\.0",
        ),
        (
            {"euros": pl.when(pl.col("row_id") == 7).then(pl.lit("none")).otherwise(pl.lit("1.5"))},
            "'euros' .*'none' .*row 7",
        ),
        (
            {"p": pl.lit(33.0)},
            r"'p': .*\(0, 1\], row 0 .*33 .* 100\)",
        ),
        (
            {"p": pl.when(pl.col("row_id") == 7).then(0.0).otherwise(0.5)},
            "'p': .*row 7 .* 0 ",
        ),
    ],
)
def test_nothing_can_be_learned_from_such_columns(tmp_path, changed, says):
    """Before: an hour of training on one arm, 1,314 arms of as many amounts, an example that was a
    number.
    """
    old, new = frames()
    with pytest.raises((daband.InvalidInput, daband.DataError), match=says):
        DataOptions(**_write(tmp_path, old.with_columns(**changed), new), **LOG).read()


def test_rows_whose_reward_has_not_come_are_left_out_and_it_is_said(tmp_path):
    old, new = frames()
    late = old.with_columns(
        euros=pl.when(pl.col("row_id") < 7).then(None).otherwise(pl.col("euros"))
    )
    with pytest.warns(UserWarning, match="euros: .*7 "):
        pair = DataOptions(**_write(tmp_path, late, new), **LOG).read()
    assert len(pair.source) == N - 7


def test_prompts_and_the_marks_of_all_models_are_a_pair(tmp_path):
    """Frequent words of the prompts are the contexts."""
    prompts = [f"{'Prove that' if row % 2 else 'Translate'} {row} is easy" for row in range(120)]
    marks = {"large": [0.85, 0.7] * 30, "small": [0.5] * 59 + [None]}
    old = pl.DataFrame({"prompt": prompts[:60], **marks})
    files = _write(tmp_path, old, pl.DataFrame({"prompt": prompts[60:]}))
    options = DataOptions(
        **files, rewards=("large", "small"), text=("prompt",), encoder="words", shift="covariate"
    )
    with pytest.warns(UserWarning, match=r"(large|small): .*1 "):
        pair = options.read()
    assert (pair.class_names, pair.full_feedback) == (("large", "small"), True)
    assert len(pair.source) + len(pair.source_test) == 59
    assert pair.feature_names == ("prompt: prove", "prompt: that", "prompt: translate")
    assert pair.table.contexts({"prompt": "Translate this"}).tolist() == [[0.0, 0.0, 1.0]]
    options.save(tmp_path / "data.json")
    assert DataOptions.load(tmp_path / "data.json").rewards == ("large", "small")
    with pytest.raises(daband.InvalidInput, match="rewards"):
        DataOptions(**files, rewards=("large",), label="small").read()


def test_an_error_names_the_row_of_the_file_when_rows_before_it_are_left_out(tmp_path):
    """Before: row 93, counted without the seven rows that have no reward."""
    old, new = frames()
    late = old.with_columns(
        euros=pl.when(pl.col("row_id") < 7).then(None).otherwise(pl.col("euros")),
        p=pl.when(pl.col("row_id") == 100).then(33.0).otherwise(pl.col("p")),
    )
    with (
        pytest.warns(UserWarning, match="euros: .*7 "),
        pytest.raises(daband.DataError, match="row 100 "),
    ):
        DataOptions(**_write(tmp_path, late, new), **LOG).read()


def test_a_text_that_is_to_be_a_number_is_named_with_its_row(tmp_path):
    """Before: an error of polars, with its traceback."""
    old, new = frames()
    text = pl.when(pl.col("row_id") == 4).then(pl.lit("950,18 €")).otherwise(pl.lit("1.5"))
    files = _write(tmp_path, old.with_columns(price=text), new.with_columns(price=1.5))
    with pytest.raises(
        daband.InvalidInput,
        match=r"'price' .*'950,18 €' .*row 4 \(line 6 .*source",
    ):
        DataOptions(**files, **LOG, number=["price"]).read()


def test_numbers_in_one_file_and_amounts_with_a_currency_in_the_other_are_left_out():
    """Before: as many categories as rows, none of them in both files."""
    old, new = frames()
    old = old.with_columns(price=pl.col("row_id") + 0.25)
    roles = StatedRoles(arm="offer", reward="euros", propensity="p")
    _, types = infer_columns(
        old, new.with_columns(price=pl.format("{} zł", pl.col("row_id"))), roles
    )
    (price,) = (column for column in types if column.name == "price")
    assert price.role == "ignored"
    assert price.reason.startswith("numbers in one file and text in the other, 240")
    _, types = infer_columns(old, new.rename({"income": "Income"}), roles)
    assert {one.name: one.reason for one in types}[
        "income"
    ] == "the target has no such column; did you mean 'Income'?"


def test_arms_that_differ_by_a_space_or_a_capital_are_named():
    old, new = frames()
    old[5, "offer"], old[6, "city"] = "Mail ", "oslo"  # a space does not count
    _, types = infer_columns(old, new, StatedRoles(arm="offer", reward="euros", propensity="p"))
    lines = map(str, find_notices(old, new, types))
    assert [line for line in lines if "one spelling" in line] == [
        "city: 'Oslo' and 'oslo' are two values; if they mean the same, use one spelling",
        "offer: 'Mail' and 'mail' are two values; if they mean the same, use one spelling",
    ]


def test_a_date_with_points_begins_with_its_day(tmp_path):
    old, new = frames()
    read = [
        frame.with_columns(joined=pl.col("joined").dt.strftime("%d.%m.%Y")) for frame in (old, new)
    ]
    iso, points = (
        DataOptions(**_write(tmp_path, *both), **LOG).read() for both in ((old, new), read)
    )
    np.testing.assert_array_equal(iso.target.read(np.arange(N)), points.target.read(np.arange(N)))


def test_a_log_of_few_rounds_in_euros_can_be_learned(tmp_path):
    old, new = frames()
    pair = DataOptions(**_write(tmp_path, old[:30], new[:40]), **LOG).read()
    np.testing.assert_allclose(
        pair.source.read_log(np.arange(30))[1].sum(), old["euros"][:30].sum()
    )
    assert daband.choose(pair, episodes=1, episode_length=30).policy.rounds_learned == 30


def test_what_text_seems_to_be_is_said_where_it_is_left_out():
    """Before: "an id or free text", and of a file without rows that no column is left."""
    old, new = frames()
    texts = {"share": "{}%", "pay": "1,{}", "day": "1/{}/2024"}
    number = 100 + pl.col("row_id")
    both = [
        frame.with_columns(**{name: pl.format(text, number) for name, text in texts.items()})
        for frame in (old, new)
    ]
    _, types = infer_columns(*both, StatedRoles(arm="offer", reward="euros", propensity="p"))
    why = {one.name: (one.role, one.reason) for one in types}
    assert why["share"] == (
        "ignored",
        (
            "amounts such as '100%', read as text (write plain numbers); 120 different values in"
            " 240 rows"
        ),
    )
    assert why["pay"][1].startswith("amounts such as '1,100', read as text")
    assert why["note"][1].startswith("an id or free text")
    nearly = [
        frame.with_columns(
            dose=pl.when(pl.col("row_id") < 3).then(pl.lit("low")).otherwise(number.cast(pl.String))
        )
        for frame in (old, new)
    ]
    _, types = infer_columns(*nearly, StatedRoles(arm="offer", reward="euros", propensity="p"))
    assert {one.name: one.reason for one in types}["dose"].startswith(
        "numbers, except for texts such as 'low' (leave such cells empty"
    )
    dated = [frame.with_columns(day=pl.lit("1/2/2024")) for frame in (old, new)]
    dated[0][3, "day"] = "1/3/2024"
    _, types = infer_columns(*dated, StatedRoles(arm="offer", reward="euros", propensity="p"))
    assert {one.name: one.reason for one in types}["day"].startswith(
        "dates such as '1/2/2024', read as text (write 2024-05-31"
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"age,offer\n", r"old\.csv .*rows$"),
        (b"age,offer\n1,\xc5\n", r"old\.csv .*utf-8 .*UTF-8$"),
        (
            b"age,offer\n1,x\n2,y,3\n",
            r"old\.csv .*line 3 .* 2$",
        ),
        ("age,offer\n1,x\n".encode("utf-16"), r"old\.csv .*UTF-16; .*UTF-8$"),
    ],
)
def test_files_that_hold_nothing_or_other_letters(tmp_path, content, says):
    (tmp_path / "new.csv").write_text("age\n1\n")
    (tmp_path / "old.csv").write_bytes(content)
    with pytest.raises(daband.DataError, match=says):
        DataOptions(
            source=str(tmp_path / "old.csv"), target=str(tmp_path / "new.csv"), label="offer"
        ).read()


@pytest.mark.parametrize("share", [1, 20])
def test_the_first_day_of_the_calendar_is_a_date(share):
    """Before: 0001-01-01, as many exports write no date, was "the time 00:00 alone"."""
    days = [
        date.min if number % share == 0 else date(2024, 1 + number % 12, 1) for number in range(N)
    ]
    rows = pl.DataFrame({"day": days, "text": [str(day) for day in days]})
    table = TableTransform.fit(rows, context=["day", "text"], dates=["day", "text"])
    assert "text year" in table.feature_names
    contexts = TableTransform.from_state(table.state()).apply(rows)
    np.testing.assert_array_equal(contexts[:, :5], contexts[:, 5:])
    np.testing.assert_array_equal(
        table.contexts({"day": date.min, "text": "0001-01-01"})[0], contexts[0]
    )


def test_times_without_a_date_are_no_context():
    old, new = frames()
    times = [time(number % 24, 30) for number in range(N)]
    both = [frame.with_columns(at=pl.Series(times)) for frame in (old, new)]
    _, types = infer_columns(*both, StatedRoles(arm="offer", reward="euros", propensity="p"))
    assert {one.name: one.role for one in types}["at"] == "ignored"
    with pytest.raises(daband.InvalidInput, match=r"'at' .*2024-05-31 .*00:30"):
        TableTransform.fit(
            both[0].select(at=pl.col("at").cast(pl.String)), context=["at"], dates=["at"]
        )


def test_dates_of_one_file_may_be_text_in_the_other():
    """Before: categories, as many as days."""
    old, new = frames()
    _, types = infer_columns(
        old,
        new.with_columns(pl.col("joined").cast(pl.String)),
        StatedRoles(arm="offer", reward="euros", propensity="p"),
    )
    assert {one.name: one.role for one in types}["joined"] == "date"


@pytest.mark.parametrize(
    "values", [[timedelta(hours=1), timedelta(hours=2)], [[1, 2], [3]], [b"x", b"y"]]
)
def test_columns_that_nothing_reads_are_left_out(values):
    """Before: an error of polars that named no column."""
    old, new = (frame.with_columns(odd=pl.Series(values * (N // 2))) for frame in frames())
    _, types = infer_columns(old, new, StatedRoles(arm="offer", reward="euros", propensity="p"))
    (odd,) = (one for one in types if one.name == "odd")
    assert odd.role == "ignored"
    assert odd.reason.startswith("of type ")
    assert odd.reason.endswith("which is not a number, category or date")


def test_a_pandas_column_of_several_types_is_named():
    """Before: an error of arrow that named no column."""
    with pytest.raises(daband.InvalidInput, match=r"'dose' .*\(int, str\).*astype"):
        read_table(pandas.DataFrame({"age": [1, 2], "dose": [1, "two"]}))
    with pytest.raises(daband.InvalidInput, match=r"'dose' .*\(float, int, str\)"):
        read_table(pandas.DataFrame({"dose": ["two", 1, 2.5]}))
    with pytest.raises(daband.InvalidInput, match=r"columns .*'1'"):
        read_table(pandas.DataFrame({1: [1], "1": [2]}))
    assert read_table(
        pandas.DataFrame({5: [1, 2], "when": pandas.to_datetime(["2024-05-31", None])})
    ).columns == [
        "5",
        "when",
    ]


@pytest.mark.parametrize("kind", ["frame", "csv"])
def test_integers_of_more_than_15_digits_are_codes(kind, tmp_path):
    generator = np.random.default_rng(0)
    old, new = (
        frame.with_columns(
            card=generator.integers(10**15, 10**16, N),
            visitor=generator.integers(10**17, 10**18, N // 2).repeat(2),
            shop=10**15 + generator.integers(3, size=N),
            atoms=generator.integers(1, 10**15, N),
        )
        for frame in frames()
    )
    if kind == "csv":
        paths = _write(tmp_path, old, new)
        old, new = (read_table(path) for path in paths.values())
    stated = StatedRoles(arm="offer", reward="euros", propensity="p")
    columns, types = infer_columns(old, new, stated)
    roles = {column.name: column for column in types}
    assert roles["card"].is_id
    assert roles["card"].role == "ignored"
    assert "too many categories" in roles["visitor"].reason
    assert roles["shop"].role == "category"
    assert roles["atoms"].role == "number"
    pair = from_table(source=old, target=new, columns=columns)
    assert {f"shop = {10**15 + shop}" for shop in range(3)} < set(pair.table.feature_names)


def test_repeated_ids_are_reported_unless_they_are_of_other_domains():
    old, new = frames()
    twice = pl.concat([old, old.head(7)]).with_columns(
        country=pl.Series(["de"] * len(old) + ["fr"] * 7)
    )
    _, types = infer_columns(
        twice, new, StatedRoles(arm="offer", reward="euros", propensity="p", id=["row_id"])
    )
    (notice,) = (one for one in find_notices(twice, new, types) if one.column == "row_id")
    assert notice.text.startswith(f"7 of {len(old) + 7} source rows repeat an earlier row's value.")
    assert notice.needs_decision
    assert not any(
        one.column == "row_id" for one in find_notices(twice, new, types, domain="country")
    )
    assert not any(one.column == "row_id" for one in find_notices(old, new, types))


def test_what_looks_like_a_mistake_is_said():
    old, new = frames()
    weight = pl.when(pl.col("row_id") % 9 == 0).then(-999.0).otherwise(60.0 + pl.col("row_id") / 10)
    new = new.with_columns(weight=weight, score=pl.col("row_id") - 200)
    old = old.with_columns(weight=weight, score=pl.col("row_id") - 200, p=pl.lit(1.0))
    old[3, "offer"], old[4, "income"] = "mial", 1e9
    _, types = infer_columns(old, new, StatedRoles(arm="offer", reward="euros", propensity="p"))
    assert list(map(str, find_notices(old, new, types))) == [
        (
            "income: 1e+09 is extremely far from its median, 60; in training it is clipped. "
            "Leave the cell empty if it is a mistake"
        ),
        (
            "offer: arms with fewer than 3 rows ('mial': 1). They may be chosen, although little is"
            " known about them; drop these rows if they are mistakes"
        ),
        (
            "weight: -999 is in 28 rows, all others are between 60.1 and 71.9. If it means a"
            " missing value, leave these cells empty"
        ),
    ]


def test_blank_lines_of_a_csv_file_are_no_rows(tmp_path):
    """Before: rows without any value, to train on and to decide on."""
    (tmp_path / "table.csv").write_text("a,b\r\n1,2\r\n\r\n3,\r\n\r\n")
    assert read_table(tmp_path / "table.csv").rows() == [(1, 2), (3, None)]
    (tmp_path / "one.csv").write_text("a\n1\n\n3\n")
    assert read_table(tmp_path / "one.csv").rows() == [(1,), (None,), (3,)]
    with pytest.raises(daband.InvalidInput, match=r"table\.xlsx .*CSV"):
        read_table(tmp_path / "table.xlsx")


@pytest.mark.parametrize("separator", [",", ";"])
@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz"])
def test_a_row_of_empty_cells_is_a_row(name, separator, tmp_path):
    """Before, such rows vanished, and the numbers of later rows were wrong."""
    text = 'a,b\n1,x\n,\nNA,\n\n2,"y\n\nz"\n"",""\n   \n3,\n\n'.replace(",", separator)
    text = {",": "\n", ";": "sep=;\n"}[separator] + text
    opened = gzip.open if name.endswith("gz") else open
    with opened(tmp_path / name, "wb") as file:
        file.write(text.encode())
    empty = (None, None)
    rows = [(1, "x"), empty, empty, (2, "y\n\nz"), empty, (3, None)]
    assert read_table(tmp_path / name).rows() == rows


def test_a_category_with_a_sign_is_the_same_in_every_file(tmp_path):
    """Before: 5% was 5 in a file of percentages alone, and 5% in one that has a text besides."""
    old = pl.DataFrame(
        {
            "age": np.arange(N) // 2,
            "discount": ["5%", "10%", "no"] * (N // 3),
            "offer": ["1%", "2%", "none"] * (N // 3),
        }
    )
    new = pl.DataFrame(
        {
            "age": np.arange(N) // 2,
            "discount": ["5%", "10%"] * (N // 2),
            "offer": ["1%", "2%"] * (N // 2),
        }
    )
    old.write_csv(tmp_path / "old.csv")
    new.write_csv(tmp_path / "new.csv")
    with pytest.warns(UserWarning, match="discount: .*'5%', .*text"):
        pair = DataOptions(
            source=str(tmp_path / "old.csv"), target=str(tmp_path / "new.csv"), label="offer"
        ).read()
    assert pair.class_names == ("1%", "2%", "none")
    assert [name for name in pair.feature_names if name.startswith("discount")] == [
        "discount = 10%",
        "discount = 5%",
        "discount = no",
    ]


@pytest.mark.parametrize(
    ("names", "log", "counts"),
    [
        (["v2", "v2.0"], ["v2"] * 100 + ["v2.0"] * 50, [100, 50]),
        (["1", "1.0", "x"], ["1"] * 100 + ["1.0"] * 49 + ["x"], [100, 49, 1]),
        (["2.0", "1.0"], ["1.0"] * 100 + ["2.0"] * 50, [50, 100]),
        (["1.0", "2.0", "3.0"], ["1"] * 100 + ["2"] * 50, [100, 50, 0]),
        (["none", "1%"], ["1%"] * 150, [0, 150]),
        (["0.5", "1.5"], ["1.5"] * 100 + ["0.5"] * 50, [50, 100]),
    ],
)
def test_arms_of_like_names_are_not_mixed_up(tmp_path, names, log, counts):
    """Before: of v2 and v2.0 one took the other's rounds."""
    policy = daband.LinUCB(context_shape=(1,), n_arms=len(names))
    policy.arm_names = names
    rows = pl.DataFrame(
        {"x": np.linspace(0.0, 1.0, 150), "arm": log, "propensity": 0.5, "reward": 1.0}
    )
    rows.write_csv(tmp_path / "log.csv")
    daband.learn_log(policy, tmp_path / "log.csv")
    assert policy.counts.tolist() == counts


def test_an_arm_that_cannot_be_told_from_another_is_refused(tmp_path):
    policy = daband.LinUCB(context_shape=(1,), n_arms=2)
    policy.arm_names = ["true", "True"]
    rows = pl.DataFrame({"x": 0.5, "arm": ["true", "True"] * 20, "propensity": 0.5, "reward": 1.0})
    rows.write_csv(tmp_path / "log.csv")
    with pytest.raises(daband.DataError, match=r"True .*'true' .*'True'"):
        daband.learn_log(policy, tmp_path / "log.csv")
    rows.with_columns(arm=pl.lit("treu")).write_csv(tmp_path / "log.csv")
    with pytest.raises(
        daband.DataError,
        match=r"'treu' .*'arm', .*'true'\? \(true, True\)",
    ):
        daband.learn_log(policy, tmp_path / "log.csv")


@pytest.mark.parametrize(
    ("source", "target", "names"),
    [
        ([0.0, 1.0], [0.0, 1.0], ["0.0", "1.0"]),
        ([0.0, 1.0], [0.0, 1.0], ["0", "1"]),
        ([0.0, 1.0], ["0.0", "1.0"], None),
        (["0.0", "1.0"], [0.0, 1.0], None),
        ([0, 1], [0.0, 1.0], None),
        ([0.0, 1.0], [0, 1], None),
    ],
)
def test_labels_match_however_whole_numbers_are_spelled(source, target, names):
    """Before: a label of 1.0 was none of the arms 0.0 and 1.0."""
    old, new = (
        pl.DataFrame({"age": np.arange(N) // 2, "y": labels * (N // 2)})
        for labels in (source, target)
    )
    columns = Columns(context=["age"], label="y")
    pair = from_table(source=old, target=new, columns=columns, class_names=names)
    assert pair.target_test is not None
    assert names is None or pair.class_names == tuple(names)


@pytest.mark.parametrize("labels", [[1.0, 2.0], [True, False]])
def test_a_policy_learns_from_the_log_that_it_wrote(tmp_path, labels):
    """Before: arms called 1.0 or True are 1 and true in the CSV file of their own decisions, and no
    arm.
    """
    old = pl.DataFrame({"age": np.arange(N) // 2, "offer": labels * (N // 2)})
    pair = from_table(
        source=old, target=old.drop("offer"), columns=Columns(context=["age"], label="offer")
    )
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=1)
    policy.deploy("target")
    daband.export(policy, tmp_path / "p.daband", pair=pair, domain="target", epsilon=1.0)
    decision = daband.load_deployed(tmp_path / "p.daband").decide(old.drop("offer"))
    log = old.drop("offer").with_columns(
        arm=pl.Series(decision.arm_name), propensity=0.5, reward=1.0
    )
    log.write_csv(tmp_path / "log.csv")
    before = policy.counts.copy()
    daband.learn_log(policy, tmp_path / "log.csv")
    assert (policy.counts - before).tolist() == np.bincount(decision.arm).tolist()


def draw_schools(n_schools=40, rows_per_school=30):
    """Return a log in which every school has one arm, and target rows."""
    generator = np.random.default_rng(0)
    schools = np.repeat(np.arange(n_schools), rows_per_school)
    log = pl.DataFrame(
        {
            "school": [f"school {school}" for school in schools],
            "age": generator.integers(8, 15, len(schools)),
            "lesson": np.array(["old", "new"])[generator.integers(2, size=n_schools)[schools]],
            "marks": generator.normal(size=n_schools)[schools]
            + generator.normal(size=len(schools)),
        }
    )
    return log, log.select("age", "school")


def test_a_category_whose_rows_have_one_arm_is_the_cluster():
    """Before: a policy learned which schools had which arm, and its gain looked proven."""
    log, target = draw_schools()
    log = log.with_columns(propensity=pl.lit(0.5))
    stated = StatedRoles(arm="lesson", reward="marks")
    columns, roles = infer_columns(log, target, stated)
    assert (columns.cluster, columns.context) == ("school", ("age",))
    (role,) = (role for role in roles if role.name == "school")
    assert role.is_notable
    as_context, _ = infer_columns(log, target, replace(stated, category=("school",)))
    assert (as_context.cluster, as_context.context) == (None, ("school", "age"))
    with pytest.warns(UserWarning, match="1,160 .*'school'"):
        from_table(source=log, target=target, columns=as_context, class_names=["new", "old"])
    assert any("'school'" in text for text in daband.check_log(log, as_context).findings)


def test_an_integer_whose_rows_have_one_arm_is_the_cluster_unless_a_rule_chose_the_arm():
    log, target = (
        frame.with_columns(school=pl.col("school").str.slice(7).cast(pl.Int64) + 33_000_000)
        for frame in draw_schools()
    )
    stated = StatedRoles(arm="lesson", reward="marks")
    columns, _ = infer_columns(log, target, stated)
    assert (columns.cluster, columns.context) == ("school", ("age",))
    chosen = pl.when(pl.col("school") < 33_000_025).then(pl.lit("old")).otherwise(pl.lit("new"))
    columns, _ = infer_columns(log.with_columns(lesson=chosen), target, stated)
    assert (columns.cluster, columns.context) == (None, ("school", "age"))


def test_an_id_whose_rows_have_one_arm_is_the_cluster():
    log, target = draw_schools()
    columns, _ = infer_columns(
        log, target, StatedRoles(arm="lesson", reward="marks", id=["school"])
    )
    assert (columns.cluster, columns.id) == ("school", ("school",))


def test_a_category_by_which_arms_are_drawn_with_other_probabilities_is_a_context():
    log, target = draw_schools()
    generator = np.random.default_rng(1)
    probabilities = generator.uniform(0.2, 0.8, 40)[np.arange(len(log)) // 30]
    arms = np.where(generator.random(len(log)) < probabilities, "old", "new")
    log = log.with_columns(lesson=pl.Series(arms))
    columns, _ = infer_columns(log, target, StatedRoles(arm="lesson", reward="marks"))
    assert (columns.cluster, columns.categorical) == (None, ("school",))


def test_a_folder_of_targets_in_a_column_has_a_name_that_windows_allows():
    options = DataOptions(source="old.csv", target='3:1 "b"|c', domain="ratio", label="offer")
    assert options.name == "old-to-3-1 -b-c"
