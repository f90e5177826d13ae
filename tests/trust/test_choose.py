"""``daband.choose``: without target rewards, decided by a few, and from the command line."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import daband
from daband.cli._main import app
from daband.trust._choose import Candidate, _without_rewards, default_candidates, training_budget


def answers_of(pair):
    """Somebody who knows what every arm pays for every target context."""
    rows = pair.target_labelled.read(np.arange(len(pair.target_labelled)))
    rewards, _ = pair.target_labelled.read_rewards(np.arange(len(rows)))

    def ask(contexts, arms):
        place = np.flatnonzero((rows == contexts[0]).all(axis=1))[0]
        return rewards[place, arms]

    return ask


def inverted_pair(n=1500):
    """The target's first number has the other sign: only rewards of the target can tell."""
    draw = np.random.default_rng(0)
    x, t = draw.normal(size=(n, 3)), draw.normal(size=(n, 3))
    seen = t * [-1.0, 1.0, 1.0]
    return daband.domains.from_arrays(
        source=(x, (x[:, 0] + 0.6 * x[:, 1] > 0).astype(int)),
        target=seen,
        target_labelled=(seen, (t[:, 0] + 0.6 * t[:, 1] > 0).astype(int)),
        n_arms=2,
    )


def test_a_few_target_rewards_decide_and_then_train():
    """The candidate that assumes right wins over the preferred one, and its interval holds the truth."""
    pair = inverted_pair()

    class Mirrored:
        def fit(self, *contexts):
            return self

        def transform(self, contexts):
            flipped = np.array(contexts, np.float64)
            flipped[:, 0] = np.abs(flipped[:, 0]) * 0.0  # does not look at the number that moved
            return flipped

    candidates = [
        Candidate("constant", "constant"),
        Candidate("without the first number", "linucb", {"transform": Mirrored()}),
        Candidate("linucb", "linucb", preferred=True),
    ]
    before = daband.choose(pair, candidates=candidates, episodes=15)
    assert before.candidate == "linucb"
    assert before.rewards == 0
    assert before.value is None
    few = daband.choose(pair, candidates=candidates, episodes=15, ask=answers_of(pair), budget=5)
    assert few.candidate == "linucb"
    assert few.rule.startswith("5 target rewards are too few: ")
    choice = daband.choose(pair, candidates=candidates, episodes=15, ask=answers_of(pair), budget=80)
    assert choice.candidate == "without the first number"
    assert 0 < choice.rewards <= 80
    rows = np.arange(len(pair.target))
    paid, _ = pair.target_labelled.read_rewards(rows)
    untouched = daband.choose(pair, candidates=candidates[1:2], episodes=15).policy
    truth = paid[rows, untouched.decide(pair.target.read(rows), "target", rule="greedy", round_offset=0).arm].mean()
    assert choice.low <= truth <= choice.high
    assert choice.policy.rounds_learned == untouched.rounds_learned + choice.rewards
    assert choice.policy.domain == "target"


def test_questions_are_written_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["daband.trust._choose"], "_AT_A_TIME", 12)
    pair = inverted_pair(600)
    candidates = [Candidate("constant", "constant"), Candidate("linucb", "linucb", preferred=True)]
    common = {"candidates": candidates, "episodes": 6, "budget": 40, "directory": tmp_path}
    first = daband.choose(pair, **common)
    assert first.questions == tmp_path / "questions.csv"
    assert (first.rewards, first.candidate) == (0, "linucb")
    rewards, _ = pair.target_labelled.read_rewards(np.arange(len(pair.target)))

    def fill_in(path):
        head, *lines = path.read_text().splitlines()
        assert head == "id,context,arm,arm_name,reward"
        cells = [line.split(",") for line in lines]
        filled = [",".join([*row[:-1], str(rewards[int(row[1]), int(row[2])])]) for row in cells]
        path.write_text("\n".join([head, *filled]) + "\n")
        return [row[-1] for row in cells]

    empty = fill_in(first.questions)
    assert empty == [""] * len(empty)
    assert 8 <= len(empty) <= 12  # 12 questions, a few of them twice
    second = daband.choose(pair, **common)
    assert second.rewards == len(empty)
    assert second.low <= second.value <= second.high
    asked = daband.choose(pair, ask=answers_of(pair), **common)  # another way to ask, with a file of its own
    assert (tmp_path / "answers.csv").read_text().count("\n") == asked.rewards + 1
    answered = fill_in(second.questions)
    assert len(empty) < len(answered) <= 40
    assert "" not in answered[: len(empty)]
    assert set(answered[len(empty) :]) == {""}
    third = daband.choose(pair, **common)
    while third.questions is not None:
        fill_in(third.questions)
        third = daband.choose(pair, **common)
    assert len(empty) < third.rewards <= 40
    assert third.questions is None
    assert third.candidate == "constant"  # LinUCB is right for a third of the contexts
    path = tmp_path / "questions.csv"
    path.write_text(path.read_text().replace("\n0,", "\n0,9", 1))
    with pytest.raises(daband.InvalidInput, match="id 0 is not about context"):
        daband.choose(pair, **common)


def test_answers_are_kept_where_whoever_is_asked_fails(tmp_path):
    """Before: rewards that somebody had paid for were lost with the error."""
    pair = inverted_pair(600)
    candidates = [Candidate("constant", "constant"), Candidate("linucb", "linucb", preferred=True)]
    common = {"candidates": candidates, "episodes": 6, "budget": 20}
    answer, calls = answers_of(pair), []

    def ask(contexts, arms):
        calls.append(arms)
        if len(calls) == 8:
            raise ConnectionError("nobody there")
        return answer(contexts, arms)

    with pytest.raises(ConnectionError):
        daband.choose(pair, ask=ask, directory=tmp_path, **common)
    resumed = daband.choose(pair, ask=ask, directory=tmp_path, **common)
    whole = daband.choose(pair, ask=answer, **common)
    assert len(calls) == resumed.rewards + 1  # the one that failed is asked again, no other
    assert (resumed.rewards, resumed.value, resumed.low) == (whole.rewards, whole.value, whole.low)
    daband.choose(pair, ask=ask, directory=tmp_path, **common)
    assert len(calls) == resumed.rewards + 1


def test_the_asking_stops_early_and_the_rewards_train():
    """A candidate that is nearly always right and a constant: a few rewards are enough, and all of them train."""
    draw = np.random.default_rng(0)
    x, t = draw.normal(size=(400, 2)), draw.normal(size=(400, 2))
    pair = daband.domains.from_arrays(
        source=(x, (x[:, 0] > 0).astype(int)), target=t, target_labelled=(t, (t[:, 0] > 0).astype(int)), n_arms=2
    )

    candidates = [Candidate("constant", "constant"), Candidate("linucb", "linucb", preferred=True)]
    choice = daband.choose(pair, candidates=candidates, episodes=5, ask=answers_of(pair), budget=300)
    assert choice.candidate == "linucb"
    assert choice.rewards < 100
    assert "no other is likely to be better" in choice.rule
    assert choice.policy.rounds_learned == 5 * 64 + choice.rewards


def test_without_rewards_the_preferred_one_is_chosen_and_else_the_largest_estimate():
    options = [Candidate("constant", "constant"), Candidate("linucb", "linucb"), Candidate("daband", "daband")]

    def chosen(*values, preferred=None):
        marked = [replace(option, preferred=option.name == preferred) for option in options[: len(values)]]
        estimates = [SimpleNamespace(value=value) for value in values]
        return marked[_without_rewards(marked, estimates)[0]].name

    assert chosen(0.9, 0.7, 0.6, preferred="daband") == "daband"  # nothing but rewards tells what is right
    assert chosen(0.9, 0.7, 0.6) == "linucb"
    assert chosen(0.9) == "constant"


def test_what_cannot_be_asked_is_refused():
    pair = daband.domains.load("synthetic", tiny=True)
    with pytest.raises(daband.InvalidInput, match="budget needs somebody to answer"):
        daband.choose(pair, budget=10)
    with pytest.raises(daband.InvalidInput, match="ask without a budget"):
        daband.choose(pair, ask=lambda contexts, arms: [0.0])


def test_exploration_of_the_chosen_policy():
    pair = daband.domains.load("synthetic", tiny=True)
    candidates = [Candidate("constant", "constant"), Candidate("linucb", "linucb", preferred=True)]
    choice = daband.choose(pair, candidates=candidates, episodes=4, episode_length=32, epsilon=0.3)
    assert choice.candidate == "linucb"
    decided = choice.policy.select(pair.target.read(np.arange(20)))
    assert (decided.propensity < 1).all()


def test_an_arm_that_was_never_tried_is_not_assessed_and_it_is_said():
    """Before: a value of greedy choices, and a policy whose bonus chooses the arm that nobody ever tried."""
    draw = np.random.default_rng(0)
    x, arms = draw.normal(size=(400, 2)), draw.integers(2, size=400)
    log = (x, arms, np.where(arms, x[:, 0], -x[:, 0]), np.full(400, 0.5))
    pair = daband.domains.from_log(source=log, target=draw.normal(size=(80, 2)), n_arms=3)
    candidates = [Candidate("constant", "constant"), Candidate("linucb", "linucb")]
    assessment = daband.choose(pair, episodes=2, episode_length=64, candidates=candidates).assessment
    assert assessment.per_arm[2].target_share == 0
    assert any(reason.startswith("This is of its greedy choices") for reason in assessment.reasons)


@pytest.mark.parametrize(("explore", "rule"), [("greedy", "greedy"), ("ucb", "ucb")])
def test_what_is_assessed_is_what_is_deployed(explore, rule):
    """Before: also a policy that explores greedily was assessed with the bonus."""
    pair = daband.domains.load("synthetic", tiny=True)
    candidates = [Candidate("linucb", "linucb", {"alpha": 5.0}), Candidate("trees", "trees")]
    choice = daband.choose(pair, candidates=candidates, episodes=4, episode_length=32, explore=explore)
    chosen = choice.policy.decide(pair.target.read(np.arange(len(pair.target))), "target", rule=rule).arm
    shares = np.bincount(chosen, minlength=pair.n_arms) / len(chosen)
    assert [arm.target_share for arm in choice.assessment.per_arm] == pytest.approx(shares)


def test_choose_on_a_log_sees_that_contexts_help():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(1500, 3))
    arms = draw.integers(0, 2, 1500)
    paid = 10.0 * (arms == (x[:, 0] > 0)) + draw.normal(size=1500)
    pair = daband.domains.from_log(source=(x, arms, paid, np.full(1500, 0.5)), target=x, n_arms=2)
    candidates = [Candidate("constant", "constant"), Candidate("linucb", "linucb")]
    choice = daband.choose(pair, candidates=candidates)
    assert choice.candidate == "linucb"
    values = {row["candidate"]: row["source_value"] for row in choice.table}
    assert values["linucb"] > 8 > values["constant"]


def test_without_rewards_the_choice_is_the_default_whatever_is_estimated(monkeypatch):
    small = {"base": "small", "learning": {"steps": 1}}
    monkeypatch.setattr(
        sys.modules["daband.trust._choose"], "default_candidates", lambda pair: default_candidates(pair, recipe=small)
    )
    choice = daband.choose(inverted_pair(), episodes=4, episode_length=32, device="cpu")
    estimated = {row["candidate"]: row["estimated_value"] for row in choice.table}
    assert max(estimated, key=lambda name: estimated[name]) != "daband"
    assert choice.candidate == "daband"
    assert choice.rule.endswith("nothing tells the candidates apart: the default, daband")


def _small_candidates():
    recipe = {"base": "small", "learning": {"steps": 1}}
    return [
        Candidate("constant", "constant", {"alpha": 1.0}),
        Candidate("linucb", "linucb"),
        Candidate("daband", "daband", {"recipe": recipe}),
    ]


def test_choose_returns_a_trained_policy_with_its_assessment_and_table():
    pair = daband.domains.load("synthetic", tiny=True)
    choice = daband.choose(pair, episodes=4, episode_length=16, candidates=_small_candidates(), device="cpu")
    assert choice.policy.rounds_learned == 64
    assert [row["candidate"] for row in choice.table] == ["constant", "linucb", "daband"]
    assert [row["candidate"] for row in choice.table if row["chosen"]] == [choice.candidate]
    assert choice.candidate != "constant"  # on the source LinUCB is far above it
    assert repr(choice).startswith("<Choice of")
    assert all(len(row["target_shares"]) == pair.n_arms for row in choice.table)
    assert 0 <= choice.assessment.accuracy <= 1
    assert json.loads(json.dumps(choice.as_dict()))["rule"] == choice.rule
    assert choice.policy.select(pair.target.read(np.arange(3)), "target").arm.shape == (3,)


def test_a_pair_without_held_out_source_rounds_is_refused():
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((40, 3)), draw.integers(2, size=40)
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


def test_the_command_writes_the_policy_and_the_choice(tmp_path):
    settings = tmp_path / "mine.toml"
    settings.write_text('pair = "synthetic"\nepisodes = 2\nepisode_length = 16\npair_options = { tiny = true }\n')
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["choose", str(settings), "--out", str(out), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    written = json.loads((out / "choice.json").read_text())
    assert written["candidate"] in done.output
    assert "The table is of greedy choices" in done.output  # the number beside the verdict is another one
    assert "Required is what the best constant arm is worth" in done.output
    assert " by rewards" not in done.output
    explanations = json.loads((out / "assessment.json").read_text())["explanations"]
    policies = {name.partition(": ")[0].partition(" (")[0] for name in explanations}
    assert policies <= {row["candidate"] for row in written["table"]}
    assert daband.load(out / "policy.safetensors").rounds_learned == 32

    # The way on: a few rewards, and a file that decides.
    asked = CliRunner().invoke(app, ["audit", str(out), "--budget", "5", "--out", str(tmp_path / "questions.csv")])
    assert asked.exit_code == 0, asked.output
    names = daband.domains.load("synthetic", tiny=True).class_names
    assert (tmp_path / "questions.csv").read_text().splitlines()[1].split(",")[2] in names
    for options in ((), ("--no-data",)):
        exported = CliRunner().invoke(app, ["export", str(out), str(tmp_path / "market.daband"), *options])
        assert exported.exit_code == 0, exported.output
        deployed = daband.load_deployed(tmp_path / "market.daband")
        assert tuple(deployed.arm_names) == tuple(names)
    taken = tmp_path / "taken"
    taken.write_text("a file where the folder should be")
    refused = CliRunner().invoke(app, ["choose", str(settings), "--out", str(taken), "--device", "no-such-device"])
    assert "out" in str(refused.exception)  # before anything is trained: the device is not looked at
    assert "taken" in str(refused.exception)
    (out / "choice.json").write_text("{}")
    refused = CliRunner().invoke(app, ["export", str(out), str(tmp_path / "market.daband")])
    assert "does not name its pair" in str(refused.exception)


def test_the_command_asks_by_a_file_until_it_knows(tmp_path):
    settings = tmp_path / "mine.toml"
    settings.write_text('pair = "synthetic"\nepisodes = 2\nepisode_length = 16\npair_options = { tiny = true }\n')
    pair = daband.domains.load("synthetic", tiny=True)
    rewards, _ = pair.target_labelled.read_rewards(np.arange(len(pair.target)))
    out = tmp_path / "out"
    path = out / "questions.csv"
    for number in range(4):
        command = ["choose", str(settings), "--out", str(out), "--device", "cpu", "--budget", "40"]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        spent = json.loads((out / "choice.json").read_text())["rewards"]
        if "Fill in the column reward" not in done.output:
            break
        head, *lines = path.read_text().splitlines()
        assert spent < len(lines) <= 25 * (number + 1)
        rows = [line.split(",") for line in lines]
        place, arm = (head.split(",").index(name) for name in ("context", "arm"))
        filled = [",".join([*row[:-1], str(rewards[int(row[place]), int(row[arm])])]) for row in rows]
        path.write_text("\n".join([head, *filled]) + "\n")
    assert number > 0
    assert 0 < spent <= 40
    assert f"By {spent} target rewards: value" in done.output
    assert "Without these rewards: " in done.output
    assert " by rewards " in done.output  # the column that the winner won by
    assert daband.load(out / "policy.safetensors").rounds_learned == 32 + spent


def test_too_few_target_contexts_are_said_before_training():
    rows = np.random.default_rng(0).normal(size=(200, 3))
    pair = daband.domains.from_arrays(source=(rows, (rows[:, 0] > 0).astype(int)), target=rows[:1], n_arms=2)
    seen = []
    with pytest.raises(daband.InvalidInput, match="target has 1 context"):
        daband.choose(pair, progress=lambda *told: seen.append(told))
    assert not seen


@pytest.mark.parametrize(("rows", "expected"), [(2000, (62, 64)), (50_000, (125, 400))])
def test_a_large_table_is_shown_in_longer_episodes_so_that_steps_stay_as_many(rows, expected):
    contexts, labels = np.zeros((rows, 2)), np.arange(rows) % 3
    pair = daband.domains.from_arrays(source=(contexts, labels), source_test=None, target=contexts[:5])
    assert training_budget(pair, None, 64)[1:] == expected


def test_whoever_is_asked_sees_the_rows_of_the_table(tmp_path):
    generator = np.random.default_rng(0)
    age = generator.normal(40.0, 9.0, 400).round(1)
    table = pl.DataFrame({"customer": np.arange(400), "age": age, "offer": np.where(age > 40, "call", "mail")})
    columns = daband.domains.Columns(context=["age"], label="offer", id=["customer"])
    pair = daband.domains.from_table(source=table[:200], target=table[200:].drop("offer"), columns=columns)
    asked = []

    def reward_of(rows, arms):
        asked.append(rows["customer"][0])
        assert rows.columns == ["customer", "age"]
        assert age[rows["customer"][0]] == rows["age"][0]
        return [float(pair.class_names[arms[0]] == ("call" if rows["age"][0] > 40 else "mail"))]

    candidates = [Candidate("constant", "constant"), Candidate("linucb", "linucb", preferred=True)]
    choice = daband.choose(pair, candidates=candidates, episodes=2, ask=reward_of, budget=10)
    assert 0 < choice.rewards == len(asked)
    daband.audit(choice.policy, target=pair.target, budget=5, ask=reward_of)
    assert len(asked) == choice.rewards + 5
    plain = daband.domains.from_table(
        source=table[:200], target=table[200:].drop("offer"), columns=replace(columns, id=())
    )
    waiting = daband.choose(plain, candidates=candidates, episodes=2, budget=10, directory=tmp_path)
    head, first, *_ = waiting.questions.read_text().splitlines()
    assert head == "id,context,age,arm,arm_name,reward"
    assert float(first.split(",")[2]) in age[200:]
