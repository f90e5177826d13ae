"""Gradient-boosted trees: what they learn, that order does not matter, and files that need numpy
alone.
"""

import subprocess
import sys

import numpy as np
import pytest

import daband
from daband.errors import InvalidInput
from daband.policies import _trees as trees


def rounds(n, seed=0):
    """Contexts whose best arm a straight line does not tell, evenly logged arms, and their
    rewards.
    """
    draw = np.random.default_rng(seed)
    x = draw.uniform(-1, 1, (n, 3))
    arm = draw.integers(0, 2, n)
    return x, arm, ((x[:, 0] * x[:, 1] > 0) == arm).astype(float)


def right(policy, seed=9):
    x, _, _ = rounds(1000, seed)
    return float(np.mean(policy.decide(x, rule="greedy").arm == (x[:, 0] * x[:, 1] > 0)))


def make(**settings):
    return daband.Trees(context_shape=(3,), n_arms=2, seed=0, **settings)


def test_trees_learn_what_a_line_cannot():
    policy = make()
    line = daband.LinUCB(context_shape=(3,), n_arms=2, seed=0)
    for one in (policy, line):
        one.update(*rounds(2000))
        one.adapt()
    assert right(policy) > 0.9
    assert right(line) < 0.65


def test_what_is_learned_does_not_depend_on_the_order_of_rounds():
    """An earlier draft fitted at the borders of batches, so that threads taught it
    something else.
    """
    x, arm, reward = rounds(600)
    order = np.random.default_rng(1).permutation(600)
    at_once = make()
    by_turns = make()
    at_once.update(x, arm, reward)
    at_once.adapt()
    for part in np.array_split(order, 7):
        by_turns.update(x[part], arm[part], reward[part])
    by_turns.adapt()
    assert (at_once.decide(x).mean == by_turns.decide(x).mean).all()


@pytest.mark.parametrize(("n", "depends"), [(1000, False), (4000, True)])
def test_the_seed_changes_trees_only_if_split_points_are_found_on_samples(n, depends):
    policies = [daband.Trees(context_shape=(3,), n_arms=2, seed=seed) for seed in (0, 1)]
    for policy in policies:
        policy.update(*rounds(n))
        policy.adapt()
    first, second = (
        policy.decide(rounds(200, seed=9)[0], rule="greedy").mean for policy in policies
    )
    assert np.array_equal(first, second) is not depends


def test_of_many_rounds_a_sample_is_kept_that_does_not_depend_on_their_order(monkeypatch):
    monkeypatch.setattr(trees, "MAX_STORED_ROUNDS", 100)
    x, arm, reward = rounds(900)
    kept = []
    for order in (np.arange(900), np.arange(900)[::-1]):
        policy = make()
        for part in np.array_split(order, 9):
            policy.update(x[part], arm[part], reward[part])
        stored_rounds = policy._get_stored_rounds()
        assert len(stored_rounds) <= 200
        sample = trees.sample_rounds(stored_rounds)
        kept.append(sample[np.lexsort(sample.T)])
    assert (kept[0] == kept[1]).all()


def test_adapt_fits_anew_once_a_quarter_more_rounds_have_come():
    policy = make()
    policy.update(*rounds(1000))
    assert policy.adapt()["trees"] > 0
    policy.update(*rounds(200, seed=1))
    assert policy.adapt() == {}
    assert policy.adapt(steps=1) != {}
    policy.update(*rounds(300, seed=2))
    assert policy.adapt() != {}


@pytest.mark.slow
def test_an_exported_forest_decides_without_scikit_learn(tmp_path):
    policy = make(explore="greedy")
    policy.update(*rounds(2000))
    policy.adapt()
    policy.deploy("target")
    daband.export(policy, tmp_path / "p.daband")
    x = rounds(50, seed=4)[0]
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, numpy as np, daband; d = daband.load_deployed('p.daband'); "
        "print(d.decide(np.load('x.npy')).arm.tolist()); "
        "assert not {'sklearn', 'torch'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(policy.decide(x).arm.tolist())


def test_too_many_arms_are_refused():
    with pytest.raises(InvalidInput, match=r"n_arms .*128"):
        daband.Trees(context_shape=(2,), n_arms=200)
