"""What every policy must do. Each check takes a function that makes a fresh policy of given sizes.

    from daband.checks import check_policy
    check_policy(lambda **sizes: MyPolicy(**sizes))

A check raises ``AssertionError`` with what it saw. All run over every registered policy in daband's own tests.
"""

from __future__ import annotations

import copy
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from daband.arrays import AnyArray
from daband.checks.explained import run_checks
from daband.checks.policy_deployment import DEPLOYMENT_CHECKS
from daband.checks.policy_problems import (
    ARM_MODELS,
    N_ARMS,
    SHAPE,
    MakePolicy,
    assert_close,
    assert_refused,
    assert_same,
    experienced,
    fingerprint,
    fresh,
    random_contexts,
)
from daband.checks.policy_statistics import STATISTICS_CHECKS
from daband.errors import InvalidInput
from daband.policies import Policy, load_policy

__all__ = ["POLICY_CHECKS", "MakePolicy", "check_policy"]


def check_shapes_and_propensities(make: MakePolicy) -> None:
    """Decisions have the shapes they promise, arms within range, probabilities within (0, 1]."""
    rng = np.random.default_rng(0)
    for arms in ARM_MODELS:
        policy = experienced(make, arms)
        decision = policy.select(random_contexts(rng, 7, arms))
        assert decision.arm.shape == (7,), decision.arm.shape
        assert decision.arm.dtype == np.int64, decision.arm.dtype
        assert decision.propensity.shape == (7,), decision.propensity.shape
        assert decision.mean.shape == decision.width.shape == (7, N_ARMS), (decision.mean.shape, decision.width.shape)
        assert ((decision.arm >= 0) & (decision.arm < N_ARMS)).all(), decision.arm
        assert ((decision.propensity > 0) & (decision.propensity <= 1)).all(), decision.propensity
        assert np.isfinite(decision.mean).all()
        assert np.isfinite(decision.width).all()
        assert (decision.width >= 0).all()


def check_probabilities_of_every_arm(make: MakePolicy) -> None:
    """``probabilities`` is a distribution over the available arms, of which ``decide`` tells the chosen arm's share."""
    for arms in ARM_MODELS:
        contexts = random_contexts(np.random.default_rng(13), 9, arms)
        mask = np.array([True, False, True, True])
        for policy in (fresh(make, arms), experienced(make, arms)):
            before = fingerprint(policy)
            shares, decision = policy.probabilities(contexts, available=mask), policy.decide(contexts, available=mask)
            assert shares.shape == (9, N_ARMS), shares.shape
            assert (shares[:, ~mask] == 0).all(), "an arm that is not available has a probability"
            assert_close(shares.sum(axis=1), np.ones(9), "the sums of probabilities")
            assert_close(shares[np.arange(9), decision.arm], decision.propensity, "probabilities and propensities")
            assert fingerprint(policy) == before, "probabilities changed the policy"


def check_propensities_weigh_rounds(make: MakePolicy) -> None:
    """Even propensities teach what none teach; every offered way to use uneven ones leaves finite predictions."""
    for arms in ARM_MODELS:
        rng = np.random.default_rng(14)
        contexts, pulled, paid = random_contexts(rng, 24, arms), rng.integers(0, N_ARMS, 24), rng.random(24)
        without, even = fresh(make, arms), fresh(make, arms)
        without.update(contexts, pulled, paid)
        even.update(contexts, pulled, paid, propensity=np.full(24, 1 / N_ARMS))
        assert_close(without.decide(contexts).mean, even.decide(contexts).mean, "means")
        for weighting in even.propensity_weightings:
            policy = fresh(make, arms)
            policy.update(contexts, pulled, paid, propensity=rng.uniform(0.01, 1.0, 24), propensity_weighting=weighting)
            policy.observe_target(contexts)
            policy.adapt(steps=2)
            assert policy.rounds_learned == 24, policy.rounds_learned
            assert np.isfinite(policy.decide(contexts).mean).all(), weighting


def check_same_seed_same_choices(make: MakePolicy) -> None:
    """Two policies of one seed choose alike; seed 0 is a seed like any other."""
    for arms in ARM_MODELS:
        contexts = random_contexts(np.random.default_rng(1), 40, arms)
        for seed in (0, 3):
            first, second = experienced(make, arms, seed), experienced(make, arms, seed)
            assert_same(first.select(contexts).arm, second.select(contexts).arm, f"seed {seed}")


def check_ties_follow_the_seed(make: MakePolicy) -> None:
    """Before anything is learned, ties go by the seed: not always to the lowest arm, and not alike for all seeds."""
    contexts = random_contexts(np.random.default_rng(2), 30, "disjoint")
    choices = [fresh(make, "disjoint", seed).decide(contexts, rule="greedy").arm for seed in range(4)]
    for seed, arms in enumerate(choices):
        assert len(np.unique(arms)) > 1, (
            f"seed {seed} gives every tied context to arm {arms[0]}; break ties by a draw from the seed and the round"
        )
    assert any((choices[0] != other).any() for other in choices[1:]), "seeds 0 to 3 break every tie alike"


def check_decide_changes_nothing(make: MakePolicy) -> None:
    """``decide`` leaves the policy to the bit as it was."""
    for arms in ARM_MODELS:
        policy = experienced(make, arms)
        before = fingerprint(policy)
        policy.decide(random_contexts(np.random.default_rng(3), 9, arms), "target")
        assert fingerprint(policy) == before, "decide changed the policy"


def check_batch_equals_singles(make: MakePolicy) -> None:
    """Selecting a batch equals selecting its contexts one by one."""
    for arms in ARM_MODELS:
        for domain in ("source", "target"):
            contexts = random_contexts(np.random.default_rng(4), 10, arms)
            batch = experienced(make, arms).select(contexts, domain)
            one_by_one = experienced(make, arms)
            singles = [one_by_one.select(contexts[i : i + 1], domain) for i in range(10)]
            assert_close(batch.mean, np.concatenate([single.mean for single in singles]), "mean")
            assert_close(batch.width, np.concatenate([single.width for single in singles]), "width")
            assert_same(batch.arm, np.concatenate([single.arm for single in singles]), "arms")


def check_play_equals_rounds(make: MakePolicy) -> None:
    """``play`` makes the choices of ``select`` and ``update`` in turn."""
    for arms in ARM_MODELS:
        rng = np.random.default_rng(6)
        contexts, rewards = random_contexts(rng, 20, arms), rng.random((20, N_ARMS))
        mask = rng.random((20, N_ARMS)) < 0.7
        mask[np.arange(20), rng.integers(0, N_ARMS, 20)] = True
        played = experienced(make, arms).play(contexts, rewards, available=mask)
        policy = experienced(make, arms)
        for i in range(20):
            decision = policy.select(contexts[i : i + 1], available=mask[i])
            assert decision.arm[0] == played.arm[i], f"round {i}: {decision.arm[0]} by turns, {played.arm[i]} in play"
            assert abs(decision.propensity[0] - played.propensity[i]) < 1e-8
            policy.update(contexts[i : i + 1], decision.arm, rewards[i, decision.arm])


def check_masks_are_obeyed(make: MakePolicy) -> None:
    """An arm that is not available is never chosen; one arm left is chosen for certain."""
    for arms in ARM_MODELS:
        policy = experienced(make, arms)
        contexts = random_contexts(np.random.default_rng(7), 50, arms)
        assert (policy.select(contexts, available=[True, False, True, False]).arm % 2 == 0).all()
        only = policy.select(contexts, available=[False, False, True, False])
        assert (only.arm == 2).all()
        assert_close(only.propensity, np.ones(50), "propensity of the only arm")


def check_late_rewards_in_any_order(make: MakePolicy) -> None:
    """Rewards may come late, some not at all, one by one or together, and their order does not matter."""
    for arms in ARM_MODELS:
        rng = np.random.default_rng(8)
        contexts, pulled, paid = random_contexts(rng, 16, arms), rng.integers(0, N_ARMS, 16), rng.random(16)
        some = rng.permutation(16)[:11]
        at_once, by_turns = fresh(make, arms), fresh(make, arms)
        at_once.update(contexts[some], pulled[some], paid[some])
        for i in some[::-1]:
            by_turns.update(contexts[i : i + 1], pulled[i : i + 1], paid[i : i + 1])
        probe = random_contexts(rng, 5, arms)
        assert_close(at_once.decide(probe).mean, by_turns.decide(probe).mean, "mean")
        assert_close(at_once.decide(probe).width, by_turns.decide(probe).width, "width")


def check_round_ids_count_once(make: MakePolicy) -> None:
    """A second update for one round id is refused, in the same batch, later, and after reloading."""
    policy = experienced(make, "disjoint")
    contexts = random_contexts(np.random.default_rng(9), 2, "disjoint")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.safetensors"
        policy.save(path)
        for candidate in (policy, load_policy(path)):
            for ids in (["a", "new"], ["new", "new"], np.array([7, 100])):
                assert_refused(candidate, lambda p, ids=ids: p.update(contexts, [0, 1], [0.5, 0.5], ids=ids), "ids")  # type: ignore[misc]


def check_saving_and_loading(make: MakePolicy) -> None:
    """A loaded policy goes on exactly as the one that was saved, through more learning."""
    for arms in ARM_MODELS:
        policy = experienced(make, arms)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "policy.safetensors"
            policy.save(path)
            loaded = load_policy(path)
        assert type(loaded) is type(policy)
        assert fingerprint(loaded) == fingerprint(policy), "saving a loaded policy gives another file"
        rng = np.random.default_rng(10)
        contexts, rewards = random_contexts(rng, 30, arms), rng.random((30, N_ARMS))
        first, second = policy.play(contexts, rewards), loaded.play(contexts, rewards)
        policy.adapt(steps=2)
        loaded.adapt(steps=2)
        assert_same(first.arm, second.arm, "arms after loading")
        assert_same(first.mean, second.mean, "means after loading, to the bit")
        assert fingerprint(loaded) == fingerprint(policy), "the loaded policy learned otherwise"


def check_copies_learn_alike(make: MakePolicy) -> None:
    """A copy and an unpickled policy learn exactly as the original does, and independently of it."""
    for arms in ARM_MODELS:
        policy = experienced(make, arms)
        copies = [copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))]  # noqa: S301 - its own
        before = fingerprint(policy)
        after = []
        for some in (*copies, policy):
            assert fingerprint(some) == before, "a copy differs, or changed with another"
            rng = np.random.default_rng(11)
            some.play(random_contexts(rng, 6, arms), rng.random((6, N_ARMS)))
            some.adapt(steps=2)
            after.append(fingerprint(some))
        assert after[0] == after[1] == after[2], "a copy learned otherwise than the original"


def check_arms_can_be_added(make: MakePolicy) -> None:
    """A new arm can be chosen, learns, and leaves what the others know."""
    rng = np.random.default_rng(11)
    policy = experienced(make, "disjoint")
    contexts = random_contexts(rng, 8, "disjoint")
    before = policy.decide(contexts)
    assert policy.add_arm() == N_ARMS
    assert policy.n_arms == N_ARMS + 1
    after = policy.decide(contexts)
    assert_close(after.mean[:, :N_ARMS], before.mean, "means of the old arms")
    assert_close(after.width[:, :N_ARMS], before.width, "widths of the old arms")
    only = policy.select(contexts, available=[False] * N_ARMS + [True])
    assert (only.arm == N_ARMS).all()
    policy.update(contexts, only.arm, np.ones(8))
    shared = experienced(make, "shared")
    shared.add_arm()
    decision = shared.select(random_contexts(rng, 3, "shared", N_ARMS + 1))
    assert decision.mean.shape == (3, N_ARMS + 1)


def check_bad_input_changes_nothing(make: MakePolicy) -> None:
    """Bad input is refused with an error that names the argument, and the policy is to the bit as it was."""
    nan = float("nan")
    good = random_contexts(np.random.default_rng(12), 3, "disjoint")

    def spoiled(value: float) -> AnyArray:
        contexts = good.copy()
        contexts[1, 2] = value
        return contexts

    cases: list[tuple[str, Callable[[Policy], object]]] = [
        ("contexts", lambda p: p.select(spoiled(nan))),
        ("contexts", lambda p: p.select(spoiled(np.inf))),
        ("contexts", lambda p: p.select(spoiled(1e200))),
        ("contexts", lambda p: p.select(spoiled(nan).astype(np.float32))),
        ("contexts", lambda p: p.select(good[:, :2])),
        ("contexts", lambda p: p.select(good[0])),
        ("contexts", lambda p: p.select(good[:0])),
        ("contexts", lambda p: p.select([["x", "y", "z"]])),
        ("domain", lambda p: p.select(good, "elsewhere")),
        ("available", lambda p: p.select(good, available=[False] * N_ARMS)),
        ("available", lambda p: p.select(good, available=[True] * (N_ARMS + 1))),
        ("available", lambda p: p.select(good, available=[0, 1, 2, 1])),
        ("contexts", lambda p: p.update(spoiled(nan), [0, 1, 2], [0.0, 0.5, 1.0])),
        ("arm", lambda p: p.update(good, [0, 1, N_ARMS], [0.0, 0.5, 1.0])),
        ("arm", lambda p: p.update(good, [0, -1, 1], [0.0, 0.5, 1.0])),
        ("arm", lambda p: p.update(good, [0, 1], [0.0, 0.5, 1.0])),
        ("arm", lambda p: p.update(good, [0.5, 1.0, 1.0], [0.0, 0.5, 1.0])),
        ("reward", lambda p: p.update(good, [0, 1, 2], [0.0, nan, 1.0])),
        ("reward", lambda p: p.update(good, [0, 1, 2], [0.0, np.inf, 1.0])),
        ("reward", lambda p: p.update(good, [0, 1, 2], [0.0, 1.5, 1.0])),
        ("reward", lambda p: p.update(good, [0, 1, 2], [0.0, -0.5, 1.0])),
        ("reward", lambda p: p.update(good, [0, 1, 2], [0.0, 1.0])),
        ("propensity", lambda p: p.update(good, [0, 1, 2], [0.0, 0.5, 1.0], propensity=[0.5, 0.0, 1.0])),
        ("propensity", lambda p: p.update(good, [0, 1, 2], [0.0, 0.5, 1.0], propensity=[0.5, 1.5, 1.0])),
        ("propensity", lambda p: p.update(good, [0, 1, 2], [0.0, 0.5, 1.0], propensity=[0.5, nan, 1.0])),
        ("propensity", lambda p: p.update(good, [0, 1, 2], [0.0, 0.5, 1.0], propensity=[0.5, 1.0])),
        ("domain", lambda p: p.update(good, [0, 1, 2], [0.0, 0.5, 1.0], "nowhere")),
        ("ids", lambda p: p.update(good, [0, 1, 2], [0.0, 0.5, 1.0], ids=[1, 2])),
        ("ids", lambda p: p.update(good, [0, 1, 2], [0.0, 0.5, 1.0], ids=[1.5, 2.5, 3.5])),  # type: ignore[list-item]
        ("reward", lambda p: p.play(good, np.full((3, N_ARMS), 2.0))),
        ("reward", lambda p: p.play(good, np.full((3, N_ARMS + 1), 0.5))),
        ("contexts", lambda p: p.observe_target(spoiled(nan))),
        ("steps", lambda p: p.adapt(steps=-1)),
    ]
    policy = experienced(make, "disjoint")
    for name, call in cases:
        assert_refused(policy, call, name)


def check_bad_sizes_are_refused(make: MakePolicy) -> None:
    """A policy of no arms, of no dimensions, of an unknown arm model or a negative seed is refused by name."""
    good: dict[str, object] = {"context_shape": SHAPE, "n_arms": N_ARMS, "arms": "disjoint", "seed": 0}
    bad: dict[str, list[object]] = {
        "context_shape": [(), (0,), (-3,), (2.5,)],
        "n_arms": [0, -1, 2.5],
        "arms": ["joint"],
        "seed": [-1, 0.5],
    }
    for name, values in bad.items():
        for value in values:
            try:
                make(**{**good, name: value})  # type: ignore[arg-type]
            except InvalidInput as error:
                assert name in str(error), f"the error for {name}={value!r} does not name it: {error}"
            else:
                raise AssertionError(f"{name}={value!r} was accepted")


POLICY_CHECKS: tuple[Callable[[MakePolicy], None], ...] = (
    check_shapes_and_propensities,
    check_probabilities_of_every_arm,
    check_propensities_weigh_rounds,
    check_same_seed_same_choices,
    check_ties_follow_the_seed,
    check_decide_changes_nothing,
    check_batch_equals_singles,
    check_play_equals_rounds,
    check_masks_are_obeyed,
    check_late_rewards_in_any_order,
    check_round_ids_count_once,
    check_saving_and_loading,
    check_copies_learn_alike,
    check_arms_can_be_added,
    check_bad_input_changes_nothing,
    check_bad_sizes_are_refused,
    *DEPLOYMENT_CHECKS,
    *STATISTICS_CHECKS,
)


def check_policy(make: MakePolicy) -> None:
    """Run every check; the first that fails raises an error, mostly ``AssertionError``, with its rule as a note."""
    run_checks(POLICY_CHECKS, make)
