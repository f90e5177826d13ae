"""Rewards times 1,000 plus 7 change no decision: of policies, from logs, after ``choose`` and in
exported files.
"""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import daband

FACTOR = 1000.0
OFFSET = 7.0
K = 3
D = 4
MEMBERS = {"linear": daband.LinUCB, "constant": daband.Constant, "trees": daband.Trees}


def mixture(**options):
    shape = {"context_shape": (D,), "n_arms": K, "seed": 0}
    return daband.Mixture(
        **shape, members={name: kind(**shape) for name, kind in MEMBERS.items()}, **options
    )


def single(kind):
    return lambda **options: kind(context_shape=(D,), n_arms=K, seed=0, **options)


#: Every policy that needs no network.
POLICIES = {
    "constant": lambda **options: single(daband.Constant)(),  # which has no exploration to set
    "linucb": single(daband.LinUCB),
    "trees": single(daband.Trees),
    "log": single(daband.LogPolicy),
    "mixture": mixture,
}


def rewards_of(contexts, rng):
    """Return the reward of every arm: few are other than 0, and baskets differ a lot."""
    chances = 0.1 + 0.3 * (contexts[:, :K] > 0.5)
    return (rng.random(chances.shape) < chances) * rng.lognormal(0, 1, chances.shape)


def logged(n=1500, seed=0):
    rng = np.random.default_rng(seed)
    contexts = rng.normal(size=(n, D))
    arms = rng.integers(0, K, n)
    return contexts, arms, rewards_of(contexts, rng)[np.arange(n), arms], np.full(n, 1 / K)


def in_other_units(log):
    contexts, arms, rewards, propensities = log
    return contexts, arms, FACTOR * rewards + OFFSET, propensities


TESTED = np.random.default_rng(9).normal(size=(200, D))


def check_same(here, there):
    """Compare the decisions of two policies, or of two exported files."""
    np.testing.assert_array_equal(here.arm, there.arm)
    np.testing.assert_allclose(here.propensity, there.propensity)
    np.testing.assert_allclose(
        FACTOR * np.asarray(here.mean) + OFFSET, there.mean, rtol=1e-6, atol=1e-4
    )
    np.testing.assert_allclose(FACTOR * np.asarray(here.bonus), there.bonus, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("explore", ["ucb", "greedy"])
def test_a_policy_that_plays_makes_the_same_decisions(name, explore):
    """Each decision depends on all rewards before it."""
    rng = np.random.default_rng(1)
    contexts = rng.normal(size=(300, D))
    rewards = rewards_of(contexts, rng)
    here, there = (POLICIES[name](explore=explore, epsilon=0.1) for _ in range(2))
    for rows in np.array_split(np.arange(300), 6):
        decision = here.select(contexts[rows])
        other = there.select(contexts[rows])
        np.testing.assert_array_equal(decision.arm, other.arm)
        here.update(contexts[rows], decision.arm, rewards[rows, decision.arm])
        there.update(contexts[rows], other.arm, FACTOR * rewards[rows, other.arm] + OFFSET)
        here.adapt()
        there.adapt()
    check_same(here.decide(TESTED), there.decide(TESTED))


@pytest.mark.parametrize("name", POLICIES)
@given(seed=st.integers(0, 99))
@settings(max_examples=3, deadline=None)
def test_rounds_of_a_log_give_the_same_decisions(name, seed):
    log = logged(500, seed)
    here = POLICIES[name]()
    there = POLICIES[name]()
    for policy, (contexts, arms, rewards, _) in ((here, log), (there, in_other_units(log))):
        policy.update(contexts, arms, rewards)
        policy.adapt()
    check_same(here.decide(TESTED), there.decide(TESTED))


@pytest.mark.parametrize("name", ["constant", "linucb", "log"])
def test_log_files_and_exported_files_give_the_same_decisions(name, tmp_path):
    decisions = []
    for number, (contexts, arms, rewards, chances) in enumerate(
        (logged(), in_other_units(logged()))
    ):
        columns = {f"x{i}": contexts[:, i] for i in range(D)}
        folder = tmp_path / str(number)
        folder.mkdir()
        pl.DataFrame(
            {**columns, "arm": arms, "reward": rewards, "propensity": chances}
        ).write_parquet(folder / "log.parquet")
        policy = POLICIES[name]()
        daband.fit_log(policy, folder / "log.parquet")
        daband.export(policy, folder / "p.daband")
        exported = daband.load_deployed(folder / "p.daband")
        decisions.append((policy.decide(TESTED), exported.decide(TESTED, round_number=0)))
    for here, there in zip(*decisions, strict=True):
        check_same(here, there)


def test_choose_on_a_log_makes_the_same_choice():
    def choose(log):
        return daband.choose(daband.domains.from_log(source=log, target=TESTED, n_arms=K))

    here = choose(logged(4000))
    there = choose(in_other_units(logged(4000)))
    assert here.policy.evidence.personalises
    check_same(here.policy.decide(TESTED), there.policy.decide(TESTED))
    assert (there.candidate, there.assessment.verdict) == (here.candidate, here.assessment.verdict)
    for name in ("advantage", "low", "source_advantage", "source_error"):
        assert getattr(there.assessment, name) == pytest.approx(
            FACTOR * getattr(here.assessment, name), rel=1e-6
        ), name
    assert there.policy.evidence.gain == pytest.approx(FACTOR * here.policy.evidence.gain, rel=1e-6)


@pytest.mark.parametrize("target", [None, TESTED + 0.2])
def test_the_value_of_a_policy_has_the_unit_of_rewards(target):
    def policy(contexts):
        return np.eye(K)[np.argmax(contexts[:, :K], axis=1)]

    here, there = (
        daband.evaluate_log(policy, log, target=target)
        for log in (logged(), in_other_units(logged()))
    )
    for name in ("value", "low", "high"):
        assert getattr(there, name) == pytest.approx(
            FACTOR * getattr(here, name) + OFFSET, rel=1e-6
        )
    assert there.error == pytest.approx(FACTOR * here.error, rel=1e-6)
    assert len(there.warnings) == len(here.warnings)
