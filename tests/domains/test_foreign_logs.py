"""Logs of Vowpal Wabbit and Personalizer: example files written by hand from their
documentation.
"""

import json

import polars as pl
import pytest
from typer.testing import CliRunner

import daband
from daband.cli._main import app
from daband.domains.readers._foreign_logs import guess_format, read_foreign_log

VW = """shared |User age:41 city=Oslo
|Action price:9 kind=card
0:-1.5:0.8 |Action price:2 kind=loan premium

shared |User:2 age:10 young
0:0.25:0.5 'first|Action price:3
'second|Action price:4

shared |User age:1
|Action price:9 kind=card
|Action price:1 kind=card
"""
DSJSON = [
    {
        "_label_cost": -1.0,
        "_label_probability": 0.7,
        "_label_Action": 2,
        "_labelIndex": 1,
        "EventId": "e1",
        "o": [{"v": 1.0, "EventId": "e1"}],
        "a": [2, 1],
        "p": [0.7, 0.3],
        "Version": "1",
        "VWState": {"m": "x/y"},
        "c": {
            "User": {"age": 41, "city": "Oslo", "_skipped": 3},
            "hour": 9,
            "_multi": [
                {"_tag": "card", "Action": {"price": 9, "tags": ["green", "new"]}},
                {"_tag": "loan", "Action": {"price": 2}},
            ],
        },
    },
    {
        "_label_cost": 0.0,
        "_label_probability": 0.4,
        "_label_Action": 1,
        "EventId": "e2",
        "c": {
            "User": {"age": 20},
            "_multi": [{"Action": {"price": 5}}, {"_tag": "card", "Action": {"price": 10}}],
        },
    },
    {"_label_cost": -1.0, "_skipLearn": True, "c": {}},
    {"RewardValue": 1.0, "EventId": "e9"},
]


def written(path, objects):
    path.write_text("".join(json.dumps(one) + "\n" for one in objects))
    return path


def test_text_of_vowpal_wabbit_is_read(tmp_path):
    (file := tmp_path / "log.vw").write_text(VW)
    assert guess_format(file) == "vw"
    log, arms = read_foreign_log(file, "vw")
    assert log.to_dicts() == [
        {
            "User.age": 41.0,
            "User.city": "Oslo",
            "User.young": 0.0,
            "arm": "Action price:2 kind=loan premium",
            "reward": 1.5,
            "propensity": 0.8,
            "offered": "Action price:9 kind=card|Action price:2 kind=loan premium",
        },
        {
            "User.age": 20.0,
            "User.city": None,
            "User.young": 2.0,
            "arm": "first",
            "reward": -0.25,
            "propensity": 0.5,
            "offered": "first|second",
        },
    ]
    assert arms["id"].to_list() == [
        "Action price:9 kind=card",
        "Action price:2 kind=loan premium",
        "first",
        "second",
    ]
    assert arms["Action.price"].to_list() == [9.0, 2.0, 3.0, 4.0]
    assert arms["Action.kind"].to_list() == ["card", "loan", None, None]
    assert arms["Action.premium"].to_list() == [0.0, 1.0, 0.0, 0.0]


def test_a_cost_of_0_is_a_reward_without_a_sign(tmp_path):
    (file := tmp_path / "log.vw").write_text(
        "shared |User age:1\n0:0:0.5 'a|Action price:3\n'b|Action price:4\n"
    )
    log, _ = read_foreign_log(file, "vw")
    assert "-0.0" not in log.write_csv()


def test_dsjson_is_read(tmp_path):
    file = written(tmp_path / "log.json", DSJSON)
    assert guess_format(file) == "dsjson"
    log, arms = read_foreign_log(file, "dsjson")
    assert log["arm"].to_list() == ["loan", '{"Action.price": 5}']
    assert log["reward"].to_list() == [1.0, 0.0]
    assert log["propensity"].to_list() == [0.7, 0.4]
    assert log.columns[:3] == ["User.age", "User.city", "hour"]
    assert log["hour"].to_list() == [9.0, None]
    # as it first appeared
    assert arms.filter(pl.col("id") == "card")["Action.price"].to_list() == [9.0]
    assert arms["Action.tags"].to_list() == ["green|new", None, None]


def test_equal_actions_of_dsjson_do_not_move_the_label(tmp_path):
    actions = [{"price": 1}, {"price": 1}, {"price": 2}]
    event = {
        "_label_cost": -1.0,
        "_label_probability": 0.5,
        "_labelIndex": 1,
        "c": {"hour": 9, "_multi": actions},
    }
    log, _ = read_foreign_log(written(tmp_path / "log.json", [event]), "dsjson")
    assert log["arm"].to_list() == ['{"price": 1}']


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0:1:x | a:1\n", "a label is action:cost:probability"),
        ("shared a:1\n", r"line 1 must have a \|"),
        ("shared |User:x a:1\n0:1:0.5 | b:1\n", "line 1: 'x', the factor of User, is not a number"),
        ("shared | a:1\n| b:1\n", "no event in the format 'vw'"),
        ("shared | arm:1\n0:1:0.5 | b:1\n", "'arm' has a reserved name"),
        ('{"c": 1, "_label_cost": 1}\n', "line 1 is not an event of dsjson"),
        ('{"c": 1}\n{"c"\n', "line 2 is not an event of dsjson"),
    ],
)
def test_damaged_logs_have_clear_errors(tmp_path, text, says):
    (file := tmp_path / "log").write_text(text)
    with pytest.raises(daband.errors.DataError, match=says):
        read_foreign_log(file, guess_format(file))


def test_the_command_writes_a_log_and_a_catalogue(tmp_path):
    (tmp_path / "log.vw").write_text(VW)
    paths = [str(tmp_path / name) for name in ("log.vw", "log.csv")]
    arms = ["--arms", str(tmp_path / "arms.csv")]
    told = CliRunner().invoke(app, ["convert", *paths, *arms])
    assert told.exit_code == 0, told.output
    assert "2 events of vw" in told.output
    columns = daband.domains.Columns(
        context=["User.age", "User.city"],
        categorical=["User.city"],
        arm="arm",
        reward="reward",
        propensity="propensity",
        offered="offered",
    )
    pair = daband.domains.from_table(
        source=paths[1],
        target=paths[1],
        columns=columns,
        arms=str(tmp_path / "arms.csv"),
        source_test=None,
    )
    assert len(pair.catalogue.names) == 4
    assert pair.source.read_offered(range(2)).tolist() == [
        [True, True, False, False],
        [False, False, True, True],
    ]
    assert "exists already" in str(CliRunner().invoke(app, ["convert", *paths, *arms]).exception)
