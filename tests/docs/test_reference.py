"""The reference has every public name and every option, and its examples give what they show."""

import doctest
import importlib
import inspect
import pkgutil
import sys
from pathlib import Path

import pytest

import daband

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS / "_ext"))

import command_pages
import public_names

ROOMS = [
    found.name
    for found in pkgutil.iter_modules(daband.__path__)
    if found.ispkg and found.name != "cli"
]
PUBLIC = public_names.public_names()
NEEDED = [public for public in PUBLIC if public.name.count(".") == 1]
EXAMPLES = [
    public
    for public in PUBLIC
    if public in NEEDED or ">>> " in (inspect.getdoc(public.value) or "")
]


def test_every_public_name_has_its_place():
    values = {id(public.value) for public in PUBLIC}
    names = {public.name for public in PUBLIC}
    for room in ROOMS:
        module = importlib.import_module(f"daband.{room}")
        for name in module.__all__:
            value = getattr(module, name)
            assert id(value) in values or f"daband.{room}.{name}" in names, f"daband.{room}.{name}"
    for name in set(daband.__all__) - {"domains", "weights"}:
        assert f"daband.{name}" in names, name


@pytest.mark.parametrize("public", EXAMPLES, ids=lambda public: public.name)
def test_the_example_of(public, tmp_path, monkeypatch):
    """Every name of ``daband`` has an example, and it gives what it shows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = inspect.getdoc(public.value) or ""
    assert ">>> " in own, f"{public.name} has no example"
    finder = doctest.DocTestFinder(recurse=False)
    tests = finder.find(public.value, public.name, globs={"daband": daband})
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in tests:
        runner.run(test)
    assert runner.tries
    assert not runner.failures


def test_the_page_of_commands_has_every_option():
    page = command_pages.command_page()
    for name, command in command_pages.commands():
        assert f"## {name}\n" in page
        for parameter in command.params:
            if parameter.name not in ("install_completion", "show_completion"):
                assert (
                    parameter.opts[0]
                    if parameter.opts[0].startswith("-")
                    else parameter.name.upper()
                ) in page
