"""``daband.choose``: the rule on choices that are made up, and the whole on a tiny pair."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import daband
from daband.cli.main import app
from daband.trust import Candidate, default_candidates
from daband.trust.choice_rule import Ballot, chosen, estimates

N = 400


def _ballot(source_accuracy, target_accuracy, seed, *, members=2, n_arms=5, **kind):
    """Members that are right so often in each domain, and else choose anything, independently of each other."""
    draw = np.random.default_rng(seed)

    def arms(accuracy):
        right = draw.random((members, N)) < accuracy
        return np.where(right, 0, draw.integers(1, n_arms, size=(members, N)))

    source, target = arms(source_accuracy), arms(target_accuracy)
    return Ballot(source, (source == 0).astype(float), target, **kind)


def test_the_candidate_that_keeps_its_agreement_in_the_target_is_chosen():
    simple, adapted = _ballot(0.9, 0.4, 0), _ballot(0.9, 0.88, 1)
    place, values = chosen([simple, adapted])
    assert place == 1
    assert values[1] > values[0] + 0.1


def test_where_nothing_is_clearly_better_the_simpler_one_is_chosen():
    place, _ = chosen([_ballot(0.8, 0.8, 0), _ballot(0.8, 0.8, 1), _ballot(0.8, 0.8, 2)])
    assert place == 0


def test_the_best_source_value_wins_where_both_lose_alike():
    place, _ = chosen([_ballot(0.5, 0.5, 0), _ballot(0.8, 0.8, 1)])
    assert place == 1


def test_a_linear_candidate_is_judged_by_the_others_and_not_by_its_like():
    """Its members choose the same whether they are right or not."""
    alike = _ballot(0.9, 0.4, 0, members=1, seed_matters=False)
    linear = Ballot(
        *(np.repeat(part, 2, axis=0) for part in (alike.source_arm, alike.reward, alike.target_arm)), seed_matters=False
    )
    adapted = _ballot(0.9, 0.88, 1)
    place, values = chosen([linear, adapted])
    assert place == 1
    assert values[0] < 0.6


def test_a_constant_is_chosen_where_contexts_do_not_help():
    constant = _ballot(0.6, 0.6, 0, uses_contexts=False)
    assert chosen([constant, _ballot(0.6, 0.6, 1)])[0] == 0
    assert chosen([constant, _ballot(0.8, 0.7, 1)])[0] == 1
    assert chosen([constant])[0] == 0


def test_estimates_lie_in_the_unit_interval_and_do_not_see_the_order():
    ballots = [_ballot(0.9, 0.4, 0), _ballot(0.7, 0.6, 1), _ballot(0.3, 0.3, 2, uses_contexts=False)]
    values = estimates(ballots)
    assert ((values >= 0) & (values <= 1)).all()
    np.testing.assert_allclose(estimates(ballots[::-1])[::-1], values)


def test_of_a_log_only_the_rewards_of_the_candidates_own_choices_count():
    draw = np.random.default_rng(0)
    best, logged = draw.integers(0, 4, (2, N))
    reward = np.tile((logged == best).astype(float), (2, 1))  # what the log was paid, for whatever a candidate chooses

    def logged_ballot(arms, **kind):
        choices = np.tile(arms, (2, 1))
        return Ballot(choices, reward, choices, weight=np.where(choices == logged, 4.0, 0.0), **kind)

    constant, right = logged_ballot(np.zeros(N, int), uses_contexts=False), logged_ballot(best)
    assert right.source_value == 1.0
    assert constant.source_value < 0.5
    assert chosen([constant, right])[0] == 1
    never = Ballot(right.source_arm, reward, right.target_arm, weight=np.zeros_like(reward))
    assert (never.source_value, never.standard_error) == (0.0, np.inf)
    alike = Ballot(right.source_arm, reward, right.target_arm, weight=np.full_like(reward, 3.0))
    plain = Ballot(right.source_arm, reward, right.target_arm)
    assert alike.source_value == pytest.approx(plain.source_value)
    assert alike.standard_error == pytest.approx(plain.standard_error)


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
    with pytest.raises(daband.InvalidInput, match="members"):
        daband.choose(tiny, members=1)
    with pytest.raises(daband.InvalidInput, match="candidates"):
        daband.choose(tiny, candidates=["linucb"])


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
    assert (out / "assessment.json").exists()
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


def test_too_few_target_contexts_are_said_before_training():
    rows = np.random.default_rng(0).normal(size=(200, 3))
    pair = daband.domains.from_arrays(source=(rows, (rows[:, 0] > 0).astype(int)), target=rows[:1], n_arms=2)
    seen = []
    with pytest.raises(daband.InvalidInput, match="target has 1 context"):
        daband.choose(pair, progress=lambda *told: seen.append(told))
    assert not seen
