"""When a graph is recorded, replayed and forgotten, with a recorder that needs no GPU."""

import warnings

import pytest

from daband.neural.learning._stack_trainer import RecordableFunction
from tests.neural.learning.test_batches import episode, policy


class Recorder:
    """Keeps what it is given and replays it by running it; notes what it was asked for."""

    def __init__(self, broken=False):
        self.calls = []
        self.broken = broken

    def warm_up(self, work):
        self.calls.append("warm up")
        work()

    def record(self, work):
        if self.broken:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.calls.append("record")

        def replay():
            self.calls.append("replay")
            work()

        return replay


def runner(recorder):
    taken = []
    return RecordableFunction(taken.append, recorder), taken


def test_three_steps_warm_up_and_the_next_is_recorded_and_replayed():
    recorder = Recorder()
    graph, taken = runner(recorder)
    for _ in range(5):
        graph.run(False)
    assert recorder.calls == ["warm up"] * 3 + ["record", "replay", "replay"]
    assert taken == [False] * 5  # every step was taken once


def test_the_step_that_measures_has_a_recording_of_its_own():
    recorder = Recorder()
    graph, taken = runner(recorder)
    for measure in (True, False, False, False, True, True, False):
        graph.run(measure)
    assert recorder.calls == ["warm up"] * 3 + [
        "record",
        "replay",
        "record",
        "replay",
        "replay",
        "replay",
    ]
    assert taken == [True, False, False, False, True, True, False]


def test_after_forgetting_the_step_is_warmed_up_and_recorded_anew():
    recorder = Recorder()
    graph, _ = runner(recorder)
    for _ in range(4):
        graph.run(False)
    graph.discard_recordings()
    for _ in range(4):
        graph.run(False)
    assert recorder.calls == (["warm up"] * 3 + ["record", "replay"]) * 2


def test_where_recording_fails_every_step_is_taken_eagerly_and_once():
    recorder = Recorder(broken=True)
    graph, taken = runner(recorder)
    for _ in range(3):
        graph.run(False)
    with pytest.warns(UserWarning, match="cannot be recorded as a CUDA graph"):
        graph.run(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph.run(True)
        graph.discard_recordings()
        graph.run(False)
    assert graph.is_eager
    assert recorder.calls == ["warm up"] * 3
    assert taken == [False] * 4 + [True, False]


def test_an_eager_runner_takes_every_step():
    taken = []
    eager = RecordableFunction(taken.append)
    eager.run(True)
    eager.discard_recordings()
    eager.run(False)
    assert taken == [True, False]


@pytest.mark.parametrize("place", ["device", "host"])
def test_the_steps_of_a_policy_behind_a_graph_runner_are_those_behind_the_eager_one(place):
    eager = policy(place)
    recorded = policy(place)
    recorder = Recorder()
    for number, steps in enumerate((5, 3, 9)):  # the third episode adds target rounds
        for some in (eager, recorded):
            episode(some, number)
        if number == 0:
            recorded.adapt(0)
            trainer = trainer_of(recorded)
            trainer.recordable_step = RecordableFunction(trainer.gradient_step, recorder)
        for some in (eager, recorded):
            some.adapt(steps)
    assert "replay" in recorder.calls
    ours = eager.learner.state()
    theirs = recorded.learner.state()
    assert all((ours[name] == theirs[name]).all() for name in ours)


def trainer_of(some):
    from daband.neural.learning._stack_trainer import StackTrainer

    return StackTrainer([some.learner])


def test_a_buffer_that_moved_or_begins_to_hold_something_is_recorded_anew():
    some = policy("device")
    recorder = Recorder()
    episode(some, 0)
    trainer = trainer_of(some)
    trainer.recordable_step = RecordableFunction(trainer.gradient_step, recorder)
    some.adapt(8)
    once = list(recorder.calls)
    some.adapt(8)
    assert recorder.calls[len(once) :] == ["replay"] * 8  # nothing has moved
    episode(some, 2)  # with target rounds
    before = len(recorder.calls)
    some.adapt(5)
    assert recorder.calls[before : before + 3] == ["warm up"] * 3
    source = some.buffers.rounds[0]
    source.columns["contexts"] = source.contexts.clone()
    before = len(recorder.calls)
    some.adapt(5)
    assert recorder.calls[before : before + 3] == ["warm up"] * 3
