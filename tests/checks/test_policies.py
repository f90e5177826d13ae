"""What fails in a check says which rule was broken."""

import numpy as np
import pytest

import daband
from daband.checks import check_pair, check_policy
from daband.linear import RidgePredictor
from daband.policies import policies
from tests.registries import temporarily


class LowestArm(daband.Constant):
    """Gives every tie to arm 0."""

    def _predictor(self, domain):
        if self.rounds_learned:
            return super()._predictor(domain)
        return RidgePredictor.constant(np.eye(self.n_arms)[0], np.zeros(self.n_arms))


def test_an_error_carries_the_rule_of_its_check():
    with pytest.raises(AssertionError) as caught:
        check_policy(LowestArm)
    (note,) = caught.value.__notes__
    assert note.startswith("daband.checks, check_")
    assert "\n" not in note


def test_ties_are_explained():
    from daband.checks._policies import check_ties_follow_the_seed

    with pytest.raises(AssertionError, match=r"seed \d+ .*ties "):
        check_ties_follow_the_seed(LowestArm)


class DisjointArms(daband.LinUCB):
    """Has no setting ``arms``, as many a method of one's own."""

    def __init__(self, *, context_shape, n_arms, transform=None, seed=0):
        super().__init__(context_shape=context_shape, n_arms=n_arms, transform=transform, seed=seed)

    def settings(self):
        return {name: value for name, value in super().settings().items() if name in OFFERED}


OFFERED = ("context_shape", "n_arms", "transform", "seed")


def test_a_policy_without_shared_arms_is_checked_with_disjoint_ones():
    DisjointArms.name = "disjoint-arms"
    with temporarily(policies, "disjoint-arms", DisjointArms):
        check_policy(DisjointArms)


@pytest.mark.parametrize(("check", "name"), [(check_policy, "linucb"), (check_pair, "synthetic")])
def test_a_name_is_rejected_with_a_clear_error(check, name):
    with pytest.raises(daband.InvalidInput, match=name):
        check(name)
