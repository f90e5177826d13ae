import pytest
from typer.testing import CliRunner

from daband.cli.data import app
from daband.errors import InvalidInput


def show(*arguments):
    return CliRunner().invoke(app, ["show", "synthetic", "--tiny", *arguments], catch_exceptions=False)


@pytest.mark.parametrize("name", ["x.foo", "x", "x.png.txt", ".png"])
def test_a_picture_of_an_unknown_kind_is_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(InvalidInput, match=r"--out must end in \.png, \.svg, \.pdf, \.jpg or \.jpeg, got"):
        show("--out", str(tmp_path / "below" / name))
    assert not (tmp_path / "below").exists()


@pytest.mark.parametrize(
    ("name", "start"), [("x.png", b"\x89PNG"), ("x.SVG", b"<?xml"), ("x.pdf", b"%PDF"), ("x.jpg", b"\xff\xd8\xff")]
)
def test_every_known_kind_of_picture_is_written(tmp_path, name, start):
    done = show("--out", str(tmp_path / name))
    assert done.exit_code == 0
    assert name in done.stdout.replace("\n", "")
    assert (tmp_path / name).read_bytes().startswith(start)
