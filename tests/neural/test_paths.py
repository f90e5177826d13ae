"""How far one gradient step is from ``adapt``: the files and calls that a reader follows."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np

import daband

ROOT = str(Path(daband.__file__).parent)
MAX_FILES = 8
MAX_CALLS = 60


def trace(function):
    """Return the calls of functions of daband, by file."""
    calls = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            calls.append((frame.f_code.co_filename, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def test_one_step_of_the_papers_recipe_is_a_short_path():
    policy = daband.DABand(
        context_shape=(8,), n_arms=3, recipe="paper", feedback="one_hot", device="cpu"
    )
    rng = np.random.default_rng(0)
    policy.play(rng.normal(size=(64, 8)), np.eye(3)[rng.integers(0, 3, 64)])
    policy.observe_target(rng.normal(size=(64, 8)))
    policy.adapt(steps=1)
    calls = trace(lambda: policy.adapt(steps=1))
    files = Counter(name for name, _ in calls)
    assert len(files) <= MAX_FILES, files
    assert len(calls) <= MAX_CALLS, Counter(calls)
