"""A run killed at any moment and gone on with equals one left alone, bit for bit."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import daband

SCRIPT = """
import sys, time
import daband
pair = daband.domains.load("synthetic", tiny=True)
policy = daband.LinUCB(context_shape=pair.context_shape, n_arms=pair.n_arms, alpha=0.4,
                       epsilon=0.1, transform=daband.PCA(3), seed=3)
pause = float(sys.argv[2])
daband.train(policy, source=pair.source, target=pair.target, episodes=12, episode_length=10, directory=sys.argv[1],
             save_every=0.0, progress=lambda record: (print(record["episode"], flush=True), time.sleep(pause if
             record["episode"] < 11 else 36000 * pause)))  # with a pause it never ends by itself
"""


def start(folder, pause):
    command = [sys.executable, "-c", SCRIPT, str(folder), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    process = start(folder, 0.0)
    process.communicate()
    assert process.returncode == 0
    return _without_seconds(folder)


def _without_seconds(folder):
    """Everything but the clock: the policy's arrays and the other files to the bit."""
    files = contents(folder)
    files.pop("policy.safetensors")
    policy = daband.load(folder / "policy.safetensors")
    policy.save(folder / "timeless.safetensors")
    files["policy"] = (folder / "timeless.safetensors").read_bytes()
    (folder / "timeless.safetensors").unlink()
    return files


@pytest.mark.slow
@pytest.mark.parametrize("episodes", [1, 5])
def test_killed_and_resumed(unbroken, episodes, tmp_path):
    process = start(tmp_path, 0.05)
    for line in process.stdout:
        if int(line) >= episodes:
            break
    time.sleep(0.02 * episodes)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    again = start(tmp_path, 0.0)
    told, _ = again.communicate()
    assert again.returncode == 0
    assert int(told.split()[0]) > 1, "it began anew instead of going on"
    assert not list(tmp_path.glob(".*.tmp"))
    assert _without_seconds(tmp_path) == unbroken


def test_a_crash_between_any_two_writes(tmp_path, monkeypatch):
    """Every write of a save is made to fail in turn; the run that goes on from what is left ends
    the same.
    """
    pair = daband.domains.load("synthetic", tiny=True)

    def run(folder):
        policy = daband.LinUCB(
            context_shape=pair.context_shape, n_arms=pair.n_arms, alpha=0.4, seed=1
        )
        return daband.train(
            policy,
            source=pair.source,
            episodes=4,
            episode_length=8,
            directory=folder,
            save_every=0.0,
        )

    whole = run(tmp_path / "whole")
    wanted = _without_seconds(tmp_path / "whole")
    real = os.replace
    writes = 1 + 5 * 3  # the settings once; three files at the start and after every episode
    for crash in range(writes):
        folder = tmp_path / f"crash{crash}"
        count = iter(range(1000))

        def replace(source, target, crash=crash, count=count):
            if next(count) == crash:
                raise KeyboardInterrupt
            real(source, target)

        monkeypatch.setattr(os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            run(folder)
        monkeypatch.setattr(os, "replace", real)
        again = run(folder)
        np.testing.assert_array_equal(again.arm, whole.arm)
        assert _without_seconds(folder) == wanted


def test_a_finished_run_is_read_not_repeated(tmp_path):
    pair = daband.domains.load("synthetic", tiny=True)

    def run():
        policy = daband.LinUCB(context_shape=pair.context_shape, n_arms=pair.n_arms)
        told = []
        result = daband.train(
            policy,
            source=pair.source,
            episodes=3,
            episode_length=9,
            directory=tmp_path,
            progress=told.append,
        )
        return result, told, policy

    first, told, policy = run()
    assert len(told) == 3
    second, told, same = run()
    assert told == []
    np.testing.assert_array_equal(first.regret, second.regret)
    assert second.seconds == first.seconds
    probe = pair.target.batch(0, 20, seed=0)
    np.testing.assert_array_equal(policy.decide(probe).mean, same.decide(probe).mean)


def test_interrupted_and_called_again_with_the_same_policy(tmp_path):
    """As in a notebook: the policy has learned since the last save, and must not learn those rounds
    twice.
    """
    pair = daband.domains.load("synthetic", tiny=True)

    def make():
        return daband.LinUCB(context_shape=pair.context_shape, n_arms=pair.n_arms)

    def stop(record):
        if record["episode"] == 3:
            raise KeyboardInterrupt

    policy = make()
    settings = {
        "source": pair.source,
        "episodes": 8,
        "episode_length": 10,
        "directory": tmp_path / "a",
    }
    with pytest.raises(KeyboardInterrupt):
        daband.train(policy, **settings, progress=stop)
    again = daband.train(policy, **settings)
    whole = daband.train(make(), source=pair.source, episodes=8, episode_length=10)
    np.testing.assert_array_equal(again.arm, whole.arm)
    assert again.arm.dtype == np.int64
    assert policy.counts.sum() == 80


@pytest.mark.parametrize("damage", ["rounds.npz", "episodes.jsonl"])
def test_a_damaged_folder_says_what_to_do(damage, tmp_path):
    pair = daband.domains.load("synthetic", tiny=True)

    def run():
        policy = daband.LinUCB(context_shape=pair.context_shape, n_arms=pair.n_arms)
        daband.train(policy, source=pair.source, episodes=2, episode_length=20, directory=tmp_path)

    run()
    (tmp_path / damage).write_bytes(b"garbage")
    with pytest.raises(daband.CheckpointError, match=f"{tmp_path} .*{damage}.*; .*folder"):
        run()


@pytest.mark.parametrize("name", ["rounds.npz", "episodes.jsonl"])
def test_a_changed_bit_is_never_resumed_from(name, tmp_path):
    pair = daband.domains.load("synthetic", tiny=True)
    settings = {
        "source": pair.source,
        "target": pair.target,
        "episode_length": 10,
        "directory": tmp_path,
    }
    policy = daband.LinUCB.for_pair(pair, seed=0)
    run = daband.train(policy, episodes=4, **settings)
    path = tmp_path / name
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), max(1, len(whole) // 150)):
        changed = bytearray(whole)
        changed[place] ^= 1 << (place % 8)
        path.write_bytes(changed)
        try:
            again = daband.train(daband.LinUCB.for_pair(pair, seed=0), episodes=4, **settings)
        except daband.CheckpointError:
            refused += 1
        else:  # the bit was no part of a number, such as a time in the archive
            assert again.episodes == run.episodes
            np.testing.assert_array_equal(again.regret, run.regret)
            np.testing.assert_array_equal(again.reward, run.reward)
    assert refused > 100
