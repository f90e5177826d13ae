"""The report on a choice: one page to forward."""

import dataclasses
import html
import re
import shutil

import numpy as np
import polars as pl
import pytest

import daband
from daband.domains import DataOptions
from daband.logs._target_mix import TargetMix
from daband.trust import Candidate
from daband.trust._assessment import format_number


def make_choice(folder, *, has_effect):
    """Save and return the choice of a log in which letters suit customers of 50 or older."""
    rng = np.random.default_rng(0)

    def draw(n, low):
        return pl.DataFrame(
            {"age": rng.uniform(low, 80, n).round(), "city": rng.choice(["A", "B"], n)}
        )

    log = draw(4000, 20)
    arms = rng.integers(0, 2, 4000)
    gain = np.where(log["age"].to_numpy() < 50, -1.0, 1.0) if has_effect else 0.5
    log = log.with_columns(
        offer=pl.Series(np.array(["coupon", "letter"])[arms]),
        euros=pl.Series(5.0 + gain * arms + rng.normal(size=4000)),
        p=pl.lit(0.5),
    )
    log.write_csv(folder / "old.csv")
    draw(1500, 40).write_csv(folder / "new.csv")
    options = DataOptions(
        source=str(folder / "old.csv"),
        target=str(folder / "new.csv"),
        arm="offer",
        reward="euros",
        propensity="p",
    )
    choice = daband.choose(
        options.read(),
        candidates=[Candidate("log", "log", preferred=True)],
        unit="euros",
        incumbent="coupon",
    )
    choice.save(folder / "market")
    return choice


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder and the choice of both logs, by ``has_effect``. No test changes them."""
    folders = {has_effect: tmp_path_factory.mktemp("choice") for has_effect in (True, False)}
    return {
        has_effect: (folder, make_choice(folder, has_effect=has_effect))
        for has_effect, folder in folders.items()
    }


def copy_choice(made, folder, *, has_effect):
    """Copy a made choice to a folder, and return it."""
    source, choice = made[has_effect]
    shutil.copytree(source / "market", folder / "market")
    return choice


def read_page(folder):
    path = daband.open_market(folder / "market").report()
    assert path == folder / "market" / "report.html"
    return path.read_text()


def test_the_page_shows_the_arms_in_both_markets_and_who_gets_what(made, tmp_path):
    choice = copy_choice(made, tmp_path, has_effect=True)
    assert choice.policy.evidence.personalises
    page = read_page(tmp_path)
    assert html.escape(choice.assessment.sentence) in page
    assert "euros" in choice.assessment.sentence
    assert "http" not in page  # self-contained
    for folder in (tmp_path, made[True][0]):
        assert str(folder) not in page  # it is forwarded
    values = choice.policy.values
    for mix in (values.mix, TargetMix(values.mix.weights)):
        for estimate in mix.estimate_all(values.scores):
            low, high = estimate.mean.compute_interval(0.95)
            assert f"<td>{format_number(estimate.mean.value)}</td>" in page
            assert f"<td>{format_number(low)} to {format_number(high)}</td>" in page
    by_age = page[page.index("By age") : page.index("By city")]
    rows = re.findall(r'scope="row">(.*?)</th><td>([\d,]+)</td><td>(\d+)%</td><td>(\d+)%', by_age)
    assert sum(int(size.replace(",", "")) for _, size, _, _ in rows) == 1500
    assert {("0", "100")} < {(coupon, letter) for *_, coupon, letter in rows}
    needed = f"{choice.assessment.rewards_needed:,} target rewards"
    assert needed in page[page.index("What would change") :]


def test_one_estimate_is_shown_everywhere(made, tmp_path):
    """The verdict, the table of candidates, the report and the exported file agree."""
    choice = copy_choice(made, tmp_path, has_effect=True)
    assessment = choice.assessment
    (row,) = choice.table
    for name in ("advantage", "low", "source_advantage", "source_error", "source_value"):
        assert row[name] == getattr(assessment, name)
    advantage, low = (
        format_number(number, with_sign=True) for number in (assessment.advantage, assessment.low)
    )
    assert f"{advantage} euros over always coupon" in assessment.sentence
    table = read_page(tmp_path).partition("<h2>Candidates</h2>")[2]
    assert f"<td>{advantage}</td><td>{low}</td>" in table
    assert "at most" not in table
    path = tmp_path / "market.daband"
    daband.export(choice.policy, path, assessment=assessment)
    assert daband.load_deployed(path).assessment["advantage"] == assessment.advantage
    values = choice.policy.values
    estimate = values.mix.estimate(values.values - values.scores[:, 0]).mean
    assert assessment.advantage == pytest.approx(estimate.value)
    in_source = values.mix.without_target().estimate(values.values - values.scores[:, 0]).mean
    assert assessment.source_advantage == pytest.approx(in_source.value)
    assert assessment.source_error == pytest.approx(in_source.standard_error)
    # the advantage is a difference between two means of the page, and a sum of two advantages
    means = np.array([each.mean.value for each in values.mix.estimate_all(values.scores)])
    policy_mean = values.mix.estimate(values.values).mean.value
    assert assessment.advantage == pytest.approx(policy_mean - means[0])
    evidence = choice.policy.evidence
    assert assessment.advantage == pytest.approx(evidence.gain + means[evidence.arm] - means[0])


def test_no_table_has_the_advantage_over_an_earlier_incumbent(made, tmp_path):
    """Before: after `assess --incumbent letter`, advantages over coupon were called over letter."""
    choice = copy_choice(made, tmp_path, has_effect=True)
    advantage = format_number(choice.table[0]["source_advantage"], with_sign=True)
    assert f"<td>{advantage}</td>" in read_page(tmp_path)
    daband.open_market(tmp_path / "market").assess(incumbent="letter")
    page = read_page(tmp_path)
    assert "over always letter" in page
    assert f"<td>{advantage}</td>" not in page
    assert "The table has the advantage" not in page


def test_the_page_has_what_looks_wrong_with_the_log(tmp_path):
    """Before: whoever got the page read "deploy", and not that propensities were wrong."""
    choice = make_choice(tmp_path, has_effect=True)
    assert "looks wrong" not in read_page(tmp_path)
    log = pl.read_csv(tmp_path / "old.csv")
    p = pl.when(pl.col("offer") == "letter").then(0.3).otherwise(0.7)
    log.with_columns(p=p).write_csv(tmp_path / "old.csv")
    options = dataclasses.replace(choice.options, digest="").resolve()
    dataclasses.replace(choice, options=options).save(tmp_path / "market")
    page = read_page(tmp_path)
    assert "looks wrong with the log" in page
    assert "sample-ratio mismatch" in page


def test_a_policy_for_everybody_has_no_groups(made, tmp_path):
    choice = copy_choice(made, tmp_path, has_effect=False)
    page = read_page(tmp_path)
    assert "letter for 100%" in page
    assert "By age" not in page
    assert choice.assessment.verdict == "deploy"


@pytest.mark.parametrize("verdict", ["deploy", "collect rewards", "keep the incumbent"])
def test_every_verdict_states_what_would_change_it(made, tmp_path, verdict):
    choice = copy_choice(made, tmp_path, has_effect=False)
    assessment = dataclasses.replace(choice.assessment, verdict=verdict, rewards_needed=1230)
    assessment.save(tmp_path / "market" / "assessment.json")
    change = read_page(tmp_path).partition("What would change the verdict")[2]
    word = {"deploy": "pilot", "collect rewards": "four times", "keep the incumbent": "--incumbent"}
    assert word[verdict] in change
    assert ("1,230 target rewards" in change) == (verdict != "keep the incumbent")
    dataclasses.replace(assessment, rewards=500).save(tmp_path / "market" / "assessment.json")
    change = read_page(tmp_path).partition("What would change the verdict")[2]
    assert ("1,230 more target rewards" in change) == (verdict != "keep the incumbent")
