"""Settings that a service rejects before it starts."""

import pytest

from daband.errors import InvalidInput
from daband.service import Settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"contexts": "all"},
        {"wait": 0.0},
        {"wait": float("nan")},
        {"false_alarms": 1.0},
        {"default_reward": float("inf")},
        {"hosts": "market.example"},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        Settings(**wrong)
