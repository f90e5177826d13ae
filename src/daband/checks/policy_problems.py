"""Small problems, and what the checks of policies have in common."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from daband.arguments import RewardRange
from daband.arrays import AnyArray, FloatArray
from daband.errors import InvalidInput
from daband.policies import Policy, load_policy

__all__ = [
    "ARM_MODELS",
    "N_ARMS",
    "SHAPE",
    "MakePolicy",
    "assert_close",
    "assert_refused",
    "assert_same",
    "experienced",
    "fingerprint",
    "fresh",
    "random_contexts",
    "reloaded",
]


class MakePolicy(Protocol):
    """Makes a fresh policy; the same sizes and seed make the same policy."""

    def __call__(
        self,
        *,
        context_shape: tuple[int, ...],
        n_arms: int,
        arms: str,
        seed: int,
        reward_range: RewardRange = (0.0, 1.0),
    ) -> Policy:
        """A policy of these sizes."""


SHAPE = (3,)
N_ARMS = 4
ARM_MODELS = ("disjoint", "shared")


def random_contexts(rng: np.random.Generator, n: int, arms: str, n_arms: int = N_ARMS) -> FloatArray:
    """Even draws from [-1, 1]: (n, 3), or (n, n_arms, 3) for shared arms."""
    shape = (n, *SHAPE) if arms == "disjoint" else (n, n_arms, *SHAPE)
    return rng.uniform(-1.0, 1.0, shape)


def fresh(make: MakePolicy, arms: str, seed: int = 0, reward_range: RewardRange = (0.0, 1.0)) -> Policy:
    """A policy that has seen nothing."""
    return make(context_shape=SHAPE, n_arms=N_ARMS, arms=arms, seed=seed, reward_range=reward_range)


def experienced(make: MakePolicy, arms: str, seed: int = 0) -> Policy:
    """A policy that has played, been told late rewards, seen the target and adapted."""
    rng = np.random.default_rng(5)
    policy = fresh(make, arms, seed)
    policy.play(random_contexts(rng, 12, arms), rng.random((12, N_ARMS)))
    late = random_contexts(rng, 5, arms)
    policy.update(late, policy.select(late).arm, rng.random(5), ids=["a", "b", 7, 8, 9])
    for _ in range(9):  # and round by round, which may take another way through the code
        single = random_contexts(rng, 1, arms)
        policy.update(single, policy.select(single).arm, rng.random(1))
    policy.observe_target(random_contexts(rng, 6, arms))
    policy.adapt(steps=2)
    return policy


def reloaded(policy: Policy) -> Policy:
    """The policy after saving and loading."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.safetensors"
        policy.save(path)
        return load_policy(path)


def fingerprint(policy: Policy) -> dict[str, bytes]:
    """Everything that a policy would save."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.safetensors"
        policy.save(path)
        return {"file": path.read_bytes()}


def assert_refused(policy: Policy, call: Callable[[Policy], object], name: str) -> None:
    """``call`` raises an error that names ``name`` and leaves the policy as it was, to the bit."""
    before = fingerprint(policy)
    try:
        call(policy)
    except InvalidInput as error:
        assert name in str(error), f"the error does not name {name!r}: {error}"
    else:
        raise AssertionError(f"bad {name} was accepted")
    assert fingerprint(policy) == before, f"the policy changed although {name} was refused"


def assert_same(left: AnyArray, right: AnyArray, what: str) -> None:
    """Two arrays are equal to the bit."""
    assert np.array_equal(left, right), f"{what} differ: {left} and {right}"


def assert_close(left: AnyArray, right: AnyArray, what: str) -> None:
    """Two arrays are equal up to rounding."""
    worst = float(np.max(np.abs(left - right)))
    assert np.allclose(left, right, rtol=1e-6, atol=1e-8), f"{what} differ by up to {worst:g}"
