import pytest
from typer.testing import CliRunner

from daband.cli._main import data_app
from daband.domains._registry import pairs


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """A fresh clone: no data, no cache."""
    monkeypatch.setenv("DABAND_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DABAND_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def run(*arguments):
    return CliRunner().invoke(data_app, arguments, catch_exceptions=False, env={"COLUMNS": "200"})


def test_list_shows_every_pair():
    result = run("list")
    assert result.exit_code == 0
    for name in pairs:
        assert name in result.output


def test_check_on_a_fresh_clone():
    result = run("check")
    assert result.exit_code == 0
    for word in (
        "digit",
        "missing",
        "download https://ossci",
        "CC BY-SA 3.0",
        "visda17",
    ):
        assert word in result.output
    assert "needs no data files" in run("check", "synthetic").output
