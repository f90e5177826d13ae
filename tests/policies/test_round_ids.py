"""Round ids: each counts once, within a bounded window."""

import numpy as np

import daband
from daband.policies.round_ids import RoundIds


def test_the_window_forgets_the_oldest():
    ids = RoundIds(window=3)
    ids.add([1, "b", 3, 4])
    assert len(ids) == 3
    assert ids.unknown([1, "b", 3, 4, 1]).tolist() == [True, False, False, False, False]


def test_the_order_survives_saving():
    for names in ([5, 3, 9], ["x", 2, "y"], [2**70, 1]):
        ids, restored = RoundIds(window=3), RoundIds(window=3)
        ids.add(names)
        restored.restore(ids.state())
        restored.add(["new"])
        expected = [*names, "new"][-3:]
        assert restored.unknown([*names, "new"]).tolist() == [name not in expected for name in [*names, "new"]]


def test_a_long_lived_policy_keeps_a_bounded_number(monkeypatch):
    monkeypatch.setattr(daband.LinUCB, "id_window", 50)
    policy = daband.LinUCB(context_shape=(2,), n_arms=2)
    for start in range(0, 500, 100):
        policy.update(np.ones((100, 2)), np.zeros(100, int), np.ones(100), ids=np.arange(start, start + 100))
    assert len(policy._ids) == 50
    assert policy.update(np.ones((2, 2)), [0, 0], [1, 1], ids=[499, 1000], on_duplicate="skip") == [499]
