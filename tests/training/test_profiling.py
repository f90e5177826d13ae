import itertools
import json
import time

import numpy as np
import pytest

import daband
from daband.training import _profiling as profiling
from daband.training._loop import train
from daband.training._profiling import Profile, Stopwatch


def pair():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    contexts = np.eye(3)[labels] + 0.1 * rng.normal(size=(200, 3))
    return daband.domains.from_arrays(
        source=(contexts, labels), source_test=None, target=contexts, target_test=(contexts, labels)
    )


def neural():
    return daband.DABand(context_shape=(3,), n_arms=3, recipe="small", device="cpu")


def trained(policy, some, **settings):
    return train(policy, source=some.source, target=some.target, episodes=4, episode_length=16, **settings)


def test_the_parts_add_up_to_the_wall_time_and_the_policy_is_as_it_was(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))  # a second passes with every look at it
    policy = neural()
    started = time.perf_counter()
    with Stopwatch(policy) as watch:
        trained(policy, pair())
    ended = time.perf_counter()
    total = sum(watch.seconds.values())
    assert total == ended - started - 2  # the one before it began and the one after it ended
    assert min(watch.seconds[part] for part in profiling.PARTS) > 0
    settled = dict(watch.seconds)
    policy.adapt(1)
    assert watch.seconds == settled
    for _, holder, method in policy.timed_parts():
        assert method not in vars(holder)


def test_a_part_inside_another_is_taken_out_of_it(monkeypatch):
    class Parts:
        def step(self):
            self.features()

        def features(self):
            pass

        def timed_parts(self):
            return [("step", self, "step"), ("features", self, "features")]

    now = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    parts = Parts()
    with Stopwatch(parts) as watch:
        parts.step()
    assert watch.seconds == {"host": 1.0 + 5.0, "step": 2.0 + 4.0, "features": 3.0, "head": 0.0}


@pytest.mark.parametrize("make", [neural, lambda: daband.LinUCB(context_shape=(3,), n_arms=3)])
def test_a_watched_run_does_what_an_unwatched_one_does(make):
    watched, alone = make(), make()
    with Stopwatch(watched):
        one = trained(watched, pair())
    np.testing.assert_array_equal(one.arm, trained(alone, pair()).arm)


@pytest.mark.parametrize("make", [neural, lambda: daband.Random(context_shape=(3,), n_arms=3)])
def test_one_episode_is_traced(make, tmp_path):
    policy = make()
    profile = Profile(policy, tmp_path / "run" / "trace.json")
    with profile.running(4):
        trained(policy, pair(), progress=lambda _: profile.episode_done())
    events = json.loads(profile.path.read_text())["traceEvents"]
    named = [event["name"] for event in events if event.get("ph") == "X"]
    if policy.timed_parts():
        assert named.count("daband: step") == 1
        assert "daband: features" in named
    assert sum(profile.stopwatch.seconds.values()) > 0


def test_a_run_of_one_episode_is_traced_too(tmp_path):
    policy, some = neural(), pair()
    profile = Profile(policy, tmp_path / "trace.json")
    with profile.running(1):
        train(policy, source=some.source, target=some.target, episodes=1, episode_length=16)
    assert "daband: step" in profile.path.read_text()


def test_a_trace_that_is_too_long_keeps_its_first_events(tmp_path):
    path = tmp_path / "trace.json"
    names = [{"ph": "M", "name": "process_name", "args": {"name": "python"}}]
    events = [{"ph": "X", "name": f"event {i}", "ts": 1000 - i, "dur": 1} for i in range(1000)]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": names + events}))
    profiling._shorten(path, 30_000)
    kept = json.loads(path.read_text())
    assert path.stat().st_size <= 30_000
    assert kept["schemaVersion"] == 1
    assert kept["traceEvents"][0] == names[0]
    stamps = [event["ts"] for event in kept["traceEvents"][1:]]
    assert stamps == list(range(1, len(stamps) + 1))
    assert len(stamps) > 200
