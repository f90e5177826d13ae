"""What tests of the command line share."""

import io
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from daband.cli import _choose, _runs, _shared
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


@pytest.fixture
def console(monkeypatch):
    def make(terminal):
        made = Console(file=io.StringIO(), force_terminal=terminal, width=120)
        for module in (_shared, _runs, _choose):
            monkeypatch.setattr(module, "console", made)
        return made

    return make
