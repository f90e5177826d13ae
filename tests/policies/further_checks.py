"""Checks of every registered policy, in addition to those of ``daband.checks``: properties that the
class ``Policy`` ensures.
"""

import copy
import functools
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from daband.base._registry import Checks
from daband.checks._policies import (
    N_ARMS,
    _offers_shared_arms,
    assert_close,
    assert_close_predictions,
    assert_same,
    create_policy,
    draw_contexts,
    read_saved_bytes,
    reload_policy,
    train_policy,
)

FURTHER_CHECKS = Checks()


def _with_both_arm_models(check):
    """Register a check that is run with disjoint arms, and with shared arms if the policy supports
    them.
    """

    @functools.wraps(check)
    def check_both(make):
        for arm_model in ("disjoint", "shared") if _offers_shared_arms(make) else ("disjoint",):
            check(make, arm_model)

    return FURTHER_CHECKS.add(check_both)


@_with_both_arm_models
def check_weights_count_rounds(make, arm_model):
    """Check that a round of weight 2 counts as two rounds, weight 0 as none, and weight 1 changes
    nothing, whatever the propensities are.

    If only ratios of weights matter (``weights_are_relative``), weight 2 is not checked.
    """
    rng = np.random.default_rng(14)
    contexts = draw_contexts(rng, 24, arm_model)
    played_arms = rng.integers(0, N_ARMS, 24)
    rewards = rng.random(24)
    propensities = rng.uniform(0.1, 0.9, 24)
    weighted_policy = create_policy(make, arm_model)
    repeating_policy = create_policy(make, arm_model)
    counts = np.repeat([1, 1 if weighted_policy.weights_are_relative else 2, 0], 8)
    weights = counts.astype(np.float64)
    weighted_policy.update(
        contexts, played_arms, rewards, weights=weights, propensities=propensities
    )
    repeating_policy.update(
        contexts.repeat(counts, axis=0),
        played_arms.repeat(counts),
        rewards.repeat(counts),
        propensities=propensities.repeat(counts),
    )
    if not weighted_policy.order_matters:
        weighted_mean, repeated_mean = (
            policy.decide(contexts).mean for policy in (weighted_policy, repeating_policy)
        )
        assert_close(weighted_mean, repeated_mean, "means of weighted rounds")
    assert weighted_policy.rounds_learned == 24, weighted_policy.rounds_learned
    unweighted_policy = create_policy(make, arm_model)
    unit_policy = create_policy(make, arm_model)
    unweighted_policy.update(contexts, played_arms, rewards)
    unit_policy.update(contexts, played_arms, rewards, weights=np.ones(24))
    assert_close_predictions(
        unweighted_policy.decide(contexts), unit_policy.decide(contexts), "rounds of weight 1"
    )
    played_decision = create_policy(make, arm_model).play(
        contexts, rng.random((24, N_ARMS)), weights=weights
    )
    assert np.isfinite(played_decision.mean).all(), (
        "play with weights gives means that are not finite"
    )


@FURTHER_CHECKS.add
def check_weights_are_not_propensities(make):
    """Check that equal weights of any size change no clear decision, and that a saved policy keeps
    weights and propensities.
    """
    rng = np.random.default_rng(23)
    contexts = 2.0 + draw_contexts(rng, 120, "disjoint")
    played_arms = rng.integers(0, N_ARMS, 120)
    rounds = contexts, played_arms, 5.0 * (played_arms == 2) + rng.random(120)
    propensities = rng.uniform(0.1, 0.9, 120)
    light_policy, heavy_policy = (create_policy(make, "disjoint") for _ in range(2))
    light_policy.update(*rounds, weights=np.full(120, 0.25), propensities=propensities)
    heavy_policy.update(*rounds, weights=np.full(120, 4.0), propensities=propensities)
    assert_same(
        light_policy.decide(contexts, rule="greedy").arm,
        heavy_policy.decide(contexts, rule="greedy").arm,
        "arms by rounds of equal weights",
    )
    loaded_policy = reload_policy(heavy_policy)
    for policy in (heavy_policy, loaded_policy):
        policy.update(*rounds, weights=1.0 - propensities, propensities=propensities)
    assert read_saved_bytes(heavy_policy) == read_saved_bytes(loaded_policy), (
        "the loaded policy learned other weights or propensities"
    )


@_with_both_arm_models
def check_late_rewards_in_any_order(make, arm_model):
    """Check that rewards may be late or missing, and arrive one by one or in batches.

    Unless ``order_matters``, their order does not change predictions.
    """
    rng = np.random.default_rng(8)
    contexts = draw_contexts(rng, 16, arm_model)
    played_arms = rng.integers(0, N_ARMS, 16)
    rewards = rng.random(16)
    rewarded_rounds = rng.permutation(16)[:11]
    batch_policy = create_policy(make, arm_model)
    single_policy = create_policy(make, arm_model)
    batch_policy.update(
        contexts[rewarded_rounds], played_arms[rewarded_rounds], rewards[rewarded_rounds]
    )
    for row in rewarded_rounds[::-1]:
        single_policy.update(
            contexts[row : row + 1], played_arms[row : row + 1], rewards[row : row + 1]
        )
    probes = draw_contexts(rng, 5, arm_model)
    assert batch_policy.rounds_learned == single_policy.rounds_learned == 11
    if not batch_policy.order_matters:
        assert_close_predictions(
            batch_policy.decide(probes), single_policy.decide(probes), "a batch and single rounds"
        )


@_with_both_arm_models
def check_copies_learn_alike(make, arm_model):
    """Check that a copy and an unpickled policy learn exactly as the original does, and
    independently of it.
    """
    policy = train_policy(make, arm_model)
    copies = [
        copy.deepcopy(policy),
        pickle.loads(pickle.dumps(policy)),
    ]
    old_bytes = read_saved_bytes(policy)
    new_bytes = []
    for learning_policy in (*copies, policy):
        assert read_saved_bytes(learning_policy) == old_bytes, (
            "a copy differs, or changed when another learned"
        )
        rng = np.random.default_rng(11)
        learning_policy.play(draw_contexts(rng, 6, arm_model), rng.random((6, N_ARMS)))
        learning_policy.adapt(steps=2)
        new_bytes.append(read_saved_bytes(learning_policy))
    assert len(set(new_bytes)) == 1, "a copy learned something else than the original"


def _play_rescaled(make, arm_model, *, factor, offset):
    """Return the decisions of a policy whose rewards are multiplied by ``factor`` and moved by
    ``offset``.
    """
    rng = np.random.default_rng(20)
    policy = create_policy(make, arm_model)
    first_rewards, second_rewards = factor * rng.random((2, 40, N_ARMS)) + offset
    policy.play(draw_contexts(rng, 40, arm_model), first_rewards)
    policy.observe_target(draw_contexts(rng, 10, arm_model))
    policy.adapt(steps=2)
    return policy.play(draw_contexts(rng, 40, arm_model), second_rewards)


@_with_both_arm_models
def check_units_change_no_decision(make, arm_model):
    """Check that rewards times 1,000 plus 7 give the same arms, and predictions and bonuses in that
    unit.
    """
    original_decision = _play_rescaled(make, arm_model, factor=1.0, offset=0.0)
    rescaled_decision = _play_rescaled(make, arm_model, factor=1000.0, offset=7.0)
    assert_same(original_decision.arm, rescaled_decision.arm, "arms in another unit")
    # Networks compute in single precision.
    assert_close(
        1000.0 * original_decision.mean + 7.0,
        rescaled_decision.mean,
        "means in another unit",
        rtol=1e-4,
    )
    assert_close(
        1000.0 * original_decision.bonus,
        rescaled_decision.bonus,
        "bonuses in another unit",
        rtol=1e-4,
    )


@FURTHER_CHECKS.add
def check_deployed_in_the_target(make):
    """Check that the default domain is the source before ``deploy("target")`` and the target after
    it.

    A saved file and a copy have the same default domain.
    """
    policy = train_policy(make, "disjoint")
    contexts = draw_contexts(np.random.default_rng(15), 8, "disjoint")
    assert_same(
        policy.decide(contexts).mean, policy.decide(contexts, "source").mean, "means in the source"
    )
    policy.deploy("target")
    for variant in (policy, reload_policy(policy), copy.deepcopy(policy)):
        assert_same(
            variant.decide(contexts).mean,
            policy.decide(contexts, "target").mean,
            "means in the target",
        )


@FURTHER_CHECKS.add
def check_threads_count_every_round_once(make):
    """Check that threads sharing a policy lose no round, learn no id twice, and learn the same as
    one thread.
    """
    n_threads = 4
    rounds_per_thread = 20
    rng = np.random.default_rng(17)
    contexts = draw_contexts(rng, n_threads * rounds_per_thread, "disjoint")
    played_arms = rng.integers(0, N_ARMS, len(contexts))
    rewards = rng.random(len(contexts))
    policy = create_policy(make, "disjoint")
    sequential_policy = create_policy(make, "disjoint")

    def serve_rounds(thread_index):
        """Serve the rounds of this thread, then those of the next thread.

        Return the number of rounds learned.
        """
        n_learned = 0
        next_index = (thread_index + 1) % n_threads
        n_rounds = len(contexts)
        for i in [
            *range(thread_index, n_rounds, n_threads),
            *range(next_index, n_rounds, n_threads),
        ]:
            row = slice(i, i + 1)
            policy.select(contexts[row])
            n_learned += not policy.update(
                contexts[row], played_arms[row], rewards[row], ids=[i], on_duplicate="skip"
            )
        return n_learned

    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(n_threads) as pool:
            n_learned = sum(pool.map(serve_rounds, range(n_threads)))
    finally:
        sys.setswitchinterval(switch_interval)
    assert n_learned == policy.rounds_learned == len(contexts), (
        n_learned,
        policy.rounds_learned,
        len(contexts),
    )
    assert policy.rounds_decided == 2 * len(contexts), policy.rounds_decided
    sequential_policy.update(contexts, played_arms, rewards)
    if not policy.order_matters:
        assert_close_predictions(
            policy.decide(contexts), sequential_policy.decide(contexts), "threads and one thread"
        )


@_with_both_arm_models
def check_probabilities_of_every_arm(make, arm_model):
    """Check that ``probabilities`` is a distribution over available arms that agrees with
    ``decide``'s propensity.
    """
    contexts = draw_contexts(np.random.default_rng(13), 9, arm_model)
    mask = np.array([True, False, True, True])
    for policy in (create_policy(make, arm_model), train_policy(make, arm_model)):
        old_bytes = read_saved_bytes(policy)
        probabilities = policy.probabilities(contexts, available=mask)
        decision = policy.decide(contexts, available=mask)
        assert probabilities.shape == (9, N_ARMS), probabilities.shape
        assert (probabilities[:, ~mask] == 0).all(), (
            "an arm that is not available has a probability"
        )
        assert_close(probabilities.sum(axis=1), np.ones(9), "the sums of probabilities")
        assert_close(
            probabilities[np.arange(9), decision.arm],
            decision.propensity,
            "probabilities and propensities",
        )
        assert read_saved_bytes(policy) == old_bytes, "probabilities changed the policy"


@FURTHER_CHECKS.add
def check_bonus_never_grows(make):
    """Check that no bonus, in the unit of its arm, grows with more rounds."""
    rng = np.random.default_rng(21)
    policy = create_policy(make, "disjoint")
    probe_contexts = draw_contexts(rng, 9, "disjoint")
    last_bonus = np.full((9, N_ARMS), np.inf)
    for _ in range(6):
        policy.update(
            draw_contexts(rng, 5, "disjoint"), rng.integers(0, N_ARMS, 5), 10.0 * rng.random(5)
        )
        # bonuses of policies for logs and rules have the standard deviation of all rewards
        has_arm_units = policy.name not in ("log", "rules", "random")
        unit = policy._compute_units() if has_arm_units else policy.reward_moments.scale
        bonus = policy.decide(probe_contexts).bonus / unit
        assert (bonus <= last_bonus * (1.0 + 1e-9)).all(), (
            f"a bonus grew from {last_bonus} to {bonus}"
        )
        last_bonus = bonus


@_with_both_arm_models
def check_play_equals_rounds(make, arm_model):
    """Check that ``play`` makes the same choices as a loop of ``select`` and ``update``."""
    rng = np.random.default_rng(6)
    contexts = draw_contexts(rng, 20, arm_model)
    rewards = rng.random((20, N_ARMS))
    mask = rng.random((20, N_ARMS)) < 0.7
    mask[np.arange(20), rng.integers(0, N_ARMS, 20)] = True
    played = train_policy(make, arm_model).play(contexts, rewards, available=mask)
    policy = train_policy(make, arm_model)
    for i in range(20):
        decision = policy.select(contexts[i : i + 1], available=mask[i])
        assert decision.arm[0] == played.arm[i], (
            f"round {i}: {decision.arm[0]} by select, {played.arm[i]} by play"
        )
        # networks compute in single precision
        assert abs(decision.propensity[0] - played.propensity[i]) < 1e-6
        policy.update(contexts[i : i + 1], decision.arm, rewards[i, decision.arm])


@_with_both_arm_models
def check_masks_are_obeyed(make, arm_model):
    """Check that an unavailable arm is never chosen, and that the only available arm has propensity
    1.
    """
    policy = train_policy(make, arm_model)
    contexts = draw_contexts(np.random.default_rng(7), 50, arm_model)
    assert (policy.select(contexts, available=[True, False, True, False]).arm % 2 == 0).all()
    decision = policy.select(contexts, available=[False, False, True, False])
    assert (decision.arm == 2).all()
    assert_close(decision.propensity, np.ones(50), "propensity of the only arm")


@FURTHER_CHECKS.add
def check_arms_can_be_added(make):
    """Check that a new arm can be chosen and learns, and that the predictions of other arms do not
    change.
    """
    rng = np.random.default_rng(11)
    policy = train_policy(make, "disjoint")
    contexts = draw_contexts(rng, 8, "disjoint")
    old_decision = policy.decide(contexts)
    assert policy.add_arm() == N_ARMS
    assert policy.n_arms == N_ARMS + 1
    new_decision = policy.decide(contexts)
    assert_close(new_decision.mean[:, :N_ARMS], old_decision.mean, "means of the old arms")
    assert_close(new_decision.bonus[:, :N_ARMS], old_decision.bonus, "bonuses of the old arms")
    new_arm_decision = policy.select(contexts, available=[False] * N_ARMS + [True])
    assert (new_arm_decision.arm == N_ARMS).all()
    policy.update(contexts, new_arm_decision.arm, np.ones(8))
    if not _offers_shared_arms(make):
        return
    shared_policy = train_policy(make, "shared")
    shared_policy.add_arm()
    decision = shared_policy.select(draw_contexts(rng, 3, "shared", N_ARMS + 1))
    assert decision.mean.shape == (3, N_ARMS + 1)
