"""What fails in a check says which rule was broken."""

import numpy as np
import pytest

import daband
from daband.checks import check_policy


class LowestArm(daband.Constant):
    """Gives every tie to arm 0."""

    def _decide(self, *arguments):
        decision = super()._decide(*arguments)
        if self.rounds_learned:
            return decision
        return type(decision)(np.zeros_like(decision.arm), decision.propensity, decision.mean, decision.width)


def test_an_error_carries_the_rule_of_its_check():
    with pytest.raises(AssertionError) as caught:
        check_policy(LowestArm)
    (note,) = caught.value.__notes__
    assert note.startswith("daband.checks, check_")
    assert "\n" not in note


def test_ties_are_explained():
    from daband.checks.policies import check_ties_follow_the_seed

    with pytest.raises(AssertionError, match="break ties by a draw from the seed and the round"):
        check_ties_follow_the_seed(LowestArm)
