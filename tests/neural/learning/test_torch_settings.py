"""One thread for small networks, torch's own number for large ones, and what the user chose before
either.
"""

import subprocess
import sys

import pytest
import torch

from daband.neural.encoders._encoder import build_encoder
from daband.neural.learning import _torch_settings as torch_settings
from daband.neural.learning._torch_settings import needs_threads, use_one_thread


@pytest.fixture
def two_threads(monkeypatch):
    """Stands for a machine on which torch uses two threads by itself."""
    now = [2]
    for name in torch_settings._THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch_settings, "_N_DEFAULT_THREADS", 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[-1])
    monkeypatch.setattr(torch, "set_num_threads", now.append)
    return now


@pytest.mark.parametrize(
    ("name", "shape", "batch", "worth"),
    [
        ("mlp", (6,), 64, False),
        ("mlp", (1280,), 64, False),
        ("conv", (3, 28, 28), 64, True),
        ("conv", (3, 28, 28), 1, False),
    ],
)
def test_the_rule_goes_by_the_work_of_a_step(name, shape, batch, worth):
    encoder = build_encoder(name, context_shape=shape)
    assert needs_threads(encoder, context_shape=shape, n_contexts=2 * batch) is worth


def test_one_thread_within_the_block_and_what_it_was_behind_it(two_threads):
    with use_one_thread():
        assert two_threads[-1] == 1
    assert two_threads[-1] == 2


def test_what_the_user_chose_is_left_alone(two_threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with use_one_thread():
        assert two_threads == [2]
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(torch_settings, "_N_DEFAULT_THREADS", 8)  # so the two are a choice
    with use_one_thread():
        assert two_threads == [2]


PROGRAM = """
import hashlib, numpy as np, daband
policy = daband.DABand(context_shape=(5,), n_arms=3, device="cpu", seed=3)
rng = np.random.default_rng(0)
policy.play(rng.normal(size=(64, 5)), rng.random((64, 3)))
policy.observe_target(rng.normal(size=(64, 5)))
policy.adapt(4)
print(hashlib.sha256(policy.learner.parameter_vector.detach().numpy().tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_fresh_processes_of_one_seed_give_the_same_bits():
    outputs = {
        subprocess.check_output([sys.executable, "-c", PROGRAM], text=True) for _ in range(2)
    }
    assert len(outputs) == 1
