"""What policies with ridge statistics must do: learn from sums what they learn from rounds, and discount the past."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from daband.checks.policy_problems import (
    ARM_MODELS,
    N_ARMS,
    MakePolicy,
    assert_close,
    assert_same,
    experienced,
    fresh,
    random_contexts,
    reloaded,
)
from daband.policies import RidgePolicy

__all__ = ["STATISTICS_CHECKS"]


def check_sums_teach_what_rounds_teach(make: MakePolicy) -> None:
    """For a policy that learns by sums: sums of parts, put together in another order, give what ``update`` gives."""
    for arms in ARM_MODELS:
        expected, policy = fresh(make, arms), fresh(make, arms)
        if not isinstance(policy, RidgePolicy):
            return
        rng = np.random.default_rng(15)
        contexts, pulled, paid = random_contexts(rng, 40, arms), rng.integers(0, N_ARMS, 40), rng.random(40)
        chance = rng.uniform(0.1, 1.0, 40)
        expected.update(contexts, pulled, paid, propensity=chance)
        blank = policy.without_rounds()
        if blank.needs_sample:
            blank.prepare_for_log(contexts, paid)
        whole = blank.empty_sums()
        for part in (slice(25, 40), slice(0, 10), slice(10, 25)):
            sums = blank.empty_sums()
            blank.add_to_sums(sums, contexts[part], pulled[part], paid[part], propensity=chance[part])
            whole.merge(sums)
        assert policy.rounds_learned == 0, policy.rounds_learned
        policy.learn_sums(whole, blank)
        assert policy.rounds_learned == 40, policy.rounds_learned
        assert_close(policy.decide(contexts).mean, expected.decide(contexts).mean, "means")
        assert_close(policy.decide(contexts).width, expected.decide(contexts).width, "widths")


def check_the_past_can_be_discounted(make: MakePolicy) -> None:
    """After ``trust_prior``, ``play`` equals rounds, a file continues, and at a factor of 0 the past is forgotten."""
    for arms in ARM_MODELS:
        if not experienced(make, arms).can_discount:
            return
        rng = np.random.default_rng(16)
        contexts, rewards = random_contexts(rng, 12, arms), rng.random((12, N_ARMS))
        played, single = experienced(make, arms), experienced(make, arms)
        for policy in (played, single):
            policy.trust_prior("adaptive")
        arms_played = played.play(contexts, rewards, "target").arm
        for i in range(12):
            single = reloaded(single) if i == 6 else single
            arm = single.select(contexts[i : i + 1], "target").arm
            assert arm[0] == arms_played[i], f"round {i}: {arm[0]} and {arms_played[i]}"
            single.update(contexts[i : i + 1], arm, rewards[i, arm], "target")
        assert_close(played.decide(contexts, "target").mean, single.decide(contexts, "target").mean, "means")
        forgetful = experienced(make, arms)
        forgetful.trust_prior(0.0)
        means = forgetful.decide(contexts, "target", rule="greedy").mean
        assert_same(means, np.zeros_like(means), "means of a policy that trusts nothing")


STATISTICS_CHECKS: tuple[Callable[[MakePolicy], None], ...] = (
    check_sums_teach_what_rounds_teach,
    check_the_past_can_be_discounted,
)
