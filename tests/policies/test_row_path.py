"""How often one row changes file on its way through a policy: the number that says whether its code
can be followed.
"""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import daband

ROOT = str(Path(daband.__file__).parent)
MAKE = {
    "linucb": lambda: daband.LinUCB(context_shape=(8,), n_arms=3),
    "daband": lambda: daband.DABand(context_shape=(8,), n_arms=3, recipe="small", device="cpu"),
}


def path_of(call):
    """The files of daband whose functions a call enters, in order."""
    files = []

    def note(frame, event, _):
        code = frame.f_code
        if (
            event == "call"
            and code.co_filename.startswith(ROOT)
            and not code.co_name.startswith("<")
        ):
            files.append(code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


@pytest.mark.parametrize(("method", "most", "calls"), [("linucb", 11, 32), ("daband", 20, 60)])
def test_a_row_that_is_learned_changes_file_seldom(method, most, calls):
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(128, 8))
    policy = MAKE[method]()
    if not policy.prepared:
        policy.prepare(contexts)
    policy.observe_target(contexts)
    policy.update(contexts, np.arange(128) % 3, rng.random(128))
    policy.adapt()
    policy.update(contexts[:1], [0], [1.0])  # the first single row loads compiled loops
    files = path_of(lambda: policy.update(contexts[:1], [0], [1.0]))
    assert sum(before != after for before, after in pairwise(files)) <= most
    assert len(files) <= calls
