"""Check the size and the layout of the package: each limit may fall, and should not rise."""

import ast
import importlib
import io
import tokenize
from collections import defaultdict
from pathlib import Path

import daband

ROOT = Path(daband.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in FILES}
PUBLIC_MODULES = {
    "__init__.py",
    "__main__.py",
    "daband.py",
    "errors.py",
    "neural_linucb.py",
    "sklearn.py",
    "weights.py",
}
MAX_ROOT_MODULES = 6
MAX_TOKENS = 250_000
MAX_LONG_LINES = 0.01
MAX_SKIPS = 10
MAX_PUBLIC_NAMES = 120
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


IGNORED_TOKENS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def count_tokens(text: str) -> int:
    """Return the number of Python tokens without comments, docstrings and line breaks."""
    docstring_lines = {
        node.body[0].lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None
    }
    return sum(
        token.type not in IGNORED_TOKENS
        and not (token.type == tokenize.STRING and token.start[0] in docstring_lines)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def public_names() -> list[str]:
    """Return every name in the ``__all__`` of the package, its packages and its public modules."""
    modules = [
        "daband",
        *(f"daband.{path.parent.name}" for path in ROOT.glob("*/__init__.py")),
    ]
    modules += [
        f"daband.{path.stem}" for path in ROOT.glob("*.py") if not path.name.startswith("_")
    ]
    return [
        f"{module}.{name}"
        for module in modules
        for name in getattr(importlib.import_module(module), "__all__", ())
    ]


def test_comments_and_docstrings_are_not_counted_as_tokens():
    text = '"""A docstring\nof two lines."""\n\n# a comment\nx = 1\n\n\ndef f():\n    """Text."""\n'
    assert count_tokens(text) == len(["x", "=", "1", "def", "f", "(", ")", ":"])


def test_the_package_stays_small():
    assert sum(count_tokens(path.read_text()) for path in FILES) <= MAX_TOKENS


def test_lines_are_short_and_formatted():
    lines = [line for path in FILES for line in path.read_text().splitlines()]
    assert sum(len(line) > 100 for line in lines) <= MAX_LONG_LINES * len(lines)
    assert sum("fmt: skip" in line for line in lines) <= MAX_SKIPS


def test_the_root_has_few_modules():
    assert len(list(ROOT.glob("*.py"))) <= MAX_ROOT_MODULES


def test_a_module_that_is_not_public_starts_with_an_underscore():
    private = [
        path.relative_to(ROOT)
        for path in FILES
        if path.name[0] != "_" or path.name == "__main__.py"
    ]
    assert {path.name for path in private} <= PUBLIC_MODULES, private


def test_the_public_api_stays_small():
    names = public_names()
    assert len({name.rpartition(".")[2] for name in names}) <= MAX_PUBLIC_NAMES, names


def test_a_public_name_is_listed_by_one_package():
    listed = defaultdict(set)
    for name in public_names():
        if name.count(".") > 1:
            listed[name.rpartition(".")[2]].add(name)
    assert {name: places for name, places in listed.items() if len(places) > 1} == {}
