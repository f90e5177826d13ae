"""Build pairs whose source is a simulator with the gymnasium interface (``from_gymnasium``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from daband.base._arguments import check_int
from daband.base._arrays import AnyArray, ArrayLike, FloatArray
from daband.domains._contract import Pair
from daband.domains.readers._arrays import from_arrays
from daband.errors import InvalidInput

#: How to make a bandit of an environment with longer episodes.
_ONE_STEP = (
    "a bandit is rewarded once per context and arm, so wrap the environment such that a step runs"
    " the whole episode and returns its total reward"
)


def from_gymnasium(
    env: Any,
    target_contexts: ArrayLike | Any,
    *,
    rounds: int = 1000,
    target_test: Any = None,
    seed: int = 0,
    name: str = "gymnasium",
    **options: Any,
) -> Pair:
    """Return a pair whose source is a simulator: a gymnasium environment with discrete actions.

    Args:
        env: the environment (``gymnasium.Env``) or its id. The actions are the arms, the
            observations the contexts. An observation that is not an array is flattened by
            ``gymnasium.spaces.flatten``. Episodes must have one step. The environment is reset once
            per context and arm with the same seed, so that the reward of every arm is known.
        target_contexts: contexts of the target, (m, *C); or another environment, such as a real
            robot, which is reset ``rounds`` times without taking actions.
        rounds: the number of source contexts.
        target_test: target contexts with labels or rewards (t, K) for the evaluator; or an
            environment, in which every arm is tried ``rounds`` times.
        seed: the first seed of ``env.reset``. A reset for source round i = 0, 1, ... has ``seed +
            i``.
        name: the pair's name in reports.
        options: further arguments of ``from_arrays``.

    Rewards must depend on the arm. It is an error if all of them are equal.

    >>> import gymnasium
    >>> class Guess(gymnasium.Env):
    ...     observation_space, action_space = gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(3)
    ...     def reset(self, *, seed=None, options=None):
    ...         super().reset(seed=seed)
    ...         self.number = int(self.np_random.integers(3))
    ...         return self.number, {}
    ...     def step(self, action):
    ...         return self.number, float(action == self.number), True, False, {}
    >>> pair = daband.domains.from_gymnasium(Guess(), Guess(), rounds=40)
    >>> pair.context_shape, pair.n_arms, len(pair.source) + len(pair.source_test)
    ((3,), 3, 40)
    """
    n_rounds = check_int("rounds", rounds, minimum=2)
    seed = check_int("seed", seed, minimum=0)
    source_env, n_arms = _open_environment(env, "env")
    if hasattr(target_contexts, "reset") or isinstance(target_contexts, str):
        target_env, _ = _open_environment(target_contexts, "target_contexts")
        target_seeds = range(seed + n_rounds, seed + 2 * n_rounds)
        target_contexts = np.stack(
            [_reset(target_env, target_seed) for target_seed in target_seeds]
        )
    if hasattr(target_test, "reset") or isinstance(target_test, str):
        test_env, n_test_arms = _open_environment(target_test, "target_test")
        if n_test_arms != n_arms:
            raise InvalidInput(f"target_test has {n_test_arms} actions, but env has {n_arms}")
        target_test = _try_every_arm(
            test_env, n_arms, range(seed + 2 * n_rounds, seed + 3 * n_rounds)
        )
    return from_arrays(
        source=_try_every_arm(source_env, n_arms, range(seed, seed + n_rounds)),
        target=target_contexts,
        target_test=target_test,
        n_arms=n_arms,
        name=name,
        **options,
    )


def _open_environment(env: Any, argument: str) -> tuple[Any, int]:
    """Return an environment and its number of actions. ``argument`` is its name in error
    messages.
    """
    try:
        import gymnasium
    except ModuleNotFoundError:
        raise InvalidInput(
            "from_gymnasium needs gymnasium: pip install 'daband[gymnasium]'"
        ) from None
    environment = gymnasium.make(env) if isinstance(env, str) else env
    action_space = getattr(environment, "action_space", None)
    if not isinstance(action_space, gymnasium.spaces.Discrete):
        raise InvalidInput(
            f"{argument} must be an environment with a Discrete action space, got {action_space!r}"
        )
    return environment, int(action_space.n)


def _as_context(env: Any, observation: Any) -> AnyArray:
    """Return an observation as an array, flattened unless the observation space is a ``Box``."""
    from gymnasium.spaces import Box, flatten

    space = env.observation_space
    return np.array(observation if isinstance(space, Box) else flatten(space, observation))


def _reset(env: Any, seed: int) -> AnyArray:
    """Reset an environment with this seed. Return its first context, (*C)."""
    return _as_context(env, env.reset(seed=seed)[0])


def _try_every_arm(env: Any, n_arms: int, seeds: range) -> tuple[AnyArray, FloatArray]:
    """Return contexts (n, *C), one per seed, and the reward of every arm (n, K)."""
    rewards: FloatArray = np.empty((len(seeds), n_arms))
    contexts = np.stack([_reset(env, seed) for seed in seeds])
    for row, arm in np.ndindex(rewards.shape):
        if not np.array_equal(_reset(env, seeds[row]), contexts[row]):
            raise InvalidInput(
                f"env.reset(seed={seeds[row]}) gives different observations, so arms cannot be"
                " compared; draw random numbers from env.np_random only"
            )
        _, rewards[row, arm], terminated, truncated, _ = env.step(int(env.action_space.start) + arm)
        if not (terminated or truncated):
            raise InvalidInput(
                f"env must have episodes of one step, but the episode of seed {seeds[row]} continues"
                f" after arm {arm}; {_ONE_STEP}"
            )
    if (rewards == rewards.flat[0]).all():
        raise InvalidInput(
            f"env must have rewards that depend on the arm, but each of {rewards.size:,} rewards is"
            f" {rewards.flat[0]}; {_ONE_STEP}"
        )
    return contexts, rewards
