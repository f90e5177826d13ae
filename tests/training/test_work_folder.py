"""A run's folder: one process at a time, one number of episodes, saved after Ctrl-C."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import daband
from daband.base._files import lock_folder
from daband.errors import FolderInUse

SCRIPT = """
import sys, time
import daband
from daband.policies import policies
pair = daband.domains.load("synthetic", tiny=True)
policy = policies.get(sys.argv[2])(context_shape=pair.context_shape, n_arms=pair.n_arms, seed=3)
settings = dict(source=pair.source, target=pair.target, episodes=12, episode_length=10, directory=sys.argv[1])
def tell(record):
    print(record["episode"], flush=True)
    time.sleep(0.2)  # long enough for a signal to arrive before the last episode
try:
    daband.train(policy, **settings, save_every=1e6, progress=tell)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""


@pytest.fixture
def pair():
    return daband.domains.load("synthetic", tiny=True)


def make(pair, **settings):
    return daband.LinUCB(context_shape=pair.context_shape, n_arms=pair.n_arms, **settings)


def start(folder, method="linucb"):
    command = [sys.executable, "-c", SCRIPT, str(folder), method]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "1\n"  # it is training
    return process


@pytest.mark.slow
def test_an_interrupt_saves_the_episode_that_is_under_way(pair, tmp_path):
    process = start(tmp_path)
    process.send_signal(signal.SIGINT)
    told, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "interrupted" in told
    saved = len((tmp_path / "episodes.jsonl").read_text().splitlines())
    # it would be 0 without the save: there is none between the first episode and the last
    assert 1 <= saved < 12
    assert not (tmp_path / ".lock").exists()
    settings = {"source": pair.source, "target": pair.target, "episodes": 12, "episode_length": 10}
    told = []
    again = daband.train(make(pair, seed=3), **settings, directory=tmp_path, progress=told.append)
    assert len(told) == 12 - saved
    np.testing.assert_array_equal(again.arm, daband.train(make(pair, seed=3), **settings).arm)


@pytest.mark.slow
def test_a_folder_in_use_is_refused(pair, tmp_path):
    process = start(tmp_path)
    policy = make(pair, seed=3)
    settings = {"source": pair.source, "target": pair.target, "episodes": 12, "episode_length": 10}
    try:
        with pytest.raises(FolderInUse, match=f"{tmp_path} .*process {process.pid}"):
            daband.train(policy, **settings, directory=tmp_path)
    finally:
        process.kill()
        process.communicate()
    assert policy.counts.sum() == 0
    # The lock has died with its process.
    assert daband.train(policy, **settings, directory=tmp_path).rounds == 120


def test_a_folder_in_use_by_another_thread(pair, tmp_path):
    settings = {"source": pair.source, "episodes": 2, "episode_length": 10, "directory": tmp_path}

    def again(_):
        with pytest.raises(FolderInUse, match=f"process {os.getpid()}"):
            daband.train(make(pair), **settings)

    daband.train(make(pair), **settings, progress=again)


@pytest.mark.parametrize("failure", ["settings", "damage", "progress"])
def test_an_error_lets_go_of_the_folder(failure, pair, tmp_path):
    settings = {"source": pair.source, "episodes": 2, "episode_length": 10, "directory": tmp_path}
    daband.train(make(pair), **settings)
    if failure == "settings":
        with pytest.raises(daband.InvalidInput):
            daband.train(make(pair, alpha=7.0), **settings)
    elif failure == "damage":
        whole = (tmp_path / "rounds.npz").read_bytes()
        (tmp_path / "rounds.npz").write_bytes(b"")
        with pytest.raises(daband.CheckpointError, match=r"rounds\.npz"):
            daband.train(make(pair), **settings)
        (tmp_path / "rounds.npz").write_bytes(whole)
    else:
        settings["directory"] = tmp_path / "other"
        with pytest.raises(ZeroDivisionError):
            daband.train(make(pair), **settings, progress=lambda _: 1 / 0)
    assert daband.train(make(pair), **settings).rounds == settings["episodes"] * 10


class TestEpisodes:
    @pytest.mark.parametrize("episodes", [2, 6])
    def test_another_number_of_them_is_refused(self, episodes, pair, tmp_path):
        settings = {"source": pair.source, "episode_length": 10, "directory": tmp_path}
        daband.train(make(pair), **settings, episodes=4)
        with pytest.raises(
            daband.InvalidInput,
            match=rf"training\.episodes: .*4, .*{episodes}\)",
        ):
            daband.train(make(pair), **settings, episodes=episodes)
        assert daband.train(make(pair), **settings, episodes=4).rounds == 40

    def test_other_data_are_refused(self, pair, tmp_path):
        other = daband.domains.load("synthetic", tiny=True, data_seed=5)
        daband.train(
            make(pair), source=pair.source, episodes=2, episode_length=10, directory=tmp_path
        )
        with pytest.raises(daband.InvalidInput, match=r"training\.data: "):
            daband.train(
                make(pair), source=other.source, episodes=2, episode_length=10, directory=tmp_path
            )


@pytest.mark.parametrize(
    "name", ["policy.safetensors", "rounds.npz", "episodes.jsonl", "config.json"]
)
@pytest.mark.parametrize("damage", ["empty", "half", "gone", "folder", "link"])
def test_damaged_files_are_named_with_what_to_do(name, damage, pair, tmp_path):
    settings = {"source": pair.source, "episodes": 2, "episode_length": 10, "directory": tmp_path}
    daband.train(make(pair), **settings)
    path = tmp_path / name
    content = path.read_bytes()
    path.unlink()
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "half":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "folder":
        path.mkdir()
    elif damage == "link":
        path.symlink_to("nowhere")
    if name in ("policy.safetensors", "config.json") and damage == "gone":
        # begins anew, or writes its settings down again
        assert daband.train(make(pair), **settings).rounds == 20
        return
    with pytest.raises(daband.DabandError, match=f"{tmp_path}.*{name}.*; .*folder"):
        daband.train(make(pair), **settings)


def test_a_directory_that_cannot_be_one(pair, tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "file").write_text("")
    for directory in (
        tmp_path / "link",
        tmp_path / "file",
        tmp_path / "file" / "below",
        "",
        "a\0b",
        3,
        b"x",
    ):
        with pytest.raises(daband.DabandError, match="directory"):
            daband.train(
                make(pair), source=pair.source, episodes=1, episode_length=10, directory=directory
            )


def test_the_next_in_line_gets_the_lock(tmp_path):
    """Whoever waits while the holder removes the lock's file must not hold a file that nobody else
    can see.
    """
    inside = 0
    most = 0
    guard = threading.Lock()

    def work():
        nonlocal inside, most
        for _ in range(5):
            with lock_folder(tmp_path, wait=True):
                with guard:
                    inside += 1
                    most = max(most, inside)
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert list(tmp_path.iterdir()) == []
