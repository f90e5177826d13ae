"""Check policies: ``check_policy`` runs every function that is registered in ``POLICY_CHECKS``.

    from daband.checks import check_policy
    check_policy(lambda **settings: MyPolicy(**settings))

Each check takes a function that returns a new policy for given settings. A check that fails raises
an ``AssertionError`` that describes the problem. daband's tests run all checks on every registered
policy.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from daband.base._arrays import AnyArray, FloatArray
from daband.base._registry import Checks
from daband.errors import InvalidInput
from daband.linear._exploration import Decision, join_decisions
from daband.policies._checkpoints import load_policy
from daband.policies._policy import Policy
from daband.policies._settings import get_setting_defaults

#: The checks of a policy, in the order in which they run.
POLICY_CHECKS = Checks()
#: The return type of a function that reads a saved file.
FileContent = TypeVar("FileContent")

#: A function that returns a new policy, called with the keywords ``context_shape``, ``n_arms`` and
#: ``seed``, and with ``arms`` unless it is a class without that setting. The same arguments must
#: give the same policy.
MakePolicy: TypeAlias = Callable[..., Policy]

#: Shape of contexts in checks.
CONTEXT_SHAPE = (3,)
#: Number of arms in checks.
N_ARMS = 4


def _with_both_arm_models(check: Callable[[MakePolicy, str], None]) -> Callable[[MakePolicy], None]:
    """Register a check that is run with disjoint arms, and with shared arms if the policy supports
    them.
    """

    @functools.wraps(check)
    def check_both(make: MakePolicy) -> None:
        for arm_model in ("disjoint", "shared") if _offers_shared_arms(make) else ("disjoint",):
            check(make, arm_model)

    return POLICY_CHECKS.add(check_both)


def _offers_shared_arms(make: MakePolicy) -> bool:
    """Return True unless ``make`` is a class that has only disjoint arms."""
    if not isinstance(make, type):
        return True
    return getattr(make, "allows_shared_arms", True) and "arms" in get_setting_defaults(make)


def draw_contexts(
    rng: np.random.Generator, n_contexts: int, arm_model: str, n_arms: int = N_ARMS
) -> FloatArray:
    """Return contexts with uniform draws from [-1, 1]: (n_contexts, 3), or (n_contexts, n_arms, 3)
    for shared arms.

    ``arm_model`` is "disjoint" or "shared" in all functions of this module, as the setting ``arms``
    of a policy.
    """
    shape = (
        (n_contexts, *CONTEXT_SHAPE)
        if arm_model == "disjoint"
        else (n_contexts, n_arms, *CONTEXT_SHAPE)
    )
    return rng.uniform(-1.0, 1.0, shape)


def create_policy(make: MakePolicy, arm_model: str, seed: int = 0) -> Policy:
    """Return a policy that has learned nothing."""
    arm_settings = {"arms": arm_model} if _offers_shared_arms(make) else {}
    return make(context_shape=CONTEXT_SHAPE, n_arms=N_ARMS, seed=seed, **arm_settings)


def train_policy(make: MakePolicy, arm_model: str, seed: int = 0) -> Policy:
    """Return a policy that has played rounds, received late rewards, observed the target and
    adapted.
    """
    rng = np.random.default_rng(5)
    policy = create_policy(make, arm_model, seed)
    policy.play(draw_contexts(rng, 12, arm_model), rng.random((12, N_ARMS)))
    late_contexts = draw_contexts(rng, 5, arm_model)
    policy.update(
        late_contexts, policy.select(late_contexts).arm, rng.random(5), ids=["a", "b", 7, 8, 9]
    )
    for _ in range(9):  # single rounds, which may use other code
        single_context = draw_contexts(rng, 1, arm_model)
        policy.update(single_context, policy.select(single_context).arm, rng.random(1))
    policy.observe_target(draw_contexts(rng, 6, arm_model))
    policy.adapt(steps=2)
    return policy


def _read_saved(policy: Policy, read: Callable[[Path], FileContent]) -> FileContent:
    """Save a policy, and return what ``read`` returns for the path of its file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.safetensors"
        policy.save(path)
        return read(path)


def reload_policy(policy: Policy) -> Policy:
    """Return the policy after saving and loading."""
    return _read_saved(policy, load_policy)


def read_saved_bytes(policy: Policy) -> bytes:
    """Return the content of the file that a policy saves.

    Two policies with the same content are equal.
    """
    return _read_saved(policy, Path.read_bytes)


def assert_same(left: AnyArray, right: AnyArray, name: str) -> None:
    """Check that two arrays are exactly equal."""
    assert np.array_equal(left, right), f"{name} differ: {left} and {right}"


def assert_close_predictions(left: Decision, right: Decision, name: str) -> None:
    """Check that means and bonuses of two decisions are equal up to rounding."""
    assert_close(left.mean, right.mean, f"means of {name}")
    assert_close(left.bonus, right.bonus, f"bonuses of {name}")


def assert_close(left: AnyArray, right: AnyArray, name: str, *, rtol: float = 1e-6) -> None:
    """Check that two arrays are equal up to rounding."""
    largest_difference = float(np.max(np.abs(left - right)))
    assert np.allclose(left, right, rtol=rtol, atol=1e-8), (
        f"{name} differ by up to {largest_difference:g}"
    )


@_with_both_arm_models
def check_shapes_and_propensities(make: MakePolicy, arm_model: str) -> None:
    """Check that decisions have the documented shapes, valid arms, and propensities in (0, 1]."""
    policy = train_policy(make, arm_model)
    decision = policy.select(draw_contexts(np.random.default_rng(0), 7, arm_model))
    assert decision.arm.shape == (7,), decision.arm.shape
    assert decision.arm.dtype == np.int64, decision.arm.dtype
    assert decision.propensity.shape == (7,), decision.propensity.shape
    assert decision.mean.shape == decision.bonus.shape == (7, N_ARMS), (
        decision.mean.shape,
        decision.bonus.shape,
    )
    assert ((decision.arm >= 0) & (decision.arm < N_ARMS)).all(), decision.arm
    assert ((decision.propensity > 0) & (decision.propensity <= 1)).all(), decision.propensity
    assert np.isfinite([decision.mean, decision.bonus]).all()
    assert (decision.bonus >= 0).all()


@_with_both_arm_models
def check_same_seed_same_choices(make: MakePolicy, arm_model: str) -> None:
    """Check that two policies with the same seed make the same choices; seed 0 is a seed like any
    other.
    """
    contexts = draw_contexts(np.random.default_rng(1), 40, arm_model)
    for seed in (0, 3):
        first_policy = train_policy(make, arm_model, seed)
        second_policy = train_policy(make, arm_model, seed)
        assert_same(
            first_policy.select(contexts).arm, second_policy.select(contexts).arm, f"seed {seed}"
        )


@POLICY_CHECKS.add
def check_ties_follow_the_seed(make: MakePolicy) -> None:
    """Check that ties before learning depend on the seed: not always one arm, and not the same arms
    for all seeds.
    """
    contexts = draw_contexts(np.random.default_rng(2), 30, "disjoint")
    arms_by_seed = [
        create_policy(make, "disjoint", seed).decide(contexts, rule="greedy").arm
        for seed in range(4)
    ]
    for seed, arms in enumerate(arms_by_seed):
        remedy = "break ties by a draw from the seed and the round"
        assert len(np.unique(arms)) > 1, (
            f"seed {seed} gives every tied context to arm {arms[0]}; {remedy}"
        )
    assert any((arms_by_seed[0] != arms).any() for arms in arms_by_seed[1:]), (
        "seeds 0 to 3 break ties equally"
    )


@_with_both_arm_models
def check_decide_changes_nothing(make: MakePolicy, arm_model: str) -> None:
    """Check that ``decide`` does not change the policy."""
    policy = train_policy(make, arm_model)
    old_bytes = read_saved_bytes(policy)
    policy.decide(draw_contexts(np.random.default_rng(3), 9, arm_model), "target")
    assert read_saved_bytes(policy) == old_bytes, "decide changed the policy"


@_with_both_arm_models
def check_batch_equals_singles(make: MakePolicy, arm_model: str) -> None:
    """Check that selecting for a batch equals selecting for its contexts one by one."""
    for domain in ("source", "target"):
        contexts = draw_contexts(np.random.default_rng(4), 10, arm_model)
        batch_decision = train_policy(make, arm_model).select(contexts, domain)
        policy = train_policy(make, arm_model)
        single_decisions = [policy.select(contexts[row : row + 1], domain) for row in range(10)]
        joined_decision = join_decisions(single_decisions)
        assert_close_predictions(batch_decision, joined_decision, "a batch and its singles")
        assert_same(batch_decision.arm, joined_decision.arm, "arms")


@_with_both_arm_models
def check_saving_and_loading(make: MakePolicy, arm_model: str) -> None:
    """Check that a loaded policy continues exactly as the saved one, through more learning."""
    policy = train_policy(make, arm_model)
    loaded_policy = reload_policy(policy)
    assert type(loaded_policy) is type(policy)
    assert read_saved_bytes(loaded_policy) == read_saved_bytes(policy), (
        "saving a loaded policy gives another file"
    )
    rng = np.random.default_rng(10)
    contexts = draw_contexts(rng, 30, arm_model)
    rewards = rng.random((30, N_ARMS))
    decision = policy.play(contexts, rewards)
    loaded_decision = loaded_policy.play(contexts, rewards)
    policy.adapt(steps=2)
    loaded_policy.adapt(steps=2)
    assert_same(decision.arm, loaded_decision.arm, "arms after loading")
    assert_same(decision.mean, loaded_decision.mean, "means after loading")
    assert read_saved_bytes(loaded_policy) == read_saved_bytes(policy), (
        "the loaded policy learned differently"
    )


def check_policy(make: MakePolicy) -> None:
    """Run every check on a policy class.

    The first check that fails raises its error, usually an ``AssertionError``, with a note that
    states what the check requires.

    Args:
        make: a class or function that returns a new policy. It is called with the keyword arguments
            ``context_shape``, ``n_arms``, ``seed``, and ``arms`` if it accepts it.
    """
    if not callable(make):
        raise InvalidInput(
            f"make must be a class or function that returns a new policy, such as daband.LinUCB, got"
            f" {make!r}"
        )
    POLICY_CHECKS.run(make)
