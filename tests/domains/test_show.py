import pytest
from typer.testing import CliRunner

from daband.cli._data import data_app
from daband.domains._registry import load
from daband.errors import InvalidInput


def show(*arguments):
    return CliRunner().invoke(data_app, ["show", "synthetic", "--tiny", *arguments], catch_exceptions=False)


@pytest.mark.parametrize("name", ["x.foo", "x", "x.png.txt", ".png"])
def test_a_picture_of_an_unknown_kind_is_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(InvalidInput, match=r"--out must end in \.png, \.svg, \.pdf, \.jpg or \.jpeg, got"):
        show("--out", str(tmp_path / "below" / name))
    assert not (tmp_path / "below").exists()


KINDS = {"x.png": b"\x89PNG\r\n", "x.SVG": b"<?xml", "x.pdf": b"%PDF-", "x.jpg": b"\xff\xd8\xff"}


@pytest.mark.parametrize("name", KINDS)
def test_every_known_kind_of_picture_is_written(tmp_path, name):
    path = tmp_path / "below" / name
    shown = show("--out", str(path))
    assert shown.exit_code == 0
    assert path.read_bytes().startswith(KINDS[name])
    assert [entry.name for entry in path.parent.iterdir()] == [name]
    said = " ".join(shown.output.split())
    pair = load("synthetic", tiny=True)
    assert f"{len(pair.source):,} source contexts, {len(pair.target):,} target contexts" in said
    assert f"{pair.n_arms} arms" in said
    assert f"wrote {path}" in said
