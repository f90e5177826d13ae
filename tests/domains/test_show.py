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


@pytest.mark.parametrize("name", ["x.png", "x.SVG", "x.pdf", "x.jpg"])
def test_every_known_kind_of_picture_is_written(tmp_path, name):
    assert show("--out", str(tmp_path / name)).exit_code == 0
    assert (tmp_path / name).stat().st_size > 0
