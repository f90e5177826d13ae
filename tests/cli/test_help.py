"""What a shell and a reader of ``--help`` are offered."""

from typer.testing import CliRunner

from daband.cli.main import app
from daband.cli.options import complete_methods, complete_preset

NO_FILE = {"demo", "presets", "methods"}


def test_every_command_ends_its_help_with_an_example():
    names = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert len(names) >= 16
    for name in names:
        text = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
        example = text.partition("Example:")[2]
        assert example.strip().startswith(f"daband {name}"), name
        assert name in NO_FILE or "." in example or "/" in example, name  # with a file or a folder


def test_a_shell_completes_presets_and_methods():
    assert "synthetic" in complete_preset("syn")
    assert complete_methods("random,linucb-") == ["random,linucb-p"]
