"""``daband.assess``: the advantage over the incumbent, its lower limit and the verdict, without
target rewards.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

import daband
from daband.domains import EvaluationDomain, from_arrays
from daband.domains.readers._arrays import ArrayRewards
from daband.domains.readers._logs import ArrayLog
from daband.errors import DataError, InvalidInput
from daband.logs._scores import Scores
from daband.trust import read_assessment
from daband.trust._assess import (
    SourceRounds,
    find_collapse_signs,
    measure_classifier_accuracy,
    measure_outside_support,
    project_contexts,
)
from daband.trust._questions import Interval


@pytest.fixture(scope="module")
def pair():
    view = {"rotation": 10.0, "translation": 0.0, "frequency": 0.0}
    return daband.domains.load(
        "synthetic", n_contexts=1500, dimension=8, n_arms=4, **view, rewards="labels"
    )


@pytest.fixture(scope="module")
def policy(pair):
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=15)
    return policy


@pytest.fixture(scope="module")
def assessment(policy, pair):
    return daband.assess(policy, source=pair.source_test, target=pair.target)


def source_table(pair):
    n = len(pair.source_test)
    return pair.source_test.read(0, n), pair.source_test.read_expected(0, n)


def test_a_good_policy_is_deployed(assessment, policy, pair):
    contexts, rewards = source_table(pair)
    arms = policy.decide(contexts, "source", rule="greedy").arm
    best = rewards.mean(axis=0).argmax()
    gains = rewards[np.arange(len(arms)), arms] - rewards[:, best]
    assert assessment.source_advantage == pytest.approx(gains.mean())
    assert assessment.source_error == pytest.approx(gains.std() / np.sqrt(len(gains)), rel=0.1)
    assert assessment.incumbent == f"always {pair.class_names[best]}"
    assert assessment.incumbent_arm == best
    assert 0 < assessment.low < assessment.advantage
    assert (assessment.verdict, assessment.rewards, assessment.high) == ("deploy", 0, None)
    test = pair.target_test
    expected = test.read_expected(0, len(test))
    true = daband.evaluate(policy, test, rule="greedy").value - expected[:, best].mean()
    assert true > assessment.low


def test_the_policy_does_not_change_and_the_result_is_the_same_again(assessment, policy, pair):
    before = policy.rounds_decided
    assert daband.assess(policy, source=pair.source_test, target=pair.target) == assessment
    assert policy.rounds_decided == before


def test_the_incumbent_decides(policy, pair):
    asked = {"source": pair.source_test, "target": pair.target}
    arm = daband.assess(policy, **asked, incumbent=pair.class_names[2])
    assert (arm.incumbent, arm.incumbent_arm) == (f"always {pair.class_names[2]}", 2)
    itself = daband.assess(policy, **asked, incumbent=policy)
    assert (itself.advantage, itself.disagreement, itself.verdict) == (
        0.0,
        0.0,
        "keep the incumbent",
    )
    assert (
        itself.sentence
        == f"Keep the incumbent: the policy makes the same choices as {itself.incumbent}."
    )
    assert not any("shifts between real domains" in reason for reason in itself.reasons)
    _, rewards = source_table(pair)
    column = daband.assess(policy, **asked, incumbent=np.zeros(len(pair.target), int))
    assert column.incumbent == "today's choices"
    assert column.disagreement == arm_fraction_other_than(policy, pair, 0)
    best = rewards.mean(axis=0).max()  # without a log, the source has no choices of today
    assert column.source_advantage == pytest.approx(column.source_value - best)


def arm_fraction_other_than(policy, pair, arm):
    contexts = pair.target.read(pair.target.order(0, min(2000, len(pair.target)), seed=0))
    return float((policy.decide(contexts, "target", rule="greedy").arm != arm).mean())


def test_a_policy_that_knows_nothing_is_not_deployed(pair):
    weak = daband.LinUCB.for_pair(pair, seed=0)
    draw = np.random.default_rng(0)
    rows = pair.source.read(np.arange(300))
    weak.prepare(rows)
    weak.update(rows, draw.integers(0, 4, 300), draw.integers(0, 2, 300).astype(float))
    found = daband.assess(weak, source=pair.source_test, target=pair.target)
    assert found.verdict != "deploy"
    assert found.low < 0


def test_a_log_counts_by_its_propensities(policy, pair):
    draw = np.random.default_rng(0)
    contexts, table = source_table(pair)
    n = len(contexts)
    arms = draw.integers(4, size=n)
    log = ArrayLog((contexts, arms, table[np.arange(n), arms], np.full(n, 0.25)), n_arms=4)
    exact = daband.assess(policy, source=pair.source_test, target=pair.target, incumbent=1)
    found = daband.assess(policy, source=log, target=pair.target, incumbent=1)
    assert abs(found.source_advantage - exact.source_advantage) < 3 * found.source_error
    # three quarters of the rewards are of other arms
    assert found.source_error > exact.source_error
    best, worst = (
        int(order(Scores(log.read_rounds(np.arange(n)), 4).values.mean(axis=0)))
        for order in (np.argmax, np.argmin)
    )
    asked = {"source": log, "target": pair.target}
    today = daband.assess(policy, **asked, incumbent=np.full(len(pair.target), worst))
    assert today.source_advantage == pytest.approx(
        today.source_value - table[np.arange(n), arms].mean()
    )
    # Before: the choice of the best arm everywhere was worth the mean of the arms that the
    # experiment drew.
    today = daband.assess(policy, **asked, incumbent=np.full(len(pair.target), best))
    assert today.source_advantage == pytest.approx(
        daband.assess(policy, **asked, incumbent=best).source_advantage
    )


def test_rewards_in_other_units(assessment, policy, pair):
    contexts, table = source_table(pair)
    units = daband.domains.from_arrays(
        source=(
            pair.source.read(np.arange(600)),
            100.0 * pair.source.read_rewards(np.arange(600))[0] - 20.0,
        ),
        source_test=(contexts, 100.0 * table - 20.0),
        target=pair.target.read(np.arange(len(pair.target))),
    )
    same = daband.assess(policy, source=units.source_test, target=units.target, unit="cents")
    assert same.source_advantage == pytest.approx(100.0 * assessment.source_advantage)
    assert same.low == pytest.approx(100.0 * assessment.low, rel=0.05)
    assert same.verdict == assessment.verdict
    assert " cents over always " in same.sentence


def test_held_out_rounds_that_are_listed_class_by_class_have_every_class():
    labels = np.repeat(np.arange(4), 1500)  # sorted, as folders of images are
    contexts = np.eye(4)[labels]
    pair = from_arrays(source=(contexts, labels), target=contexts, source_test=0.5)
    rounds = SourceRounds.read(pair.source_test, 400, seed=0)
    assert len(rounds.contexts) == 400
    np.testing.assert_allclose(rounds.rewards.mean(axis=0), 0.25, atol=0.08)


def test_few_source_rounds_lower_the_limit(assessment, policy, pair):
    contexts, table = source_table(pair)
    found = daband.assess(
        policy, source=EvaluationDomain(ArrayRewards(contexts[:40], table[:40])), target=pair.target
    )
    assert found.source_error > 1.5 * assessment.source_error
    assert found.source_rounds == 40


def test_a_target_far_from_the_source_is_not_deployed(assessment, policy, pair):
    moved = pair.target.read(np.arange(len(pair.target))) + 20.0
    found = daband.assess(policy, source=pair.source_test, target=moved)
    assert found.outside_support > 0.9
    assert found.classifier_accuracy > 0.99
    assert (assessment.verdict, found.verdict) == ("deploy", "collect rewards")
    assert any("far from every source context" in doubt for doubt in found.doubts)
    assert found.rewards_needed >= 50


def test_numbers_in_other_units_are_in_support_if_the_user_says_so():
    """A linear policy saw 89% of a market outside the source's support: its prices were compared as
    raw numbers.
    """
    draw = np.random.default_rng(0)
    x = draw.gamma(2.0, 20.0, (900, 2))
    target = 11.0 * draw.gamma(2.0, 20.0, (600, 2))
    rewards = np.stack([x[:, 0], x[:, 1]], axis=1) / x.max()
    for shift, outside in (("covariate", 0.5), ("units", 0.1)):
        pair = daband.domains.from_arrays(source=(x, rewards), target=target, shift=shift)
        policy = daband.LinUCB.for_pair(pair, seed=0)
        daband.train(policy, source=pair.source, target=pair.target, episodes=10)
        found = daband.assess(policy, source=pair.source_test, target=pair.target)
        assert (found.outside_support < outside) == (shift == "units")


def test_held_out_rounds_may_be_listed_class_by_class():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, 8000)
    centres = 3 * rng.normal(size=(6, 8))
    contexts, target = (
        centres[of] + rng.normal(size=(len(of), 8)) for of in (labels, rng.integers(0, 6, 1000))
    )
    order = np.argsort(labels, kind="stable")  # as folders of images are read
    pair = daband.domains.from_arrays(source=(contexts[order], labels[order]), target=target)
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=10)
    found = daband.assess(policy, source=pair.source_test, target=pair.target)
    assert found.classifier_accuracy < 0.6  # both domains are the same
    assert found.outside_support < 0.1


def test_with_rewards_the_verdict_uses_all_of_them(assessment):
    value = Interval(0.8, 0.7, 0.9)
    good = assessment.with_rewards(Interval(0.31, 0.05, 0.57), value, 50)
    assert good.sentence.startswith("50 target rewards: +0.310 over always ")
    assert good.sentence.endswith(", at least +0.050: deploy.")
    assert (good.low, good.high, good.value, good.rewards) == (0.05, 0.57, 0.8, 50)
    bad = assessment.with_rewards(Interval(-0.4, -0.6, -0.2), value, 50)
    assert bad.verdict == "keep the incumbent"
    assert bad.sentence.endswith(", at most -0.200: keep the incumbent.")
    # the source promised much more
    unrelated = assessment.with_rewards(Interval(0.01, -0.09, 0.11), value, 50)
    assert unrelated.verdict == "collect rewards"
    # the limit is 0.10 from the estimate, and must be 10 times closer
    assert unrelated.rewards_needed == 5_000
    assert ", at least -0.090: collect 5,000 more target rewards" in unrelated.sentence
    few = assessment.with_rewards(Interval(assessment.advantage, -0.9, 2.5), value, 10)
    assert few.verdict == "deploy"  # few rewards that agree with the source cost nothing
    assert "too few to change the verdict: deploy" in few.sentence
    agreeing = Interval(0.5 * assessment.advantage, -0.01, assessment.advantage)
    assert assessment.with_rewards(agreeing, value, 100).verdict == "deploy"
    assert (
        assessment.with_rewards(Interval(-0.1, -0.6, 0.4), value, 10).verdict == "collect rewards"
    )
    more = unrelated.with_rewards(Interval(-0.15, -0.25, -0.05), value, 100)
    assert (more.rewards, more.verdict) == (150, "keep the incumbent")
    # rewards that may be noise do not reverse a verdict that much evidence supports
    noise = assessment.with_rewards(Interval(-0.1, -0.6, assessment.low + 0.1), value, 100)
    assert (noise.verdict, noise.rewards_needed) == ("collect rewards", 100)
    again = noise.with_rewards(Interval(-0.1, -0.4, assessment.low + 0.1), value, 100)
    assert again.verdict == "keep the incumbent"
    contradiction = Interval(-0.1, -0.3, 0.5 * assessment.low)
    assert assessment.with_rewards(contradiction, value, 100).verdict == "keep the incumbent"


@pytest.mark.parametrize("estimate", [-0.1, 0.1, np.nan])
def test_rewards_without_finite_limits_change_nothing(assessment, estimate):
    """Before: "cannot convert float infinity to integer" for a positive estimate."""
    advantage = Interval(estimate, -np.inf, np.inf)
    assert assessment.with_rewards(advantage, Interval(0.5, -np.inf, np.inf), 2) is assessment


@pytest.mark.parametrize("rewards", [10, 49, 50, 1000])
@pytest.mark.parametrize("spread", [0.05, 0.5, 5.0])
def test_rewards_that_agree_do_not_revise_a_verdict(assessment, rewards, spread):
    value = Interval(0.8, 0.7, 0.9)
    assert assessment.verdict == "deploy"
    for gain in (0.01, assessment.low, 3.0 * assessment.advantage):
        interval = Interval(gain, gain - spread, max(gain + spread, assessment.low))
        assert assessment.with_rewards(interval, value, rewards).verdict == "deploy"
    keep = replace(assessment, advantage=-0.1, low=-0.3).with_verdict()
    assert keep.verdict == "keep the incumbent"
    for gain in (0.0, -0.01, -3.0):
        interval = Interval(gain, gain - spread, gain + spread)
        assert keep.with_rewards(interval, value, rewards).verdict == "keep the incumbent"


def test_the_page_and_the_file(assessment, tmp_path):
    page = str(assessment)
    assert page.startswith(assessment.sentence)
    assert f"In {assessment.shifts} shifts between real domains with data of this kind" in " ".join(
        page.split()
    )
    assessment.save(tmp_path / "a.json")
    assert read_assessment(tmp_path / "a.json") == assessment
    (tmp_path / "b.json").write_text(json.dumps({"accuracy": 0.5}))
    with pytest.raises(DataError, match=r"b\.json: .*'accuracy'"):
        read_assessment(tmp_path / "b.json")
    keep = replace(assessment, advantage=-0.1, low=-0.3).with_verdict()
    assert keep.sentence.startswith("Keep the incumbent: -0.100 over always ")


@pytest.mark.parametrize(
    ("rewards", "low", "needed"), [(1000, -0.1, 3000), (1000, 0.0, 10), (20, -0.02, 30)]
)
def test_rewards_needed_are_those_that_are_missing(assessment, rewards, low, needed):
    """Before: "collect 1000 rewards" could follow 1,000 rewards."""
    value = Interval(0.8, 0.7, 0.9)
    found = replace(assessment, verdict="collect rewards").with_rewards(
        Interval(0.1, low, 0.3), value, rewards
    )
    assert found.verdict == "collect rewards"
    assert found.rewards_needed == needed
    assert f"Collect about {needed:,} more target rewards" in " ".join(found.reasons)


@pytest.mark.parametrize("which", ["target_test", "target_labelled", "source"])
def test_a_target_with_rewards_is_rejected(policy, pair, which):
    with pytest.raises(
        InvalidInput, match=r"target .*pair\.target, .*(Evaluation|Rewards)[a-zA-Z]*: "
    ):
        daband.assess(policy, source=pair.source_test, target=getattr(pair, which))


def test_what_else_cannot_be_assessed_is_rejected(policy, pair):
    asked = {"source": pair.source_test, "target": pair.target}
    with pytest.raises(InvalidInput, match=r"policy .*str$"):
        daband.assess("p", **asked)
    with pytest.raises(InvalidInput, match=r"source .*NoneType: .*source_test=0\.1"):
        daband.assess(policy, source=None, target=pair.target)
    with pytest.raises(InvalidInput, match=r"target .*\(8,\), .*\(3,\)"):
        daband.assess(policy, source=pair.source_test, target=np.zeros((10, 3)))
    with pytest.raises(InvalidInput, match=r"arm_names .*4 .*1$"):
        daband.assess(policy, **asked, arm_names=["a"])
    with pytest.raises(InvalidInput, match=r"source .*5 .*4$"):
        daband.assess(daband.LinUCB(context_shape=(8,), n_arms=5), **asked)


def test_an_incumbent_that_becomes_right_more_often_lowers_the_expected_advantage():
    """In both targets the rule of the source holds. In the second one, the incumbent's arm is right
    nearly always, and there is little to gain.
    """
    draw = np.random.default_rng(0)
    x = draw.normal(size=(800, 2))
    labels = (x[:, 0] > 0.1).astype(int)
    targets = {"like the source": draw.normal(size=(400, 2)), "one arm": x[:400] - [3.0, 0.0]}
    assessments = {}
    for name, target in targets.items():
        pair = daband.domains.from_arrays(
            source=(x, labels), target=target, n_arms=2, shift="covariate"
        )
        policy = daband.Supervised.for_pair(pair, seed=0)
        daband.train(policy, source=pair.source, target=pair.target)
        assessments[name] = daband.assess(
            policy, source=pair.source_test, target=pair.target, incumbent=0
        )
    alike, one_arm = assessments.values()
    assert alike.source_advantage > 0.3
    assert one_arm.source_advantage > 0.3
    assert one_arm.advantage < 0.1 < alike.advantage
    assert {alike.kind, one_arm.kind} == {"full"}
    assert "predicted advantage" in alike.reference


def test_labels_that_contexts_do_not_explain_give_no_advantage():
    draw = np.random.default_rng(1)
    pair = daband.domains.from_arrays(
        source=(draw.normal(size=(120, 5)), draw.integers(2, size=120)),
        target=draw.normal(size=(200, 5)),
        shift="covariate",
    )
    policy = daband.Supervised.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target)
    assessment = daband.assess(policy, source=pair.source_test, target=pair.target)
    assert assessment.low < 0.0
    assert assessment.advantage < 0.1
    assert assessment.verdict != "deploy"


def draws(n, *, moved=0.0, stretched=1.0, seed=0, d=6):
    return moved + stretched * np.random.default_rng(seed).standard_normal((n, d))


def test_one_domain_cannot_be_told_from_itself():
    accuracy = measure_classifier_accuracy(draws(400, seed=1), draws(400, seed=2))
    assert abs(accuracy - 0.5) < 0.08


@pytest.mark.parametrize("change", [{"moved": 1.0}, {"stretched": 3.0}])
def test_a_domain_that_moved_or_was_stretched_is_told_apart(change):
    accuracy = measure_classifier_accuracy(draws(400, seed=1), draws(400, seed=2, **change))
    assert accuracy > 0.7


def test_long_contexts_are_projected_alike_in_both_domains():
    rows = np.random.default_rng(0).random((5, 3, 20, 20))
    assert project_contexts(rows).shape == (5, 48)
    np.testing.assert_array_equal(project_contexts(rows)[:2], project_contexts(rows[:2]))


def test_support_counts_contexts_that_are_far_away():
    source = draws(600, seed=3)
    assert measure_outside_support(source, draws(600, seed=4)) < 0.05
    half = np.concatenate([draws(300, seed=4), draws(300, seed=5, moved=8.0)])
    assert measure_outside_support(source, half) == pytest.approx(0.5, abs=0.05)


def test_signs_of_a_collapse():
    draw = np.random.default_rng(0)
    means = draw.random((400, 4))
    arms = means.argmax(axis=1)
    assert find_collapse_signs(arms, arms, 4) == []
    flat = " ".join(find_collapse_signs(arms, np.ones_like(arms), 4))
    assert "100% of target contexts go to arm 1" in flat
    (fewer,) = find_collapse_signs(arms, arms % 2, 4)
    assert "2 of the 4 arms used in the source are not used" in fewer


COEFFICIENTS = np.random.default_rng(2).normal(size=(5, 3))


def market(offset, seed, n=500):
    rng = np.random.default_rng(seed)
    contexts = rng.normal(size=(n, 5))
    return contexts + offset, (contexts @ COEFFICIENTS).argmax(axis=1)


@pytest.fixture(scope="module")
def markets():
    """Three markets with different styles: read in another's, a context means something else."""
    sources = {"de": market(0.0, 0), "fr": market(6.0, 1), "it": market(-6.0, 2)}
    return from_arrays(sources=sources, targets={"pl": market(12.0, 3)[0]}, shift="style")


def test_held_out_contexts_are_read_in_their_own_source(markets):
    policy = daband.LinUCB.for_pair(markets, seed=0)
    daband.train(policy, source=markets.source, target=markets.target, episodes=40)
    rounds = SourceRounds.read(markets.source_test, 120, seed=0)
    arms, means = rounds.decide(policy)
    assert set(rounds.origins) == {"de", "fr", "it"}
    for name in markets.domains.sources:
        rows = np.flatnonzero(rounds.origins == name)
        assert abs(rounds.contexts[rows].mean() - {"de": 0, "fr": 6, "it": -6}[name]) < 1
        own = policy.decide(rounds.contexts[rows], name, rule="greedy")
        np.testing.assert_allclose(means[rows], own.mean, atol=1e-9)
        assert rounds.get_rewards(arms)[rows].mean() > 0.75
    assessment = daband.assess(policy, source=markets.source_test, target=markets.target)
    # read in the style of one source, the others would be chance
    assert assessment.source_value > 0.75
    assert assessment.outside_support < 0.2
