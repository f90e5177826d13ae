"""Environments of gymnasium as sources: every arm from one seed, and targets that are only reset."""

import numpy as np
import pytest

import daband
from daband.errors import InvalidInput
from tests.leaks import check_pair

gymnasium = pytest.importorskip("gymnasium")


class Match(gymnasium.Env):
    """The reward is 1 for the action whose feature is largest, plus noise; actions start at 3."""

    def __init__(self, centre=0.0, *, seeded=True):
        self.centre = centre
        self.seeded = seeded
        self.steps = 0
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
        self.action_space = gymnasium.spaces.Discrete(3, start=3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed if self.seeded else None)
        self.features = self.np_random.normal(self.centre, 1.0, 3)
        return self.features, {}

    def step(self, action):
        self.steps += 1
        reward = float(self.features.argmax() == action - 3) + 0.1 * self.np_random.normal()
        return self.features, reward, True, False, {}


def test_every_arm_is_tried_in_the_source_and_none_in_the_target():
    simulator = Match()
    robot = Match(1.0)
    pair = daband.domains.from_gymnasium(simulator, robot, rounds=60, source_test=None)
    assert (simulator.steps, robot.steps) == (180, 0)
    rounds = pair.source.read_rounds(np.arange(60))
    assert (rounds.rewards.argmax(axis=1) == rounds.contexts.argmax(axis=1)).all()
    assert pair.target.read(np.arange(60)).mean() > 0.7
    np.testing.assert_array_equal(rounds.contexts[4], Match().reset(seed=4)[0])
    check_pair(pair)


def test_a_policy_of_the_simulator_is_evaluated_in_the_target():
    pair = daband.domains.from_gymnasium(
        Match(), Match(1.0), target_test=Match(1.0), rounds=200, passes=5
    )
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=12)
    assert daband.evaluate(policy, pair.target_test).value > 0.8


class Guess(gymnasium.Env):
    """The observation is one of four numbers, and the reward of the action with this number is
    ``reward``, that of others 0.
    """

    observation_space = gymnasium.spaces.Discrete(4)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, reward=1.0):
        self.reward = reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(4))
        return self.number, {}

    def step(self, action):
        return self.number, self.reward * (action == self.number), True, False, {}


def test_discrete_observations_become_vectors():
    pair = daband.domains.from_gymnasium(Guess(), Guess(), rounds=40, source_test=None)
    rounds = pair.source.read_rounds(np.arange(40))
    assert rounds.contexts.shape == (40, 4)
    np.testing.assert_array_equal(rounds.contexts, rounds.rewards)


@pytest.mark.parametrize(
    ("env", "given", "message"),
    [
        ("Pendulum-v1", {}, "env must be an environment with a Discrete action space, got Box"),
        (Match(seeded=False), {}, "different observations"),
        (Match(), {"target_test": "CartPole-v1"}, "target_test has 2 actions, but env has 3"),
        ("CartPole-v1", {}, "episodes of one step.*wrap the environment"),
        (Guess(0.0), {}, "each of 16 rewards is 0.0"),
    ],
)
def test_unsuitable_environments_are_rejected(env, given, message):
    with pytest.raises(InvalidInput, match=message):
        daband.domains.from_gymnasium(env, np.zeros((5, 3)), rounds=4, **given)
