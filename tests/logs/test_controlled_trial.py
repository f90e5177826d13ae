"""A trial of a policy against the incumbent: its errors, its limit of cost, and its decisions."""

import math

import numpy as np
import pytest

from daband.logs._controlled_trial import Moments, TrialCounts, TrialRule, estimate_effect


def draw(rng, shape, *, fraction=0.1, policy=0.5, incumbent=0.5, kind="binary"):
    """Return whether each round is of the policy, and its reward."""
    is_policy = rng.random(shape) < fraction
    means = np.where(is_policy, policy, incumbent)
    rewards = rng.normal(means, 1.0) if kind == "normal" else (rng.random(shape) < means) * 1.0
    if kind == "purchases":
        rewards *= rng.lognormal(3.0, 1.0, shape)
    return is_policy, rewards


def count(n, *, fraction=0.1, level=0.0, **options):
    """Return the counts of n rounds that are added one by one."""
    counts = TrialCounts()
    rounds = draw(np.random.default_rng(0), n, fraction=fraction, **options)
    for is_policy, reward in zip(*(column.tolist() for column in rounds), strict=True):
        counts.add_round(fraction, is_policy=is_policy, differs=True)
        counts.add_reward(fraction, level + reward, is_policy=is_policy)
    return counts


@pytest.mark.parametrize(
    ("kind", "mean", "fraction"),
    [
        ("binary", 0.5, 0.1),
        ("binary", 0.02, 0.1),
        ("binary", 0.5, 0.5),
        ("binary", 0.5, 0.9),
        ("normal", 0.0, 0.1),
        ("purchases", 0.05, 0.1),
    ],
)
def test_an_equal_policy_is_seldom_called_better_or_worse_however_often_one_looks(
    kind, mean, fraction
):
    """The error of 4% is of each side; 300 trials with 50 looks."""
    rng = np.random.default_rng(0)
    is_policy, rewards = draw(
        rng, (300, 1000), fraction=fraction, policy=mean, incumbent=mean, kind=kind
    )
    groups = np.stack([is_policy, ~is_policy], axis=-1)[:, :, None, :]
    powers = np.stack([np.ones_like(rewards), rewards, rewards**2])[..., None, None]
    sums = (powers * groups).cumsum(axis=2)[:, :, 19::20]
    n_policy = is_policy[:, :, None].cumsum(axis=1)[:, 19::20]
    effect = estimate_effect(Moments(np.array([fraction]), n_policy, *sums))
    rule = TrialRule(expected_effect=0.3 * mean, expected_error=0.1 * mean)
    assert rule.is_better(effect).any(axis=1).mean() <= 0.05
    assert rule.is_worse(effect).any(axis=1).mean() <= 0.05


@pytest.mark.parametrize("policy", [0.7, 0.3])
def test_a_better_and_a_worse_policy_are_recognised(policy):
    effect = estimate_effect(count(3000, policy=policy, level=1e6).moments)
    assert (TrialRule().is_better(effect), TrialRule().is_worse(effect)) == (
        policy > 0.5,
        policy < 0.5,
    )
    low, high = TrialRule().compute_interval(effect)
    assert low < policy - 0.5 < high
    assert effect.value == pytest.approx(policy - 0.5, abs=0.1)
    assert (low > 0, high < 0) == (policy > 0.5, policy < 0.5)


def test_the_estimate_is_the_effect_if_fractions_follow_the_mean_of_rewards():
    """A fraction that changes with the mean of rewards misleads a difference of plain means."""
    rng = np.random.default_rng(1)
    counts = TrialCounts()
    plain = {True: [], False: []}
    for at in range(20_000):
        fraction, level = (0.5, 0.0) if at % 2 else (0.1, 1.0)
        is_policy = bool(rng.random() < fraction)
        reward = level + rng.normal(0.2 if is_policy else 0.0, 0.5)
        counts.add_round(fraction, is_policy=is_policy, differs=True)
        counts.add_reward(fraction, reward, is_policy=is_policy)
        plain[is_policy].append(reward)
    effect = estimate_effect(counts.moments)
    assert effect.value == pytest.approx(0.2, abs=4 * effect.error)
    assert effect.error < 0.03
    assert abs(np.mean(plain[True]) - np.mean(plain[False]) - 0.2) > 0.2


def test_units_change_nothing():
    fractions, n_policy = np.array([0.1, 0.5]), np.array([100.0, 80.0])
    rng = np.random.default_rng(0)
    rewards = [rng.normal(1.0, 2.0, (2, n)) for n in (100, 900)]

    def measure(scale):
        counts = np.array([[100.0, 900.0]] * 2)
        sums = scale * np.stack([group.sum(axis=1) for group in rewards], axis=1)
        squares = scale**2 * np.stack([(group**2).sum(axis=1) for group in rewards], axis=1)
        return estimate_effect(Moments(fractions, n_policy, counts, sums, squares))

    one, other = measure(1.0), measure(100.0)
    assert np.allclose([100 * one.value, 100 * one.error], [other.value, other.error])
    assert TrialRule().is_better(one) == TrialRule().is_better(other)


def test_small_groups_and_equal_rewards_have_no_interval():
    rule = TrialRule()
    counts = count(200, fraction=0.02)
    assert rule.compute_interval(estimate_effect(counts.moments)) == (-math.inf, math.inf)
    counts = count(1000, policy=1.0, incumbent=1.0)
    assert rule.compute_interval(estimate_effect(counts.moments)) == (-math.inf, math.inf)


def test_evidence_that_is_right_decides_sooner_and_too_high_evidence_later():
    effect = estimate_effect(count(2000, policy=0.58, fraction=0.5).moments)
    rules = [
        TrialRule(expected_effect=expected, expected_error=0.01)
        for expected in (float(effect.value), None, 0.3)
    ]
    lows = [rule.compute_interval(effect)[0] for rule in rules]
    assert lows[0] > lows[1] > lows[2]


def test_evidence_for_the_other_side_does_not_delay_a_proof():
    effect = estimate_effect(count(2000, policy=0.42, fraction=0.5).moments)
    vague, wrong = (TrialRule(expected_effect=e, expected_error=0.01) for e in (None, 0.3))
    assert wrong.compute_interval(effect)[1] == pytest.approx(vague.compute_interval(effect)[1])


@pytest.mark.parametrize("expected", [None, 0.02, 0.1, -0.1])
def test_more_rewards_that_agree_never_revise_a_proof(expected):
    """The evidence is convex in the number of rewards if the estimate remains, and starts at 0."""
    rule = TrialRule(expected_effect=expected, expected_error=0.02)
    n_proven = 0
    for policy in (0.3, 0.45, 0.52, 0.55, 0.6):
        for n in (200, 500, 2000):
            moments = count(n, policy=policy, fraction=0.5).moments
            found = [
                rule.decide(Moments(moments.fractions, *(times * sums for sums in moments[1:])))
                for times in (1.0, 1.3, 2.0, 10.0, 100.0)
            ]
            for side in range(2):
                is_proven = [bool(decision[side]) for decision in found]
                assert is_proven == sorted(is_proven)
                n_proven += is_proven[0]
    assert n_proven


def draw_weeks(rng, losses, fractions, *, n=1000, n_trials=300, missing=0.0):
    """Return sums for weeks in which the policy loses this much a round, (n_trials, weeks)."""
    shape = (n_trials, len(losses))
    n_policy = rng.binomial(n, np.broadcast_to(fractions, shape))
    played = np.stack([n_policy, n - n_policy], axis=-1)
    counts = rng.binomial(played, 1.0 - missing)
    means = np.stack([0.6 - np.asarray(losses), np.full(len(losses), 0.6)], axis=-1)
    sums = rng.binomial(counts, np.broadcast_to(means, counts.shape)).astype(float)
    fractions = np.broadcast_to(fractions, shape).astype(float)
    return Moments(fractions, n_policy.astype(float), counts.astype(float), sums, sums)


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize(
    "losses", [[0.1] * 12, [-0.2] * 6 + [0.3] * 6, [0.3, -0.3] * 6], ids=["same", "later", "turns"]
)
def test_the_limit_of_the_cost_is_above_it_at_all_times_also_if_weeks_differ(losses, missing):
    rng = np.random.default_rng(0)
    fractions = rng.uniform(0.02, 0.5, 12)
    rule = TrialRule(max_cost=60.0, worst_loss=0.6)
    moments = draw_weeks(rng, losses, fractions, missing=missing)
    costs = (moments.n_policy * losses).cumsum(axis=1)
    limits = [rule.limit_cost(moments.select(slice(week + 1))) for week in range(12)]
    assert (np.stack(limits, axis=1) < costs).any(axis=1).mean() <= 0.05
    assert (limits[-1] < costs[:, -1] + 300.0).mean() > 0.9  # and not far above it


def test_the_cost_stays_below_its_limit_if_the_policy_gets_worse_within_the_drift():
    rng = np.random.default_rng(1)
    rule = TrialRule(max_cost=60.0, worst_loss=0.45, drift=0.15)
    moments = draw_weeks(rng, [], np.zeros(0))
    costs, largest = np.zeros(300), np.zeros(300)
    for week in range(20):
        loss = -0.1 if week < 5 else 0.05
        fractions = rule.choose_fraction(moments, 1000.0)
        assert week or (fractions > 0.0).all()
        new = draw_weeks(rng, [loss], fractions[:, None])
        moments = Moments(
            *(np.concatenate(pair, axis=1) for pair in zip(moments, new, strict=True))
        )
        costs += new.n_policy[:, 0] * loss
        largest = np.maximum(largest, costs)
    assert (largest > rule.max_cost).mean() <= 0.05
    # a smaller drift allows more rounds
    careful, bold = (
        TrialRule(max_cost=60.0, worst_loss=0.45, drift=drift).choose_fraction(moments, 1e6)
        for drift in (0.3, 0.1)
    )
    assert (careful <= bold).all()
    assert (careful < bold).any()


def test_effects_that_differ_between_weeks_wait_for_the_later_ones():
    rng = np.random.default_rng(2)
    rule = TrialRule()
    for sign, side in ((1.0, 0), (-1.0, 1)):
        loss = -0.3 * sign
        alike = rule.decide(draw_weeks(rng, [loss] * 4, np.full(4, 0.5)))
        changed = draw_weeks(rng, [loss] * 2 + [0.02 * sign] * 2, np.full(4, 0.5))
        proven = (rule.is_better, rule.is_worse)[side](estimate_effect(changed))
        assert alike[side].all()
        assert proven.all()
        assert rule.decide(changed)[side].mean() <= 0.05


def test_a_trial_is_futile_if_no_proof_can_be_expected():
    rule = TrialRule(max_cost=10.0, worst_loss=0.5)
    worse, equal, better = (count(2000, policy=mean).moments for mean in (0.4, 0.48, 0.52))
    assert rule.is_futile(worse, 0.1, 1e6)
    assert rule.is_futile(equal, 0.1, 100.0)
    assert not rule.is_futile(equal, 0.1, 1e6)
    assert not rule.is_futile(better, 0.1, 500.0)
    assert rule.is_futile(better, 0.0, 500.0)
    assert not rule.is_futile(TrialCounts().moments, 0.1, 500.0)


def test_the_fraction_follows_the_limit_of_the_cost():
    rule = TrialRule(max_cost=10.0, worst_loss=0.5)
    empty = TrialCounts()
    # 20 rounds of 200, less 1.645 standard deviations of their number
    expected = (20 - 1.645 * math.sqrt(20)) / 200
    assert rule.choose_fraction(empty.moments, 200) == pytest.approx(expected)
    assert rule.limit_cost(empty.moments) == 0.0
    for _ in range(20):  # their rewards are missing
        empty.add_round(0.1, is_policy=True, differs=True)
    assert rule.choose_fraction(empty.moments, 200) == 0.0
    assert rule.limit_cost(empty.moments) == pytest.approx(10.0)
    worse, better = count(2000, policy=0.3), count(2000, policy=0.7)
    assert rule.choose_fraction(worse.moments, 200) == 0.0
    assert rule.choose_fraction(better.moments, 200) < 0.5  # a change is possible
    alike = TrialRule(max_cost=10.0, worst_loss=0.5, drift=0.0)
    assert alike.choose_fraction(better.moments, 200) == 0.5
    assert rule.limit_cost(better.moments) < 0.0


@pytest.mark.parametrize(
    ("policy", "n_left", "decision"),
    [
        (0.7, 0.0, ("better", 1.0)),
        (0.3, 3000.0, ("worse", 0.0)),
        (0.5, 0.0, ("over", 0.0)),
        (0.5, 1e6, ("", 0.25)),
    ],
)
def test_a_trial_ends_with_a_proof_or_without_hope_of_one(policy, n_left, decision):
    rule = TrialRule(max_cost=700.0, worst_loss=1.0, drift=0.5)
    counts = count(3000, policy=policy)
    verdict, fraction = rule.decide_next(counts, 3000.0, n_left)
    assert (verdict, fraction) == (decision[0], pytest.approx(decision[1], abs=0.15))
    counts.add_round(0.1, is_policy=True, differs=True)
    assert counts.n_missing == 1
    # a proof does not wait for missing rewards
    assert rule.decide_next(counts, 3000.0, n_left)[0] == verdict.replace("over", "")
