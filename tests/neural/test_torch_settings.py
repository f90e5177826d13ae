"""Processes of one seed give the same bits, and devices are found by name."""

import subprocess
import sys

import pytest
import torch

from daband.errors import InvalidInput
from daband.neural._torch_settings import find_device, has_bfloat16, use_single_precision

PROGRAM = """
import hashlib, numpy as np, daband
policy = daband.DABand(context_shape=(5,), n_arms=3, device="cpu", seed=3)
rng = np.random.default_rng(0)
policy.play(rng.normal(size=(64, 5)), rng.random((64, 3)))
policy.observe_target(rng.normal(size=(64, 5)))
policy.adapt(4)
state = policy.learner.state()
print(hashlib.sha256(b''.join(array.tobytes() for array in state.values())).hexdigest())
"""


@pytest.mark.slow
def test_fresh_processes_of_one_seed_give_the_same_bits():
    outputs = {
        subprocess.check_output([sys.executable, "-c", PROGRAM], text=True) for _ in range(2)
    }
    assert len(outputs) == 1


def test_devices_are_found_by_name():
    assert find_device("cpu").type == "cpu"
    assert not has_bfloat16(find_device("cpu"))
    for wrong in ("tpu9", "meta", 3):
        with pytest.raises(InvalidInput, match="device"):
            find_device(wrong)


def test_the_default_dtype_is_single_within_the_block_only():
    torch.set_default_dtype(torch.float64)
    try:
        with use_single_precision():
            assert torch.zeros(1).dtype == torch.float32
        assert torch.zeros(1).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
