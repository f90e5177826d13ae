"""What a shell and a reader of ``--help`` are offered."""

import pytest
from typer.testing import CliRunner

from daband.cli._main import app, data_app

NO_FILE = {"demo", "presets", "methods"}


def test_every_command_ends_its_help_with_an_example():
    names = [(command.name or command.callback.__name__,) for command in app.registered_commands]
    assert len(names) >= 16
    names += [("data", str(command.name)) for command in data_app.registered_commands]
    for words in names:
        name = " ".join(words)
        text = (
            CliRunner()
            .invoke(app, [*words, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
            .output
        )
        example = text.partition("Example:")[2]
        assert f"daband {name}" in example, name
        assert name in NO_FILE or "." in example or "/" in example, name  # with a file or a folder


def all_commands():
    commands = [(command.name or command.callback.__name__,) for command in app.registered_commands]
    return [
        (),
        *commands,
        *(("data", str(command.name)) for command in data_app.registered_commands),
    ]


@pytest.mark.parametrize("words", all_commands(), ids=" ".join)
def test_help_cuts_no_text_at_eighty_columns(words):
    text = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80", "TERM": "dumb"}).output
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "list[" not in text.partition("Options:")[2]  # the type of an option in Python
    assert words or "..." not in text.partition("Commands:")[2]
    if words == ("serve",):  # whole sentences, in whatever lines
        assert (
            "Learn from the log: the policy that FILE was exported from, a saved file or its"
            " folder." in " ".join(text.split())
        )
