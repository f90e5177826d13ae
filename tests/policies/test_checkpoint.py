"""Files that are not what they should be are refused with a word of help, and none of them runs code."""

import json
import os
import pickle
import struct

import numpy as np
import pytest
import safetensors.numpy

import daband
from daband.errors import CheckpointError
from daband.policies import read_notes


@pytest.fixture
def saved(tmp_path):
    policy = daband.LinUCB(context_shape=(3,), n_arms=2, transform=daband.PCA(2).fit(np.eye(3)))
    policy.update(np.eye(3), [0, 1, 1], [0.1, 0.2, 0.3], ids=["x", 2, 2**70])
    path = tmp_path / "policy.safetensors"
    policy.save(path, notes={"why": "a test"})
    return path


def test_notes_come_back(saved):
    assert read_notes(saved) == {"why": "a test"}


def test_huge_and_odd_ids_survive(saved):
    policy = daband.load(saved)
    for known in ("x", 2, 2**70):
        with pytest.raises(daband.InvalidInput, match="learned before"):
            policy.update(np.ones((1, 3)), [0], [0.0], ids=[known])


def test_every_length_of_header_loads(tmp_path):
    """A header's length may begin with the byte that begins a pickle."""
    policy = daband.LinUCB(context_shape=(1,), n_arms=2)
    for padding in range(0, 300, 7):
        policy.save(tmp_path / "p", notes={"padding": "x" * padding})
        daband.load(tmp_path / "p")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("policy/primal.theta", lambda array: array[:1]),
        ("policy/primal.inverse", lambda array: array * np.nan),
        ("policy/primal.n_pending", lambda array: array + 33),
        ("policy/primal.counts", lambda array: array.astype(np.float64)),
        ("transform/axes", lambda array: array[:, :2]),
    ],
)
def test_arrays_that_do_not_fit_are_refused_before_compiled_code_sees_them(saved, name, change):
    _rewritten(saved, lambda _, arrays: arrays.update({name: change(arrays[name])}))
    with pytest.raises(CheckpointError, match="does not hold"):
        daband.load(saved)


@pytest.mark.parametrize("keep", [0, 4, 20, 200, -1])
def test_truncated(saved, keep):
    content = saved.read_bytes()
    saved.write_bytes(content[:keep])
    with pytest.raises(CheckpointError, match=str(saved)):
        daband.load(saved)


def test_not_ours(tmp_path):
    path = tmp_path / "other.safetensors"
    path.write_bytes(safetensors.numpy.save({"weights": np.zeros(3)}))
    with pytest.raises(CheckpointError, match="not a policy saved by daband"):
        daband.load(path)


def test_plain_text(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello, this is no policy at all")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        daband.load(path)


def test_missing(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        daband.load(tmp_path / "nothing.safetensors")


def _rewritten(saved, change):
    with safetensors.safe_open(saved, framework="np") as file:
        header = json.loads(file.metadata()["daband-policy"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(header, arrays)
    saved.write_bytes(safetensors.numpy.save(arrays, metadata={"daband-policy": json.dumps(header)}))


def test_a_newer_format(saved):
    _rewritten(saved, lambda header, _: header.update(version=99))
    with pytest.raises(CheckpointError, match=r"format version 99.*newer daband"):
        daband.load(saved)


@pytest.mark.parametrize("lost", ["rounds", "policy/primal.inverse", "ids/integers"])
def test_an_array_is_missing(saved, lost):
    _rewritten(saved, lambda _, arrays: arrays.pop(lost))
    with pytest.raises(CheckpointError, match="does not hold"):
        daband.load(saved)


def test_an_unknown_policy(saved):
    _rewritten(saved, lambda header, _: header["settings"].update(policy="linucbx"))
    with pytest.raises(CheckpointError, match="did you mean 'linucb'"):
        daband.load(saved)


class Trap:
    def __reduce__(self):
        return os.mkdir, (os.environ["DABAND_TRAP"],)


def test_a_pickle_is_never_opened(tmp_path, monkeypatch):
    trap = tmp_path / "sprung"
    monkeypatch.setenv("DABAND_TRAP", str(trap))
    for protocol in (2, 4, 5):
        path = tmp_path / f"p{protocol}.safetensors"
        path.write_bytes(pickle.dumps(Trap(), protocol=protocol))
        with pytest.raises(CheckpointError, match="pickle"):
            daband.load(path)
    assert not trap.exists()


def test_a_torch_file_is_never_opened(tmp_path):
    import torch

    path = tmp_path / "model.safetensors"
    torch.save({"a": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match="pickle or a zip"):
        daband.load(path)


def test_a_header_that_claims_gigabytes(tmp_path):
    path = tmp_path / "huge.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    with pytest.raises(CheckpointError):
        daband.load(path)


def test_a_failed_save_leaves_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()
    policy = daband.load(saved)
    policy.update(np.eye(3), [0, 0, 0], [1, 1, 1])

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        policy.save(saved)
    assert saved.read_bytes() == before
    assert [entry.name for entry in saved.parent.iterdir()] == [saved.name]
