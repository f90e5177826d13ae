"""Candidates trained in a folder: resumed after Ctrl-C, the same ones once, with the time left by
what each takes.
"""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import daband
from daband.training._candidates import train_candidates
from daband.training._trainer import Trainer
from daband.trust import Candidate

LINEAR = [
    Candidate("constant", "constant"),
    Candidate("linucb", "linucb"),
    Candidate("linucb-p", "linucb-p"),
    Candidate("few", "linucb-p", components=2),
]


@pytest.fixture
def pair():
    return daband.domains.load("synthetic", tiny=True)


def means(policies, pair):
    x = pair.target.batch(0, 20, seed=0)
    return [policy.decide(x, "target").mean for policy in policies]


def test_each_is_trained_as_alone(pair, tmp_path):
    policies = train_candidates(
        pair, LINEAR, seed=3, episodes=4, episode_length=16, directory=tmp_path
    )
    assert [policy.seed for policy in policies] == [3] * 4
    assert len(list(tmp_path.glob("*/policy.safetensors"))) == 4
    for candidate, policy in zip(LINEAR, policies, strict=True):
        alone = candidate.build(pair, seed=3)
        daband.train(alone, source=pair.source, target=pair.target, episodes=4, episode_length=16)
        x = pair.target.batch(0, 20, seed=0)
        np.testing.assert_array_equal(
            policy.decide(x, "target").mean, alone.decide(x, "target").mean
        )


def test_the_time_left_knows_slow_candidates_from_fast(pair, monkeypatch):
    now = 0.0
    slow = {"constant": 1.0, "few": 100.0}
    real = Trainer.play_episode

    def step(trainer):
        nonlocal now
        now += slow["few" if trainer.policy.transform is not None else "constant"]
        real(trainer)

    monkeypatch.setattr(Trainer, "play_episode", step)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    seen = []
    train_candidates(
        pair,
        [LINEAR[3], LINEAR[0]],
        seed=0,
        episodes=5,
        episode_length=16,
        progress=seen.append,
    )
    assert [one.candidate for one in seen[:6]] == [
        "few",
        "constant",
        "few",
        "constant",
        "constant",
        "constant",
    ]
    assert [one.seconds_left for one in seen[:3]] == [None, None, None]
    assert seen[3].seconds_left == pytest.approx(3 * 1 + 3 * 100)
    assert seen[-1].seconds_left == 0
    assert seen[-1].fraction == 1
    assert seen[-1].policies_done == seen[-1].policies == 2


SCRIPT = """
import collections, sys, time
import daband
from daband.training._candidates import train_candidates
from daband.trust import Candidate
pair = daband.domains.load("synthetic", tiny=True)
episodes = collections.Counter()
def tell(now):
    episodes[now.candidate] += 1
    print(now.candidate, episodes[now.candidate], flush=True)
    time.sleep(0.1)
candidates = [Candidate(name, name) for name in ("constant", "linucb")]
train_candidates(pair, candidates, seed=0, episodes=8, episode_length=16, directory=sys.argv[1], progress=tell)
"""


@pytest.mark.slow
def test_interrupted_it_saves_all_of_them_and_goes_on(pair, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "cut")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    while process.stdout.readline() != "constant 5\n":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode != 0
    episodes = {
        path.parent.name: len(path.read_text().splitlines())
        for path in (tmp_path / "cut").glob("*/episodes.jsonl")
    }
    assert episodes["0-constant-0"] >= 5
    assert episodes["1-linucb-0"] >= 2  # two of each first, and all of them are saved
    settings = {"seed": 0, "episodes": 8, "episode_length": 16}
    seen = []
    again = train_candidates(
        pair, LINEAR[:2], **settings, directory=tmp_path / "cut", progress=seen.append
    )
    assert len(seen) == 2 * 8 - sum(episodes.values())
    np.testing.assert_array_equal(
        means(again, pair), means(train_candidates(pair, LINEAR[:2], **settings), pair)
    )
    seen.clear()
    train_candidates(pair, LINEAR[:2], **settings, directory=tmp_path / "cut", progress=seen.append)
    assert seen == []  # all of it is read


def test_without_episodes_a_small_source_is_shown_again():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3))
    y = rng.integers(0, 2, 50)
    pair = daband.domains.from_arrays(
        source=(x, y), target=x + 1, source_test=0.1, feedback="bandit"
    )
    policy = daband.LinUCB.for_pair(pair, seed=0)
    run = daband.train(policy, source=pair.source, target=pair.target)
    assert run.rounds == 192
    assert run.note == "the source's 45 contexts are shown 5 times: 192 rounds"
    assert run.note in repr(run)
    log = daband.domains.from_log(
        source=(x, y, np.ones(50), np.full(50, 0.5)), target=x + 1, n_arms=2, source_test=None
    )
    run = daband.train(daband.LinUCB.for_pair(log, seed=0), source=log.source)
    assert (run.rounds, run.note) == (50, "each of the source's 50 contexts is shown once")
    choice = daband.choose(pair, candidates=LINEAR[:2])
    assert choice.candidate in ("constant", "linucb")


def test_without_episodes_all_rounds_of_a_log_are_learned(tmp_path):
    rng = np.random.default_rng(0)
    n = 20_001  # more than 300 episodes of 64 rounds, and not a multiple of an episode
    rounds = rng.normal(size=(n, 2)), rng.integers(0, 2, n), rng.random(n), np.full(n, 0.5)
    pair = daband.domains.from_log(source=rounds, target=rounds[0], n_arms=2, source_test=None)
    trained, updated = (daband.LinUCB(context_shape=(2,), n_arms=2) for _ in range(2))
    run = daband.train(trained, source=pair.source, target=pair.target, directory=tmp_path / "run")
    updated.update(*rounds[:3], propensities=rounds[3])
    assert run.rounds == trained.rounds_learned == n
    assert len(run.episodes) <= 300
    np.testing.assert_allclose(
        trained.decide(rounds[0][:9]).mean, updated.decide(rounds[0][:9]).mean, atol=1e-9
    )


def test_candidates_learn_all_rounds_of_a_log():
    rng = np.random.default_rng(0)
    rounds = rng.normal(size=(997, 2)), rng.integers(0, 2, 997), rng.random(997), np.full(997, 0.5)
    pair = daband.domains.from_log(source=rounds, target=rounds[0], n_arms=2, source_test=0.1)
    choice = daband.choose(pair, candidates=LINEAR[:1])
    assert choice.policy.rounds_learned == len(pair.source) > 890
