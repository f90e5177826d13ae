"""What every policy must do. Each check takes a function that makes a fresh policy of given sizes.

    from daband.checks import check_policy
    check_policy(lambda **sizes: MyPolicy(**sizes))

A check raises ``AssertionError`` with what it saw. All run over every registered policy in daband's own tests.
"""

from __future__ import annotations

import copy
import pickle
import sys
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np

from daband.arrays import AnyArray, FloatArray
from daband.errors import InvalidInput
from daband.policies import Played, Policy, RewardRange, load

__all__ = ["POLICY_CHECKS", "MakePolicy", "check_policy"]


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


_SHAPE = (3,)
_ARMS = 4
_MODELS = ("disjoint", "shared")


def _contexts(rng: np.random.Generator, n: int, arms: str, n_arms: int = _ARMS) -> FloatArray:
    shape = (n, *_SHAPE) if arms == "disjoint" else (n, n_arms, *_SHAPE)
    return rng.uniform(-1.0, 1.0, shape)


def _make(make: MakePolicy, arms: str, seed: int = 0, reward_range: RewardRange = (0.0, 1.0)) -> Policy:
    return make(context_shape=_SHAPE, n_arms=_ARMS, arms=arms, seed=seed, reward_range=reward_range)


def _experienced(make: MakePolicy, arms: str, seed: int = 0) -> Policy:
    """A policy that has played, been told late rewards, seen the target and adapted."""
    rng = np.random.default_rng(5)
    policy = _make(make, arms, seed)
    policy.play(_contexts(rng, 12, arms), rng.random((12, _ARMS)))
    late = _contexts(rng, 5, arms)
    policy.update(late, policy.select(late).arm, rng.random(5), ids=["a", "b", 7, 8, 9])
    for _ in range(9):  # and round by round, which may take another way through the code
        single = _contexts(rng, 1, arms)
        policy.update(single, policy.select(single).arm, rng.random(1))
    policy.observe_target(_contexts(rng, 6, arms))
    policy.adapt(steps=2)
    return policy


def _expected_rewards(contexts: FloatArray) -> FloatArray:
    """What every arm pays for contexts (B, 3), (B, K) within [0, 1]: linear, each arm its own direction."""
    directions = np.random.default_rng(19).uniform(-1.0, 1.0, (_ARMS, *_SHAPE)) / 6
    return 0.5 + contexts @ directions.T


def _played_in_units(make: MakePolicy, arms: str, *, factor: float) -> Played:
    rng = np.random.default_rng(20)
    policy = _make(make, arms, reward_range=(-factor, factor))
    policy.play(_contexts(rng, 60, arms), factor * rng.uniform(-1, 1, (60, _ARMS)))
    policy.observe_target(_contexts(rng, 10, arms))
    policy.adapt(steps=2)
    return policy.play(_contexts(rng, 60, arms), factor * rng.uniform(-1, 1, (60, _ARMS)))


def _reloaded(policy: Policy) -> Policy:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.safetensors"
        policy.save(path)
        return load(path)


def _fingerprint(policy: Policy) -> dict[str, bytes]:
    """Everything that a policy would save."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.safetensors"
        policy.save(path)
        return {"file": path.read_bytes()}


def check_shapes_and_propensities(make: MakePolicy) -> None:
    """Decisions have the shapes they promise, arms within range, probabilities within (0, 1]."""
    rng = np.random.default_rng(0)
    for arms in _MODELS:
        policy = _experienced(make, arms)
        decision = policy.select(_contexts(rng, 7, arms))
        assert decision.arm.shape == (7,), decision.arm.shape
        assert decision.arm.dtype == np.int64, decision.arm.dtype
        assert decision.propensity.shape == (7,), decision.propensity.shape
        assert decision.mean.shape == decision.width.shape == (7, _ARMS), (decision.mean.shape, decision.width.shape)
        assert ((decision.arm >= 0) & (decision.arm < _ARMS)).all(), decision.arm
        assert ((decision.propensity > 0) & (decision.propensity <= 1)).all(), decision.propensity
        assert np.isfinite(decision.mean).all()
        assert np.isfinite(decision.width).all()
        assert (decision.width >= 0).all()


def check_same_seed_same_choices(make: MakePolicy) -> None:
    """Two policies of one seed choose alike; seed 0 is a seed like any other."""
    for arms in _MODELS:
        contexts = _contexts(np.random.default_rng(1), 40, arms)
        for seed in (0, 3):
            first, second = _experienced(make, arms, seed), _experienced(make, arms, seed)
            _same(first.select(contexts).arm, second.select(contexts).arm, f"seed {seed}")


def check_ties_follow_the_seed(make: MakePolicy) -> None:
    """Before anything is learned, ties go by the seed: not always to the lowest arm, and not alike for all seeds."""
    contexts = _contexts(np.random.default_rng(2), 30, "disjoint")
    choices = [_make(make, "disjoint", seed).decide(contexts, rule="greedy").arm for seed in range(4)]
    for seed, arms in enumerate(choices):
        assert len(np.unique(arms)) > 1, f"seed {seed} gives every tied context to arm {arms[0]}"
    assert any((choices[0] != other).any() for other in choices[1:]), "seeds 0 to 3 break every tie alike"


def check_decide_changes_nothing(make: MakePolicy) -> None:
    """``decide`` leaves the policy to the bit as it was."""
    for arms in _MODELS:
        policy = _experienced(make, arms)
        before = _fingerprint(policy)
        policy.decide(_contexts(np.random.default_rng(3), 9, arms), "target")
        assert _fingerprint(policy) == before, "decide changed the policy"


def check_batch_equals_singles(make: MakePolicy) -> None:
    """Selecting a batch equals selecting its contexts one by one."""
    for arms in _MODELS:
        for domain in ("source", "target"):
            contexts = _contexts(np.random.default_rng(4), 10, arms)
            batch = _experienced(make, arms).select(contexts, domain)
            one_by_one = _experienced(make, arms)
            singles = [one_by_one.select(contexts[i : i + 1], domain) for i in range(10)]
            _close(batch.mean, np.concatenate([single.mean for single in singles]), "mean")
            _close(batch.width, np.concatenate([single.width for single in singles]), "width")
            _same(batch.arm, np.concatenate([single.arm for single in singles]), "arms")


def check_play_equals_rounds(make: MakePolicy) -> None:
    """``play`` makes the choices of ``select`` and ``update`` in turn."""
    for arms in _MODELS:
        rng = np.random.default_rng(6)
        contexts, rewards = _contexts(rng, 20, arms), rng.random((20, _ARMS))
        mask = rng.random((20, _ARMS)) < 0.7
        mask[np.arange(20), rng.integers(0, _ARMS, 20)] = True
        played = _experienced(make, arms).play(contexts, rewards, available=mask)
        policy = _experienced(make, arms)
        for i in range(20):
            decision = policy.select(contexts[i : i + 1], available=mask[i])
            assert decision.arm[0] == played.arm[i], f"round {i}: {decision.arm[0]} by turns, {played.arm[i]} in play"
            assert abs(decision.propensity[0] - played.propensity[i]) < 1e-8
            policy.update(contexts[i : i + 1], decision.arm, rewards[i, decision.arm])


def check_masks_are_obeyed(make: MakePolicy) -> None:
    """An arm that is not available is never chosen; one arm left is chosen for certain."""
    for arms in _MODELS:
        policy = _experienced(make, arms)
        contexts = _contexts(np.random.default_rng(7), 50, arms)
        assert (policy.select(contexts, available=[True, False, True, False]).arm % 2 == 0).all()
        only = policy.select(contexts, available=[False, False, True, False])
        assert (only.arm == 2).all()
        _close(only.propensity, np.ones(50), "propensity of the only arm")


def check_late_rewards_in_any_order(make: MakePolicy) -> None:
    """Rewards may come late, some not at all, one by one or together, and their order does not matter."""
    for arms in _MODELS:
        rng = np.random.default_rng(8)
        contexts, pulled, paid = _contexts(rng, 16, arms), rng.integers(0, _ARMS, 16), rng.random(16)
        some = rng.permutation(16)[:11]
        at_once, by_turns = _make(make, arms), _make(make, arms)
        at_once.update(contexts[some], pulled[some], paid[some])
        for i in some[::-1]:
            by_turns.update(contexts[i : i + 1], pulled[i : i + 1], paid[i : i + 1])
        probe = _contexts(rng, 5, arms)
        _close(at_once.decide(probe).mean, by_turns.decide(probe).mean, "mean")
        _close(at_once.decide(probe).width, by_turns.decide(probe).width, "width")


def check_round_ids_count_once(make: MakePolicy) -> None:
    """A second update for one round id is refused, in the same batch, later, and after reloading."""
    policy = _experienced(make, "disjoint")
    contexts = _contexts(np.random.default_rng(9), 2, "disjoint")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.safetensors"
        policy.save(path)
        for candidate in (policy, load(path)):
            for ids in (["a", "new"], ["new", "new"], np.array([7, 100])):
                _refused(candidate, lambda p, ids=ids: p.update(contexts, [0, 1], [0.5, 0.5], ids=ids), "ids")  # type: ignore[misc]


def check_saving_and_loading(make: MakePolicy) -> None:
    """A loaded policy goes on exactly as the one that was saved, through more learning."""
    for arms in _MODELS:
        policy = _experienced(make, arms)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "policy.safetensors"
            policy.save(path)
            loaded = load(path)
        assert type(loaded) is type(policy)
        assert _fingerprint(loaded) == _fingerprint(policy), "saving a loaded policy gives another file"
        rng = np.random.default_rng(10)
        contexts, rewards = _contexts(rng, 30, arms), rng.random((30, _ARMS))
        first, second = policy.play(contexts, rewards), loaded.play(contexts, rewards)
        policy.adapt(steps=2)
        loaded.adapt(steps=2)
        _same(first.arm, second.arm, "arms after loading")
        _same(first.mean, second.mean, "means after loading, to the bit")
        assert _fingerprint(loaded) == _fingerprint(policy), "the loaded policy learned otherwise"


def check_copies_learn_alike(make: MakePolicy) -> None:
    """A copy and an unpickled policy learn exactly as the original does, and independently of it."""
    for arms in _MODELS:
        policy = _experienced(make, arms)
        copies = [copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))]  # noqa: S301 - its own
        before = _fingerprint(policy)
        after = []
        for some in (*copies, policy):
            assert _fingerprint(some) == before, "a copy differs, or changed with another"
            rng = np.random.default_rng(11)
            some.play(_contexts(rng, 6, arms), rng.random((6, _ARMS)))
            some.adapt(steps=2)
            after.append(_fingerprint(some))
        assert after[0] == after[1] == after[2], "a copy learned otherwise than the original"


def check_units_of_two_change_no_bit(make: MakePolicy) -> None:
    """Rewards times a power of two, with their range, give the same arms to the bit, and predictions in that unit."""
    for arms in _MODELS:
        expected, found = (_played_in_units(make, arms, factor=factor) for factor in (1.0, 1024.0))
        _same(expected.arm, found.arm, "arms in another unit")
        _same(1024.0 * expected.mean, found.mean, "predicted rewards in another unit")
        _same(1024.0 * expected.width, found.width, "widths in another unit")
        _same(1024.0 * expected.reward, found.reward, "rewards in another unit")


def check_affine_units_change_no_regret(make: MakePolicy) -> None:
    """Another zero and another unit of reward change the mean regret, in units, of five seeds by at most 5%."""
    regrets = []
    for factor, offset in ((1.0, 0.0), (17.0, -5.0)):
        total = 0.0
        for seed in range(5):
            rng = np.random.default_rng([13, seed])
            contexts = _contexts(rng, 2000, "disjoint")
            expected = _expected_rewards(contexts)
            policy = _make(make, "disjoint", seed, (offset, factor + offset))
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
    contexts = _contexts(rng, 200, "disjoint")
    rewards = 300.0 * _expected_rewards(contexts) - 100.0
    rewards[7] = 1e6
    policy = _make(make, "disjoint", reward_range="auto")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the outlier is clipped, and that is told
        policy.play(contexts[:20], rewards[:20])
        policy = _reloaded(policy)  # in the middle of what it needs to know the range
        played = policy.play(contexts[20:], rewards[20:])
    low, high = policy.reward_range
    smallest, largest = (float(np.delete(rewards, 7, axis=0).min()), float(np.delete(rewards, 7, axis=0).max()))
    assert smallest <= low < high <= largest, f"rewards of {smallest} to {largest} gave the range {low} to {high}"
    assert high - low > 0.4 * (largest - smallest), f"rewards of {smallest} to {largest} gave {low} to {high}"
    assert policy.rounds_learned == 200, policy.rounds_learned
    _same(played.reward, rewards[np.arange(20, 200), played.arm], "rewards in the user's units")
    assert _reloaded(policy).reward_range == (low, high), "a saved policy forgets the range of its rewards"


def check_deployed_in_the_target(make: MakePolicy) -> None:
    """After ``deploy("target")`` no domain means the target, in the file as well; before, it means the source."""
    policy = _experienced(make, "disjoint")
    contexts = _contexts(np.random.default_rng(15), 8, "disjoint")
    _same(policy.decide(contexts).mean, policy.decide(contexts, "source").mean, "means in the source")
    policy.deploy("target")
    for deployed in (policy, _reloaded(policy), copy.deepcopy(policy)):
        _same(deployed.decide(contexts).mean, policy.decide(contexts, "target").mean, "means in the target")
    _refused(policy, lambda p: p.deploy("moon"), "domain")


def check_duplicates_can_be_skipped(make: MakePolicy) -> None:
    """With ``on_duplicate="skip"`` rounds that were learned are left out and returned; the others are learned."""
    contexts = _contexts(np.random.default_rng(16), 4, "disjoint")
    policy, other = _make(make, "disjoint"), _make(make, "disjoint")
    assert policy.update(contexts[:2], [0, 1], [0.5, 1.0], ids=["a", "b"]) == []
    skipped = policy.update(contexts, [0, 1, 2, 2], [0.5, 1.0, 0.2, 0.2], ids=["a", "b", "c", "c"], on_duplicate="skip")
    assert skipped == ["a", "b", "c"], skipped
    other.update(contexts[:2], [0, 1], [0.5, 1.0], ids=["a", "b"])
    other.update(contexts[2:3], [2], [0.2], ids=["c"])
    assert _fingerprint(policy) == _fingerprint(other), "the rounds that were not skipped were learned otherwise"
    before = _fingerprint(policy)
    assert policy.update(contexts[:1], [0], [0.5], ids=["a"], on_duplicate="skip") == ["a"]
    assert _fingerprint(policy) == before, "a batch of nothing but duplicates changed the policy"


def check_threads_count_every_round_once(make: MakePolicy) -> None:
    """Threads that share a policy lose no round, learn no id twice, and end with what one thread would have learned."""
    threads, rounds = 8, 40
    rng = np.random.default_rng(17)
    contexts = _contexts(rng, threads * rounds, "disjoint")
    pulled, paid = rng.integers(0, _ARMS, len(contexts)), rng.random(len(contexts))
    policy, alone = _make(make, "disjoint"), _make(make, "disjoint")

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
    _close(policy.decide(contexts).mean, alone.decide(contexts).mean, "means of shared and sequential policies")
    _close(policy.decide(contexts).width, alone.decide(contexts).width, "widths of shared and sequential policies")


def check_repr_says_what_it_is(make: MakePolicy) -> None:
    """``repr`` names the class, the sizes and how many rounds were decided and learned."""
    policy = _make(make, "disjoint")
    contexts = _contexts(np.random.default_rng(18), 5, "disjoint")
    policy.update(contexts, policy.select(contexts).arm, np.full(5, 0.5))
    for part in (type(policy).__name__, "n_arms=4", "5 rounds decided", "5 learned", "source"):
        assert part in repr(policy), f"{part!r} is not in {policy!r}"


def check_arms_can_be_added(make: MakePolicy) -> None:
    """A new arm can be chosen, learns, and leaves what the others know."""
    rng = np.random.default_rng(11)
    policy = _experienced(make, "disjoint")
    contexts = _contexts(rng, 8, "disjoint")
    before = policy.decide(contexts)
    assert policy.add_arm() == _ARMS
    assert policy.n_arms == _ARMS + 1
    after = policy.decide(contexts)
    _close(after.mean[:, :_ARMS], before.mean, "means of the old arms")
    _close(after.width[:, :_ARMS], before.width, "widths of the old arms")
    only = policy.select(contexts, available=[False] * _ARMS + [True])
    assert (only.arm == _ARMS).all()
    policy.update(contexts, only.arm, np.ones(8))
    shared = _experienced(make, "shared")
    shared.add_arm()
    decision = shared.select(_contexts(rng, 3, "shared", _ARMS + 1))
    assert decision.mean.shape == (3, _ARMS + 1)


def check_bad_input_changes_nothing(make: MakePolicy) -> None:
    """Bad input is refused with an error that names the argument, and the policy is to the bit as it was."""
    nan = float("nan")
    good = _contexts(np.random.default_rng(12), 3, "disjoint")

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
        ("available", lambda p: p.select(good, available=[False] * _ARMS)),
        ("available", lambda p: p.select(good, available=[True] * (_ARMS + 1))),
        ("available", lambda p: p.select(good, available=[0, 1, 2, 1])),
        ("contexts", lambda p: p.update(spoiled(nan), [0, 1, 2], [0.0, 0.5, 1.0])),
        ("arm", lambda p: p.update(good, [0, 1, _ARMS], [0.0, 0.5, 1.0])),
        ("arm", lambda p: p.update(good, [0, -1, 1], [0.0, 0.5, 1.0])),
        ("arm", lambda p: p.update(good, [0, 1], [0.0, 0.5, 1.0])),
        ("arm", lambda p: p.update(good, [0.5, 1.0, 1.0], [0.0, 0.5, 1.0])),
        ("reward", lambda p: p.update(good, [0, 1, 2], [0.0, nan, 1.0])),
        ("reward", lambda p: p.update(good, [0, 1, 2], [0.0, np.inf, 1.0])),
        ("reward", lambda p: p.update(good, [0, 1, 2], [0.0, 1.5, 1.0])),
        ("reward", lambda p: p.update(good, [0, 1, 2], [0.0, -0.5, 1.0])),
        ("reward", lambda p: p.update(good, [0, 1, 2], [0.0, 1.0])),
        ("domain", lambda p: p.update(good, [0, 1, 2], [0.0, 0.5, 1.0], "nowhere")),
        ("ids", lambda p: p.update(good, [0, 1, 2], [0.0, 0.5, 1.0], ids=[1, 2])),
        ("ids", lambda p: p.update(good, [0, 1, 2], [0.0, 0.5, 1.0], ids=[1.5, 2.5, 3.5])),  # type: ignore[list-item]
        ("reward", lambda p: p.play(good, np.full((3, _ARMS), 2.0))),
        ("reward", lambda p: p.play(good, np.full((3, _ARMS + 1), 0.5))),
        ("contexts", lambda p: p.observe_target(spoiled(nan))),
        ("steps", lambda p: p.adapt(steps=-1)),
    ]
    policy = _experienced(make, "disjoint")
    for name, call in cases:
        _refused(policy, call, name)


def check_bad_sizes_are_refused(make: MakePolicy) -> None:
    """A policy of no arms, of no dimensions, of an unknown arm model or a negative seed is refused by name."""
    good: dict[str, object] = {"context_shape": _SHAPE, "n_arms": _ARMS, "arms": "disjoint", "seed": 0}
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
    check_units_of_two_change_no_bit,
    check_affine_units_change_no_regret,
    check_an_unknown_range_is_estimated,
    check_deployed_in_the_target,
    check_duplicates_can_be_skipped,
    check_threads_count_every_round_once,
    check_repr_says_what_it_is,
    check_arms_can_be_added,
    check_bad_input_changes_nothing,
    check_bad_sizes_are_refused,
)


def check_policy(make: MakePolicy) -> None:
    """Run every check; the first that fails raises ``AssertionError``."""
    for check in POLICY_CHECKS:
        check(make)


def _refused(policy: Policy, call: Callable[[Policy], object], name: str) -> None:
    before = _fingerprint(policy)
    try:
        call(policy)
    except InvalidInput as error:
        assert name in str(error), f"the error does not name {name!r}: {error}"
    else:
        raise AssertionError(f"bad {name} was accepted")
    assert _fingerprint(policy) == before, f"the policy changed although {name} was refused"


def _same(left: AnyArray, right: AnyArray, what: str) -> None:
    assert np.array_equal(left, right), f"{what} differ: {left} and {right}"


def _close(left: AnyArray, right: AnyArray, what: str) -> None:
    worst = float(np.max(np.abs(left - right)))
    assert np.allclose(left, right, rtol=1e-6, atol=1e-8), f"{what} differ by up to {worst:g}"
