"""A user's own files on the command line."""

import contextlib
import copy
import dataclasses
import html
import io
import json
import sys
import warnings
from unittest import mock

import numpy as np
import polars as pl
import pytest

from daband import Choice, LinUCB, evaluate, export, learn_log, load_deployed, open_market, train
from daband.cli._choose import show_candidates_bar
from daband.cli._main import main
from daband.domains import Columns, DataOptions, from_table
from daband.domains.readers._reading import read_table
from daband.training import CandidateProgress
from daband.trust import read_assessment


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    folder = tmp_path_factory.mktemp("market")
    generator = np.random.default_rng(1)
    for name, currency in (("old", 1.0), ("new", 4.3)):
        spent = generator.normal(100.0, 30.0, 240)
        age = generator.normal(40.0, 9.0, 240)
        offer = generator.integers(3, size=240)
        right = np.digitize(spent, [85.0, 115.0])
        table = pl.DataFrame(
            {
                "customer": [f"{name}{number}" for number in range(240)],
                "spent": (currency * spent).round(2),
                "age": age.round(1),
                "city": generator.choice(["Oslo", "Rome"], size=240),
                "joined": [f"202{number % 4}-0{1 + number % 9}-11" for number in range(240)],
                "offer": np.array(["call", "mail", "none"])[offer],
                "euros": np.where(offer == right, 5.0, 1.0).round(2),
                "p": [1 / 3] * 240,
            }
        )
        (table if name == "old" else table.drop("offer", "euros", "p")).write_csv(
            folder / f"{name}.csv"
        )
    return folder


def daband(*arguments, cwd, code=0):
    """Call the command line in a folder, and return what it printed."""
    printed = io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        mock.patch.object(sys, "argv", ["daband", *arguments]),
        warnings.catch_warnings(action="default"),
        pytest.raises(SystemExit) as left,
    ):
        main()
    text = printed.getvalue()
    assert (left.value.code or 0) == code, text
    return " ".join(text.split())


FILES = (
    "--source",
    "old.csv",
    "--target",
    "new.csv",
    "--arm",
    "offer",
    "--reward",
    "euros",
    "--id",
    "customer",
)


def test_the_data_and_the_choice_are_in_the_folder(market):
    told = daband("choose", *FILES, "--propensity", "p", "--units", "spent", cwd=market)
    assert "old.csv: 240 rows; new.csv: 240" in told
    assert "│ spent │ number │" in told
    assert "│ city │ category │ 2 different values" in told
    assert "│ joined │ date │" in told
    assert "│ customer │ ignored │ an id, as stated" in told
    assert "propensities" not in told
    folder = market / "runs/old-to-new"
    options = DataOptions.load(folder / "data.json")
    assert options.units == ("spent",)
    assert options.source == str(market / "old.csv")
    choice = Choice.load(folder)
    assert choice.options == options
    assert choice.assessment.sentence in told
    assert choice.policy.arm_names == ("call", "mail", "none")
    assert choice.policy.rounds_learned == len(options.read().source)
    told = daband("report", str(folder), cwd=market)
    assert "report.html" in told
    assert html.escape(choice.assessment.sentence) in (folder / "report.html").read_text()


def test_files_that_changed_since_the_choice_are_an_error(market, tmp_path):
    for name in ("old.csv", "new.csv"):
        (tmp_path / name).write_bytes((market / name).read_bytes())
    daband("choose", *FILES, "--out", "m", cwd=tmp_path)
    (tmp_path / "new.csv").write_bytes(
        (tmp_path / "new.csv").read_bytes() + b"x,1,2,Oslo,2021-01-11\n"
    )
    assert "has changed" in daband("audit", "m", "--budget", "5", cwd=tmp_path, code=2)
    assert "--no-data" in daband("export", "m", "m.daband", cwd=tmp_path, code=2)
    daband("export", "m", "m.daband", "--no-data", cwd=tmp_path)
    assert load_deployed(tmp_path / "m.daband").reference is None
    assert "other data" in daband("choose", *FILES, "--out", "m", cwd=tmp_path, code=2)


def test_choose_takes_files_and_says_that_propensities_are_estimated(market):
    told = daband("choose", *FILES, "--episodes", "2", "--out", "chosen", cwd=market)
    assert "the log has no propensities; they are estimated" in told
    assert "numbers are assumed to mean the same in both domains" in told
    assert (market / "chosen/data.json").is_file()
    assert (market / "chosen/policy.safetensors").is_file()
    told += daband("export", "chosen", "m.daband", cwd=market)
    assert "UserWarning" not in told
    # again beside the verdict
    assert "Please check: spent: its median is" in told.partition("Chosen:")[2]


def test_columns_that_the_target_lacks_are_named_after_the_verdict(market):
    pl.read_csv(market / "new.csv").drop("age", "city").write_csv(market / "narrow.csv")
    files = ["narrow.csv" if word == "new.csv" else word for word in FILES]
    told = daband("choose", *files, "--episodes", "2", "--out", "narrow", cwd=market)
    assert "only the source has (age, city)" in told.partition("Chosen:")[2]


def test_a_verdict_to_collect_rewards_names_both_ways_to_get_them(tmp_path):
    rng = np.random.default_rng(1)
    arms = rng.integers(2, size=400)
    log = pl.DataFrame(
        {"age": rng.normal(size=400), "offer": np.array(["a", "b"])[arms], "p": np.full(400, 0.5)}
    ).with_columns(euros=0.12 * arms + rng.normal(size=400))
    log.write_csv(tmp_path / "old.csv")
    log.select("age").write_csv(tmp_path / "new.csv")
    columns = ("--arm", "offer", "--reward", "euros", "--propensity", "p", "--incumbent", "a")
    files = ("--source", "old.csv", "--target", "new.csv")
    told = daband("choose", *files, *columns, "--out", "few", cwd=tmp_path)
    assert "The target has only 400 rows" in told
    assert "daband audit" not in told
    pl.concat([log.select("age")] * 100).write_csv(tmp_path / "new.csv")
    told = daband("choose", *files, *columns, "--out", "m", cwd=tmp_path)
    assert "Collect" in told
    assert "daband audit m --budget" in told
    assert "daband pilot plan m --max-loss 1% --per-week N" in told


def test_a_verdict_can_fail_a_build(market):
    daband("choose", *FILES, "--episodes", "2", "--out", "gate", cwd=market)
    path = market / "gate/assessment.json"
    assessment = read_assessment(path)
    for verdict in ("deploy", "collect rewards", "keep the incumbent"):
        dataclasses.replace(assessment, verdict=verdict).save(path)
        told = daband("assess", "gate", "--fail-unless", verdict, cwd=market)
        assert "rounds of the log the policy gains" in told
        other = "deploy" if verdict != "deploy" else "collect rewards"
        assert daband("assess", "gate", "--fail-unless", other, cwd=market, code=1) == told
    told = daband("assess", "gate", "--fail-unless", "pass", cwd=market, code=2)
    assert "--fail-unless must be" in told


def test_the_command_asks_by_a_file(market):
    command = ("choose", *FILES, "--budget", "40", "--unit", "points", "--out", "asked")
    told = daband(*command, cwd=market)
    assert "40 to go" in told
    before = Choice.load(market / "asked").policy.rounds_learned
    path = market / "asked/questions.csv"
    path.write_text(path.read_text().replace(",\n", ",1\n"))
    told = daband(*command, cwd=market)
    assert "40 target rewards: " in told
    assert "┃ standard ┃ in the ┃" in told  # headings in two lines: names are not broken
    assert " points over always " in told
    assert "Fill in" not in told
    choice = Choice.load(market / "asked")
    assert (choice.rewards, choice.assessment.rewards) == (40, 40)
    assert choice.policy.rounds_learned == before + 40
    told = daband("choose", *FILES, "--unit", "points", "--out", "asked", cwd=market)
    assert choice.assessment.sentence in told  # the answers in the folder are used again
    (market / "taken").write_text("a file where the folder should be")
    assert "out taken is a file" in daband("choose", *FILES, "--out", "taken", cwd=market, code=2)


def test_numbers_are_in_the_stated_unit_or_in_that_of_the_reward_column(market):
    told = daband(
        "choose", *FILES, "--incumbent", "mail", "--episodes", "2", "--out", "units", cwd=market
    )
    assert " euros over always mail is expected" in told
    error = json.loads((market / "units/assessment.json").read_text())["source_error"]
    assert "┃ in the source ┃ standard error ┃" in told
    assert f"│ {error:.3f} │" in told
    assert "euros over always mail (standard error" in daband("assess", "units", cwd=market)
    assert "kroner over always mail" in daband("assess", "units", "--unit", "kroner", cwd=market)
    daband("audit", "units", "--budget", "3", "--out", "units.csv", cwd=market)
    questions = (
        (market / "units.csv").read_text().replace(",\n", ",1\n").replace("reward,1", "reward")
    )
    (market / "units.csv").write_text(questions)
    told = daband("audit", "units", "--answers", "units.csv", cwd=market)
    assert "kroner over always mail" in told
    assert "Mean kroner in the target: " in told


def test_no_reward_is_asked_for_the_incumbents_own_choices(market):
    """Before: questions were asked about the same arm twice, whose difference is 0 for any
    answer.
    """
    table = (
        pl.read_csv(market / "old.csv")
        .with_columns(euros=pl.col("offer") == "call")
        .cast({"euros": pl.Float64})
    )
    table.write_csv(market / "one.csv")
    files = (
        "--source",
        "one.csv",
        *FILES[2:],
        "--propensity",
        "p",
        "--episodes",
        "2",
        "--out",
        "same",
    )
    told = daband("choose", *files, "--budget", "5", cwd=market)
    assert "Keep the incumbent: the policy makes the same choices as always call." in told
    assert "Fill in" not in told
    told = daband("audit", "same", "--budget", "5", "--out", "same.csv", cwd=market)
    assert told.startswith(
        "No reward is needed: the policy makes the same choices as always call in the"
    )
    assert "Fill in" not in told
    assert not (market / "same.csv").exists()


def test_todays_choices_are_a_column_that_only_the_target_has(market):
    """Before: --id rejected the column, and audit compared with another incumbent than choose."""
    new = pl.read_csv(market / "new.csv")
    new.with_columns(today=pl.Series(["mail", "none"] * (len(new) // 2))).write_csv(
        market / "today.csv"
    )
    files = (
        "--source",
        "old.csv",
        "--target",
        "today.csv",
        *FILES[4:],
        "--propensity",
        "p",
        "--incumbent",
        "today",
    )
    options = ("--episodes", "2", "--out", "today")
    told = daband("choose", *files, *options, cwd=market)
    assert "only the target has them: today." in told
    assert "euros over the choices in column today is expected in the target" in told
    daband("audit", "today", "--budget", "3", "--out", "today-questions.csv", cwd=market)
    text = (market / "today-questions.csv").read_text()
    assert text.startswith("id,context,customer,arm,arm_name,reward\n")
    (market / "today-questions.csv").write_text(text.replace(",\n", ",1\n"))
    told = daband("audit", "today", "--answers", "today-questions.csv", cwd=market)
    assert "euros over the choices in column today" in told
    sentence = open_market(market / "today").assess().sentence
    for printed in (told, daband("audit", "today", cwd=market)):
        assert sentence in " ".join(printed.split())  # the verdict that was stored, and no other
        assert printed.count("3 target rewards: ") == 1


def test_an_audit_against_another_incumbent_leaves_the_assessment(market):
    daband("choose", *FILES, "--incumbent", "none", "--episodes", "2", "--out", "other", cwd=market)
    before = (market / "other/assessment.json").read_text()
    daband(
        "audit", "other", "--budget", "3", "--incumbent", "mail", "--out", "other.csv", cwd=market
    )
    (market / "other.csv").write_text((market / "other.csv").read_text().replace(",\n", ",1\n"))
    told = daband("audit", "other", "--answers", "other.csv", cwd=market)
    assert "3 target rewards" in told
    assert "over always mail" in told
    assert "updated" not in told
    assert (market / "other/assessment.json").read_text() == before


def test_another_incumbent_is_assessed_on_rounds_that_the_policy_has_not_learned(market):
    """Before: the chosen policy, which had learned the held-out rounds, was assessed on them."""
    generator = np.random.default_rng(0)
    frame = pl.DataFrame({f"x{column}": generator.normal(size=900) for column in range(8)})
    arm = generator.integers(3, size=900)
    gain = np.stack([np.zeros(900), frame["x0"].to_numpy(), frame["x1"].to_numpy()], axis=1)[
        np.arange(900), arm
    ]
    columns = {"arm": arm, "reward": gain + generator.normal(size=900), "propensity": [1 / 3] * 900}
    frame.with_columns(**{name: pl.Series(values) for name, values in columns.items()}).write_csv(
        market / "noisy.csv"
    )
    roles = ("--arm", "arm", "--reward", "reward", "--propensity", "propensity")
    files = (
        "--source",
        "noisy.csv",
        "--target",
        "noisy.csv",
        *roles,
        "--out",
        "noisy",
        "--incumbent",
        "1",
    )
    assert "arms are chosen by context" in daband("choose", *files, cwd=market)
    before = json.loads((market / "noisy/assessment.json").read_text())
    assert "warning" not in daband("assess", "noisy", "--incumbent", "1", cwd=market)
    after = open_market(market / "noisy").assess().as_dict()
    assert after["source_advantage"] == pytest.approx(before["source_advantage"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--source", "old.csv"), "Missing option '--target'"),
        ((*FILES, "--drop", "citty"), "did you mean 'city'"),
        ((*FILES, "--units", "city"), "units: city is not a numeric column (spent, age)"),
        (
            (*FILES[:4], "--arm", "offer"),
            (
                "arm 'offer' needs a reward: the column with the reward of the chosen arm (--reward"
                " COLUMN)"
            ),
        ),
        (("--source", "no.csv", "--target", "new.csv", "--label", "y"), "no.csv does not exist"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(market, arguments, says):
    assert says in daband("choose", *arguments, cwd=market, code=2)


def pay(path, *, late):
    """Fill in the rewards of a log that ``daband decide`` wrote, all but every ``late``-th."""
    log = pl.read_csv(path)
    right = np.array(["call", "mail", "none"])[
        np.digitize(log["spent"].to_numpy() / 4.3, [85.0, 115.0])
    ]
    rewards = [5.0 if arm == best else 1.0 for arm, best in zip(log["arm"], right, strict=True)]
    known = [
        None if late and number % late == 0 else reward for number, reward in enumerate(rewards)
    ]
    log.with_columns(reward=pl.Series(known, dtype=pl.Float64)).write_csv(path)


def test_the_daily_loop_on_the_command_line(market):
    """No command decided on a file, `learn` knew no arm by name and no reward that is late,
    `export` no epsilon.
    """
    told = daband(
        "choose", *FILES, "--propensity", "p", "--episodes", "3", "--out", "loop", cwd=market
    )
    assert "spent: its median is" in told
    assert "If its unit differs, use --units spent" in told
    assert "The incumbent is the source's best arm" in told
    before = (market / "loop/data.json").read_text()
    told = daband("choose", *FILES, "--units", "spent", "--out", "loop", cwd=market, code=2)
    assert "loop has results of other data or options (data.json); choose another --out" in told
    assert (market / "loop/data.json").read_text() == before
    columns = ("--arm", "offer", "--reward", "euros", "--propensity", "p")
    told = daband("evaluate-log", "loop", "old.csv", *columns, cwd=market, code=2)
    assert "the policy has learned the log" in told
    told = daband("export", "loop", "v0.daband", "--epsilon", "0.3", cwd=market)
    assert "daband decide v0.daband ROWS.csv --out log.csv --control 0.1" in told
    daband("decide", "v0.daband", "new.csv", "--out", "all.csv", "--control", "0.4", cwd=market)
    decided = pl.read_csv(market / "all.csv")
    incumbent = ("call", "mail", "none")[load_deployed(market / "v0.daband").incumbent]
    assert decided.filter(pl.col("arm") == incumbent)["propensity"].min() > 0.4
    assert decided.filter(pl.col("arm") != incumbent)["propensity"].max() < 0.6
    told = daband("audit", "loop", "--budget", "10", "--out", "questions.csv", cwd=market)
    assert (
        (market / "questions.csv")
        .read_text()
        .startswith("id,context,customer,arm,arm_name,reward\n")
    )
    decide = ["decide", "v0.daband", "new.csv", "--id", "customer", "--out", "log.csv"]
    told = daband(*decide, cwd=market)
    assert "240 rounds: contexts and arms as in training" in told
    log = pl.read_csv(market / "log.csv")
    assert log.columns[-7:] == [
        "decision_id",
        "arm",
        "propensity",
        "reward",
        "version",
        "role",
        "control",
    ]
    assert set(log["arm"]) <= {"call", "mail", "none"}
    # one of three arms is drawn with probability 0.3, and 0.3 of these draws are uniform
    assert log["propensity"].is_between(0.0299, 0.9401).all()
    assert log["propensity"].n_unique() > 1
    told = daband("learn", "loop", "log.csv", cwd=market)
    assert "240 of 240 rows have no reward yet" in told
    assert "There are no rewards to learn" in told
    # decisions are never replaced
    content = (market / "log.csv").read_bytes()
    assert "0 decisions of version 0; 240 were in the file before" in daband(*decide, cwd=market)
    told = daband("decide", "v0.daband", "new.csv", "--out", "log.csv", cwd=market, code=2)
    assert "log.csv has decisions" in told
    assert (market / "log.csv").read_bytes() == content
    _check_odd_rows(market)
    pay(market / "log.csv", late=4)
    told = daband("learn", "loop", "log.csv", cwd=market)
    assert "60 of 240 rows have no reward yet" in told
    assert "Learned: 180 rewards, as version 1." in told
    assert "Version 0 ran: 240 rounds, mean reward " in told
    assert "Version 1 is expected to add " in told
    assert "To do: " in told
    assessment = open_market(market / "loop").assess()
    assert (assessment.version, assessment.log_rounds) == (1, 180)
    assert assessment.sentence in told
    learned = "Version 1 has learned 180 target rounds."
    assert learned in " ".join(daband("assess", "loop", cwd=market).split())
    daband("report", "loop", cwd=market)
    assert learned in (market / "loop/report.html").read_text()
    told = daband("choose", *FILES, "--out", "loop", cwd=market, code=2)
    assert "choose another --out" in told
    pay(market / "log.csv", late=0)
    told = daband("learn", "loop", "log.csv", cwd=market)
    assert "Learned: 60 rewards, as version 2." in told
    assert open_market(market / "loop").assess().log_rounds == 240
    assert "There are no rewards to learn" in daband("learn", "loop", "log.csv", cwd=market)
    options = ["--version", "2", "--epsilon", "0.3"]
    assert "version 2" in daband("export", "loop", "v2.daband", *options, cwd=market)
    log.rename({"arm": "offer"}).with_columns(reward=1.0).write_csv(market / "other.csv")
    told = daband("learn", "loop", "other.csv", cwd=market, code=2)
    assert "other.csv has no column 'arm'" in told
    assert "--arm names the column" in told
    log.with_columns(arm=pl.lit("cal"), reward=1.0).write_csv(market / "other.csv")
    told = daband("learn", "loop", "other.csv", cwd=market, code=2)
    assert "which is not an arm; did you mean 'call'?" in told
    assert "Mean reward" in daband("evaluate-log", "v0.daband", "log.csv", cwd=market)
    assert "has a column 'arm', which is needed" in daband(
        "decide", "v0.daband", "log.csv", "--out", "x.csv", cwd=market, code=2
    )


def _check_odd_rows(market):
    """Before: a text in one cell was said of row 0, no misspelt column was guessed, a far number
    had a line a row.
    """
    new = pl.read_csv(market / "new.csv")
    commas = pl.col("age").cast(pl.String).str.replace(".", ",", literal=True)
    text = pl.when(pl.col("customer") == "new4").then(pl.lit("old")).otherwise(commas)
    new.with_columns(age=text).write_csv(market / "odd.csv", separator=";", decimal_comma=True)
    told = daband("decide", "v0.daband", "odd.csv", cwd=market, code=2)
    assert (
        "row 4 (line 6 in a spreadsheet): 'age' must be a number or None, got 'old' (str)" in told
    )
    new.rename({"age": "Age"}).write_csv(market / "odd.csv")
    told = daband("decide", "v0.daband", "odd.csv", cwd=market, code=2)
    assert (
        "odd.csv has no column 'age'; did you mean 'Age'? (its columns: customer, spent, Age, city,"
        " joined)" in told
    )
    new.head(0).write_csv(market / "odd.csv")
    assert "odd.csv has no rows" in daband("decide", "v0.daband", "odd.csv", cwd=market, code=2)
    new.with_columns(pl.col("age") * 100).write_csv(
        market / "odd.csv", separator=";", decimal_comma=True
    )
    told = daband("decide", "v0.daband", "odd.csv", "--out", "odd-log.csv", cwd=market)
    assert told.count("standard deviations from the training mean") == 1
    assert "(and 239 more rows)" in told
    log = pl.read_csv(market / "odd-log.csv")  # in commas and points: an arm may be called 0.5
    assert log["age"].to_list() == (new["age"] * 100).to_list()
    assert log["propensity"].dtype == pl.Float64


def test_decide_takes_a_folder_of_pictures(tmp_path):
    from PIL import Image

    import daband as library

    policy = library.Constant(context_shape=(3, 16, 16), n_arms=2, alpha=0.0, seed=0)
    policy.update(np.zeros((4, 3, 16, 16)), [0, 0, 1, 1], [0, 0, 1, 1])
    policy.framing = (16, 16)
    library.export(policy, tmp_path / "p.daband", arm_names=["cat", "dog"])
    (tmp_path / "photos").mkdir()
    for name in ("b", "a"):
        Image.new("RGB", (20, 18), (9, 200, 9)).save(tmp_path / "photos" / f"{name}.png")
    daband("decide", "p.daband", "photos", "--out", "log.csv", cwd=tmp_path)
    decided = pl.read_csv(tmp_path / "log.csv").select("file", "arm").rows()
    assert decided == [("photos/a.png", "dog"), ("photos/b.png", "dog")]
    assert "must be a folder of images" in daband(
        "decide", "p.daband", "log.csv", "--out", "x.csv", cwd=tmp_path, code=2
    )


def test_a_log_of_pictures_is_learned_by_their_paths(tmp_path):
    from PIL import Image

    import daband as library

    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    shown = {
        f"photos/{number}.png": rng.integers(0, 256, (3, 16, 16), np.uint8) for number in range(40)
    }
    for name, pixels in shown.items():
        Image.fromarray(pixels.transpose(1, 2, 0)).save(tmp_path / name)
    policy = library.LinUCB(context_shape=(3, 16, 16), n_arms=2, seed=0)
    policy.arm_names = ["cat", "dog"]
    policy.save(tmp_path / "p.safetensors")
    library.export(policy, tmp_path / "p.daband", epsilon=1.0)  # every weight is 1
    told = daband("decide", "p.daband", "photos", "--out", "log.csv", cwd=tmp_path)
    assert "daband learn DIR log.csv" in told
    log = pl.read_csv(tmp_path / "log.csv")
    rewarded = log.with_columns(reward=pl.when(pl.col("arm") == "dog").then(1.0).otherwise(0.25))
    rewarded.write_csv(tmp_path / "log.csv")
    told = daband("learn", "p.safetensors", "log.csv", "--out", "q.safetensors", cwd=tmp_path)
    assert "Learned 40 target rounds" in told
    learned = library.load(tmp_path / "q.safetensors")
    contexts = np.stack([shown[name] for name in log["file"]])
    arms = np.array([policy.arm_names.index(name) for name in log["arm"]])
    by_hand = library.load(tmp_path / "p.safetensors")
    by_hand.update(contexts, arms, rewarded["reward"].to_numpy(), "target")
    np.testing.assert_allclose(
        learned.decide(contexts).mean, by_hand.decide(contexts).mean, rtol=1e-9
    )
    found = daband("evaluate-log", "q.safetensors", "log.csv", cwd=tmp_path, code=2)
    assert "the policy has learned the log" in found
    Image.fromarray(rng.integers(0, 256, (40, 30, 3), np.uint8)).save(tmp_path / "photos/7.png")
    rewarded.filter(pl.col("file") == "photos/7.png").write_csv(tmp_path / "log.csv")
    told = daband(
        "learn", "p.safetensors", "log.csv", "--out", "r.safetensors", cwd=tmp_path, code=2
    )
    # the policy was trained on arrays: nothing says how to resize it
    assert "the image has 30 x 40 pixels" in told
    (tmp_path / "photos/7.png").unlink()
    rewarded.filter(pl.col("file") == "photos/7.png").write_csv(tmp_path / "log.csv")
    told = daband("learn", "p.safetensors", "log.csv", cwd=tmp_path, code=2)
    assert (
        "row 0 (line 2 in a spreadsheet) of 'file' names photos/7.png, which does not exist" in told
    )


def test_a_log_of_pictures_is_resized_and_cropped_as_in_training(tmp_path):
    """Before: pictures were resized to the side of a context, and nothing was cropped."""
    from PIL import Image

    import daband as library
    from daband.features._image_layout import read_pixels

    rng = np.random.default_rng(0)
    for number in range(40):
        for folder in (tmp_path / "drawn" / "ab"[number % 2], tmp_path / "photos"):
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (30, 26, 3), np.uint8)).save(
                folder / f"{number}.png"
            )
    pair = library.domains.from_images(
        source=tmp_path / "drawn", target=tmp_path / "photos", framing=(24, 16)
    )
    policy = library.LinUCB.for_pair(pair, seed=0)
    policy.save(tmp_path / "p.safetensors")
    library.export(policy, tmp_path / "p.daband", domain="target", epsilon=1.0)  # every weight is 1
    daband("decide", "p.daband", "photos", "--out", "log.csv", cwd=tmp_path)
    log = pl.read_csv(tmp_path / "log.csv").with_columns(reward=pl.Series(rng.random(40)))
    log.write_csv(tmp_path / "log.csv")
    daband("learn", "p.safetensors", "log.csv", "--out", "q.safetensors", cwd=tmp_path)
    contexts = np.stack(
        [read_pixels(tmp_path / name, 24, 16).transpose(2, 0, 1) for name in log["file"]]
    )
    by_hand = library.load(tmp_path / "p.safetensors")
    by_hand.update(
        contexts,
        [policy.arm_names.index(name) for name in log["arm"]],
        log["reward"].to_numpy(),
        "target",
    )
    learned = library.load(tmp_path / "q.safetensors")
    np.testing.assert_allclose(
        learned.decide(contexts).mean, by_hand.decide(contexts).mean, rtol=1e-6
    )
    assert learned.framing == (24, 16)


def test_what_the_columns_are_must_be_said(market):
    told = daband("bench", "old.csv", cwd=market, code=2)
    assert "daband choose --source old.csv --target OTHER" in told
    told = daband("choose", "--source", "old.csv", "--target", "new.csv", cwd=market, code=2)
    assert "the source has customer, spent, age" in told


def test_decisions_are_shown_where_no_file_is_named(market):
    daband("choose", *FILES, "--propensity", "p", "--out", "shown", cwd=market)
    told = daband("export", "shown", "ucb.daband", "--explore", "ucb", cwd=market)
    assert "the policy always chooses the same arm for the same row" in told
    told = daband("decide", "ucb.daband", "new.csv", cwd=market)
    assert "row 0: " in told
    assert "240 rows in total" in told
    assert "Nothing was written" in told
    assert "no column of training" not in told


def test_labels_that_the_target_has_measure_the_choice_and_it_is_said(market):
    """Before: half of the target's rows were kept apart without a word, and what they showed was
    not printed.
    """
    labelled = pl.read_csv(market / "old.csv").drop("euros", "p")
    labelled[0, "spent"] = labelled[1, "spent"] = -999.0
    labelled.write_csv(market / "labelled.csv")
    files = ("--source", "labelled.csv", "--target", "labelled.csv", "--label", "offer")
    told = daband("choose", *files, "--episodes", "2", "--out", "measured", cwd=market)
    assert "The target has labels in offer: half of the rows are held out for evaluation" in told
    choice = Choice.load(market / "measured")
    result = evaluate(choice.policy, choice.options.read().target_test)
    assert f"Mean reward on {result.contexts} labelled target rows" in told
    assert f"that were held out: {result.value:.3f}." in told
    assert "Please check: spent: -999 is in 2 rows" in told.partition("Chosen:")[2]


def test_a_policy_learns_from_the_log_of_rows_with_decimal_commas(tmp_path):
    """Before: the log had decimal commas too, and a point in the name of an arm made text of every
    number.
    """
    old = pl.DataFrame({"age": [number / 7 for number in range(80)], "dose": [0.5, 1.5] * 40})
    pair = from_table(
        source=old, target=old.drop("dose"), columns=Columns(context=["age"], label="dose")
    )
    policy = LinUCB.for_pair(pair, seed=0)
    train(policy, source=pair.source, target=pair.target, episodes=1)
    policy.deploy("target")
    export(policy, tmp_path / "dose.daband", pair=pair, domain="target", epsilon=1.0)
    old.select("age", row="age").write_csv(tmp_path / "rows.csv", separator=";", decimal_comma=True)
    for name in ("log.csv", "log.tsv"):
        daband("decide", "dose.daband", "rows.csv", "--out", name, cwd=tmp_path)
        log = read_table(tmp_path / name).with_columns(reward=pl.lit(1.0))
        log.write_csv(tmp_path / name, separator="\t" if name.endswith("tsv") else ",")
        learned = copy.deepcopy(policy)
        learn_log(learned, tmp_path / name)
        assert (learned.counts - policy.counts).tolist() == [
            log["arm"].to_list().count(dose) for dose in (0.5, 1.5)
        ]


def test_rows_of_empty_cells_keep_their_place(market):
    """Before: such rows vanished from the decisions, and questions named the wrong rows."""
    header, *lines = (market / "new.csv").read_text().splitlines()
    for place in (2, 20, 90):
        lines.insert(place, ",,,,")
    (market / "gaps.csv").write_text("\n".join([header, *lines]) + "\n\n")
    files = [name.replace("new.csv", "gaps.csv") for name in FILES]
    daband("choose", *files, "--quick", "--episodes", "2", "--out", "gaps", cwd=market)
    daband("export", "gaps", "gaps.daband", cwd=market)
    told = daband("decide", "gaps.daband", "gaps.csv", "--out", "gaps-log.csv", cwd=market)
    assert "243 decisions" in told
    customers = [line.partition(",")[0] or None for line in lines]
    assert read_table(market / "gaps-log.csv")["customer"].to_list() == customers
    daband("audit", "gaps", "--budget", "12", "--out", "gaps-questions.csv", cwd=market)
    questions = read_table(market / "gaps-questions.csv")
    assert questions["customer"].to_list() == [customers[row] for row in questions["context"]]


@pytest.mark.slow
def test_a_catalogue_of_arms_from_choose_to_learn(market, tmp_path):
    for name in ("old.csv", "new.csv"):
        (tmp_path / name).write_bytes((market / name).read_bytes())
    kinds = pl.DataFrame(
        {"offer": ["call", "mail", "none", "visit"], "price": [2.0, 1.0, 0.0, 4.0]}
    )
    kinds[:3].write_csv(tmp_path / "offers.csv")
    kinds[1:].write_csv(tmp_path / "new_offers.csv")
    named = [
        "--arm",
        "offer",
        "--reward",
        "euros",
        "--propensity",
        "p",
        "--id",
        "customer",
        "--out",
        "market",
    ]
    arms = ["--arms", "offers.csv", "--arms", "new_offers.csv"]
    printed = daband(
        "choose",
        "--source",
        "old.csv",
        "--target",
        "new.csv",
        *named,
        *arms,
        "--episodes",
        "2",
        cwd=tmp_path,
    )
    assert "Arms: 4, with the features price." in printed
    assert "1 target arms have no reward anywhere (visit)" in " ".join(
        daband("assess", "market", cwd=tmp_path).split()
    )
    daband("export", "market", "market.daband", "--epsilon", "0.5", cwd=tmp_path)
    daband("decide", "market.daband", "new.csv", "--out", "log.csv", cwd=tmp_path)
    log = read_table(tmp_path / "log.csv")
    assert set(log["arm"]) == {"mail", "none", "visit"}
    log.with_columns(reward=pl.lit(1.0)).write_csv(tmp_path / "log.csv")
    told = daband("learn", "market", "log.csv", cwd=tmp_path)
    assert "Learned: 240 rewards, as version 1." in told


def test_the_time_left_is_told_every_ten_seconds(console, monkeypatch):
    screen = console(False)
    now = [0.0]
    monkeypatch.setattr("daband.cli._choose.time.monotonic", lambda: now[0])
    with show_candidates_bar() as show:
        for share, left in ((0.01, None), (0.02, 70.0), (0.03, 65.0), (0.2, 40.0), (0.5, 20.0)):
            now[0] += 5.0
            show(CandidateProgress("nlinucb", 9, 0, 3, left, share, ""))
    assert screen.file.getvalue().splitlines() == [
        "training  0 of 3 policies, nlinucb, 1:10 left",
        "training  0 of 3 policies, nlinucb, 0:40 left",
    ]
