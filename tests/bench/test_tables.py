"""Tables against numbers that are computed by hand from the records."""

import numpy as np
import pytest

from daband.bench import read_paper_tables
from daband.bench._ablation import ABLATION_BASES, ABLATION_LETTERS
from daband.bench._records import adjust_holm, compare_paired
from daband.bench._tables import build_tables


def record(method="linucb", seed=0, score=0.5, **changes):
    return {
        "pair": "digit",
        "method": method,
        "variant": "default",
        "seed": seed,
        "feedback": "one_hot",
        "target_accuracy": score,
        "target_value": score,
        "target_best_value": 1.0,
        "target_constant_value": 0.25,
        "source_regret": 12.0,
        "source_reward": 0.75,
        "rounds": 19200,
        "wall_seconds": 2.0,
        "per_class": None if score is None else [score, 0.25],
        "class_names": ["0", "1"],
        **changes,
    }


def comparison(**changes):
    scores = {"nlinucb": [0.50, 0.52, 0.51], "daband": [0.80, 0.81, 0.85]}
    return [
        record(method, seed, score, **changes)
        for method, values in scores.items()
        for seed, score in enumerate(values)
    ], scores


def test_a_method_has_its_mean_and_its_difference_to_neural_linucb():
    records, scores = comparison()
    (table,) = build_tables(records)
    best, other = table.rows
    assert [best["method"], other["method"]] == ["daband", "nlinucb"]
    mean, deviation = np.mean(scores["daband"]), np.std(scores["daband"], ddof=1)
    assert best["target accuracy"] == f"{mean:.4f} ± {deviation:.4f}"
    test = compare_paired(scores["daband"], scores["nlinucb"])
    assert best["over nlinucb"] == f"{test.difference:+.4f}"
    assert best["95% interval"] == f"{test.low:+.4f} to {test.high:+.4f}"
    assert best["p (Holm)"] == f"{test.p_value:.2g}"
    assert (best["paper"], other["paper"]) == ("0.6002", "0.3816")
    assert (other["over nlinucb"], other["95% interval"], best["seeds"]) == ("", "", "3")


def test_unknown_columns_of_the_source_are_left_out():
    """If policies learn the rewards of all arms, they choose no arm in the source."""
    records, _ = comparison(source_reward=None, source_regret=None)
    (table,) = build_tables(records)
    assert not {"source reward", "source regret"} & table.rows[0].keys()
    (table,) = build_tables([record(source_regret=None), record("daband")])
    assert [row["source regret"] for row in table.rows] == ["unknown", "12.00"]


def test_one_seed_has_a_difference_without_an_interval():
    (table,) = build_tables([record("daband", 0, 0.8), record("nlinucb", 0, 0.5)])
    row = table.rows[0]
    assert row["target accuracy"] == "0.8000"
    assert (row["over nlinucb"], row["95% interval"], row["p (Holm)"]) == ("+0.3000", "", "")


def test_differences_use_the_seeds_that_both_have():
    records, scores = comparison()
    (table,) = build_tables([*records, record("daband", 9, 0.1)])
    difference = np.mean(scores["daband"]) - np.mean(scores["nlinucb"])
    assert table.rows[0]["over nlinucb"] == f"{difference:+.4f}"
    (table,) = build_tables([record("daband", 1, 0.8), record("nlinucb", 0, 0.5)])
    assert table.rows[0]["over nlinucb"] == ""


def test_real_rewards_are_in_their_unit():
    records, scores = comparison(feedback="bandit", target_best_value=321.0)
    for one in records:
        one["target_value"] *= 100.0
    (table,) = build_tables(records)
    assert table.rows[0]["target value"] == f"{100 * np.mean(scores['daband']):.2f} ± 2.65"
    assert "321" in table.caption
    assert "target accuracy" not in table.rows[0]


def test_every_recipe_of_an_ablation_has_its_own_family_of_tests():
    rng = np.random.default_rng(0)
    scores = {
        (base, letters): rng.normal(0.5, 0.1, size=4)
        for base in ABLATION_BASES
        for letters in ABLATION_LETTERS
    }
    records = [
        record("daband", seed, score, variant=f"{base}:{letters}")
        for (base, letters), values in scores.items()
        for seed, score in enumerate(values)
    ]
    tables = build_tables(records)
    for base, table in zip(ABLATION_BASES, tables, strict=True):
        assert base in table.caption
        rows = {row["method"]: row for row in table.rows}
        tested = ABLATION_LETTERS[:-1]
        p_values = adjust_holm(
            [
                compare_paired(scores[base, letters], scores[base, "RPD"]).p_value
                for letters in tested
            ]
        )
        assert [rows[letters]["p (Holm)"] for letters in tested] == [f"{p:.2g}" for p in p_values]
        assert rows["RPD"]["over RPD"] == ""
        assert rows["none"]["paper"] == "0.3816"


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
