"""A deployed policy that keeps the incumbent for a fraction of its rows."""

import numpy as np
import pytest

import daband
from daband.errors import CheckpointError, InvalidInput

ARMS = ("letter", "coupon", "call")


@pytest.fixture(scope="module", params=["greedy", "ucb"])
def deployed(request, tmp_path_factory):
    policy = daband.LinUCB(
        context_shape=(2,), n_arms=3, seed=0, explore=request.param, alpha=0.5, epsilon=0.3
    )
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 2))
    arms = rng.integers(0, 3, 300)
    policy.update(rows, arms, rows[:, 0] * (arms == 0) + rng.normal(size=300))
    path = tmp_path_factory.mktemp("control") / "p.daband"
    daband.export(policy, path, arm_names=ARMS, incumbent="coupon")
    return daband.load_deployed(path)


def test_propensities_are_the_frequencies_of_both_groups_together(deployed):
    rows = np.tile([[0.4, -0.2]], (3000, 1))
    decision = deployed.decide(rows, control=0.25)
    assert decision.control == pytest.approx(np.full(len(rows), 0.25))
    assert decision.in_control.mean() == pytest.approx(0.25, abs=0.04)
    assert (decision.arm[decision.in_control] == 1).all()
    found = {arm: set(decision.propensity[decision.arm == arm].round(9)) for arm in range(3)}
    for arm, propensities in found.items():
        (propensity,) = propensities  # whichever group chose it
        assert propensity == pytest.approx((decision.arm == arm).mean(), abs=0.04)
    assert sum(
        propensity for propensities in found.values() for propensity in propensities
    ) == pytest.approx(1.0)


def test_a_row_is_decided_as_in_its_batch(deployed):
    rows = np.random.default_rng(1).normal(size=(40, 2))
    batch = deployed.decide(rows, round_number=7, control=0.5)
    singles = [
        deployed.decide(row, round_number=7 + at, control=0.5) for at, row in enumerate(rows)
    ]
    assert [one.arm for one in singles] == batch.arm.tolist()
    assert [one.in_control for one in singles] == batch.in_control.tolist()
    assert [one.propensity for one in singles] == pytest.approx(batch.propensity)
    assert 5 < sum(one.in_control for one in singles) < 35


def test_a_row_whose_incumbent_is_not_available_is_the_policys(deployed):
    rows = np.zeros((200, 2))
    decision = deployed.decide(rows, arms=["letter", "call"], control=0.9)
    assert not decision.in_control.any()
    assert not decision.control.any()
    assert set(decision.arm_name) <= {"letter", "call"}


def test_without_control_nothing_changes(deployed):
    rows = np.random.default_rng(2).normal(size=(50, 2))
    decision = deployed.decide(rows, round_number=3)
    with_none = deployed.decide(rows, round_number=3, control=0.0)
    assert not decision.control.any()
    assert not decision.in_control.any()
    assert decision.arm.tolist() == with_none.arm.tolist()
    assert decision.propensity.tolist() == with_none.propensity.tolist()


@pytest.mark.parametrize("control", [-0.1, 1.5, float("nan"), "much"])
def test_a_fraction_that_cannot_be_is_refused(deployed, control):
    with pytest.raises(InvalidInput, match="control"):
        deployed.decide([0.0, 0.0], control=control)


def test_the_incumbent_is_the_assessments_or_none(tmp_path):
    policy = daband.Constant(context_shape=(2,), n_arms=3, seed=0)
    for given, expected in (
        ({}, None),
        ({"assessment": {"incumbent_arm": 2}}, 2),
        ({"incumbent": 0}, 0),
    ):
        daband.export(policy, tmp_path / "p.daband", arm_names=ARMS, **given)
        assert daband.load_deployed(tmp_path / "p.daband").incumbent == expected
    daband.export(policy, tmp_path / "p.daband", arm_names=ARMS)
    with pytest.raises(InvalidInput, match=r"control .*incumbent"):
        daband.load_deployed(tmp_path / "p.daband").decide([0.0, 0.0], control=0.1)
    with pytest.raises(InvalidInput, match=r"incumbent: 'cupon' .*coupon"):
        daband.export(policy, tmp_path / "p.daband", arm_names=ARMS, incumbent="cupon")


def test_a_file_with_an_incumbent_that_is_no_arm_is_refused(tmp_path, monkeypatch):
    from daband.serving import _export as export

    policy = daband.Constant(context_shape=(2,), n_arms=3, seed=0)
    monkeypatch.setattr(export, "find_arm_index", lambda *_: 3)
    with pytest.raises((CheckpointError, ValueError), match="incumbent"):
        daband.export(policy, tmp_path / "p.daband", arm_names=ARMS, incumbent=0)


def test_propensities_have_no_rounding_errors(deployed):
    """Before: 0.8940000000000001 in the log of decisions."""
    decision = deployed.decide(np.random.default_rng(0).normal(size=(500, 2)), control=0.06)
    for propensity in set(decision.propensity.tolist()):
        assert propensity == round(propensity, 15)
