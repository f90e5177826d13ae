"""The paper's tables, against themselves: the gains it prints are differences of the rows it
prints.
"""

import pytest

from daband.bench import read_paper_tables

ACCURACY = read_paper_tables()["accuracy"]


@pytest.mark.parametrize(
    ("method", "average"),
    [
        ("linucb", 0.3808),
        ("linucb-p", 0.3060),
        ("nlinucb", 0.3816),
        ("nlinucb-p", 0.2706),
        ("daband", 0.6002),
    ],
)
def test_digit_averages(method, average):
    assert ACCURACY["digit"]["methods"][method]["average"] == average


@pytest.mark.parametrize(
    ("pair", "method", "name", "value", "deviation"),
    [
        ("digit", "nlinucb-p", "0", 0.8588, 0.03),
        ("digit", "daband", "9", 0.5023, 0.02),
        ("visda17", "linucb-p", "skateboard", 0.0920, 0.13),
        ("visda17", "daband", "train", 0.7685, 0.05),
        ("visda17", "nlinucb-p", "bus", 0.9222, 0.02),
        ("s2rda49", "nlinucb", "truck", 0.0309, 0.01),
        ("s2rda49", "daband", "motorcycle", 0.7580, 0.04),
        ("s2rda49", "nlinucb-p", "knife", 0.7000, 0.02),
    ],
)
def test_single_numbers(pair, method, name, value, deviation):
    row = ACCURACY[pair]["methods"][method]
    index = ACCURACY[pair]["classes"].index(name)
    assert row["per_class"][index] == value
    assert row["deviation"][index] == deviation


@pytest.mark.parametrize("pair", ["digit", "visda17", "s2rda49"])
def test_printed_gains_are_differences_of_printed_rows(pair):
    table = ACCURACY[pair]
    ours = table["methods"]["daband"]
    theirs = table["methods"]["nlinucb"]
    assert len(table["gain"]) == len(table["classes"]) == (12 if pair == "visda17" else 10)
    for a, b, gain in zip(ours["per_class"], theirs["per_class"], table["gain"], strict=True):
        assert a - b == pytest.approx(gain, abs=1e-9)
    assert ours["average"] - theirs["average"] == pytest.approx(table["average_gain"], abs=1e-9)
    assert ("linucb" in table["methods"]) == (pair == "digit")  # out of memory on the other two
    for row in table["methods"].values():
        assert len(row["per_class"]) == len(row["deviation"]) == len(table["classes"])
        assert all(0 <= value <= 1 for value in row["per_class"])


def test_the_full_ablation():
    order = ("none", "D", "P", "R", "PD", "RD", "RP", "RPD")
    tables = read_paper_tables()["full_ablation"]
    assert [tables["digit"]["accuracy"][letters] for letters in order] == [
        0.3816,
        0.5676,
        0.3793,
        0.3544,
        0.5682,
        0.5768,
        0.3649,
        0.6002,
    ]
    assert tables["visda17"]["accuracy"]["R"] == 0.0936
    assert tables["s2rda49"]["deviation"]["PD"] == 0.03


@pytest.mark.parametrize("pair", ["digit", "visda17", "s2rda49"])
def test_the_tables_agree_with_each_other(pair):
    full = read_paper_tables()["full_ablation"][pair]["accuracy"]
    short = read_paper_tables()["ablation"][pair]["accuracy"]
    assert all(full[letters] == value for letters, value in short.items())
    assert set(short) == {"D", "PD", "RD", "RPD"}
    assert full["RPD"] == ACCURACY[pair]["methods"]["daband"]["average"]
    assert full["none"] == ACCURACY[pair]["methods"]["nlinucb"]["average"]
