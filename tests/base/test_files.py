"""Files: archives that would fill the memory, and disks that take
nothing.
"""

import errno
import io
import os
import stat
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import daband
from daband.base import _files as files
from daband.base._files import (
    lock_folder,
    make_folder,
    read_npz,
    write_bytes,
)
from daband.errors import DataError, InvalidInput
from daband.policies import policies


def test_an_archive_that_would_fill_the_memory_is_refused(tmp_path):
    zeros = io.BytesIO()
    np.lib.format.write_array(zeros, np.zeros(1 << 14))
    with (
        zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        member.write(zeros.getvalue())
        for _ in range(1024):
            member.write(bytes(1 << 17))
    assert (tmp_path / "bomb.npz").stat().st_size < 1 << 20
    with pytest.raises(DataError, match=r"bomb\.npz .*134,"):
        read_npz(tmp_path / "bomb.npz")


def test_every_changed_byte_of_an_archive_is_an_error_of_ours_or_changes_no_value(tmp_path):
    path = tmp_path / "a.npz"
    arrays = {"x": np.arange(50), "y": np.ones(3)}
    np.savez_compressed(path, **arrays)
    whole = path.read_bytes()
    n_errors = 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << (place % 8)
        path.write_bytes(changed)
        try:
            found = read_npz(path)
        except DataError:
            n_errors += 1
        else:
            np.testing.assert_equal(found, {name: arrays[name] for name in found})
    assert n_errors > len(whole) // 2


POSIX_MODULES = ("fcntl", "grp", "pwd", "resource", "termios")
WINDOWS = """
import sys
import warnings
sys.modules.update(dict.fromkeys(sys.argv[2:]))  # these modules cannot be imported on Windows
warnings.simplefilter("ignore")  # filelock warns on POSIX systems without fcntl
import daband
import daband.service
from daband.policies import policies
pair = daband.domains.load("synthetic", tiny=True)
for name in policies.names():
    policy = policies.get(name).for_pair(pair, seed=0)
    settings = dict(source=pair.source, episodes=1, episode_length=10)
    daband.train(policy, **settings, directory=f"{sys.argv[1]}/{name}")
    policy.save(f"{sys.argv[1]}/{name}.safetensors")
    loaded = daband.load(f"{sys.argv[1]}/{name}.safetensors")
    contexts = pair.target.read(range(20))
    assert (loaded.decide(contexts).arm == policy.decide(contexts).arm).all()
    print(name)
"""


@pytest.mark.slow
def test_every_policy_is_trained_and_saved_without_the_modules_that_windows_lacks(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WINDOWS, str(tmp_path), *POSIX_MODULES],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == set(policies.names())


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free"),
        (errno.EROFS, "choose"),
        (errno.EACCES, "choose"),
    ],
)
def test_what_cannot_be_written_says_what_to_do(tmp_path, monkeypatch, number, remedy):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, "fsync", refuse)
    with pytest.raises(DataError, match=f"/p .*: {os.strerror(number)}; {remedy}"):
        write_bytes(tmp_path / "p", b"x")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(files.os, "open", refuse)
    expected = rf"cannot be written: {os.strerror(number)}; {remedy}"
    with pytest.raises(DataError, match=expected), lock_folder(tmp_path, wait=False):
        pass
    monkeypatch.setattr(files.Path, "mkdir", refuse)
    with pytest.raises(DataError, match=f"/new .*: {os.strerror(number)}; {remedy}"):
        make_folder(tmp_path / "new")


KILLED_WRITE = """
import os, sys
from daband.base import _files as files
files.os.fsync = lambda _: os._exit(9)  # as a kill before the file is complete
files.write_bytes(sys.argv[1], b"half")
"""


def test_the_next_write_removes_what_a_killed_write_left(tmp_path):
    others = [".other.1.1.tmp", f".p.{os.getpid()}.1.tmp", ".p.mine.tmp"]
    for name in others:
        (tmp_path / name).touch()
    path = str(tmp_path / "p")
    assert subprocess.run([sys.executable, "-c", KILLED_WRITE, path], check=False).returncode == 9
    assert len(list(tmp_path.iterdir())) == len(others) + 1
    write_bytes(path, b"whole")
    assert {entry.name for entry in tmp_path.iterdir()} == {*others, "p"}


def test_a_write_is_durable_in_the_file_and_in_its_folder(tmp_path, monkeypatch):
    """Without the second, a power failure may undo the rename."""
    synced = []
    monkeypatch.setattr(files.os, "fsync", lambda number: synced.append(os.fstat(number).st_mode))
    write_bytes(tmp_path / "p", b"x")
    assert [stat.S_ISDIR(mode) for mode in synced] == [False, True]


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_folder_can_be_used_on_a_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", refuse)
    for _ in range(2):
        with lock_folder(tmp_path, wait=False):
            assert list(tmp_path.iterdir())
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a" * 10_000, "a/" * 3_000, "a" * 256])
def test_a_name_longer_than_a_file_can_have_is_an_error_of_ours(name):
    policy = daband.LinUCB(context_shape=(1,), n_arms=2, seed=0)
    for use in (daband.evaluate_log, daband.fit_log, daband.learn_log):
        with pytest.raises(InvalidInput, match=r"^log .*shorter, .*[\d,]+ "):
            use(policy, name)
