"""Logs in memory."""

import numpy as np
import pytest

from daband.domains import from_log
from daband.errors import InvalidInput
from tests.leaks import check_pair

N = 30
CONTEXTS = np.random.default_rng(0).random((N, 4))
LABELS = np.random.default_rng(1).integers(0, 3, N)
LABELS[:3] = [0, 1, 2]
LOG = (CONTEXTS, LABELS, (LABELS == 1).astype(float), np.full(N, 0.5))


def test_a_log_keeps_rows_together():
    test = (CONTEXTS + 2, LABELS[::-1])
    pair = from_log(source=LOG, target=CONTEXTS + 1, target_test=test, n_arms=3, source_test=0)
    check_pair(pair)
    rounds = pair.source.rounds(0, 2 * N, seed=4)
    order = pair.source.order(0, 2 * N, seed=4)
    np.testing.assert_array_equal(rounds.contexts, CONTEXTS[order])
    np.testing.assert_array_equal(rounds.arms, LABELS[order])
    np.testing.assert_array_equal(rounds.rewards, LABELS[order] == 1)


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (1, LABELS + 0.5, "arm .*float64"),
        (1, LABELS + 1, r"arm 3 .*row 2 .*0\.\.2"),
        (1, LABELS[:-1], r"arm .*\(30,\), .*\(29,\)"),
        (2, np.full(N, np.nan), "reward .*row 0"),
        (3, np.zeros(N), r"propensity .*\(0, 1\], row 0 has 0 "),
        (3, np.full(N, 1.5), r"propensity .*\(0, 1\], row 0 has 1\.5 "),
    ],
)
def test_wrong_logs(position, value, message):
    log = list(LOG)
    log[position] = value
    with pytest.raises(InvalidInput, match=message):
        from_log(source=tuple(log), target=CONTEXTS, target_test=(CONTEXTS, LABELS), n_arms=3)


@pytest.mark.parametrize("options", [{"n_arms": "3"}, {"n_arms": 3.0}])
def test_a_log_needs_whole_numbers(options):
    with pytest.raises(InvalidInput, match=r"n_arms .*('3'|3\.0)$"):
        from_log(source=LOG, target=CONTEXTS, target_test=(CONTEXTS, LABELS), **options)
