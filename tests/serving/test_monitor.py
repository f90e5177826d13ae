"""The monitor: silent while nothing has changed, whenever somebody looks, and soon aware when
something has.
"""

import threading
from dataclasses import replace

import numpy as np
import pytest

import daband
from daband.serving import Monitor
from tests.serving.kinds import KINDS, contexts_of, trained


def reference(rng, n):
    """Three kinds of numbers: continuous, heavy-tailed, and mostly zero."""
    return np.stack(
        [rng.normal(size=n), rng.lognormal(size=n), (rng.random(n) < 0.1).astype(float)], axis=1
    )


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    rng = np.random.default_rng(0)
    policy = daband.LinUCB(context_shape=(3,), n_arms=3, seed=0)
    contexts = reference(rng, 600)
    best = np.digitize(contexts[:, 0], [-0.5, 0.5])
    policy.update(contexts, np.arange(600) % 3, (best == np.arange(600) % 3).astype(float))
    path = tmp_path_factory.mktemp("monitor") / "p.daband"
    daband.export(policy, path, reference=reference(rng, 1500), arm_names=["low", "middle", "high"])
    return daband.load_deployed(path)


def test_false_alarms_are_as_rare_as_promised(deployed):
    """Of 50 streams of 200 rounds, looked at after every one, at most as many alarms as the bound
    allows.
    """
    alarms = 0
    for seed in range(50):
        monitor = Monitor(deployed, false_alarms=0.1, seed=seed)
        monitor.observe(reference(np.random.default_rng([1, seed]), 200))
        alarms += monitor.alarm
    assert alarms <= 10  # 5 are expected at most; 11 or more have a chance below 1% even then


def test_a_small_reference_makes_no_false_alarms(tmp_path):
    """Sampling error of the reference is part of the test: a monitor that took its shares for the
    truth would fail.
    """
    policy = daband.LinUCB(context_shape=(3,), n_arms=2)
    alarms = 0
    for seed in range(10):
        rng = np.random.default_rng([2, seed])
        daband.export(policy, tmp_path / "p", reference=reference(rng, 80))
        monitor = Monitor(daband.load_deployed(tmp_path / "p"), false_alarms=0.1, seed=seed)
        monitor.observe(reference(rng, 800))
        alarms += monitor.alarm
    assert alarms <= 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rows: rows + np.array([1.0, 0.0, 0.0]), "number 0"),
        (lambda rows: rows * [1.0, 2.5, 1.0], "number 1"),
        (
            lambda rows: np.where(np.arange(3) == 2, np.roll(rows[:, ::-1] > 0.2, 1, axis=0), rows),
            "number 2",
        ),
        (lambda rows: rows * [3.0, 1.0, 1.0], "number 0"),
    ],
    ids=["offset", "scale", "rare value", "spread"],
)
def test_a_change_is_found_and_named(deployed, change, reason):
    rng = np.random.default_rng(3)
    monitor = Monitor(deployed, seed=0)
    for row in reference(rng, 200):
        monitor.decide(row)
    assert not monitor.alarm
    monitor.observe(change(reference(rng, 400)))
    report = monitor.report()
    assert report.alarm
    assert report.contexts_changed
    assert reason in report.reasons
    (score,) = [score for score in report.scores if score.name == reason]
    assert 200 < score.since <= 600
    assert score.changed
    assert report.rounds == 600


def test_arm_shares(deployed):
    """Contexts that all lead to one arm: the arms' own test says so."""
    monitor = Monitor(deployed, seed=0)
    rows = reference(np.random.default_rng(5), 900)
    rows = rows[rows[:, 0] > 0.5]
    for row in rows:
        monitor.decide(row)
    report = monitor.report()
    assert report.arms_changed
    assert repr(report).startswith(f"{len(rows)} rounds: contexts and arms differ from training (")
    assert repr(replace(report, arms_changed=False)).startswith(
        f"{len(rows)} rounds: contexts differ from training ("
    )
    assert report.arm_counts["high"] == max(report.arm_counts.values())
    assert sum(report.arm_counts.values()) == report.rounds == len(rows)


def test_what_is_available_does_not_count_as_a_change(deployed):
    monitor = Monitor(deployed, seed=0)
    for row in reference(np.random.default_rng(6), 300):
        monitor.decide(row, arms=["low"])
    report = monitor.report()
    assert not report.alarm
    assert report.arm_counts == {"low": 300, "middle": 0, "high": 0}


def test_threads_share_a_monitor(deployed):
    monitor = deployed.monitor()
    rows = reference(np.random.default_rng(7), 40)
    threads = [
        threading.Thread(target=lambda: [monitor.decide(row) for row in rows]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report = monitor.report()
    assert report.rounds == sum(report.arm_counts.values()) == 160


@pytest.mark.parametrize(
    "kind", ["constant", "random", "linucb-shared", "daband", "daband-images", "linucb-epsilon"]
)
def test_every_kind_has_one(kind, tmp_path):
    policy, contexts, *_ = trained(kind)
    daband.export(policy, tmp_path / "p", reference=contexts)
    # its draws are not seeded
    monitor = daband.load_deployed(tmp_path / "p").monitor(false_alarms=1e-6)
    for row in contexts_of(KINDS[kind][1], 30, seed=4):
        monitor.decide(row)
    assert not monitor.alarm
    assert len(monitor.report().scores) >= 4


def test_without_a_reference_there_is_none(tmp_path):
    daband.export(daband.LinUCB(context_shape=(2,), n_arms=2), tmp_path / "p")
    with pytest.raises(daband.InvalidInput, match="reference=contexts"):
        daband.load_deployed(tmp_path / "p").monitor()


@pytest.mark.parametrize("level", [0.0, 1.0, -1, 2])
def test_false_alarms_are_a_probability(level, deployed):
    with pytest.raises(daband.InvalidInput, match="false_alarms"):
        deployed.monitor(false_alarms=level)
