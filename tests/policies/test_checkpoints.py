"""Files that are not what they should be are refused with a word of help, and none of them runs
code.
"""

import contextlib
import os
import pickle
import stat
import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import daband
from daband.errors import CheckpointError
from daband.policies import policies
from daband.policies._checkpoints import (
    CHECKPOINT_VERSION,
    read_checkpoint,
    write_checkpoint,
)
from tests.registries import temporarily


@pytest.fixture
def saved(tmp_path):
    policy = daband.LinUCB(context_shape=(3,), n_arms=2, transform=daband.PCA(2).fit(np.eye(3)))
    policy.update(np.eye(3), [0, 1, 1], [0.1, 0.2, 0.3], ids=["x", 2, 2**70])
    path = tmp_path / "policy.safetensors"
    policy.save(path, notes={"why": "a test"})
    return path


def test_notes_come_back(saved):
    assert read_checkpoint(saved).notes == {"why": "a test"}


def test_huge_and_odd_ids_survive(saved):
    policy = daband.load(saved)
    for known in ("x", 2, 2**70):
        with pytest.raises(daband.InvalidInput, match=rf"^ids .* {known!r} .*on_duplicate"):
            policy.update(np.ones((1, 3)), [0], [0.0], ids=[known])


def test_every_length_of_header_loads(tmp_path):
    """A header's length may begin with the byte that begins a pickle."""
    policy = daband.LinUCB(context_shape=(1,), n_arms=2)
    for padding in range(0, 300, 7):
        notes = {"padding": "x" * padding}
        policy.save(tmp_path / "p", notes=notes)
        assert daband.load(tmp_path / "p").n_arms == 2
        assert read_checkpoint(tmp_path / "p").notes == notes


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("policy/primal.theta", lambda array: array[:1]),
        ("policy/primal.A_inv", lambda array: array * np.nan),
        ("policy/primal.updates", lambda array: array - 9),
        ("policy/primal.counts", lambda array: array.astype(np.float64)),
        ("transform/0.axes", lambda array: array[:, :2]),
    ],
)
def test_arrays_that_do_not_fit_are_refused_before_compiled_code_sees_them(saved, name, change):
    _rewritten(saved, lambda _, arrays: arrays.update({name: change(arrays[name])}))
    with pytest.raises(CheckpointError, match="describes: "):
        daband.load(saved)


def test_an_unknown_array_is_refused(saved):
    _rewritten(saved, lambda _, arrays: arrays.update({"policy/more": np.zeros(3)}))
    with pytest.raises(CheckpointError, match="policy/more"):
        daband.load(saved)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (daband.LinUCB, {"n_arms": 10**7}),
        (daband.LinUCB, {"context_shape": [8_000]}),
        (daband.Constant, {"n_arms": 10**7}),
        (daband.Random, {"n_arms": 10**8}),
        (daband.RulePolicy, {"n_arms": 10**7}),
        (daband.Trees, {"n_arms": 10**7}),
        (daband.NeuralLinUCB, {"context_shape": [10**6]}),
    ],
)
def test_settings_that_need_much_more_memory_than_the_file_are_refused(kind, change, tmp_path):
    path = tmp_path / "p.safetensors"
    settings = {"recipe": "small", "device": "cpu"} if kind is daband.NeuralLinUCB else {}
    kind(context_shape=(3,), n_arms=2, **settings).save(path)
    _rewritten(path, lambda settings, _: settings.update(change))
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=r"GiB .* the file"):
            daband.load(path)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["log", "trees", "daband"])
def test_files_with_nan_are_refused(kind, tmp_path):
    path = _saved_after_rounds(kind, tmp_path)
    arrays = read_checkpoint(path).arrays
    names = [name for name, array in arrays.items() if array.dtype.kind == "f" and array.size]
    assert len(names) > 3
    content = path.read_bytes()
    for position, name in enumerate(names):
        damaged = arrays[name].copy()
        damaged.flat[damaged.size // 2] = np.inf if position % 2 else np.nan
        path.write_bytes(content)
        _rewritten(path, lambda _, kept, one={name: damaged}: kept.update(one))
        with pytest.raises(CheckpointError, match="NaN"):
            daband.load(path)


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        *(
            (kind, name, change)
            for kind in ("log", "trees")
            for name, change in (
                ("policy/rounds", lambda array: array - 1),
                ("policy/rounds", lambda array: array + 10),
                ("policy/rounds", lambda array: array[:-1]),
                ("policy/fitted", lambda array: array + 1),
                ("policy/fitted", lambda array: array * -1),
                ("domain", lambda array: array - 1),
            )
        ),
        ("log", "policy/kept/contexts", lambda array: array[:, 1:]),
        ("log", "policy/kept/contexts", lambda array: np.repeat(array, 2, axis=0)),
        ("log", "policy/kept/arms", lambda array: array + 1),
        ("log", "policy/kept/arms", lambda array: array * 0),
        ("log", "policy/kept/propensities", lambda array: array + 2.0),
        ("trees", "policy/kept", lambda array: array[:, 1:]),
        ("trees", "policy/kept", lambda array: np.repeat(array, 2, axis=0)),
        ("trees", "policy/kept", lambda array: _raised(array, -3, 0.5)),
        ("log", "policy/evidence", lambda array: array + 3),
        ("trees", "policy/trees/base", lambda array: array[:1]),
        ("trees", "policy/trees/roots", lambda array: array[:1]),
        ("daband", "policy/replay.rounds.0.n_seen", lambda array: array + 1),
        ("daband", "policy/replay.rounds.0.n_seen", lambda array: array * -1),
        ("daband", "policy/replay.rounds.0.arms", lambda array: array + 3),
        ("daband", "policy/replay.rounds.0.rewards", lambda array: array[:-1]),
        ("daband", "policy/learner.arm_frequencies", lambda array: array[:1]),
        ("daband", "policy/learner.gate.arms", lambda array: array[:, :1]),
        ("daband", "policy/learner.progress", lambda array: -1 - array),
        ("daband", "policy/steps", lambda array: -1 - array),
    ],
)
def test_files_with_wrong_counts_are_refused(kind, name, change, tmp_path):
    path = _saved_after_rounds(kind, tmp_path)
    _rewritten(path, lambda _, arrays: arrays.update({name: change(arrays[name])}))
    with pytest.raises(CheckpointError, match=r"describes: | loaded: "):
        daband.load(path)


def _raised(array, column, value):
    raised = array.copy()
    raised[:, column] += value
    return raised


def _saved_after_rounds(kind, folder):
    recipe = {"recipe": "small", "device": "cpu"} if kind == "daband" else {}
    policy = policies.get(kind)(context_shape=(2,), n_arms=3, **recipe)
    rng = np.random.default_rng(0)
    contexts, arms = rng.normal(size=(150, 2)), rng.integers(0, 3, 150)
    policy.update(contexts, arms, arms + rng.random(150), propensities=np.full(150, 1 / 3))
    policy.observe_target(contexts)
    policy.adapt(2)
    policy.save(folder / "p")
    return folder / "p"


@pytest.mark.parametrize("keep", [0, 4, 20, 200, -1])
def test_truncated(saved, keep):
    content = saved.read_bytes()
    saved.write_bytes(content[:keep])
    with pytest.raises(CheckpointError, match=str(saved)):
        daband.load(saved)


def test_not_ours(tmp_path):
    path = tmp_path / "other.safetensors"
    path.write_bytes(safetensors.numpy.save({"weights": np.zeros(3)}))
    with pytest.raises(CheckpointError, match=r"other\.safetensors .*policy\.save"):
        daband.load(path)


def test_plain_text(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello, this is no policy at all")
    with pytest.raises(CheckpointError, match=r"notes\.txt .* 31$"):
        daband.load(path)


def test_missing(tmp_path):
    with pytest.raises(CheckpointError, match=r"nothing\.safetensors "):
        daband.load(tmp_path / "nothing.safetensors")


def _rewritten(saved, change):
    """The file with other content and a digest that fits it: what a foreign writer could leave."""
    about, arrays, notes = read_checkpoint(saved)
    change(about, arrays)
    write_checkpoint(saved, about, arrays, notes)


def test_a_newer_format(saved):
    content = saved.read_bytes()
    now = f'\\"version\\": {CHECKPOINT_VERSION}'.encode()
    assert content.count(now) == 1
    saved.write_bytes(content.replace(now, now[:-1] + b"9"))
    with pytest.raises(CheckpointError, match=r"version 9, .*newer"):
        daband.load(saved)
    saved.write_bytes(content.replace(now, now[:-1] + b"1"))
    with pytest.raises(CheckpointError, match=r"version 1, .*again"):
        daband.load(saved)


@pytest.mark.parametrize("lost", ["rounds", "policy/primal.A_inv", "ids/json"])
def test_an_array_is_missing(saved, lost):
    _rewritten(saved, lambda _, arrays: arrays.pop(lost))
    with pytest.raises(CheckpointError, match="describes: "):
        daband.load(saved)


def test_an_unknown_policy(saved):
    _rewritten(saved, lambda about, _: about.update(policy="linucbx"))
    with pytest.raises(CheckpointError, match=r"'linucbx'.*'linucb'.*import"):
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
    with pytest.raises(CheckpointError, match="pickle"):
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


def _flipped(content, position):
    """The same bytes with one bit changed."""
    changed = bytearray(content)
    changed[position // 8] ^= 1 << position % 8
    return bytes(changed)


def test_a_file_with_any_bit_flipped_is_refused(saved):
    content = saved.read_bytes()
    bits = 8 * len(content)
    header = 8 * (8 + struct.unpack("<Q", content[:8])[0])
    spread = {round(i * (bits - 1) / 199) for i in range(200)}
    in_header = {round(i * (header - 1) / 199) for i in range(200)}
    for position in sorted(spread | in_header | set(range(64))):
        saved.write_bytes(_flipped(content, position))
        for read in (daband.load, read_checkpoint):
            with pytest.raises(CheckpointError) as refused:
                read(saved)
            assert str(saved) in str(refused.value)
    saved.write_bytes(content)
    daband.load(saved)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_of_a_neural_policy_too(neural_file, where, bit):
    path, content = neural_file
    path.write_bytes(_flipped(content, 8 * int(where * len(content)) + bit))
    with pytest.raises(CheckpointError, match="flipped"):
        daband.load(path)


@pytest.fixture(scope="module")
def neural_file(tmp_path_factory):
    policy = _trained_neural()
    path = tmp_path_factory.mktemp("neural") / "flipped.safetensors"
    policy.save(path)
    return path, path.read_bytes()


def _trained_neural(rounds=40):
    policy = daband.DABand(context_shape=(4,), n_arms=3, recipe="small", device="cpu", seed=2)
    draws = np.random.default_rng(0)
    policy.update(
        _marked(draws, rounds),
        draws.integers(0, 3, rounds),
        draws.random(rounds),
        ids=range(rounds),
    )
    policy.observe_target(_marked(draws, rounds))
    policy.adapt(2)
    return policy


def _marked(draws, n):
    """Contexts whose values can be found again in a file, in whatever type they were stored."""
    return (draws.integers(1, 2**20, (n, 4)) / 2**20).astype(np.float32)


def _values_in(path):
    _, arrays, _ = read_checkpoint(path)
    return {
        float(value)
        for array in arrays.values()
        if array.dtype.kind == "f"
        for value in array.ravel()
    }


@pytest.mark.exact_contexts
@pytest.mark.parametrize("length", ["short", "long"])
def test_a_file_without_replay_holds_no_round(length, tmp_path):
    rounds = 40 if length == "short" else 300
    draws = np.random.default_rng(0)
    policy = _trained_neural(rounds)
    contexts = _marked(draws, rounds)
    policy.save(tmp_path / "all")
    policy.save(tmp_path / "none", replay=False)
    shown = {float(value) for value in contexts.ravel()}
    assert shown <= _values_in(tmp_path / "all")
    assert not shown & _values_in(tmp_path / "none")
    assert (tmp_path / "none").stat().st_size < (tmp_path / "all").stat().st_size
    _, arrays, _ = read_checkpoint(tmp_path / "none")
    assert arrays["ids/integers"].size == arrays["ids/json"].size == 0


def test_a_policy_without_its_replay_decides_the_same_and_learns_on(tmp_path):
    policy = _trained_neural(300)
    policy.save(tmp_path / "p", replay=False)
    loaded = daband.load(tmp_path / "p")
    probe = _marked(np.random.default_rng(9), 50)
    for domain in ("source", "target"):
        before = policy.decide(probe, domain)
        after = loaded.decide(probe, domain)
        np.testing.assert_array_equal(before.arm, after.arm)
        np.testing.assert_array_equal(before.mean, after.mean)
        np.testing.assert_array_equal(before.bonus, after.bonus)
    assert loaded.adapt(3) == {}  # there is nothing to learn from yet
    draws = np.random.default_rng(5)

    def learn(n):
        loaded.update(_marked(draws, n), draws.integers(0, 3, n), draws.random(n))
        loaded.observe_target(_marked(draws, n))
        return loaded.adapt(1)

    rounds = loaded.counts.sum()
    assert learn(40)
    assert loaded.counts.sum() == rounds + 40  # the head keeps what it knew


def test_linear_statistics_without_the_rounds_they_are_made_of(tmp_path):
    draws = np.random.default_rng(1)
    policy = daband.LinUCB(context_shape=(4,), n_arms=2)
    contexts = _marked(draws, 20).astype(np.float64)
    for start in range(0, 20, 4):
        part = slice(start, start + 4)
        policy.update(
            contexts[part], draws.integers(0, 2, 4), draws.random(4), ids=range(start, start + 4)
        )
    policy.save(tmp_path / "p", replay=False)
    assert not {float(value) for value in contexts.ravel()} & _values_in(tmp_path / "p")
    loaded = daband.load(tmp_path / "p")
    probe = _marked(draws, 30)
    np.testing.assert_allclose(
        loaded.decide(probe).mean, policy.decide(probe).mean, rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(
        loaded.decide(probe).bonus, policy.decide(probe).bonus, rtol=1e-9, atol=1e-12
    )
    loaded.update(contexts[:1], [0], [1.0], ids=[0])  # whom an id names is not kept either
    np.testing.assert_array_equal(loaded.counts.sum(), 21)


class TestWhereAFileGoes:
    @pytest.fixture
    def policy(self):
        return daband.Random(context_shape=(2,), n_arms=2)

    def test_a_file_keeps_its_mode(self, policy, tmp_path):
        path = tmp_path / "p"
        policy.save(path)
        path.chmod(0o640)
        policy.save(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640

    def test_a_symbolic_link_stays_one(self, policy, tmp_path):
        (tmp_path / "real").mkdir()
        (tmp_path / "real" / "p").write_bytes(b"old")
        (tmp_path / "link").symlink_to("real/p")
        policy.save(tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert daband.load(tmp_path / "real" / "p").n_arms == 2
        assert [entry.name for entry in (tmp_path / "real").iterdir()] == ["p"]

    def test_a_link_to_nowhere(self, policy, tmp_path):
        (tmp_path / "link").symlink_to(tmp_path / "gone" / "p")
        with pytest.raises(daband.DataError, match=r"link .*written: .*gone "):
            policy.save(tmp_path / "link")
        with pytest.raises(CheckpointError, match=r"link .*read: "):
            daband.load(tmp_path / "link")

    def test_a_link_to_itself(self, policy, tmp_path):
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        with pytest.raises(daband.DabandError, match="loop"):
            policy.save(tmp_path / "loop")

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("", "^path .*empty"),
            ("a\0b", "^path .*NUL"),
            (None, "^path .*None$"),
            (3, "^path .*3$"),
            (b"p", "^path .*b'p'$"),
            ("x" * 300, "^path .*300 "),
        ],
    )
    def test_not_a_file(self, policy, path, message, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(daband.DabandError, match=message):
            policy.save(path)
        with pytest.raises(daband.DabandError):
            daband.load(path)
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_a_pipe_and_a_device(self, policy, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        cases = [(tmp_path, f"{tmp_path} .*folder"), (tmp_path / "pipe", "/pipe .*pipe")]
        # A device of our own: where the refusal fails, the system's would be lost.
        with contextlib.suppress(PermissionError):
            os.mknod(tmp_path / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
            cases.append((tmp_path / "device", "/device .*device"))
        for path, message in cases:
            with pytest.raises(daband.DataError, match=message):
                policy.save(path)
            with pytest.raises(CheckpointError, match=f"{path} .*folder"):
                daband.load(path)

    def test_notes_are_texts(self, policy, tmp_path):
        for notes in ({"a": 1}, {1: "a"}, "text", ["a"]):
            with pytest.raises(daband.InvalidInput, match="notes"):
                policy.save(tmp_path / "p", notes=notes)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_full_disk(tmp_path):
    """The real thing, where a file's size can be limited: the old file stays, and the error names
    it.
    """
    script = """
import resource, signal, sys
import numpy as np
import daband
policy = daband.LinUCB(context_shape=(40,), n_arms=8)
policy.save(sys.argv[1])
policy.update(np.ones((3, 40)), [0, 1, 1], [0.1, 0.2, 0.3])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    policy.save(sys.argv[1])
except daband.DataError as error:
    print(error)
"""
    path = tmp_path / "p.safetensors"
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{path} cannot be written" in done.stdout
    assert daband.load(path).counts.sum() == 0
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_another_device_loads_on_this_one(tmp_path):
    policy = daband.DABand(context_shape=(4,), n_arms=2, recipe="small", device="cpu")
    policy.device_setting = "cuda:7"  # as if it had been trained there
    policy.save(tmp_path / "p.safetensors")
    with pytest.raises(CheckpointError, match="cuda:7"):
        daband.load(tmp_path / "p.safetensors")
    loaded = daband.load(tmp_path / "p.safetensors", device="cpu")
    contexts = np.random.default_rng(0).normal(size=(5, 4))
    np.testing.assert_array_equal(loaded.decide(contexts).mean, policy.decide(contexts).mean)


class OneSetting(daband.LinUCB):
    """A policy of somebody's own, whose constructor takes neither a transform nor a way to model
    arms.
    """

    def __init__(self, *, context_shape, n_arms, seed=0):
        super().__init__(context_shape=context_shape, n_arms=n_arms, seed=seed)

    def settings(self):
        return daband.Policy.settings(self)


def test_a_policy_that_takes_few_settings_is_saved_and_loaded(tmp_path):
    with temporarily(policies, "one-setting", OneSetting):
        OneSetting.name = "one-setting"
        policy = OneSetting(context_shape=(2,), n_arms=2)
        policy.update([[1.0, 2.0]], [0], [1.0])
        policy.save(tmp_path / "p.safetensors")
        loaded = daband.load(tmp_path / "p.safetensors")
    assert type(loaded) is OneSetting
    assert loaded.settings() == {"context_shape": [2], "n_arms": 2, "seed": 0}
    np.testing.assert_array_equal(
        loaded.select([[1.0, 2.0]]).mean, policy.select([[1.0, 2.0]]).mean
    )
