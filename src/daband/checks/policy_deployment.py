"""What a policy must do in production: rewards in any unit, threads, duplicates, and the domain it acts in."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from daband.arrays import FloatArray
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
    reloaded,
)
from daband.policies import RewardedDecision

__all__ = ["DEPLOYMENT_CHECKS"]


def _expected_rewards(contexts: FloatArray) -> FloatArray:
    """What every arm pays for contexts (B, 3), (B, K) within [0, 1]: linear, each arm its own direction."""
    directions = np.random.default_rng(19).uniform(-1.0, 1.0, (N_ARMS, *SHAPE)) / 6
    return 0.5 + contexts @ directions.T


def _played_in_units(make: MakePolicy, arms: str, *, factor: float) -> RewardedDecision:
    rng = np.random.default_rng(20)
    policy = fresh(make, arms, reward_range=(-factor, factor))
    policy.play(random_contexts(rng, 60, arms), factor * rng.uniform(-1, 1, (60, N_ARMS)))
    policy.observe_target(random_contexts(rng, 10, arms))
    policy.adapt(steps=2)
    return policy.play(random_contexts(rng, 60, arms), factor * rng.uniform(-1, 1, (60, N_ARMS)))


def check_units_of_two_change_no_bit(make: MakePolicy) -> None:
    """Rewards times a power of two, with their range, give the same arms to the bit, and predictions in that unit."""
    for arms in ARM_MODELS:
        expected, found = (_played_in_units(make, arms, factor=factor) for factor in (1.0, 1024.0))
        assert_same(expected.arm, found.arm, "arms in another unit")
        assert_same(1024.0 * expected.mean, found.mean, "predicted rewards in another unit")
        assert_same(1024.0 * expected.width, found.width, "widths in another unit")
        assert_same(1024.0 * expected.reward, found.reward, "rewards in another unit")


def check_affine_units_change_no_regret(make: MakePolicy) -> None:
    """Another zero and another unit of reward change the mean regret, in units, of five seeds by at most 5%."""
    regrets = []
    for factor, offset in ((1.0, 0.0), (17.0, -5.0)):
        total = 0.0
        for seed in range(5):
            rng = np.random.default_rng([13, seed])
            contexts = random_contexts(rng, 2000, "disjoint")
            expected = _expected_rewards(contexts)
            policy = fresh(make, "disjoint", seed, (offset, factor + offset))
            policy.observe_target(contexts[:10])
            for start in range(0, 2000, 500):
                part = slice(start, start + 500)
                played = policy.play(contexts[part], factor * expected[part] + offset)
                policy.adapt(steps=2)
                total += float((expected[part].max(axis=1) - (played.reward - offset) / factor).sum())
        regrets.append(total / 10_000)
    apart = abs(regrets[0] - regrets[1])
    assert apart <= 0.05 * max(regrets), (
        f"the regret per round is {regrets[0]:.4f} in one unit, {regrets[1]:.4f} in another"
    )


def check_an_unknown_range_is_estimated(make: MakePolicy) -> None:
    """``reward_range="auto"`` finds the range of what it is paid, one outlier aside, and keeps it in the file."""
    rng = np.random.default_rng(14)
    contexts = random_contexts(rng, 200, "disjoint")
    rewards = 300.0 * _expected_rewards(contexts) - 100.0
    rewards[7] = 1e6
    policy = fresh(make, "disjoint", reward_range="auto")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the outlier is clipped, and that is told
        policy.play(contexts[:20], rewards[:20])
        policy = reloaded(policy)  # in the middle of what it needs to know the range
        played = policy.play(contexts[20:], rewards[20:])
    low, high = policy.reward_range
    smallest, largest = (float(np.delete(rewards, 7, axis=0).min()), float(np.delete(rewards, 7, axis=0).max()))
    assert smallest <= low < high <= largest, f"rewards of {smallest} to {largest} gave the range {low} to {high}"
    assert high - low > 0.4 * (largest - smallest), f"rewards of {smallest} to {largest} gave {low} to {high}"
    assert policy.rounds_learned == 200, policy.rounds_learned
    assert_same(played.reward, rewards[np.arange(20, 200), played.arm], "rewards in the user's units")
    assert reloaded(policy).reward_range == (low, high), "a saved policy forgets the range of its rewards"


def check_deployed_in_the_target(make: MakePolicy) -> None:
    """After ``deploy("target")`` no domain means the target, in the file as well; before, it means the source."""
    policy = experienced(make, "disjoint")
    contexts = random_contexts(np.random.default_rng(15), 8, "disjoint")
    assert_same(policy.decide(contexts).mean, policy.decide(contexts, "source").mean, "means in the source")
    policy.deploy("target")
    for deployed in (policy, reloaded(policy), copy.deepcopy(policy)):
        assert_same(deployed.decide(contexts).mean, policy.decide(contexts, "target").mean, "means in the target")
    assert_refused(policy, lambda p: p.deploy("moon"), "domain")


def check_duplicates_can_be_skipped(make: MakePolicy) -> None:
    """With ``on_duplicate="skip"`` rounds that were learned are left out and returned; the others are learned."""
    contexts = random_contexts(np.random.default_rng(16), 4, "disjoint")
    policy, other = fresh(make, "disjoint"), fresh(make, "disjoint")
    assert policy.update(contexts[:2], [0, 1], [0.5, 1.0], ids=["a", "b"]) == []
    skipped = policy.update(contexts, [0, 1, 2, 2], [0.5, 1.0, 0.2, 0.2], ids=["a", "b", "c", "c"], on_duplicate="skip")
    assert skipped == ["a", "b", "c"], skipped
    other.update(contexts[:2], [0, 1], [0.5, 1.0], ids=["a", "b"])
    other.update(contexts[2:3], [2], [0.2], ids=["c"])
    assert fingerprint(policy) == fingerprint(other), "the rounds that were not skipped were learned otherwise"
    before = fingerprint(policy)
    assert policy.update(contexts[:1], [0], [0.5], ids=["a"], on_duplicate="skip") == ["a"]
    assert fingerprint(policy) == before, "a batch of nothing but duplicates changed the policy"


def check_threads_count_every_round_once(make: MakePolicy) -> None:
    """Threads that share a policy lose no round, learn no id twice, and end with what one thread would have learned."""
    threads, rounds = 8, 40
    rng = np.random.default_rng(17)
    contexts = random_contexts(rng, threads * rounds, "disjoint")
    pulled, paid = rng.integers(0, N_ARMS, len(contexts)), rng.random(len(contexts))
    policy, alone = fresh(make, "disjoint"), fresh(make, "disjoint")

    def serve(first: int) -> int:
        taken = 0
        for i in [*range(first, len(contexts), threads), *range((first + 1) % threads, len(contexts), threads)]:
            policy.select(contexts[i : i + 1])
            row = slice(i, i + 1)
            taken += not policy.update(contexts[row], pulled[row], paid[row], ids=[i], on_duplicate="skip")
        return taken

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            taken = sum(pool.map(serve, range(threads)))
    finally:
        sys.setswitchinterval(before)
    assert taken == policy.rounds_learned == len(contexts), (taken, policy.rounds_learned, len(contexts))
    assert policy.rounds_decided == 2 * len(contexts), policy.rounds_decided
    alone.update(contexts, pulled, paid)
    assert_close(policy.decide(contexts).mean, alone.decide(contexts).mean, "means of shared and sequential policies")
    assert_close(
        policy.decide(contexts).width, alone.decide(contexts).width, "widths of shared and sequential policies"
    )


def check_repr_says_what_it_is(make: MakePolicy) -> None:
    """``repr`` names the class, the sizes and how many rounds were decided and learned."""
    policy = fresh(make, "disjoint")
    contexts = random_contexts(np.random.default_rng(18), 5, "disjoint")
    policy.update(contexts, policy.select(contexts).arm, np.full(5, 0.5))
    for part in (type(policy).__name__, "n_arms=4", "5 rounds decided", "5 learned", "source"):
        assert part in repr(policy), f"{part!r} is not in {policy!r}"


DEPLOYMENT_CHECKS: tuple[Callable[[MakePolicy], None], ...] = (
    check_units_of_two_change_no_bit,
    check_affine_units_change_no_regret,
    check_an_unknown_range_is_estimated,
    check_deployed_in_the_target,
    check_duplicates_can_be_skipped,
    check_threads_count_every_round_once,
    check_repr_says_what_it_is,
)
