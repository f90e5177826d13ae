"""``daband.assess`` from trained policies to a page: what it says, what it refuses, what it leaves as it was."""

import json

import numpy as np
import pytest

import daband
from daband.domains.readers._arrays import ArrayEvaluation
from daband.domains.readers._logs import ArrayLog
from daband.errors import DataError, InvalidInput, NotFitted
from daband.evaluation._policy_scores import scores_of
from daband.trust._assess import assess_each
from daband.trust._assessment import Assessment, read_assessment

NOBODY_STATED = daband.Shift(("covariate",))  # the pair itself states a style


@pytest.fixture(scope="module")
def pair():
    shift = {"rotation": 20.0, "translation": 0.1, "frequency": 0.0}
    return daband.domains.load("synthetic", rewards="labels", n_contexts=1500, dimension=8, n_arms=4, view=shift)


@pytest.fixture(scope="module")
def committee(pair):
    policies = [daband.LinUCB.for_pair(pair, seed=seed) for seed in range(3)]
    daband.train(policies, source=pair.source, target=pair.target, episodes=12)
    return policies


@pytest.fixture(scope="module")
def assessment(committee, pair):
    return daband.assess(committee, source=pair.source_test, target=pair.target, arm_names=pair.class_names)


def test_a_good_policy_may_be_handed_over(assessment, committee, pair):
    true = daband.evaluate(committee[0], pair.target_test)
    assert true.accuracy > 0.9
    assert abs(assessment.accuracy - true.accuracy) < 0.1
    assert assessment.value == assessment.accuracy  # one arm pays 1
    assert assessment.required < assessment.low <= true.value
    assert assessment.verdict == "hand over"
    assert assessment.sentence.startswith("Hand over: ")
    assert len(assessment.explanations) >= 3
    assert assessment.agreement > 0.8
    assert "every explanation" in assessment.why


def test_one_policy_alone_is_read_in_several_ways(assessment, committee, pair):
    alone = daband.assess(committee[0], source=pair.source_test, target=pair.target, shift=NOBODY_STATED)
    assert len(alone.explanations) > 1  # as trained, and in other units
    assert abs(alone.value - assessment.value) < 0.1


def test_what_the_user_states_rules_explanations_out(committee, pair):
    asked = {"source": pair.source_test, "target": pair.target}
    anything = daband.assess(committee[0], **asked, shift=NOBODY_STATED)
    covariate = daband.assess(committee[0], **asked, shift="covariate")
    assert not any("other units" in name for name in covariate.explanations)
    assert any("other units" in name for name in anything.explanations)
    assert covariate.assumed == "covariate"


def test_where_explanations_disagree_the_verdict_is_to_ask_and_says_why():
    """Warm for here is not warm: by the source's statistics nearly all is one arm, by its own statistics half is."""
    draw = np.random.default_rng(0)
    x, warm = draw.normal(size=(2000, 2)), draw.normal([1.3, 0.0], size=(1500, 2))
    labels = (x[:, 0] > 0).astype(int)
    pair = daband.domains.from_arrays(source=(x, labels), target=warm, n_arms=2)
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=20)
    found = daband.assess(policy, source=pair.source_test, target=pair.target)
    assert found.disagreement > 0.25
    assert found.low <= 1.0 - found.disagreement  # what it is worth if the other explanation is right
    assert found.verdict != "hand over"
    stated = daband.assess(policy, source=pair.source_test, target=pair.target, shift="covariate")
    assert stated.low > found.low


def test_the_page_says_what_it_assumes_and_what_cannot_be_seen(assessment):
    page = str(assessment)
    assert page.startswith(assessment.sentence)
    for words in ("cannot be seen without rewards", "necessary for a good transfer, and not sufficient", "arm 3"):
        assert words in " ".join(page.split())


def test_arms_are_told_one_by_one(assessment, committee, pair):
    assert [arm.arm for arm in assessment.per_arm] == [0, 1, 2, 3]
    for name in ("source_share", "target_share", "expected_source", "expected_target"):
        assert sum(getattr(arm, name) for arm in assessment.per_arm) == pytest.approx(1.0)
    shares = np.array([arm.target_share for arm in assessment.per_arm])
    values = np.array([arm.value for arm in assessment.per_arm])
    assert shares @ values == pytest.approx(assessment.value, abs=1e-3)
    assert all(arm.supported for arm in assessment.per_arm)
    assert assessment.arm_frequencies == [arm.expected_target for arm in assessment.per_arm]


def test_it_survives_json(assessment, tmp_path):
    assert Assessment.from_dict(json.loads(json.dumps(assessment.as_dict()))) == assessment
    assessment.save(tmp_path / "assessment.json")
    assert read_assessment(tmp_path / "assessment.json") == assessment
    (tmp_path / "other.json").write_text('{"accuracy": 1}')
    with pytest.raises(DataError, match=r"other\.json.*not the fields of an assessment"):
        read_assessment(tmp_path / "other.json")


def test_policies_are_not_changed_and_the_answer_is_the_same_again(assessment, committee, pair):
    before = [policy.rounds_decided for policy in committee]
    again = daband.assess(committee, source=pair.source_test, target=pair.target, arm_names=pair.class_names)
    assert again == assessment
    assert [policy.rounds_decided for policy in committee] == before


def test_each_policy_is_assessed_with_the_others_as_explanations(assessment, committee, pair):
    each = assess_each(committee, source=pair.source_test, target=pair.target, arm_names=pair.class_names)
    assert each[0] == assessment
    turned = daband.assess(
        [committee[1], committee[0], committee[2]], source=pair.source_test, target=pair.target,
        arm_names=pair.class_names,
    )  # fmt: skip
    assert turned.value == pytest.approx(each[1].value)
    assert turned.low == pytest.approx(each[1].low)


def skewed_pair():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(1200, 3))
    rewards = np.stack([40.0 * (x[:, 0] > 0), 40.0 * (x[:, 0] <= 0)], axis=1) + draw.exponential(5.0, (1200, 2))
    return daband.domains.from_arrays(source=(x, rewards), target=x)


def test_members_that_estimated_different_ranges_of_rewards_are_in_one_unit():
    pair = skewed_pair()
    members = [daband.LinUCB.for_pair(pair, seed=seed) for seed in range(3)]
    daband.train(members, source=pair.source, target=pair.target, episodes=10)
    assert len({policy.reward_moments.observed for policy in members}) == 3
    given = {"source": pair.source_test, "target": pair.target}
    for index, found in enumerate(assess_each(members, **given)):
        first = daband.assess([members[index], *members[:index], *members[index + 1 :]], **given)
        assert found.source_value == pytest.approx(first.source_value)
        assert found.required == pytest.approx(first.required, rel=0.01)
        assert found.value == pytest.approx(first.value, rel=0.05)


def test_what_is_required_by_default_is_what_a_constant_arm_paid():
    pair = skewed_pair()
    members = [daband.LinUCB.for_pair(pair, seed=seed) for seed in range(2)]
    daband.train(members, source=pair.source, target=pair.target, episodes=10)
    found = daband.assess(members, source=pair.source_test, target=pair.target)
    paid = pair.source_test.read_expected(0, len(pair.source_test)).mean(axis=0).max()
    assert found.required >= paid - 1e-9
    assert found.required == pytest.approx(paid, rel=0.1)


def test_what_arms_pay_in_a_log_is_weighted_by_propensities():
    draw = np.random.default_rng(1)
    x = draw.normal(size=(2000, 3))
    right = x[:, 0] > 0
    first = draw.random(2000) < np.where(right, 0.9, 0.1)  # the log prefers the first arm where it pays
    propensity = np.where(first == right, 0.9, 0.1)
    log = ArrayLog(x, np.where(first, 0, 1), np.where(first, right, 0.0), propensity, n_arms=3)
    scores, _, _ = scores_of([daband.Constant(context_shape=(3,), n_arms=3)], source=log, target=log, contexts=2000)
    np.testing.assert_allclose(scores.arm_value[:2], [0.5, 0.0], atol=0.06)
    assert np.isnan(scores.arm_value[2])  # never logged


def test_held_out_rounds_may_be_listed_class_by_class():
    rng = np.random.default_rng(0)
    labels, centres = rng.integers(0, 6, 8000), 3 * rng.normal(size=(6, 8))
    contexts, target = (centres[of] + rng.normal(size=(len(of), 8)) for of in (labels, rng.integers(0, 6, 1000)))
    order = np.argsort(labels, kind="stable")  # as folders of images are read
    pair = daband.domains.from_arrays(source=(contexts[order], labels[order]), target=target)
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=10)
    found = daband.assess(policy, source=pair.source_test, target=pair.target)
    assert found.shift.before < 0.6  # both domains are the same
    assert found.outside_support < 0.1


def test_what_is_required_decides(committee, pair):
    high = daband.assess(committee, source=pair.source_test, target=pair.target, required=0.999)
    assert high.verdict == "do not"
    assert high.required == pytest.approx(0.999)
    asked = {"source": pair.source_test, "target": pair.target}
    close = daband.assess(committee, **asked, required=high.low)
    assert close.verdict == "ask"
    assert close.sentence.startswith(f"Ask for {close.audit_rewards} rewards")
    few = daband.assess(committee, source=pair.source_test, target=pair.target.read(np.arange(30)), required=0.0)
    near = few.judge(required=few.value - 0.01)
    assert (near.verdict, near.audit_rewards) == ("ask", 30)  # no more contexts are there
    assert [one for one in near.reasons if "is required." in one] == [f"A value of {near.required:.3g} is required."]


def test_explanations_have_the_names_of_policies(committee, pair):
    asked = {"source": pair.source_test, "target": pair.target, "shift": NOBODY_STATED}
    named = daband.assess(committee, **asked, policy_names=["ours", "theirs", "ours"])
    bare = daband.assess(committee, **asked)
    assert {name.partition(": ")[0] for name in named.explanations} == {"policy 0", "theirs", "policy 2"}
    assert list(named.explanations.values()) == list(bare.explanations.values())
    with pytest.raises(InvalidInput, match="policy_names has 1 names for 3 policies"):
        daband.assess(committee, **asked, policy_names=["ours"])


def test_the_page_tells_of_one_adapted_method_only_where_there_is_one(assessment, pair):
    policies = [daband.DABand.for_pair(pair, recipe="small", seed=0), daband.LinUCB.for_pair(pair, seed=0)]
    daband.train(policies, source=pair.source, target=pair.target, episodes=2)
    asked = {"source": pair.source_test, "target": pair.target}
    pages = [str(one) for one in (daband.assess(policies[0], **asked), daband.assess(policies, **asked), assessment)]
    assert ["one method, which adapted" in " ".join(page.split()) for page in pages] == [True, False, False]


def test_a_target_turned_too_far_is_not_handed_over(committee, pair):
    shuffled = pair.target.read(np.arange(len(pair.target))) * -1.0
    found = daband.assess(committee, source=pair.source_test, target=shuffled)
    assert found.verdict != "hand over"
    assert found.outside_support > 0.5
    assert found.shift.before > 0.8


def test_a_target_far_from_the_source_is_not_handed_over(assessment, committee, pair):
    moved = pair.target.read(np.arange(len(pair.target))) + 20.0
    found = daband.assess(committee, source=pair.source_test, target=moved)
    assert assessment.verdict == "hand over"
    assert found.verdict != "hand over"
    assert found.outside_support > 0.9
    assert found.shift.before > 0.99


def test_rewards_in_other_units_give_a_value_in_those(pair):
    far = {"rotation": 10.0, "translation": 0.0, "frequency": 0.0}
    graded = daband.domains.load("synthetic", rewards="linear", n_contexts=1500, dimension=8, n_arms=4, view=far)
    rows = np.arange(len(graded.source))
    paid = 100.0 * graded.source.read_rewards(rows)[1] - 20.0
    held = graded.source_test
    n = len(held)
    units = daband.domains.from_arrays(
        source=(graded.source.read(rows), paid),
        source_test=(held.read(0, n), 100.0 * held.read_expected(0, n) - 20.0),
        target=graded.target.read(rows),
    )
    policies = [daband.LinUCB.for_pair(units, seed=seed) for seed in range(2)]
    daband.train(policies, source=units.source, target=units.target, episodes=10)
    found = daband.assess(policies, source=units.source_test, target=units.target)
    true = 100.0 * daband.evaluate(policies[0], graded.target_test).value - 20.0
    assert abs(found.value - true) < 15.0
    assert found.low < true
    assert found.low < found.value
    assert 0 <= found.accuracy <= 1


def test_a_log_counts_by_its_propensities(committee, pair):
    draw = np.random.default_rng(0)
    n = len(pair.source_test)
    x, table = pair.source_test.read(0, n), pair.source_test.read_expected(0, n)
    arms = draw.integers(4, size=n)
    log = ArrayLog(x, arms, table[np.arange(n), arms], np.full(n, 0.25), n_arms=4)
    found = daband.assess(committee, source=log, target=pair.target)
    exact = daband.assess(committee, source=pair.source_test, target=pair.target)
    assert found.source_value == pytest.approx(exact.source_value, abs=0.05)
    assert found.value - found.low > exact.value - exact.low  # a quarter of the log tells of the policy's own choices
    assert any("fewer than 100" in reason for reason in found.reasons)


def test_few_source_rounds_are_said_and_widen_the_interval(assessment, committee, pair):
    few = ArrayEvaluation(pair.source_test.read(0, 60), pair.source_test.read_expected(0, 60))
    found = daband.assess(committee, source=few, target=pair.target)
    assert any("fewer than 100, so the interval is wider" in reason for reason in found.reasons)
    assert found.source_error > 1.5 * assessment.source_error


def test_one_policy_twice_is_refused(committee, pair, tmp_path):
    asked = {"source": pair.source_test, "target": pair.target}
    with pytest.raises(InvalidInput, match=r"policies\[1\] is there twice"):
        daband.assess([committee[0], committee[0]], **asked)
    committee[0].save(tmp_path / "copy.safetensors")
    with pytest.raises(InvalidInput, match="they are one policy"):
        daband.assess([committee[0], daband.load(tmp_path / "copy.safetensors")], **asked)


def test_policies_of_different_arms_are_refused(committee, pair):
    more = daband.LinUCB(context_shape=(8,), n_arms=5, seed=9)
    with pytest.raises(InvalidInput, match=r"policies\[1\] has n_arms=5, policies\[0\] has 4"):
        daband.assess([committee[0], more], source=pair.source_test, target=pair.target)


@pytest.mark.parametrize("which", ["target_test", "target_labelled", "source"])
def test_a_target_that_pays_is_refused(committee, pair, which):
    with pytest.raises(InvalidInput, match="target must be contexts without rewards"):
        daband.assess(committee, source=pair.source_test, target=getattr(pair, which))


def test_what_else_cannot_be_assessed_is_refused(committee, pair):
    asked = {"source": pair.source_test, "target": pair.target}
    with pytest.raises(InvalidInput, match="policies is empty"):
        daband.assess([], **asked)
    with pytest.raises(InvalidInput, match=r"policies\[0\] must be a daband policy, got str"):
        daband.assess(["p"], **asked)
    with pytest.raises(InvalidInput, match=r"source must be source rounds .*source_test=\.1"):
        daband.assess(committee, source=None, target=pair.target)
    with pytest.raises(InvalidInput, match="required must be a finite number"):
        daband.assess(committee, **asked, required=float("nan"))
    with pytest.raises(InvalidInput, match="target has contexts of shape"):
        daband.assess(committee, source=pair.source_test, target=np.zeros((10, 3)))
    with pytest.raises(InvalidInput, match="arm_names has 1 names for 4 arms"):
        daband.assess(committee, **asked, arm_names=["a"])
    with pytest.raises(NotFitted, match="has learned from no round"):
        daband.assess(daband.DABand.for_pair(pair, recipe="small"), **asked)


def test_a_neural_committee_is_trained_in_a_stack_and_assessed(pair):
    policies = [daband.DABand.for_pair(pair, recipe="small", seed=seed, device="cpu") for seed in range(2)]
    runs = daband.train(policies, source=pair.source, target=pair.target, episodes=3)
    assert [run.rounds for run in runs] == [192, 192]
    found = daband.assess(policies, source=pair.source_test, target=pair.target)
    assert found.shift.after is not None
    assert 0 <= found.low <= found.value <= 1


def test_several_policies_are_kept_in_folders_of_their_own(pair, tmp_path):
    policies = [daband.LinUCB.for_pair(pair, seed=seed) for seed in (4, 5)]
    runs = daband.train(policies, source=pair.source, episodes=2, directory=tmp_path)
    assert len(runs) == 2
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["0", "1"]
    with pytest.raises(InvalidInput, match=r"policy\[1\] is there twice"):
        daband.train([policies[0], policies[0]], source=pair.source, episodes=2)
    with pytest.raises(InvalidInput, match="empty list"):
        daband.train([], source=pair.source, episodes=2)


def test_numbers_in_other_units_are_in_support_where_the_user_says_so():
    """A linear policy saw 89% of a market outside the source's support: its prices were compared as raw numbers."""
    draw = np.random.default_rng(0)
    x, target = draw.gamma(2.0, 20.0, (900, 2)), 11.0 * draw.gamma(2.0, 20.0, (600, 2))
    rewards = np.stack([x[:, 0], x[:, 1]], axis=1) / x.max()
    for units, outside in ((None, 0.5), ([0, 1], 0.1)):
        pair = daband.domains.from_arrays(source=(x, rewards), target=target, shift="units" if units else "covariate")
        policy = daband.LinUCB.for_pair(pair, seed=0)
        daband.train(policy, source=pair.source, target=pair.target, episodes=10)
        found = daband.assess([policy], source=pair.source_test, target=pair.target)
        assert (found.outside_support < outside) == (units is not None)
