"""A source that is known in full is learned in full, and feedback="bandit" plays it."""

import numpy as np
import polars as pl
import pytest

import daband
from daband.errors import InvalidInput
from daband.trust import default_candidates

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(200, 3))
Y = (X[:, 0] > 0).astype(int)


def make_pair(**changed):
    return daband.domains.from_arrays(**{"source": (X, Y), "target": X + 0.1, **changed})


def test_labels_are_full_feedback_and_data_sets_are_played():
    assert make_pair().full_feedback
    assert make_pair(source_test=None).full_feedback
    assert make_pair(source=(X, DRAW.random((200, 2)))).full_feedback
    assert not make_pair(feedback="bandit").full_feedback
    assert not daband.domains.load("synthetic", tiny=True).full_feedback
    several = daband.domains.from_arrays(
        sources={"de": (X, Y), "fr": (X, Y)}, targets={"pl": X}, feedback="bandit"
    )
    assert not several.full_feedback
    with pytest.raises(InvalidInput, match="feedback"):
        make_pair(feedback="one_hot")


def test_tables_state_their_feedback():
    table = pl.DataFrame({"x": X[:, 0], "y": Y, "reward": Y.astype(float), "p": 0.5})
    label = daband.domains.Columns(context=["x"], label="y")
    log = daband.domains.Columns(context=["x"], arm="y", reward="reward", propensity="p")
    arguments = {"source": table, "target": table.select("x")}
    assert daband.domains.from_table(**arguments, columns=label).full_feedback
    assert not daband.domains.from_table(
        **arguments, columns=label, feedback="bandit"
    ).full_feedback
    assert not daband.domains.from_table(**arguments, columns=log).full_feedback
    with pytest.raises(InvalidInput, match="feedback"):
        daband.domains.from_table(**arguments, columns=log, feedback="full")


def test_all_rewards_of_every_row_are_learned_once():
    pair = make_pair()
    policy = daband.LinUCB.for_pair(pair, seed=0)
    run = daband.train(policy, source=pair.source, target=pair.target, episodes=2)
    assert run.rounds == len(pair.source) == 180
    assert policy.counts.tolist() == [180, 180]
    assert np.isnan(run.total_regret)


def test_bandit_feedback_is_played():
    pair = make_pair(feedback="bandit")
    policy = daband.LinUCB.for_pair(pair, seed=0)
    run = daband.train(
        policy, source=pair.source, target=pair.target, episodes=2, episode_length=32
    )
    assert run.rounds == policy.counts.sum() == 64
    assert run.total_regret >= 0.0


def test_several_sources_are_learned_in_full():
    pair = daband.domains.from_arrays(
        sources={"de": (X, Y), "fr": (X + 1, Y)}, targets={"pl": X + 0.1}
    )
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target)
    assert policy.counts.tolist() == [360, 360]


def test_the_default_of_full_feedback_is_supervised():
    names = [candidate.name for candidate in default_candidates(make_pair())]
    assert names == ["constant", "linucb", "supervised", "supervised, other units"]
    names = [candidate.name for candidate in default_candidates(make_pair(shift="covariate"))]
    assert names == ["constant", "linucb", "supervised"]
    played = default_candidates(make_pair(feedback="bandit"))
    assert next(candidate.name for candidate in played if candidate.preferred) == "mixture"


def test_each_of_a_few_arms_is_a_candidate_if_its_rewards_are_known():
    rewards = DRAW.random((200, 3)) + np.array([0.0, 0.5, 0.0])
    names = [one.name for one in default_candidates(make_pair(source=(X, rewards)))]
    assert names[-2:] == ["always 0", "always 2"]
    many = DRAW.random((200, 6))
    names = [one.name for one in default_candidates(make_pair(source=(X, many)))]
    assert not any(name.startswith("always") for name in names)


def test_target_rewards_choose_another_single_arm():
    """Arm 1 is the best in the source, and arm 0 in the target, whatever the context."""
    noise = DRAW.normal(size=(200, 2)) / 5
    pair = make_pair(source=(X, noise + np.array([0.0, 1.0])), shift="covariate")
    choice = daband.choose(pair, budget=40, ask=lambda _, arms: 1.0 - arms)
    assert (choice.candidate, choice.assessment.verdict) == ("always 0", "deploy")
    assert choice.assessment.incumbent_arm == 1
    assert set(choice.policy.select(X).arm.tolist()) == {0}


def test_choose_learns_labels_in_full(tmp_path):
    pair = make_pair(shift="covariate", target_test=(X + 0.1, (X[:, 0] + 0.1 > 0.1).astype(int)))
    choice = daband.choose(pair, directory=tmp_path)
    assert choice.candidate == "supervised"
    assert isinstance(choice.policy, daband.Supervised)
    assert choice.policy.rounds_learned == 180
    assert daband.evaluate(choice.policy, pair.target_test).accuracy > 0.9
    again = daband.choose(pair, directory=tmp_path)
    assert again.table == choice.table
