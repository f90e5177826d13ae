"""Bad files: of policies, of runs, and archives.

Each is refused by a ``DabandError`` that names it.
"""

import numpy as np
import pytest

import daband
from daband.base._files import check_path, make_folder, read_json, write_bytes, write_text


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "p.safetensors"
    policy = daband.LinUCB(context_shape=(3,), n_arms=2)
    policy.update(np.eye(3), [0, 1, 1], [0.1, 0.2, 0.3])
    policy.save(path)
    return path.read_bytes()


@pytest.mark.parametrize("where", ["before", "behind", "between"])
@pytest.mark.parametrize("more", [b"\0", b" ", b"{}", b"\n"])
def test_longer_policies(where, more, saved, tmp_path):
    half = len(saved) // 2
    content = {
        "before": more + saved,
        "behind": saved + more,
        "between": saved[:half] + more + saved[half:],
    }[where]
    path = tmp_path / "long.safetensors"
    path.write_bytes(content)
    with pytest.raises(daband.CheckpointError, match=r"long\.safetensors"):
        daband.load(path)


@pytest.mark.parametrize("path", ["", "a\0b", None, 3, b"p", 1.5, ["p"], {}], ids=repr)
class TestNames:
    def test_load(self, path):
        with pytest.raises(daband.InvalidInput):
            daband.load(path)

    def test_write(self, path, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for call in (
            lambda: write_bytes(path, b""),
            lambda: write_text(path, ""),
            lambda: make_folder(path),
            lambda: read_json(path),
            lambda: check_path(path),
        ):
            with pytest.raises(daband.InvalidInput):
                call()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"nul"])
def test_json(content, tmp_path):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(daband.DataError, match=r"x\.json"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize("what", ["nowhere", "folder", "link"])
def test_json_that_cannot_be_read(what, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("gone")
    with pytest.raises(daband.DataError, match=what):
        read_json(tmp_path / what)


@pytest.mark.parametrize("n_arms", [10**15])
@pytest.mark.parametrize("kind", [daband.LinUCB, daband.Random])
def test_sizes_that_no_machine_has(kind, n_arms):
    with pytest.raises(daband.InvalidInput, match=f"n_arms={n_arms}.*GiB"):
        kind(context_shape=(3,), n_arms=n_arms)
    with pytest.raises(daband.InvalidInput, match="GiB"):
        kind(context_shape=(10**9, 10**6), n_arms=2)


def test_statistics_that_no_machine_has():
    with pytest.raises(daband.InvalidInput, match=r"n_arms=1000 with 10000001 features"):
        daband.LinUCB(context_shape=(10**7,), n_arms=1000)
