"""Bad files: of policies, of runs, and archives. Each is refused by a ``DabandError`` that names it."""

import io
import tarfile

import numpy as np
import pytest

import daband
from daband._files import checked_path, make_folder, read_json, write_bytes, write_text
from daband.domains import _download as download
from daband.domains._download import unpack


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "p.safetensors"
    policy = daband.LinUCB(context_shape=(3,), n_arms=2)
    policy.update(np.eye(3), [0, 1, 1], [0.1, 0.2, 0.3])
    policy.save(path)
    return path.read_bytes()


@pytest.mark.parametrize("share", np.linspace(0, 0.999, 25).round(3))
def test_truncated_policies(share, saved, tmp_path):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(saved[: int(share * len(saved))])
    with pytest.raises(daband.CheckpointError, match=r"cut\.safetensors"):
        daband.load(path)


@pytest.mark.parametrize("where", ["before", "behind", "between"])
@pytest.mark.parametrize("more", [b"\0", b" ", b"{}", b"\n"])
def test_longer_policies(where, more, saved, tmp_path):
    half = len(saved) // 2
    content = {"before": more + saved, "behind": saved + more, "between": saved[:half] + more + saved[half:]}[where]
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
        for call in (lambda: write_bytes(path, b""), lambda: write_text(path, ""), lambda: make_folder(path),
                     lambda: read_json(path), lambda: checked_path(path)):  # fmt: skip
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


# Archives.


def _tar(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, size in members:
            info = tarfile.TarInfo(name)
            info.size = size
            archive.addfile(info, io.BytesIO(bytes(size)))


@pytest.mark.parametrize("name", ["../x", "a/../../x", ".."])
def test_members_that_point_outside(name, tmp_path):
    _tar(tmp_path / "archive", [("good", 3), (name, 3)])
    with pytest.raises(daband.DataError, match="archive cannot be unpacked"):
        unpack(tmp_path / "archive", tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []


def test_an_absolute_path_stays_inside(tmp_path):
    _tar(tmp_path / "archive", [("/x", 3)])
    unpack(tmp_path / "archive", tmp_path / "into")
    assert (tmp_path / "into" / "x").stat().st_size == 3


def test_a_bomb(tmp_path, monkeypatch):
    """Zeros compress by a factor of a thousand: here to 3 MB, with a limit in proportion."""
    monkeypatch.setattr(download, "_ALWAYS_ALLOWED", 1 << 20)
    _tar(tmp_path / "archive", [(f"zeros-{i}", 1 << 18) for i in range(12)])
    assert (tmp_path / "archive").stat().st_size < 3 << 18
    with pytest.raises(daband.DataError, match="would unpack to more than"):
        unpack(tmp_path / "archive", tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []


def test_an_honest_archive(tmp_path):
    _tar(tmp_path / "archive", [("a/b", 1 << 20), ("c", 0)])
    unpack(tmp_path / "archive", tmp_path / "into")
    assert (tmp_path / "into" / "a" / "b").stat().st_size == 1 << 20


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x1f\x8b", b"x" * 600], ids=["empty", "zip", "gzip", "text"])
def test_archives_that_are_none(content, tmp_path):
    (tmp_path / "archive").write_bytes(content)
    with pytest.raises(daband.DataError, match="archive"):
        unpack(tmp_path / "archive", tmp_path / "into")


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_archives_with_damage_inside(share, tmp_path):
    with open(tmp_path / "noise", "wb") as file:
        file.write(np.random.default_rng(0).bytes(5000))
    with tarfile.open(tmp_path / "archive", "w:gz") as archive:
        archive.add(tmp_path / "noise", "noise")
    content = bytearray((tmp_path / "archive").read_bytes())
    place = int(share * len(content))
    content[place : place + 64] = bytes(64)
    (tmp_path / "archive").write_bytes(content)
    with pytest.raises(daband.DataError, match="archive"):
        unpack(tmp_path / "archive", tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []


@pytest.mark.parametrize("n_arms", [10**15])
@pytest.mark.parametrize("kind", [daband.LinUCB, daband.Random])
def test_sizes_that_no_machine_has(kind, n_arms):
    with pytest.raises(daband.InvalidInput, match=f"n_arms={n_arms}.*GiB"):
        kind(context_shape=(3,), n_arms=n_arms)
    with pytest.raises(daband.InvalidInput, match="GiB"):
        kind(context_shape=(10**9, 10**6), n_arms=2)


def test_statistics_that_no_machine_has():
    with pytest.raises(daband.InvalidInput, match=r"n_arms=1000 with 10000000 features"):
        daband.LinUCB(context_shape=(10**7,), n_arms=1000, form="primal")
