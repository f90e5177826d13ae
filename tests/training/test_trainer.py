import numpy as np
import pytest

import daband
from daband.errors import InvalidInput
from daband.rounds._rounds import Rounds


@pytest.fixture
def pair():
    return daband.domains.load("synthetic", tiny=True)


def make(pair, **settings):
    return daband.LinUCB(
        context_shape=pair.context_shape, n_arms=pair.n_arms, alpha=0.3, **settings
    )


def test_the_loop_equals_rounds_by_hand(pair):
    run = daband.train(
        make(pair), source=pair.source, target=pair.target, episodes=3, episode_length=20, seed=4
    )
    policy = make(pair)
    rounds = pair.source.rounds(0, 60, seed=4)
    for i in range(60):
        decision = policy.select(rounds.contexts[i : i + 1])
        assert decision.arm[0] == run.arm[i]
        assert rounds.rewards[i, decision.arm[0]] == run.reward[i]
        policy.update(rounds.contexts[i : i + 1], decision.arm, rounds.rewards[i, decision.arm])
    assert run.rounds == 60
    np.testing.assert_allclose(run.total_regret, rounds.regret(run.arm).sum())
    assert run.episodes[-1]["regret"] == pytest.approx(run.total_regret)


def test_methods_of_one_seed_see_the_same_rounds(pair):
    def contexts_of(policy):
        seen = []
        inner = policy._play
        policy._play = lambda contexts, *rest: (
            seen.append(contexts.copy()),
            inner(contexts, *rest),
        )[1]
        daband.train(policy, source=pair.source, episodes=2, episode_length=10, seed=1)
        return np.concatenate(seen)

    random = daband.Random(context_shape=pair.context_shape, n_arms=pair.n_arms)
    np.testing.assert_array_equal(contexts_of(make(pair)), contexts_of(random))


def test_a_target_of_fewer_contexts_is_shown_as_far_as_it_goes(pair, monkeypatch):
    contexts = pair.target.batch(0, 25, seed=0)
    target = daband.domains.from_arrays(
        source=(contexts, np.arange(25) % 2),
        target=contexts,
        target_test=(contexts, np.arange(25) % 2),
    ).target
    policy = make(pair)
    seen = []
    monkeypatch.setattr(policy, "observe_target", lambda batch, domain: seen.append(len(batch)))
    run = daband.train(policy, source=pair.source, target=target, episodes=4, episode_length=10)
    assert run.rounds == 40
    assert seen == [10, 10, 5]


def test_a_log_trains_a_policy(pair):
    rounds = pair.source.rounds(0, 40, seed=0)
    arms = np.random.default_rng(0).integers(0, pair.n_arms, 40)

    class Log(daband.domains.LoggedDomain):
        context_shape = pair.context_shape
        n_arms = pair.n_arms

        def __len__(self):
            return 40

        def read_rounds(self, indices):
            played = arms[indices]
            paid = rounds.rewards[indices, played]
            return Rounds(
                rounds.contexts[indices], played, paid, np.full(len(indices), 1 / pair.n_arms)
            )

    policy = make(pair)
    same = make(pair)
    run = daband.train(policy, source=Log(), episodes=4, episode_length=10)
    same.update(rounds.contexts, arms, rounds.chosen_rewards(arms))
    probe = pair.target.batch(0, 9, seed=0)
    np.testing.assert_allclose(policy.decide(probe).mean, same.decide(probe).mean, rtol=1e-8)
    assert np.isnan(run.total_regret)
    assert run.episodes[0]["regret"] is None
    # rounds that count twice would make noise significant
    with pytest.raises(InvalidInput, match=r"log .*40"):
        daband.train(make(pair), source=Log(), episodes=5, episode_length=10)


class TestBadInput:
    def test_target_rewards_cannot_be_given(self, pair):
        for wrong in (pair.target_test, pair.source, pair.target_labelled):
            if wrong is None:
                continue
            with pytest.raises(InvalidInput, match=f"target .*{type(wrong).__name__}"):
                daband.train(make(pair), source=pair.source, target=wrong, episodes=1)

    def test_a_run_prints_what_it_is_in_a_line(self, pair):
        run = daband.train(make(pair), source=pair.source, episodes=2, episode_length=8)
        assert repr(run).startswith(
            f"<Run of 16 rounds in 2 episodes: mean reward {run.reward.mean():.4g}"
        )
        assert len(repr(run)) < 120

    @pytest.mark.parametrize("name", ["episodes", "episode_length"])
    @pytest.mark.parametrize("value", [0, -1, 2.5])
    def test_budget(self, pair, name, value):
        with pytest.raises(InvalidInput, match=name):
            daband.train(make(pair), source=pair.source, **{name: value})

    def test_shapes_and_arms(self, pair):
        wrong = daband.LinUCB(context_shape=(99,), n_arms=pair.n_arms)
        with pytest.raises(InvalidInput, match=r"source .*\(99,\), .*\(8,\)"):
            daband.train(wrong, source=pair.source, episodes=1)
        wrong = daband.LinUCB(context_shape=pair.context_shape, n_arms=99)
        with pytest.raises(InvalidInput, match="arms"):
            daband.train(wrong, source=pair.source, episodes=1)


class TestContinuing:
    def test_target_rewards_are_learned_on_top_of_the_source(self, pair):
        policy = make(pair)
        daband.train(policy, source=pair.source, episodes=3, episode_length=20)
        before = policy.counts.sum()
        run = daband.continue_on_target(
            policy, target=pair.target_labelled, rounds=50, episode_length=20, seed=1
        )
        assert run.rounds == 50
        assert len(run.episodes) == 3
        assert policy.counts.sum() == before + 50  # A and b of the source are kept and go on
        rounds = pair.target_labelled.rounds(0, 50, seed=1)
        np.testing.assert_allclose(run.total_regret, rounds.regret(run.arm).sum())

    def test_it_stops_where_the_contexts_end(self, pair):
        run = daband.continue_on_target(
            make(pair), target=pair.target_labelled, rounds=10**6, episode_length=16
        )
        assert run.rounds == len(pair.target_labelled)

    def test_a_head_start_shows(self, pair):
        cold = daband.continue_on_target(make(pair), target=pair.target_labelled, rounds=60)
        warm = make(pair)
        warm.update(*_first_rounds(pair.target_labelled, 200), domain="target")
        assert (
            daband.continue_on_target(warm, target=pair.target_labelled, rounds=60).total_regret
            < cold.total_regret
        )

    def test_bad_input(self, pair):
        with pytest.raises(InvalidInput, match=r"target .*pair\.target_labelled, .*ArrayContexts"):
            daband.continue_on_target(make(pair), target=pair.target)
        with pytest.raises(InvalidInput, match="rounds"):
            daband.continue_on_target(make(pair), target=pair.target_labelled, rounds=0)


def _first_rounds(domain, n):
    n = min(n, len(domain))
    rounds = domain.rounds(0, n, seed=99)
    arms = np.arange(n) % domain.n_arms
    return rounds.contexts, arms, rounds.chosen_rewards(arms)
