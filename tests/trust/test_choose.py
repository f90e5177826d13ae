"""``daband.choose``: without target rewards, decided by a few, and from the command line."""

import json
from dataclasses import replace
from unittest import mock

import numpy as np
import polars as pl
import pytest

import daband
from daband.policies import _ensemble
from daband.trust import Candidate, default_candidates
from daband.trust._assess import SourceRounds
from daband.trust._choose import choose_training_budget

LINEAR = [Candidate("constant", "constant"), Candidate("linucb", "linucb", preferred=True)]


def answers_of(pair):
    """Return a function that knows the reward of every arm for every target context."""
    rows = pair.target_labelled.read(np.arange(len(pair.target_labelled)))
    rewards, _ = pair.target_labelled.read_rewards(np.arange(len(rows)))

    def ask(contexts, arms):
        place = np.flatnonzero((rows == contexts[0]).all(axis=1))[0]
        return rewards[place, arms]

    return ask


def inverted_pair(n=1500):
    """The target's first number has the other sign: only target rewards can tell."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(n, 3))
    t = draw.normal(size=(n, 3))
    seen = t * [-1.0, 1.0, 1.0]
    return daband.domains.from_arrays(
        source=(x, (x[:, 0] + 0.6 * x[:, 1] > 0).astype(int)),
        target=seen,
        target_labelled=(seen, (t[:, 0] + 0.6 * t[:, 1] > 0).astype(int)),
        n_arms=2,
    )


def without_the_first(pair):
    """Return a fitted transform that drops the number that moved."""
    rows = pair.source.read(np.arange(len(pair.source)))
    rows[:, 0] = 0.0
    return daband.PCA(rows.shape[1] - 1).fit(rows)


def test_a_chosen_constant_is_named():
    choice = daband.choose(inverted_pair(200), candidates=[LINEAR[0]], episodes=2)
    arm = choice.policy.decide([[0.0] * 3], "target", rule="greedy").arm[0]
    assert choice.rule.startswith(f"always {arm}; ")


def test_the_arm_of_a_chosen_constant_is_the_one_that_was_assessed():
    """Before: the rewards replaced the arm of the constant after they had been used to assess it."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(140, 2))
    t = draw.normal(size=(200, 2))
    pair = daband.domains.from_arrays(
        source=(x, (np.arange(140) % 9 > 4).astype(int)),  # arm 0 is slightly better
        target=t,
        target_labelled=(t, np.ones(200, int)),
        n_arms=2,
    )
    choice = daband.choose(
        pair, candidates=LINEAR[:1], incumbent=1, ask=answers_of(pair), budget=80, episodes=2
    )
    (row,) = choice.table
    arm = choice.policy.decide(t[:1], "target", rule="greedy").arm[0]
    assert row["target_fractions"][arm] == 1.0
    assert choice.rule.startswith(f"always {arm}; ")
    assert choice.assessment.advantage < 0


def test_a_few_target_rewards_decide_and_then_train():
    """The candidate that assumes right wins over the preferred one, and the verdict uses the
    rewards.
    """
    pair = inverted_pair()
    blind = Candidate("without the first number", "linucb", {"transform": without_the_first(pair)})
    candidates = [LINEAR[0], blind, LINEAR[1]]
    before = daband.choose(pair, candidates=candidates, episodes=15)
    assert before.candidate == "linucb"
    assert before.rewards == before.assessment.rewards == 0
    # nothing but target rewards shows that this is wrong
    assert before.assessment.verdict == "deploy"
    assert before.rule == "without target rewards, the default"
    kept = daband.choose(pair, candidates=[LINEAR[1]], episodes=15, ask=answers_of(pair), budget=50)
    assert kept.assessment.verdict == "keep the incumbent"
    assert kept.assessment.sentence.startswith("50 target rewards: -")
    choice = daband.choose(
        pair, candidates=candidates, episodes=15, ask=answers_of(pair), budget=80
    )
    assert choice.candidate == "without the first number"
    assert choice.rewards == choice.assessment.rewards == 80
    rows = np.arange(len(pair.target))
    paid, _ = pair.target_labelled.read_rewards(rows)
    untouched = daband.choose(pair, candidates=[blind], episodes=15).policy
    value = paid[rows, untouched.decide(pair.target.read(rows), "target", rule="greedy").arm].mean()
    incumbent = paid[:, choice.assessment.incumbent_arm].mean()
    assert choice.assessment.low <= value - incumbent <= choice.assessment.high
    assert choice.assessment.value_low <= value <= choice.assessment.value_high
    assert choice.policy.rounds_learned == untouched.rounds_learned + choice.rewards
    assert choice.policy.domain == "target"


def test_a_target_unrelated_to_the_source_is_not_deployed_after_50_rewards():
    """Before: the verdict ignored the rewards, and 15 of 40 such policies were deployed below a
    constant arm.
    """
    draw = np.random.default_rng(1)
    x = draw.normal(size=(800, 3))
    t = draw.normal(size=(800, 3))
    labels = draw.choice(2, size=800, p=[0.3, 0.7])
    pair = daband.domains.from_arrays(
        source=(x, (x[:, 0] > 0).astype(int)), target=t, target_labelled=(t, labels), n_arms=2
    )
    for seed in range(3):
        choice = daband.choose(
            pair,
            candidates=LINEAR,
            episodes=10,
            ask=answers_of(pair),
            budget=50,
            incumbent=1,
            seed=seed,
        )
        assert choice.assessment.verdict != "deploy"


def test_the_incumbent_is_named_everywhere():
    pair = daband.domains.load("synthetic", tiny=True)
    choice = daband.choose(
        pair, candidates=LINEAR, episodes=4, episode_length=32, incumbent="arm 2", unit="euros"
    )
    assert choice.assessment.incumbent_arm == 2
    assert "euros over always arm 2" in choice.assessment.sentence
    rows = {row["candidate"]: row for row in choice.table}
    difference = rows["linucb"]["source_advantage"] - rows["constant"]["source_advantage"]
    assert difference == pytest.approx(
        rows["linucb"]["source_value"] - rows["constant"]["source_value"]
    )
    assert rows[choice.candidate]["source_error"] == choice.assessment.source_error
    assert len({row["source_error"] for row in choice.table}) == len(LINEAR)
    assert all(row["source_error"] > 0 for row in choice.table)
    default = daband.choose(pair, candidates=LINEAR, episodes=4, episode_length=32)
    # The constant arm is the incumbent.
    assert (default.table[0]["source_advantage"], default.table[0]["source_error"]) == (0.0, 0.0)


def test_questions_are_written_and_read_back(tmp_path):
    pair = inverted_pair(600)
    common = {"candidates": LINEAR, "episodes": 6, "budget": 40, "directory": tmp_path}
    first = daband.choose(pair, **common)
    assert first.questions == tmp_path / "questions.csv"
    assert (first.rewards, first.candidate) == (0, "linucb")
    rewards, _ = pair.target_labelled.read_rewards(np.arange(len(pair.target)))

    def fill_in(path, n):
        head, *lines = path.read_text().splitlines()
        assert head == "id,context,arm,arm_name,reward"
        cells = [line.split(",") for line in lines]
        filled = [
            ",".join([*row[:-1], str(rewards[int(row[1]), int(row[2])])]) for row in cells[:n]
        ]
        path.write_text("\n".join([head, *filled, *lines[n:]]) + "\n")
        return len(lines)

    assert fill_in(first.questions, 12) == 40
    second = daband.choose(pair, **common)
    assert second.rewards == second.assessment.rewards == 12
    assert second.questions is not None
    fill_in(second.questions, 40)
    third = daband.choose(pair, **common)
    assert (third.rewards, third.questions, third.candidate) == (40, None, "constant")
    asked = daband.choose(pair, ask=answers_of(pair), **{**common, "directory": None})
    assert asked.assessment == third.assessment
    path = tmp_path / "questions.csv"
    path.write_text(path.read_text().replace("\n0,", "\n0,9", 1))
    with pytest.raises(daband.InvalidInput, match=r"row 0 .*id 0 .*context 62, .*962"):
        daband.choose(pair, **common)


def test_answers_are_stored_if_ask_fails(tmp_path):
    """Before: rewards that were paid for were lost with the error."""
    pair = inverted_pair(600)
    common = {"candidates": LINEAR, "episodes": 6, "budget": 20}
    answer = answers_of(pair)
    calls = []

    def ask(contexts, arms):
        calls.append(arms)
        if len(calls) == 8:
            raise ConnectionError("nobody there")
        return answer(contexts, arms)

    with pytest.raises(ConnectionError):
        daband.choose(pair, ask=ask, directory=tmp_path, **common)
    resumed = daband.choose(pair, ask=ask, directory=tmp_path, **common)
    complete = daband.choose(pair, ask=answer, **common)
    assert len(calls) == resumed.rewards + 1  # only the question that failed is asked again
    assert resumed.assessment == complete.assessment
    daband.choose(pair, ask=ask, directory=tmp_path, **common)
    assert len(calls) == resumed.rewards + 1


def test_an_answer_between_0_and_1_is_learned_for_a_labelled_pair():
    """Before: "feedback='one_hot' means ..." was raised after all training, and nothing was
    kept.
    """
    pair = inverted_pair(600)
    answer = answers_of(pair)
    choice = daband.choose(
        pair,
        candidates=LINEAR,
        episodes=5,
        ask=lambda contexts, arms: 0.5 * answer(contexts, arms) + 0.2,
        budget=20,
    )
    assert pair.feedback == "one_hot"
    assert choice.rewards > 0
    assert choice.policy.rounds_learned > choice.rewards


def test_asking_stops_once_the_advantage_is_clear():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(400, 2))
    t = draw.normal(size=(400, 2))
    pair = daband.domains.from_arrays(
        source=(x, (x[:, 0] > 0).astype(int)),
        target=t,
        target_labelled=(t, (t[:, 0] > 0).astype(int)),
        n_arms=2,
    )
    common = {"candidates": LINEAR, "episodes": 5, "ask": answers_of(pair), "budget": 200}
    choice = daband.choose(pair, until_clear=True, **common)
    assert choice.candidate == "linucb"
    assert choice.rewards < 150
    assert choice.assessment.low > 0
    assert choice.policy.rounds_learned == 2 * len(pair.source) + choice.rewards
    assert daband.choose(pair, **common).rewards == 200


def test_without_rewards_the_preferred_one_is_chosen_and_else_the_best_in_the_source():
    pair = inverted_pair(600)
    both = [
        LINEAR[0],
        Candidate("linucb", "linucb"),
        Candidate("blind", "linucb", {"transform": without_the_first(pair)}),
    ]
    assert daband.choose(pair, candidates=both, episodes=6).candidate == "linucb"
    marked = [*both[:2], replace(both[2], preferred=True)]
    assert daband.choose(pair, candidates=marked, episodes=6).candidate == "blind"
    assert daband.choose(pair, candidates=both[:1], episodes=6).candidate == "constant"


def test_the_ensemble_in_other_units_has_no_cross_validation_of_its_own(monkeypatch):
    n_rows = []
    fit = _ensemble._fit_learners
    monkeypatch.setattr(
        _ensemble,
        "_fit_learners",
        lambda contexts, *others: n_rows.append(len(contexts)) or fit(contexts, *others),
    )
    pair = inverted_pair(400)
    candidates = [c for c in default_candidates(pair) if c.name.startswith("supervised")]
    daband.choose(pair, candidates=candidates, episodes=6)
    assert len(n_rows) == 5
    assert n_rows.count(len(pair.source)) == 2


def test_what_cannot_be_asked_is_rejected():
    pair = daband.domains.load("synthetic", tiny=True)
    with pytest.raises(daband.InvalidInput, match=r"budget .*ask=, .*directory="):
        daband.choose(pair, budget=10)
    with pytest.raises(daband.InvalidInput, match=r"^ask .*budget"):
        daband.choose(pair, ask=lambda contexts, arms: [0.0])


def test_choose_on_a_log_sees_that_contexts_help():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(1500, 3))
    arms = draw.integers(0, 2, 1500)
    paid = 10.0 * (arms == (x[:, 0] > 0)) + draw.normal(size=1500)
    pair = daband.domains.from_log(
        source=(x, arms, paid, np.full(1500, 0.5)), target=x, n_arms=2, source_test=0.1
    )
    candidates = [Candidate("constant", "constant"), Candidate("linucb", "linucb")]
    choice = daband.choose(pair, candidates=candidates)
    assert choice.candidate == "linucb"
    values = {row["candidate"]: row["source_value"] for row in choice.table}
    assert values["linucb"] > 8 > values["constant"]


def _small_candidates():
    recipe = {"base": "small", "learning": {"steps": 1}}
    return [
        Candidate("constant", "constant", {"alpha": 1.0}),
        Candidate("linucb", "linucb"),
        Candidate("daband", "daband", {"recipe": recipe}),
    ]


def test_choose_returns_a_trained_policy_with_its_assessment_and_table():
    pair = daband.domains.load("synthetic", tiny=True)
    choice = daband.choose(
        pair, episodes=4, episode_length=16, candidates=_small_candidates(), device="cpu"
    )
    assert choice.policy.rounds_learned == 64
    assert [row["candidate"] for row in choice.table] == ["constant", "linucb", "daband"]
    assert [row["candidate"] for row in choice.table if row["chosen"]] == [choice.candidate]
    assert choice.candidate != "constant"  # on the source LinUCB is far above it
    assert repr(choice).startswith("<Choice of")
    assert all(len(row["target_fractions"]) == pair.n_arms for row in choice.table)
    assert json.loads(json.dumps(choice.as_dict()))["rule"] == choice.rule
    assert choice.policy.select(pair.target.read(np.arange(3)), "target").arm.shape == (3,)


def test_a_pair_without_held_out_source_rounds_is_refused():
    draw = np.random.default_rng(0)
    x = draw.standard_normal((40, 3))
    y = draw.integers(2, size=40)
    pair = daband.domains.from_arrays(source=(x, y), target=x, n_arms=2)
    if pair.source_test is None:
        with pytest.raises(daband.InvalidInput, match="source_test"):
            daband.choose(pair, episodes=1)
    with pytest.raises(daband.InvalidInput, match="pair"):
        daband.choose("synthetic")
    tiny = daband.domains.load("synthetic", tiny=True)
    with pytest.raises(daband.InvalidInput, match="candidates"):
        daband.choose(tiny, candidates=["linucb"])
    with pytest.raises(daband.InvalidInput, match="average"):
        Candidate("both", "average")


def test_candidates_of_every_kind_of_pair_can_be_built():
    for name in ("synthetic", "digit"):
        pair = daband.domains.load(name, tiny=True)
        candidates = default_candidates(pair, recipe="small")
        assert candidates[0].name == "constant"
        assert len({candidate.name for candidate in candidates}) == len(candidates)
        for candidate in candidates:
            assert candidate.build(pair, seed=0, device="cpu").n_arms == pair.n_arms
    with pytest.raises(daband.DabandError, match="no-such"):
        Candidate("wrong", "no-such")


def test_labelled_images_have_a_candidate_for_other_arm_frequencies():
    images = daband.domains.load("digit", tiny=True)
    assert [one.name for one in default_candidates(images)] == [
        "constant",
        "linucb-p",
        "daband, other frequencies",
        "daband",
    ]
    stated = replace(images, shift=daband.Shift(("style",), stated=True))
    assert [one.name for one in default_candidates(stated)] == [
        "constant",
        "linucb-p",
        "nlinucb",
        "daband",
    ]


@pytest.mark.parametrize(("default_ridge", "other_ridge"), [(1e6, 1.0), (1.0, 1e6), (1.0, 1.0)])
def test_other_arm_frequencies_are_chosen_if_the_default_is_less_certain(
    default_ridge, other_ridge
):
    pair = daband.domains.load("synthetic", tiny=True)
    candidates = [
        Candidate("daband, other frequencies", "linucb", {"ridge": other_ridge}),
        # a large ridge: all predictions equal
        Candidate("daband", "linucb", {"ridge": default_ridge}, preferred=True),
    ]
    choice = daband.choose(pair, candidates=candidates, episodes=5, episode_length=32)
    is_other = default_ridge > other_ridge
    assert choice.candidate == ("daband, other frequencies" if is_other else "daband")
    assert ("mean entropy" in choice.rule) == is_other


def test_quick_has_three_candidates():
    pair = daband.domains.load("synthetic", tiny=True)
    choice = daband.choose(pair, quick=True, episodes=4, episode_length=16, device="cpu")
    assert [row["candidate"] for row in choice.table] == ["constant", "linucb", "mixture"]
    assert choice.table[2]["settings"]["recipe"] == "small"
    images = daband.domains.load("digit", tiny=True)
    assert [one.name for one in default_candidates(images, quick=True)] == [
        "constant",
        "linucb-p",
        "daband",
    ]
    with pytest.raises(daband.InvalidInput, match="quick"):
        daband.choose(pair, quick=True, candidates=[Candidate("linucb", "linucb")])


def test_a_choice_is_saved_and_loaded(tmp_path):
    pair = daband.domains.load("synthetic", tiny=True)
    choice = daband.choose(pair, candidates=LINEAR, episodes=4, episode_length=16)
    choice.save(tmp_path / "market")
    loaded = daband.Choice.load(tmp_path / "market")
    assert loaded.as_dict() == choice.as_dict()
    assert loaded.assessment == choice.assessment
    assert loaded.options is None  # the pair was not read from files
    contexts = pair.target.read(np.arange(20))
    np.testing.assert_array_equal(
        loaded.policy.decide(contexts).mean, choice.policy.decide(contexts).mean
    )
    (tmp_path / "market/choice.json").write_text("{}")
    with pytest.raises(daband.DataError, match=r"choice\.json"):
        daband.Choice.load(tmp_path / "market")
    with pytest.raises(daband.InvalidInput, match=f"{tmp_path} .*daband choose"):
        daband.Choice.load(tmp_path)
    (tmp_path / "taken").write_text("a file where the folder should be")
    with pytest.raises(daband.InvalidInput, match="taken"):
        choice.save(tmp_path / "taken")


def test_a_choice_that_is_saved_half_way_is_no_choice(tmp_path, monkeypatch):
    """Otherwise the new policy would have the assessment of the old one."""
    pair = daband.domains.load("synthetic", tiny=True)
    choice = daband.choose(pair, candidates=LINEAR, episodes=4, episode_length=16)
    choice.save(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(daband.Assessment, "save", mock.Mock(side_effect=OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            choice.save(tmp_path)
    with pytest.raises(daband.InvalidInput, match=f"{tmp_path} .*daband choose"):
        daband.Choice.load(tmp_path)
    choice.save(tmp_path)
    assert daband.Choice.load(tmp_path).assessment == choice.assessment


def test_too_few_target_contexts_are_said_before_training():
    rows = np.random.default_rng(0).normal(size=(200, 3))
    pair = daband.domains.from_arrays(
        source=(rows, (rows[:, 0] > 0).astype(int)), target=rows[:1], n_arms=2
    )
    seen = []
    with pytest.raises(daband.InvalidInput, match=r"^target .* 1 "):
        daband.choose(pair, progress=lambda *told: seen.append(told))
    assert not seen


@pytest.mark.parametrize("rows", [3, 8])
@pytest.mark.parametrize("rewards", ["labels", "log"])
def test_too_few_source_rounds_are_counted(rows, rewards):
    contexts = np.arange(2.0 * rows).reshape(rows, 2)
    arms = np.arange(rows) % 2
    if rewards == "log":
        source = contexts, arms, np.ones(rows), np.full(rows, 0.5)
        pair = daband.domains.from_log(source=source, target=contexts, n_arms=2)
    else:
        pair = daband.domains.from_arrays(source=(contexts, arms), target=contexts, n_arms=2)
    with pytest.raises(daband.InvalidInput, match=rf"source .* {rows} .* 20 "):
        daband.choose(pair)


@pytest.mark.parametrize(("rows", "expected"), [(2000, (62, 64)), (50_000, (125, 400))])
def test_a_large_table_is_shown_in_longer_episodes_so_that_steps_stay_as_many(rows, expected):
    contexts = np.zeros((rows, 2))
    labels = np.arange(rows) % 3
    pair = daband.domains.from_arrays(
        source=(contexts, labels), source_test=None, target=contexts[:5]
    )
    assert choose_training_budget(pair, None, 64) == expected


def test_ask_gets_the_rows_of_the_table(tmp_path):
    generator = np.random.default_rng(0)
    age = generator.normal(40.0, 9.0, 400).round(1)
    table = pl.DataFrame(
        {"customer": np.arange(400), "age": age, "offer": np.where(age > 40, "call", "mail")}
    )
    columns = daband.domains.Columns(context=["age"], label="offer", id=["customer"])
    pair = daband.domains.from_table(
        source=table[:200], target=table[200:].drop("offer"), columns=columns
    )
    asked = []

    def reward_of(rows, arms):
        asked.append(rows["customer"][0])
        assert rows.columns == ["customer", "age"]
        assert age[rows["customer"][0]] == rows["age"][0]
        return [float(pair.class_names[arms[0]] == ("call" if rows["age"][0] > 40 else "mail"))]

    choice = daband.choose(pair, candidates=LINEAR, episodes=2, ask=reward_of, budget=10)
    assert 0 < choice.rewards == len(asked)
    daband.audit(choice.policy, target=pair.target, budget=5, ask=reward_of)
    assert len(asked) == choice.rewards + 5
    plain = daband.domains.from_table(
        source=table[:200], target=table[200:].drop("offer"), columns=replace(columns, id=())
    )
    waiting = daband.choose(plain, candidates=LINEAR, episodes=2, budget=10, directory=tmp_path)
    head, first, *_ = waiting.questions.read_text().splitlines()
    assert head == "id,context,age,arm,arm_name,reward"
    assert float(first.split(",")[2]) in age[200:]


# Logs.


def log_pair(effect, n=4000):
    """The log prefers arm 1 where rewards are high anyway; arm 0 is best, and arm 2 by ``effect``
    in some contexts.
    """
    draw = np.random.default_rng(4)
    x = draw.normal(size=(n, 3))
    often = np.where(x[:, 0] > 0, 0.7, 0.2)
    chances = np.stack([(1 - often) / 2, often, (1 - often) / 2], axis=1)
    arms = (draw.random((n, 1)) > chances.cumsum(axis=1)).sum(axis=1)
    gains = np.stack([np.full(n, 0.1), np.zeros(n), effect * (x[:, 1] > 0)], axis=1)
    rewards = 2.0 * x[:, 0] + gains[np.arange(n), arms] + draw.normal(size=n)
    return daband.domains.from_log(
        source=(x, arms, 1000.0 * rewards, chances[np.arange(n), arms]),
        target=draw.normal(size=(500, 3)),
        n_arms=3,
        class_names=["tea", "milk", "rum"],
    )


def test_a_log_without_effects_gives_its_best_arm_and_says_so_in_money():
    pair = log_pair(0.0)
    choice = daband.choose(pair, unit="euros")
    assert [row["candidate"] for row in choice.table] == ["best arm", "log"]
    assert choice.rule.startswith("choosing by context ")
    assert " euros over always tea" in choice.rule
    assert choice.rule.endswith(": always tea is chosen")
    # not milk, whose mean reward in the log is the highest
    assert choice.assessment.incumbent == "always tea"
    assert choice.assessment.verdict == "keep the incumbent"
    decision = choice.policy.select(pair.target.read(np.arange(500)))
    assert set(decision.arm) == {0}
    assert (decision.propensity == 1.0).all()  # no exploration that nobody asked for


def test_a_log_with_a_large_effect_is_personalised():
    pair = log_pair(2.0)
    choice = daband.choose(pair)
    assert choice.rule.endswith("arms are chosen by context")
    contexts = pair.target.read(np.arange(500))
    assert choice.assessment.incumbent == "always rum"
    assert np.mean(choice.policy.select(contexts).arm == np.where(contexts[:, 1] > 0, 2, 0)) > 0.85
    assert choice.assessment.verdict == "deploy"
    assert choice.assessment.source_advantage == pytest.approx(
        75.0, abs=2.5 * choice.assessment.source_error
    )
    judged = daband.LogPolicy.for_pair(pair, seed=0)
    daband.train(judged, source=pair.source, target=pair.target)
    again = daband.assess(judged, source=pair.source, target=pair.target)
    assert again.source_advantage == pytest.approx(choice.assessment.source_advantage, rel=0.1)
    assert again.incumbent_arm == judged.evidence.arm


def test_a_log_is_assessed_on_all_rounds_by_cross_fitting():
    """Before: a tenth of the log was held out, and the verdict was about the fit to the rest."""
    draw = np.random.default_rng(0)
    log = draw.normal(size=(900, 2)), draw.integers(0, 5, 900), draw.normal(size=900)
    pair = daband.domains.from_log(source=(*log, np.full(900, 0.2)), target=log[0], n_arms=5)
    choice = daband.choose(pair, incumbent=0)
    assert pair.source_test is None
    assert choice.policy.evidence.rounds == choice.assessment.source_rounds == 900
    again = daband.assess(choice.policy, source=pair.source, target=pair.target, incumbent=0)
    assert again.as_dict() == choice.assessment.as_dict()
    best_mean = max(log[2][log[1] == arm].mean() for arm in range(5)) - log[2][log[1] == 0].mean()
    assert again.source_advantage < best_mean  # no winner's curse


@pytest.mark.parametrize("method", ["log", "constant"])
def test_with_a_catalogue_the_default_incumbent_is_the_best_arm_of_the_whole_source(method):
    draw = np.random.default_rng(5)  # with this seed, another arm is best in the held-out rounds
    x = draw.normal(size=(1500, 2))
    arms = draw.integers(0, 3, 1500)
    rewards = np.array([0.0, 0.15, -1.0])[arms] + draw.normal(size=1500)
    names = ["visit", "coupon", "mail"]
    log = (x, arms, rewards, np.full(1500, 1 / 3))
    constant = {"by_context": False} if method == "log" else {}
    candidates = [Candidate("best arm", method, constant), Candidate("linucb", "linucb")]
    table = pl.DataFrame({"id": names, "price": [1.0, 2.0, 3.0]})
    for offered, incumbent in ((table, "always coupon"), (table[[0, 2]], "always visit")):
        tables = {"source": table, "target": offered}
        pair = daband.domains.from_log(
            source=log, target=x[:200], n_arms=3, class_names=names, arms=tables
        )
        assert SourceRounds.read(pair.source_test, 2000, seed=0).find_best_arm() == 0
        choice = daband.choose(pair, candidates=candidates)
        assert choice.assessment.incumbent == incumbent


def test_a_short_log_gives_its_best_arm():
    choice = daband.choose(log_pair(0.0, n=90))
    assert choice.rule.startswith("the log has too few rounds to choose by context: always ")
