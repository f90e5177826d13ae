"""The incumbent: an arm, a column, today's choices or a policy."""

import numpy as np
import polars as pl
import pytest

import daband
from daband.errors import InvalidInput
from daband.trust._incumbent import as_incumbent


@pytest.fixture(scope="module")
def pair():
    draw = np.random.default_rng(0)
    age = draw.normal(40.0, 9.0, 400).round(1)
    table = pl.DataFrame(
        {"age": age, "today": ["mail", "call"] * 200, "offer": np.where(age > 40, "call", "mail")}
    )
    columns = daband.domains.Columns(context=["age"], label="offer", id=["today"])
    return daband.domains.from_table(
        source=table[:200], target=table[200:].drop("offer"), columns=columns
    )


def resolved(given, pair):
    return as_incumbent(given, n_arms=pair.n_arms, arm_names=pair.class_names, target=pair.target)


def test_an_arm_by_name_or_index(pair):
    assert pair.class_names == ("call", "mail")
    contexts = np.zeros((3, 1))
    for given in ("mail", 1, np.int64(1)):
        incumbent = resolved(given, pair)
        assert (incumbent.name, incumbent.arm) == ("always mail", 1)
        assert incumbent.choose_target_arms(contexts, np.arange(3)).tolist() == [1, 1, 1]


def test_a_column_and_an_array_with_todays_choices(pair):
    indices = np.array([3, 0, 10])
    expected = [pair.class_names.index(["mail", "call"][index % 2]) for index in indices]
    for given in ("today", ["mail", "call"] * 100, np.array([1, 0] * 100)):
        incumbent = resolved(given, pair)
        assert incumbent.arm is None
        assert incumbent.choose_target_arms(np.zeros((3, 1)), indices).tolist() == expected


def draw_experiment(n, seed):
    """Return a log in which a call gains 4, and today a tenth of the rows get a call."""
    rng = np.random.default_rng(seed)
    offers = rng.integers(0, 2, n)
    return pl.DataFrame(
        {
            "age": rng.normal(40.0, 9.0, n).round(1),
            "today": np.where(rng.random(n) < 0.1, "call", "mail"),
            "offer": np.array(["mail", "call"])[offers],
            "euros": rng.normal(4.0 * offers),
            "p": np.full(n, 0.5),
        }
    )


@pytest.mark.parametrize("is_log", [True, False])
def test_todays_arms_are_read_in_the_source_too(is_log):
    """Before: they were replaced by the logged arms, so that the gain of 3.6 was 2."""
    log = draw_experiment(2000, 0)
    target = draw_experiment(1000, 1).select("age", "today")
    columns = daband.domains.Columns(
        ["age"], arm="offer", reward="euros", propensity="p", id=["today"]
    )
    if not is_log:
        log = log.with_columns(mail=pl.lit(0.0), call=pl.lit(4.0))
        columns = daband.domains.Columns(["age"], rewards=["mail", "call"], id=["today"])
    pair = daband.domains.from_table(source=log, target=target, columns=columns)
    policy = (daband.LogPolicy if is_log else daband.Supervised).for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target)
    source = pair.source if is_log else pair.source_test
    result = daband.assess(policy, source=source, target=pair.target, incumbent="today")
    assert result.source_advantage == pytest.approx(3.6, abs=0.3)
    assert not result.substitutes_incumbent
    log = log.with_columns(today=pl.when(pl.col("age") > 20).then("today").otherwise(None))
    pair = daband.domains.from_table(source=log, target=target, columns=columns)
    source = pair.source if is_log else pair.source_test
    result = daband.assess(policy, source=source, target=pair.target, incumbent="today")
    assert result.source_advantage == pytest.approx(2.0 if is_log else 0.0, abs=0.3)
    assert result.substitutes_incumbent == is_log
    assert any("does not show today's choices" in reason for reason in result.reasons) == is_log


def test_another_policy(pair):
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=2)
    incumbent = resolved(policy, pair)
    contexts = pair.target.read(np.arange(20))
    arms = policy.decide(contexts, "target", rule="greedy").arm
    assert incumbent.choose_target_arms(contexts, np.arange(20)).tolist() == arms.tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "tomorrow",
            (
                r"^incumbent='tomorrow' .*\(call, mail\) .*\(today, age\); .*"
                r"\(--id tomorrow\)"
            ),
        ),
        ("mial", r"^incumbent='mial' .*\(today, age\); .*'mail'\?"),
        (7, r"^incumbent: 7 .*\(call, mail\)"),
        (True, "^incumbent .*bool$"),
        (["mail"] * 3, "^incumbent .* 3 .* 200 "),
        (["mail", None] * 100, "^incumbent, row 1: None "),
        (["post"] * 200, "^incumbent, row 0: 'post' "),
        (daband.LinUCB(context_shape=(2,), n_arms=2), r"^incumbent .*\(2,\); .*\(1,\)"),
    ],
)
def test_what_is_not_an_incumbent_is_rejected(given, message, pair):
    with pytest.raises(InvalidInput, match=message):
        resolved(given, pair)
    assert resolved(None, pair) is None


def test_numbers_are_the_names_of_arms_that_are_called_by_numbers(pair):
    """Before: 1.0 was the index of the arm "2", while 1 was the arm "1"."""

    def find(values):
        names = ["1", "2", "3"]
        return (
            as_incumbent(values, n_arms=3, arm_names=names, target=pair.target).choices[:4].tolist()
        )

    for values in (
        [1, 2, 3, 1],
        [1.0, 2.0, 3.0, 1.0],
        ["1", "2", "3", "1"],
        np.array([1.0, 2.0, 3.0, 1.0]),
    ):
        assert find(list(values) * 50) == [0, 1, 2, 0]
    with pytest.raises(InvalidInput, match=r"^incumbent, row 0: 0 .*\(1, 2, 3\)"):
        find([0, 1, 2, 0] * 50)


def test_a_log_has_no_rewards_of_todays_choices():
    draw = np.random.default_rng(0)
    log = pl.DataFrame(
        {
            "age": draw.uniform(20, 80, 600),
            "today": ["mail", "call"] * 300,
            "offer": draw.choice(["call", "mail"], 600),
        }
    )
    log = log.with_columns(euros=3.0 * (pl.col("offer") == "mail"), p=0.5)
    columns = daband.domains.Columns(
        ["age"], arm="offer", reward="euros", propensity="p", id=["today"]
    )
    pair = daband.domains.from_table(
        source=log.drop("today"), target=log.select("age", "today"), columns=columns
    )
    candidates = [daband.trust.Candidate("log", "log", preferred=True)]
    for incumbent, is_replaced in (("today", True), ("call", False)):
        reasons = daband.choose(pair, candidates=candidates, incumbent=incumbent).assessment.reasons
        assert any("the advantage may be larger" in each for each in reasons) == is_replaced
