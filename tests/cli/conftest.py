"""What tests of the command line share."""

import sys
from types import SimpleNamespace

import pytest

from daband.cli._main import main


@pytest.fixture
def daband(tmp_path, monkeypatch, capsys):
    """Call the command line in a folder of its own; what it returned and printed."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["daband", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        return SimpleNamespace(
            returncode=left.value.code or 0, stdout=printed.out, stderr=printed.err
        )

    return call
